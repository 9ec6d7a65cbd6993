"""Queries to questions: prompts, reading, second tries, fall-backs, cache, counts, and threads."""

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.llm_model import (
    QuestionModel,
    asking,
    frame,
    part_of,
    question,
    rewriter_llm,
    wait_for,
)

from soundingline.pipelines.prompting import PROMPTS, last_words
from soundingline.pipelines.q2q import Q2Q, Reading, is_empty, lost_numbers, read_question
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

ROOT = Path(__file__).resolve().parents[2]
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


def test_long_reasoning_is_asked_with_its_end_and_no_text_becomes_a_place_of_the_prompt():
    model = QuestionModel()
    with asking(model) as llm:
        stage = Q2Q(model=llm, reasoning=True, max_reasoning_words=3)
        rewritten(stage, "king", reasoning=["one two\nthree  four five"])
        rewritten(stage, "a {reasoning} b {query}", reasoning=["{query} \\1"])
    assert sent(model, "thoughts") == ["... three  four five", "{query} \\1"]
    assert sent(model) == ["king", "a {reasoning} b {query}"]
    assert last_words(" a b ", 2) == "a b"


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
        ("{query}", {"max_words": 0}, "max_words=0"),
        ("{query}", {"max_reasoning_words": True}, "max_reasoning_words=True"),
        ("{query}", {"prompt_without_reasoning": "x.txt"}, "set prompt, or reasoning=true"),
    ],
)
def test_impossible_prompts_and_arguments_are_refused(tmp_path, text, arguments, message):
    path = tmp_path / "p.txt"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        Q2Q(**{"model": rewriter_llm(), "prompt": str(path), **arguments})


def test_both_prompts_have_the_rules_and_the_same_eight_questions():
    texts = [(PROMPTS / f"rewriter/{name}.txt").read_text() for name in ("q2q", "q2q_reasoning")]
    styles = [[line for line in text.splitlines() if line.startswith("- ")] for text in texts]
    assert styles[0] == styles[1] and len(styles[0]) == 8
    for text in texts:
        for rule in ("exactly one question", "every number, date, unit, name", "do not answer it"):
            assert rule in text


# What comes of replies.


@pytest.mark.parametrize(
    ("query", "texts", "written", "counts"),
    [
        ("king", [' "" \n', KING], KING, {"retried": 1}),
        ("king", [Truncated("cut", turn=Turn(text="What is")), KING], KING, {"retried": 1}),
        ("king", ["", "“”"], "king", {"retried": 1, "fell_back": 1}),
        ("king", [f'**Question:** "{KING}"'], KING, {"cleaned": 1}),
        ("king", ["It is about kings.\nThey rule."], "king", {"fell_back": 1, "prose": 1}),
        ("king", [f"What {'is ' * 64} king?"], "king", {"fell_back": 1, "prose": 1}),
        # As Qwen2.5-Coder-0.5B-Instruct answered more than half of CACM's questions.
        (
            "parallel algorithms",
            ["What is the most popular food in Switzerland?"],
            *("parallel algorithms", {"fell_back": 1, "copied": 1}),
        ),
        ("match 61,880", ["Which match had fans?"], "Which match had fans?", {"lost_numbers": 1}),
    ],
)
def test_a_reply_is_read_asked_for_once_more_or_not_used_and_counted(query, texts, written, counts):
    model = QuestionModel(*texts)
    with asking(model, SamplingParams(seed=7)) as llm:
        stage = Q2Q(model=llm)
        assert rewritten(stage, query) == [written]
    assert counted(stage) == {"queries": 1, "asked": 1, **counts}
    assert sent(model) == [query] * len(texts)
    # A second try has the next seed.
    assert [request.settings.seed for request in model.requests] == [7, 8][: len(texts)]


def test_what_the_reasoning_says_is_no_copy_of_the_prompt():
    food = "What is the most popular food in Switzerland?"
    thoughts = ["The Swiss like a popular food, of which I need the name. Switzerland it is."]
    with asking(QuestionModel(food, food)) as llm:
        stage = Q2Q(model=llm, reasoning=True)
        assert rewritten(stage, "dish", reasoning=thoughts) == [food]
        assert rewritten(stage, "dish", reasoning=["A dish of some country."]) == ["dish"]
    assert (stage.counts["copied"], stage.counts["without_reasoning"]) == (1, 0)


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


