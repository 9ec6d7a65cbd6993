import pickle
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from soundingline.toolkit.corpus.segmentation import DocumentHead, Passages, WholeDocument, pack
from soundingline.toolkit.corpus.sentences import rule_spans
from soundingline.toolkit.data import Document, parent
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.tokens import count_tokens

TEXTS = st.text(st.sampled_from("aB1_ .!?\n\u00a0,'É—𝔘"), max_size=300) | st.text(max_size=200)

# The first call in a process makes a table.
unhurried = settings(deadline=None)


def document(text, title="T"):
    return Document("d", title, text)


@unhurried
@given(TEXTS, st.integers(1, 30))
def test_passages_are_ordered_and_cover_all_visible_text(text, limit):
    spans = Passages(limit).spans(document(text))
    edges = [0, *(edge for span in spans for edge in span), len(text)]
    assert edges == sorted(edges)
    assert not "".join(text[edges[i] : edges[i + 1]] for i in range(0, len(edges), 2)).strip()


@unhurried
@given(TEXTS, st.integers(1, 30))
def test_a_passage_keeps_to_the_budget_unless_it_is_one_sentence(text, limit):
    sentences = rule_spans(text)
    for span in Passages(limit).spans(document(text)):
        assert count_tokens(text[slice(*span)]) <= limit or span in sentences


@unhurried
@given(TEXTS, st.integers(1, 30))
def test_packing_is_greedy(text, limit):
    ends = dict(rule_spans(text))
    spans = Passages(limit).spans(document(text))
    for (start, _), (next_start, _) in pairwise(spans):
        assert count_tokens(text[start : ends[next_start]]) > limit


def test_a_sentence_beyond_the_budget_stands_alone():
    text = "One. " + "Word " * 9 + "end. Two. Three."
    units = list(Passages(5).units(document(text)))
    assert [unit.text for unit in units] == ["One.", "Word " * 9 + "end.", "Two. Three."]


def test_what_is_left_of_a_token_that_a_splitter_cut_counts_as_a_token():
    text = "x x x cannot go on on on"
    assert [text[a:b] for a, b in pack(text, [(0, 9), (9, 15), (16, 24)], 4)] == [
        "x x x can",
        "not go",
        "on on on",
    ]


def test_passage_ids_count_from_zero_and_name_their_document():
    units = list(Passages(2).units(document("One. Two. Three.")))
    assert [unit.unit_id for unit in units] == ["d%p0", "d%p1", "d%p2"]
    assert {parent(unit.unit_id) for unit in units} == {"d"}


def test_the_title_stands_in_front_of_each_passage_and_is_not_counted():
    units = list(Passages(2).units(document("One. Two.", title="A title of five words")))
    assert [unit.contents for unit in units] == [
        "A title of five words\nOne.",
        "A title of five words\nTwo.",
    ]


@pytest.mark.parametrize("text", ["", " \n "])
@pytest.mark.parametrize("segmenter", [WholeDocument(), DocumentHead(), Passages()])
def test_no_document_vanishes(segmenter, text):
    (unit,) = segmenter.units(document(text))
    assert unit.text.strip() == ""
    assert len(segmenter.spans(document(text))) == 1


@unhurried
@given(TEXTS, st.sampled_from([WholeDocument(), DocumentHead(5), Passages(5)]))
def test_units_are_the_text_at_the_spans(text, segmenter):
    spans = segmenter.spans(document(text))
    assert [unit.text for unit in segmenter.units(document(text))] == [text[a:b] for a, b in spans]


def test_a_head_is_the_first_tokens_under_the_docid():
    (unit,) = DocumentHead(3).units(document("One, two three."))
    assert unit == ("d", "T", "One, two")


def test_a_whole_document_is_one_unit():
    assert list(WholeDocument().units(document(" x. y "))) == [("d", "T", " x. y ")]


def test_aggregation_shares_the_cut_and_the_fingerprint():
    maxp, plain = Passages(aggregate=True), Passages()
    assert (maxp.aggregate, plain.aggregate) == (True, False)
    assert (maxp.fingerprint, maxp.name) == (plain.fingerprint, plain.name)


def test_other_settings_give_other_fingerprints():
    segmenters = [WholeDocument(), DocumentHead(), DocumentHead(9), Passages(), Passages(9)]
    assert len({segmenter.fingerprint for segmenter in segmenters}) == len(segmenters)


def test_segmenters_travel_to_worker_processes():
    assert pickle.loads(pickle.dumps(Passages(7))) == Passages(7)


@pytest.mark.parametrize("value", [0, -1, 2.5, "250", None, True])
@pytest.mark.parametrize("segmenter", [Passages, DocumentHead])
def test_a_budget_that_is_not_a_positive_whole_number_is_refused(segmenter, value):
    with pytest.raises(InputError, match=r"max_tokens=.* valid: a whole number, 1 or more"):
        segmenter(max_tokens=value)


def test_an_unknown_splitter_is_refused_with_the_known_ones():
    with pytest.raises(InputError, match=r"splitter is 'nltk'. valid: rules, spacy, released"):
        Passages(splitter="nltk")
