"""The agent without a language model: clues, what it has seen, and questions; and the simulated
reader, of whose facts the search knows nothing."""

import asyncio
import json
import math
import os
import subprocess
import sys
from functools import cache

import pytest
from support.agents import reading_agent
from support.benchmarks import WordBackend, store_of

from soundingline.agents.base import Budget, RunResources
from soundingline.agents.baselines import OneShotAgent
from soundingline.agents.keyword import KeywordAgent, SimulatedReader
from soundingline.agents.keyword import agent as keyword_agent
from soundingline.agents.keyword.clues import (
    Clue,
    Rarity,
    crude_stem,
    find_clues,
    heaviest,
    is_content,
    make_queries,
    words,
)
from soundingline.agents.keyword.evidence import Coverage, ReadingPosition, SeenEvidence
from soundingline.experiments import Experiment
from soundingline.experiments.rollouts import simulated_reader
from soundingline.toolkit.benchmarks.benchmark import Benchmark
from soundingline.toolkit.benchmarks.fictional import FictionalWorld
from soundingline.toolkit.data import Document, StatedFact, Topic
from soundingline.toolkit.evaluation import evaluate_run
from soundingline.toolkit.evaluation.funnel import NeededTexts
from soundingline.toolkit.search import RankedBrowsing, TopK
from soundingline.toolkit.search.answers import ShownText
from soundingline.toolkit.search.tool import Continuation

# Clues and queries.

SPELLING = Rarity()


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        ("founded", "founding", True),
        ("Founded", "found", True),
        ("countries", "country", True),
        ("assassinated", "assassinate", True),
        ("Lincoln's", "Lincoln", True),
        ("Lincoln’s", "lincoln", True),
        ("stopped", "stopping", True),
        ("populations", "population", True),
        ("bus", "bee", False),
        ("red", "reed", False),
        ("1832", "1833", False),
    ],
)
def test_forms_of_a_word_share_a_stem_and_different_words_do_not(left, right, equal):
    assert (crude_stem(left) == crude_stem(right)) == equal


def test_words_keep_numbers_names_and_apostrophes_whole_and_some_are_content():
    text = "Jean-Luc O'Brien paid $1,234.50 in 1871; 3rd time."
    assert words(text) == ["Jean-Luc", "O'Brien", "paid", "1,234.50", "in", "1871", "3rd", "time"]
    assert [*filter(is_content, ["The", "which", "x", "7", "swan"])] == ["7", "swan"]


def test_rarity_is_lucenes_idf_relative_to_one_document_or_read_from_the_spelling():
    frequencies = {"swan": 1, "water": 50, "common": 100}
    rarity = Rarity(lambda word: frequencies.get(word, 0), 100)
    assert rarity("swan") == 1.0 and rarity("unknown") == 0.0
    assert rarity("water") == pytest.approx(math.log(1 + 50.5 / 50.5) / math.log(1 + 99.5 / 1.5))
    assert 0 < rarity("common") < rarity("water")
    assert SPELLING("1871") > SPELLING("swan") < SPELLING("Swan")
    assert SPELLING("embroidery") > SPELLING("cat") > SPELLING("the") == 0.0


@pytest.mark.parametrize(
    ("question", "kinds"),
    [
        (
            'Who wrote "night crawler" with Ada Lovelace in 1842?',
            "wrote word night quoted crawler quoted Ada name Lovelace name 1842 number",
        ),
        # A capital at the start of a sentence makes no name.
        (
            "Turtles lay eggs. Penguins swim where Romans fought?",
            "Turtles word lay word eggs word Penguins word swim word Romans name fought word",
        ),
        # An apostrophe opens no quotation.
        (
            "What was Grant's rank before the soldiers' revolt?",
            "Grant's name rank word soldiers word revolt word",
        ),
        ("Which city founded cities near the city?", "city word founded word near word"),
        ("Who is it and why?", ""),
    ],
)
def test_quotations_numbers_and_names_are_distinguished_from_plain_words(question, kinds):
    clues = find_clues(question, SPELLING)
    assert " ".join(f"{clue.text} {clue.kind}" for clue in clues) == kinds


