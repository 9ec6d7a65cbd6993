"""Rewriters: columns and notes, which stage sees which query, HyDE, and trajectories."""

import asyncio
import doctest
import json

import pandas as pd
import pyterrier as pt
import pytest
from support.benchmarks import store_of
from support.llm_model import (
    ANSWER,
    QuestionModel,
    ScriptedModel,
    ScriptedPrompts,
    asking,
    calling,
    frame,
    saying,
    search,
    used,
)

from soundingline.agents.chat import ChatAgent
from soundingline.agents.keyword import KeywordAgent
from soundingline.pipelines import rewrite
from soundingline.pipelines.backend import PipelineBackend
from soundingline.pipelines.compose import MaxP, WithQuery, compose
from soundingline.pipelines.enrich.llm_phrases import ModelText
from soundingline.pipelines.enrich.phrases import QueryContext
from soundingline.pipelines.lexical.index import LexicalIndex
from soundingline.pipelines.q2q import Q2Q
from soundingline.pipelines.retrieve import BM25
from soundingline.pipelines.rewrite import HyDE, Rewriter, RewrittenQuery
from soundingline.pipelines.stage import Collection, search_notes
from soundingline.toolkit.data import SearchRequest, Topic, Unit
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.llm.errors import AuthenticationFailed, Refused
from soundingline.toolkit.llm.ledger import Ledger
from soundingline.toolkit.llm.prices import Price
from soundingline.toolkit.search import RankedBrowsing
from soundingline.toolkit.trajectory import Trajectory, dump_trajectory, read_trajectory


class Shouting(Rewriter):
    """Rewrites without a model."""

    def __post_init__(self):
        super().__post_init__()
        self.requests = []

    def rewrite(self, queries):
        self.requests += queries
        return [RewrittenQuery(query.text.upper(), {"of": len(query.text)}) for query in queries]


def test_the_example_of_a_rewriter_of_ones_own_runs():
    results = doctest.testmod(rewrite)
    assert results.attempted > 0 and results.failed == 0


def test_the_query_before_it_is_query_0_and_everything_else_stays():
    inp = (
        frame("king", "queen", reasoning=["a", "b"])
        .assign(other=[1, 2])
        .set_index(pd.Index([9, 9]))
    )
    with search_notes() as notes:
        out = Shouting(apply_to="retriever")(inp)
    assert out.to_dict("list") == {
        "qid": ["q1", "q2"],
        "query_0": ["king", "queen"],
        "reasoning": ["a", "b"],
        "other": [1, 2],
        "query": ["KING", "QUEEN"],
    }
    assert list(inp.columns) == ["qid", "query", "reasoning", "other"]
    pair = {"raw": "king", "rewritten": "KING", "apply_to": "retriever"}
    assert notes["rewrite"] == {**pair, "of": 4}


def test_older_queries_move_on_as_pyterriers_do():
    out = (Shouting() >> Shouting())(frame("king"))
    expected = pt.model.push_queries(pt.model.push_queries(frame("king"), keep_original=True))
    assert {*out.columns} == {*expected.columns, "query"} == {"qid", "query", "query_0", "query_1"}
    assert out[["query_1", "query_0", "query"]].iloc[0].tolist() == ["king", "KING", "KING"]


def test_a_ranking_is_asked_about_once_a_query_and_an_empty_frame_not_at_all():
    ranking = pd.DataFrame(
        {"qid": ["1", "1", "2"], "query": ["a", "a", "b"], "docno": ["x", "y", "x"], "score": 1.0}
    )
    rewriter = Shouting()
    out = rewriter(ranking)
    assert out["query"].tolist() == ["A", "A", "B"] and out["docno"].tolist() == ["x", "y", "x"]
    assert rewriter.requests == [QueryContext("a", "1"), QueryContext("b", "2")]
    model = QuestionModel()
    with asking(model) as llm:
        out = Q2Q(model=llm)(frame("king").iloc[:0])
    assert len(out) == 0 and set(out.columns) == {"qid", "query", "query_0"}
    assert model.requests == []


