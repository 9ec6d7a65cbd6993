"""Snippets: which stretch they show, that they do not cut words, and that they are fast."""

import re
import time
from collections import namedtuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.needs import cases

from soundingline.toolkit.search.ranked_browsing import SNIPPETS
from soundingline.toolkit.search.snippets import METHODS, QueryTerms, best_window, cut, first_match

FILLER = "nothing here speaks about it at all and so goes on "
MET = f"king king king. {FILLER * 10} The king met the queen in Vienna. {FILLER * 10}"
ENDINGS = f"{FILLER * 10} KINGS of Äthiopien {FILLER * 10}"
FREQUENT = f"{'the king said. ' * 20}{FILLER * 5} zeppelin {FILLER * 5}"


@pytest.mark.parametrize(
    ("query", "text", "characters", "expected"),
    [
        ("king queen Vienna", MET, 80, "king met the queen in Vienna"),
        ("king zeppelin", FREQUENT, 60, "zeppelin"),  # A rare word weighs more.
        ("king", f"one king here. {FILLER * 10} two king there.", 60, "one king"),
        ("king", ENDINGS, 60, "KINGS"),
        ("kings", ENDINGS, 60, "KINGS"),
        ("äthiopien", ENDINGS, 60, "Äthiopien"),
        ("kon", f"{FILLER * 9} reckoning {FILLER * 9} reckless kon {FILLER}", 60, "reckless kon"),
        ("東京タワー", "天" * 300 + "東京タワー" + "地" * 300, 40, "東京タワー"),
        ("zebra", FILLER * 10, 40, "nothing here speaks"),
        ("king", "the\n\n king\tcame ", 220, "the king came"),
    ],
)
def test_the_window_holds_the_matches_that_are_worth_most(query, text, characters, expected):
    assert expected in best_window(QueryTerms(query), text, characters)


def test_the_first_match_starts_about_55_characters_before_it():
    text = f"{FILLER * 10}the king came. {FILLER * 10} king queen Vienna."
    shown = first_match(QueryTerms("Vienna queen king"), text, 220)
    assert 40 <= shown.index("king") <= 56
    assert "Vienna" not in shown
    assert first_match(QueryTerms("zebra"), FILLER * 10, 40).startswith("nothing here speaks")


@pytest.mark.parametrize("method", [best_window, first_match])
def test_omitted_text_is_marked_and_an_empty_text_has_an_empty_snippet(method):
    shown = method(QueryTerms("king"), f"{FILLER * 5}king {FILLER * 5}", 60)
    assert shown.startswith("…") and shown.endswith("…")
    assert [method(QueryTerms("king"), text, 220) for text in ("", "   ", "\n")] == [""] * 3


@settings(max_examples=cases(200), deadline=None)
@given(
    text=st.text(max_size=400),
    query=st.text(max_size=30),
    characters=st.integers(20, 250),
    method=st.sampled_from(["window", "first_match"]),
)
def test_an_excerpt_is_a_stretch_of_the_text_of_at_most_the_length_asked(
    text, query, characters, method
):
    shown = METHODS[method](QueryTerms(query), text, characters)
    solid = " ".join(text.split())
    inner = shown[1:] if shown not in solid and shown.startswith("…") else shown
    inner = inner[:-1] if inner not in solid else inner
    assert inner in solid
    assert len(shown) <= characters + 2


WORDS = ["alpha", "bravo", "carol", "delta", "filler", "mumble"]


@settings(max_examples=cases(100), deadline=None)
@given(st.lists(st.sampled_from([*WORDS, "x", "of"]), min_size=1, max_size=120))
def test_words_are_not_cut(words):
    shown = best_window(QueryTerms("alpha delta"), " ".join(words), 50)
    assert set(shown.strip("…").split()) <= set(words)


Place = namedtuple("Place", "start end stem")  # a match of a stem, ordered as matches are


def places_one_by_one(lowered, stem):
    """Where `stem` occurs, from left to right and without overlap."""
    return [match.start() for match in re.finditer(re.escape(stem), lowered)]


def stem_of(word):
    endings = [end for end in ("ing", "es", "ed", "s") if re.fullmatch(rf"\w{{4,}}{end}", word)]
    return word[: -len(endings[0])] if endings else word


def stems_of(query):
    stems = dict.fromkeys(stem_of(word) for word in re.findall(r"\w+", lower(query)))
    return sorted(stems, key=lambda stem: -len(stem))[:24]


def lower(text):
    """Of the same length: where a character gets longer, each is changed by itself or stays."""
    singly = [character.lower() for character in text]
    if all(len(low) == 1 for low in singly):
        return text.lower()  # in which a sigma depends on what stands around it
    return "".join(low if len(low) == 1 else old for low, old in zip(singly, text, strict=True))


def match_at(lowered, stem, start):
    if not stem.isascii():
        return Place(start, start + len(stem), stem)
    ending = 3 if len(stem) >= 4 else 0
    pattern = rf"(?<!\w){re.escape(stem)}\w{{0,{ending}}}(?!\w)"
    match = re.compile(pattern).match(lowered, start)
    return Place(start, match.end(), stem) if match else None


def matches_of(lowered, stem, most=None):
    places = places_one_by_one(lowered, stem)[:most]
    return [match for place in places if (match := match_at(lowered, stem, place))]


