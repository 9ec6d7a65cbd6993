"""`SearchTool`: settings of an interface and, once opened, the session of one question."""

from __future__ import annotations

import copy
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, NamedTuple

from typing_extensions import Self

from soundingline.toolkit.data import (
    DocumentStore,
    Hit,
    Lines,
    Ranking,
    SearchBackend,
    SearchRequest,
    Unit,
    parent,
    parents,
)
from soundingline.toolkit.errors import FileName, InputError, check_int
from soundingline.toolkit.llm.messages import tool_spec
from soundingline.toolkit.search.answers import parse_answer
from soundingline.toolkit.search.tool import (
    Page,
    Parameter,
    ToolError,
    ToolResult,
    call_text,
    quoted,
    recordable,
)
from soundingline.toolkit.tokens import Tokenizer, load_tokenizer
from soundingline.toolkit.trajectory import TIERS, Answer, Exposure, RecordedCall


@dataclass(frozen=True)
class CachedSearch:
    """A search whose ranking can be paged through, and the notes of the backend.

    Example:
        >>> _, search = tool.rank("old mill", depth=5)
        >>> (search.request.query, list(search.unit_ids))
        ('old mill', ['d1'])
    """

    request: SearchRequest
    hits: Sequence[Hit]
    notes: Mapping[str, Any]

    @property
    def unit_ids(self) -> Sequence[str]:
        """The unit ids of the hits, best first."""
        if isinstance(self.hits, Ranking):
            return self.hits.unit_ids
        return tuple([hit.unit_id for hit in self.hits])


class ToolOutput(NamedTuple):
    """The text of a tool for the model, what it shows as values, and the search of a call that
    searched.

    Example:
        >>> ToolOutput("Nothing matched.").page is None
        True
    """

    text: str
    page: Page | None = None
    search: CachedSearch | None = None


@dataclass(frozen=True)
class Tool:
    """A tool of an interface.

    Args:
        name, description, parameters: as a model sees them.
        serve: takes the checked arguments by name.
        searches_by: the name of the argument for the query of a tool that searches.
        reads_by: the name of the argument for the id of a document or unit of a tool that reads.
        usage: what a prompt says about the tool (`instructions`), by default the description.

    Example:
        >>> [each.name for each in tool.tools()]
        ['search', 'read_search_results', 'read_document']
    """

    name: str
    description: str
    parameters: Sequence[Parameter]
    serve: Callable[..., ToolOutput]
    searches_by: str = ""
    reads_by: str = ""
    usage: str = ""

    def schema(self) -> dict[str, Any]:
        """The tool in the function-calling form that model APIs share. The schema is strict: every
        argument is required (optional ones are nullable) and no other is allowed."""
        properties = {parameter.name: parameter.schema() for parameter in self.parameters}
        return tool_spec(self.name, self.description, properties)

    def check(self, arguments: Any) -> dict[str, Any]:
        """The arguments as the tool takes them; `ToolError` for the first that is not valid."""
        accepted = [parameter.name for parameter in self.parameters]
        names = ", ".join(accepted)
        if not isinstance(arguments, Mapping):
            raise ToolError(
                "arguments_not_an_object",
                f"arguments must be a JSON object; got {quoted(arguments)}. "
                f"Call {self.name} again with {names}.",
                tool=self.name,
            )
        for name in arguments:
            if name not in accepted:
                raise ToolError(
                    "unknown_argument",
                    f"{self.name} has no argument {quoted(name)}. Call it again with {names} only.",
                    tool=self.name,
                )
        return {
            parameter.name: parameter.check(arguments.get(parameter.name), self.name)
            for parameter in self.parameters
        }


