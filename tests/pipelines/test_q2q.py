"""Queries to questions: prompts, reading, second tries, fall-backs, cache, counts, and threads."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from question_model import (
    QuestionModel,
    asking,
    frame,
    query_of,
    question,
    replies,
    rewriter_llm,
    thoughts_of,
    wait_for,
)

from soundingline.pipelines.prompting import PROMPTS, last_words
from soundingline.pipelines.q2q import Q2Q, Reading, is_empty, lost_numbers, read_question
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.llm import SamplingParams, Turn
from soundingline.toolkit.llm import errors as llm_errors
from soundingline.toolkit.llm.errors import OutOfMoney, ServerGone, Truncated
from soundingline.toolkit.llm.ledger import Ledger

ROOT = Path(__file__).resolve().parents[2]
NOTHING = dict.fromkeys(
    (
        *("queries", "asked", "retried", "shared", "fell_back", "cleaned", "prose", "errors"),
        *("copied", "lost_numbers", "without_reasoning"),
    ),
    0,
)


def rewritten(stage, *queries, **columns):
    return stage(frame(*queries, **columns))["query"].tolist()


def told(stage):
    """The counts that are not zero, without the tokens of replies."""
    counts = stage.counts.items()
    return {name: count for name, count in counts if count and not name.startswith("reply_")}


def test_tokens_of_replies_are_counted_whether_asked_for_or_kept(tmp_path):
    for _ in range(2):
        with asking(QuestionModel(replies("What is a king?"))) as llm:
            stage = Q2Q(model=llm, cache=tmp_path)
            assert rewritten(stage, "king") == ["What is a king?"]
        tokens = {name: stage.counts[f"reply_{name}_tokens"] for name in ("input", "output")}
        assert tokens == {"input": 100, "output": 10}
    assert stage.counts["asked"] == 0


# What is asked.


def test_the_prompt_alone_holds_the_query_and_no_reasoning():
    model = QuestionModel()
    with asking(model) as llm:
        rewritten(Q2Q(model=llm), "king of spain", reasoning=["a secret thought"])
    (request,) = model.requests
    assert len(request.messages) == 1
    assert "king of spain" in request.messages[0]["content"]
    assert "secret" not in request.messages[0]["content"]
    assert request.tools == []


def test_the_prompt_with_reasoning_holds_both():
    model = QuestionModel()
    with asking(model) as llm:
        stage = Q2Q(model=llm, reasoning=True)
        assert rewritten(stage, "61,880", reasoning=["of a match"]) == [
            "What is 61,880 when of a match?"
        ]
    assert query_of(model.requests[0].messages) == "61,880"
    assert thoughts_of(model.requests[0].messages) == "of a match"


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
    assert {request.messages[0]["content"] for request in model.requests} == {
        model.requests[0].messages[0]["content"]
    }


def test_long_reasoning_is_asked_with_its_end():
    model = QuestionModel()
    with asking(model) as llm:
        stage = Q2Q(model=llm, reasoning=True, max_reasoning_words=3)
        rewritten(stage, "king", reasoning=["one two\nthree  four five"])
    assert thoughts_of(model.requests[0].messages) == "... three  four five"
    assert last_words(" a b ", 2) == "a b"


def test_what_a_query_holds_never_becomes_a_place_of_the_prompt():
    model = QuestionModel()
    with asking(model) as llm:
        stage = Q2Q(model=llm, reasoning=True)
        rewritten(stage, "a {reasoning} b {query}", reasoning=["{query} \\1"])
    assert query_of(model.requests[0].messages) == "a {reasoning} b {query}"
    assert thoughts_of(model.requests[0].messages) == "{query} \\1"


def test_effort_and_length_are_the_papers_and_the_other_settings_are_the_models_own():
    model = QuestionModel()
    own = SamplingParams(
        temperature=0.5, reasoning_effort="high", timeout=9, max_output_tokens=9000
    )
    changes: list[dict[str, Any]] = [{}, {"reasoning_effort": "medium", "max_output_tokens": 64}]
    changes += [{"reasoning_effort": None, "max_output_tokens": None}]
    with asking(model, own) as llm:
        for change in changes:
            rewritten(Q2Q(model=llm, **change), "king")
    used = [request.settings for request in model.requests]
    assert [settings.reasoning_effort for settings in used] == ["low", "medium", "high"]
    assert [settings.max_output_tokens for settings in used] == [512, 64, 9000]
    assert {request.settings.temperature for request in model.requests} == {0.5}
    assert {request.settings.timeout for request in model.requests} == {9}


def test_a_prompt_of_ones_own(tmp_path):
    mine, plain = tmp_path / "mine.txt", tmp_path / "plain.txt"
    mine.write_text("<thoughts>\n{reasoning}\n</thoughts><query>\n{query}\n</query> mine")
    plain.write_text("<query>\n{query}\n</query> plain")
    model = QuestionModel()
    with asking(model) as llm:
        stage = Q2Q(
            model=llm, reasoning=True, prompt=str(mine), prompt_without_reasoning=str(plain)
        )
        rewritten(stage, "a", "b", reasoning=["r", ""])
        rewritten(Q2Q(model=llm, prompt=str(plain)), "c")
    endings = [request.messages[0]["content"].split()[-1] for request in model.requests]
    assert endings == ["mine", "plain", "plain"]


@pytest.mark.parametrize(
    ("text", "reasoning"),
    [
        ("no place", False),
        ("{query} {reasoning}", False),
        ("{query}", True),
        ("{query} {reasoning} {question}", True),
    ],
)
def test_a_prompt_with_wrong_places_is_refused(tmp_path, text, reasoning):
    path = tmp_path / "p.txt"
    path.write_text(text)
    with pytest.raises(InputError, match=r"p\.txt has the places .* valid: \{query\}"):
        Q2Q(model=rewriter_llm(), prompt=str(path), reasoning=reasoning)


def test_a_prompt_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match=r"cannot read the prompt .*gone\.txt"):
        Q2Q(model=rewriter_llm(), prompt=str(tmp_path / "gone.txt"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"apply_to": "agent"}, "apply_to is 'agent'. valid: retriever, reranker, both"),
        ({"max_words": 0}, "max_words=0"),
        ({"max_reasoning_words": True}, "max_reasoning_words=True"),
        ({"prompt_without_reasoning": "x.txt"}, "set prompt, or reasoning=true"),
    ],
)
def test_impossible_arguments_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        Q2Q(model=rewriter_llm(), **arguments)


def test_both_prompts_tell_the_rules_and_the_same_eight_questions():
    texts = [(PROMPTS / f"rewriter/{name}.txt").read_text() for name in ("q2q", "q2q_reasoning")]
    styles = [[line for line in text.splitlines() if line.startswith("- ")] for text in texts]
    assert styles[0] == styles[1] and len(styles[0]) == 8
    for text in texts:
        for rule in ("exactly one question", "every number, date, unit, name", "do not answer it"):
            assert rule in text


# What comes of replies.


def test_an_empty_reply_is_asked_for_once_more():
    model = QuestionModel(replies(' "" \n', "What is a king?"))
    with asking(model) as llm:
        stage = Q2Q(model=llm)
        assert rewritten(stage, "king") == ["What is a king?"]
    assert model.queries == ["king", "king"]
    assert told(stage) == {"queries": 1, "asked": 1, "retried": 1}


def test_after_two_empty_replies_the_query_stays():
    with asking(QuestionModel(replies("", "“”"))) as llm:
        stage = Q2Q(model=llm)
        assert rewritten(stage, "king") == ["king"]
    assert told(stage) == {**{"queries": 1, "asked": 1, "retried": 1, "fell_back": 1}}


def test_a_second_try_has_the_next_seed():
    model = QuestionModel(replies("", "What is a king?"))
    with asking(model, SamplingParams(seed=7)) as llm:
        rewritten(Q2Q(model=llm), "king")
    assert [request.settings.seed for request in model.requests] == [7, 8]


def test_a_reply_with_a_label_is_cleaned_and_counted():
    with asking(QuestionModel(replies('**Question:** "What is a king?"'))) as llm:
        stage = Q2Q(model=llm)
        assert rewritten(stage, "king") == ["What is a king?"]
    assert told(stage) == {"queries": 1, "asked": 1, "cleaned": 1}


@pytest.mark.parametrize("reply", ["It is about kings.\nThey rule.", f"What {'is ' * 64} king?"])
def test_prose_is_not_used_and_not_asked_for_again(reply):
    with asking(QuestionModel(replies(reply))) as llm:
        stage = Q2Q(model=llm)
        assert rewritten(stage, "king") == ["king"]
    assert told(stage) == {**{"queries": 1, "asked": 1, "fell_back": 1, "prose": 1}}


def test_an_example_of_the_prompt_is_not_used_and_counted():
    """As Qwen2.5-Coder-0.5B-Instruct answered more than half of CACM's questions."""
    with asking(QuestionModel(replies("What is the most popular food in Switzerland?"))) as llm:
        stage = Q2Q(model=llm)
        assert rewritten(stage, "parallel algorithms") == ["parallel algorithms"]
    assert told(stage) == {**{"queries": 1, "asked": 1, "fell_back": 1, "copied": 1}}


