"""Runs in the formats of TREC RAG 2026: the documents of the retrieval task (R), and the answers
with citations of the RAG task. By the organizers' guidelines of 29 July 2026 (github.com/TREC-RAG/
trec-rag-skills), a run states for each question all documents that it takes for useful, and no
others; an answer has at most 1,024 words, as `str.split` counts them, in objects with at most three
citations each, which are positions (from 0) in `references`."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from soundingline.toolkit.corpus.segmentation import rule_spans
from soundingline.toolkit.data import parent
from soundingline.toolkit.search.answers import find_citations
from soundingline.toolkit.trajectory import Trajectory

RETRIEVAL_FILE = "r_output_trec_rag_2026.tsv"
RAG_FILE = "rag_output_trec_rag_2026.jsonl"
MOST_WORDS, MOST_CITATIONS = 1024, 3
CitedSentence = tuple[str, Sequence[str]]
_BRACKET = re.compile(r"\s*(?:\[[^\[\]]*\]|【[^【】]*】)")


def useful_documents(trajectory: Trajectory) -> list[str]:
    """The documents that the agent took for useful: those that its answer lists; else the cited and
    the opened ones; else those that it was shown. Each once, in the order of first exposure."""
    tiers = trajectory.tiers
    read = [*tiers.get("cited", ()), *tiers.get("opened", ())]
    chosen = trajectory.answer.documents or read or tiers.get("previewed", ())
    return list(dict.fromkeys(map(parent, chosen)))


def rag_row(trajectory: Trajectory, *, team: str, run: str, description: str) -> dict[str, Any]:
    """The row of a question: `metadata` (with the ids of team and run, and the run's description),
    `references` and `answer`. A question without an answer has an empty one."""
    sentences = cited_sentences(trajectory)
    cited = chain.from_iterable(docids for _, docids in sentences)
    references = list(dict.fromkeys([*cited, *useful_documents(trajectory)]))
    return {
        "metadata": {
            "team_id": team,
            "narrative_id": trajectory.qid,
            "narrative": trajectory.question,
            "run_id": run,
            "run_desc": description,
        },
        "references": references,
        "answer": [
            {"text": text, "citations": [references.index(docid) for docid in docids]}
            for text, docids in sentences
        ],
    }


def cited_sentences(trajectory: Trajectory) -> list[CitedSentence]:
    """The sentences of an answer without their citations, and the documents that each cites, at
    most three. They are those of the explanation, after the exact answer where the explanation
    does not contain it. Citations between two sentences belong to the first. Sentences beyond 1,024
    words are left out; a single longer one is cut."""
    exact, explanation = trajectory.answer.exact, trajectory.answer.explanation
    contained = exact.casefold() in explanation.casefold()
    text = explanation if contained else f"{exact}\n{explanation}"
    known = set(chain.from_iterable(trajectory.tiers.values()))
    plain, citations = "", list[tuple[int, Sequence[str]]]()
    last = 0
    for match in _BRACKET.finditer(text):
        if cited := find_citations(match.group(), known):
            plain += text[last : match.start()]
            citations.append((len(plain), cited))
            last = match.end()
    plain += text[last:]
    spans = rule_spans(plain)
    cites: list[list[str]] = [[] for _ in spans]
    starts = [start for start, _ in spans]
    for position, docids in citations if spans else ():
        # A citation follows what it supports.
        cites[max(0, bisect_left(starts, position) - 1)].extend(docids)
    sentences = (" ".join(plain[start:end].split()) for start, end in spans)
    return _within_limits(zip(sentences, cites, strict=True))


def _within_limits(sentences: Iterable[CitedSentence]) -> list[CitedSentence]:
    left, within = MOST_WORDS, list[CitedSentence]()
    for text, docids in sentences:
        words = text.split()
        if len(words) > left and within:
            break
        cited = list(dict.fromkeys(map(parent, docids)))[:MOST_CITATIONS]
        within.append((" ".join(words[:left]), cited))
        left -= len(words)
    return within
