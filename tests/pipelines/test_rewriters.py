"""Rewriters: columns and notes, which stage sees which query, HyDE, and trajectories. Queries to
questions: prompts, reading, second tries, fall-backs, cache, counts, and threads."""

import asyncio
import doctest
import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import pandas as pd
import pyterrier as pt
import pytest
from support.agents import bound
from support.assertions import refused, until
from support.benchmarks import store_of
from support.commands import run_command
from support.llm_model import (
    ANSWER,
    QuestionModel,
    ScriptedModel,
    ScriptedPrompts,
    asking,
    calling,
    frame,
    part_of,
    question,
    rewriter_llm,
    saying,
    search,
    used,
)

from soundingline.agents.keyword import KeywordAgent
from soundingline.pipelines import rewrite
from soundingline.pipelines.backend import PipelineBackend
from soundingline.pipelines.compose import MaxP, WithQuery, compose
from soundingline.pipelines.enrich.llm_phrases import ModelText
from soundingline.pipelines.lexical.index import LexicalIndex
from soundingline.pipelines.prompting import PROMPTS
from soundingline.pipelines.q2q import Q2Q, HyDE, lost_numbers
from soundingline.pipelines.retrieve import BM25
from soundingline.pipelines.rewrite import QueryContext, ReasoningQuery, Rewriter, RewrittenQuery
from soundingline.pipelines.stage import Collection, search_notes
from soundingline.toolkit.data import SearchRequest, Topic, Unit
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.llm import SamplingParams, Turn
from soundingline.toolkit.llm.errors import (
    AuthenticationFailed,
    BadRequest,
    ContextOverflow,
    OutOfMoney,
    OutOfQuota,
    Refused,
    ServerGone,
    Truncated,
)
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