def test_what_the_reasoning_says_is_no_copy_of_the_prompt():
    asked = "What is the most popular food in Switzerland?"
    thoughts = ["The Swiss like a popular food, of which I need the name. Switzerland it is."]
    with asking(QuestionModel(replies(asked, asked))) as llm:
        stage = Q2Q(model=llm, reasoning=True)
        assert rewritten(stage, "dish", reasoning=thoughts) == [asked]
        assert rewritten(stage, "dish", reasoning=["A dish of some country."]) == ["dish"]
    assert (stage.counts["copied"], stage.counts["without_reasoning"]) == (1, 0)


def test_a_question_that_lost_a_number_is_used_and_counted():
    with asking(QuestionModel(replies("Which match had many fans?"))) as llm:
        stage = Q2Q(model=llm)
        assert rewritten(stage, "match 61,880") == ["Which match had many fans?"]
    assert stage.counts["lost_numbers"] == 1
    assert stage.counts["fell_back"] == 0


def test_a_truncated_reply_is_asked_for_once_more():
    cut = Truncated("cut", turn=Turn(text="What is"))
    with asking(QuestionModel(replies(cut, "What is a king?"))) as llm:
        stage = Q2Q(model=llm)
        assert rewritten(stage, "king") == ["What is a king?"]
    assert told(stage) == {"queries": 1, "asked": 1, "retried": 1}


