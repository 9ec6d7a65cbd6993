"""One question's session: checks calls, serves them, and records calls and evidence."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from toolkit.checks import check_integer
from toolkit.contracts import (
    Abilities,
    Answer,
    Details,
    DocumentStore,
    Exposure,
    Hit,
    Hits,
    Lines,
    Refusal,
    SearchBackend,
    SearchRequest,
    ToolCall,
    ToolResult,
    ToolUse,
    Unit,
    parent,
    parents,
)
from toolkit.errors import InputError
from toolkit.search.answers import parse_answer
from toolkit.search.errors import ToolError, quoted
from toolkit.search.evidence import EvidenceLog
from toolkit.search.schemas import ToolSpec, call_text, recordable
from toolkit.tokens import WORDS, Tokens, tokens_of

Settings = TypeVar("Settings")
Session = TypeVar("Session")


class CachedRanking(NamedTuple):
    """A cached ranking. `hits` are cut to the session's depth; `unit_ids` names them in order;
    `notes` are the backend's."""

    request: SearchRequest
    hits: Sequence[Hit]
    unit_ids: Sequence[str]
    notes: Mapping[str, Any]


class Page(NamedTuple):
    """What a tool gives: text for the model, and what that text shows, which is what the agent has
    been exposed to. `ranking` is set by searches only."""

    text: str
    details: Details | Refusal | None = None
    ranking: CachedRanking | None = None


class Served(NamedTuple):
    """A call that was served: its record, and what it gave."""

    call: ToolCall
    page: Page


class Tool(NamedTuple):
    """A tool's schema and the method that serves it with checked arguments.

    `searches_by` names the argument that takes a query, where the tool searches; `reads_by` the one
    that takes the id of a document or of a unit, where it reads.
    """

    spec: ToolSpec
    serve: Callable[..., Page]
    searches_by: str = ""
    reads_by: str = ""


@dataclass(frozen=True, kw_only=True)
class SessionSettings:
    """Settings that every interface has.

    `max_rankings`: rankings kept for repeated queries and for browsing, the oldest dropped first.
    `tokenizer` names what counts the tokens of outputs (`toolkit.tokens.tokens_of`); None: words
    and single marks. Raises `InputError` for `max_rankings` below 1.
    """

    max_rankings: int = 32
    tokenizer: str | None = None

    def __post_init__(self) -> None:
        check_integer("max_rankings", self.max_rankings)

    @property
    def tokens(self) -> Tokens:
        """What counts tokens; loaded when it is first asked for."""
        return tokens_of(self.tokenizer)

    def open_session(
        self,
        session: Callable[..., Session],
        backend: SearchBackend,
        store: DocumentStore,
        clock: Callable[[], float],
        *,
        depth: int,
    ) -> Session:
        """A session of this class with these settings; `depth`: hits of a ranking."""
        return session(
            self,
            backend,
            store,
            depth=depth,
            max_rankings=self.max_rankings,
            tokens=self.tokens,
            clock=clock,
        )