def test_queries_are_the_whole_question_its_names_and_its_rarest_words():
    question = (
        "A painter born in Lyon moved to Oslo, where she founded a school for weavers; "
        "the school burnt in 1911. What was her name?"
    )
    clues = find_clues(question, SPELLING)
    queries = make_queries(clues, limit=10, terms=24)
    assert queries[0].text.split()[:4] == ["painter", "born", "Lyon", "moved"]
    assert "Lyon Oslo 1911" in [query.text for query in queries]
    assert len({frozenset(query.text.split()) for query in queries}) == len(queries) == 3
    assert all(query.reason for query in queries)
    for limit in (1, 2, 3):
        few = make_queries(clues, limit=limit, terms=5)
        assert len(few) == limit and all(len(query.text.split()) <= 5 for query in few)
    assert make_queries([], limit=5, terms=5) == []
    weights = {"a1": 0.2, "b1": 0.9, "c1": 0.5, "d1": 0.9}
    clues = [Clue(text, text, "word", weight) for text, weight in weights.items()]
    assert [clue.text for clue in heaviest(clues, 3)] == ["b1", "c1", "d1"]


CLUES = {"museum": 1.0, "found": 0.5, "tulsa": 0.5}


@pytest.mark.parametrize(
    ("title", "text", "covered"),
    [
        ("Tulsa", "The museum was founded in 1939. It is large.", 2.0 / 2),
        ("Tulsa", "It is large. Founding took money.", 1.0 / 2),
        ("", "Fog. Founded late. Fog.", 0.5 / 2),
        # Half of the sentence before, and the best sentence of all.
        ("", "Tulsa lies here. The museum stands.", (1.0 + 0.5 * 0.5) / 2),
        ("Tulsa", "It is large.", 0.0),
    ],
)
def test_the_best_sentence_counts_with_the_title_and_half_of_the_sentence_before(
    title, text, covered
):
    assert Coverage(CLUES).of_best_sentence(title, text) == pytest.approx(covered)
    assert Coverage({}).of_best_sentence(title, text) == 0


def test_the_most_promising_document_is_read_first_and_read_on_last():
    """Reciprocal ranks with a damping of 10, times half and the coverage of the best sentence."""
    evidence = SeenEvidence({"mill": 1.0, "aske": 1.0})
    assert evidence.next_unread() is None
    evidence.rank(["a%p3", "b", "a%p1", "c"])  # 1/11, 1/12, and 1/14
    evidence.add("c", "", "The mill on the Aske.")
    # The promises: c 1.5/14 = .107, a .5/11 = .045, b .5/12 = .042.
    assert evidence.next_unread() == ReadingPosition("c")
    more = Continuation("read_document", {"docid": "c", "offset": 9})
    evidence.visited(ReadingPosition("c"), more)  # the rest of c: .054
    assert evidence.next_unread() == ReadingPosition("c", more)
    evidence.visited(ReadingPosition("c"), None)
    assert evidence.next_unread() == ReadingPosition("a%p3")


SCORES = """
from soundingline.agents.keyword.evidence import Coverage
clues = {f"clue{number:02}x": 1 / (number + 3) for number in range(40)}
coverage = Coverage(clues)
for number in range(30):
    clause = " ".join(list(clues)[number % 7 : number + 9])
    text = f"Brel {clause} harbour {number}. The Slate {clause[:40]} mill slate."
    print(coverage.of_best_sentence("", text))
"""


def test_scores_do_not_depend_on_the_seed_of_hashes():
    outputs = set()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", SCORES]
        outputs.add(subprocess.check_output(command, env=environment))
    assert len(outputs) == 1 and len(outputs.pop().split()) == 30


# Questions.

