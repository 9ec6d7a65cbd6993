"""Watches that a transcript only grows at its end, which is what lets servers reuse its prefix."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from soundingline.toolkit.llm.messages import Message, Usage


class PrefixWatch:
    """One question's requests, in order; `warnings` tells each break of the prefix and its cause.

    Two signs: what is sent is no longer the start of what is sent next, which is our fault; or the
    server reports fewer cached tokens than for the request before, although the prefix was sent
    whole, which is the server's doing.
    """

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self._sent: list[str] = []
        self._tools = ""
        self._requests = 0
        self._cached = 0
        self._whole = True

    def sending(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> None:
        """A request is about to be sent."""
        self._requests += 1
        texts, offered = list(map(_text, messages)), _text(tools)
        changed = self._changed(texts, offered)
        self._whole = not changed
        if changed:
            self.warnings.append(f"request {self._requests}: {changed}; the prefix is broken there")
        self._sent, self._tools = texts, offered

    def replied(self, usage: Usage) -> None:
        """The request brought a reply."""
        if usage.cached is None:
            return
        if usage.cached < self._cached and self._whole:
            self.warnings.append(
                f"request {self._requests}: the server had {self._cached} tokens of the prefix "
                f"cached and now {usage.cached}, though it was sent unchanged: evicted, answered "
                "by another replica, or rewritten by the model's chat template"
            )
        self._cached = usage.cached

    def shortened(self, messages: int) -> None:
        """Only the first `messages` are sent again, on purpose."""
        self._sent = self._sent[:messages]

    def _changed(self, texts: Sequence[str], offered: str) -> str:
        if self._requests == 1:
            return ""
        if offered != self._tools:
            return "the tools have changed"
        for index, (before, now) in enumerate(zip(self._sent, texts, strict=False), start=1):
            if before != now:
                role = json.loads(now).get("role", "?")
                return f"message {index} ({role}) has changed since it was sent"
        if len(texts) < len(self._sent):
            return f"{len(self._sent) - len(texts)} messages have been taken away"
        return ""


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
