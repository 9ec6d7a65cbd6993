"""Language models without a server: they say what a test scripts, or what a rule decides."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from soundingline.toolkit.errors import Runtime
from soundingline.toolkit.llm import FunctionCall, Message, SamplingParams, Turn, Usage
from soundingline.toolkit.llm.blocking import BlockingModel
from soundingline.toolkit.llm.errors import AuthenticationFailed, ModelError, ServerGone
from soundingline.toolkit.llm.messages import Token
from soundingline.toolkit.llm.prices import Price


class ScriptedPrompts:
    """A `BlockingModel` that answers each prompt by `choose`."""

    def __init__(self, choose: Callable[[str], str | Turn | Exception], **settings: Any) -> None:
        self.name, self.run = "fake", ""
        self.settings = SamplingParams(**settings)
        self.rounds = []
        self.qids = []
        self._choose = choose
        self._lock = threading.Lock()

    @property
    def prompts(self):
        return [prompt for each in self.rounds for prompt in each]

    def respond_many(self, requests, qids, settings=None, arrived=None):
        prompts = [messages[0]["content"] for messages in requests]
        with self._lock:
            self.rounds.append(prompts)
            self.qids += qids
        answers = [self._choose(prompt) for prompt in prompts]
        turns = [
            answer if isinstance(answer, (ModelError, Turn)) else Turn(text=str(answer))
            for answer in answers
        ]
        for position, turn in enumerate(turns):
            if arrived is not None and isinstance(turn, Turn):
                arrived(position, turn)
        return turns


Step = Turn | Exception | Callable[[], Any]
ANSWER = "Explanation: Brekke built it [mill]\nExact Answer: Torvald Brekke\nConfidence: 90%"


class SentRequest(NamedTuple):
    """One request as it came, its messages copied."""

    messages: list[dict[str, Any]]
    tools: Sequence[Mapping[str, Any]]
    settings: SamplingParams


def call(name="search", identifier="c1", **arguments):
    return FunctionCall(identifier, name, json.dumps(arguments))


def search(query="Grenholm Mill", identifier="c1"):
    return call("search", identifier, reason="to find it", query=query)


def calling(*calls, **fields):
    return Turn(tool_calls=calls or (search(),), finish_reason="tool_calls", **fields)


def saying(text=ANSWER, **fields):
    return Turn(text=text, **fields)


class ScriptedModel:
    """Gives the steps in order, then `last` again and again. A step is a turn, an error to raise,
    or a function that is called (and awaited) for one of them. A `choose` function instead of
    steps is given each request's messages and settings."""

    name = "scripted"

    def __init__(
        self,
        *steps: Step,
        last: Step | None = None,
        choose: Callable[[Sequence[Message], SamplingParams], Turn] | None = None,
    ) -> None:
        self.requests = []
        self.settings = SamplingParams()
        self.closed = 0
        self._steps = list(steps)
        self._last = last
        self._choose = choose

    def ready(self):
        pass

    def reach(self):
        pass

    async def respond(
        self,
        messages,
        tools=(),
        settings=None,
    ):
        settings = settings or self.settings
        copied = json.loads(json.dumps(list(messages)))
        self.requests.append(SentRequest(copied, list(tools), settings))
        await asyncio.sleep(0)
        if self._choose:
            return self._choose(messages, settings)
        step = self._steps.pop(0) if self._steps else self._last
        while callable(step):
            step = step()
            if asyncio.iscoroutine(step):
                step = await step
        if step is None:
            raise AssertionError("the script has ended")
        if isinstance(step, BaseException):
            raise step
        return step

    def last_message(self, number):
        """The text of the last message of a request."""
        return str(self.requests[number].messages[-1]["content"])

    async def close(self):
        self.closed += 1


def used(input=100, output=10, cached=None):
    return Usage(input=input, cached=cached, output=output)


_PLAN = '{"checklist": ["stands by the sea", "is old"], "queries": ["sea", "old town"]}'
_DOCID = re.compile(r"docid=(\S+)")