def test_what_happened_to_a_reply_is_noted_in_words():
    texts = ["", "Who is king?", "", "Who is Robert Gray", "What is it?"]
    twice = {"retried": True, "fell_back": "copied", "reply": texts[3]}
    expected = {
        "king": {"rewritten": "Who is king?", "retried": True},
        "queen": {"rewritten": "queen", **twice},
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


def test_the_reasoning_is_put_before_the_query_as_agentir_does(tmp_path):
    """format_reasoning_query in searcher/prompts.py of texttron/AgentIR at 24d9078."""
    stage = ReasoningQuery()
    with search_notes() as notes:
        out = stage(frame("king {reasoning}", "queen", reasoning=["of chess\n{query}", " "]))
    assert out["query"].tolist() == [
        "Reasoning: of chess\n{query}\n\nQuery: king {reasoning}",
        "Reasoning: Empty\n\nQuery: queen",
    ]
    assert out["query_0"].tolist() == ["king {reasoning}", "queen"]
    assert [row.get("without_reasoning") for row in (notes["rewrite"], notes["rewrite_2"])] == [
        *(None, True)
    ]
    assert stage.apply_to == "retriever" and not stage.needs_llm
    own = tmp_path / "own.txt"
    own.write_text("{query} ({reasoning})")
    other = ReasoningQuery(prompt=str(own))
    assert other(frame("king", reasoning=["of chess"]))["query"].tolist() == ["king (of chess)"]
    assert other.fingerprint != stage.fingerprint == ReasoningQuery().fingerprint


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
    else:
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


def test_stages_with_a_query_name_it():
    stage = MaxP()
    assert repr(WithQuery(stage, "raw")) == "WithQuery(MaxP(depth=None), 'raw')"


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
    with search_notes() as notes:
        out = pipeline.transform(FRAME)
    assert out["docno"].tolist() == ["d1"] and out["query_0"].tolist() == ["tide table"]
    assert notes["rewrite"]["rewritten"] == "The lamp burns oil at the pier."
    assert notes["rewrite"]["apply_to"] == "retriever"
    ModelText().for_queries([QueryContext("tide table")], with_model)
    assert len(model.prompts) == 1


@pytest.mark.parametrize("answer", ["  \n", Refused("no")])
def test_without_a_passage_the_query_is_searched(collection, answer):
    stage = HyDE().bind(collection.with_model(ScriptedPrompts(lambda prompt: answer)))
    with search_notes() as notes:
        assert stage.transform(FRAME)["query"].tolist() == ["tide table"]
    assert notes["rewrite"]["fell_back"]
    assert stage.counts["empty"] + stage.counts["refused"] == 1


def test_hyde_needs_a_collection_and_a_model(collection):
    refused("is not bound", lambda: HyDE().transform(FRAME))
    with pytest.raises(InputError, match="ModelText asks a language model, and there is none"):
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
    agent = bound(agent_model, ledger=ledger, price=Price(input=1.0, output=1.0))
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
    assert len(stored) > 1 and stage.counts["without_reasoning"] == 0
    question = trajectory.question  # the agent's reasoning is the question, and why it asks
    for each in stored:
        assert each["rewritten"].startswith(
            f"What is {each['raw']} when The question is: {question}"
        )


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
    agent = bound(QuestionModel(choose=think, seconds=0.005), ledger=ledger)
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
    agent = bound(ScriptedModel(calling(search("Grenholm Mill")), saying()))
    with asking(QuestionModel(AuthenticationFailed("wrong key"))) as llm:
        trajectory = answered(agent, index, Q2Q(model=llm))
    assert (trajectory.status, trajectory.reason) == ("failed", "authentication_failed")
    # The agent's turns are cheap: it is the second rewriting that the cap does not bear.
    price, ledger = Price(input=1.0, output=1.0), Ledger(question_cap=200 / 1e6)
    turns = [calling(search(f"mill {n}"), usage=used(9, 1)) for n in range(9)]
    agent = bound(ScriptedModel(*turns), ledger=ledger, price=price)
    model = QuestionModel()
    with asking(model, ledger=ledger) as llm:
        trajectory = answered(agent, index, Q2Q(model=llm))
    assert (trajectory.status, trajectory.reason) == ("out_of_money", "dollars")
    assert (len(trajectory.calls), trajectory.usage["agent_calls"]) == (1, 2)
    assert model.queries == ["mill 0"]


# Queries to questions.

KING = "What is a king?"


def rewritten(stage, *queries, **columns):
    return stage(frame(*queries, **columns))["query"].tolist()


def counted(stage):
    """The counts that are not zero, without the tokens of replies."""
    counts = stage.counts.items()
    return {name: count for name, count in counts if count and not name.startswith("reply_")}


def sent(model, part="query"):
    return [part_of(request.messages, part) for request in model.requests]


# What is asked.


@pytest.mark.parametrize("reasoning", [False, True])
def test_the_prompt_has_the_query_and_with_reasoning_the_reasoning(reasoning):
    model = QuestionModel()
    with asking(model) as llm:
        stage = Q2Q(model=llm, reasoning=reasoning)
        (written,) = rewritten(stage, "61,880", reasoning=["of a match"])
    assert written == f"What is 61,880{' when of a match' * reasoning}?"
    (request,) = model.requests
    assert len(request.messages) == 1 and request.tools == []
    assert sent(model) == ["61,880"] and sent(model, "thoughts") == ["of a match" * reasoning]
    assert ("of a match" in request.messages[0]["content"]) == reasoning


@pytest.mark.parametrize("thoughts", ["", "  \n", None, float("nan")])
def test_without_reasoning_the_query_alone_is_asked_and_counted(thoughts):
    model = QuestionModel()
    with asking(model) as llm:
        stage, alone = Q2Q(model=llm, reasoning=True), Q2Q(model=llm)
        rewritten(stage, "king", reasoning=[thoughts])
        rewritten(stage, "king")
        rewritten(alone, "king")
    assert stage.counts["without_reasoning"] == 2
    assert alone.counts["without_reasoning"] == 0
    assert len({request.messages[0]["content"] for request in model.requests}) == 1


def test_the_whole_reasoning_is_asked_and_no_text_becomes_a_place_of_the_prompt():
    """As rewrite_with_context in searcher/query_rewriters/q2q.py at b546046: all of the reasoning,
    with single white space, and the query without the space around it."""
    model, long = QuestionModel(), " ".join(map(str, range(5000)))
    with asking(model) as llm:
        stage = Q2Q(model=llm, reasoning=True)
        rewritten(stage, " king\n", reasoning=[f"{long}\n\nthree  four "])
        rewritten(stage, "a {reasoning} b {query}", reasoning=["{query} \\1"])
    assert sent(model, "thoughts") == [f"{long} three four", "{query} \\1"]
    assert sent(model) == ["king", "a {reasoning} b {query}"]


def test_effort_and_length_are_the_papers_and_the_other_settings_are_the_models_own():
    model = QuestionModel()
    own = SamplingParams(
        temperature=0.5, reasoning_effort="high", timeout=9, max_output_tokens=9000
    )
    with asking(model, own) as llm:
        for change in ({}, {"reasoning_effort": "medium", "max_output_tokens": 64}):
            rewritten(Q2Q(model=llm, **change), "king")
        rewritten(Q2Q(model=llm, reasoning_effort=None, max_output_tokens=None), "king")
    settings = [request.settings for request in model.requests]
    assert [each.reasoning_effort for each in settings] == ["low", "medium", "high"]
    assert [each.max_output_tokens for each in settings] == [512, 64, 9000]
    assert {(each.temperature, each.timeout) for each in settings} == {(0.5, 9)}


def test_a_prompt_of_ones_own(tmp_path):
    mine, plain = tmp_path / "mine.txt", tmp_path / "plain.txt"
    mine.write_text("<thoughts>\n{reasoning}\n</thoughts><query>\n{query}\n</query> mine")
    plain.write_text("<query>\n{query}\n</query> plain")
    model = QuestionModel()
    with asking(model) as llm:
        own = {"prompt": str(mine), "prompt_without_reasoning": str(plain)}
        rewritten(Q2Q(model=llm, reasoning=True, **own), "a", "b", reasoning=["r", ""])
        rewritten(Q2Q(model=llm, prompt=str(plain)), "c")
    endings = [request.messages[0]["content"].split()[-1] for request in model.requests]
    assert endings == ["mine", "plain", "plain"]


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        *(
            (text, {"reasoning": reasoning}, r"p\.txt has the places .* valid: \{query\}")
            for text, reasoning in (
                *(("no place", False), ("{query} {reasoning}", False), ("{query}", True)),
                ("{query} {reasoning} {question}", True),
            )
        ),
        ("", {"prompt": "gone.txt"}, r"cannot read the prompt .*gone\.txt"),
        ("{query}", {"apply_to": "agent"}, "apply_to is 'agent'. valid: retriever, reranker, both"),
        ("{query}", {"max_output_tokens": 0}, "max_output_tokens=0"),
        ("{query}", {"prompt_without_reasoning": "x.txt"}, "set prompt, or reasoning=true"),
    ],
)
def test_impossible_prompts_and_arguments_are_refused(tmp_path, text, arguments, message):
    path = tmp_path / "p.txt"
    path.write_text(text)
    refused(message, lambda: Q2Q(**{"model": rewriter_llm(), "prompt": str(path), **arguments}))


