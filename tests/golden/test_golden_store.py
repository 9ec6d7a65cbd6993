"""The golden files themselves: stored whole, compared with the stated tolerance, shown readably."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

from golden_store import decoded, differences, encoded, names
from test_golden_collections import EVERY
from test_golden_learned import RANKED
from test_golden_runs import COMMANDS

PAGE = "docid=d1 score=2.5000\nA long page of results that several places of a run repeat.\nThe end"
CONTENT = {
    "calls": [{"output": PAGE, "tokens": 12}],
    "messages": [{"role": "tool", "content": PAGE}, {"role": "tool", "content": PAGE}],
    "metrics": {"AP": 0.25, "failed": 0, "price": None, "capped": False},
}


def test_a_file_holds_equal_texts_once_and_gives_back_what_was_stored():
    assert decoded(encoded(CONTENT)) == CONTENT
    assert gzip.decompress(encoded(CONTENT)).count(b"several places") == 1
    assert encoded(CONTENT) == encoded(CONTENT)


def test_equal_content_has_no_differences():
    assert differences(CONTENT, CONTENT) == ""


def test_a_changed_line_is_shown_once_with_the_number_of_its_places():
    changed = {**CONTENT, "calls": [{"output": PAGE.replace("2.5", "2.6"), "tokens": 12}]}
    changed["messages"] = [{"role": "tool", "content": changed["calls"][0]["output"]}] * 2
    assert differences(CONTENT, changed) == (
        "calls / 1 / output\n"
        "  - docid=d1 score=2.5000\n"
        "  + docid=d1 score=2.6000\n"
        "  (and at 2 more paths)"
    )


def test_numbers_agree_to_six_digits_and_those_of_learned_stages_to_fewer():
    assert not differences({"scores": [12.34567]}, {"scores": [12.345675]})
    assert differences({"scores": [12.34567]}, {"scores": [12.34572]})
    assert not differences({"scores~": [12.34567]}, {"scores~": [12.34588]})
    assert differences({"scores~": [12.34567]}, {"scores~": [12.346]})
    assert differences({"n": 1}, {"n": True}) and differences({"n": 0}, {"n": None})


def test_values_that_are_missing_or_new_are_differences():
    assert differences({"a": 1}, {}) == "a\n  expected: 1\n  received: (absent)"
    assert differences([1], [1, 2]) == "2\n  expected: (absent)\n  received: 2"


def test_a_new_request_does_not_shift_the_others():
    old = {"requests": [{"text": "b"}, {"text": "c"}]}
    new = {"requests": [{"text": "a"}, {"text": "b"}, {"text": "d"}]}
    assert differences(old, new).splitlines() == [
        "requests / 1 / text",
        "  expected: c",
        "  received: a",
        "requests / 2",
        "  expected: (absent)",
        '  received: {"text": "d"}',
    ]


def test_every_golden_file_is_compared_by_a_test():
    sources = Path(__file__).resolve().parent.glob("test_golden_*.py")
    text = "".join(path.read_text(encoding="utf-8") for path in sources)
    single = set(re.findall(r'\bcheck\(\s*"(\w+)"', text))
    assert names() == {*COMMANDS, *RANKED, *single, *(f"collection_{name}" for name in EVERY)}
