"""Stands in for vLLM, so that BrowseComp-Plus's evaluator runs without a model: a judge that says
yes where the response holds the correct answer, and repeats the stated confidence."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any


class SamplingParams:
    def __init__(self, **settings: Any) -> None:
        pass


class LLM:
    def __init__(self, **settings: Any) -> None:
        pass

    def chat(self, messages, *more, **settings):
        return [SimpleNamespace(outputs=[judged(rows[0]["content"])]) for rows in messages]


def judged(prompt):
    response, _, rest = prompt.partition("[response]: ")[2].partition("\n\n[correct_answer]: ")
    correct = rest.partition("\n")[0]
    exact = response.partition("Exact Answer: ")[2].partition("\n")[0].strip()
    stated = re.search(r"Confidence: ([\d.]+)%", response)
    verdict = "yes" if exact == correct else "no"
    confidence = stated[1] if stated else "100"
    return SimpleNamespace(text=f"correct: {verdict}\nconfidence: {confidence}%")