def test_pyterrier_can_inspect_it_without_asking_and_bad_frames_are_refused():
    columns = pt.inspect.transformer_outputs(Shouting(), ["qid", "query", "reasoning"])
    assert set(columns) == {"qid", "query", "query_0", "reasoning"}
    with pytest.raises(pt.validate.InputValidationError):
        Shouting()(pd.DataFrame({"qid": ["1"]}))
    for query in (None, float("nan"), 7):
        with pytest.raises(InputError, match=r"a query is .* valid: text"):
            Shouting()(frame("king", query))


def test_equal_rewriters_are_equal_stages():
    with asking(QuestionModel()) as llm:
        one, same = Q2Q(model=llm), Q2Q(model=llm)
        assert one == same and hash(one) == hash(same)
        assert one != Q2Q(model=llm, apply_to="retriever") and one != Q2Q(model=llm, max_words=9)


def test_what_happened_to_a_reply_is_noted_in_words():
    texts = ["", "Query: Who is king?", "It is long.\nToo long.", "What is it?"]
    expected = {
        "king": {"rewritten": "Who is king?", "retried": True, "cleaned": True, "reply": texts[1]},
        "queen": {"rewritten": "queen", "fell_back": "prose", "reply": texts[2]},
        "the 3rd": {"rewritten": "What is it?", "lost_numbers": ["3"]},
    }
    with asking(QuestionModel(*texts)) as llm:
        stage = Q2Q(model=llm, reasoning=True)
        for query, events in expected.items():
            with search_notes() as notes:
                stage(frame(query))
            always = {"raw": query, "apply_to": "both", "without_reasoning": True}
            assert notes["rewrite"] == {**always, **events}


RAW, NEW = "king spain", "Who is king of Spain?"
ONE = pd.DataFrame({"qid": ["7"], "query": [RAW]})


class Fixed(Rewriter):
    def rewrite(self, queries):
        return [
            RewrittenQuery(NEW if query.text == RAW else f"What is {query.text}?")
            for query in queries
        ]


class Recording(pt.Transformer):
    """Remembers its queries. Returns documents or, as a re-ranker, its input."""

    def __init__(self, reranks=False, keeps=True, found=2):
        self.reranks, self.keeps, self.found, self.queries = reranks, keeps, found, []

    def transform(self, inp):
        self.queries += list(dict.fromkeys(inp["query"]))
        if self.reranks:
            return inp.assign(score=-inp["score"])
        kept = inp if self.keeps else inp[["qid", "query"]]
        rows = [kept.assign(docno=f"d{n}%p0", score=float(n)) for n in range(self.found)]
        return pd.concat(rows or [kept.iloc[:0].assign(docno=[], score=[])], ignore_index=True)


SEES = {"both": (NEW, NEW), "retriever": (NEW, RAW), "reranker": (RAW, NEW)}


@pytest.mark.parametrize("aggregate", [False, True])
@pytest.mark.parametrize("keeps", [True, False], ids=["keeps", "drops"])
@pytest.mark.parametrize("reranks", [True, False])
@pytest.mark.parametrize("apply_to", SEES)
def test_each_stage_sees_the_query_that_is_for_it_and_the_ranking_keeps_both(
    apply_to, reranks, keeps, aggregate
):
    retriever, reranker = Recording(keeps=keeps), Recording(reranks=True)
    stages = {"reranker": reranker if reranks else None, "aggregate": aggregate}
    if apply_to == "reranker" and not reranks:
        with pytest.raises(InputError, match=r"for the re-ranker, and there is none.*apply_to"):
            compose(retriever, rewriter=Fixed(apply_to=apply_to), **stages)
        return
    pipeline = compose(retriever, rewriter=Fixed(apply_to=apply_to), **stages)
    ranking = pipeline(ONE.assign(reasoning="so"))
    first, second = SEES[apply_to]
    assert retriever.queries == [first]
    assert reranker.queries == [second] * reranks
    assert len(ranking) == 2
    assert set(ranking["query"]) == {NEW} and set(ranking["query_0"]) == {RAW}


