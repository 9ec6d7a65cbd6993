"""Whatever a model, a document or a question holds is read in time proportional to its length.

Every function of ours that runs a regular expression, or a loop of its own, over such text stands
in `READERS` with the pieces that its rules look for; hostile texts are made of these.
"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.assertions import assert_linear
from support.benchmarks import WordBackend, store_of

from soundingline.agents.baselines import resolve_listed_titles
from soundingline.agents.keyword.clues import find_clues, words
from soundingline.agents.keyword.evidence import Coverage
from soundingline.pipelines.lexical.analyzers import make_analyzer
from soundingline.pipelines.prompting import last_words
from soundingline.pipelines.q2q import trouble_of
from soundingline.pipelines.rerank.listwise import read_permutation, without_identifiers
from soundingline.pipelines.rerank.rank1 import closing_token, forced, shortened
from soundingline.toolkit.corpus.resolve import Resolver
from soundingline.toolkit.corpus.segmentation import line_spans, rule_spans
from soundingline.toolkit.data import Document
from soundingline.toolkit.evaluation.answers import answer_tokens
from soundingline.toolkit.evaluation.judge import JudgeCase, read_verdict
from soundingline.toolkit.llm.errors import error_of_reply
from soundingline.toolkit.llm.messages import Token, Turn
from soundingline.toolkit.llm.wire import sendable_arguments, sendable_name
from soundingline.toolkit.redaction import redact
from soundingline.toolkit.runs.run_folder import escape_qid
from soundingline.toolkit.search import RankedBrowsing, TopK, parse_answer
from soundingline.toolkit.search.answers import find_citations
from soundingline.toolkit.search.snippets import METHODS, QueryTerms
from soundingline.toolkit.search.tool import Parameter, ToolError, line_of
from soundingline.toolkit.tokens import count_tokens, truncate

KNOWN = dict.fromkeys(("d1", "12", "Foo [band]", "Rome, Italy", "1,2,3"))
LARGEST_ANSWER = 1 << 20
# Words are found in windows of 255 characters; a shorter text has only parts of one.
SMALLEST = {"index terms": 2048}
RESOLVER = Resolver(
    [Document("d1", "The King of the Mill", "", "http://x/1"), Document("d2", "A", "")]
)
CLUES = {"king": 1.0, "mill": 0.5}


class Text(NamedTuple):
    """Two runs of about half of the length each, and what stands around them."""

    first: str
    second: str
    opening: str = ""
    ending: str = ""

    def __call__(self, size):
        runs = (run * (size // (2 * len(run))) for run in (self.first, self.second))
        return self.opening + "".join(runs) + self.ending


def excerpts(text):
    for cut in METHODS.values():
        cut(QueryTerms("the king of mills"), text, 220)


def judged(text):
    read_verdict(JudgeCase("q", "", "", ()), Turn(text=text))
    read_verdict(JudgeCase("q", "", "", ()), Turn(text=f"```{text}```"))


def rank1(text):
    forced("prompt", text)
    shortened(text, 100)
    closing_token([Token(each, 0.0, {}) for each in text[:2000]])


def pages_of_document(text):
    store, backend = store_of({"d": text}), WordBackend({"d": ""})
    whole = TopK(get_document=True).open(backend, store)
    whole.call("get_document", {"docid": "d"})
    whole.call("get_document", {"docid": "d", "offset": 2})
    RankedBrowsing().open(backend, store).call("read_document", {"reason": "", "docid": "d"})


def sent(text):
    sendable_arguments(text)
    sendable_name(text)
    escape_qid(text)


def whole_number(text):
    with suppress(ToolError):
        Parameter("limit", "", bounds=(1, 9)).check(text, "tool")


def pieces(text):
    """Longer lists on fewer lines."""
    return text.split("·")


READERS = {
    "answer": (
        lambda text: parse_answer(text, KNOWN),
        pieces("Explanation·exact answer·Confidence·:· ·\t·*·_·#·\n·- ·1.·[·]·,·d1·%·\u200b·a·n/a"),
    ),
    "confidence": (
        lambda text: parse_answer(f"Confidence: {text}", KNOWN),
        ("1", ".", ",", " ", "%", "per", "cent", "/", "out of", "-", "\n", "a"),
    ),
    "exact answer": (
        lambda text: parse_answer(f"Exact Answer: {text}", KNOWN),
        ("\n", " ", "n", "/", "a", "*", "`", "**", "_", "\u200b"),
    ),
    "list": (
        lambda text: parse_answer(f"Documents: {text}", KNOWN),
        pieces("Documents·:·\n·[d1]·[12] ·1.· ·*·_·`·#·none·Confidence·a"),
    ),
    "list from memory": (
        lambda text: resolve_listed_titles(text, RESOLVER),
        pieces('\n·- ·12.· ·the·mill·king·"·“·”·http://x/·10.1000/·[·docid=·é·_'),
    ),
    "citations": (
        lambda text: find_citations(f"[{text}] [{text}", KNOWN),
        ("[", "]", ",", ";", " ", "1", "d1", "†", "`", "docid", "=", "_", "%p", "【", "】", "\n"),
    ),
    "answer tokens": (
        answer_tokens,
        ("1", ",", "111", ".", "-", "(", "a ", "the ", "\u0300", "\u0316", "\uff9e", "\u200b"),
    ),
    "verdict of a judge": (judged, ("`", "```", "json", " ", "{", "[", '"', "\n", "1")),
    "rewritten query": (trouble_of, ("a", " ", "\n", "-", "?")),
    "permutation": (
        lambda text: read_permutation(text, 20),
        ("[", "]", "1", "22", " ", ">", "=", ",", "a", "\n"),
    ),
    "passage numbers": (without_identifiers, ("[", "]", "1", " ", ",", "–", "a")),
    "reasoning": (rank1, ("a", ".", "!", "</think>", " ", "é", "true")),
    "last words": (lambda text: last_words(text, 10), ("a", " ", "\n")),
    "call": (sent, ("[", "{", "}", '"', "1", ",", "\\", '{"a":', "é", "%", "A")),
    "whole number": (whole_number, (" ", "1", "+", "a")),
    "answer of a server": (
        lambda text: error_of_reply(400, {"message": text}, {}, where="m", now=0),
        ("model ", "does not exist", "context ", "input length", "a", "longer than the "),
    ),
    "masked text": (
        lambda text: (redact(text), redact({"name": f"key={text}"})),
        pieces("api_key·=·: ·\"·'·\\\\·{·}·${·://·@·:·?·&·%·bearer ·a·A·_·-· ·\n"),
    ),
    "sentences": (rule_spans, (".", "!", "…", "\n", "。", " ", "'", '"', ")", "(", "A", "a", "Mr")),
    "lines": (line_spans, (".", "!", "\r", "\n", "。", " ", '"', ")", "A", "a", "1", "Mr. ")),
    "pages of a document": (pages_of_document, (".", "\r", "\n", " ", "a", "é", "Mr. ", "word ")),
    "tokens": (
        lambda text: (count_tokens(text), truncate(text, 10**6)),
        ("a", " ", ".", "\n", "é"),
    ),
    "excerpts": (excerpts, ("king", "kingking", "mill", "a", " ", "é", "İ", "_", "\n")),
    "line of a passage": (
        lambda text: line_of(text[: len(text) // 3] + "x", text.split("\n")),
        ("a", "b", "\n", " "),
    ),
    "words": (words, ("1", ".", ",", "a", "'", "-", "_", " ", "é")),
    "coverage": (
        lambda text: Coverage(CLUES).of_best_sentence("", text),
        ("The ", "King ", "mill ", "a ", "1 ", "one ", "May ", "x", "1900 ", "in "),
    ),
    "question": (
        lambda text: find_clues(text, lambda word: 0.5),
        ('"', "'", "a", "King", "!", ";", " ", ",", "and ", "which ", "or ", "?", "."),
    ),
    "index terms": (
        make_analyzer("english").terms,
        pieces('a·1·_·.·,·é·\u202f·ア·א·"·中·\u0300·\u200d·😀·🇦·#·\ufe0f·ก·\u203f·\U0001f3fb· '),
    ),
}
# Each was quadratic or worse once.
HOSTILE = {
    "numbers in one pair of brackets": ("answer", Text("1,", "2,", "Explanation: [", "]")),
    "a run of spaces on a line": ("answer", Text(" ", " ", "", "x")),
    "a run of marks": ("answer", Text("*", "_")),
    "spaces behind a label": ("answer", Text(" ", " ", "Explanation")),
    "marks in two classes": ("answer tokens", Text("\u0300", "\u0316", "a")),
    "thoughts that never end": ("rewritten query", Text("<think>", "<think>")),
    "question marks before a word": ("rewritten query", Text("?", "?", "", "x")),
    "a line of list marks": ("rewritten query", Text("- ", "- ", "", "x")),
    "empty lines": ("rewritten query", Text("\n", "\n", "", "x")),
    "one long number": ("permutation", Text("1", "2", "x")),
    "digits that no bracket closes": ("passage numbers", Text("1", "1", "[")),
    "stops before closing brackets": ("sentences", Text("...", ")", "", "x. ")),
    "one line without a break": ("pages of a document", Text("word ", "word ")),
    "a sentence of clue words": ("coverage", Text("mill 1 ", "mill 1 ")),
    "exclamation marks": ("question", Text("!", "!", "", "x")),
    "underscores with marks": ("index terms", Text("_\u0300", "_\u0300")),
    "joiners behind a picture": ("index terms", Text("😀", "\u200d")),
}
# Copying what is left at each step is quadratic too, but so fast that only long texts show it.
SMALLEST_HOSTILE = {
    "a line of list marks": 1 << 12,
    "a name of stop words": 1 << 12,
    "one line without a break": 1 << 16,
    "joiners behind a picture": SMALLEST["index terms"],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_is_read_in_linear_time(name):
    reader, text = HOSTILE[name]
    smallest = SMALLEST_HOSTILE.get(name, 512)
    assert_linear(READERS[reader][0], text, smallest=smallest, largest=64 * smallest)


@pytest.mark.parametrize("name", READERS)
def test_texts_of_whatever_a_reader_looks_for_are_read_in_linear_time(name):
    read, pieces = READERS[name]
    piece = st.sampled_from(pieces)
    run = st.lists(piece, min_size=1, max_size=3).map("".join)

    @settings(max_examples=12)
    @given(st.builds(Text, run, run, piece | st.just(""), piece | st.just("")))
    def check(text):
        smallest = SMALLEST.get(name, 512)
        assert_linear(read, text, smallest=smallest, largest=64 * 512)

    check()


@pytest.mark.parametrize(
    "text",
    [
        Text("1,", "2;", "Explanation: [", "]"),
        Text(" ", "*"),
        Text("[]", "[d1]"),
        Text("confidence ", "Exact Answer:"),
        Text("1", ".", "Confidence: "),
        Text("docid", ",", "[", "]"),
    ],
)
def test_an_answer_of_a_megabyte_is_read_in_linear_time(text):
    assert_linear(lambda answer: parse_answer(answer, KNOWN), text, largest=LARGEST_ANSWER)
