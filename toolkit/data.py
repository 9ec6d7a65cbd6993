"""Documents, topics, rankings, and the protocols of document stores and search backends.

Identifiers: a `docid` names a document, which is what relevance judgements are about. A `unit_id`
names what was retrieved: a `docid`, or `<docid>%p<n>` for a passage of that document, n from 0, or
from 1 in a corpus that was released in passages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, overload

PASSAGE_MARK = "%p"
PASSAGE_BREAK = "\f"  # in the text of a document, between the passages of a released corpus
_FRONT_MATTER = re.compile(
    r"\ufeff?---[^\S\n]*\n(.*?)^---[^\S\n]*(?:\n|\Z)", re.DOTALL | re.MULTILINE
)
_TITLE_LINE = re.compile(r"^title:[^\S\n]*(.*)$", re.MULTILINE)

Qrels = Mapping[str, Mapping[str, int]]
"""Relevance judgements of one tier: question -> docid -> grade. A document is relevant if its grade
is above 0; a grade below 0, such as -2 for spam, counts as 0."""
LARGEST_GRADE = 1_000_000
"""trec_eval takes 8 bytes of memory for each grade up to the highest of a question, and writes
outside of them where that is above 2**31."""


def parent(unit_id: str) -> str:
    """The document that a unit belongs to: `d1%p3` -> `d1`, `d1` -> `d1`. Only a final `%p<digits>`
    counts, because a docid may contain `%p`."""
    if PASSAGE_MARK not in unit_id:  # called for every hit of every ranking
        return unit_id
    head, mark, tail = unit_id.rpartition(PASSAGE_MARK)
    return head if mark and tail.isdecimal() else unit_id


def first_units(docid: str) -> tuple[str, str, str]:
    """The ids that the first unit of a document can have, the document's own last."""
    return f"{docid}{PASSAGE_MARK}0", f"{docid}{PASSAGE_MARK}1", docid


def parents(unit_ids: Sequence[str]) -> Sequence[str]:
    """The document of each unit, in their order."""
    # One look at all of them: most rankings are of documents, and long.
    if PASSAGE_MARK not in "\n".join(unit_ids):
        return unit_ids
    return list(map(parent, unit_ids))


def front_matter_title(text: str) -> str:
    """The title, without quotation marks around it, that the front matter of a text states: a block
    between two lines `---` at its head, as in BrowseComp-Plus. Empty if there is none.

    Example:
        >>> front_matter_title('---\\ntitle: "Brel: a town"\\nauthor: A\\n---\\nBrel is a town.')
        'Brel: a town'
    """
    block = _FRONT_MATTER.match(text)
    line = _TITLE_LINE.search(block.group(1)) if block else None
    title = line.group(1).strip() if line else ""
    quoted = len(title) > 1 and title[0] == title[-1] and title[0] in "\"'"
    return title[1:-1].strip() if quoted else title


def heading(title: str, text: str) -> str:
    """The title that stands in front of a text: none where its front matter states the same."""
    return "" if title and front_matter_title(text) == title else title


class Document(NamedTuple):
    """One document of a corpus, raw text."""

    docid: str
    title: str
    text: str
    url: str = ""


class Link(NamedTuple):
    """A reference of one document to another, such as a citation."""

    docid: str
    linked: str


class Topic(NamedTuple):
    """One question of a benchmark."""

    qid: str
    text: str


class StatedFact(NamedTuple):
    """A fact with all wordings in which its collection states it.

    Args:
        subject: the name of what the fact is about.
        named: wordings that name the subject.
        titled: wordings that do not, which state the fact under the title `subject` only.
    """

    subject: str
    named: tuple[str, ...]
    titled: tuple[str, ...] = ()


class Unit(NamedTuple):
    """What is indexed and retrieved: a whole document, its head, or one passage. `text` is without
    the title; `contents` is what an engine indexes: the text after its `heading`, so that the words
    of a title count once."""

    unit_id: str
    title: str
    text: str

    @property
    def contents(self) -> str:
        title = heading(self.title, self.text)
        return f"{title}\n{self.text}" if title else self.text


class Lines(NamedTuple):
    """Lines `first`..`first + len(lines) - 1` (counted from 1) of a document with `total` lines."""

    docid: str
    title: str
    first: int
    lines: Sequence[str]
    total: int


class Hit(NamedTuple):
    """One row of a ranking. `rank` counts from 1. The search tool fills the last three fields with
    what it shows: the title, a `snippet` of the text, and the unit's contents from their beginning.
    """

    docid: str
    unit_id: str
    rank: int
    score: float
    title: str = ""
    snippet: str = ""
    text: str = ""


class Ranking(Sequence[Hit]):
    """The hits of a ranking by column, best first: their `unit_ids`, `scores` and `ranks` (None:
    from 1). A `Hit` is made when it is read, because to make and hold a thousand of them takes
    longer than the search that found them."""

    def __init__(
        self, unit_ids: Sequence[str], scores: Sequence[float], ranks: Sequence[int] | None = None
    ) -> None:
        self.unit_ids = tuple(unit_ids)
        self.scores = scores
        self.ranks = range(1, len(self.unit_ids) + 1) if ranks is None else ranks

    def __len__(self) -> int:
        return len(self.unit_ids)

    def __iter__(self) -> Iterator[Hit]:
        return map(Hit, parents(self.unit_ids), self.unit_ids, self.ranks, self.scores)

    @overload
    def __getitem__(self, position: int) -> Hit: ...
    @overload
    def __getitem__(self, position: slice) -> Ranking: ...
    def __getitem__(self, position: int | slice) -> Hit | Ranking:
        if isinstance(position, slice):
            return Ranking(self.unit_ids[position], self.scores[position], self.ranks[position])
        unit_id = self.unit_ids[position]
        return Hit(parent(unit_id), unit_id, self.ranks[position], self.scores[position])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    def __repr__(self) -> str:
        return repr(list(self))


class SearchRequest(NamedTuple):
    """The query, the agent's newest reasoning, and the number of hits to rank."""

    query: str
    reasoning: str = ""
    depth: int = 1000


class SearchResult(NamedTuple):
    """A ranking, and notes on it: plain JSON values by name, which the trajectory records with the
    call and the agent never sees."""

    hits: Sequence[Hit]
    notes: Mapping[str, Any] = {}


class DocumentStore(Protocol):
    """Raw text by id, for many concurrent readers."""

    def documents(self) -> Iterator[Document]:
        """Every document, in the corpus's order, streamed."""
        ...

    def document(self, docid: str) -> Document:
        """The whole document; `KeyError` for an unknown docid."""
        ...

    def lines(self, docid: str, offset: int = 1, limit: int = 200) -> Lines:
        """At most `limit` lines from line `offset` (from 1), none from past the end on; `KeyError`
        for an unknown docid."""
        ...

    def texts(self, unit_ids: Sequence[str]) -> list[Unit]:
        """Units by id, in the order of `unit_ids`; `KeyError` for an unknown id."""
        ...


class SearchBackend(Protocol):
    """Anything that ranks. Thread-safe; never sees a model's messages."""

    def search(self, request: SearchRequest) -> SearchResult: ...
