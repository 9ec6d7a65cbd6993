"""The golden files themselves: complete, compared with the stated tolerance, shown readably."""

import re
from pathlib import Path

import pytest
from golden_store import decoded, differences, encoded, names
from test_golden_collections import EVERY
from test_golden_learned import RANKED
from test_golden_runs import COMMANDS

PAGE = "docid=d1 score=2.5000\nA long page of results that several places of a run repeat.\nThe end"
CONTENT = {
    "calls": [{"output": PAGE, "tokens": 12}],
    "messages": [{"content": PAGE}] * 2,
    "n": None,
}


def test_a_file_gives_back_what_was_stored_and_is_the_same_each_time():
    assert decoded(encoded(CONTENT)) == CONTENT and encoded(CONTENT) == encoded(CONTENT)


@pytest.mark.parametrize(
    ("expected", "received", "shown"),
    [
        (CONTENT, CONTENT, ""),
        # Numbers agree to six digits, and those of learned stages to fewer.
        ({"scores": [12.34567]}, {"scores": [12.345675]}, ""),
        ({"scores": [12.34567]}, {"scores": [12.34572]}, "scores / 1"),
        ({"scores~": [12.34567]}, {"scores~": [12.34588]}, ""),
        ({"scores~": [12.34567]}, {"scores~": [12.346]}, "scores~ / 1"),
        ({"n": 1}, {"n": True}, "n\n"),
        ({"n": 0}, {"n": None}, "n\n"),
        # What is missing or new.
        ({"a": 1}, {}, "a\n  expected: 1\n  received: (absent)"),
        ([1], [1, 2], "2\n  expected: (absent)\n  received: 2"),
        # A changed line once, with the number of its places.
        (
            [PAGE] * 2,
            [PAGE.replace("2.5", "2.6")] * 2,
            "1\n  - docid=d1 score=2.5000\n  + docid=d1 score=2.6000\n  (and at 1 more paths)",
        ),
        # A new request does not shift the others.
        ({"requests": ["b", "c"]}, {"requests": ["a", "b", "c"]}, "requests / 1\n  expected: (abs"),
    ],
)
def test_differences_are_shown_and_nothing_else_is(expected, received, shown):
    message = differences(expected, received)
    assert message.startswith(shown) and bool(message) == bool(shown)


def test_every_golden_file_is_compared_by_a_test():
    sources = Path(__file__).resolve().parent.glob("test_golden_*.py")
    text = "".join(path.read_text(encoding="utf-8") for path in sources)
    single = set(re.findall(r'\bcheck\(\s*"(\w+)"', text))
    assert names() == {*COMMANDS, *RANKED, *single, *(f"collection_{name}" for name in EVERY)}