class ScriptedLanguageModel:
    """Searches for the question `turns` times, each turn taking `seconds`, then answers with what
    it is asked and cites what it saw first. As a judge it finds every other response right.
    `failing` questions end as a lost server does, and so do all requests while the file `down`
    exists; `locked` refuses every request. Each request that is answered adds the hash of its
    messages to the file `log`. Where it `says`
    something, it says that to everything; else a question to a lone message (to be rewritten), or
    a title that is nowhere if that asks for a list. Asked for a list behind a system message, it
    lists all that it saw; asked for a navigator's plan, it gives the same one each time, and good
    scores to every requirement.
    `wavering`, it searches once more for half of the questions, by its seed (see `wavers`), and
    finds every other document irrelevant. Asked to write a request, it names the first document.
    Where a `gate` is named, requests beyond the first `gate_after` wait until that file exists."""

    def __init__(
        self,
        *,
        turns: int = 2,
        seconds: float = 0.0,
        failing: str = "",
        locked: bool = False,
        price: Runtime[float | None] = 1.0,
        log: str = "",
        down: str = "",
        base_url: Runtime[str] = "",
        says: str = "",
        wavering: bool = False,
        gate: str = "",
        gate_after: int = 0,
    ) -> None:
        self.name = "scripted"
        self.settings = SamplingParams(seed=7)
        self.price = Price(input=price, output=price)
        self.context_window = 100_000
        self.gives_logprobs = False
        self.weights_fingerprint = ""
        self._turns, self._seconds, self._failing, self._locked = turns, seconds, failing, locked
        self._log, self._down = log, down
        self._says = says
        self._wavering = wavering
        self._gate, self._gate_after = gate, gate_after

    @contextmanager
    def running(self, log, servers=None):
        model = ScriptedModel(choose=self._choose)
        yield _Slow(model, self._seconds, Path(self._gate or "/"), self._gate_after)
        assert model.closed, "the model was not closed"

    def _choose(self, messages, settings):
        asked = messages[-1]["content"]
        if not self._locked and (reply := checked_reply(messages, settings)):
            return reply
        if self._down and Path(self._down).exists():
            raise ServerGone("gone")
        if self._log:
            text = json.dumps([list(messages), settings.seed])
            # Without the random numbers that mark the texts of others.
            digest = hashlib.sha256(re.sub(r"\b[0-9a-f]{12,16}\b", "", text).encode())
            with Path(self._log).open("a") as stream:
                stream.write(f"{digest.hexdigest()[:12]}\n")
        if self._locked:
            raise AuthenticationFailed("the key is wrong")
        if settings.tool_choice == "verdict":
            return _verdict(asked)
        if '"checklist"' in asked and not self._says:
            return saying(_PLAN, usage=used(200, 20))
        if "The requirements, by number:" in asked and not self._says:
            return saying(_scores(asked, self._wavering), usage=used(60, 10))
        if "Write one such request" in asked:
            subject = re.search(r"^> (\S.*)", asked, re.MULTILINE)[1]
            return saying(f"Find pages on {subject} and the sea", usage=used(50, 9))
        listing = "Documents:" in messages[0]["content"]
        if listing and len(messages) == 1 and not self._says:
            return saying("Documents:\nA Mill That Is Nowhere", usage=used(40, 8))
        if self._says or len(messages) == 1:
            return saying(self._says or "Which mill is it?", usage=used(40, 8))
        question = messages[1]["content"]
        if self._failing and self._failing in question:
            raise ServerGone("gone")
        turn = sum(message["role"] == "assistant" for message in messages)
        counts = used(100 * (turn + 1), 10, 100 * turn)
        turns = self._turns + (self._wavering and wavers(question, settings.seed))
        if turn < turns and settings.tool_choice != "none":
            return calling(search(f"{question} {turn}", f"c{turn}"), usage=counts)
        seen = " ".join(str(message.get("content")) for message in messages[2:])
        docids = _DOCID.findall(seen) or ["none"]
        if listing:
            listed = " ".join(f"[{docid}]" for docid in docids)
            return saying(f"Explanation: as seen\nDocuments: {listed}", usage=counts)
        docid = docids[0]
        text = f"Explanation: see [{docid}]\nExact Answer: {question}\nConfidence: 50%"
        return saying(text, usage=counts)


