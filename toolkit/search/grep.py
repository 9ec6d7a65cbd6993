"""Search by patterns instead of rankings: regular expressions over the texts of a store. RE2
matches them in time proportional to the length of the text and of the compiled pattern. A
backtracking engine would need a time limit for each document, and results would depend on the
machine."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import nlargest
from itertools import islice
from typing import Any, ClassVar

from soundingline.toolkit.corpus.segmentation import line_spans
from soundingline.toolkit.data import Document, Hit, SearchRequest, SearchResult
from soundingline.toolkit.errors import InputError, check_int, check_number
from soundingline.toolkit.optional import check_optional, import_optional
from soundingline.toolkit.search.ranked_browsing import Browsing
from soundingline.toolkit.search.session import CachedSearch, Tool, ToolOutput
from soundingline.toolkit.search.tool import Parameter, ToolError, ToolSpec, quoted

ARGUMENTS = {"regex": "pattern", "words": "words"}  # of the tool, by syntax
ORDERS = ("matches", "corpus")
_GREP = "grep"
_WORD = re.compile(r"\w+")
# RE2 holds the interpreter's lock while it reads a piece, so pieces are short.
_PIECE_BYTES = 1 << 14
Spans = Iterator[tuple[int, int]]


@dataclass(kw_only=True, eq=False)
class Grep(Browsing):
    """`grep`, `read_search_results` and `read_document`.

    A pattern is matched within single lines of the titles and texts of all documents. The pipeline
    is not used. The notes of a call record the documents that were read (`documents`), how many
    match (`matching`), and the limit that stopped the call (`stopped`), if one did.

    Args:
        syntax: `regex` (RE2's syntax), or `words`: documents that contain any of some whole words,
            for agents that write no patterns.
        order: `matches` (most matches first, then the order of the corpus) or `corpus`.
        case_sensitive: whether upper and lower case differ.
        lines: matching lines shown of each hit.
        max_pattern: characters of a pattern.
        max_program: instructions of the compiled pattern.
        max_matches: matches that are counted in each document.
        max_documents: documents that a call reads; None for all.
        seconds: time that a call reads, the only limit that depends on the machine; None for no
            limit.

    For the other settings see `Browsing` and `SearchTool`.

    Raises:
        InputError: for settings out of range, and if google-re2 is not installed.

    Example:
        >>> grep = Grep().open(backend, store)
        >>> grep.call("grep", {"reason": "A year.", "pattern": "18[0-9]+"}).page.shown
        ('d1',)
    """

    uses_pipeline: ClassVar[bool] = False

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
        for name, valid in (("syntax", tuple(ARGUMENTS)), ("order", ORDERS)):
            if getattr(self, name) not in valid:
                raise InputError(f"{name}={getattr(self, name)!r}", valid=", ".join(valid))
        check_int("lines", self.lines, ge=0)
        for name in ("max_pattern", "max_program", "max_matches"):
            check_int(name, getattr(self, name))
        if self.max_documents is not None:
            check_int("max_documents", self.max_documents)
        if self.seconds is not None:
            check_number("seconds", self.seconds, gt=0)
        check_optional("re2")

    @property
    def ends_by_time(self) -> str:  # type: ignore[override]
        """See `SearchTool`."""
        return "" if self.seconds is None else f"tool.seconds={self.seconds:g}"

    def begin(self) -> None:
        self.backend = self

    def searching(self) -> tuple[str, str]:
        return _GREP, ARGUMENTS[self.syntax]

    def tools(self) -> Iterable[Tool]:
        argument = ARGUMENTS[self.syntax]
        if self.syntax == "words":
            what = "that hold any of some words"
            parameter = Parameter(argument, "The words, separated by spaces.")
        else:
            what = "in which a regular expression matches within a line"
            description = "The regular expression, in RE2's syntax (no look-around)."
            parameter = Parameter(argument, description)
        order = "most matches first" if self.order == "matches" else "in a fixed order"
        case = "" if self.case_sensitive else " Upper and lower case are the same."
        grep = ToolSpec(
            _GREP,
            f"Find the documents {what}, {order}.{case} The score is the number of matches. Shows "
            f"the first {self.page} documents with up to {self.lines} matching lines each, "
            f"numbered as read_document counts them, and keeps up to {self.depth} documents "
            "under a search_id, which read_search_results pages through.",
            (self.reason, parameter),
        )
        usage = (
            f"Find the documents {what}, and show the first {self.page} with their matching lines. "
            "A document whose words are spelled in another way is not found."
        )
        if self.syntax == "regex":
            usage += (
                " Begin with names, dates and terms that a document itself would use. Join "
                "spellings with |, allow for endings (build|built), and for a few words in between "
                "(mill.{0,40}Brekke). Where too many documents match, add a word; where none does, "
                "take one away."
            )
        # A query in natural language is no pattern, so only the syntax `words` takes queries.
        query = argument if self.syntax == "words" else ""
        yield Tool(grep, self._grep, searches_by=query, usage=usage)
        yield from self.browsing_tools()

    def _grep(self, reason: str, **query: str) -> ToolOutput:
        (text,) = query.values()
        otherwise = f"Call grep with other {ARGUMENTS[self.syntax]}."
        return self.first_page(text, otherwise=otherwise)

    def remark(self, search: CachedSearch) -> str:
        notes, count = search.notes, len(search.hits)
        if stopped := notes.get("stopped"):
            return f"\n[only {notes['documents']} documents were searched: limit of {stopped}]"
        return f"\n[{notes['matching']} documents match]" if notes["matching"] > count else ""

    def filled(self, query: str, first: int, hits: Sequence[Hit]) -> list[Hit]:
        pattern = self.compile(query)
        shown = max(0, self.excerpt_depth - first + 1)
        excerpts = [hit._replace(snippet=self._lines(pattern, hit.docid)) for hit in hits[:shown]]
        return [*excerpts, *hits[shown:]]

    def _lines(self, pattern: Any, docid: str) -> str:
        from soundingline.toolkit.search.snippets import cut  # it imports numba

        text = self.store.document(docid).text
        spans = line_spans(text)
        starts = [start for start, _ in spans]
        room = self.excerpt_characters
        lines: dict[int, str] = {}
        for start, end in islice(_positions(pattern, text), self.max_matches):
            number = bisect_right(starts, start)
            if number in lines:
                continue
            if len(lines) == self.lines:
                break
            begin, stop = spans[number - 1]
            lead = max(0, room - (end - start)) // 2
            lines[number] = cut(text[begin:stop], start - begin - lead, room)
        return "\n   ".join(f"{number}: {line}" for number, line in lines.items())

    def search(self, request: SearchRequest) -> SearchResult:
        """The documents that match the pattern `request.query`; scores are numbers of matches. An
        open `Grep` is its own search backend."""
        notes: dict[str, Any] = {"documents": 0, "matching": 0}
        counted = self._counts(self.compile(request.query), request.depth, notes)
        if self.order == "matches":
            best = nlargest(request.depth, counted, key=lambda row: row[1])
        else:
            best = list(counted)
        hits = [
            Hit(document.docid, document.docid, rank, float(count), title=document.title)
            for rank, (document, count) in enumerate(best, start=1)
        ]
        return SearchResult(hits, notes)

    def _counts(
        self, pattern: Any, depth: int, notes: dict[str, Any]
    ) -> Iterator[tuple[Document, int]]:
        """Each document that matches, without its text, and its matches, in the corpus's order."""
        deadline = None if self.seconds is None else self.clock() + self.seconds
        for document in self.store.documents():
            if notes["documents"] == self.max_documents:
                notes["stopped"] = "documents"
                return
            if self.order == "corpus" and notes["matching"] == depth:
                notes["stopped"] = "depth"
                return
            count = 0
            for data in pieces(f"{document.title}\n{document.text}"):
                if deadline is not None and self.clock() > deadline:
                    notes["stopped"] = "seconds"
                    break
                left = self.max_matches - count
                count += sum(1 for _ in islice(matches(pattern, data), left))
                if count == self.max_matches:
                    break
            if count:
                notes["matching"] += 1
                yield document._replace(text=""), count
            if "stopped" in notes:
                return
            notes["documents"] += 1

    def compile(self, query: str) -> Any:
        """The compiled pattern; `ToolError` if it is not valid or exceeds a limit."""
        re2 = import_optional("re2")
        argument = ARGUMENTS[self.syntax]
        if len(query) > self.max_pattern:
            raise _refused("too_long", argument, f"has more than {self.max_pattern} characters")
        options = re2.Options()
        options.case_sensitive = self.case_sensitive
        options.never_capture = options.never_nl = True
        options.log_errors = False
        pattern = query
        if self.syntax == "words":
            words = dict.fromkeys(_WORD.findall(query))
            if not words:
                raise _refused("bad_pattern", argument, "holds no words")
            pattern = "|".join(f"{_border(word[0])}{word}{_border(word[-1])}" for word in words)
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


def pieces(content: str) -> Iterator[bytes]:
    """The text as UTF-8 in pieces of at most 16,384 bytes, which end with a line if possible."""
    data = content.encode(errors="replace")
    start = 0
    while len(data) - start > _PIECE_BYTES:
        end = data.rfind(b"\n", start, start + _PIECE_BYTES) + 1
        if not end:
            end = start + _PIECE_BYTES
            while data[end] & 0xC0 == 0x80:  # inside a character
                end -= 1
        yield data[start:end]
        start = end
    yield data[start:]


def matches(pattern: Any, data: bytes) -> Spans:
    """The matches in a piece that are not empty, as positions of bytes."""
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


def _border(letter: str) -> str:
    return r"\b" if letter.isascii() else ""  # RE2's \b knows ASCII only


def _refused(code: str, argument: str, what: str) -> ToolError:
    message = f"{argument} {what}. Call {_GREP} again with a valid {argument}."
    return ToolError(code, message, tool=_GREP, field=argument)
