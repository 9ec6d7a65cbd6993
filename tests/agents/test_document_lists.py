"""Agents that end in a list of documents: one search, a tool-calling model, a memory."""

import asyncio

import pytest
from support.agents import bound
from support.benchmarks import SmallBenchmark, store_of
from support.llm_model import ScriptedModel, calling, saying
from support.runs import ended

from soundingline.agents.base import Budget, RunResources
from soundingline.agents.baselines import ClosedBookAgent, OneShotAgent
from soundingline.agents.prompt import load_prompt
from soundingline.toolkit.corpus.resolve import Resolver
from soundingline.toolkit.data import Document, Hit, SearchResult, Topic, parent
from soundingline.toolkit.evaluation.agent_run import evaluate_run
from soundingline.toolkit.search import Literature, RankedBrowsing, TopK
from soundingline.toolkit.search.answers import follows_format

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
    """Ranks these units, whatever the query."""

    def __init__(self, *unit_ids):
        self.unit_ids = unit_ids

    def search(self, request):
        ranked = enumerate(self.unit_ids, start=1)
        return SearchResult([Hit(parent(u), u, rank, -float(rank)) for rank, u in ranked])


def one_shot(*unit_ids, tool=None, store=STORE, topic=TOPIC, **settings):
    session = (tool or RankedBrowsing()).open(Ranked(*unit_ids), store)
    return asyncio.run(OneShotAgent(**settings).run(topic, session))


@pytest.mark.parametrize("tool", [TopK(k=3), RankedBrowsing(page=1, browse_page=1), Literature()])
def test_one_search_lists_its_complete_ranking_by_any_interface(tool):
    trajectory = one_shot("m3", "m1", "m2", tool=tool)
    assert (trajectory.status, len(trajectory.calls)) == ("completed", 1)
    assert trajectory.answer.documents == ("m3", "m1", "m2")
    assert trajectory.calls[0].arguments["query"] == TOPIC.text


def test_one_search_lists_each_document_once_up_to_its_limit_or_nothing():
    ranked = ("m3%p1", "m1%p0", "m3%p0")
    passages = store_of(dict.fromkeys(TITLES, "x"), dict.fromkeys(ranked, "x"))
    assert one_shot(*ranked, store=passages, listed=2).answer.documents == ("m3", "m1")
    assert one_shot("m1", "m2", "m3", listed=2).answer.documents == ("m1", "m2")
    assert one_shot().answer.documents == ()
    trajectory = one_shot("m1", tool=TopK(), topic=Topic("q", "x" * 20_000))
    assert ended(trajectory) == ("steered", "no_answer")
    assert trajectory.answer.documents == () and trajectory.calls[0].error == "too_long"


@pytest.mark.parametrize(
    ("steps", "documents", "reminded"),
    [
        (
            ["Explanation: all but one\nConfidence: 80%\nDocuments: [m2] [invented7] [m1]"],
            *(("m2", "m1"), False),
        ),
        (["Explanation: none fits\nDocuments: none"], (), False),
        (["It is Grenholm Mill.", "Documents: [m1]"], ("m1",), True),
        (["Exact Answer: Grenholm Mill\nConfidence: 9%", "Documents: [m1]"], ("m1",), True),
        (["Explanation: x\nDocuments:\nConfidence: 9%", "Documents: [m1]"], ("m1",), True),
        (
            ["Documents: [docid] [docid] and so on, the surest first", "Documents: [m1]"],
            ("m1",),
            True,
        ),
    ],
    ids=["list", "none", "prose", "answer", "empty", "placeholder"],
)
def test_a_tool_calling_model_ends_in_a_list_of_what_it_was_shown(steps, documents, reminded):
    model = ScriptedModel(calling(), *map(saying, steps))
    agent = bound(model, prompt="document_list", remind=True)
    session = RankedBrowsing().open(Ranked("m3", "m1", "m2"), STORE)
    trajectory = asyncio.run(agent.run(TOPIC, session))
    assert trajectory.status == "completed" and trajectory.answer.documents == documents
    demands = [message for message in trajectory.messages if message.get("demand")]
    assert ["Documents:" in message["content"] for message in demands] == [True] * reminded


def test_formats_and_prompts_of_lists():
    lists = ("pi_serini", "closed_book", "document_list", "closed_book_list")
    assert [load_prompt(name).asks_for_list for name in lists] == [False, False, True, True]
    assert follows_format("Exact Answer: x") and not follows_format("Exact Answer: x", listed=True)


def recall_from_memory(*steps, resolver=RESOLVER):
    resources = RunResources(
        Budget(), model=ScriptedModel(*steps), resolver=resolver and (lambda: resolver)
    )
    agent = ClosedBookAgent(prompt="closed_book_list").bind(resources)
    return asyncio.run(agent.run(TOPIC, RankedBrowsing().open(Ranked("m3"), STORE)))


def metrics(trajectory, relevant, docids):
    judged = {"evidence": {"q": dict.fromkeys(relevant, 1)}}
    benchmark = SmallBenchmark([TOPIC], judged, docids=list(docids), sets=True)
    return evaluate_run([trajectory], benchmark).metrics


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
    trajectory = recall_from_memory(saying(MEMORY))
    # The fourth is the title of two documents, and the fifth is the first again.
    assert trajectory.answer.documents == ("m1", "unresolved:2", "m2", "m3", "m4")
    assert len(trajectory.calls) == 0 and not trajectory.tiers["previewed"]
    measured = metrics(trajectory, ["m1", "m2"], TITLES)
    expected = {"hallucination_rate": 0.2, "P@1": 1.0, "R@5": 1.0, "P@5": 2 / 5}
    assert {name: measured[name] for name in expected} == pytest.approx(expected)
    assert recall_from_memory(saying(MEMORY), resolver=None).answer.documents == ()
    blocked = recall_from_memory(calling(), saying(MEMORY))
    assert blocked.calls[0].error == "blocked" and blocked.answer.documents[0] == "m1"


@pytest.mark.parametrize(
    ("documents", "rate"),
    [(["t0"], 1 / 2), (["t0", "t1"], 1 / 3), (["t0", "t1", "t2"], 1 / 4), (["ambiguous:1"], 1 / 2)],
)
def test_a_title_of_several_documents_is_not_hallucinated(documents, rate):
    count = 4 if documents == ["ambiguous:1"] else len(documents)
    titles = {f"t{number}": "Annual Report" for number in range(count)}
    resolver = Resolver(Document(docid, title, "") for docid, title in titles.items())
    reply = saying("Documents:\nAnnual Report\nA Book of Nobody's")
    trajectory = recall_from_memory(reply, resolver=resolver)
    assert list(trajectory.answer.documents) == [*documents, "unresolved:2"]
    # One of them is the target; what nobody can tell apart is wrong.
    measured = metrics(trajectory, ["t0"], titles)
    assert measured["hallucination_rate"] == pytest.approx(rate)
    assert measured["P@1"] == (1.0 if count <= 3 else 0.0)
    assert measured["documents_returned"] == len(documents) + 1


@pytest.mark.parametrize("nothing", ["Documents: none", "Documents: N/A.", "Documents:\n\n", "no"])
def test_a_memory_without_any_document_hallucinates_none(nothing):
    assert recall_from_memory(saying(f"Explanation: x\n{nothing}")).answer.documents == ()
