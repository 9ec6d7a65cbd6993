"""From an agent's turn to the written trajectory: both queries are there, each with its own."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from question_model import QuestionModel, asking, query_of, replies, thoughts_of
from scripted_model import ANSWER, ScriptedModel, calling, saying, search, used

from agents.chat import ChatAgent
from agents.keyword import KeywordAgent
from pipelines.backend import PipelineBackend
from pipelines.composition import compose
from pipelines.lexical import LexicalIndex
from pipelines.rewrite.q2q import Q2Q
from pipelines.rewrite.stage import Rewriter
from toolkit.contracts import Topic, Trajectory, Unit
from toolkit.llm import Settings, Turn
from toolkit.llm.errors import AuthenticationFailed
from toolkit.llm.ledger import Ledger
from toolkit.llm.prices import Price
from toolkit.runs.records import dump_trajectory, read_trajectory
from toolkit.search import DictionaryStore, RankedBrowsing, RankedBrowsingSession

TEXTS = {"mill": "Torvald Brekke built Grenholm Mill.", "king": "The king of Spain. What is what?"}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> LexicalIndex:
    units = [Unit(docid, "", text) for docid, text in TEXTS.items()]
    path: Path = tmp_path_factory.mktemp("trajectories") / "index"
    return LexicalIndex.build(units, path, processes=1)


def written(trajectory: Trajectory, folder: Path) -> Trajectory:
    """As it is read from its file."""
    path = folder / f"{trajectory.qid}.json"
    path.write_text(dump_trajectory(trajectory), encoding="utf-8")
    return read_trajectory(path)


def session(index: LexicalIndex, rewriter: Rewriter, qid: str) -> RankedBrowsingSession:
    backend = PipelineBackend(compose(index.bm25(), rewriter=rewriter))
    return RankedBrowsing().session(backend.asked_by(qid), DictionaryStore(TEXTS))


def notes(trajectory: Trajectory) -> list[Any]:
    return [call.notes.get("rewrite") for call in trajectory.calls if call.name == "search"]


def test_a_chat_agents_trajectory_holds_both_queries_and_the_rewriters_costs(
    index: LexicalIndex, tmp_path: Path
) -> None:
    ledger, model = Ledger(), QuestionModel()
    agent_model = ScriptedModel(
        calling(search("Grenholm Mill"), reasoning="a mill in the north", usage=used()),
        calling(search("xyzzy"), reasoning="a word that nobody wrote", usage=used()),
        calling(search("xyzzy"), reasoning="a word that nobody wrote", usage=used()),
        saying(ANSWER, usage=used()),
    )
    price = Price(input=1.0, output=1.0)
    agent = ChatAgent(model=agent_model, ledger=ledger, price=price)
    with asking(model, ledger=ledger) as llm:
        tool = session(index, Q2Q(model=llm, reasoning=True), "q7")
        trajectory = asyncio.run(agent.run(Topic("q7", "Who built the mill?"), tool))
    stored = written(trajectory, tmp_path)
    assert stored.status == "completed"
    first, second, third = (call for call in stored.calls)
    rewritten = "What is Grenholm Mill when a mill in the north?"
    assert first.arguments["query"] == "Grenholm Mill"
    assert first.notes == {
        "query": rewritten,
        "query_0": "Grenholm Mill",
        "rewrite": {"raw": "Grenholm Mill", "rewritten": rewritten, "apply_to": "both"},
    }
    assert set(first.ranking) == {"mill", "king"}  # The rewritten words rank: "what", "is".
    unfound = "What is xyzzy when a word that nobody wrote?"
    assert second.notes["rewrite"]["rewritten"] == unfound
    assert third.notes == second.notes
    assert rewritten not in first.output and unfound not in second.output
    assert model.queries == ["Grenholm Mill", "xyzzy"]
    assert (stored.usage["rewriter_calls"], stored.usage["agent_calls"]) == (2, 4)
    assert stored.usage["dollars"] == pytest.approx(6 * 110 / 1e6)


def test_a_search_that_finds_nothing_still_records_its_rewriting(
    index: LexicalIndex, tmp_path: Path
) -> None:
    with asking(QuestionModel(replies("Xyzzy plugh?"))) as llm:
        tool = session(index, Q2Q(model=llm), "q1")
        result = tool.call("search", {"reason": "", "query": "xyzzy"})
    pair = {"raw": "xyzzy", "rewritten": "Xyzzy plugh?", "apply_to": "both"}
    assert result.call.ranking == ()
    record = json.loads(dump_trajectory(Trajectory("q1", "?", "completed", calls=tool.calls)))
    assert record["calls"][0]["notes"] == {"rewrite": pair}


def test_an_agent_of_rules_has_its_queries_rewritten_too(
    index: LexicalIndex, tmp_path: Path
) -> None:
    agent = KeywordAgent()
    with asking(QuestionModel()) as llm:
        stage = Q2Q(model=llm, reasoning=True)
        tool = session(index, stage, "q1")
        trajectory = asyncio.run(agent.run(Topic("q1", "Who built Grenholm Mill?"), tool))
    stored = notes(written(trajectory, tmp_path))
    assert stored and all(each["rewritten"] == f"What is {each['raw']}?" for each in stored)
    assert stage.counts["without_reasoning"] == len(stored)


def test_ten_agents_at_once_have_their_own_reasoning_in_their_own_rewritings(
    index: LexicalIndex, tmp_path: Path
) -> None:
    """Agents share the index, the rewriter and its model; they ask for the same at the same time,
    and each thinks of something else."""

    class Thinking(ScriptedModel):
        """Thinks of its question and turn, searches twice, then answers."""

        def __init__(self) -> None:
            super().__init__(choose=self._think)

        async def respond(self, *arguments: Any) -> Turn:
            await asyncio.sleep(0.005)
            return await super().respond(*arguments)

        @staticmethod
        def _think(messages: Any, settings: Settings) -> Turn:
            about = messages[1]["content"].split()[-1]
            turn = sum(message["role"] == "assistant" for message in messages)
            if turn == 4:
                return saying(ANSWER)
            return calling(search(f"Grenholm {turn}"), reasoning=f"{about} thought {turn}")

    ledger, model = Ledger(), QuestionModel(seconds=0.005)
    agent = ChatAgent(model=Thinking(), ledger=ledger)
    topics = [Topic(f"q{n}", f"What of topic-{n}") for n in range(10)]

    async def all_at_once(stage: Rewriter) -> list[Trajectory]:
        runs = (agent.run(topic, session(index, stage, topic.qid)) for topic in topics)
        return list(await asyncio.gather(*runs))

    with asking(model, ledger=ledger) as llm:
        trajectories = asyncio.run(all_at_once(Q2Q(model=llm, reasoning=True)))
    for number, trajectory in enumerate(trajectories):
        stored = notes(written(trajectory, tmp_path))
        assert [each["rewritten"] for each in stored] == [
            f"What is Grenholm {turn} when topic-{number} thought {turn}?" for turn in range(4)
        ]
        assert trajectory.usage["rewriter_calls"] == 4
    asked = {(query_of(each.messages), thoughts_of(each.messages)) for each in model.requests}
    assert len(asked) == len(model.requests) == 40


def test_a_rewriter_that_nobody_lets_in_fails_the_question_by_name(index: LexicalIndex) -> None:
    agent = ChatAgent(model=ScriptedModel(calling(search("Grenholm Mill")), saying()))
    with asking(QuestionModel(replies(AuthenticationFailed("wrong key")))) as llm:
        tool = session(index, Q2Q(model=llm), "q1")
        trajectory = asyncio.run(agent.run(Topic("q1", "Who?"), tool))
    assert (trajectory.status, trajectory.reason) == ("failed", "authentication_failed")


def test_a_rewriter_without_money_ends_the_question_as_the_agent_would(index: LexicalIndex) -> None:
    # The agent's turns are cheap: it is the second rewriting that the cap does not bear.
    price, ledger = Price(input=1.0, output=1.0), Ledger(question_cap=200 / 1e6)
    turns = [calling(search(f"mill {n}"), usage=used(9, 1)) for n in range(9)]
    agent = ChatAgent(model=ScriptedModel(*turns), ledger=ledger, price=price)
    model = QuestionModel()
    with asking(model, ledger=ledger) as llm:
        tool = session(index, Q2Q(model=llm), "q1")
        trajectory = asyncio.run(agent.run(Topic("q1", "Who?"), tool))
    assert (trajectory.status, trajectory.reason) == ("out_of_money", "dollars")
    assert (len(trajectory.calls), trajectory.usage["agent_calls"]) == (1, 2)
    assert model.queries == ["mill 0"]
