"""What a check before a run finds."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Finding(NamedTuple):
    """One line of the report of a check.

    - `check`: the part that was checked: server, prompt, judge, collection, machine,
      first_questions.
    - `level`: a `fault` stops the run, a `note` is printed alone.
    - `message`: what was found; `do`: what to do about it.
    """

    check: str
    level: Literal["fault", "note"]
    message: str
    do: str = ""