# The topics of TREC DL 2019 (msmarco-test2019-queries) that the authors' prompts use as examples.
TOPICS = {
    156493: "do goldfish grow",
    1110199: "what is wifi vs bluetooth",
    1063750: "why did the us volunterilay enter ww1",
    168216: "does legionella pneumophila cause pneumonia",
    1037798: "who is robert gray",
    264014: "how long is life cycle of flea",
    104861: "cost of interior concrete flooring",
    146187: "difference between a mcdouble and a double cheeseburger",
}
# What each rule of searcher/query_rewriters/q2q.py at b546046 is about, in its order.
RULES = ("number, quantity and unit", "Each number", "no explanation", "one question")
INTENT = "what the agent searches for"


@pytest.mark.parametrize(
    ("name", "rules"), [("q2q", RULES), ("q2q_reasoning", (INTENT, *RULES))], ids=["Q", "Q+R"]
)
def test_the_prompts_have_the_authors_rules_in_their_order_and_their_examples(name, rules):
    text = (PROMPTS / f"rewriter/{name}.txt").read_text(encoding="utf-8")
    found = re.findall(r"^\d\. (.*)$", text, re.MULTILINE)
    assert len(found) == len(rules)
    assert all(rule in line for rule, line in zip(rules, found, strict=True))
    assert re.findall(r"^- (.*)$", text, re.MULTILINE) == list(TOPICS.values())
    assert "MS MARCO" in text and "?" not in text and "question mark" not in text


# What comes of replies.


