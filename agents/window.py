"""How much of a model's context window a transcript takes, and how long the next reply may be.

A server refuses a request whose prompt and maximum of output together pass the window (vLLM: HTTP
400), even where a shorter reply would have fitted. Sizes are the server's own counts, and a careful
estimate of what came since.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from soundingline.toolkit.llm.messages import Message

# A third of the bytes (UTF-8) is more tokens than English has, and about as many as other scripts
# have; digits and markup may have more, which is learned from the server's counts. Too high an
# estimate ends a question early, too low a one makes the server refuse.
_RATE = 1 / 3
_HIGHEST_RATE = 1.0  # No tokenizer in use makes more than one token of a byte.
_ENVELOPE = 16  # Tokens that a chat template puts around a message.
_CALL = 64  # Bytes that it puts around a call, such as tags, and keys of JSON.
_LEAST_SAMPLE = 512  # Bytes; a smaller addition says little about the rate.
# The Responses API takes no smaller maximum of output.
_LEAST_REPLY = 16
# Of what is kept for the answer: with less, the newest exchange costs more than it brings.
_LEAST_SHARE = 0.25


class _Count(NamedTuple):
    """The first `messages` of a transcript, with the tools, take `tokens`."""

    messages: int = 0
    tokens: int = 0


class Window:
    """The window of one question, `size` tokens large (None: unknown).

    `longest_reply` is what a request asks for at most (None: the server's own choice) and `answer`
    what the answer needs; the larger of the two is kept free while the model may still call tools.
    """

    def __init__(
        self,
        size: int | None,
        *,
        answer: int,
        longest_reply: int | None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self._size = size
        self._answer = answer
        self._longest = longest_reply
        self._tools = len(json.dumps(list(tools), ensure_ascii=False).encode())
        self._rate = _RATE
        self._counted = _Count()
        self._accepted: list[_Count] = []  # The requests that the server took.
        self._fitted = 0  # Tokens of the largest of them, with the maximum of output.
        self._overflows = 0

    def tokens(self, messages: Sequence[Message]) -> int:
        """Estimate of a request's input: what the server counted, and the rest by its bytes."""
        added = messages[self._counted.messages :]
        size = sum(map(written, added)) + (0 if self._counted.messages else self._tools)
        return self._counted.tokens + math.ceil(size * self._rate) + _ENVELOPE * len(added)

    def full(self, messages: Sequence[Message]) -> bool:
        """Whether a reply of full length, or the answer, may no longer fit behind `messages`."""
        return not self._has_room(messages, max(self._answer, self._longest or 0) + 1)

    def fits_answer(self, messages: Sequence[Message]) -> bool:
        """Whether a quarter of what is kept for the answer is left, as far as is known."""
        return self._has_room(messages, max(_LEAST_REPLY, int(self._answer * _LEAST_SHARE)))

    def fits_anything(self, messages: Sequence[Message]) -> bool:
        """Whether the shortest reply that servers accept fits."""
        return self._has_room(messages, _LEAST_REPLY)

    def longest_reply(self, messages: Sequence[Message]) -> int | None:
        """The maximum of output to ask for: no more than fits."""
        if self._longest is None:
            # The server chooses what fits; where it did not, ask for no more than is needed.
            return self._answer if self._overflows else None
        room = self._longest if self._size is None else self._size - self.tokens(messages)
        return max(_LEAST_REPLY, min(self._longest, room))

    def overflow(self) -> None:
        """The server refused a request as too long: the window is smaller than was thought, or the
        estimate was too low. What it took before did fit."""
        if self._fitted:
            self._size = min(self._fitted, self._size or self._fitted)
        if self._overflows:
            self._rate = _HIGHEST_RATE
        self._overflows += 1

    def took(
        self, messages: Sequence[Message], reply: Message, *, counted: int | None, output: int
    ) -> None:
        """The server took `messages`, which are `counted` tokens (None: it did not tell), and gave
        `reply`, the next message of the transcript, in `output` tokens."""
        tokens = self.tokens(messages) if counted is None else counted
        if longest := self.longest_reply(messages):
            self._fitted = max(self._fitted, tokens + longest)
        self._accepted.append(_Count(len(messages), tokens))
        if counted is not None:
            self._learn(messages, counted)
            # Sent back, a call is rendered anew and can be more tokens than it was written in.
            again = math.ceil(written({**reply, "reasoning": ""}) * self._rate) + _ENVELOPE
            self._counted = _Count(len(messages) + 1, counted + max(output, again))

    def retreat(self, below: int) -> int:
        """Go back to the newest request of fewer than `below` messages that the server took. How
        many it had; 0 where there is none."""
        shorter = [count for count in self._accepted if count.messages < below]
        if shorter:
            self._counted = shorter[-1]
        return shorter[-1].messages if shorter else 0

    def _has_room(self, messages: Sequence[Message], tokens: int) -> bool:
        return self._size is None or self.tokens(messages) + tokens <= self._size

    def _learn(self, messages: Sequence[Message], counted: int) -> None:
        added = messages[self._counted.messages :]
        size = sum(map(written, added)) + (0 if self._counted.messages else self._tools)
        if size >= _LEAST_SAMPLE:
            tokens = counted - self._counted.tokens - _ENVELOPE * len(added)
            self._rate = min(_HIGHEST_RATE, max(self._rate, tokens / size))


def written(message: Message) -> int:
    """The bytes (UTF-8) of a message: text, reasoning, and calls as a template renders them."""
    parts = [message.get("content"), message.get("reasoning")]
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    for function in functions:
        parts += [function["name"], function["arguments"]]
    size = sum(len(str(part or "").encode("utf-8", "surrogatepass")) for part in parts)
    return size + _CALL * len(functions)