CORPUS = {
    "mill": Document(
        "mill",
        "Grenholm Mill",
        "Grenholm Mill stands on the river Aske.\nIt was built by Torvald Brekke in 1871.\n"
        "The mill burnt in 1911 and was never rebuilt.",
    ),
    "brekke": Document(
        "brekke",
        "Torvald Brekke",
        "Torvald Brekke was a carpenter.\nBrekke was born in Lysanger on 4 May 1832.",
    ),
    "swan": Document("swan", "Swan", "Young swans are known as cygnets.\nSwans eat plants."),
    "river": Document("river", "Aske", "The river Aske is 42 miles long.\nIt has eleven bridges."),
    **{
        f"filler{number}": Document(f"filler{number}", "", f"Entry {number} of a river list.")
        for number in range(30)
    },
}
TEXTS = {docid: f"{document.title}\n{document.text}" for docid, document in CORPUS.items()}


def ranked(tool=None):
    return (tool or RankedBrowsing()).open(WordBackend(TEXTS), store_of(CORPUS))


INTERFACES = {
    "ranked browsing": RankedBrowsing(),
    "top k": TopK(),
    "top k with get_document": TopK(get_document=True),
}
MILL = "Who built Grenholm Mill?"
BUILDER = ("Torvald Brekke", "mill")


def ask(question=MILL, tool=None, *, needed=BUILDER, **arguments):
    """The trajectory of a question whose answer stands in a document: `needed` are both."""
    agent = reading_agent(*needed, **arguments)
    return asyncio.run(agent.run(Topic("q1", question), tool or ranked()))


def names(trajectory):
    return [call.name for call in trajectory.calls]


@pytest.mark.parametrize("interface", INTERFACES.values(), ids=INTERFACES.keys())
@pytest.mark.parametrize(
    ("question", "answer", "docid"),
    [
        (MILL, "Torvald Brekke", "mill"),
        ("What year did the Grenholm Mill burn?", "1911", "mill"),
        ("When was Torvald Brekke born?", "4 May 1832", "brekke"),
        ("Where was Torvald Brekke born?", "Lysanger", "brekke"),
        ("How many bridges has the river Aske?", "eleven", "river"),
        ("What are young swans known as?", "cygnets", "swan"),
    ],
)
def test_plain_questions_are_answered_and_cited_through_every_interface(
    interface, question, answer, docid
):
    trajectory = ask(question, ranked(interface), needed=(answer, docid))
    assert trajectory.status == "completed", trajectory.traceback
    assert (trajectory.answer.exact, trajectory.answer.confidence) == (answer, 100)
    assert docid in {*trajectory.tiers["previewed"], *trajectory.tiers["opened"]}
    assert trajectory.answer.citations == () == tuple(trajectory.tiers["cited"])


@pytest.mark.parametrize("interface", INTERFACES.values(), ids=INTERFACES.keys())
def test_calls_have_the_declared_arguments_and_the_same_question_the_same_trajectory(interface):
    question = "Where was the carpenter who built Grenholm Mill on the river Aske born?"
    first, second = (ask(question, ranked(interface)) for _ in range(2))
    reads = {tool["name"] for tool in ranked(interface).specs()} & {"read_document", "get_document"}
    assert set(names(first)) == {"search", *reads}
    for call in first.calls:
        assert bool(call.arguments.get("reason")) == isinstance(interface, RankedBrowsing)
        assert not call.error
    outputs = [[(c.name, c.arguments, c.output) for c in made.calls] for made in (first, second)]
    assert outputs[0] == outputs[1]
    for name in ("messages", "answer", "exposures"):
        assert getattr(first, name) == getattr(second, name)


def test_messages_are_linear_and_pair_every_call_with_its_result():
    trajectory = ask()
    first, *middle, last = trajectory.messages
    assert first == {"role": "user", "content": MILL}
    assert [message["role"] for message in middle] == ["assistant", "tool"] * len(trajectory.calls)
    for request, result, call in zip(middle[::2], middle[1::2], trajectory.calls, strict=True):
        (made,) = request["tool_calls"]
        assert made["id"] == result["tool_call_id"]
        assert made["function"]["name"] == call.name
        assert json.loads(made["function"]["arguments"]) == call.arguments
        assert result["content"] == call.output
        assert request["content"] and "\n" not in request["content"]
    explanation, exact, confidence = last["content"].split("\n")
    assert explanation.startswith("Explanation: ")
    assert exact == "Exact Answer: Torvald Brekke"
    assert confidence.startswith("Confidence: ") and confidence.endswith("%")


