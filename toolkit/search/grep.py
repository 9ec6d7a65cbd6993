"""Search by patterns instead of rankings: regular expressions over the texts of a store.

Patterns are matched by RE2 (google-re2), whose time grows with the length of the text and of the
compiled pattern and with nothing else, so that what is found depends on documents and pattern
alone. A backtracking engine would need a limit of time for each document, and a slow machine would
find less.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import nlargest
from itertools import islice
from typing import Any, ClassVar

from toolkit.checks import check_integer, check_number
from toolkit.contracts import (
    Document,
    DocumentStore,
    Hit,
    SearchBackend,
    SearchRequest,
    SearchResult,
    ToolUse,
)
from toolkit.corpus.lines import line_spans
from toolkit.errors import InputError
from toolkit.extras import check_installed, require
from toolkit.search.browsing import REASON, Browsing, BrowsingSession
from toolkit.search.errors import ToolError, quoted
from toolkit.search.excerpts import cut
from toolkit.search.schemas import TextParameter, ToolSpec
from toolkit.search.session import CachedRanking, Page, Tool

SYNTAXES = {"regex": "pattern", "words": "words"}  # each with the argument that takes it
ORDERS = ("matches", "corpus")
_GREP = "grep"
_WORD = re.compile(r"\w+")
# RE2 holds the interpreter's lock while it reads a piece, so that pieces are short.
_PIECE = 1 << 14
Spans = Iterator[tuple[int, int]]


@dataclass(frozen=True, kw_only=True)
class Grep(Browsing):
    """Settings of an interface with `grep`, `read_search_results` and `read_document`.

    A pattern is matched within single lines of titles and whole texts of documents, whatever the
    unit of the index is; the pipeline is not used. `syntax`: `regex` (RE2's), or `words`, of which
    any may match as a whole word, for agents that write no patterns. `order` of the documents that
    match: `matches` (most first, then in the order of the corpus) or `corpus`. `lines`: matching
    lines shown of each hit.

    Limits of one call: `max_pattern` characters; `max_program` instructions of the compiled
    pattern; `max_matches` counted in each document; `max_documents` read, None for all; `seconds`
    of reading, None for no limit. What a limit left out is told to the agent and recorded in the
    call's notes (`documents` read, `matching`, `stopped` by). `seconds` alone depends on the
    machine. For the other settings see `Browsing`. Raises `InputError` for impossible
    values and where google-re2 is not installed.
    """

    asks_pipeline: ClassVar[bool] = False

    syntax: str = "regex"
    order: str = "matches"
    case_sensitive: bool = False
    lines: int = 3
    max_pattern: int = 1000
    max_program: int = 2000
    max_matches: int = 100
    max_documents: int | None = None
    seconds: float | None = 30.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, valid in (("syntax", tuple(SYNTAXES)), ("order", ORDERS)):
            if getattr(self, name) not in valid:
                raise InputError(f"{name}={getattr(self, name)!r}", valid=", ".join(valid))
        check_integer("lines", self.lines, least=0)
        for name in ("max_pattern", "max_program", "max_matches"):
            check_integer(name, getattr(self, name))
        if self.max_documents is not None:
            check_integer("max_documents", self.max_documents)
        if self.seconds is not None:
            check_number("seconds", self.seconds, above=True)
        check_installed("re2")

    def session(
        self,
        backend: SearchBackend,
        store: DocumentStore,
        clock: Callable[[], float] = time.perf_counter,
    ) -> GrepSession:
        """A session for one question; `clock` gives seconds. The backend is not asked."""
        scan = Scan(self, store, clock)
        return self.open_session(GrepSession, scan, store, clock, depth=self.depth)

    def compile(self, query: str) -> Any:
        """The pattern, compiled; `ToolError` for one that is wrong, or larger than allowed."""
        re2 = require("re2")
        argument = SYNTAXES[self.syntax]
        if len(query) > self.max_pattern:
            raise _refused("too_long", argument, f"has more than {self.max_pattern} characters")
        options = re2.Options()
        options.case_sensitive = self.case_sensitive
        options.never_capture = options.never_nl = True
        options.log_errors = False
        pattern = _any_word(query) if self.syntax == "words" else query
        try:
            compiled = re2.compile(f"(?m){pattern}", options)
        except re2.error as error:
            reason = error.args[0] if error.args else ""
            text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
            raise _refused(
                "bad_pattern",
                argument,
                f"is not valid ({quoted(text, 200)}). The syntax is RE2's, without look-around and "
                "back-references",
            ) from None
        if compiled.programsize > self.max_program:
            raise _refused("too_long", argument, "is too large: use fewer or shorter repetitions")
        if compiled.search(b""):
            raise _refused("bad_pattern", argument, "matches the empty string, so every document")
        return compiled


class Scan:
    """A search backend that reads the documents of a store: see `Grep`."""

    def __init__(self, settings: Grep, store: DocumentStore, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._store = store
        self._clock = clock

    def search(self, request: SearchRequest) -> SearchResult:
        """The documents that match the pattern `request.query`; scores are numbers of matches."""
        settings = self._settings
        pattern = settings.compile(request.query)
        deadline = None if settings.seconds is None else self._clock() + settings.seconds
        notes: dict[str, Any] = {"documents": 0, "matching": 0}
        counted = self._counts(pattern, request.depth, deadline, notes)
        if settings.order == "matches":
            best = nlargest(request.depth, counted, key=lambda row: row[1])
        else:
            best = list(counted)
        hits = [
            Hit(document.docid, document.docid, rank, float(count), title=document.title)
            for rank, (document, count) in enumerate(best, start=1)
        ]
        return SearchResult(hits, notes)

    def _counts(
        self, pattern: Any, depth: int, deadline: float | None, notes: dict[str, Any]
    ) -> Iterator[tuple[Document, int]]:
        """Each document that matches, without its text, and how often, in the corpus's order."""
        settings = self._settings
        for document in self._store.documents():
            if notes["documents"] == settings.max_documents:
                notes["stopped"] = "documents"
                return
            if settings.order == "corpus" and notes["matching"] == depth:
                notes["stopped"] = "depth"
                return
            content = f"{document.title}\n{document.text}"
            count = 0
            for data in pieces(content):
                if deadline is not None and self._clock() > deadline:
                    notes["stopped"] = "seconds"
                    break
                left = settings.max_matches - count
                count += sum(1 for _ in islice(matches(pattern, data), left))
                if count == settings.max_matches:
                    break
            if count:
                notes["matching"] += 1
                yield document._replace(text=""), count
            if "stopped" in notes:
                return
            notes["documents"] += 1


class GrepSession(BrowsingSession[Grep]):
    """One question's session: see `Grep`."""

    @property
    def search_tool(self) -> ToolUse:
        return ToolUse(_GREP, SYNTAXES[self.settings.syntax])

    def tools(self) -> Iterable[Tool]:
        settings = self.settings
        argument = SYNTAXES[settings.syntax]
        if settings.syntax == "words":
            what = "that hold any of some words"
            parameter = TextParameter(argument, "The words, separated by spaces.")
        else:
            what = "in which a regular expression matches within a line"
            parameter = TextParameter(
                argument, "The regular expression, in RE2's syntax (no look-around)."
            )
        order = "most matches first" if settings.order == "matches" else "in a fixed order"
        case = "" if settings.case_sensitive else " Upper and lower case are the same."
        grep = ToolSpec(
            _GREP,
            f"Find the documents {what}, {order}.{case} The score is the number of matches. Shows "
            f"the first {settings.page} documents with up to {settings.lines} matching lines each, "
            f"numbered as read_document counts them, and keeps up to {settings.depth} documents "
            "under a search_id, which read_search_results pages through.",
            (REASON, parameter),
        )
        # What takes words takes any agent's query; a pattern has to be meant as one.
        yield Tool(grep, self._grep, searches_by=argument if settings.syntax == "words" else "")
        yield from self.browsing_tools()

    def _grep(self, reason: str, **query: str) -> Page:
        (text,) = query.values()
        return self.first_page(text, f"Call grep with other {SYNTAXES[self.settings.syntax]}.")

    def remark(self, ranking: CachedRanking) -> str:
        notes, count = ranking.notes, len(ranking.hits)
        if stopped := notes.get("stopped"):
            return f"\n[only {notes['documents']} documents were searched: limit of {stopped}]"
        return f"\n[{notes['matching']} documents match]" if notes["matching"] > count else ""

    def filled(self, query: str, first: int, hits: Sequence[Hit]) -> list[Hit]:
        """The hits from rank `first` with the first lines that match, numbered."""
        pattern = self.settings.compile(query)
        shown = max(0, self.settings.excerpt_depth - first + 1)
        return [
            hit._replace(excerpt=self._lines(pattern, hit.docid) if index < shown else "")
            for index, hit in enumerate(hits)
        ]

    def _lines(self, pattern: Any, docid: str) -> str:
        text = self.store.document(docid).text
        spans = line_spans(text)
        starts = [start for start, _ in spans]
        room = self.settings.excerpt_characters
        lines: dict[int, str] = {}
        for start, end in islice(_positions(pattern, text), self.settings.max_matches):
            number = bisect_right(starts, start)
            if number in lines:
                continue
            if len(lines) == self.settings.lines:
                break
            begin, stop = spans[number - 1]
            lead = max(0, room - (end - start)) // 2
            lines[number] = cut(text[begin:stop], start - begin - lead, room)
        return "\n   ".join(f"{number}: {line}" for number, line in lines.items())


def pieces(content: str) -> Iterator[bytes]:
    """The text as UTF-8 in pieces of at most 16,384 bytes that end with a line, where lines are no
    longer than that."""
    data = content.encode(errors="replace")
    start = 0
    while len(data) - start > _PIECE:
        end = data.rfind(b"\n", start, start + _PIECE) + 1
        if not end:
            end = start + _PIECE
            while data[end] & 0xC0 == 0x80:  # inside a character
                end -= 1
        yield data[start:end]
        start = end
    yield data[start:]


def matches(pattern: Any, data: bytes) -> Spans:
    """The matches in a piece that hold at least one character, as positions of bytes."""
    spans = (match.span() for match in pattern.finditer(data))
    return ((start, end) for start, end in spans if start < end)


def _positions(pattern: Any, text: str) -> Spans:
    """The matches in a text, as positions of characters."""
    before = 0
    for data in pieces(text):
        for start, end in matches(pattern, data):
            first = before + len(data[:start].decode())
            yield first, first + len(data[start:end].decode())
        before += len(data.decode())


def _any_word(query: str) -> str:
    words = dict.fromkeys(_WORD.findall(query))
    if not words:
        raise _refused("bad_pattern", SYNTAXES["words"], "holds no words")
    return "|".join(f"{_border(word[0])}{word}{_border(word[-1])}" for word in words)


def _border(letter: str) -> str:
    return r"\b" if letter.isascii() else ""  # RE2's \b knows ASCII only


def _refused(code: str, argument: str, what: str) -> ToolError:
    message = f"{argument} {what}. Call {_GREP} again with a valid {argument}."
    return ToolError(code, message, tool=_GREP, field=argument)