class ToolSession(ABC, Generic[Settings]):
    """Base of the interfaces; implements `contracts.SearchTool`. Serves one question, whose calls
    may be under way beside each other, and holds no state outside itself. Calls are on record in
    the order in which they end.

    An interface writes `tools`, and serves them with `rank`, `kept`, `units` and `lines`.
    `settings` are the interface's own. `depth`: hits of a ranking. `max_rankings`: rankings kept,
    the oldest dropped first. `tokens` counts what outputs have. `clock` gives seconds.

    `reasoning` is what the agent thought last: a loop whose pipeline wants it sets it before a
    call, and it goes to the backend with the query. Equal requests (query and reasoning) share one
    ranking as long as it is kept: the repeat gets a search id of its own, counts as a call, and
    does not reach the backend.
    """

    def __init__(
        self,
        settings: Settings,
        backend: SearchBackend,
        store: DocumentStore,
        *,
        depth: int = 1000,
        max_rankings: int = 32,
        tokens: Tokens = WORDS,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.settings = settings
        self.tokens = tokens
        self.store = store
        self.depth = depth
        self.reasoning = ""
        self._backend = backend
        self._max_rankings = max_rankings
        self._clock = clock
        self._blocked = ""
        self._lock = threading.RLock()
        self._rankings: dict[str, CachedRanking] = {}
        self._queries: list[str] = []
        self._calls: list[ToolCall] = []
        self._evidence = EvidenceLog()
        self._tools = {tool.spec.name: tool for tool in self.tools()}

    @abstractmethod
    def tools(self) -> Iterable[Tool]:
        """The tools of this interface, in the order in which models see them. Called once."""

    @property
    def abilities(self) -> Abilities:
        tools = self._tools.items()
        searching = [ToolUse(name, tool.searches_by) for name, tool in tools if tool.searches_by]
        reading = [ToolUse(name, tool.reads_by) for name, tool in tools if tool.reads_by]
        return Abilities(next(iter(searching), None), next(iter(reading), None))

    @property
    def calls(self) -> Sequence[ToolCall]:
        return tuple(self._calls)

    @property
    def evidence(self) -> EvidenceLog:
        return self._evidence

    def specs(self) -> list[dict[str, Any]]:
        """`[{"name", "description", "parameters"}]`, parameters as strict JSON schemas."""
        return [tool.spec.schema() for tool in self._tools.values()]

    def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Serve one call, whatever its name and arguments are.

        What was wrong comes back as text and as the record's `error` (a code of `ToolError`); such
        a call exposes nothing. What the backend or the store raises is raised, and not recorded.
        """
        return self.record(self.serve(name, arguments))

    def serve(self, name: str, arguments: Mapping[str, Any]) -> Served:
        """As `call`, without an entry in the record. Calls may be served beside each other, in
        threads, and are then entered by `record` in an order that does not depend on their times.
        """
        started = self._clock()
        try:
            page, error = self._serve(name, arguments), ""
        except ToolError as refusal:
            page, error = Page(str(refusal), refusal.details), refusal.code
        exposed = None if isinstance(page.details, Refusal) else page.details
        layer = str(getattr(exposed, "layer", ""))
        record = ToolCall(
            name=name if isinstance(name, str) and name.isprintable() else quoted(name),
            arguments=recordable(arguments),
            output=page.text,
            error=error,
            seconds=self._clock() - started,
            tokens=self.tokens.count(page.text),
            ranking=page.ranking.unit_ids if page.ranking else (),
            shown=tuple(exposed.shown) if exposed else (),
            notes={
                **(page.ranking.notes if page.ranking else {}),
                **({"layer": layer} if layer else {}),
            },
        )
        return Served(record, page)

    def record(self, served: Served) -> ToolResult:
        """Enter a call that was served in the record."""
        page = served.page
        exposed = None if isinstance(page.details, Refusal) else page.details
        self._record(served.call, page.ranking, exposed)
        return ToolResult(page.text, served.call, page.details)

    def restore(self, calls: Sequence[ToolCall], exposures: Sequence[Exposure]) -> None:
        """Begin where an earlier session ended: with what it has on record. Its rankings are not
        kept."""
        self._calls += calls
        self._evidence.restore(calls, exposures)

    def block(self, reason: str) -> None:
        """Refuse every later call with `reason` (say, that the time for retrieval is over)."""
        self._blocked = reason

    def cite(self, docids: Iterable[str]) -> Sequence[str]:
        """Mark documents as cited; passage ids count as their documents, ids that this session
        never brought up do not count. Returns those that do, each once, in order."""
        known = self._evidence.known
        cited = tuple(dict.fromkeys(parent(docid) for docid in docids if parent(docid) in known))
        self._evidence.show("cited", cited)
        return cited

    def answer(self, text: str) -> Answer:
        """The parts of a final answer, its citations marked as cited."""
        answer = parse_answer(text, self._evidence.known)
        self.cite(answer.citations)
        return answer

    def _serve(self, name: str, arguments: Mapping[str, Any]) -> Page:
        if self._blocked:
            raise ToolError("blocked", self._blocked)
        tool = self._tools.get(name) if isinstance(name, str) else None
        if tool is None:
            raise ToolError(
                "unknown_tool",
                f"there is no tool {quoted(name)}. Call one of: {', '.join(self._tools)}.",
            )
        return tool.serve(**tool.spec.check(arguments))

    def _record(
        self, record: ToolCall, ranking: CachedRanking | None, exposed: Details | None
    ) -> None:
        with self._lock:
            self._calls.append(record)
            self._evidence.count(record.tokens)
            if ranking:
                self._evidence.surface(parents(ranking.unit_ids))
            if exposed:
                docids = [parent(unit_id) for unit_id in exposed.shown]
                self._evidence.show(exposed.tier, docids, getattr(exposed, "layer", ""))

    def rank(self, query: str) -> tuple[str, CachedRanking]:
        """A new search id and its ranking, kept from an equal request or from the backend."""
        request = SearchRequest(query.strip(), self.reasoning, self.depth)
        with self._lock:
            ranking = self._cached(request)
        if ranking is None:
            result = self._backend.search(request)
            hits = result.hits[: self.depth]
            ranking = CachedRanking(request, hits, _unit_ids(hits), recordable(result.notes))
        with self._lock:
            self._queries.append(request.query)
            search_id = f"s{len(self._queries)}"
            self._rankings[search_id] = ranking
            if len(self._rankings) > self._max_rankings:
                del self._rankings[next(iter(self._rankings))]
        return search_id, ranking

    def kept(self, search_id: str) -> CachedRanking | None:
        """The ranking of an earlier search; None if there was none of that id, or if it was
        dropped."""
        return self._rankings.get(search_id)

    def _cached(self, request: SearchRequest) -> CachedRanking | None:
        held = self._rankings.values()
        return next((ranking for ranking in held if ranking.request == request), None)

    def lines(self, tool: str, docid: str, first: int, limit: int, **extra: Any) -> Lines:
        """At most `limit` lines of a document from line `first`. `KeyError` for an unknown docid;
        `ToolError` of `tool` past the end, which tells the call for its beginning with the
        arguments `extra` in front."""
        try:
            return self.store.lines(docid, first, limit)
        except ValueError:
            total = self.store.lines(docid, 1, 1).total
            if first <= total:
                raise
        again = call_text(tool, **extra, docid=docid, offset=1)
        raise ToolError(
            "past_the_end",
            f"document {quoted(docid)} has {total} lines; line {first} is past its end. "
            f"Call {again} for its beginning.",
            tool=tool,
            field="offset",
        )

    def units(self, unit_ids: Sequence[str]) -> list[Unit]:
        """Titles and texts of hits. That a hit has none is no fault of the call."""
        try:
            return self.store.texts(unit_ids)
        except KeyError as error:
            raise InputError(
                f"the ranking names {error}, which the document store lacks",
                do="build the index and the store from the same corpus",
            ) from error


def _unit_ids(hits: Sequence[Hit]) -> tuple[str, ...]:
    return hits.unit_ids if isinstance(hits, Hits) else tuple([hit.unit_id for hit in hits])
