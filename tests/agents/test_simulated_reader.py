"""The simulated reader: what counts as shown, and that the search knows nothing of the facts."""

import asyncio
from functools import cache

import pytest
from support.search import WordBackend, store_of

from soundingline.agents.base import Budget, RunResources, ShownText, SimulatedReader
from soundingline.agents.keyword import KeywordAgent
from soundingline.experiments.rollouts import simulated_reader
from soundingline.toolkit.benchmarks.fictional import FictionalWorld
from soundingline.toolkit.data import Document, StatedFact, Topic
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.search import RankedBrowsing

LAUNCHED = StatedFact(
    "Brel Star", ("Brel Star left the yard in 1874.",), ("The ship left in 1874.", "Launched: 1874")
)
CREW_LINE = "Crew: 1,500"
CREW = StatedFact("Brel Star", ("Brel Star had a crew of 1,500.",), (CREW_LINE,))
OWNER = StatedFact("Ada Moor", ("Ada Moor owned Brel Star.",))
READER = SimulatedReader(
    {"one": [LAUNCHED], "two": [LAUNCHED, CREW], "hops": [LAUNCHED, OWNER]},
    {qid: ["1874", "in 1874"] for qid in ("one", "two", "hops")},
)


def answer(qid, *shown):
    return READER.answer(qid, [ShownText(*text) for text in shown])


@pytest.mark.parametrize(
    ("qid", "shown"),
    [
        ("one", [("d1", "Brel Star", "Fog.\nLaunched: 1874\nMore fog.")]),
        ("one", [("d1", "BREL STAR", "Then the ship left\n  in 1874.")]),
        ("one", [("d9", "A harbour", "There brel star left the yard in 1874. Fog.")]),
        (
            "two",
            [("d1", "Brel Star", "The ship left in 1874."), ("d1", "Brel Star", "Crew: 1,500")],
        ),
        ("hops", [("d1", "Brel Star", "Launched: 1874"), ("d2", "x", "Ada Moor owned Brel Star.")]),
    ],
)
def test_it_is_right_when_all_facts_were_shown(qid, shown):
    reply = answer(qid, *shown)
    assert (reply.exact, reply.confidence) == ("1874", 100.0)
    assert reply.citations == tuple(dict.fromkeys(docid for docid, *_ in shown))
    assert reply.explanation.startswith("Simulated reader: ")


@pytest.mark.parametrize(
    ("qid", "shown"),
    [
        ("one", []),
        ("one", [("d1", "Brel Star", "A ship of fog.")]),
        ("one", [("d2", "Brel Sun", "Launched: 1874. The ship left in 1874.")]),
        ("one", [("d1", "A list", "Brel Star lies here. Launched: 1874")]),
        ("one", [("d1", "Brel Star", "Launched: 18745")]),
        ("two", [("d1", "Brel Star", "Launched: 1874 Crew: 1,500,000")]),
        ("one", [("d1", "Brel Star", "Launched: 187…")]),
        ("one", [("d1", "Brel Star", "Brel Star left the"), ("d1", "Brel Star", "yard in 1874.")]),
        ("two", [("d1", "Brel Star", "Launched: 1874")]),
        ("hops", [("d1", "Brel Star", "Launched: 1874"), ("d2", "Ada Moor", "She owned a ship.")]),
    ],
    ids=[
        "nothing", "other-text", "other-subject", "subject-not-the-title", "longer-number",
        "longer-count", "cut", "in-halves", "one-of-two", "one-of-two-hops",
    ],
)  # fmt: skip
def test_it_says_unknown_when_a_fact_was_not_shown(qid, shown):
    reply = answer(qid, *shown)
    assert (reply.exact, reply.confidence, reply.citations) == ("unknown", 0.0, ())


@cache
def world(**changed):
    arguments = {"documents": 96, "questions": 12, "median_words": 120, "p90_words": 300}
    return FictionalWorld(**{**arguments, "hops": 1, "yes_no": False, **changed})


@pytest.mark.parametrize("hops", [1, 2])
@pytest.mark.parametrize("repetition", [None, (1.0, 0.2, 0.9)])
def test_the_pages_of_a_question_state_exactly_the_facts_that_it_needs(hops, repetition):
    """The whole pages answer it; without any one of them, and under another title, nothing does."""
    made = world(hops=hops, repetition=repetition)
    reader = SimulatedReader(made.needed_facts, made.answers)
    pages = {page.docid: ShownText(*page[:3]) for page in made.documents()}
    for topic in made.topics:
        needed = made.qrels["evidence"][topic.qid]
        shown = [pages[docid] for docid in needed]
        assert reader.answer(topic.qid, shown).exact == made.answers[topic.qid][0]
        others = [text for docid, text in pages.items() if docid not in needed]
        assert reader.answer(topic.qid, others).exact == "unknown"
        for left_out in needed:
            rest = [text for docid, text in pages.items() if docid != left_out]
            assert reader.answer(topic.qid, rest).exact == "unknown"


def run_with(reader, made, agent="simulated"):
    pages = {page.docid: page for page in made.documents()}
    backend = WordBackend({docid: f"{page.title} {page.text}" for docid, page in pages.items()})
    bound = KeywordAgent(reader=agent).bind(RunResources(Budget(), simulated_reader=reader))
    store = store_of(pages)
    return [
        asyncio.run(bound.run(topic, RankedBrowsing().open(backend, store)))
        for topic in made.topics
    ]


def test_the_search_is_the_same_whatever_the_reader_knows():
    made = world()
    true = SimulatedReader(made.needed_facts, made.answers)
    shuffled = [*made.needed_facts.values()][1:] + [*made.needed_facts.values()][:1]
    others = dict(zip(made.needed_facts, shuffled, strict=True))
    false = SimulatedReader(others, {qid: ["nothing"] for qid in others})

    def calls(trajectories):
        return [
            [(call.name, call.arguments, call.output) for call in each.calls]
            for each in trajectories
        ]

    simulated = run_with(true, made)
    assert calls(simulated) == calls(run_with(false, made))
    assert calls(simulated) == calls(run_with(None, made, "own"))
    assert [each.answer for each in simulated] == [each.answer for each in run_with(true, made)]
    right = [each.answer.exact == made.answers[each.qid][0] for each in simulated]
    assert any(right) and not all(right)


def test_the_pages_of_one_document_are_read_as_one_text():
    lines = ["fog"] * 4 + ["Brel Star left the yard", "in 1874."] + ["fog"] * 4
    store = store_of({"d1": Document("d1", "Brel Star", "\n".join(lines))})
    tool = RankedBrowsing(read_limit=5, excerpt="none").open(
        WordBackend({"d1": "Brel Star"}), store
    )
    agent = KeywordAgent(reader="simulated").bind(RunResources(Budget(), simulated_reader=READER))
    given = asyncio.run(agent.run(Topic("one", "When did Brel Star leave?"), tool))
    assert [call.name for call in given.calls].count("read_document") == 2
    assert given.answer.exact == "1874"


def test_another_reader_and_a_benchmark_without_known_facts_are_refused():
    with pytest.raises(InputError, match=r"agent.reader='best'. valid: own, simulated"):
        KeywordAgent(reader="best")
    benchmark = world(questions="sets:2")
    assert simulated_reader(KeywordAgent(), benchmark) is None
    with pytest.raises(InputError, match=r"no known facts.*set agent.reader=own"):
        simulated_reader(KeywordAgent(reader="simulated"), benchmark)
