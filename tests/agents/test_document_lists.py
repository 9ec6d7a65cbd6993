"""Agents that end in a list of documents: one search, a tool-calling model, a memory."""

from __future__ import annotations

import asyncio

import pytest
from support.benchmarks import SmallBenchmark
from support.llm_model import ScriptedModel, calling, saying
from support.search import store_of

from soundingline.agents.base import Budget, RunResources
from soundingline.agents.baselines import ClosedBookAgent, OneShotAgent
from soundingline.agents.chat import ChatAgent
from soundingline.agents.prompt import load_prompt
from soundingline.toolkit.corpus.resolve import Resolver
from soundingline.toolkit.data import Document, Hit, SearchResult, Topic
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.evaluation.agent_run import evaluate_run
from soundingline.toolkit.search import Literature, RankedBrowsing, TopK
from soundingline.toolkit.search.answers import follows_format, list_part, parse_answer

TITLES = {
    "m1": "Grenholm Mill",
    "m2": "Mill of Aldbrook",
    "m3": "The Twin Mill",
    "m4": "The Twin Mill",
    "m5": "Water Mill of Tarn, lower",
}
STORE = store_of({docid: Document(docid, title, title) for docid, title in TITLES.items()})
RESOLVER = Resolver(
    Document(docid, title, "", f"http://x/{docid}") for docid, title in TITLES.items()
)
TOPIC = Topic("q", "Which mills stand in Brel?")


class Ranked:
    """Ranks units as it is told, whatever the query."""

    def __init__(self, *unit_ids: str) -> None:
        self.unit_ids = unit_ids

    def search(self, request):
        hits = [
            Hit(unit_id.partition("%")[0], unit_id, rank, -float(rank))
            for rank, unit_id in enumerate(self.unit_ids, start=1)
        ]
        return SearchResult(hits)


def one_shot(*unit_ids, tool=None, listed=50):
    session = (tool or RankedBrowsing()).open(Ranked(*unit_ids), STORE)
    return asyncio.run(OneShotAgent(listed=listed).run(TOPIC, session))


@pytest.mark.parametrize("tool", [TopK(k=3), RankedBrowsing(page=1, browse_page=1), Literature()])
def test_one_search_lists_its_whole_ranking_by_any_interface(tool):
    trajectory = one_shot("m3", "m1", "m2", tool=tool)
    assert (trajectory.status, len(trajectory.calls)) == ("completed", 1)
    assert trajectory.answer.documents == ("m3", "m1", "m2")
    assert trajectory.calls[0].arguments["query"] == TOPIC.text


def test_a_ranking_of_passages_lists_each_document_once_at_its_best_rank():
    ranked = ("m3%p1", "m1%p0", "m3%p0")
    passages = store_of(dict.fromkeys(TITLES, "x"), dict.fromkeys(ranked, "x"))
    session = RankedBrowsing().open(Ranked(*ranked), passages)
    trajectory = asyncio.run(OneShotAgent(listed=2).run(TOPIC, session))
    assert not trajectory.traceback
    assert trajectory.answer.documents == ("m3", "m1")
    assert one_shot("m1", "m2", "m3", listed=2).answer.documents == ("m1", "m2")


def test_a_search_that_is_refused_or_finds_nothing_lists_nothing():
    assert one_shot().answer.documents == ()
    session = TopK().open(Ranked("m1"), STORE)
    trajectory = asyncio.run(OneShotAgent().run(Topic("q", "x" * 20_000), session))
    assert (trajectory.status, trajectory.reason) == ("steered", "no_answer")
    assert trajectory.answer.documents == () and trajectory.calls[0].error == "too_long"
    with pytest.raises(InputError, match="listed"):
        OneShotAgent(listed=0)


def chat(*steps):
    model = ScriptedModel(*steps)  # type: ignore[arg-type]
    agent = ChatAgent(model=model, prompt="document_list", remind=True)
    session = RankedBrowsing().open(Ranked("m3", "m1", "m2"), STORE)
    return model, asyncio.run(agent.run(TOPIC, session))


def test_a_tool_calling_model_ends_in_a_list_of_what_it_was_shown():
    final = "Explanation: all but one\nConfidence: 80%\nDocuments: [m2] [invented7] [m1]"
    _, trajectory = chat(calling(), saying(final))
    assert trajectory.answer.documents == ("m2", "m1")
    assert (trajectory.answer.explanation, trajectory.answer.confidence) == ("all but one", 80)
    assert trajectory.status == "completed"


@pytest.mark.parametrize(
    "unlisted",
    [
        "It is Grenholm Mill.",
        "Explanation: x\nExact Answer: Grenholm Mill\nConfidence: 9%",
        "Explanation: x\nDocuments:\nConfidence: 9%",
        "Documents: [docid] [docid] and so on, the surest first",
    ],
)
def test_a_model_that_lists_nothing_is_reminded_in_the_words_of_the_list(unlisted):
    model, trajectory = chat(calling(), saying(unlisted), saying("Documents: [m1]"))
    assert trajectory.answer.documents == ("m1",)
    assert "Documents:" in model.requests[-1].messages[-1]["content"]


