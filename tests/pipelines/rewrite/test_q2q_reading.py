"""Replies of models, read as one question."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.rewrite.q2q import PROMPTS
from pipelines.rewrite.reading import Reading, is_empty, lost_numbers, read_question

QUERY = '"61,880" football attendance'
QUESTION = "What football match had an attendance of 61,880?"


def read(reply: str, max_words: int = 64) -> Reading:
    return read_question(reply, QUERY, max_words)


@pytest.mark.parametrize("reply", [QUESTION, f"  {QUESTION}\n", QUESTION.lower().rstrip("?")])
def test_a_bare_question_is_taken_as_it_is(reply: str) -> None:
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
def test_labels_marks_and_other_lines_are_taken_off(reply: str) -> None:
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
def test_what_belongs_to_the_question_stays(reply: str) -> None:
    assert read(reply) == Reading(reply)


@pytest.mark.parametrize(
    "reply",
    ["", " \n\t", '""', "“”", "''", "\n```\n```", "?", "Question:", "<think>hm</think>", "**"],
)
def test_white_space_quotation_marks_and_bare_labels_are_empty(reply: str) -> None:
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
def test_prose_is_no_question(reply: str) -> None:
    assert read(reply) == Reading(trouble="prose")


PROMPT = (PROMPTS / "q2q.txt").read_text(encoding="utf-8")


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
def test_an_example_of_the_prompt_is_copied(query: str, reply: str) -> None:
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
def test_a_question_that_shares_words_with_the_prompt_is_no_copy(query: str, reply: str) -> None:
    assert read_question(reply, query, 64, prompt=PROMPT) == Reading(reply)


def test_no_query_is_a_copy_when_it_comes_back() -> None:
    for line in PROMPT.splitlines():
        query = line.removeprefix("- ")
        if query.strip():
            assert read_question(query, query, 64, prompt=PROMPT).trouble != "copied"


def test_a_line_without_a_question_mark_that_speaks_of_the_query_is_taken() -> None:
    reply = "football match with an attendance of 61,880"
    assert read(reply) == Reading(reply)


def test_the_longest_question_is_an_argument() -> None:
    assert read("What had an attendance of 61,880?", max_words=6).question
    assert read("What had an attendance of 61,880?", max_words=5).trouble == "prose"


def test_numbers_that_the_question_does_not_have_are_found() -> None:
    assert lost_numbers("61,880 fans 1990", "Who saw it with 61,880 fans?") == {"1990"}
    assert lost_numbers("61,880", "Was it 61880 or 61,880?") == set()


@given(st.text(max_size=80), st.text(max_size=20))
def test_any_reply_is_read_the_same_twice_and_a_question_is_one_line(
    reply: str, query: str
) -> None:
    reading = read_question(reply, query, 10)
    assert reading == read_question(reply, query, 10)
    assert bool(reading.question) != bool(reading.trouble)
    assert len(reading.question.splitlines()) <= 1
    assert (reading.trouble == "empty") == is_empty(reply)


@given(st.text("abc ?\"'*_`“”#-\n:", max_size=30))
def test_reading_a_question_again_changes_nothing(reply: str) -> None:
    first = read_question(reply, "abc", 50)
    if first.question:
        assert read_question(first.question, "abc", 50) == Reading(first.question)
