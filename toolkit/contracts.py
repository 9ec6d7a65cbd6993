"""Rows and protocols that the rooms of the house agree on. No behaviour beyond trivial views.

Identifiers: a `docid` names a document, which is what judgements speak of. A `unit_id` names what
was retrieved: a `docid`, or `<docid>%p<n>` for the n-th passage of that document (n from 0).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, NamedTuple, Protocol, overload, runtime_checkable

PASSAGE_MARK = "%p"
TIERS = ("surfaced", "previewed", "opened", "cited")


def parent(unit_id: str) -> str:
    """The document that a unit belongs to: `d1%p3` -> `d1`, `d1` -> `d1`.

    Only a final `%p<digits>` counts, so that a docid which holds `%p` elsewhere stays whole.
    """
    if PASSAGE_MARK not in unit_id:  # called for every hit of every ranking
        return unit_id
    head, mark, tail = unit_id.rpartition(PASSAGE_MARK)
    return head if mark and tail.isdecimal() else unit_id


def parents(unit_ids: Sequence[str]) -> Sequence[str]:
    """The document of each unit, in their order."""
    # One look at all of them: most rankings are of documents, and long.
    if PASSAGE_MARK not in "\n".join(unit_ids):
        return unit_ids
    return list(map(parent, unit_ids))


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


class Unit(NamedTuple):
    """What is indexed and retrieved: a whole document, its head, or one passage.

    `text` excludes the title; `contents` is what an engine indexes (title in front).
    """

    unit_id: str
    title: str
    text: str

    @property
    def contents(self) -> str:
        return f"{self.title}\n{self.text}" if self.title else self.text


class Lines(NamedTuple):
    """Lines `first`..`first + len(lines) - 1` (counted from 1) of a document with `total` lines."""

    docid: str
    title: str
    first: int
    lines: Sequence[str]
    total: int


class Hit(NamedTuple):
    """One row of a ranking. `rank` counts from 1.

    The search tool fills the last three for the hits that it shows, with what it shows: `title`;
    `excerpt`, a stretch of the text; `text`, the unit's contents from their beginning, its title in
    front where it has one. Each is empty where the tool does not show it.
    """

    docid: str
    unit_id: str
    rank: int
    score: float
    title: str = ""
    excerpt: str = ""
    text: str = ""


class Hits(Sequence[Hit]):
    """The hits of a ranking by column, best first: their `unit_ids`, `scores` and `ranks` (None:
    from 1). A `Hit` is made when it is read, because to make and hold a thousand of them takes
    longer than the search that found them."""

    def __init__(
        self,
        unit_ids: Sequence[str],
        scores: Sequence[float],
        ranks: Sequence[int] | None = None,
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
    def __getitem__(self, position: slice) -> Hits: ...
    def __getitem__(self, position: int | slice) -> Hit | Hits:
        if isinstance(position, slice):
            return Hits(self.unit_ids[position], self.scores[position], self.ranks[position])
        unit_id = self.unit_ids[position]
        return Hit(parent(unit_id), unit_id, self.ranks[position], self.scores[position])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    def __repr__(self) -> str:
        return repr(list(self))


class SearchRequest(NamedTuple):
    """What a backend is asked: the query, the agent's newest reasoning, and how deep to rank."""

    query: str
    reasoning: str = ""
    depth: int = 1000


class SearchResult(NamedTuple):
    """A ranking, and what its making has to tell: plain JSON values by name, never changed. They
    are kept in the trajectory with the call, and never shown to the agent."""

    hits: Sequence[Hit]
    notes: Mapping[str, Any] = {}


class Exposure(NamedTuple):
    """A document's first showing in a tier, with what the agent had been shown up to then.

    `call` counts the tool calls of the question from 1. `documents` counts distinct documents and
    `tokens` the tokens of tool output, both including this showing. `layer` tells what of the
    document was shown (see `toolkit.corpus.layers`), where the interface tells; a document has a
    row for each layer of a tier then.
    """

    call: int
    tier: str
    docid: str
    documents: int
    tokens: int
    layer: str = ""


@dataclass(frozen=True)
class ToolCall:
    """One tool call as it happened. `error` is empty when it succeeded.

    `ranking` holds the unit ids of a fresh ranking (the whole cached one, best first) and is empty
    for other calls; `shown` holds the unit ids that the output displayed. `notes` is what the
    backend told of the search, such as the query that it ranked by where that is another one; and
    the `layer` of reading that the output showed, where the interface tells.
    """

    name: str
    arguments: Mapping[str, Any]
    output: str
    error: str = ""
    seconds: float = 0.0
    tokens: int = 0
    ranking: Sequence[str] = ()
    shown: Sequence[str] = ()
    notes: Mapping[str, Any] = field(default_factory=dict)


class Details(Protocol):
    """What the text of a tool result shows, as values. An interface with another kind of page
    writes its own class: `tier` is the evidence tier of the documents on the page, `shown` the ids
    of the units (or documents) in the order of the page. One that shows a certain layer of its
    documents (`toolkit.corpus.layers`) has `layer` besides."""

    @property
    def tier(self) -> str: ...

    @property
    def shown(self) -> Sequence[str]: ...