@pytest.mark.parametrize(
    "errors",
    [
        [llm_errors.Refused("no")],
        [llm_errors.ContextOverflow("too long")],
        [Truncated("cut"), Truncated("cut")],
    ],
    ids=lambda errors: errors[0].code,
)
def test_what_befalls_this_query_alone_leaves_the_query_and_is_asked_again_next_time(
    tmp_path, errors
):
    with asking(QuestionModel(replies(*errors, "What is a king?"))) as llm:
        stage = Q2Q(model=llm, cache=tmp_path)
        assert rewritten(stage, "king") == ["king"]
        assert (stage.counts["errors"], stage.counts["fell_back"]) == (1, 1)
        assert rewritten(stage, "king") == ["What is a king?"]


@pytest.mark.parametrize(
    "error",
    [
        llm_errors.AuthenticationFailed("wrong key"),
        llm_errors.OutOfQuota("no quota"),
        OutOfMoney("cap", scope="question"),
        llm_errors.BadRequest("no such setting"),
        ServerGone("gone"),
    ],
    ids=lambda error: error.code,
)
def test_what_would_befall_any_query_is_raised(error):
    with asking(QuestionModel(replies(error))) as llm, pytest.raises(type(error)):
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


def test_of_a_frame_that_fails_what_came_back_is_kept(tmp_path):
    def choose(messages, settings):
        if query_of(messages) == "bad":
            raise ServerGone("gone")
        return question(messages)

    model = QuestionModel(choose)
    with asking(model) as llm:
        stage = Q2Q(model=llm, cache=tmp_path)
        with pytest.raises(ServerGone):
            rewritten(stage, "good", "bad")
        assert rewritten(stage, "good") == ["What is good?"]
    assert model.queries.count("good") == 1


def test_a_blank_query_is_left_alone():
    model = QuestionModel()
    with asking(model) as llm:
        stage = Q2Q(model=llm)
        assert rewritten(stage, "", " ") == ["", " "]
    assert model.requests == [] and stage.counts == NOTHING


def test_requests_are_on_the_account_of_their_question():
    ledger = Ledger()
    with asking(QuestionModel(replies("", "What?", "What?")), ledger=ledger) as llm:
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
    assert told(stage) == {"queries": 30, "asked": 10}


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

    model = QuestionModel(choose, seconds=0.3)
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


def test_ten_threads_never_see_each_others_reasoning():
    """One field for all threads is the fault of the published code."""
    model = QuestionModel(seconds=0.002)
    barrier = threading.Barrier(10)
    with asking(model) as llm:
        stage = Q2Q(model=llm, reasoning=True)

        def agent(number):
            found = []
            for turn in range(12):
                barrier.wait()
                thought = f"agent {number} thinks in turn {turn}"
                found += rewritten(stage, f"query {turn}", reasoning=[thought])
            return found

        with ThreadPoolExecutor(10) as pool:
            found = list(pool.map(agent, range(10)))
    for number, questions in enumerate(found):
        assert questions == [
            f"What is query {turn} when agent {number} thinks in turn {turn}?" for turn in range(12)
        ]
    assert stage.counts["asked"] == 120