def test_a_list_that_is_empty_on_purpose_is_an_answer():
    _, trajectory = chat(calling(), saying("Explanation: none fits\nDocuments: none"))
    assert trajectory.status == "completed" and trajectory.answer.documents == ()
    assert not any(message.get("demand") for message in trajectory.messages)


def test_prompts_say_whether_they_end_in_a_list():
    lists = {name: load_prompt(name).asks_for_list for name in ("pi_serini", "closed_book")}
    assert lists == {"pi_serini": False, "closed_book": False}
    assert load_prompt("document_list").asks_for_list
    assert load_prompt("closed_book_list").asks_for_list
    assert follows_format("Exact Answer: x") and not follows_format("Exact Answer: x", listed=True)


def test_a_list_may_stand_on_many_lines_and_anywhere_among_the_labels():
    text = "**Documents:**\n1. [m2]\n2. [m1]\n\nConfidence: 40%\nExplanation: see [m3]"
    answer = parse_answer(text, set(TITLES))
    assert (answer.documents, answer.confidence) == (("m2", "m1"), 40)
    assert list_part(text) == "1. [m2]\n2. [m1]"
    assert list_part("no list at all") is None


def recall_from_memory(text, resolver=RESOLVER):
    resources = RunResources(Budget(), model=ScriptedModel(saying(text)))
    if resolver is not None:
        resources = RunResources(Budget(), model=resources.model, resolver=lambda: resolver)
    agent = ClosedBookAgent(prompt="closed_book_list").bind(resources)
    return asyncio.run(agent.run(TOPIC, RankedBrowsing().open(Ranked("m3"), STORE)))


MEMORY = """\
Explanation: as I recall
Confidence: 30%
**Documents:**
1. "Grenholm Mill" (1871)
2. A Treatise on Mills That Nobody Wrote
---
3. http://x/m2
4. The Twin Mill
5. Grenholm  MILL
"""


def test_what_a_model_remembers_is_resolved_and_the_rest_is_hallucinated():
    trajectory = recall_from_memory(MEMORY)
    # The fourth is the title of two documents, and the fifth is the first again.
    expected = ("m1", "unresolved:2", "m2", "m3", "m4")
    assert trajectory.answer.documents == expected
    assert len(trajectory.calls) == 0 and not trajectory.tiers["previewed"]
    judged = {"evidence": {"q": {"m1": 1, "m2": 1}}}
    benchmark = SmallBenchmark([TOPIC], judged, docids=list(TITLES), sets=True)
    evaluation = evaluate_run([trajectory], benchmark)
    assert evaluation.metrics["hallucination_rate"] == 0.2
    assert evaluation.metrics["P@1"] == 1.0 and evaluation.metrics["R@5"] == 1.0
    assert evaluation.metrics["P@5"] == pytest.approx(2 / 5)


@pytest.mark.parametrize(
    ("count", "documents", "rate"),
    [
        (1, ["t0"], 0.5),
        (2, ["t0", "t1"], 1 / 3),
        (3, ["t0", "t1", "t2"], 1 / 4),
        (4, ["ambiguous:1"], 0.5),
    ],
)
def test_a_title_of_several_documents_is_not_hallucinated(count, documents, rate):
    titles = {f"t{number}": "Annual Report" for number in range(count)}
    resolver = Resolver(Document(docid, title, "") for docid, title in titles.items())
    trajectory = recall_from_memory("Documents:\nAnnual Report\nA Book of Nobody's", resolver)
    assert list(trajectory.answer.documents) == [*documents, "unresolved:2"]
    judged = {"evidence": {"q": {"t0": 1}}}
    benchmark = SmallBenchmark([TOPIC], judged, docids=list(titles), sets=True)
    evaluation = evaluate_run([trajectory], benchmark)
    assert evaluation.metrics["hallucination_rate"] == pytest.approx(rate)
    # One of them is the target; what nobody can tell apart is wrong.
    assert evaluation.metrics["P@1"] == (1.0 if count <= 3 else 0.0)
    assert evaluation.metrics["documents_returned"] == len(documents) + 1


@pytest.mark.parametrize("nothing", ["Documents: none", "Documents: N/A.", "Documents:\n\n", "no"])
def test_a_memory_without_any_document_hallucinates_none(nothing):
    assert recall_from_memory(f"Explanation: x\n{nothing}").answer.documents == ()


def test_free_text_is_a_document_by_a_resolver_alone():
    assert recall_from_memory(MEMORY, None).answer.documents == ()
    blocked = ScriptedModel(calling(), saying(MEMORY))
    agent = ClosedBookAgent(prompt="closed_book_list").bind(
        RunResources(Budget(), model=blocked, resolver=lambda: RESOLVER)
    )
    trajectory = asyncio.run(agent.run(TOPIC, RankedBrowsing().open(Ranked("m3"), STORE)))
    assert trajectory.calls[0].error == "blocked"
    assert trajectory.answer.documents[0] == "m1"