@dataclass(frozen=True)
class Continuation:
    """The call that shows what follows a page. Arguments that it does not name keep their
    defaults; a `reason` is the caller's to add."""

    tool: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class ResultsPage:
    """A page of hits: `details` of a call that searches, or that pages through a ranking.

    `hits` are those shown, from rank `first` (counted from 1) of a ranking with `total` hits, each
    with the title, excerpt or text that the page shows. `search_id` names the ranking where it can
    be paged through; `continuation` is None on the last page.
    """

    query: str
    hits: Sequence[Hit]
    total: int
    first: int = 1
    search_id: str = ""
    continuation: Continuation | None = None
    layer: str = ""
    tier: ClassVar[str] = "previewed"

    @property
    def shown(self) -> Sequence[str]:
        return tuple([hit.unit_id for hit in self.hits])


@dataclass(frozen=True)
class DocumentPage:
    """A page of a document: `details` of a call that reads.

    `lines` are those shown, from line `first` (counted from 1) of a document with `total` lines;
    joined by line breaks they are the text. `continuation` is None on the last page.
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
class Refusal:
    """`details` of a refused call. `code` is the record's `error`; `tool` and `field` name where
    the call was wrong, and are empty where no single tool or argument was."""

    code: str
    tool: str = ""
    field: str = ""


@dataclass(frozen=True)
class ToolResult:
    """What a tool call gives: `text` for the model, `call`, the record of it, and `details`, what
    the text shows as values, so that no agent parses a page. Details are not recorded."""

    text: str
    call: ToolCall
    details: Details | Refusal | None = None

    @property
    def failed(self) -> bool:
        return bool(self.call.error)


@dataclass(frozen=True)
class Answer:
    """The parts of a final answer: `Explanation`, `Exact Answer`, `Confidence` (0 to 100, or None
    where the answer gives none), and the docids cited in the explanation, in order.

    `documents` answers a question that asks for documents: their docids, the best first, each
    once. It is empty for other answers.
    """

    explanation: str = ""
    exact: str = ""
    confidence: float | None = None
    citations: Sequence[str] = ()
    documents: Sequence[str] = ()


STATUSES = (
    "completed",
    "steered",
    "timed_out",
    "out_of_turns",
    "out_of_context",
    "out_of_money",
    "failed",
)
# The `reason` of a question that ended because its run had to: it is asked again when the run goes
# on, as a failed one is.
RUN_OUT_OF_MONEY = "run_out_of_money"


@dataclass(frozen=True)
class Trajectory:
    """All that happened on one question. Written once, never changed.

    `tiers` maps each of `TIERS` to docids in order of first exposure; `usage` is flat numbers
    (tokens, money) and empty for an agent without a model; `seconds` is wall-clock time. `reason`
    is one stable word for why it ended so, where the status alone does not tell (`refused`,
    `tool_calls`, `empty_answer`, ...); `warnings` are lines for a person. `source` is what the file
    of an imported trajectory says of itself (see `toolkit.exchange`), and empty for one of ours.
    `rounds` has a row of plain JSON values for each round of an agent that works in rounds
    (`agents.literature.rounds` tells what is in it), and is empty for others.
    """

    qid: str
    question: str
    status: str
    answer: Answer = field(default_factory=Answer)
    messages: Sequence[Mapping[str, Any]] = ()
    calls: Sequence[ToolCall] = ()
    tiers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    exposures: Sequence[Exposure] = ()
    usage: Mapping[str, float] = field(default_factory=dict)
    started: str = ""
    seconds: float = 0.0
    traceback: str = ""
    reason: str = ""
    warnings: Sequence[str] = ()
    source: Mapping[str, Any] = field(default_factory=dict)
    rounds: Sequence[Mapping[str, Any]] = ()


@runtime_checkable
class Benchmark(Protocol):
    """Questions, judgements and a corpus.

    `judgements[tier][qid][docid]` is a grade (int); tiers are `evidence` and, where the benchmark
    tells which documents hold the answer itself, `gold`. `answers[qid]` lists accepted short
    answers. `fingerprint` is a hash of the content (not of the path); `corpus_fingerprint` of the
    documents alone, which is what an index depends on.

    Optional parts, read by the functions below: `sealed` is true for one whose texts must not be
    published (`is_sealed`); `targets`, `checklists` and `satisfaction` belong to questions that ask
    for documents (`document_sets`); `links()` yields the links between documents (`links_of`), and
    `links_fingerprint` is a hash of what they are made of.
    """

    name: str
    topics: Sequence[Topic]
    judgements: Mapping[str, Mapping[str, Mapping[str, int]]]
    answers: Mapping[str, Sequence[str]]

    @property
    def fingerprint(self) -> str: ...

    @property
    def corpus_fingerprint(self) -> str: ...

    def documents(self) -> Iterator[Document]: ...


def is_sealed(benchmark: Benchmark) -> bool:
    """Whether what a run writes of the benchmark's texts is to be obfuscated
    (`toolkit.sealing`)."""
    return bool(getattr(benchmark, "sealed", False))


@dataclass(frozen=True)
class DocumentSets:
    """What a benchmark knows of its questions that ask for documents; empty where none does.

    - `targets[qid]`: the documents asked for, those that meet every requirement; perhaps none.
    - `checklists[qid]`: the requirements in words; left out where they are not known.
    - `satisfaction[qid][docid]`: whether the document meets each requirement, in the order of the
      checklist, where that is known.
    """

    targets: Mapping[str, Collection[str]] = field(default_factory=dict)
    checklists: Mapping[str, Sequence[str]] = field(default_factory=dict)
    satisfaction: Mapping[str, Mapping[str, Sequence[bool]]] = field(default_factory=dict)


def document_sets(benchmark: Benchmark) -> DocumentSets:
    """The optional attributes `targets`, `checklists` and `satisfaction` of a benchmark."""
    return DocumentSets(
        **{part.name: getattr(benchmark, part.name, None) or {} for part in fields(DocumentSets)}
    )


def links_of(benchmark: Benchmark) -> Iterator[Link] | None:
    """The links between a benchmark's documents; None where it has no such part."""
    links = getattr(benchmark, "links", None)
    return None if links is None else links()