def test_requests_are_on_the_account_of_their_question():
    ledger = Ledger()
    with asking(QuestionModel("", "What?", "What?"), ledger=ledger) as llm:
        rewritten(Q2Q(model=llm), "what a king", "what a queen")
    calls = {qid: ledger.by_role(qid)["rewriter"].calls for qid in ("q1", "q2")}
    assert sorted(calls.values()) == [1, 2]
    assert ledger.total.dollars == pytest.approx(3 * 110 / 1e6)


# Once.


def test_rows_are_asked_together_and_equal_ones_once():
    model = QuestionModel(seconds=0.2)
    with asking(model) as llm:
        queries = [f"king {number % 10}" for number in range(30)]
        stage = Q2Q(model=llm)
        assert rewritten(stage, *queries) == [f"What is {query}?" for query in queries]
    assert sorted(model.queries) == sorted(set(queries))
    assert counted(stage) == {"queries": 30, "asked": 10}


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
            wait_for(lambda: stage.counts["asked"] == 1)
            others = [pool.submit(rewritten, stage, "king") for _ in range(3)]
            with pytest.raises(OutOfMoney):
                first.result()
            assert [each.result() for each in others] == [["What is king?"]] * 3
    assert len(model.requests) == 2


def test_replies_are_read_from_the_cache_as_they_were_the_first_time(tmp_path):
    texts = {"king": ["It rules.\nAlways."], "queen": [f"Question: {KING}"], "rook": ["", ""]}
    model = QuestionModel(
        choose=lambda messages, _: Turn(text=texts[part_of(messages, "query")].pop(0))
    )
    with asking(model) as llm:
        first, second = Q2Q(model=llm, cache=tmp_path), Q2Q(model=llm, cache=tmp_path)
        assert rewritten(first, *texts) == rewritten(second, *texts) == ["king", KING, "rook"]
    for name in ("queries", "fell_back", "cleaned", "prose"):
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
sys.path[:0] = sys.argv[2:]
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
    paths = [str(ROOT), str(ROOT / "tests")]
    command = [sys.executable, "-c", PROCESS, str(tmp_path), *paths]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"{[asked]} 0\n"


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
            rewritten(Q2Q(model=llm, cache=tmp_path, max_words=timeout), "king")
    assert model.queries == ["king"]


def test_before_the_model_runs_all_is_known_but_the_rewriting():
    stage = Q2Q(model=rewriter_llm(SamplingParams(seed=1)))
    with asking(QuestionModel(), SamplingParams(seed=1)) as running:
        assert Q2Q(model=running).fingerprint == stage.fingerprint
    assert not any(stage.counts.values())
    with pytest.raises(RuntimeError, match="does not run"):
        rewritten(stage, "king")


QUERY = '"61,880" football attendance'
QUESTION = "What football match had an attendance of 61,880?"
PROMPT = (PROMPTS / "rewriter/q2q.txt").read_text(encoding="utf-8")
EMPTY, PROSE = Reading(trouble="empty"), Reading(trouble="prose")


def read(reply, query=QUERY, max_words=64, prompt=PROMPT):
    return read_question(reply, query, max_words, prompt=prompt)


@pytest.mark.parametrize(
    ("reading", "replies"),
    [
        (
            Reading(QUESTION, cleaned=True),
            [
                f"Question: {QUESTION}",
                f"**Question:** {QUESTION}",
                f"Rewritten question: {QUESTION}",
                f"Q: {QUESTION}",
                f"Query: **{QUESTION}**",
                f'"{QUESTION}"',
                f"“{QUESTION}”",
                f'**"{QUESTION}"**',
                f"`{QUESTION}`",
                f"- {QUESTION}",
                f"1. {QUESTION}",
                f"<question>{QUESTION}</question>",
                f"```\n{QUESTION}\n```",
                f"```text\n{QUESTION}\n```",
                f"Sure! {QUESTION}",
                f"Here is the question: {QUESTION}",
                f"Here's the rewritten question:\n\n{QUESTION}",
                f"Question:\n{QUESTION}",
                f"<think>The agent wants a match. What for?</think>\n{QUESTION}",
                f"The query asks for a match with that attendance.\n{QUESTION}\nI kept the number.",
                f"{QUESTION}\nWhich stadium held 61,880 people?",
            ],
        ),
        (
            EMPTY,
            [
                *("", " \n\t", '""', "“”", "''", "\n```\n```", "?", "Question:", "**"),
                "<think>hm</think>",
            ],
        ),
        (
            PROSE,
            [
                "I'm sorry, but I can't help with that.",
                "The query is about football.\nIt has a number in it.",
                f"What {'very ' * 64}long question had 61,880?",
            ],
        ),
    ],
    ids=["labels and marks are taken off", "empty", "prose"],
)
def test_a_reply_is_cleaned_empty_or_prose(reading, replies):
    for reply in replies:
        assert read(reply) == reading, reply
        assert is_empty(reply) == (reading == EMPTY)


