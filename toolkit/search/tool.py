"""Tools as language models see them: schemas, the check of arguments, errors, and result pages."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, ClassVar

from soundingline.toolkit.data import Hit, Lines
from soundingline.toolkit.json_text import decode_json, has_surrogates
from soundingline.toolkit.trajectory import RecordedCall

MAX_CHARACTERS = 10_000  # of a string argument
LARGEST_OFFSET = 10**9  # the largest rank or line that a call may name
# Layers of reading, cheapest first.
METADATA, ABSTRACT, EVIDENCE, TEXT = LAYERS = ("metadata", "abstract", "evidence", "text")
_INTEGER = re.compile(r"\s*[+-]?[0-9]{1,18}\s*")
# One encoder for all calls: `json.dumps` makes a new one whenever it is called with options.
json_text = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


@dataclass(frozen=True)
class Parameter:
    """One argument of a tool, by default a required string of at most 10,000 characters. An integer
    is accepted for a string, because models send numeric docids as numbers.

    Args:
        name: its name in the schema.
        description: its description in the schema.
        blank: whether a string may be empty or white space.
        bounds: least and largest value of an integer argument. Null stands for the tool's default;
            `"5"` and `5.0` are accepted for 5.
        choices: the words that are accepted; null stands for `default`.
        default: the choice of a call that makes none.
        words: the most words of a string, separated by white space; None for any number.
        usage: what a prompt says about the argument, where `SearchTool.instructions` composes one.

    Example:
        >>> Parameter("limit", "How many hits.", bounds=(1, 50), default="5").bounds
        (1, 50)
    """

    name: str
    description: str
    blank: bool = False
    bounds: tuple[int, int] | None = None
    choices: tuple[str, ...] = ()
    default: str = ""
    words: int | None = None
    usage: str = ""

    @property
    def is_optional(self) -> bool:
        """Whether null is accepted."""
        return bool(self.bounds or self.choices)

    def schema(self) -> dict[str, Any]:
        """The JSON schema of the argument."""
        if self.bounds:
            least, most = self.bounds
            types = {"type": ["integer", "null"], "minimum": least, "maximum": most}
            return {**types, "description": self.description}
        if self.choices:
            description = f"{self.description} Default: {self.default}."
            choices = [*self.choices, None]
            return {"type": ["string", "null"], "enum": choices, "description": description}
        return {"type": "string", "description": self.description}

    def check(self, value: Any, tool: str) -> str | int | None:
        """The value as the tool takes it; `ToolError` if it is not valid."""

        def refusal(code: str, valid: str) -> ToolError:
            received = f"{self.name} must be {valid}; got {quoted(value)}."
            again = f"Call {tool} again with a valid {self.name}."
            return ToolError(code, f"{received} {again}", tool=tool, field=self.name)

        if value is None:
            if self.is_optional:
                return self.default if self.choices else None
            message = f"{tool} needs {self.name}. Call it again with {self.name}."
            raise ToolError("missing_argument", message, tool=tool, field=self.name)
        integer = isinstance(value, int) and not isinstance(value, bool)
        if self.bounds:
            least, most = self.bounds
            valid = f"an integer from {least} to {most}, or null"
            text = isinstance(value, str) and _INTEGER.fullmatch(value)
            if not (integer or text or (isinstance(value, float) and value.is_integer())):
                raise refusal("wrong_type", valid)
            if not least <= int(value) <= most:
                raise refusal("out_of_range", valid)
            return int(value)
        if self.choices:
            valid = f"one of {', '.join(self.choices)}, or null"
            if not isinstance(value, str):
                raise refusal("wrong_type", valid)
            if value.strip().lower() not in self.choices:
                raise refusal("out_of_range", valid)
            return value.strip().lower()
        if integer and abs(value) < 10**18:
            value = str(value)
        if not isinstance(value, str):
            raise refusal("wrong_type", "a string")
        if len(value) > MAX_CHARACTERS:
            raise refusal("too_long", f"at most {MAX_CHARACTERS} characters")
        if has_surrogates(value):
            raise refusal("bad_unicode", "text without lone surrogates")
        if not self.blank and not value.strip():
            raise refusal("empty_value", "a string that is not blank")
        if self.words is not None and (count := len(value.split())) > self.words:
            message = f"{self.name} must have at most {self.words} words; it has {count}."
            message += f" Call {tool} again with a shorter {self.name}."
            raise ToolError("too_long", message, tool=tool, field=self.name)
        return value


class ToolError(Exception):
    """A refused call. Its message tells the model what was wrong and what to do next.

    Args:
        code: one of those in `docs/agents.md`.
        message: the text that follows the code.
        tool, field: the tool, and the argument that was wrong, if there is one.

    Example:
        >>> str(ToolError("empty_query", "The query is empty.", tool="search", field="query"))
        '[error code=empty_query tool=search field=query] The query is empty.'
    """

    def __init__(self, code: str, message: str, *, tool: str = "", field: str = "") -> None:
        self.code = code
        where = f"{tool and f' tool={tool}'}{field and f' field={field}'}"
        super().__init__(f"[error code={code}{where}] {message}")


def unknown_docid(docid: str, do: str, *, tool: str, field: str = "docid") -> ToolError:
    """The refusal of a call that names a document which the store does not have."""
    message = f"docid {quoted(docid)} is unknown. {do}"
    return ToolError("unknown_docid", message, tool=tool, field=field)


class Page(ABC):
    """What the text of a tool result shows, as values. An interface with another kind of page
    writes a subclass.

    Attributes:
        tier: the evidence tier of the documents on the page.
        layer: the layer of reading that the page shows, one of `LAYERS`; empty without layers.

    Example:
        >>> page = tool.call("search", {"reason": "Where is it?", "query": "old mill"}).page
        >>> (page.tier, page.shown)
        ('previewed', ('d1',))
    """

    tier: ClassVar[str]
    layer: str = ""

    @property
    @abstractmethod
    def shown(self) -> Sequence[str]:
        """Ids of the units or documents on the page, in its order."""

    @property
    def exposed(self) -> Sequence[str]:
        """Those of `shown` that count in the tier; by default all of them."""
        return self.shown


@dataclass(frozen=True)
class Continuation:
    """The call that shows what follows a page, without arguments that keep their defaults and
    without `reason`, which the caller adds.

    Example:
        >>> Continuation("read_search_results", {"search_id": "s1", "offset": 6}).tool
        'read_search_results'
    """

    tool: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class ResultsPage(Page):
    """The page of a call that searches or pages through a ranking.

    Args:
        query: the query of the ranking.
        hits: those on the page, with what it shows of them.
        total: the number of hits of the ranking.
        first: the rank of the first hit, from 1.
        search_id: the name of a ranking that can be paged through.
        continuation: the call for the next page; None on the last one.
        layer: see `Page`.
        excerpts: whether hits without a snippet are only listed: they do not count as previewed.

    Example:
        >>> page = tool.call("search", {"reason": "Where is it?", "query": "old mill"}).page
        >>> (page.total, [hit.docid for hit in page.hits])
        (1, ['d1'])
    """

    query: str
    hits: Sequence[Hit]
    total: int
    first: int = 1
    search_id: str = ""
    continuation: Continuation | None = None
    layer: str = ""
    excerpts: bool = False
    tier: ClassVar[str] = "previewed"

    @property
    def shown(self) -> Sequence[str]:
        return tuple([hit.unit_id for hit in self.hits])

    @property
    def exposed(self) -> Sequence[str]:
        return tuple([hit.unit_id for hit in self.hits if hit.snippet or not self.excerpts])


@dataclass(frozen=True)
class DocumentPage(Page):
    """The page of a call that reads a document.

    Args:
        docid, title: those of the document.
        lines: those on the page; joined by line breaks they are the text.
        total: the number of lines of the document.
        first: the number of the first line, from 1.
        continuation: the call for the next page; None on the last one.
        layer: see `Page`.

    Example:
        >>> DocumentPage("d1", "Mill", ["The old mill stands by the river."], total=1).shown
        ('d1',)
    """

    docid: str
    title: str
    lines: Sequence[str]
    total: int
    first: int = 1
    continuation: Continuation | None = None
    layer: str = ""
    tier: ClassVar[str] = "opened"

    @property
    def shown(self) -> Sequence[str]:
        return (self.docid,)


@dataclass(frozen=True)
class ToolResult:
    """The record of a tool call, and what its output shows, as values, which is not recorded; None
    for an output without documents, such as that of a refused call."""

    call: RecordedCall
    page: Page | None = None

    @property
    def text(self) -> str:
        """The output for the model."""
        return self.call.output

    @property
    def failed(self) -> bool:
        """Whether the call was refused."""
        return bool(self.call.error)


def quoted(value: object, limit: int = 80) -> str:
    """`value` for an error message: on one line, escaped, and at most `limit` characters."""
    if isinstance(value, str):
        return repr(value if len(value) <= limit else value[:limit] + "…")
    if value is None or isinstance(value, (bool, float)):
        return repr(value)
    if isinstance(value, int):
        return repr(value) if abs(value) < 10**18 else "a huge number"
    return f"a value of type {type(value).__name__}"


def call_text(tool: str, **arguments: Any) -> str:
    """A call as hints print it: `read_document(reason="...", docid="d1", offset=201)`."""
    pairs = (f"{name}={json_text(value)}" for name, value in arguments.items())
    return f"{tool}({', '.join(pairs)})"


def recordable(arguments: Any) -> dict[str, Any]:
    """Arguments of a call, or notes of a search, for the record. What JSON or UTF-8 cannot
    represent, or is nested too deeply (`decode_json`), becomes `{"unreadable": ...}`."""
    try:
        recorded = decode_json(json_text(arguments).encode())
    except (TypeError, ValueError, RecursionError):
        recorded = None
    return recorded if isinstance(recorded, dict) else {"unreadable": quoted(arguments)}


# The text of result pages and document pages, cut between hits or lines to a limited size.

_LONGEST_TITLE = 200
_LONGEST_QUERY = 300
_BROWSE = "read_search_results"

# The most lines and UTF-8 bytes of one output, header and hint included.
Limits = tuple[int, int]


def results_page(
    page: ResultsPage, limit: int | None, default: int, limits: Limits
) -> tuple[str, ResultsPage]:
    """The text of a page of hits, and the page with the hits that fit and its continuation. `limit`
    is the number of hits that the caller named, if any."""

    def header(last: int) -> str:
        ranks = f"ranks {page.first}-{last} of {page.total}"
        return f"[search_id={page.search_id} {ranks} query={short(page.query)}]"

    def hint(last: int) -> str:
        if last >= page.total:
            return "End of the ranking."
        arguments = {"search_id": page.search_id, "offset": last + 1, "limit": limit or default}
        return f"Next hits: {call_text(_BROWSE, reason='...', **arguments)}"

    blocks = []
    for hit in page.hits:
        title = f" title={one_line(hit.title)}" if hit.title else ""
        snippet = f"\n   {hit.snippet}" if hit.snippet else ""
        blocks.append(f"{hit.rank}. docid={hit.unit_id} score={hit.score:.4f}{title}{snippet}")
    text, count = _fitted(header, hint, blocks, page.first, page.total, limits)
    hits = tuple([hit._replace(title=one_line(hit.title)) for hit in page.hits[:count]])
    arguments = {"search_id": page.search_id, "offset": page.first + count}
    following = _continuation(_BROWSE, arguments, limit, page.total)
    return text, replace(page, hits=hits, continuation=following)


def document_page(
    lines: Lines, tool: str, arguments: dict[str, Any], limits: Limits, limit: int | None = None
) -> tuple[str, DocumentPage]:
    """The text of a page of lines, and the page with the lines that fit and its continuation. The
    hint shows the call of `tool` for the next lines with these `arguments` and their `offset`;
    `limit` is the number of lines that the caller named, if any."""
    title = one_line(lines.title)

    def header(last: int) -> str:
        numbers = f"lines {lines.first}-{last} of {lines.total}"
        return f"[docid={lines.docid} {numbers}]{f' {title}' if lines.title else ''}"

    def hint(last: int) -> str:
        if last >= lines.total:
            return "End of the document."
        return f"Next lines: {call_text(tool, **{**arguments, 'offset': last + 1})}"

    text, count = _fitted(header, hint, lines.lines, lines.first, lines.total, limits)
    following = {"docid": lines.docid, "offset": lines.first + count}
    more = _continuation(tool, following, limit, lines.total)
    shown = tuple(lines.lines[:count])
    return text, DocumentPage(lines.docid, title, shown, lines.total, lines.first, more)


def one_line(title: str) -> str:
    """A title as pages show it: on one line, at most 200 characters."""
    joined = " ".join(title.split())
    return joined if len(joined) <= _LONGEST_TITLE else joined[:_LONGEST_TITLE] + "…"


def short(query: str) -> str:
    """A query as headers show it: quoted, on one line, at most 300 characters."""
    return json_text(query if len(query) <= _LONGEST_QUERY else query[:_LONGEST_QUERY] + "…")


def line_of(passage: str, lines: Sequence[str]) -> int:
    """The line (from 1) in which a passage begins; 1 if the lines do not contain it. White space is
    ignored, because wrapping a text into lines changes it."""
    key = "".join(passage.split())
    solid = ["".join(line.split()) for line in lines]
    position = "".join(solid).find(key) if key else -1
    if position < 0:
        return 1
    ends = accumulate(len(line) for line in solid)
    return next(number for number, end in enumerate(ends, start=1) if position < end)


def _continuation(
    tool: str, arguments: dict[str, Any], limit: int | None, total: int
) -> Continuation | None:
    if arguments["offset"] > total:
        return None
    return Continuation(tool, arguments if limit is None else {**arguments, "limit": limit})


def _fitted(
    header: Callable[[int], str],
    hint: Callable[[int], str],
    blocks: Sequence[str],
    first: int,
    total: int,
    limits: Limits,
) -> tuple[str, int]:
    """Header, blocks and hint, with as many blocks as fit, and their number. `header` and `hint`
    depend on the number of the last block. There is at least one block, even if it exceeds the
    limits: an empty page would be requested again for ever, and a block that is cut loses text."""
    frame = f"{header(total)}\n{max(hint(total - 1), hint(total), key=len)}"
    lines, room = limits[0] - _lines(frame), limits[1] - _bytes(frame)
    count = len(blocks)
    for index, block in enumerate(blocks):
        lines -= _lines(block)
        room -= _bytes(block)
        if lines < 0 or room < 0:
            count = max(1, index)
            break
    last = first + count - 1
    return "\n".join([header(last), *blocks[:count], hint(last)]), count


def _lines(block: str) -> int:
    return block.count("\n") + 1


def _bytes(block: str) -> int:
    return (len(block) if block.isascii() else len(block.encode())) + 1