def test_without_a_rewriter_stages_see_the_query_and_any_pyterrier_rewriter_is_for_both():
    other = pt.apply.query(lambda row: row["query"].upper())
    for rewriter, query in ((None, RAW), (other, RAW.upper())):
        retriever, reranker = Recording(), Recording(reranks=True)
        assert compose(retriever) is retriever
        ranking = compose(retriever, rewriter=rewriter, reranker=reranker)(ONE)
        assert retriever.queries == reranker.queries == [query]
        assert ("query_0" in ranking.columns) == (rewriter is not None)


def test_many_questions_keep_their_own_queries():
    retriever, reranker = Recording(), Recording(reranks=True)
    pipeline = compose(retriever, rewriter=Fixed(apply_to="retriever"), reranker=reranker)
    ranking = pipeline(pd.DataFrame({"qid": ["3", "1", "2"], "query": ["c", "a", "b"]}))
    assert reranker.queries == ["c", "a", "b"]
    pairs = set(zip(ranking["qid"], ranking["query_0"], ranking["query"], strict=True))
    assert pairs == {(qid, q, f"What is {q}?") for qid, q in zip("312", "cab", strict=True)}


@pytest.mark.parametrize("apply_to", SEES)
@pytest.mark.parametrize("found", [0, 2])
def test_a_search_has_both_queries_whether_it_finds_anything_or_not(apply_to, found):
    rewriter, reranker = Fixed(apply_to=apply_to), Recording(reranks=True)
    pipeline = compose(Recording(found=found), rewriter=rewriter, reranker=reranker)
    assert len(pipeline(ONE)) == found and len(pipeline(ONE.iloc[:0])) == 0
    result = PipelineBackend(pipeline).search(SearchRequest(RAW))
    assert len(result.hits) == found
    assert result.notes == {
        "rewrite": {"raw": RAW, "rewritten": NEW, "apply_to": apply_to},
        **({"query": NEW, "query_0": RAW} if found else {}),
    }


class Feedback(pt.Transformer):
    """Rewrites the query of a ranking itself, and pushes it, as PyTerrier's feedback does."""

    def transform(self, inp):
        out = pt.model.push_queries(inp.drop_duplicates("qid").drop(columns=["docno", "score"]))
        return out.assign(query=out["query_0"] + " more")


@pytest.mark.parametrize("apply_to", SEES)
def test_retrievers_with_feedback_and_fused_ones_do_not_mix_up_the_queries(apply_to):
    first, second = SEES[apply_to]
    begin, end, reranker = Recording(), Recording(), Recording(reranks=True)
    rewriter = Fixed(apply_to=apply_to)
    ranking = compose(begin >> Feedback() >> end, rewriter=rewriter, reranker=reranker)(ONE)
    assert (begin.queries, end.queries) == ([first], [f"{first} more"])
    assert reranker.queries == [second]
    assert set(ranking["query_0"]) == {RAW} and set(ranking["query"]) == {NEW}
    left, right, reranker = Recording(), Recording(found=3), Recording(reranks=True)
    ranking = compose(left + 2 * right, rewriter=rewriter, reranker=reranker)(ONE)
    assert left.queries == right.queries == [first] and reranker.queries == [second]
    assert len(ranking) == 3 and set(ranking["query_0"]) == {RAW}


def test_a_rewriter_that_keeps_no_query_is_refused():
    forgetful = pt.apply.generic(lambda queries: queries.assign(query="x"))
    with pytest.raises(InputError, match=r"receives no query_0.*as PyTerrier does"):
        compose(Recording(), rewriter=forgetful)(ONE)