@pytest.mark.parametrize(
    ("query", "reply"),
    [
        (QUERY, QUESTION),
        (QUERY, QUESTION.lower().rstrip("?")),
        (QUERY, "football match with an attendance of 61,880"),
        # What belongs to the question stays.
        (QUERY, "Who are the members of OK Computer?"),
        (QUERY, 'What is "What is to be done?" about?'),
        (QUERY, '"Heroes" and "Low" are albums by whom?'),
        (QUERY, "1984 is a novel by whom?"),
        (QUERY, "Which query language does SPARQL: the query extend?"),
        (QUERY, "How many * and ** operators are in C++?"),
        # A question that shares words with the prompt is no copy.
        ("popular food France", "What is the most popular food in France?"),
        ("popular food switzerland", "What is the most popular food in Switzerland?"),
        ("SQL", "What is the query language SQL?"),
        ("search engine query", "What is a query of a search engine?"),
        ("flea bites", "How long do flea bites itch?"),
        ("Salvation Army", "Who founded the Salvation Army?"),
        ("parallel", "What are parallel algorithms?"),
        ("鉄道", "鉄道はいつ開通しましたか？"),
        ("what", "what?"),
    ],
)
def test_a_bare_question_is_taken_as_it_is(query, reply):
    assert read(f"  {reply}\n", query) == read(reply, query) == Reading(reply)


@pytest.mark.parametrize(
    ("query", "reply"),
    [
        # The first five as Qwen2.5-Coder-0.5B-Instruct wrote them.
        ("Performance evaluation of computer systems", "How long is life cycle of flea?"),
        ("What is known about it?", "What are the most popular food in Switzerland?"),
        ("languages that can be used", "What are the types of food that can you cook sous vide?"),
        ("code optimization", "What are some shark warm blooded?"),
        ("code optimization", "What are some shark warm blooded foods?"),
        ("life cycle of software", "how long is life cycle of flea"),
        ("nitrogen", "Hydrogen is a liquid below what temperature?"),
    ],
)
def test_an_example_of_the_prompt_is_copied(query, reply):
    assert read(reply, query) == Reading(trouble="copied")
    assert read(reply, query, prompt="").question


def test_no_query_is_a_copy_when_it_comes_back():
    for query in (line.removeprefix("- ") for line in PROMPT.splitlines()):
        if query.strip():
            assert read(query, query).trouble != "copied"


def test_the_longest_question_is_an_argument_and_lost_numbers_are_reported():
    assert read("What had an attendance of 61,880?", max_words=6).question
    assert read("What had an attendance of 61,880?", max_words=5).trouble == "prose"
    assert lost_numbers("61,880 fans 1990", "Who saw it with 61,880 fans?") == {"1990"}
    assert lost_numbers("61,880", "Was it 61880 or 61,880?") == set()


@given(st.text(max_size=80), st.text(max_size=20))
def test_any_reply_is_read_the_same_twice_and_a_question_is_one_line(reply, query):
    reading = read_question(reply, query, 10)
    assert reading == read_question(reply, query, 10)
    assert bool(reading.question) != bool(reading.trouble)
    assert len(reading.question.splitlines()) <= 1
    assert (reading.trouble == "empty") == is_empty(reply)


@given(st.text("abc ?\"'*_`“”#-\n:", max_size=30))
def test_reading_a_question_again_changes_nothing(reply):
    first = read_question(reply, "abc", 50)
    if first.question:
        assert read_question(first.question, "abc", 50) == Reading(first.question)
