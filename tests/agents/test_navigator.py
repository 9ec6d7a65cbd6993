"""The navigator without a model: requirements read from a question, and rounds over a session."""

from __future__ import annotations

import asyncio

import pytest
from toy_search import WordBackend, store_of

from soundingline.agents.literature import Navigator, OverlapScorer
from soundingline.agents.literature.rules import find_clauses
from soundingline.toolkit.benchmarks.links import LinkGraph
from soundingline.toolkit.corpus.resolve import Resolver
from soundingline.toolkit.data import Document, Link, Topic
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.search import Literature, Located, Operators, RankedBrowsing

QUESTION = (
    "Find all pages about a mill that grinds barley and was built between 1700 and 1750. "
    "The mill stands in Port Brel. Leave out those where the mill burnt down."
)
TEXTS = {
    "good": "A mill. It grinds barley. It was built in 1720. It stands in Port Brel.",
    "burnt": "A mill. It grinds barley. It was built in 1720. It burnt down. It is in Port Brel.",
    "late": "A mill. It grinds barley. It was built in 1820. It stands in Port Brel.",
    "linked": "It turns since 1730 beside the river Wey.",
    "town": "A town by the sea.",
    "other": "Nothing of the kind.",
}
TITLES = {"town": "Port Brel"}
DOCUMENTS = {
    docid: Document(docid, TITLES.get(docid, docid), text) for docid, text in TEXTS.items()
}


class WholeDocuments:
    """Every document is its own evidence."""

    def locate(self, docids, requirements, most=3):
        return [[[Located(docid, 1.0)] for _ in requirements] for docid in docids]


STORE = store_of(DOCUMENTS)
OPERATORS = Operators(
    links=LinkGraph.build([Link("linked", "town"), Link("good", "town")]),
    locator=WholeDocuments(),
    scorer=OverlapScorer(),
    resolver=Resolver(Document(d.docid, d.title, "") for d in DOCUMENTS.values()),
)


def answered(operators=OPERATORS, **settings):
    backend = WordBackend(TEXTS)
    tool = Literature().bind(operators).open(backend, STORE)
    return asyncio.run(Navigator(**settings).run(Topic("q", QUESTION), tool))


def test_requirements_are_the_clauses_of_the_question():
    clauses = find_clauses(QUESTION, lambda word: 0.5)
    assert [(clause.query, clause.span, clause.excluded) for clause in clauses] == [
        ("mill", None, False),
        ("grinds barley", None, False),
        ("built", (1700, 1750), False),
        ("mill stands Port Brel", None, False),
        ("mill burnt", None, True),
    ]


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("with between 1,200 and 3,400 people", (1200, 3400)),
        ("no earlier than 1800 and no later than 1809", (1800, 1809)),
        ("at least 5 but at most 90 mills", (5, 90)),
        ("opened in the 1870s", (1870, 1879)),
        ("opened in the decade that began in 1870", (1870, 1879)),
    ],
)
def test_a_range_stays_whole_and_is_understood(text, span):
    clauses = find_clauses(f"Towns {text}", lambda word: 0.5)
    assert [clause.span for clause in clauses if clause.span] == [span]


def test_a_number_outside_of_the_range_counts_less():
    (clause,) = find_clauses("built between 1700 and 1750", lambda word: 0.5)
    assert clause.best_sentence("It was built in 1720.")[0] == 1.0
    assert 0 < clause.best_sentence("It was built in 1820. Rain fell in 1720.")[0] < 0.5
    assert clause.best_sentence("Nothing.")[0] == 0.0


def test_a_question_without_words_is_one_requirement():
    assert len(find_clauses("???", lambda word: 0.5)) == 1


def test_the_document_that_meets_all_stands_above_its_near_misses():
    trajectory = answered()
    documents = list(trajectory.answer.documents)
    assert trajectory.status == "completed"
    assert documents[0] == "good"
    assert set(documents) <= set(DOCUMENTS)
    assert trajectory.tiers["cited"] == ("good",)


def test_a_second_round_follows_links_to_what_the_question_names():
    assert "linked" not in answered(rounds=1).answer.documents
    trajectory = answered(rounds=2)
    assert "linked" in trajectory.answer.documents
    assert {"resolve", "expand"} <= {call.name for call in trajectory.calls}


def test_without_links_the_second_round_asks_again():
    trajectory = answered(Operators(locator=WholeDocuments(), scorer=OverlapScorer()))
    assert {call.name for call in trajectory.calls} == {"search", "score"}
    assert trajectory.answer.documents[0] == "good"


def test_calls_that_are_used_up_leave_an_answer_from_what_was_scored():
    trajectory = answered(max_calls=9)
    assert trajectory.status == "steered" and len(trajectory.calls) <= 9
    assert trajectory.answer.documents


def test_the_answer_is_no_longer_than_asked_for():
    assert len(answered(listed=2).answer.documents) == 2


def test_a_pool_of_nothing_is_answered_by_an_empty_list():
    bare = Operators(locator=WholeDocuments(), scorer=OverlapScorer())
    tool = Literature().bind(bare).open(WordBackend({}), store_of({}))
    trajectory = asyncio.run(Navigator().run(Topic("q", QUESTION), tool))
    assert trajectory.status == "completed" and trajectory.answer.documents == ()


def test_an_interface_without_evidence_fails_its_question_in_one_line():
    tool = RankedBrowsing().open(WordBackend(TEXTS), STORE)
    trajectory = asyncio.run(Navigator().run(Topic("q", QUESTION), tool))
    assert trajectory.status == "failed"
    assert "an interface that searches, locates evidence and scores it" in trajectory.traceback


@pytest.mark.parametrize(
    "name",
    [
        *("rounds", "queries", "requirements", "pool", "seeds", "shown", "listed", "patience"),
        "ordered",
        *("librarians", "librarian_seconds", "max_calls"),
    ],
)
def test_impossible_settings_are_refused(name):
    settings = {name: 0}
    with pytest.raises(InputError, match=name):
        Navigator(**settings)
