"""A `ChatModel` without a server: it says what a test tells it to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from soundingline.toolkit.llm import Message, SamplingParams, ToolCall, Turn, Usage

Step = Turn | Exception | Callable[[], Any]
ANSWER = "Explanation: Brekke built it [mill]\nExact Answer: Torvald Brekke\nConfidence: 90%"


class SentRequest(NamedTuple):
    """One request as it came, its messages copied."""

    messages: list[dict[str, Any]]
    tools: Sequence[Mapping[str, Any]]
    settings: SamplingParams


def call(name="search", identifier="c1", **arguments):
    return ToolCall(identifier, name, json.dumps(arguments))


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

    async def close(self):
        self.closed += 1


def used(input=100, output=10, cached=None):
    return Usage(input=input, cached=cached, output=output)
