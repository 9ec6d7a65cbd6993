"""A model that rewrites as tests want it, asked from threads."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import pandas as pd
from support.llm_model import ScriptedModel, saying, used

from soundingline.toolkit.llm import SamplingParams, Turn
from soundingline.toolkit.llm.blocking import BlockingModel
from soundingline.toolkit.llm.prices import Price

_QUERY = re.compile(r"<query>\n(.*)\n</query>", re.DOTALL)
_THOUGHTS = re.compile(r"<thoughts>\n(.*)\n</thoughts>", re.DOTALL)


def query_of(messages):
    """The query that a request asks to rewrite."""
    return _QUERY.findall(messages[0]["content"])[-1]


def thoughts_of(messages):
    """The reasoning in a request; empty where it has none."""
    return (_THOUGHTS.findall(messages[0]["content"]) or [""])[0]


def question(messages, settings=None):
    """What is <query> [when <reasoning>]?"""
    thoughts = thoughts_of(messages)
    when = f" when {thoughts}" if thoughts else ""
    return saying(f"What is {query_of(messages)}{when}?", usage=used(100, 10))


class QuestionModel(ScriptedModel):
    """Every reply takes `seconds`. `choose` gives it; what it raises is raised."""

    def __init__(
        self, choose: Callable[[Any, SamplingParams], Turn] = question, *, seconds: float = 0.0
    ) -> None:
        super().__init__(choose=choose)
        self.seconds = seconds

    async def respond(self, *arguments):
        await asyncio.sleep(self.seconds)
        return await super().respond(*arguments)

    @property
    def queries(self):
        """The queries of all requests, in order."""
        return [query_of(request.messages) for request in self.requests]


def replies(*texts):
    """Gives these, one after the other."""
    left = list(texts)

    def choose(messages, settings):
        text = left.pop(0)
        if isinstance(text, Exception):
            raise text
        return saying(text, usage=used(100, 10))

    return choose


def rewriter_llm(settings=None):
    """Not started yet."""
    price = Price(input=1.0, output=1.0)
    return BlockingModel("scripted", role="rewriter", settings=settings, price=price)


@contextmanager
def asking(model, settings=None, ledger=None):
    """The model as stages are given it."""
    with rewriter_llm(settings).started(model, ledger) as blocking:
        yield blocking


def frame(*queries, reasoning=None):
    """One row a query, of the questions q1, q2, ..."""
    qids = [f"q{number}" for number in range(1, len(queries) + 1)]
    rows = pd.DataFrame({"qid": qids, "query": pd.Series(list(queries), dtype=object)})
    return rows if reasoning is None else rows.assign(reasoning=reasoning)


def wait_for(condition, seconds=10.0):
    """Until it holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)