@pytest.mark.parametrize("question", ["Zzyzx qwxv?", "who is it", ""])
def test_no_hit_at_all_still_gives_an_answer(question):
    trajectory = ask(question)
    assert trajectory.status == "completed" and trajectory.answer.citations == ()
    assert (trajectory.answer.exact, trajectory.answer.confidence) == ("unknown", 0)


def test_limits_are_kept(monkeypatch):
    question = "Which carpenter built the mill, which burnt in 1911, on the river Aske, near swans?"
    assert names(ask(question)).count("search") <= 3
    assert names(ask(question, max_searches=1)).count("search") == 1
    assert names(ask(question)).count("read_document") <= 4
    monkeypatch.setattr(keyword_agent, "_MOST_READS", 2)
    assert names(ask(question)).count("read_document") == 2
    monkeypatch.setattr(keyword_agent, "_MOST_CALLS", 4)
    assert len(ask(question).calls) == 4
    monkeypatch.setattr(keyword_agent, "_QUERY_TERMS", 2)
    calls = ask(question).calls
    queries = [call.arguments["query"] for call in calls if call.name == "search"]
    assert queries and all(len(query.split()) <= 2 for query in queries)


def test_a_long_document_is_read_on_from_where_the_page_ended():
    lines = [f"Line {number} says nothing." for number in range(1, 500)]
    text = "\n".join([*lines, "Grenholm Mill was built by Torvald Brekke."])
    tool = RankedBrowsing(excerpt="none").open(WordBackend({"d": text}), store_of({"d": text}))
    trajectory = ask(MILL, tool, needed=("Torvald Brekke", "d"))
    read = [call.arguments for call in trajectory.calls if call.name == "read_document"]
    assert [arguments.get("offset") for arguments in read] == [None, 201, 401]
    assert trajectory.answer.exact == "Torvald Brekke"


def test_passages_are_read_from_where_they_start():
    long = "\n".join(["Nothing here."] * 300 + ["Grenholm Mill was built by Torvald Brekke."])
    passages = {"d%p0": "Nothing here.", "d%p1": "Grenholm Mill was built by Torvald Brekke."}
    store = store_of({"d": long}, passages)
    tool = RankedBrowsing().open(WordBackend(passages), store)
    trajectory = ask(MILL, tool, needed=("Torvald Brekke", "d"))
    (read,) = [call for call in trajectory.calls if call.name == "read_document"]
    assert "lines 301-301 of 301" in read.output
    assert trajectory.answer.exact == "Torvald Brekke"


def test_a_broken_backend_fails_the_question_with_what_happened_so_far():
    class Broken(WordBackend):
        searches = 0

        def search(self, request):
            self.searches += 1
            if self.searches == 2:
                raise RuntimeError("the index is gone")
            return super().search(request)

    trajectory = ask(tool=RankedBrowsing().open(Broken(TEXTS), store_of(CORPUS)))
    assert trajectory.status == "failed" and trajectory.answer.exact == ""
    assert "RuntimeError: the index is gone" in trajectory.traceback
    assert len(trajectory.calls) >= 1 and "mill" in trajectory.tiers["previewed"]
    assert trajectory.messages[-1]["role"] == "assistant"


def test_a_tool_that_closes_leads_to_an_answer_from_what_was_seen():
    class Closing(RankedBrowsing):
        def call(self, name, arguments):
            if len(self.calls) == 1:
                self.block("The time for retrieval is over. Answer now.")
            return super().call(name, arguments)

    tool = Closing().open(WordBackend(TEXTS), store_of(CORPUS))
    trajectory = ask("Who built Grenholm Mill on the river Aske?", tool)
    assert trajectory.status == "steered"
    assert [call.error for call in trajectory.calls] == ["", "blocked", "blocked", "blocked"]
    assert trajectory.answer.exact == "Torvald Brekke"


