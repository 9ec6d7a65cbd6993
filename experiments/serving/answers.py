"""An answer as a client gives it, in the three-line format that sessions read."""

from __future__ import annotations

from soundingline.toolkit.search import format_answer, parse_answer

HOW = (
    "The short exact answer, with explanation and confidence beside it; or one text with the three "
    "lines `Explanation:` (which cites documents as [docid]), `Exact Answer:` and `Confidence:`."
)


def answer_text(answer: str, explanation: str = "", confidence: float | None = None) -> str:
    """The three lines. `answer` is taken as it is where it has the line `Exact Answer:` itself."""
    if not explanation and confidence is None and parse_answer(answer, ()).exact:
        return answer
    return format_answer(explanation, answer, confidence)
