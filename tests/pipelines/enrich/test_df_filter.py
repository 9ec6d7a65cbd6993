"""The filter on document frequencies that were set by hand."""

import pytest

from soundingline.pipelines.enrich.df_filter import KEPT, NO_TERMS, TOO_FREQUENT, UNKNOWN, DfFilter
from soundingline.pipelines.lexical.analyzers import make_analyzer
from soundingline.toolkit.errors import InputError

# Of 100 documents: `common` is in 40, `rare` in 3, `common rare` in 2; the rest are in none.
FREQUENCIES = {"common": 40, "rare": 3, "common rare": 2, "both": 40, "common both": 30}


class Frequencies:
    def __init__(self, analyzer="english_unstemmed:2"):
        self.analyzer = make_analyzer(analyzer)

    def document_frequency(self, term):
        return FREQUENCIES.get(term, 0)

    def __len__(self):
        return 100


PHRASES = ("common", "rare", "common rare", "common both", "common new", "new", "the of")
CORPUS, QUERY = True, False
# Of "common new" the released code sees the part that is in 40 documents, and the paper the phrase,
# which is in none.
OFTEN, NEW = TOO_FREQUENT, UNKNOWN
RULES = {
    ("paper", CORPUS, None): (OFTEN, KEPT, KEPT, OFTEN, KEPT, KEPT, NO_TERMS),
    ("paper", CORPUS, "drop"): (OFTEN, KEPT, KEPT, OFTEN, KEPT, NEW, NO_TERMS),
    ("paper", QUERY, None): (OFTEN, KEPT, KEPT, OFTEN, NEW, NEW, NO_TERMS),
    ("released", CORPUS, None): (OFTEN, KEPT, KEPT, OFTEN, OFTEN, KEPT, NO_TERMS),
    ("released", QUERY, None): (OFTEN, KEPT, KEPT, OFTEN, OFTEN, NEW, NO_TERMS),
    ("released", QUERY, "keep"): (OFTEN, KEPT, KEPT, OFTEN, OFTEN, KEPT, NO_TERMS),
    ("none", CORPUS, None): (*[KEPT] * 6, NO_TERMS),
    ("none", QUERY, "drop"): (*[KEPT] * 6, NO_TERMS),
}  # fmt: skip


@pytest.mark.parametrize(("rule", "side", "unseen"), RULES)
def test_each_rule_decides_as_the_paper_or_the_released_code(rule, side, unseen):
    decided = DfFilter(0.05, rule, unseen).decide(PHRASES, Frequencies(), corpus_side=side)
    assert tuple(decision.reason for decision in decided) == RULES[rule, side, unseen]
    assert all(decision.kept == (decision.reason == KEPT) for decision in decided)


def test_with_n_grams_a_phrase_of_a_query_passes_only_if_it_occurs_itself():
    # "rare" (3 documents) and "both" (40) are in the index, and their pair is not.
    pairs, words = Frequencies(), Frequencies("english_unstemmed")
    (decision,) = DfFilter(0.05).decide(["rare both"], pairs, corpus_side=False)
    assert (decision.kept, decision.reason) == (False, UNKNOWN)
    assert decision.frequencies == (3, 40, 0)
    # Words alone cannot show that, and the released code's rule accepts any part.
    (of_words,) = DfFilter(0.05).decide(["rare both"], words, corpus_side=False)
    (released,) = DfFilter(0.05, "released").decide(["rare both"], pairs, corpus_side=False)
    assert of_words.kept and released.kept


def test_the_limit_is_tau_times_the_documents_rounded_down_and_may_be_below_one():
    for tau, documents, limit in (
        *((0.05, 100, 5), (0.05, 119, 5), (0.05, 19, 0), (0.29, 100, 29), (1.0, 7, 7)),
    ):
        assert DfFilter(tau).limit(documents) == limit
    strict = DfFilter(0.005)
    assert "below one document" in strict.note(100) and strict.note(200) == ""
    assert DfFilter(0.001, "none").note(100) == ""
    for side, kept in ((CORPUS, ["new"]), (QUERY, [])):
        decided = strict.decide(["rare", "new"], Frequencies(), corpus_side=side)
        assert [decision.phrase for decision in decided if decision.kept] == kept


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
        DfFilter(**arguments)