@pytest.mark.parametrize(
    ("query", "texts", "written", "counts"),
    [
        ("king", [" \n", KING], KING, {"retried": 1}),
        ("king", [Truncated("cut", turn=Turn(text="What is")), KING], KING, {"retried": 1}),
        ("king", ["", "\n \n"], "king", {"retried": 1, "fell_back": 1}),
        ("king", ["kings of chess\n they rule\n"], "kings of chess  they rule", {}),
        ("king", [f'**Question:** "{KING}"'], f'**Question:** "{KING}"', {}),
        ("king", ["Who is Robert Gray?", KING], KING, {"retried": 1}),
        (
            "king",
            ["- do goldfish grow", "What is WiFi vs. Bluetooth?"],
            *("king", {"retried": 1, "fell_back": 1, "copied": 1}),
        ),
        ("match 61,880", ["Which match had fans?"], "Which match had fans?", {"lost_numbers": 1}),
    ],
)
def test_a_reply_is_used_whole_or_asked_for_once_more_and_counted(query, texts, written, counts):
    """As the authors' code: the lines of a reply are joined, an empty one is requested once more,
    and the query is used after a second one. A copied example, which their prompt forbids, is
    treated likewise."""
    model = QuestionModel(*texts)
    with asking(model, SamplingParams(seed=7)) as llm:
        stage = Q2Q(model=llm)
        assert rewritten(stage, query) == [written]
    assert counted(stage) == {"queries": 1, "asked": 1, **counts}
    assert sent(model) == [query] * len(texts)
    # A second try has the next seed.
    assert [request.settings.seed for request in model.requests] == [7, 8][: len(texts)]


def test_lost_numbers():
    assert lost_numbers("61,880 fans 1990", "Who saw it with 61,880 fans?") == {"1990"}
    assert lost_numbers("61,880", "Was it 61880 or 61,880?") == set()


@pytest.mark.parametrize(
    "errors",
    [[Refused("no")], [ContextOverflow("too long")], [Truncated("cut"), Truncated("cut")]],
    ids=lambda errors: errors[0].code,
)
def test_what_befalls_this_query_alone_leaves_the_query_and_is_asked_again_next_time(
    tmp_path, errors
):
    with asking(QuestionModel(*errors, KING)) as llm:
        stage = Q2Q(model=llm, cache=tmp_path)
        assert rewritten(stage, "king") == ["king"]
        assert (stage.counts["errors"], stage.counts["fell_back"]) == (1, 1)
        assert rewritten(stage, "king") == [KING]


@pytest.mark.parametrize(
    "error",
    [
        *(AuthenticationFailed("wrong key"), OutOfQuota("no quota"), BadRequest("no such setting")),
        *(OutOfMoney("cap", scope="question"), ServerGone("gone")),
    ],
    ids=lambda error: error.code,
)
def test_what_would_befall_any_query_is_raised(error):
    with asking(QuestionModel(error)) as llm, pytest.raises(type(error)):
        rewritten(Q2Q(model=llm), "king")


def test_a_cap_on_money_stops_rewriting_and_keeps_what_was_paid_for(tmp_path):
    model, ledger = QuestionModel(), Ledger(cap=110 / 1e6)
    with asking(model, ledger=ledger) as llm:
        stage = Q2Q(model=llm, cache=tmp_path)
        assert rewritten(stage, "king") == ["What is king?"]
        with pytest.raises(OutOfMoney):
            rewritten(stage, "queen")
        assert rewritten(stage, "king") == ["What is king?"]
    assert model.queries == ["king"]


def test_a_blank_query_is_left_alone():
    model = QuestionModel()
    with asking(model) as llm:
        stage = Q2Q(model=llm)
        assert rewritten(stage, "", " ") == ["", " "]
    assert model.requests == [] and not any(stage.counts.values())


# Once.


def test_many_threads_with_one_query_make_one_request():
    model = QuestionModel(seconds=0.3)
    barrier = threading.Barrier(32)
    with asking(model) as llm:
        stage = Q2Q(model=llm)

        def ask(number):
            barrier.wait()
            return rewritten(stage, "king")

        with ThreadPoolExecutor(32) as pool:
            found = list(pool.map(ask, range(32)))
    assert found == [["What is king?"]] * 32
    assert model.queries == ["king"]
    assert (stage.counts["asked"], stage.counts["shared"]) == (1, 31)


def test_threads_with_overlapping_frames_do_not_wait_for_each_other_forever():
    model = QuestionModel(seconds=0.01)
    with asking(model) as llm:
        stage = Q2Q(model=llm)
        frames = [[f"king {(start + step) % 8}" for step in range(8)] for start in range(8)]
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda queries: rewritten(stage, *queries), frames * 4))
    assert found == [[f"What is {query}?" for query in queries] for queries in frames * 4]


def test_a_thread_that_waits_for_anothers_request_asks_itself_where_that_one_fails():
    spent = threading.Event()

    def choose(messages, settings):
        if not spent.is_set():
            spent.set()
            raise OutOfMoney("the question's cap", scope="question")
        return question(messages)

    model = QuestionModel(choose=choose, seconds=0.3)
    with asking(model) as llm:
        stage = Q2Q(model=llm)
        with ThreadPoolExecutor(4) as pool:
            first = pool.submit(rewritten, stage, "king")
            until(lambda: stage.counts["asked"] == 1)
            others = [pool.submit(rewritten, stage, "king") for _ in range(3)]
            with pytest.raises(OutOfMoney):
                first.result()
            assert [each.result() for each in others] == [["What is king?"]] * 3
    assert len(model.requests) == 2


