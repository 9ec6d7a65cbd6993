"""How much of a model's context window a transcript takes, and how long the next reply may be.

A server refuses a request whose prompt and maximum of output together exceed the window (vLLM: HTTP
400), even if a shorter reply would have fitted. Sizes are the server's own counts, and a
conservative estimate of what came since.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from soundingline.toolkit.llm.messages import Message

# Tokens per byte of UTF-8. English has fewer, other scripts about as many. Digits and markup may
# have more, which is learned from the counts of the server. Too high an estimate ends a question
# early, too low an estimate makes the server refuse.
_RATE = 1 / 3
_HIGHEST_RATE = 1.0  # no tokenizer in use makes more than one token of a byte
_ENVELOPE = 16  # tokens that a chat template adds to a message
_CALL = 64  # bytes that it adds to a call, such as tags, and keys of JSON
_LEAST_SAMPLE = 512  # bytes; a smaller addition says little about the rate
_LEAST_REPLY = 16  # tokens; the Responses API accepts no smaller maximum of output
# Share of the tokens reserved for the answer. With less, the newest exchange costs more than it is
# worth.
_LEAST_SHARE = 0.25


class _Count(NamedTuple):
    """The first `messages` of a transcript, with the tools, take `tokens`."""

    messages: int = 0
    tokens: int = 0


@dataclass(kw_only=True, eq=False)
class ContextWindow:
    """The context window of one question.

    Args:
        size: tokens. None: unknown.
        answer: tokens that the answer needs. 0: nothing is reserved.
        longest: the maximum of output of a request. None: the server's choice. The larger of
            this and `answer` stays free while the model may still call tools, unless `answer` is 0.
        tools: the specifications that are sent with each request.
    """

    size: int | None
    answer: int
    longest: int | None
    tools: Sequence[Mapping[str, Any]] = ()

    def __post_init__(self) -> None:
        self._tool_bytes = len(json.dumps(list(self.tools), ensure_ascii=False).encode())
        self._rate = _RATE
        self._counted = _Count()
        self._accepted: list[_Count] = []  # requests that the server accepted
        self._fitted = 0  # tokens of the largest of them, with the maximum of output
        self._overflows = 0

    def tokens(self, messages: Sequence[Message]) -> int:
        """Estimate of a request's input: what the server counted, and the rest by its bytes."""
        added, size = self._uncounted(messages)
        return self._counted.tokens + math.ceil(size * self._rate) + _ENVELOPE * added

    def full(self, messages: Sequence[Message]) -> bool:
        """Whether a reply of full length, or the answer, may no longer fit behind `messages`. If
        nothing is reserved: whether the shortest reply may not."""
        if not self.answer:
            return not self.fits_anything(messages)
        return not self._has_room(messages, max(self.answer, self.longest or 0) + 1)

    def fits_answer(self, messages: Sequence[Message]) -> bool:
        """Whether a quarter of the answer's tokens is left, as far as is known."""
        return self._has_room(messages, max(_LEAST_REPLY, int(self.answer * _LEAST_SHARE)))

    def fits_anything(self, messages: Sequence[Message]) -> bool:
        """Whether the shortest reply that servers accept fits."""
        return self._has_room(messages, _LEAST_REPLY)

    def longest_reply(self, messages: Sequence[Message]) -> int | None:
        """The maximum of output to ask for: no more than fits."""
        if self.longest is None:
            # The server chooses what fits. After an overflow ask for no more than is needed.
            return (self.answer or None) if self._overflows else None
        room = self.longest if self.size is None else self.size - self.tokens(messages)
        return max(_LEAST_REPLY, min(self.longest, room))

    def overflow(self) -> None:
        """The server refused a request as too long: the window is smaller than expected, or the
        estimate was too low. What the server accepted before did fit."""
        if self._fitted:
            self.size = min(self._fitted, self.size or self._fitted)
        if self._overflows:
            self._rate = _HIGHEST_RATE
        self._overflows += 1

    def accepted(
        self, messages: Sequence[Message], reply: Message, *, counted: int | None, output: int
    ) -> None:
        """The server accepted `messages`, which are `counted` tokens (None: not reported), and
        returned `reply`, the next message of the transcript, of `output` tokens."""
        tokens = self.tokens(messages) if counted is None else counted
        if longest := self.longest_reply(messages):
            self._fitted = max(self._fitted, tokens + longest)
        self._accepted.append(_Count(len(messages), tokens))
        if counted is not None:
            self._learn_rate(messages, counted)
            # Sent back, a call is rendered anew and can take more tokens than the reply did.
            again = math.ceil(message_bytes({**reply, "reasoning": ""}) * self._rate) + _ENVELOPE
            self._counted = _Count(len(messages) + 1, counted + max(output, again))

    def retreat(self, below: int) -> int:
        """Go back to the newest accepted request of fewer than `below` messages. Returns the number
        of its messages, 0 if there is none."""
        shorter = [count for count in self._accepted if count.messages < below]
        if shorter:
            self._counted = shorter[-1]
        return shorter[-1].messages if shorter else 0

    def _has_room(self, messages: Sequence[Message], tokens: int) -> bool:
        return self.size is None or self.tokens(messages) + tokens <= self.size

    def _uncounted(self, messages: Sequence[Message]) -> tuple[int, int]:
        """The number and the bytes of the messages that the server has not counted."""
        added = messages[self._counted.messages :]
        tools = 0 if self._counted.messages else self._tool_bytes
        return len(added), sum(map(message_bytes, added)) + tools

    def _learn_rate(self, messages: Sequence[Message], counted: int) -> None:
        added, size = self._uncounted(messages)
        if size >= _LEAST_SAMPLE:
            tokens = counted - self._counted.tokens - _ENVELOPE * added
            self._rate = min(_HIGHEST_RATE, max(self._rate, tokens / size))


def message_bytes(message: Message) -> int:
    """The bytes (UTF-8) of a message: text, reasoning, and calls as a template renders them."""
    parts = [message.get("content"), message.get("reasoning")]
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    for function in functions:
        parts += [function["name"], function["arguments"]]
    size = sum(len(str(part or "").encode("utf-8", "surrogatepass")) for part in parts)
    return size + _CALL * len(functions)