@dataclass(kw_only=True, eq=False)
class SearchTool(ABC):
    """Base class of search-tool interfaces.

    An object holds the settings of an interface. `open` returns a copy that serves one question: it
    checks calls, caches rankings, and records calls and exposures. A subclass is a dataclass that
    adds settings, writes `tools`, and serves them with `rank`, `cached`, `units` and `read_lines`.
    Calls may overlap; they are recorded in the order in which they end.

    Args:
        max_rankings: rankings that are cached; the oldest is dropped.
        tokenizer: what counts the tokens of outputs, see
            `soundingline.toolkit.tokens.load_tokenizer`; None counts words and punctuation marks.

    Attributes:
        store: the document store (of an open tool, as all that follow).
        matching: how the retriever of `backend` matches queries: `lexical`, `learned`, `mixed` or
            `unknown`.
        reasoning: what the agent thought last. An agent sets it before a call; the backend gets it
            with the query. Searches with equal query and reasoning share a ranking.
        search_id_suffix: ends every search id, so that a search id alone identifies the session.
        keeps_calls: False if nobody will read `calls`, whose outputs would fill the memory.

    Raises:
        InputError: for settings out of range.

    Example:
        >>> [spec["name"] for spec in RankedBrowsing().open(backend, store).specs()]
        ['search', 'read_search_results', 'read_document']
    """

    max_rankings: int = 32
    tokenizer: FileName[str | None] = None

    _tools: Mapping[str, Tool] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        check_int("max_rankings", self.max_rankings)

    def open(
        self, backend: SearchBackend, store: DocumentStore, *, matching: str = "unknown"
    ) -> Self:
        """A copy with its own state, for one question; `matching` says how the retriever of
        `backend` matches queries, for prompts."""
        opened = copy.copy(self)
        opened._begin(backend, store, matching)
        return opened

    def _begin(self, backend: SearchBackend, store: DocumentStore, matching: str) -> None:
        self.backend, self.store, self.matching = backend, store, matching
        self.tokens: Tokenizer = load_tokenizer(self.tokenizer)
        self.clock: Callable[[], float] = time.perf_counter
        self.reasoning = self.search_id_suffix = self._blocked = ""
        self.keeps_calls = True
        self.exposures = ExposureLog()
        self._lock = threading.RLock()
        self._searches: dict[str, CachedSearch] = {}
        self._queries: list[str] = []
        self._calls: list[RecordedCall] = []
        self.begin()
        self._tools = {tool.name: tool for tool in self.tools()}

    def begin(self) -> None:  # noqa: B027 (most interfaces have no state of their own)
        """Called by `open`. A subclass creates its own state here."""

    @abstractmethod
    def tools(self) -> Iterable[Tool]:
        """The tools of this interface, in the order in which models see them. Called once."""

    @property
    def _opened_tools(self) -> Mapping[str, Tool]:
        if self._tools is None:
            raise InputError(
                f"this {type(self).__name__} holds settings and serves no question",
                do="call open(backend, store) and use the tool that it returns",
            )
        return self._tools

    @property
    def search_tool(self) -> tuple[str, str] | None:
        """The first tool that searches, and its argument for the query; None without one."""
        tools = self._opened_tools.values()
        return next(((each.name, each.searches_by) for each in tools if each.searches_by), None)

    @property
    def read_tool(self) -> tuple[str, str] | None:
        """The first tool that reads, and its argument for the id; None without one."""
        tools = self._opened_tools.values()
        return next(((each.name, each.reads_by) for each in tools if each.reads_by), None)

    @property
    def calls(self) -> Sequence[RecordedCall]:
        """The calls on record."""
        return tuple(self._calls)

    def specs(self) -> list[dict[str, Any]]:
        """`[{"name", "description", "parameters"}]`, with parameters as strict JSON schemas."""
        return [tool.schema() for tool in self._opened_tools.values()]

    def arguments(self, name: str, *, required: bool = False) -> list[str]:
        """The names of a tool's arguments, or of those alone that a call must give; empty for an
        unknown tool."""
        tool = self._opened_tools.get(name)
        parameters = tool.parameters if tool else ()
        return [each.name for each in parameters if not (required and each.is_optional)]

    def instructions(self) -> str:
        """What a prompt says about the tools: a line for each, and what its arguments add once for
        all tools that have them."""
        tools = self._opened_tools.values()
        lines = [f"- {tool.name}: {tool.usage or tool.description}" for tool in tools]
        arguments = [parameter.usage for tool in tools for parameter in tool.parameters]
        return "\n".join([*lines, *dict.fromkeys(filter(None, arguments))])

    def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Serve a call and record it. A call that is not valid returns a text for the model, its
        record has the code of the error, and it exposes nothing. Exceptions of the backend and the
        store are raised, and the call is not recorded."""
        return self.record(self.serve(name, arguments))

    def serve(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Serve a call without recording it. Calls may be served in several threads at once and
        recorded afterwards, in an order that does not depend on their times."""
        started = self.clock()
        error = ""
        try:
            if self._blocked:
                raise ToolError("blocked", self._blocked)
            tools = self._opened_tools
            tool = tools.get(name) if isinstance(name, str) else None
            if tool is None:
                valid = ", ".join(tools)
                message = f"there is no tool {quoted(name)}. Call one of: {valid}."
                raise ToolError("unknown_tool", message)
            text, page, search = tool.serve(**tool.check(arguments))
        except ToolError as failure:
            text, page, search, error = str(failure), None, None, failure.code
        layer = {"layer": page.layer} if page is not None and page.layer else {}
        call = RecordedCall(
            name=name if isinstance(name, str) and name.isprintable() else quoted(name),
            arguments=recordable(arguments),
            output=text,
            error=error,
            seconds=self.clock() - started,
            tokens=self.tokens.count(text),
            ranking=search.unit_ids if search else (),
            shown=() if page is None else tuple(page.shown),
            notes={**(search.notes if search else {}), **layer},
        )
        return ToolResult(call, page)

    def record(self, result: ToolResult) -> ToolResult:
        """Record a call that `serve` returned."""
        call, page = result.call, result.page
        with self._lock:
            if self.keeps_calls:
                self._calls.append(call)
            self.exposures.count(call.tokens)
            self.exposures.surface(parents(call.ranking))
            if page is not None:
                self.exposures.show(page.tier, map(parent, page.exposed), page.layer)
        return result

    def block(self, reason: str) -> None:
        """Refuse every later call with `reason`, for example that the time is over."""
        self._blocked = reason

    def answer(self, text: str) -> Answer:
        """Parse a final answer and mark the documents that it cites as cited: those that a call of
        this session returned."""
        answer = parse_answer(text, self.exposures.known)
        self.exposures.show("cited", answer.citations)
        return answer

    def rank(self, query: str, depth: int = 1000) -> tuple[str, CachedSearch]:
        """Rank `depth` hits, or take the ranking of an equal request, under a new search id."""
        request = SearchRequest(query.strip(), self.reasoning, depth)
        with self._lock:
            searches = self._searches.values()
            search = next((each for each in searches if each.request == request), None)
        if search is None:
            result = self.backend.search(request)
            search = CachedSearch(request, result.hits[:depth], recordable(result.notes))
        return self.cache(search), search

    def cache(self, search: CachedSearch) -> str:
        """Keep a search for equal requests and for paging; returns its search id."""
        with self._lock:
            self._queries.append(search.request.query)
            search_id = f"s{len(self._queries)}{self.search_id_suffix}"
            self._searches[search_id] = search
            if len(self._searches) > self.max_rankings:
                del self._searches[next(iter(self._searches))]
        return search_id

    def cached(self, search_id: str) -> CachedSearch | None:
        """An earlier search; None if the id is unknown or the search was dropped."""
        return self._searches.get(search_id)

    def read_lines(self, tool: str, docid: str, first: int, limit: int, **extra: Any) -> Lines:
        """At most `limit` lines of a document from line `first`. Raises `KeyError` for an unknown
        docid, and a `ToolError` of `tool` for a line past the end, whose message names the call for
        the beginning, with the arguments `extra` in front."""
        lines = self.store.lines(docid, first, limit)
        if lines.lines:
            return lines
        again = call_text(tool, **extra, docid=docid, offset=1)
        raise ToolError(
            "past_the_end",
            f"document {quoted(docid)} has {lines.total} lines; line {first} is past its end. "
            f"Call {again} for its beginning.",
            tool=tool,
            field="offset",
        )

    def units(self, unit_ids: Sequence[str]) -> list[Unit]:
        """Titles and texts of hits; `InputError` if one is missing from the store."""
        try:
            return self.store.texts(unit_ids)
        except KeyError as error:
            raise InputError(
                f"the ranking names {error}, which is missing from the document store",
                do="build the index and the store from the same corpus",
            ) from error


