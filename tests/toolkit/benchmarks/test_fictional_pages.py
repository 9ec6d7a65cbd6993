"""Pages of the fictional world: what they tell, where, how long they are, how their words fall."""

from __future__ import annotations

import re
import tracemalloc
from collections import Counter

import numpy as np
import pytest
from effort import cases
from scipy.stats import kstest

from soundingline.toolkit.benchmarks.fictional import FictionalWorld
from soundingline.toolkit.benchmarks.fictional.pages import philox_bits, printed, zipf
from soundingline.toolkit.benchmarks.fictional.world import BY_NAME

SENTENCE = re.compile(r"[^.!\n]+[.!]?")


def wordings(attribute, value):
    """Any of the ways in which a page may tell a fact."""
    shown = re.escape(printed(attribute, value))
    shapes = [re.escape(tell) for tell in (*attribute.tells, attribute.line)]
    return re.compile(
        "|".join(
            shape.replace(r"\{s\}", r"[^.\n]{3,50}?").replace(r"\{v\}", shown) for shape in shapes
        ),
        re.IGNORECASE,
    )


@pytest.fixture(scope="module")
def world():
    return FictionalWorld(documents=1600, median_words=500, p90_words=2000)


@pytest.fixture(scope="module")
def documents(world):
    return list(world.documents(0, 320))


def places(world, document):
    """Where the page tells each of its facts, from 0 (start) to 1 (end)."""
    entity = world.world.entity(int(document.docid[2:]))
    sentences = list(SENTENCE.finditer(document.text))
    found = []
    for attribute in BY_NAME[entity.kind].attributes:
        value = world.world.value(entity, attribute)
        shown, wording = printed(attribute, value), wordings(attribute, value)
        told = [
            sentence.start()
            for sentence in sentences
            if shown.lower() in sentence[0].lower() and wording.fullmatch(sentence[0].strip())
        ]
        assert len(told) == 1, (document.docid, attribute.name, len(told))
        found.append(told[0] / len(document.text))
    return found


def test_every_fact_is_told_once_in_the_page_of_its_entity(world, documents):
    for document in documents[:160]:
        assert places(world, document)


def test_facts_are_spread_evenly_over_the_pages(world, documents):
    long = [document for document in documents if len(document.text.split()) > 400]
    found = [place for document in long for place in places(world, document)]
    assert len(found) > 800
    assert kstest(found, "uniform").pvalue > 0.001


def test_the_wording_of_a_fact_varies(world):
    shapes = set()
    for document in world.documents(0, 320):
        entity = world.world.entity(int(document.docid[2:]))
        if entity.kind == "person":
            attribute = BY_NAME["person"].attributes[0]
            value = world.world.value(entity, attribute)
            shapes |= {
                number
                for number, tell in enumerate((*attribute.tells, attribute.line))
                if tell.split("{s}")[-1].replace("{v}", value) in document.text
            }
    assert shapes == {0, 1, 2, 3, 4}


def test_pages_have_titles_addresses_and_lines(documents):
    for document in documents:
        assert document.title in document.text
        assert re.fullmatch(r"https://[a-z]+\.example/[a-z]+/[\w-]+", document.url)
        assert "\n\n\n" not in document.text
        assert "%" not in document.text
    long = [document.text for document in documents if len(document.text.split()) > 1500]
    assert all(text.count("\n\n") >= 5 for text in long)
    assert any("\n- " in text for text in long)


def test_pages_mention_other_entities(world, documents):
    titles = {world.world.name(world.world.entity(index)) for index in range(world.size)}
    long = [document for document in documents if len(document.text.split()) > 2000][:8]
    assert len(long) == 8
    for document in long:
        mentioned = {title for title in titles if title in document.text} - {document.title}
        assert len(mentioned) >= 8


def test_lengths_are_log_normal_with_the_median_and_percentile_asked_for():
    world = FictionalWorld(documents=20_000)
    aimed = np.array([world.words(f"fw{index:07d}") for index in range(20_000)])
    assert np.median(aimed) == pytest.approx(1500, rel=0.03)
    assert np.percentile(aimed, 90) == pytest.approx(10_000, rel=0.04)
    assert np.percentile(aimed, 10) == pytest.approx(1500**2 / 10_000, rel=0.04)


def test_pages_have_the_length_aimed_at(world, documents):
    for document in documents:
        aimed = world.words(document.docid)
        if aimed > 600:
            assert len(document.text.split()) == pytest.approx(aimed, rel=0.1)


def test_ranks_follow_the_zipf_mandelbrot_law():
    size, shift, exponent = 50_000, 12, 1.25
    drawn = zipf(size, shift).draw(philox_bits(400_000, "test") >> np.uint64(32))
    weights = (np.arange(size) + shift) ** -exponent
    expected = np.cumsum(weights) / weights.sum()
    assert drawn.min() == 0
    assert drawn.max() < size
    for rank in (0, 1, 10, 100, 1000, 10_000, 40_000):
        assert np.mean(drawn <= rank) == pytest.approx(expected[rank], abs=0.003)


def test_the_vocabulary_keeps_growing_with_the_collection():
    """Heaps' law: in texts the exponent of distinct words over all words is 0.4 to 0.8."""
    world = FictionalWorld(documents=100_000, median_words=600, p90_words=2000)
    seen = set()
    total, sizes = 0, []
    most = cases(800, 400)
    for number, document in enumerate(world.documents(0, most), start=1):
        words = re.findall(r"\w+", document.text.lower())
        total += len(words)
        seen.update(words)
        if number in (50, most):
            sizes.append((total, len(seen)))
    (words_before, distinct_before), (words_after, distinct_after) = sizes
    growth = np.log(distinct_after / distinct_before) / np.log(words_after / words_before)
    assert 0.4 < growth < 0.85


def test_pages_of_one_type_share_words_that_others_lack(world):
    by_kind = {"ship": Counter(), "school": Counter()}
    halves = {"ship": [], "school": []}
    for document in world.documents(0, 480):
        kind = world.world.entity(int(document.docid[2:])).kind
        if kind in by_kind:
            halves[kind].append(Counter(set(re.findall(r"[a-z]{5,}", document.text))))
    first, second = (sum(halves["ship"][turn::2], Counter()) for turn in (0, 1))
    other = sum(halves["school"], Counter())
    common = {word for word, count in first.items() if count >= 6 and other[word] <= 1}
    assert len(common) >= 20
    assert np.mean([second[word] > other[word] for word in common]) > 0.8


def test_ranges_of_documents_are_the_same_as_the_whole(world):
    whole = list(world.documents(10, 40))
    assert [*world.documents(10, 25), *world.documents(25, 40)] == whole
    assert [document.docid for document in whole] == [f"fw{index:07d}" for index in range(10, 40)]
    assert len(list(world.documents(1590))) == 10
    assert list(world.documents(1590, 99_999)) == list(world.documents(1590))


def peak(world, stop):
    tracemalloc.start()
    for document in world.documents(0, stop):
        assert document.text
    used = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return used


def test_documents_need_no_memory_that_grows_with_their_number():
    settings = {"median_words": 60, "p90_words": 120}
    small = FictionalWorld(documents=1000, **settings)
    large = FictionalWorld(documents=100_000, **settings)
    assert all(document.text for document in large.documents(0, 160))  # makes the shared tables
    few, many = peak(small, 40), peak(large, 160)
    assert many < few + 300_000


def test_questions_of_a_large_world_need_a_few_bytes_an_entity():
    world = FictionalWorld(documents=100_000, questions=20, hops=3)
    tracemalloc.start()
    assert len(world.topics) == 20
    used = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert used < 100 * world.size
