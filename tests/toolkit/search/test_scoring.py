"""The tool `score`: evidence is located, scored by whatever scorer there is, and on record."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from toy_search import WordBackend, store_of

from soundingline.agents.literature import OverlapScorer
from soundingline.toolkit.data import Document
from soundingline.toolkit.search import Literature, Located, Operators
from soundingline.toolkit.search.scoring import (
    ScoresPage,
)

TEXTS = {
    "good": "A mill grinds barley. It was built in 1720.",
    "late": "A mill grinds barley. It was built in 1820.",
    "dry": "Nothing.",
}


class WholeDocuments:
    """A document is evidence where its text holds the requirement's last word."""

    def locate(self, docids, requirements, most=3):
        return [
            [
                [Located(docid, 1.0)] if need.split()[-1] in TEXTS[docid] else []
                for need in requirements
            ]
            for docid in docids
        ]


def session(scorer=None):
    store = store_of({docid: Document(docid, docid, text) for docid, text in TEXTS.items()})
    operators = Operators(locator=WholeDocuments(), scorer=scorer or OverlapScorer())
    return Literature().bind(operators).open(WordBackend(TEXTS), store)


def scored(docids, requirements, tool=None):
    arguments = {"docids": docids, "requirements": requirements, "question": "Which mill?"}
    result = (tool or session()).call("score", arguments)
    assert isinstance(result.page, ScoresPage), result.text
    return result.page


def test_every_document_is_held_against_every_requirement():
    page = scored("good late dry", "mill grinds barley\nbetween 1700 and 1750 was built")
    assert page.requirements == ["mill grinds barley", "between 1700 and 1750 was built"]
    verdicts = [[row.verdict for row in one.requirements if row] for one in page.scores]
    assert verdicts == [["satisfied"] * 2, ["satisfied", "not"], ["unknown"] * 2]
    first = page.scores[0].requirements[0]
    assert first is not None and first.passage == "good"
    assert first.rationale == "A mill grinds barley."
    assert page.scores[2].requirements[0] == ("unknown", 0.0, "", "")


def test_an_exclusion_is_met_by_a_document_that_is_free_of_it():
    page = scored("good dry", "not grinds barley")
    good, dry = (one.requirements[0] for one in page.scores)
    assert good is not None and dry is not None
    assert good.score == 0.0 and dry.score == 1.0


def test_evidence_that_was_scored_is_an_exposure_of_its_layer():
    tool = session()
    scored("good", "mill grinds barley", tool)
    (exposure,) = tool.exposures.rows
    assert (exposure.tier, exposure.docid, exposure.layer) == ("opened", "good", "evidence")
    assert tool.calls[0].shown == ("good",)


@pytest.mark.parametrize(
    ("docids", "code"), [("nobody", "unknown_docid"), ("  ", "empty_value"), (";", "unknown_docid")]
)
def test_what_cannot_be_scored_is_refused(docids, code):
    arguments = {"docids": docids, "requirements": "mill", "question": "Which?"}
    assert session().call("score", arguments).call.error == code


def test_equal_requirements_are_scored_once_and_lines_are_tidied():
    page = scored("good", "  mill   grinds barley \n\nmill grinds barley\n用大麦磨粉")
    assert page.requirements == ["mill grinds barley", "用大麦磨粉"]


def test_without_a_scorer_there_is_no_such_tool():
    operators = Operators(locator=WholeDocuments())
    tool = Literature().bind(operators).open(WordBackend(TEXTS), store_of(TEXTS))
    assert "score" not in {spec["name"] for spec in tool.specs()}


class Remembering(OverlapScorer):
    """Keeps what it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.candidates = []

    def score(self, candidates):
        self.candidates += candidates
        return super().score(candidates)


def test_what_was_read_of_a_document_before_is_context():
    scorer = Remembering()
    tool = session(scorer)
    scored("good", "mill grinds barley", tool)
    scored("good", "用大麦磨粉", tool)
    assert [passage.unit_id for passage in scorer.candidates[1].context] == ["good"]
    assert scorer.candidates[1].evidence[0].passages == ()


def test_calls_beside_each_other_are_all_on_record():
    tool = session()
    with ThreadPoolExecutor(16) as pool:
        queries = {f"mill {n}": "" for n in range(40)}
        list(pool.map(lambda query: tool.call("search", {"query": query}), queries))
        list(pool.map(lambda n: scored("good late", f"number {n}", tool), range(40)))
    assert len(tool.calls) == 80
    assert [row.docid for row in tool.exposures.rows].count("good") == 2  # previewed, opened
    assert tool.exposures.rows[-1].tokens <= sum(call.tokens for call in tool.calls)
