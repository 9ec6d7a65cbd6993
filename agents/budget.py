"""How much one question may take, and how much a run."""

from __future__ import annotations

from dataclasses import dataclass

from soundingline.toolkit.errors import InputError, is_number

_WHOLE = ("turns", "tool_calls", "output_tokens", "context_window", "answer_tokens")
_NUMBERS = ("seconds", "dollars", "run_dollars")


@dataclass(frozen=True)
class Budget:
    """Limits of a question, None for none; each ends it with an exit status of its own.

    - `seconds` by the clock. At `steer_at` of it (0 to 1) the model is told once that time is
      nearly gone, and every later tool call is refused; at the end the question is stopped.
    - `turns`: replies in which the model may call tools. `tool_calls`: calls, refused ones too.
    - `output_tokens` of all replies together, reasoning included; checked between replies.
    - `context_window`: tokens that the transcript may take, by the server's counts and our
      estimate of what came since; the larger of `answer_tokens` and the longest reply that a
      request asks for is kept free.
    - `dollars` for a question, `run_dollars` for the run; both need a known price.

    Where any but `seconds` ends, one more reply without tools is asked for: the final answer.
    `InputError` for impossible values.
    """

    seconds: float | None = None
    steer_at: float = 0.7
    turns: int | None = None
    tool_calls: int | None = None
    output_tokens: int | None = None
    context_window: int | None = None
    answer_tokens: int = 4000
    dollars: float | None = None
    run_dollars: float | None = None

    def __post_init__(self) -> None:
        for name in _WHOLE:
            value = getattr(self, name)
            if value is not None and (not is_number(value) or int(value) != value or value < 1):
                raise _impossible(name, value, "an integer from 1 up, or null for no limit")
        for name in _NUMBERS:
            value = getattr(self, name)
            if value is not None and (not is_number(value) or not value > 0):
                raise _impossible(name, value, "a number above 0, or null for no limit")
        if not is_number(self.steer_at) or not 0 < self.steer_at <= 1:
            raise _impossible("steer_at", self.steer_at, "above 0, at most 1 (1: never steer)")
        if self.answer_tokens is None:
            raise _impossible("answer_tokens", None, "an integer from 1 up")


def _impossible(name: str, value: object, valid: str) -> InputError:
    return InputError(
        f"budget.{name}={value!r} is not possible", valid=valid, do=f"set another budget.{name}"
    )
