"""The filter on document frequencies that were set by hand."""

from __future__ import annotations

from typing import ClassVar

import pytest

from soundingline.pipelines.enrich.df_filter import KEPT, NO_TERMS, TOO_FREQUENT, UNKNOWN, DfFilter
from soundingline.pipelines.lexical.analyzers import make_analyzer
from soundingline.toolkit.errors import InputError


class Frequencies:
    """100 documents; `common` stands in 40, `rare` in 3, `common rare` in 2, the rest in none."""

    analyzer = make_analyzer("english_unstemmed:2")
    frequencies: ClassVar = {
        "common": 40,
        "rare": 3,
        "common rare": 2,
        "both": 40,
        "common both": 30,
    }

    def document_frequency(self, term):
        return self.frequencies.get(term, 0)

    def __len__(self):
        return 100


def decisions(rule, *, corpus_side, unseen=None):
    phrases = ["common", "rare", "common rare", "common both", "common new", "new", "the of"]
    decided = DfFilter(0.05, rule, unseen).decide(phrases, Frequencies(), corpus_side=corpus_side)
    assert all(decision.kept == (decision.reason == KEPT) for decision in decided)
    return {decision.phrase: decision.reason for decision in decided}


def test_papers_rule_for_documents_keeps_what_the_corpus_lacks():
    # "common new" stands in no document, so its frequency is 0, which is within the limit of 5.
    assert decisions("paper", corpus_side=True) == {
        **{"common": TOO_FREQUENT, "rare": KEPT, "common rare": KEPT},
        **{"common both": TOO_FREQUENT, "common new": KEPT, "new": KEPT, "the of": NO_TERMS},
    }


def test_papers_rule_for_queries_keeps_what_stands_in_the_index_as_a_whole():
    assert decisions("paper", corpus_side=False) == {
        **{"common": TOO_FREQUENT, "rare": KEPT, "common rare": KEPT},
        **{"common both": TOO_FREQUENT, "common new": UNKNOWN, "new": UNKNOWN, "the of": NO_TERMS},
    }


def test_with_n_grams_a_phrase_of_a_query_passes_only_if_it_occurs_itself():
    # "rare" (3 documents) and "both" (40) are in the index, and their pair is not.
    pairs = Frequencies()
    words = Frequencies()
    words.analyzer = make_analyzer("english_unstemmed")
    (decision,) = DfFilter(0.05).decide(["rare both"], pairs, corpus_side=False)
    assert (decision.kept, decision.reason) == (False, UNKNOWN)
    assert decision.frequencies == (3, 40, 0)
    # Words alone cannot show that, and the released code's rule accepts any part.
    (of_words,) = DfFilter(0.05).decide(["rare both"], words, corpus_side=False)
    (released,) = DfFilter(0.05, "released").decide(["rare both"], pairs, corpus_side=False)
    assert of_words.kept and released.kept


@pytest.mark.parametrize("corpus_side", [True, False])
def test_the_rule_none_keeps_every_phrase_with_an_index_term(corpus_side):
    for unseen in (None, "drop"):
        found = decisions("none", corpus_side=corpus_side, unseen=unseen)
        assert {phrase for phrase, reason in found.items() if reason != KEPT} == {"the of"}
    assert DfFilter(0.001, "none").note(100) == ""


def test_released_rule_for_documents_looks_at_the_rarest_known_part():
    released = decisions("released", corpus_side=True)
    assert released["common new"] == TOO_FREQUENT  # its only known part stands in 40 documents
    assert released["new"] == KEPT and released["common rare"] == KEPT


def test_released_rule_for_queries_keeps_the_phrase_for_any_part_within_the_limit():
    released = decisions("released", corpus_side=False)
    assert released["common rare"] == KEPT
    assert released["common new"] == TOO_FREQUENT and released["new"] == UNKNOWN


def test_what_becomes_of_unseen_phrases_can_be_set():
    assert decisions("paper", corpus_side=True, unseen="drop")["new"] == UNKNOWN
    assert decisions("released", corpus_side=False, unseen="keep")["new"] == KEPT


@pytest.mark.parametrize(
    ("tau", "documents", "limit"),
    [(0.05, 100, 5), (0.05, 119, 5), (0.05, 19, 0), (0.29, 100, 29), (1.0, 7, 7)],
)
def test_the_limit_is_tau_times_the_documents_rounded_down(tau, documents, limit):
    assert DfFilter(tau).limit(documents) == limit


def test_a_limit_below_one_document_is_told_and_is_no_absence_of_a_limit():
    strict = DfFilter(0.005)
    assert "below one document" in strict.note(100) and strict.note(200) == ""
    kept = {
        side: [
            d.phrase
            for d in strict.decide(["rare", "new"], Frequencies(), corpus_side=side)
            if d.kept
        ]
        for side in (True, False)
    }
    assert kept == {True: ["new"], False: []}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tau": 0.0}, "tau is 0.0"),
        ({"tau": 1.5}, "tau is 1.5"),
        ({"tau": float("nan")}, "tau is nan"),
        ({"rule": "mine"}, "rule is 'mine'"),
        ({"unseen": "ask"}, "unseen is 'ask'"),
    ],
)
def test_other_settings_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        DfFilter(**arguments)  # type: ignore[arg-type]
