from __future__ import annotations

import math

import pytest

from soundingline.agents.keyword.agent import follow_up
from soundingline.agents.keyword.clues import (
    Clue,
    Rarity,
    find_clues,
    first_queries,
    heaviest,
    is_content,
    stem,
    weights,
    words,
)
from soundingline.toolkit.errors import InputError

SPELLING = Rarity()


def clue(text, weight=0.5, kind="word"):
    return Clue(text, stem(text), kind, weight)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("founded", "founding"),
        ("Founded", "found"),
        ("countries", "country"),
        ("assassinated", "assassinate"),
        ("Lincoln's", "Lincoln"),
        ("Lincoln’s", "lincoln"),
        ("stopped", "stopping"),
        ("populations", "population"),
    ],
)
def test_forms_of_a_word_share_a_stem(left, right):
    assert stem(left) == stem(right)


@pytest.mark.parametrize(("left", "right"), [("bus", "bee"), ("red", "reed"), ("1832", "1833")])
def test_different_words_keep_different_stems(left, right):
    assert stem(left) != stem(right)


def test_words_keep_numbers_names_and_apostrophes_whole():
    text = "Jean-Luc O'Brien paid $1,234.50 in 1871; 3rd time."
    assert words(text) == ["Jean-Luc", "O'Brien", "paid", "1,234.50", "in", "1871", "3rd", "time"]


def test_single_letters_and_function_words_say_nothing_but_single_digits_do():
    assert [word for word in ["The", "which", "x", "7", "swan"] if is_content(word)] == [
        "7",
        "swan",
    ]


def test_rarity_from_the_index_is_lucenes_idf_relative_to_one_document():
    frequencies = {"swan": 1, "water": 50, "common": 100}
    rarity = Rarity(lambda word: frequencies.get(word, 0), 100)
    assert rarity("swan") == 1.0
    expected = math.log(1 + 50.5 / 50.5) / math.log(1 + 99.5 / 1.5)
    assert rarity("water") == pytest.approx(expected)
    assert 0 < rarity("common") < rarity("water")


def test_a_word_that_no_document_has_tells_nothing():
    assert Rarity(lambda word: 0, 100)("swan") == 0.0


def test_rarity_by_spelling_ranks_marked_and_long_words_higher():
    assert SPELLING("1871") > SPELLING("swan")
    assert SPELLING("Swan") > SPELLING("swan")
    assert SPELLING("embroidery") > SPELLING("cat")
    assert SPELLING("the") == 0.0


@pytest.mark.parametrize(
    "arguments",
    [{"documents": 5}, {"document_frequency": len}, {"document_frequency": len, "documents": 0}],
)
def test_half_given_or_impossible_statistics_are_refused(arguments):
    with pytest.raises(InputError, match="documents"):
        Rarity(**arguments)  # type: ignore[arg-type]


def test_quotations_numbers_and_names_are_told_from_plain_words():
    question = 'Who wrote "night crawler" with Ada Lovelace in 1842 about engines?'
    kinds = {found.text: found.kind for found in find_clues(question, SPELLING)}
    assert kinds == {
        "wrote": "word",
        "night": "quoted",
        "crawler": "quoted",
        "Ada": "name",
        "Lovelace": "name",
        "1842": "number",
        "engines": "word",
    }


def test_a_capital_at_the_start_of_a_sentence_makes_no_name():
    question = "Turtles lay eggs. Penguins swim where Romans fought?"
    kinds = {found.text: found.kind for found in find_clues(question, SPELLING)}
    assert (kinds["Turtles"], kinds["Penguins"], kinds["Romans"]) == ("word", "word", "name")


def test_an_apostrophe_opens_no_quotation():
    question = "What was Grant's rank before the soldiers' revolt?"
    assert all(found.kind != "quoted" for found in find_clues(question, SPELLING))


def test_a_repeated_word_is_one_clue():
    found = find_clues("Which city founded cities near the city?", SPELLING)
    assert [each.text for each in found] == ["city", "founded", "near"]


def test_the_first_query_is_the_whole_question_and_no_two_are_alike():
    question = (
        "A painter born in Lyon moved to Oslo, where she founded a school for weavers; "
        "the school burnt in 1911. What was her name?"
    )
    queries = first_queries(find_clues(question, SPELLING), limit=10, terms=24)
    assert queries[0].text.split()[:4] == ["painter", "born", "Lyon", "moved"]
    assert "Lyon Oslo 1911" in [query.text for query in queries]
    assert "school burnt 1911" in " | ".join(query.text for query in queries)
    sets = [frozenset(query.text.split()) for query in queries]
    assert len(sets) == len(set(sets)) > 3
    assert all(query.reason for query in queries)


def test_queries_keep_to_their_number_and_length():
    question = " ".join(
        f"Word{number}, thing{number} stuff{number} part{number};" for number in range(20)
    )
    queries = first_queries(find_clues(question, SPELLING), limit=3, terms=5)
    assert len(queries) == 3
    assert all(len(query.text.split()) <= 5 for query in queries)


def test_a_question_without_content_has_no_query():
    assert find_clues("Who is it and why?", SPELLING) == []
    assert first_queries([], limit=5, terms=5) == []


def test_the_heaviest_clues_stay_in_the_order_of_the_question():
    clues = [clue("a1", 0.2), clue("b1", 0.9), clue("c1", 0.5), clue("d1", 0.9)]
    assert [found.text for found in heaviest(clues, 3)] == ["b1", "c1", "d1"]


def test_a_follow_up_asks_new_terms_with_the_uncovered_clues():
    clues = [clue("museum"), clue("theatre"), clue("opened")]
    covered = {stem("museum"): 0.9, stem("theatre"): 0.1, stem("opened"): 0.0}
    query = follow_up(clues, covered, ["Tulsa"], limit=10)
    assert query is not None
    assert query.text == "Tulsa theatre opened"


def test_a_follow_up_without_terms_is_not_asked_and_all_covered_asks_all():
    clues = [clue("museum"), clue("theatre")]
    assert follow_up(clues, {}, [], limit=10) is None
    query = follow_up(clues, dict.fromkeys(weights(clues), 1.0), ["Tulsa"], limit=10)
    assert query is not None
    assert query.text == "Tulsa museum theatre"
