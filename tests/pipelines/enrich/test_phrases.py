import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soundingline.pipelines.enrich.phrases import PhraseFile, clean, read_phrases
from soundingline.toolkit.errors import InputError


@pytest.mark.parametrize(
    ("answer", "phrases"),
    [
        ('{"keywords": ["tidal range", "quay"]}', ["tidal range", "quay"]),
        ('Sure! {"keywords": ["quay"]} Hope this helps {smile}.', ["quay"]),
        ('{"keywords": ["draft"]} then better: {"keywords": ["final"]}', ["final"]),
        ('```json\n{"keywords": []}\n```', []),
        ('["quay", "pier"]', ["quay", "pier"]),
        ('{"keywords": ["quay"]} and [1]', ["quay"]),
        ('{"words": ["quay"]}', None),
        ("quay, pier and jetty", None),
        ("", None),
        ('{"keywords": ["cut', None),
        ("{" * 100_000, None),
        ("[" * 100_000, None),
    ],
)
def test_the_last_list_of_keywords_is_read(answer, phrases):
    assert read_phrases(answer) == phrases


@given(st.text())
def test_any_answer_is_read_or_is_none(answer):
    assert read_phrases(answer) is None or isinstance(read_phrases(answer), list)


def test_phrases_are_cleaned_and_what_is_left_out_is_counted():
    proposed = [
        *("  tidal\u00a0 range ", "Tidal Range", "qu\u200bay\x00", "one two three four five"),
        *("", "\x1b", None, 7, ["quay"], "x" * 10_000, "pier", "jetty"),
    ]
    phrases, left_out = clean(proposed, 3, 4)
    assert phrases == ("tidal range", "quay", "pier")
    assert left_out == {"repeated": 1, "too_long": 2, "beyond": 1, "empty": 5}
    phrases, left_out = clean([f"phrase {number}" for number in range(500)], 10, 4)
    assert len(phrases) == 10 and left_out["beyond"] == 490


@given(st.lists(st.text()))
def test_cleaned_phrases_are_usable_whatever_came(proposed):
    phrases, _ = clean(proposed, 10, 4)
    assert clean(phrases, 10, 4)[0] == phrases
    assert all(phrase.isprintable() and phrase == " ".join(phrase.split()) for phrase in phrases)
    assert json.loads(json.dumps(phrases)) == list(phrases)


@pytest.mark.parametrize("limits", [{"phrases": 0}, {"words": -1}, {"phrases": True}])
def test_limits_without_meaning_are_refused(limits):
    with pytest.raises(InputError, match="valid: a whole number, 1 or more"):
        PhraseFile(path="phrases.jsonl", **limits)
