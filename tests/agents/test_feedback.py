from __future__ import annotations

from agents.keyword.evidence import Reader
from agents.keyword.queries import feedback_terms
from agents.keyword.words import Rarity, stem

CLUES = {stem("mill"): 1.0, stem("Grenholm"): 1.0, stem("built"): 0.5}
SENTENCES = [
    *Reader(CLUES).sentences("d1", "", "Grenholm Mill was built by Torvald Brekke for wool."),
    *Reader(CLUES).sentences("d2", "", "Some mill is near Oslo. A mill is near Bergen."),
]


def terms(limit: int, known: set[str] | None = None) -> list[str]:
    return feedback_terms(SENTENCES, known or set(CLUES), Rarity(), limit=limit)


def test_the_name_in_the_sentence_that_covers_most_comes_first_and_whole() -> None:
    assert terms(1) == ["Torvald Brekke"]


def test_words_of_the_question_and_of_terms_taken_are_not_asked_again() -> None:
    found = terms(10)
    assert not {"Grenholm", "Grenholm Mill", "built", "Torvald", "Brekke"} & set(found)
    assert {"wool", "Oslo", "Bergen"} <= set(found)


def test_terms_asked_before_are_left_out() -> None:
    assert "Torvald Brekke" not in terms(10, {*CLUES, "torvald", stem("Brekke")})


def test_their_number_is_limited_and_may_be_none() -> None:
    assert len(terms(2)) == 2
    assert terms(0) == []
    assert feedback_terms([], set(), Rarity(), limit=3) == []


def test_a_word_that_the_index_lacks_is_not_asked() -> None:
    rarity = Rarity(lambda word: 0 if word == "wool" else 3, 100)
    assert "wool" not in feedback_terms(SENTENCES, set(CLUES), rarity, limit=10)