_PLACE = re.compile(r'name "(\w+)", year (\d+), aliases (.*?)\.')


def checked_reply(messages, settings, **fields):
    """What a good model says to the requests of the check before a run; None to others."""
    text = messages[-1]["content"] or ""
    words = sum(len(str(message.get("content")).split()) for message in messages)
    cached = words if len(messages) > 2 else 0
    fields = {"usage": used(words + 20, 12, cached), **fields}
    if place := _PLACE.search(text):
        aliases = re.findall(r'"(\w+)"', place[3])
        arguments = {"name": place[1], "year": int(place[2]), "aliases": aliases}
        return calling(FunctionCall("p1", "record_place", json.dumps(arguments)), **fields)
    if settings.tool_choice == "record_place":
        return calling(FunctionCall("p1", "record_place", "{}"), **fields)
    if text.startswith("Count from 1 to 500"):
        return saying("1, 2, 3, 4, 5, 6,", finish_reason="length", usage=used(20, 16))
    return saying("ready", **fields) if "the one word: ready" in text else None


def _scores(asked, wavering=False):
    """Every requirement is met, by the first passage; `wavering`, in half of the documents none."""
    passages = re.findall(r"^> \[ ?(\S+%p\d+)\]", asked, re.MULTILINE) or [""]
    numbers = re.findall(r"^(\d+)\. ", asked, re.MULTILINE)
    row = {"verdict": "satisfied", "score": 0.9, "passage": passages[0], "rationale": "It is."}
    relevant = not (wavering and sum(map(ord, passages[0])) % 2)
    if not relevant:
        row |= {"verdict": "not", "score": 0.1, "rationale": "It is not."}
    rows = [{"number": int(number), **row} for number in numbers]
    probability = 0.8 if relevant else 0.3
    return json.dumps({"requirements": rows, "relevant": relevant, "probability": probability})


def wavers(question, seed):
    """Whether a wavering model searches once more: with every other seed, and not for all
    questions with the same ones."""
    return bool((len(question) + (seed or 0)) % 2)


class _Slow:
    """A model whose every reply takes some time, and those beyond the first `free` ones until the
    file `gate` exists."""

    def __init__(self, model: ScriptedModel, seconds: float, gate: Path, free: int) -> None:
        self.name = model.name
        self._model, self._seconds = model, seconds
        self._gate, self._free = gate, free

    def ready(self):
        pass

    def reach(self):
        pass

    def server_version(self):
        return ""

    async def respond(self, *arguments):
        self._free -= 1
        held = self._free < 0
        await asyncio.sleep(self._seconds)
        while held and not self._gate.exists():
            await asyncio.sleep(0.005)
        return await self._model.respond(*arguments)

    async def close(self):
        await self._model.close()


def _verdict(asked):
    from soundingline.toolkit.llm import FunctionCall

    right = "true" if len(asked) % 2 else "false"
    text = f'{{"extracted_answer": "x", "reasoning": "y", "correct": {right}, "confidence": null}}'
    return calling(FunctionCall("v1", "verdict", text), usage=used(50, 5))


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
    """A model that rewrites queries. Each reply takes `seconds` and is one of `texts`, one after
    the other (an exception is raised), or without these that of `choose`."""

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


# Models of language: what they say to a prompt depends on the length of the text.


def points(prompt):
    text = re.search(r"<document>\n(.*?)\n?</document>", prompt, re.DOTALL)[1]
    return "no idea" if "nothing" in text else json.dumps({"score": len(text) % 100})


def reasoned(prompt):
    text = prompt.partition("\nPassage: ")[2].removesuffix("\n<think>")
    true = (1 + len(text)) / 1000
    top = {" true": math.log(true), " false": math.log(1 - true)}
    return saying("It is.", tokens=(Token("</think>"), Token(" true", top[" true"], top)))


def longest_first(prompt):
    shown = re.findall(r"^\[(\d+)\] ?(.*)$", prompt.partition("<passages>")[2], re.MULTILINE)
    return " > ".join(f"[{number}]" for number, _ in sorted(shown, key=lambda row: -len(row[1])))
