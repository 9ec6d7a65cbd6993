"""A blocking model that answers each prompt by a function."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from soundingline.toolkit.llm.errors import ModelError
from soundingline.toolkit.llm.messages import Message, SamplingParams, Turn


class ScriptedPrompts:
    """A `BlockingModel` that answers each prompt by `choose`."""

    def __init__(self, choose: Callable[[str], str | Exception], **settings: Any) -> None:
        self.name = "fake"
        self.settings = SamplingParams(**settings)
        self.rounds: list[list[str]] = []
        self.qids: list[str] = []
        self._choose = choose
        self._lock = threading.Lock()

    @property
    def prompts(self) -> list[str]:
        return [prompt for each in self.rounds for prompt in each]

    def respond_many(
        self,
        requests: Sequence[Sequence[Message]],
        qids: Sequence[str] | None = None,
        settings: SamplingParams | None = None,
        concurrency: int | None = None,
        arrived: Callable[[int, Turn], None] | None = None,
    ) -> list[Turn | ModelError]:
        prompts = [messages[0]["content"] for messages in requests]
        with self._lock:
            self.rounds.append(prompts)
            self.qids += qids or []
        answers = [self._choose(prompt) for prompt in prompts]
        turns = [
            answer if isinstance(answer, ModelError) else Turn(text=str(answer))
            for answer in answers
        ]
        for position, turn in enumerate(turns):
            if arrived is not None and isinstance(turn, Turn):
                arrived(position, turn)
        return turns
