"""Rewriters: stages that replace the query before anything is ranked by it; and what they and other
stages read of a query."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd
import pyterrier as pt

from soundingline.pipelines.prompting import PromptTemplate
from soundingline.pipelines.stage import Stage, add_note, as_pyterrier
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.files import fingerprint

APPLY_TO = ("retriever", "reranker", "both")
# Forms of a query that a retriever would search in place of the new text.
_ENCODED = ("query_toks", "query_vec")


class QueryContext(NamedTuple):
    """A query, the id of its question, and the newest reasoning of its agent."""

    text: str
    qid: str = ""
    reasoning: str = ""


def query_contexts(frame: pd.DataFrame) -> list[QueryContext]:
    """The queries of a frame with the columns `qid`, `query` and, if known, `reasoning`.
    `InputError` if a query is not a text."""
    texts = frame["query"].tolist()
    for text in texts:
        if not isinstance(text, str):
            raise InputError(f"a query is {text!r}", valid="text")
    thoughts = frame["reasoning"].tolist() if "reasoning" in frame.columns else [""] * len(texts)
    reasoning = [thought if isinstance(thought, str) else "" for thought in thoughts]
    return list(map(QueryContext, texts, map(str, frame["qid"].tolist()), reasoning))


class RewrittenQuery(NamedTuple):
    """A new query, and events of its making as JSON values for the record of the search."""

    query: str
    events: Mapping[str, Any] = {}


@dataclass(kw_only=True, eq=False, repr=False)
class Rewriter(Stage, ABC):
    """Replaces each query by another one. A subclass implements `rewrite`.

    The input has the columns `qid`, `query`, and `reasoning` if the agent's reasoning is known.
    In the output `query` is the new query and `query_0` the one before it; an older `query_0`
    becomes `query_1`, and so on, as everywhere in PyTerrier. Weights and vectors of the query
    before it (`query_toks`, `query_vec`) are dropped. The note `rewrite` of a search has
    `raw`, `rewritten`, `apply_to` and the events of the rewriting.

    Args:
        apply_to: Which stages see the new query: `retriever`, `reranker` or `both`. `compose`
            arranges the stages accordingly.

    Raises:
        InputError: For another `apply_to`, and for a query that is not a text.

    Example:
        >>> class UpperCase(Rewriter):
        ...     def rewrite(self, queries):
        ...         return [RewrittenQuery(query.text.upper()) for query in queries]
        >>> frame = pd.DataFrame({"qid": ["1"], "query": ["king"]})
        >>> UpperCase().transform(frame)["query"].tolist()
        ['KING']
    """

    apply_to: str = "both"

    def __post_init__(self) -> None:
        if self.apply_to not in APPLY_TO:
            raise InputError(f"apply_to is {self.apply_to!r}", valid=", ".join(APPLY_TO))

    @abstractmethod
    def rewrite(self, queries: Sequence[QueryContext]) -> list[RewrittenQuery]:
        """The new query for each of `queries`, which all differ. Called by several threads."""

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Rewrite the queries of a frame. Rows with the same query and reasoning share one."""
        pt.validate.columns(inp, includes=["qid", "query"])
        inp = as_pyterrier(inp).drop(columns=list(_ENCODED), errors="ignore")
        queries = query_contexts(inp)
        distinct = list(dict.fromkeys(queries))
        rewritten = dict(zip(distinct, self.rewrite(distinct), strict=True))
        for query, result in rewritten.items():
            pair = {"raw": query.text, "rewritten": result.query, "apply_to": self.apply_to}
            add_note("rewrite", {**pair, **result.events})
        out = pt.model.push_queries(inp)
        texts = [rewritten[query].query for query in queries]
        out["query"] = pd.Series(texts, index=out.index, dtype=object)
        return out


@dataclass(kw_only=True, eq=False, repr=False)
class ReasoningQuery(Rewriter):
    """Puts the agent's newest reasoning before the query, by a template and without a model.

    It suits learned retrievers, above all those that are trained on such queries, such as AgentIR.
    A search before any reasoning has the word `Empty` in its place, and the note `rewrite` has
    `without_reasoning` then.

    Args:
        apply_to: See `Rewriter`.
        prompt: Path of a template with `{reasoning}` and `{query}`. The default is AgentIR's.

    Source: Chen et al., "AgentIR: Reasoning-Aware Retrieval for Deep Research Agents" (2026), arXiv
    2603.04384; searcher/prompts.py of texttron/AgentIR at 24d9078.
    """

    apply_to: str = "retriever"
    prompt: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        places = ("reasoning", "query")
        self._template = PromptTemplate(self.prompt, "rewriter/reasoning.txt", places)

    @property
    def fingerprint(self) -> str:
        """Hash of the template."""
        return fingerprint(self._template.text)

    def rewrite(self, queries: Sequence[QueryContext]) -> list[RewrittenQuery]:
        """The reasoning and the query of each of `queries`."""
        return [
            RewrittenQuery(
                self._template.filled({"reasoning": reasoning or "Empty", "query": query.text}),
                {} if reasoning else {"without_reasoning": True},
            )
            for query in queries
            for reasoning in [query.reasoning.strip()]
        ]
