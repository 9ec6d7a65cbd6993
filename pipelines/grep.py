"""The grep agents that SIRA's paper compares with: a language model writes strings, and the texts
that contain them are ranked without an index.

Both follow the authors' code (`scripts/greprag_retrieve.py` and `scripts/iterative_retrieve.py` of
facebookresearch/sira at 57f9cbb). Not published are the prompts, the numbers of patterns, turns and
hits, the length of excerpts, the order of the hits of a search and the fusion that the paper used;
those here are ours. Each search reads all texts, once for all queries of a frame.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pyterrier as pt

from soundingline.pipelines.engines.engine import RankedList
from soundingline.pipelines.enrich.phrases import read_phrases
from soundingline.pipelines.fusion import FUSIONS, fused_by_rank
from soundingline.pipelines.index_folder import batches
from soundingline.pipelines.prompting import LlmStep, PromptTemplate
from soundingline.pipelines.retrieve import check_queries, ranked
from soundingline.pipelines.rewrite import QueryContext, query_contexts
from soundingline.pipelines.stage import Stage, as_pyterrier, not_bound
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError, check_int
from soundingline.toolkit.files import fingerprint
from soundingline.toolkit.llm.blocking import BlockingModel
from soundingline.toolkit.llm.messages import Message, system
from soundingline.toolkit.llm.prompts import json_values

_BATCH = 1024  # texts in memory at once
_START = 5  # characters of a string by which texts are chosen
_MOST_OF_A_PATTERN = 5  # times the depth


@dataclass(kw_only=True, eq=False, repr=False)
class StringRetriever(LlmStep, Stage):
    """Base of retrievers whose language model writes strings to look for.

    The input has `qid` and `query`. The output has every column of the input, and `docno`, `score`,
    `rank` (from 0). Upper and lower case are the same; a text is title and body. `InputError` for
    arguments out of range, and without a collection with texts and a language model. The `counts`
    are `queries`, replies that were `unreadable`, `searches`, and those of `LlmStep`.
    """

    model: BlockingModel | None = field(default=None, kw_only=False)
    prompt: str | None = None
    depth: int = 100

    counted = ("queries", "unreadable", "searches")
    supports: ClassVar[frozenset[str]] = frozenset()
    matching: ClassVar[str] = "lexical"
    file: ClassVar[str] = ""
    places: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        check_int("depth", self.depth)
        self._prompt = PromptTemplate(self.prompt, f"retriever/{self.file}.txt", self.places)
        self.prepare_llm(f"retrieve-{self.file}", [self.file], messages=_conversation)

    @property
    def fingerprint(self) -> str:
        """Hash of the prompt, and of the model and how it samples if it is known."""
        return fingerprint(self._prompt.text, super().fingerprint)

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        pt.validate.query_frame(inp, extra_columns=["query"], context=self)
        check_queries(inp)
        inp = as_pyterrier(inp)
        queries = query_contexts(inp)
        self._counts.add(queries=len(queries))
        rankings = []
        for scores in self.scores(queries):
            best = sorted(scores, key=scores.__getitem__, reverse=True)[: self.depth]
            rankings.append(RankedList(best, [scores[docno] for docno in best]))
        return ranked(inp, rankings)

    @abstractmethod
    def scores(self, queries: Sequence[QueryContext]) -> list[Mapping[str, float]]:
        """The score of each docno that a query finds; equal scores rank in this order."""

    def matching_texts(
        self, strings: Mapping[int, Collection[str]]
    ) -> Iterator[tuple[int, Unit, str, Sequence[str]]]:
        """Each text that contains some of the `strings` (in lower case) of a query: the number of
        the query, the unit, its text in lower case, and the strings. In the collection's order.
        Strings may be removed meanwhile."""
        if self.collection is None or self.collection.texts is None:
            raise not_bound(self, "call bind(collection) with a collection that has texts")
        # A text is searched for those strings alone whose first characters it contains: with the
        # strings of thousands of queries, some hundreds of times fewer.
        by_start: dict[str, list[tuple[int, str]]] = {}
        for query, wanted in strings.items():
            for each in wanted:
                by_start.setdefault(each[:_START], []).append((query, each))
        lengths = {len(start) for start in by_start}
        index = self.collection.index
        for docnos in batches(index.docnos.take(np.arange(len(index))).tolist(), _BATCH):
            for unit in self.collection.texts(docnos):
                text = unit.contents.lower()
                starts = {text[n : n + length] for length in lengths for n in range(len(text))}
                found: dict[int, list[str]] = {}
                for start in by_start.keys() & starts:
                    for query, each in by_start[start]:
                        if each in strings[query] and each in text:
                            found.setdefault(query, []).append(each)
                for query in sorted(found):
                    yield query, unit, text, found[query]


@dataclass(kw_only=True, eq=False, repr=False)
class GrepRag(StringRetriever):
    """GrepRAG (Wang et al., 2026, arXiv 2601.23254): the model writes patterns, which are plain
    strings. The texts that contain any of them are pooled, at most five times `depth` for each
    pattern, and ranked by the Jaccard similarity of their words with those of the query.

    Args:
        model: See `Pointwise`.
        prompt: Path of a prompt with `{query}` and `{patterns}`, whose reply is a JSON object with
            a list under `patterns`, `queries` or `keywords`, or a JSON list.
        patterns: How many patterns the prompt asks for.
        depth: Rows of a query.
    """

    patterns: int = 10

    file: ClassVar[str] = "greprag"
    places: ClassVar[tuple[str, ...]] = ("query", "patterns")

    def __post_init__(self) -> None:
        check_int("patterns", self.patterns)
        super().__post_init__()

    def scores(self, queries: Sequence[QueryContext]) -> list[Mapping[str, float]]:
        number = str(self.patterns)
        prompts = [self._prompt.filled({"query": q.text, "patterns": number}) for q in queries]
        prompts = [json.dumps([prompt]) for prompt in prompts]
        replies = self.ask(prompts, [query.qid for query in queries])
        left = {n: self._patterns(reply.text) for n, reply in enumerate(replies)}
        words = [set(query.text.lower().split()) for query in queries]
        pools: list[dict[str, float]] = [{} for _ in queries]
        for query, unit, text, found in self.matching_texts(left):
            for pattern in found:
                left[query][pattern] -= 1
                if not left[query][pattern]:
                    del left[query][pattern]
            pools[query][unit.unit_id] = jaccard(words[query], set(text.split()))
        return list(pools)

    def _patterns(self, reply: str) -> dict[str, int]:
        """The patterns of a reply, each with the number of texts that it may add."""
        listed = read_phrases(reply, ("patterns", "queries", "keywords")) or []
        texts = [each.lower() for each in listed if isinstance(each, str) and each.strip()]
        self._counts.add(searches=len(texts), unreadable=not texts)
        return dict.fromkeys(texts, _MOST_OF_A_PATTERN * self.depth)


@dataclass(kw_only=True, eq=False, repr=False)
class ShellAgent(StringRetriever):
    """ShellAgent (Subramanian et al., 2025, arXiv 2602.23368): in each turn the model replies with
    a search or with its end, as JSON, and reads excerpts of the hits. A search finds the texts that
    contain any of its words: those with the most different ones first, then the order of the
    collection. The documents of all searches are ranked by a fusion of their ranks.

    Args:
        model: See `Pointwise`.
        prompt: Path of a system message with `{turns}`, whose replies are JSON objects: `action` is
            `search`, with `query`, or `done`. Any other reply ends the search.
        turns: Most searches.
        page: Hits of a search that are shown and counted.
        excerpt_characters: Of each hit, around the first word that matches.
        fusion: `best_rank` (1 / (1 + the best rank)), `frequency` (the number of searches) or `rrf`
            (reciprocal rank fusion with k = 60). Equal scores rank in the order in which documents
            were found.
        depth: Rows of a query.
    """

    turns: int = 5
    page: int = 10
    excerpt_characters: int = 300
    fusion: str = "best_rank"

    file: ClassVar[str] = "shell_agent"
    places: ClassVar[tuple[str, ...]] = ("turns",)

    def __post_init__(self) -> None:
        for name in ("turns", "page", "excerpt_characters"):
            check_int(name, getattr(self, name))
        if self.fusion not in FUSIONS:
            raise InputError(f"fusion={self.fusion!r}", valid=", ".join(FUSIONS))
        super().__post_init__()

    def scores(self, queries: Sequence[QueryContext]) -> list[Mapping[str, float]]:
        opening = self._prompt.filled({"turns": str(self.turns)})
        talks = [[opening, f"Find documents that are relevant to: {q.text}"] for q in queries]
        rankings: list[list[list[str]]] = [[] for _ in queries]
        searching = list(range(len(queries)))
        for left in reversed(range(self.turns)):
            prompts = [json.dumps(talks[n]) for n in searching]
            found = self.ask(prompts, [queries[n].qid for n in searching])
            replies = {n: reply.text for n, reply in zip(searching, found, strict=True)}
            words = {n: self._words(reply) for n, reply in replies.items()}
            hits = self._hits({n: found for n, found in words.items() if found})
            for n, shown in hits.items():
                rankings[n].append([docno for docno, _ in shown])
                lines = [f"[{r}] (id={d}) {text}" for r, (d, text) in enumerate(shown, start=1)]
                more = f"You have {left} of {self.turns} searches left. Search for other words, "
                more += 'or reply {"action": "done"} if you have found enough.'
                page = "\n\n".join([f"{len(shown)} documents found.", *lines, more])
                talks[n] += [replies[n], page]
            searching = list(hits)
        return [fused_by_rank(found, FUSIONS[self.fusion]) for found in rankings]

    def _words(self, reply: str) -> list[str]:
        """The words of the search in a reply, in lower case; none if it ends the search."""
        actions = [v for v in json_values(reply) if isinstance(v, dict) and "action" in v]
        action = actions[-1] if actions else {}
        query = action.get("query") if action.get("action") == "search" else None
        words = list(dict.fromkeys(query.lower().split())) if isinstance(query, str) else []
        ended = action.get("action") == "done"
        self._counts.add(searches=bool(words), unreadable=not words and not ended)
        return words

    def _hits(self, words: Mapping[int, Sequence[str]]) -> dict[int, list[tuple[str, str]]]:
        """Docno and excerpt of the best texts of each search."""
        best: dict[int, list[tuple[int, str, str]]] = {n: [] for n in words}
        for n, unit, text, found in self.matching_texts(words):
            half = self.excerpt_characters // 2
            first = min(map(text.index, found))
            start, end = max(0, first - half), first + half
            excerpt = unit.contents[start:end]
            excerpt = f"{'…' * (start > 0)}{excerpt}{'…' * (end < len(text))}"
            best[n].append((len(found), unit.unit_id, excerpt))
            best[n] = sorted(best[n], key=lambda hit: -hit[0])[: self.page]
        return {n: [(docno, excerpt) for _, docno, excerpt in hits] for n, hits in best.items()}


def jaccard(words: set[str], others: set[str]) -> float:
    """The share of the words of two texts that both have; 0 if one has none."""
    return len(words & others) / len(words | others) if words and others else 0.0


def _conversation(prompt: str) -> list[Message]:
    """The messages of a prompt that is a JSON list of texts: one alone is the user's; of several,
    the first is the system's, and the others are the user's and the model's by turns."""
    texts: list[Any] = json.loads(prompt)
    first = [system(texts.pop(0))] if len(texts) > 1 else []
    roles = ("user", "assistant")
    return first + [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)]
