"""Excerpts: which stretch they show, that they keep to words, and that they are fast."""

from __future__ import annotations

import time
from itertools import chain

import pytest
from effort import cases
from hypothesis import given, settings
from hypothesis import strategies as st

from toolkit.search.excerpts import METHODS, Query, first_match, window

FILLER = "nothing here speaks about it at all and so goes on "


def test_the_window_holds_the_most_distinct_query_words() -> None:
    text = f"king king king. {FILLER * 10} The king met the queen in Vienna. {FILLER * 10}"
    assert "king met the queen in Vienna" in window(Query("king queen Vienna"), text, 80)


def test_a_rare_word_weighs_more_than_a_frequent_one() -> None:
    text = f"{'the king said. ' * 20}{FILLER * 5} zeppelin {FILLER * 5}"
    assert "zeppelin" in window(Query("king zeppelin"), text, 60)


def test_equal_windows_give_the_earliest() -> None:
    text = f"one king here. {FILLER * 10} two king there."
    assert "one king" in window(Query("king"), text, 60)


def test_words_are_matched_without_case_and_ending() -> None:
    text = f"{FILLER * 10} KINGS of Äthiopien {FILLER * 10}"
    assert "KINGS" in window(Query("king"), text, 60)
    assert "Äthiopien" in window(Query("äthiopien"), text, 60)
    assert "KINGS" in window(Query("kings"), text, 60)


def test_a_word_inside_another_is_no_match() -> None:
    text = f"{FILLER * 10} reckoning {FILLER * 10} reckless kon {FILLER * 10}"
    assert "reckless kon" in window(Query("kon"), text, 60)


def test_scripts_without_spaces_match_inside_a_run() -> None:
    text = "天" * 300 + "東京タワー" + "地" * 300
    assert "東京タワー" in window(Query("東京タワー"), text, 40)


def test_the_first_match_starts_about_55_characters_before_it() -> None:
    text = f"{FILLER * 10}the king came. {FILLER * 10} king queen Vienna."
    shown = first_match(Query("Vienna queen king"), text, 220)
    assert 40 <= shown.index("king") <= 56
    assert "Vienna" not in shown


def test_without_a_match_the_text_is_shown_from_its_start() -> None:
    for method in (window, first_match):
        assert method(Query("zebra"), FILLER * 10, 40).startswith("nothing here speaks")


def test_a_short_text_is_shown_whole_with_its_white_space_collapsed() -> None:
    assert window(Query("king"), "the\n\n king\tcame ", 220) == "the king came"


def test_omitted_text_is_marked_on_both_sides() -> None:
    shown = window(Query("king"), f"{FILLER * 5}king {FILLER * 5}", 60)
    assert shown.startswith("…") and shown.endswith("…")


@pytest.mark.parametrize("text", ["", "   ", "\n"])
def test_an_empty_text_has_an_empty_excerpt(text: str) -> None:
    assert window(Query("king"), text, 220) == first_match(Query("king"), text, 220) == ""


@settings(max_examples=cases(200), deadline=None)
@given(
    text=st.text(max_size=400),
    query=st.text(max_size=30),
    characters=st.integers(20, 250),
    method=st.sampled_from(["window", "first_match"]),
)
def test_an_excerpt_is_a_stretch_of_the_text_of_at_most_the_length_asked(
    text: str, query: str, characters: int, method: str
) -> None:
    shown = METHODS[method](Query(query), text, characters)
    solid = " ".join(text.split())
    inner = shown[1:] if shown not in solid and shown.startswith("…") else shown
    inner = inner[:-1] if inner not in solid else inner
    assert inner in solid
    assert len(shown) <= characters + 2


WORDS = ["alpha", "bravo", "carol", "delta", "filler", "mumble"]


@settings(max_examples=cases(200), deadline=None)
@given(words=st.lists(st.sampled_from(WORDS), min_size=1, max_size=120))
def test_no_other_window_of_the_length_has_a_higher_weight(words: list[str]) -> None:
    wanted, characters = WORDS[:4], 40
    weights = {word: words.count(word) ** -0.5 for word in wanted if word in words}

    def worth(stretch: str) -> float:
        inside = stretch.strip("…").split()
        return sum(weight for word, weight in weights.items() if word in inside)

    best = 0.0
    for first in range(len(words)):
        last = first
        while last < len(words) and len(" ".join(words[first : last + 1])) <= characters:
            last += 1
        best = max(best, worth(" ".join(words[first:last])))
    shown = window(Query(" ".join(wanted)), " ".join(words), characters)
    assert worth(shown) >= best - 1e-9


@settings(max_examples=cases(100), deadline=None)
@given(st.lists(st.sampled_from([*WORDS, "x", "of"]), min_size=1, max_size=120))
def test_words_are_not_cut(words: list[str]) -> None:
    shown = window(Query("alpha delta"), " ".join(words), 50)
    assert set(shown.strip("…").split()) <= set(words)


def places_one_by_one(lowered: str, stem: str) -> list[int]:
    """Where `stem` stands, from left to right and without overlap."""
    places, start = [], 0
    while start <= len(lowered) - len(stem):
        if lowered[start : start + len(stem)] == stem:
            places.append(start)
            start += len(stem)
        else:
            start += 1
    return places


# Letters whose codes end with the same byte (a, š), a pair of surrogates' half, and a wide one.
LETTERS = st.sampled_from("aabkš天\ud83d\U0001f600 ")


@settings(max_examples=cases(200), deadline=None)
@given(
    text=st.text(LETTERS, max_size=120),
    query=st.text(LETTERS, max_size=40),
    starts=st.lists(st.integers(0, 100), max_size=5),
    most=st.sampled_from([1, 2, 100]),
)
def test_one_pass_finds_every_place_of_every_word(
    text: str, query: str, starts: list[int], most: int
) -> None:
    cuts = [text[start : start + 3 + start % 5] for start in starts]
    words = Query(" ".join([query, *cuts]))
    places: list[list[int]] = [[] for _ in words.stems]
    for word, position in chain.from_iterable(words.places(text.lower(), most)):
        places[word].append(position)
    assert places == [places_one_by_one(text.lower(), stem)[:most] for stem in words.stems]


def test_a_whole_question_takes_little_longer_than_four_words() -> None:
    text = FILLER * 1000
    words = [f"{letter}{end}" for letter in "abcdef" for end in ("vent", "tory", "blem", "wick")]
    seconds: dict[int, list[float]] = {4: [], 24: []}
    for _ in range(9):
        for count, times in seconds.items():
            query = Query(" ".join(words[:count]))
            started = time.thread_time()
            window(query, text, 220)
            times.append(time.thread_time() - started)
    # A pass for each word would take six times as long.
    assert min(seconds[24]) < 2.5 * min(seconds[4])


def test_a_text_of_15000_words_takes_milliseconds() -> None:
    text = ("The king of the country said that in time a treaty is to be had. " * 1100)[:95_000]
    query = Query("which king of the country said in 1848 that a treaty with Prussia is to be had")
    seconds = []
    for _ in range(9):
        started = time.process_time()
        window(query, text, 220)
        seconds.append(time.process_time() - started)
    # About 1 ms; the bound leaves room for slow machines.
    assert sorted(seconds)[4] < 0.02