def test_a_single_refusal_is_survived():
    class Moody(RankedBrowsing):
        def call(self, name, arguments):
            wrong = {"query": ""} if len(self.calls) == 1 else {}
            return super().call(name, {**arguments, **wrong})

    tool = Moody().open(WordBackend(TEXTS), store_of(CORPUS))
    trajectory = ask(MILL, tool)
    assert [bool(call.error) for call in trajectory.calls].count(True) == 1
    assert (trajectory.status, trajectory.answer.exact) == ("completed", "Torvald Brekke")


@pytest.mark.slow
def test_on_long_articles_it_finds_evidence_and_answers_mostly(data_root, tmp_path):
    """Every tenth question of `dev`. The bounds are far below what was measured (1.0 and .73), and
    far above a broken part."""
    rows = (data_root / "cmuqa" / "qrels" / "dev.tsv").read_text(encoding="utf-8").splitlines()
    qids = list(dict.fromkeys(row.split("\t")[0] for row in rows[1:]))[::10]
    (tmp_path / "qids.txt").write_text("\n".join(qids), encoding="utf-8")
    folders = [f"paths.{name}={tmp_path / name}" for name in ("runs", "indexes", "caches")]
    benchmark = ["benchmark=beir", f"benchmark.path={data_root}/cmuqa", "benchmark.split=dev"]
    benchmark.append(f"benchmark.qids={tmp_path}/qids.txt")
    run = Experiment.compose(*benchmark, *folders).run()
    assert run.counts["failed"] == 0
    assert run.metrics["recall_opened"] >= 0.7
    assert run.metrics["accuracy"] >= 0.5


LAUNCHED = StatedFact(
    "Brel Star", ("Brel Star left the yard in 1874.",), ("The ship left in 1874.", "Launched: 1874")
)
CREW_LINE = "Crew: 1,500"
CREW = StatedFact("Brel Star", ("Brel Star had a crew of 1,500.",), (CREW_LINE,))
OWNER = StatedFact("Ada Moor", ("Ada Moor owned Brel Star.",))
FACTS = {"one": [LAUNCHED], "two": [LAUNCHED, CREW], "hops": [LAUNCHED, OWNER]}
READER = SimulatedReader(
    NeededTexts({"text": {"d1": ["brel star 1874"]}}, FACTS, {}),
    {qid: ["1874", "in 1874"] for qid in (*FACTS, "text", "left_out")},
)


def read_by(qid, *shown):
    return READER(qid, [ShownText(*text) for text in shown])


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
        ("text", [("d1", "Brel", "the Brel Star, 1874")]),
        ("text#repeat2", [("d1", "Brel Star", "1874")]),
    ],
)
def test_it_is_right_when_all_facts_were_shown(qid, shown):
    reply = read_by(qid, *shown)
    assert (reply.exact, reply.confidence, reply.citations) == ("1874", 100.0, ())
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
        ("text", [("d2", "Brel", "the Brel Star, 1874")]),
        ("text", [("d1", "Brel", "the Brel Star, 1875")]),
        ("left_out", [("d1", "Brel", "the Brel Star, 1874")]),
    ],
    ids=[
        "nothing", "other-text", "other-subject", "subject-not-the-title", "longer-number",
        "longer-count", "cut", "in-halves", "one-of-two", "one-of-two-hops",
        "other-document", "other-answer", "left-out",
    ],
)  # fmt: skip
def test_it_says_unknown_when_a_fact_was_not_shown(qid, shown):
    reply = read_by(qid, *shown)
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
    reader = SimulatedReader(NeededTexts({}, made.needed_facts, {}), made.answers)
    pages = {page.docid: ShownText(*page[:3]) for page in made.documents()}
    for topic in made.topics:
        needed = made.qrels["evidence"][topic.qid]
        shown = [pages[docid] for docid in needed]
        assert reader(topic.qid, shown).exact == made.answers[topic.qid][0]
        others = [text for docid, text in pages.items() if docid not in needed]
        assert reader(topic.qid, others).exact == "unknown"
        for left_out in needed:
            rest = [text for docid, text in pages.items() if docid != left_out]
            assert reader(topic.qid, rest).exact == "unknown"