def links_fingerprint(benchmark: Benchmark) -> str | None:
    """A hash of what the links are made of, by which a graph of them can be kept: the optional
    attribute of that name. None where the benchmark has none, so that it is built at each start."""
    return getattr(benchmark, "links_fingerprint", None)


class Segmenter(Protocol):
    """Cuts a document into the units that are indexed. `name` is the index's unit name;
    `aggregate` asks pipelines for documents from passages (Max-P); `whole_documents` says that a
    unit is a document of whatever length, which stages with a model may have to split."""

    name: str
    aggregate: bool
    whole_documents: bool

    def spans(self, document: Document) -> list[tuple[int, int]]:
        """Half-open character spans of `document.text`, one a unit, in order."""
        ...

    def units(self, document: Document) -> Iterator[Unit]: ...

    @property
    def fingerprint(self) -> str: ...


class DocumentStore(Protocol):
    """Raw text by id, for many concurrent readers."""

    def documents(self) -> Iterator[Document]:
        """Every document, in the corpus's order, streamed."""
        ...

    def document(self, docid: str) -> Document:
        """The whole document; `KeyError` if there is none of that id."""
        ...

    def lines(self, docid: str, offset: int = 1, limit: int = 200) -> Lines:
        """`limit` lines from line `offset` (from 1). `KeyError` for an unknown docid,
        `ValueError` for an offset or a limit out of range."""
        ...

    def texts(self, unit_ids: Sequence[str]) -> list[Unit]:
        """The units, in the order asked. `KeyError` for an unknown id."""
        ...


class SearchBackend(Protocol):
    """Anything that ranks. Thread-safe; never sees a model's messages."""

    def search(self, request: SearchRequest) -> SearchResult: ...


class ToolUse(NamedTuple):
    """A tool's name, and the name of its argument that takes the query or the document's id."""

    tool: str
    argument: str


class Abilities(NamedTuple):
    """Which tool of an interface searches and which one reads a document (or the document of a
    unit); None where none does. A loop that calls tools by itself needs no other names, because a
    page's `continuation` holds the call for what follows. A tool whose schema has an argument
    `reason` takes the caller's reason there."""

    search: ToolUse | None = None
    read: ToolUse | None = None


class SearchTool(Protocol):
    """One question's session with the corpus: caching, paging, excerpts, budgets, evidence.

    `reasoning` is what the agent thought last; an agent that thinks sets it before a call.
    """

    reasoning: str

    def specs(self) -> list[dict[str, Any]]:
        """JSON schemas of the tools, in the function-calling form that all model APIs share."""
        ...

    def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Serve one call. What was wrong with a call comes back as the result's text and its
        record's `error`; only a defect or a broken backend raises."""
        ...

    def block(self, reason: str) -> None:
        """Refuse every later call with `reason`."""
        ...

    def answer(self, text: str) -> Answer:
        """The parts of a final answer; documents of this session that it cites become `cited`."""
        ...

    @property
    def abilities(self) -> Abilities: ...

    @property
    def calls(self) -> Sequence[ToolCall]: ...

    @property
    def evidence(self) -> EvidenceRecord: ...


@runtime_checkable
class ToolInterface(Protocol):
    """Settings of a search tool. Cheap to make, checked when made, and never changed, so that one
    object serves all questions of a run."""

    def session(self, backend: SearchBackend, store: DocumentStore) -> SearchTool:
        """A new session, for one question."""
        ...


class EvidenceRecord(Protocol):
    """What the agent has been exposed to, in order."""

    @property
    def tiers(self) -> Mapping[str, Sequence[str]]: ...

    @property
    def exposures(self) -> Sequence[Exposure]: ...


class Agent(Protocol):
    """Turns one question into one trajectory."""

    name: str

    async def run(self, topic: Topic, tool: SearchTool) -> Trajectory: ...
