"""The exact-answer judge: SQuAD's normalisation, numbers as numbers, yes and no in full."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soundingline.toolkit.errors import InputError
from soundingline.toolkit.evaluation.answers import (
    ExactAnswerJudge,
    answer_tokens,
    findable,
    found_in,
    holds_answer,
    token_f1,
)
from soundingline.toolkit.trajectory import Answer

FORMAT = st.characters(categories=["Cf"])


def judged(answer, *accepted, rule="contained"):
    return ExactAnswerJudge(rule).verdict("q", Answer(exact=answer), accepted)


EXACT = [
    ("1990-1995", "1990 1995"),
    ("The Eiffel Tower!", "eiffel tower"),
    ("U.S.A.", "USA"),
    ("  An   apple a day ", "apple day"),
    ("O’Brien", "O'Brien"),
    ("1,000", "1000"),
    ("1000.0", "1,000"),
    ("$1,234,567.50", "1234567.5"),
    ("−5", "-5"),
    ("50%", "50"),
    ("Yes.", "yes"),
    ("NO", "no"),
    ("The The", "the the"),
    ("Ｔｏｋｙｏ", "tokyo"),
    ("Paris\u200b", "Paris"),
    ("\ufeffParis", "Paris"),
    ("Pa\u00adris", "Paris"),
    ("\u200e1,\u2060000\u200f", "1000"),
    ("Caf\u0065\u200c\u0301", "Café"),
    ("x²", "x2"),
]
CONTAINED = [
    ("It was Ada Lovelace (1815)", "Ada Lovelace"),
    ("about 1,000 people", "1000"),
    ("in the year 1815.", "1815"),
    ("10 May 1990", "May 1990"),
]
WRONG = [
    ("3.14", "314"),
    ("31.4", "3.14"),
    ("-5", "5"),
    ("1,000", "1,000,000"),
    ("9" * 40 + "1", "9" * 40 + "2"),
    ("", "Ada"),
    ("...", "Ada"),
    ("Ada", "Ada Lovelace"),
    ("Paris", "London"),
    ("Parisian", "Paris"),
    ("nobody", "no"),
    ("yes and no", "yes"),
    ("Yes, it was", "yes"),
    ("no", "yes"),
    ("10 May 1990", "10"),
    ("between 5 and 10", "5"),
    ("15", "5"),
    ("5.5", "5"),
    ("Lovelace, Ada", "Ada Lovelace"),
]


@pytest.mark.parametrize(
    ("answer", "accepted", "exact", "contained"),
    [
        *((*pair, True, True) for pair in EXACT),
        *((*pair, False, True) for pair in CONTAINED),
        *((*pair, False, False) for pair in WRONG),
    ],
)
def test_answers_are_compared_after_normalisation(answer, accepted, exact, contained):
    loose, strict = judged(answer, accepted), judged(answer, accepted, rule="exact")
    assert (loose.correct, strict.correct) == (contained, exact)
    assert (strict.contained, strict.exact) == (contained, exact)
    assert not exact or strict.f1 == 1


@given(st.text(max_size=20), st.lists(st.tuples(st.integers(0, 20), FORMAT)))
def test_format_characters_anywhere_change_no_verdict(answer, inserted):
    marked = answer
    for place, character in inserted:
        marked = marked[:place] + character + marked[place:]
    assert answer_tokens(marked) == answer_tokens(answer)
    assert token_f1(answer_tokens(marked), answer_tokens("ada")) == token_f1(
        answer_tokens(answer), answer_tokens("ada")
    )


@given(st.text("eao\u0301\u0323\u0308\u00e9\u1ec7 ", max_size=25))
def test_canonically_equal_answers_are_equal(answer):
    forms = [unicodedata.normalize(form, answer) for form in ("NFC", "NFD", "NFKC", "NFKD")]
    assert {tuple(answer_tokens(form)) for form in forms} == {tuple(answer_tokens(answer))}


def test_the_best_of_several_accepted_answers_counts():
    verdict = judged("Augusta Ada King", "Ada Lovelace", "Ada King", "King")
    assert (verdict.correct, verdict.exact, verdict.contained) == (True, False, True)
    assert verdict.accepted == "Ada King"
    assert verdict.f1 == pytest.approx(2 * 2 / (3 + 2))


def test_token_f1_is_squads_over_bags():
    # Shared: the, cat once each; precision 2/3, recall 2/4.
    assert token_f1(["x", "cat", "cat"], ["cat", "x", "y", "z"]) == pytest.approx(4 / 7)
    assert token_f1([], ["x"]) == 0
    assert token_f1(["yes"], ["yes", "x"]) == 0


def test_numbers_keep_their_words_apart():
    tokens = ["covid", "19", "in", "12", "5", "1999", "12km"]
    assert answer_tokens("COVID-19 in 12/05/1999, 12km") == tokens


def test_a_verdict_names_judge_and_settings_and_needs_a_rule_and_an_accepted_answer():
    one, other = judged("x", "x"), judged("x", "x", rule="exact")
    assert one.judge == other.judge == "exact_answer"
    assert one.settings != other.settings
    with pytest.raises(InputError, match="exact, contained"):
        ExactAnswerJudge("fuzzy")
    with pytest.raises(ValueError, match="'q'"):
        judged("x")


@pytest.mark.parametrize(
    ("text", "accepted", "held"),
    [
        ("the mayor Anna  KOW", ["Anna Kow"], True),
        ("kow anna", ["Anna Kow"], False),
        ("nineteen metres", ["nine metres"], False),
        ("1,000 ships", ["1000"], True),
        ("11000 ships", ["1000"], False),
        ("yes indeed", ["yes"], False),
        ("", ["x"], False),
        ("x", [], False),
        ("x", [""], False),
    ],
)
def test_a_text_holds_an_answer_as_whole_tokens_in_order(text, accepted, held):
    assert holds_answer(text, accepted) is held


def test_phrases_are_found_in_a_text_as_by_splitting_it():
    text = "The ship (O'Neil) sank in 1,871.50 m; 3.14 of it, 01990–1995 and co-op. ﬁn ! ½"
    held = ["O’Neil", "1871.5", "3.140", "1990", "1,995", "co op", "coop", "fin", "sank in", "½"]
    for answer in [*held, "oneils", "187150", "314", "in sank", "995", "he"]:
        (phrase,) = findable([answer])
        split = f" {' '.join(answer_tokens(text))} "
        assert (found_in(text, [phrase]) == {phrase}) is (phrase in split), answer
    assert found_in(text, findable(held)) >= set(findable(["1871.5", "3.14", "1995", "fin"]))
    assert found_in("!!!", [" !!! "]) == {" !!! "}
