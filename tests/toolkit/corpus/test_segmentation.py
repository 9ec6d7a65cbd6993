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
def test_passages_cover_all_visible_text_and_are_packed_greedily(text, limit):
    spans, sentences = Passages(limit).spans(document(text)), rule_spans(text)
    edges = [0, *(edge for span in spans for edge in span), len(text)]
    assert edges == sorted(edges)
    assert not "".join(text[edges[i] : edges[i + 1]] for i in range(0, len(edges), 2)).strip()
    for span in spans:
        assert count_tokens(text[slice(*span)]) <= limit or span in sentences
    ends = dict(sentences)
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


def test_passage_ids_count_from_zero_and_a_title_is_in_front_and_is_not_counted():
    units = list(Passages(2).units(document("One. Two.", title="A title of five words")))
    assert [unit.unit_id for unit in units] == ["d%p0", "d%p1"]
    assert {parent(unit.unit_id) for unit in units} == {"d"}
    title = "A title of five words"
    assert [unit.contents for unit in units] == [f"{title}\nOne.", f"{title}\nTwo."]


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


def test_a_head_and_a_complete_document_are_one_unit():
    assert list(DocumentHead(3).units(document("One, two three."))) == [("d", "T", "One, two")]
    assert list(WholeDocument().units(document(" x. y "))) == [("d", "T", " x. y ")]


def test_fingerprints_follow_the_cut_and_nothing_else():
    maxp, plain = Passages(aggregate=True), Passages()
    assert (maxp.aggregate, plain.aggregate) == (True, False)
    assert (maxp.fingerprint, maxp.name) == (plain.fingerprint, plain.name)
    segmenters = [WholeDocument(), DocumentHead(), DocumentHead(9), plain, Passages(9)]
    segmenters.append(Passages(splitter="released"))
    assert len({segmenter.fingerprint for segmenter in segmenters}) == len(segmenters)
    assert pickle.loads(pickle.dumps(maxp)) == maxp


@pytest.mark.parametrize("value", [0, -1, 2.5, "250", None, True])
@pytest.mark.parametrize("segmenter", [Passages, DocumentHead])
def test_a_budget_that_is_no_positive_integer_is_refused(segmenter, value):
    with pytest.raises(InputError, match=r"max_tokens=.* valid: a whole number, 1 or more"):
        segmenter(max_tokens=value)


def test_an_unknown_splitter_is_refused_with_the_known_ones():
    with pytest.raises(InputError, match=r"splitter is 'nltk'. valid: rules, spacy, released"):
        Passages(splitter="nltk")