def test_replies_are_kept_on_disk(tmp_path):
    model = QuestionModel()
    with asking(model) as llm:
        assert rewritten(Q2Q(model=llm, cache=tmp_path), "king", "queen") == [
            "What is king?",
            "What is queen?",
        ]
        stage = Q2Q(model=llm, cache=tmp_path)
        assert rewritten(stage, "king", "rook") == ["What is king?", "What is rook?"]
    assert sorted(model.queries) == ["king", "queen", "rook"]
    assert told(stage) == {"queries": 2, "asked": 1, "cache_hits": 1, "cache_misses": 1}


def test_a_kept_reply_is_read_as_it_was_the_first_time(tmp_path):
    texts = ["It rules.\nAlways.", "Question: What is a queen?", "", ""]
    by_query = {"king": [texts[0]], "queen": [texts[1]], "rook": texts[2:]}
    model = QuestionModel(lambda messages, _: Turn(text=by_query[query_of(messages)].pop(0)))
    with asking(model) as llm:
        first, second = Q2Q(model=llm, cache=tmp_path), Q2Q(model=llm, cache=tmp_path)
        queries = ("king", "queen", "rook")
        expected = ["king", "What is a queen?", "rook"]
        assert rewritten(first, *queries) == rewritten(second, *queries) == expected
    for name in ("queries", "fell_back", "cleaned", "prose"):
        assert first.counts[name] == second.counts[name] > 0
    assert (second.counts["asked"], second.counts["cache_hits"]) == (0, 3)


PROCESS = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from question_model import QuestionModel, asking, frame
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
    paths = [str(ROOT), str(ROOT / "tests"), str(Path(__file__).parent)]
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
    llm = rewriter_llm(SamplingParams(seed=1))
    stage = Q2Q(model=llm)
    with asking(QuestionModel(), SamplingParams(seed=1)) as running:
        assert Q2Q(model=running).fingerprint == stage.fingerprint
    assert stage.counts == NOTHING
    with pytest.raises(RuntimeError, match="does not run"):
        rewritten(stage, "king")


QUERY = '"61,880" football attendance'
QUESTION = "What football match had an attendance of 61,880?"


def read(reply, max_words=64):
    return read_question(reply, QUERY, max_words)


@pytest.mark.parametrize("reply", [QUESTION, f"  {QUESTION}\n", QUESTION.lower().rstrip("?")])
def test_a_bare_question_is_taken_as_it_is(reply):
    assert read(reply) == Reading(reply.strip())


@pytest.mark.parametrize(
    "reply",
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
)
def test_labels_marks_and_other_lines_are_taken_off(reply):
    assert read(reply) == Reading(QUESTION, cleaned=True)


@pytest.mark.parametrize(
    "reply",
    [
        "Who are the members of OK Computer?",
        'What is "What is to be done?" about?',
        '"Heroes" and "Low" are albums by whom?',
        "1984 is a novel by whom?",
        "Which query language does SPARQL: the query extend?",
        "How many * and ** operators are in C++?",
    ],
)
def test_what_belongs_to_the_question_stays(reply):
    assert read(reply) == Reading(reply)


@pytest.mark.parametrize(
    "reply",
    ["", " \n\t", '""', "“”", "''", "\n```\n```", "?", "Question:", "<think>hm</think>", "**"],
)
def test_white_space_quotation_marks_and_bare_labels_are_empty(reply):
    assert is_empty(reply)
    assert read(reply) == Reading(trouble="empty")


@pytest.mark.parametrize(
    "reply",
    [
        "I'm sorry, but I can't help with that.",
        "The query is about football.\nIt has a number in it.",
        f"What {'very ' * 64}long question had 61,880?",
    ],
)
def test_prose_is_no_question(reply):
    assert read(reply) == Reading(trouble="prose")


PROMPT = (PROMPTS / "rewriter/q2q.txt").read_text(encoding="utf-8")


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
    assert read_question(reply, query, 64, prompt=PROMPT) == Reading(trouble="copied")
    assert read_question(reply, query, 64).question


@pytest.mark.parametrize(
    ("query", "reply"),
    [
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
def test_a_question_that_shares_words_with_the_prompt_is_no_copy(query, reply):
    assert read_question(reply, query, 64, prompt=PROMPT) == Reading(reply)


def test_no_query_is_a_copy_when_it_comes_back():
    for line in PROMPT.splitlines():
        query = line.removeprefix("- ")
        if query.strip():
            assert read_question(query, query, 64, prompt=PROMPT).trouble != "copied"


def test_a_line_without_a_question_mark_that_speaks_of_the_query_is_taken():
    reply = "football match with an attendance of 61,880"
    assert read(reply) == Reading(reply)


def test_the_longest_question_is_an_argument():
    assert read("What had an attendance of 61,880?", max_words=6).question
    assert read("What had an attendance of 61,880?", max_words=5).trouble == "prose"


def test_numbers_that_the_question_does_not_have_are_found():
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
