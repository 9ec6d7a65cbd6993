"""A prefix is whole when a transcript only grew, and what broke it is named."""

from __future__ import annotations

import pytest

from toolkit.llm.prefix import broken_prefix
from toolkit.llm.protocol import Turn, system, tool_result, user

OPENING = [system("Answer."), user("Who?")]


def test_a_transcript_that_grew_is_whole() -> None:
    grown = [*OPENING, Turn(text="Ada.").message(), tool_result("a", "page")]
    assert broken_prefix([], OPENING) == ""
    assert broken_prefix(OPENING, OPENING) == ""
    assert broken_prefix(OPENING, grown) == ""


@pytest.mark.parametrize(
    ("after", "words"),
    [
        ([system("Answer!"), user("Who?")], "message 0 (system): content changed from"),
        ([system("Answer."), user("Who is it?")], "its character 3 on"),
        ([system("Answer.")], "the last 1 of 2 messages are gone"),
        ([system("Answer."), {**user("Who?"), "name": "x"}], "(user): name was added"),
        ([system("Answer."), {"role": "user"}], "(user): content was removed"),
        ([user("Who?"), system("Answer.")], "message 0 (system): role changed"),
    ],
)
def test_what_broke_it_is_named(after: list[dict[str, str]], words: str) -> None:
    assert words in broken_prefix(OPENING, after)
