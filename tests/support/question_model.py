"""A model that rewrites as tests want it, asked from threads."""

import asyncio
import re
import time
from contextlib import contextmanager

import pandas as pd
from support.llm_model import ScriptedModel, saying, used

from soundingline.toolkit.llm.blocking import BlockingModel
from soundingline.toolkit.llm.prices import Price


def part_of(messages, name):
    """A part of a request, such as its `query`; empty without one."""
    pattern = rf"<{name}>\n(.*)\n</{name}>"
    return (re.findall(pattern, messages[0]["content"], re.DOTALL) or [""])[-1]


def question(messages, settings=None):
    """What is <query> [when <reasoning>]?"""
    thoughts = part_of(messages, "thoughts")
    when = f" when {thoughts}" if thoughts else ""
    return saying(f"What is {part_of(messages, 'query')}{when}?", usage=used(100, 10))


class QuestionModel(ScriptedModel):
    """Each reply takes `seconds` and is one of `texts`, one after the other (an exception is
    raised), or without these that of `choose`."""

    def __init__(self, *texts, choose=question, seconds=0.0):
        super().__init__(choose=choose)
        self._texts, self.seconds = list(texts), seconds
        if texts:
            self._choose = self._next

    def _next(self, messages, settings):
        text = self._texts.pop(0)
        if isinstance(text, Exception):
            raise text
        return saying(text, usage=used(100, 10))

    async def respond(self, *arguments):
        await asyncio.sleep(self.seconds)
        return await super().respond(*arguments)

    @property
    def queries(self):
        """The queries of all requests, in order."""
        return [part_of(request.messages, "query") for request in self.requests]


def rewriter_llm(settings=None):
    """Not started yet."""
    price = Price(input=1.0, output=1.0)
    return BlockingModel("scripted", role="rewriter", settings=settings, price=price)


@contextmanager
def asking(model, settings=None, ledger=None):
    """The model as stages receive it."""
    with rewriter_llm(settings).started(model, ledger) as blocking:
        yield blocking


def frame(*queries, reasoning=None):
    """One row a query, of the questions q1, q2, ..."""
    qids = [f"q{number}" for number in range(1, len(queries) + 1)]
    rows = pd.DataFrame({"qid": qids, "query": pd.Series(list(queries), dtype=object)})
    return rows if reasoning is None else rows.assign(reasoning=reasoning)


def wait_for(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)