def plain_window(query, text, characters):
    """`window`, from its definition: each window of matches is made and weighed by itself."""
    lowered, stems = lower(text), stems_of(query)
    matches = {stem: matches_of(lowered, stem, 65) for stem in stems}
    rare = [stem for stem in stems if len(places_one_by_one(lowered, stem)) <= 64]
    counted = [match for stem in rare for match in matches[stem]]
    counted = counted or [match for stem in stems for match in matches[stem]]
    counted.sort(key=lambda match: (match.start, match.end, stems.index(match.stem)))
    best, shown, first = 0.0, cut(text, 0, characters), 0
    for last, match in enumerate(counted):
        while first < last and match.end - counted[first].start > characters:
            first += 1
        inside = dict.fromkeys(match.stem for match in counted[first : last + 1])
        worth = sum(len(matches[stem]) ** -0.5 for stem in inside)
        if worth > best + 1e-9:
            start, best = counted[first].start, worth
            shown = cut(text, start - max(0, characters - (match.end - start)) // 2, characters)
    return shown


def plain_first_match(query, text, characters):
    """`first_match`, from its definition."""
    lowered = lower(text)
    matches = [match for stem in stems_of(query) for match in matches_of(lowered, stem)]
    first = min((match.start for match in matches), default=0)
    return cut(text, first - min(55, characters // 4), characters)


# Letters whose codes end with the same byte (a, š), one that gets longer in lower case, half of a
# surrogate pair, a wide one, a sigma, and digits and marks that count as letters or do not.
LETTERS = st.sampled_from("aabkkš天İΣ\ud83d\U0001f600²_-  \n")
LATIN = st.sampled_from("abking  .")
VOCABULARY = st.sampled_from(
    ["king", "Kings", "kingdom", "king's", "ring", "of", "a", "_a", "Äthiopien", "天", "東京", "-"]
)
ALPHABETS = (LETTERS, LATIN, VOCABULARY.map(lambda word: f"{word} "))


@st.composite
def texts_and_queries(draw):
    """A text, and a query with words and parts of words of it."""
    pieces = draw(st.sampled_from(ALPHABETS))
    # Repeated, so that words stand more often than is counted.
    text = "".join(draw(st.lists(pieces, max_size=60))) * draw(st.sampled_from([1, 1, 2, 70]))
    starts = draw(st.lists(st.integers(0, 60), max_size=30))
    parts = [text[start : start + 1 + start % 6] for start in starts]
    return text, " ".join(["".join(draw(st.lists(pieces, max_size=6))), *parts])


FAR = FILLER * 5


@settings(max_examples=cases(1000), deadline=None)
@example(both=(f"東京{FAR}東京{FAR}天天天", "天天 東京"), characters=40).via("overlapping places")
@example(both=(f"queen {FAR}queen {FAR}king reking reking", "king queen"), characters=40).via(
    "places inside words weigh nothing"
)
@example(both=("地" * 50 + "東京タ" + "地" * 50, "東京 東京タ"), characters=40).via(
    "matches that begin together"
)
@example(both=("gh gh ab gh gh gh gh gh gh cd", "ab cd gh"), characters=20).via(
    "sums in two orders"
)
@given(both=texts_and_queries(), characters=st.integers(20, 120))
def test_excerpts_are_those_of_the_definition(both, characters):
    text, query = both
    prepared = QueryTerms(query)
    assert best_window(prepared, text, characters) == plain_window(query, text, characters)
    assert first_match(prepared, text, characters) == plain_first_match(query, text, characters)


def test_a_whole_question_takes_little_longer_than_four_words():
    text = FILLER * 1000
    words = [f"{letter}{end}" for letter in "abcdef" for end in ("vent", "tory", "blem", "wick")]
    seconds = {4: [], 24: []}
    for _ in range(9):
        for count, times in seconds.items():
            query = QueryTerms(" ".join(words[:count]))
            started = time.thread_time()
            best_window(query, text, 220)
            times.append(time.thread_time() - started)
    # A pass for each word would take six times as long.
    assert min(seconds[24]) < 2.5 * min(seconds[4])


def test_a_text_of_15000_words_takes_milliseconds():
    text = ("The king of the country said that in time a treaty is to be had. " * 1100)[:95_000]
    words = "which king of the country said in 1848 that a treaty with Prussia is to be had"
    query = QueryTerms(words)
    seconds = []
    for _ in range(9):
        started = time.process_time()
        best_window(query, text, 220)
        seconds.append(time.process_time() - started)
    # About 1 ms; the bound leaves room for slow machines.
    assert sorted(seconds)[4] < 0.02


def test_a_word_without_end_is_not_looked_for():
    text = f"{'a' * 300} {FILLER * 20} king {FILLER}"
    assert "king" in best_window(QueryTerms(f"{'a' * 300} king"), text, 60)
    assert "a" * 30 in best_window(QueryTerms(f"{'a' * 150}"), f"{FILLER * 9}{'a' * 150}", 60)
    words = " ".join("a" * (200 - ending) + "b" for ending in range(1, 25))
    query, text = QueryTerms(f"{'a' * 900_000} {words}"), "a" * 100_000
    start = time.process_time()
    best_window(query, text, 220)
    assert time.process_time() - start < 5.0


def test_the_interface_offers_every_method():
    assert (*METHODS, "none") == SNIPPETS