def test_stages_with_a_query_compare_by_it():
    stage = MaxP()
    assert WithQuery(stage, "raw") == WithQuery(stage, "raw") != WithQuery(stage, "rewritten")
    assert hash(WithQuery(stage, "raw")) == hash(WithQuery(stage, "raw"))
    assert repr(WithQuery(stage, "raw")) == "WithQuery(MaxP(depth=None), 'raw')"
    with pytest.raises(InputError, match=r"query is 'both'\. valid: raw, rewritten"):
        WithQuery(stage, "both")


PASSAGE = "The lamp burns oil\nat the pier."
FRAME = pd.DataFrame({"qid": ["q1"], "query": ["tide table"]})


@pytest.fixture
def collection(tmp_path):
    units = [{"docno": "d0", "text": "tide table"}, {"docno": "d1", "text": "oil lamp"}]
    index = LexicalIndex.build(units, tmp_path / "index")
    return Collection("c", index=index, caches=tmp_path / "caches")


def test_the_passage_of_hyde_is_searched_and_shared_with_an_enrichment(collection):
    model = ScriptedPrompts(lambda prompt: PASSAGE)
    with_model = collection.with_model(model)
    pipeline = compose(BM25().bind(with_model), rewriter=HyDE().bind(with_model))
    with search_notes("q1") as notes:
        out = pipeline.transform(FRAME)
    assert out["docno"].tolist() == ["d1"] and out["query_0"].tolist() == ["tide table"]
    assert notes["rewrite"]["rewritten"] == "The lamp burns oil at the pier."
    assert notes["rewrite"]["apply_to"] == "retriever"
    ModelText().for_queries([QueryContext("tide table")], with_model)
    assert len(model.prompts) == 1


@pytest.mark.parametrize("answer", ["  \n", Refused("no")])
def test_without_a_passage_the_query_is_searched(collection, answer):
    stage = HyDE().bind(collection.with_model(ScriptedPrompts(lambda prompt: answer)))
    with search_notes("q1") as notes:
        assert stage.transform(FRAME)["query"].tolist() == ["tide table"]
    assert notes["rewrite"]["fell_back"]
    assert stage.counts["empty"] + stage.counts["refused"] == 1


def test_settings_of_hyde_are_checked(collection):
    for arguments, message in (
        ({"apply_to": "all"}, "apply_to is 'all'"),
        ({"task": "poem"}, "task is 'poem'"),
    ):
        with pytest.raises(InputError, match=message):
            HyDE(**arguments)
    with pytest.raises(InputError, match="is not bound"):
        HyDE().transform(FRAME)
    with pytest.raises(InputError, match="need one, and the collection has none"):
        HyDE().bind(collection).transform(FRAME)


TEXTS = {"mill": "Torvald Brekke built Grenholm Mill.", "king": "The king of Spain. What is what?"}


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    units = [Unit(docid, "", text) for docid, text in TEXTS.items()]
    path = tmp_path_factory.mktemp("trajectories") / "index"
    return LexicalIndex.build(units, path)


def written(trajectory, folder):
    """As it is read from its file."""
    path = folder / f"{trajectory.qid}.json"
    path.write_text(dump_trajectory(trajectory), encoding="utf-8")
    return read_trajectory(path)


def answered(agent, index, rewriter, qid="q1", question="Who built Grenholm Mill?"):
    return asyncio.run(agent.run(Topic(qid, question), session(index, rewriter, qid)))


def session(index, rewriter, qid):
    backend = PipelineBackend(compose(index.bm25(), rewriter=rewriter))
    return RankedBrowsing().open(backend.for_question(qid), store_of(TEXTS))


def notes(trajectory):
    return [call.notes.get("rewrite") for call in trajectory.calls if call.name == "search"]