class ExposureLog:
    """The documents that an agent was exposed to, in ordered sets of docids, one for each evidence
    tier: surfaced (in a ranking, shown or not), previewed (on a page of results; where pages have
    excerpts, with one), opened (its text was read) and cited (by the answer). `rows` has one row
    for the first showing of each document, and of each layer of it, in the last three tiers, with
    the tokens of all tool output up to the end of the call; `tokens` are those so far.

    Example:
        >>> _ = tool.call("search", {"reason": "Where is it?", "query": "old mill"})
        >>> _ = tool.call("read_document", {"reason": "It is the first hit.", "docid": "d1"})
        >>> tool.exposures.tiers
        {'surfaced': ('d1',), 'previewed': ('d1',), 'opened': ('d1',), 'cited': ()}
    """

    def __init__(self) -> None:
        self._tiers: dict[str, dict[str, None]] = {tier: {} for tier in TIERS}
        self._shown: set[str] = set()
        self._layers: set[tuple[str, str, str]] = set()
        self._rows: list[Exposure] = []
        self._calls = 0
        self.tokens = 0

    @property
    def tiers(self) -> Mapping[str, Sequence[str]]:
        return {tier: tuple(docids) for tier, docids in self._tiers.items()}

    @property
    def rows(self) -> Sequence[Exposure]:
        return tuple(self._rows)

    @property
    def known(self) -> Collection[str]:
        """The documents that calls have returned, which are those that an answer can cite."""
        surfaced, previewed, opened = (self._tiers[tier] for tier in TIERS[:3])
        return (surfaced | previewed | opened).keys()

    def restore(self, calls: Sequence[RecordedCall], rows: Sequence[Exposure]) -> None:
        """Continue a log that recorded these calls and rows."""
        for call in calls:
            self.count(call.tokens)
            self.surface(parents(call.ranking))
        for row in rows:
            self._rows.append(row)
            self._tiers[row.tier][row.docid] = None
            self._layers.add((row.tier, row.docid, row.layer))
            if row.tier != "cited":
                self._shown.add(row.docid)

    def count(self, tokens: int) -> None:
        """Count a call whose output has `tokens` tokens, before its `surface` and `show`."""
        self._calls += 1
        self.tokens += tokens

    def surface(self, docids: Iterable[str]) -> None:
        """Add the documents of a ranking, best first."""
        self._tiers["surfaced"].update(zip(docids, repeat(None)))

    def show(self, tier: str, docids: Iterable[str], layer: str = "") -> None:
        """Add the documents that the newest call showed in a tier, in this order."""
        for docid in docids:
            if tier != "cited":
                self._shown.add(docid)
            self._tiers[tier][docid] = None
            if (tier, docid, layer) not in self._layers:
                self._layers.add((tier, docid, layer))
                self._rows.append(
                    Exposure(self._calls, tier, docid, len(self._shown), self.tokens, layer)
                )