def run_with(reader, made, tool=None):
    pages = {page.docid: page for page in made.documents()}
    backend = WordBackend({docid: f"{page.title} {page.text}" for docid, page in pages.items()})
    bound = KeywordAgent().bind(RunResources(Budget(), reader=reader))
    store = store_of(pages)
    return [
        asyncio.run(bound.run(topic, (tool or RankedBrowsing()).open(backend, store)))
        for topic in made.topics
    ]


def test_the_search_is_the_same_whatever_the_reader_knows():
    made = world()
    true = SimulatedReader(NeededTexts({}, made.needed_facts, {}), made.answers)
    shuffled = [*made.needed_facts.values()][1:] + [*made.needed_facts.values()][:1]
    others = dict(zip(made.needed_facts, shuffled, strict=True))
    false = SimulatedReader(NeededTexts({}, others, {}), {qid: ["nothing"] for qid in others})

    def calls(trajectories):
        return [
            [(call.name, call.arguments, call.output) for call in each.calls]
            for each in trajectories
        ]

    simulated = run_with(true, made)
    assert calls(simulated) == calls(run_with(false, made))
    assert calls(simulated) == calls(run_with(None, made))
    assert [each.answer for each in simulated] == [each.answer for each in run_with(true, made)]
    right = [each.answer.exact == made.answers[each.qid][0] for each in simulated]
    assert any(right) and not all(right)


@pytest.mark.parametrize(
    "tool",
    [
        RankedBrowsing(),
        RankedBrowsing(read_limit=2, excerpt_characters=60),
        TopK(max_tokens=40),
        TopK(max_tokens=40, get_document=True, max_bytes=200),
        TopK(max_tokens=None),
    ],
    ids=["browsing", "short-pages", "cut", "paged", "whole"],
)
@pytest.mark.parametrize("hops", [1, 2])
def test_it_is_right_exactly_if_the_record_of_its_calls_shows_all_facts(tool, hops):
    made = world(hops=hops)
    reader = SimulatedReader(NeededTexts({}, made.needed_facts, {}), made.answers)
    measured = evaluate_run(run_with(reader, made, tool=tool), made).per_question
    assert len(measured["accuracy"]) == 12
    assert measured["answer_shown"] == measured["accuracy"] == measured["label_right"]
    cut = isinstance(tool, TopK) and tool.max_tokens is not None
    assert any(measured["accuracy"].values()) or hops == 2 or cut


def test_the_pages_of_one_document_are_read_as_one_text():
    lines = ["fog"] * 4 + ["Brel Star left the yard", "in 1874."] + ["fog"] * 4
    store = store_of({"d1": Document("d1", "Brel Star", "\n".join(lines))})
    tool = RankedBrowsing(read_limit=5, excerpt="none").open(
        WordBackend({"d1": "Brel Star"}), store
    )
    agent = KeywordAgent().bind(RunResources(Budget(), reader=READER))
    given = asyncio.run(agent.run(Topic("one", "When did Brel Star leave?"), tool))
    assert [call.name for call in given.calls].count("read_document") == 2
    assert given.answer.exact == "1874"


@pytest.mark.parametrize("answers", [{}, {"q1": ["fog"]}])
def test_a_benchmark_without_answers_in_its_evidence_is_answered_by_unknown(capsys, answers):
    """A notice says so where the benchmark has answers, which a user expects to be scored."""
    topics = [Topic("q1", MILL)]
    benchmark = Benchmark("sets", topics=topics, qrels={"evidence": {}}, answers=answers)
    reader = simulated_reader(KeywordAgent(), benchmark, lambda docids: ())
    assert reader("q1", [ShownText("d1", "", "fog")]).exact == "unknown"
    assert ("has no answer that stands in the evidence" in capsys.readouterr().err) == bool(answers)
    assert asyncio.run(KeywordAgent().run(Topic("q1", MILL), ranked())).answer.exact == "unknown"
    assert simulated_reader(OneShotAgent(), benchmark, lambda docids: ()) is None