def test_a_chat_agents_trajectory_holds_both_queries_and_the_rewriters_costs(index, tmp_path):
    ledger, model = Ledger(), QuestionModel()
    again = calling(search("xyzzy"), reasoning="a word that nobody wrote", usage=used())
    first = calling(search("Grenholm Mill"), reasoning="a mill in the north", usage=used())
    agent_model = ScriptedModel(first, again, again, saying(ANSWER, usage=used()))
    agent = ChatAgent(model=agent_model, ledger=ledger, price=Price(input=1.0, output=1.0))
    with asking(model, ledger=ledger) as llm:
        trajectory = answered(agent, index, Q2Q(model=llm, reasoning=True), "q7")
    stored = written(trajectory, tmp_path)
    assert stored.status == "completed"
    first, second, third = stored.calls
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


def test_a_search_that_finds_nothing_still_records_its_rewriting(index, tmp_path):
    with asking(QuestionModel("Xyzzy plugh?")) as llm:
        tool = session(index, Q2Q(model=llm), "q1")
        result = tool.call("search", {"reason": "", "query": "xyzzy"})
    pair = {"raw": "xyzzy", "rewritten": "Xyzzy plugh?", "apply_to": "both"}
    assert result.call.ranking == ()
    record = json.loads(dump_trajectory(Trajectory("q1", "?", "completed", calls=tool.calls)))
    assert record["calls"][0]["notes"] == {"rewrite": pair}


def test_an_agent_of_rules_has_its_queries_rewritten_too(index, tmp_path):
    with asking(QuestionModel()) as llm:
        stage = Q2Q(model=llm, reasoning=True)
        trajectory = answered(KeywordAgent(), index, stage)
    stored = notes(written(trajectory, tmp_path))
    assert stored and all(each["rewritten"] == f"What is {each['raw']}?" for each in stored)
    assert stage.counts["without_reasoning"] == len(stored)


def test_ten_agents_at_once_have_their_own_reasoning_in_their_own_rewritings(index, tmp_path):
    """Agents share the index, the rewriter and its model; they ask for the same at the same time,
    and each thinks of something else."""

    def think(messages, settings):
        about = messages[1]["content"].split()[-1]
        turn = sum(message["role"] == "assistant" for message in messages)
        if turn == 4:
            return saying(ANSWER)
        return calling(search(f"Grenholm {turn}"), reasoning=f"{about} thought {turn}")

    ledger, model = Ledger(), QuestionModel(seconds=0.005)
    agent = ChatAgent(model=QuestionModel(choose=think, seconds=0.005), ledger=ledger)
    topics = [Topic(f"q{n}", f"What of topic-{n}") for n in range(10)]

    async def all_at_once(stage):
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
    assert len({each.messages[0]["content"] for each in model.requests}) == 40
    assert len(model.requests) == 40


def test_a_rewriter_that_is_refused_or_has_no_money_ends_the_question_as_the_agent_would(index):
    agent = ChatAgent(model=ScriptedModel(calling(search("Grenholm Mill")), saying()))
    with asking(QuestionModel(AuthenticationFailed("wrong key"))) as llm:
        trajectory = answered(agent, index, Q2Q(model=llm))
    assert (trajectory.status, trajectory.reason) == ("failed", "authentication_failed")
    # The agent's turns are cheap: it is the second rewriting that the cap does not bear.
    price, ledger = Price(input=1.0, output=1.0), Ledger(question_cap=200 / 1e6)
    turns = [calling(search(f"mill {n}"), usage=used(9, 1)) for n in range(9)]
    agent = ChatAgent(model=ScriptedModel(*turns), ledger=ledger, price=price)
    model = QuestionModel()
    with asking(model, ledger=ledger) as llm:
        trajectory = answered(agent, index, Q2Q(model=llm))
    assert (trajectory.status, trajectory.reason) == ("out_of_money", "dollars")
    assert (len(trajectory.calls), trajectory.usage["agent_calls"]) == (1, 2)
    assert model.queries == ["mill 0"]