def test_replies_are_read_from_the_cache_as_they_were_the_first_time(tmp_path):
    copy = TOPICS[1037798]
    texts = {"king": [copy, copy], "queen": [KING], "rook": ["", ""]}
    model = QuestionModel(
        choose=lambda messages, _: Turn(text=texts[part_of(messages, "query")].pop(0))
    )
    with asking(model) as llm:
        first, second = Q2Q(model=llm, cache=tmp_path), Q2Q(model=llm, cache=tmp_path)
        assert rewritten(first, *texts) == rewritten(second, *texts) == ["king", KING, "rook"]
    for name in ("queries", "fell_back", "copied"):
        assert first.counts[name] == second.counts[name] > 0
    assert (second.counts["asked"], second.counts["cache_hits"]) == (0, 3)
    model = QuestionModel()
    for queries in (["king", "queen"], ["king", "rook"]):
        with asking(model) as llm:
            stage = Q2Q(model=llm, cache=tmp_path / "other")
            assert rewritten(stage, *queries) == [f"What is {query}?" for query in queries]
    assert sorted(model.queries) == ["king", "queen", "rook"]
    assert counted(stage) == {"queries": 2, "asked": 1, "cache_hits": 1, "cache_misses": 1}
    # The tokens of a reply count whether it was asked for now or cached.
    tokens = {name: stage.counts[f"reply_{name}_tokens"] for name in ("input", "output")}
    assert tokens == {"input": 200, "output": 20}


PROCESS = """
import sys
from pathlib import Path
from support.llm_model import QuestionModel, asking, frame
from soundingline.pipelines.q2q import Q2Q
model = QuestionModel()
with asking(model) as llm:
    stage = Q2Q(model=llm, cache=Path(sys.argv[1]), reasoning=True)
    print(stage(frame("king", reasoning=["of chess"]))["query"].tolist(), len(model.requests))
"""


def test_another_process_finds_what_this_one_asked(tmp_path):
    with asking(QuestionModel()) as llm:
        stage = Q2Q(model=llm, cache=tmp_path, reasoning=True)
        (asked,) = rewritten(stage, "king", reasoning=["of chess"])
    done = run_command("-c", PROCESS, str(tmp_path))
    assert done.stdout == f"{[asked]} 0\n", done.stderr


@pytest.mark.parametrize(
    "changed",
    [
        {"prompt": "own"},
        {"reasoning": True},
        {"reasoning_effort": "high"},
        {"settings": SamplingParams(temperature=0.3)},
        {"settings": SamplingParams(extra={"top_k": 1})},
        {"name": "another"},
    ],
    ids=str,
)
def test_another_prompt_model_or_setting_is_asked_anew(tmp_path, changed):
    own = tmp_path / "own.txt"
    own.write_text("Another prompt.\n<query>\n{query}\n</query>")
    arguments = dict(changed)
    settings, name = arguments.pop("settings", None), arguments.pop("name", "scripted")
    if "prompt" in arguments:
        arguments["prompt"] = str(own)
    model = QuestionModel()
    with asking(model) as llm:
        first = Q2Q(model=llm, cache=tmp_path / "caches")
        rewritten(first, "king")
    with asking(model, settings) as llm:
        llm.name = name
        second = Q2Q(model=llm, cache=tmp_path / "caches", **arguments)
        rewritten(second, "king", reasoning=["chess"])
    assert model.queries == ["king", "king"]
    assert first.fingerprint != second.fingerprint


def test_a_longer_timeout_is_no_other_rewriter(tmp_path):
    model = QuestionModel()
    for timeout in (60, 600):
        with asking(model, SamplingParams(timeout=timeout)) as llm:
            rewritten(Q2Q(model=llm, cache=tmp_path), "king")
    assert model.queries == ["king"]


def test_before_the_model_runs_all_is_known_but_the_rewriting():
    stage = Q2Q(model=rewriter_llm(SamplingParams(seed=1)))
    with asking(QuestionModel(), SamplingParams(seed=1)) as running:
        assert Q2Q(model=running).fingerprint == stage.fingerprint
    assert not any(stage.counts.values())
    with pytest.raises(RuntimeError, match="does not run"):
        rewritten(stage, "king")
