"""A blocking model that answers each prompt by a function."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from soundingline.toolkit.llm.errors import ModelError
from soundingline.toolkit.llm.messages import SamplingParams, Turn


class ScriptedPrompts:
    """A `BlockingModel` that answers each prompt by `choose`."""

    def __init__(self, choose: Callable[[str], str | Exception], **settings: Any) -> None:
        self.name = "fake"
        self.settings = SamplingParams(**settings)
        self.rounds = []
        self.qids = []
        self._choose = choose
        self._lock = threading.Lock()

    @property
    def prompts(self):
        return [prompt for each in self.rounds for prompt in each]

    def respond_many(
        self,
        requests,
        qids=None,
        settings=None,
        concurrency=None,
        arrived=None,
    ):
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
