"""Literature search: search, follow links, read in layers, locate evidence, recognise findings,
score requirements.

What the tools stand on beside the ranking (links, a locator of evidence, a resolver, a scorer) is
given by whoever puts a run together (`Operators`); a tool whose operator is absent is not offered.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

from toolkit.benchmarks.links import DIRECTIONS, LinkGraph
from toolkit.checks import check_integer
from toolkit.contracts import (
    DocumentPage,
    DocumentStore,
    Hit,
    ResultsPage,
    SearchBackend,
    SearchRequest,
    Unit,
    parent,
)
from toolkit.corpus.layers import (
    ABSTRACT,
    EVIDENCE,
    METADATA,
    TEXT,
    Fields,
    LayeredStore,
    no_fields,
)
from toolkit.corpus.resolve import Resolution, Resolver
from toolkit.search.errors import ToolError, quoted
from toolkit.search.pages import Limits, document_page, one_line, short
from toolkit.search.schemas import (
    FAR,
    ChoiceParameter,
    IntegerParameter,
    TextParameter,
    ToolSpec,
    call_text,
)
from toolkit.search.scoring import Candidate, Evidence, Passage, RequirementScorer, ScoresPage
from toolkit.search.session import CachedRanking, Page, SessionSettings, Tool, ToolSession

_READ, _LOCATE, _EXPAND, _RESOLVE, _SCORE, _ORDER = (
    "read",
    "locate",
    "expand",
    "resolve",
    "score",
    "order",
)
_CANDIDATES = 3  # of an ambiguous finding, that are named
MOST_DOCIDS = 50  # of a call that takes several
_IDS = re.compile(r"[^\s,;\[\]]+")


class Located(NamedTuple):
    """A passage that speaks of a requirement, and how much of it."""

    unit_id: str
    score: float


class EvidenceLocator(Protocol):
    """Finds the passages of documents that speak of requirements."""

    def locate(
        self, docids: Sequence[str], requirements: Sequence[str], most: int = 3
    ) -> list[list[list[Located]]]:
        """By document, by requirement: at most `most` passages, the best first. `KeyError` for an
        unknown document."""
        ...


class ListReranker(Protocol):
    """Orders a short list by comparing its documents with each other."""

    def __call__(self, qid: str, question: str, documents: Sequence[tuple[str, str]]) -> list[str]:
        """The docids of `documents` (docid, text), the best first."""
        ...


@dataclass(frozen=True)
class Operators:
    """What the tools of literature search work with; None where there is none."""

    links: LinkGraph | None = None
    locator: EvidenceLocator | None = None
    scorer: RequirementScorer | None = None
    passages: DocumentStore | None = None
    resolver: Resolver | None = None
    order: ListReranker | None = None
    fields: Fields = no_fields


@dataclass(frozen=True, kw_only=True)
class Literature(SessionSettings):
    """Settings of an interface with `search`, `expand`, `read`, `locate`, `score`, `order` and
    `resolve`.

    `depth`: hits of a ranking, all counted as surfaced. `hits`: those that `search` and `expand`
    show, with their metadata. `abstract_tokens`: length of an abstract that is made of a text's
    first sentences. `passages`: passages of a document for a requirement, which `locate` shows and
    `score` reads; `passage_tokens`: their length.
    `max_lines`, `max_bytes`: size of one page of a whole text. `largest_hub`: links above which a
    document is not expanded. Raises `InputError` for impossible values.
    """

    depth: int = 1000
    hits: int = 20
    abstract_tokens: int = 200
    passages: int = 3
    passage_tokens: int = 250
    largest_hub: int = 1000
    max_lines: int = 200
    max_bytes: int = 50_000
    operators: Operators = field(default=Operators(), repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("depth", self.depth)
        check_integer("hits", self.hits, most=self.depth)
        for name in ("abstract_tokens", "passages", "passage_tokens", "largest_hub"):
            check_integer(name, getattr(self, name))
        for name in ("max_lines", "max_bytes"):
            check_integer(name, getattr(self, name))

    def bind(self, operators: Operators) -> Literature:
        """The same settings with what the tools work with."""
        return replace(self, operators=operators)

    def session(
        self,
        backend: SearchBackend,
        store: DocumentStore,
        clock: Callable[[], float] = time.perf_counter,
    ) -> LiteratureSession:
        """A session for one question; `clock` gives seconds."""
        return self.open_session(LiteratureSession, backend, store, clock, depth=self.depth)


class LiteratureSession(ToolSession[Literature]):
    """One question's session: see `Literature`. Pages tell the layer of reading that they show."""

    def __init__(
        self, settings: Literature, backend: SearchBackend, store: DocumentStore, **others: Any
    ) -> None:
        super().__init__(settings, backend, store, **others)
        self._qid = str(getattr(backend, "qid", ""))
        self._read_before: dict[str, tuple[Passage, ...]] = {}

    @property
    def layers(self) -> LayeredStore:
        """The documents in layers of reading."""
        operators = self.settings.operators
        return LayeredStore(
            self.store,
            passages=operators.passages,
            abstract_tokens=self.settings.abstract_tokens,
            tokens=self.tokens,
            fields=operators.fields,
        )

    def tools(self) -> Iterable[Tool]:
        settings, operators = self.settings, self.settings.operators
        docid = TextParameter("docid", "A docid as results show it.")
        search = ToolSpec(
            "search",
            f"Rank the collection for a query. Shows titles of the {settings.hits} best documents.",
            (TextParameter("query", "What the documents should speak of."),),
        )
        read = ToolSpec(
            _READ,
            "Read a document: its abstract (default), its metadata, or its text by lines.",
            (
                docid,
                ChoiceParameter("layer", "What to read.", (METADATA, ABSTRACT, TEXT), ABSTRACT),
                IntegerParameter("offset", "First line of the text to show (default 1).", 1, FAR),
            ),
        )
        expand = ToolSpec(
            _EXPAND,
            "The documents that some documents refer to (out), that refer to them (in), or both "
            "(default); those linked with most of them first.",
            (
                TextParameter("docids", f"Up to {MOST_DOCIDS} docids, separated by spaces."),
                ChoiceParameter("direction", "Which links to follow.", DIRECTIONS, "both"),
            ),
        )
        locate = ToolSpec(
            _LOCATE,
            f"The {settings.passages} passages of a document that speak most of a requirement.",
            (docid, TextParameter("requirement", "One requirement, in words.")),
        )
        score = ToolSpec(
            _SCORE,
            "Hold documents against requirements: for each, whether its evidence meets them.",
            (
                TextParameter("docids", f"Up to {MOST_DOCIDS} docids, separated by spaces."),
                TextParameter("requirements", "One requirement on each line."),
                TextParameter("question", "What is asked for, as a whole."),
            ),
        )
        order = ToolSpec(
            _ORDER,
            "Put documents in order by comparing them with each other.",
            (
                TextParameter("docids", f"Up to {MOST_DOCIDS} docids, the best first."),
                TextParameter("question", "What is asked for, as a whole."),
            ),
        )
        resolve = ToolSpec(
            _RESOLVE,
            "Which documents of the collection titles, urls or identifiers mean, one on each line.",
            (TextParameter("findings", "One title, url or identifier on each line."),),
        )
        yield Tool(search, self._search, searches_by="query")
        yield Tool(read, self._read, reads_by="docid")
        if operators.links is not None:
            yield Tool(expand, self._expand)
        if operators.locator is not None:
            yield Tool(locate, self._locate)
            if operators.scorer is not None:
                yield Tool(score, self._score)
        if operators.order is not None:
            yield Tool(order, self._order)
        if operators.resolver is not None:
            yield Tool(resolve, self._resolve)

    def _search(self, query: str) -> Page:
        _, ranking = self.rank(query)
        hits = ranking.hits[: self.settings.hits]
        header = f"[{len(hits)} of {len(ranking.hits)} hits query={short(ranking.request.query)}]"
        return self._listed(header, ranking.request.query, hits, len(ranking.hits), ranking)

    def _expand(self, docids: str, direction: str) -> Page:
        links = self.settings.operators.links
        assert links is not None
        seeds = self._named(docids, _EXPAND)
        counts: Counter[str] = Counter()
        hubs = 0
        for seed in seeds:
            neighbours = links.neighbours(seed, direction)
            if len(neighbours) > self.settings.largest_hub:
                hubs += 1
            else:
                counts.update(docid for docid in neighbours if docid not in seeds)
        linked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[: self.depth]
        hits = [
            Hit(docid, docid, rank, float(n)) for rank, (docid, n) in enumerate(linked, start=1)
        ]
        request = SearchRequest(f"{direction}: {' '.join(seeds)}", depth=self.depth)
        notes = {"operator": _EXPAND, **({"hubs": hubs} if hubs else {})}
        ranking = CachedRanking(request, hits, tuple(hit.unit_id for hit in hits), notes)
        shown = hits[: self.settings.hits]
        header = f"[{len(shown)} of {len(hits)} linked documents direction={direction}]"
        if hubs:
            header += f"\n{hubs} documents have too many links to be followed."
        return self._listed(header, request.query, shown, len(hits), ranking)

    def _listed(
        self, header: str, query: str, hits: Sequence[Hit], total: int, ranking: CachedRanking
    ) -> Page:
        """Hits as documents, each once, with their metadata."""
        layers = self.layers
        rows: list[Hit] = []
        for docid in dict.fromkeys(hit.docid for hit in hits):
            first = next(hit for hit in hits if hit.docid == docid)
            title = one_line(layers.metadata(docid).title)
            rows.append(Hit(docid, docid, len(rows) + 1, first.score, title=title))
        lines = [f"{row.rank}. docid={row.docid} {row.title}".rstrip() for row in rows]
        text = "\n".join([header, *(lines or ["Nothing was found. Try other words."])])
        return Page(text, ResultsPage(query, tuple(rows), total, layer=METADATA), ranking)

    def _read(self, docid: str, layer: str, offset: int | None) -> Page:
        docid = parent(docid)
        self._check_known([docid], _READ, "docid")
        if layer == TEXT:
            return self._text(docid, offset or 1)
        metadata = self.layers.metadata(docid)
        title = one_line(metadata.title)
        if layer == METADATA:
            lines = [f"url: {metadata.url}"] if metadata.url else []
            lines += [f"{name}: {text}" for name, text in metadata.fields.items()]
            hit = Hit(docid, docid, 1, 0.0, title=title)
            page = ResultsPage("", (hit,), 1, layer=METADATA)
            return Page("\n".join([f"[docid={docid} metadata] {title}", *lines]), page)
        abstract = tuple(self.layers.abstract(docid).splitlines()) or ("",)
        details = DocumentPage(docid, title, abstract, len(abstract), layer=ABSTRACT)
        return Page("\n".join([f"[docid={docid} abstract] {title}", *abstract]), details)

    def _text(self, docid: str, first: int) -> Page:
        lines = self.lines(_READ, docid, first, self.settings.max_lines, layer=TEXT)

        def next_call(line: int) -> str:
            return call_text(_READ, docid=docid, layer=TEXT, offset=line)

        limits = Limits(FAR, self.settings.max_bytes)
        text, page = document_page(lines, limits, _READ, next_call)
        more = page.continuation
        if more is not None:
            more = replace(more, arguments={**more.arguments, "layer": TEXT})
        return Page(text, replace(page, layer=TEXT, continuation=more))

    def _locate(self, docid: str, requirement: str) -> Page:
        locator = self.settings.operators.locator
        assert locator is not None
        docid = parent(docid)
        self._check_known([docid], _LOCATE, "docid")
        ((located,),) = locator.locate([docid], [requirement], self.settings.passages)
        header = f"[docid={docid} evidence for {short(requirement)}]"
        if not located:
            return Page(f"{header}\nNo passage speaks of it.")
        units = self.layers.evidence([passage.unit_id for passage in located])
        passages = tuple(self._passage(unit) for unit in units)
        title = one_line(units[0].title)
        details = DocumentPage(docid, title, passages, len(passages), layer=EVIDENCE)
        return Page("\n".join([f"{header} {title}".rstrip(), *passages]), details)

    def _passage(self, unit: Unit) -> str:
        return f"[{unit.unit_id}] {self._cut(unit)}"

    def _cut(self, unit: Unit) -> str:
        text = " ".join(unit.text.split())
        cut = self.tokens.head(text, self.settings.passage_tokens)
        return f"{cut}{'…' if len(cut) < len(text) else ''}"

    def _score(self, docids: str, requirements: str, question: str) -> Page:
        scorer = self.settings.operators.scorer
        assert scorer is not None
        documents = self._named(docids, _SCORE)
        lines = [" ".join(line.split()) for line in requirements.splitlines() if line.strip()]
        lines = list(dict.fromkeys(lines))
        candidates = self.candidates(documents, lines, question)
        page = ScoresPage(documents, lines, scorer.score(candidates))
        return Page(f"[{len(documents)} documents scored]\n{page.text}", page)

    def candidates(
        self, docids: Sequence[str], requirements: Sequence[str], question: str
    ) -> list[Candidate]:
        """Documents with the passages located for each requirement. What was located for them
        earlier in this session is their context."""
        locator = self.settings.operators.locator
        assert locator is not None
        located = locator.locate(docids, requirements, self.settings.passages)
        unit_ids = {passage.unit_id for rows in located for row in rows for passage in row}
        units = self.layers.evidence(sorted(unit_ids))
        texts = {unit.unit_id: Passage(unit.unit_id, self._cut(unit)) for unit in units}
        candidates = []
        for docid, rows in zip(docids, located, strict=True):
            evidence = tuple(
                Evidence(requirement, tuple(texts[passage.unit_id] for passage in row))
                for requirement, row in zip(requirements, rows, strict=True)
            )
            title, earlier = self.layers.metadata(docid).title, self._read_before.get(docid, ())
            candidate = Candidate(question, docid, one_line(title), evidence, earlier, self._qid)
            self._read_before[docid] = candidate.passages
            candidates.append(candidate)
        return candidates

    def _order(self, docids: str, question: str) -> Page:
        reranker = self.settings.operators.order
        assert reranker is not None
        documents = self._named(docids, _ORDER)
        texts = [(docid, self._read_text(docid)) for docid in documents]
        ordered = reranker(self._qid, question, texts)
        hits = [Hit(docid, docid, rank, 0.0) for rank, docid in enumerate(ordered, start=1)]
        text = "\n".join(["[in order, the best first]", *(f"docid={docid}" for docid in ordered)])
        return Page(text, ResultsPage(question, tuple(hits), len(hits), layer=EVIDENCE))

    def _read_text(self, docid: str) -> str:
        """What this session has located of a document, with its title; else its abstract."""
        passages = " ".join(passage.text for passage in self._read_before.get(docid, ()))
        title = one_line(self.layers.metadata(docid).title)
        return f"{title}\n{passages or self.layers.abstract(docid)}".strip()

    def _resolve(self, findings: str) -> Page:
        resolver = self.settings.operators.resolver
        assert resolver is not None
        resolutions = resolver.resolve_lines(findings)
        docids = list(dict.fromkeys(one.docid for one in resolutions if one.docid))
        hits = [Hit(docid, docid, rank, 1.0) for rank, docid in enumerate(docids, start=1)]
        lines = [self._resolution(one) for one in resolutions]
        titles = {docid: one_line(self.layers.metadata(docid).title) for docid in docids}
        page = ResultsPage(
            "", tuple(h._replace(title=titles[h.docid]) for h in hits), len(hits), layer=METADATA
        )
        return Page("\n".join([f"[{len(docids)} of {len(resolutions)} found]", *lines]), page)

    def _resolution(self, one: Resolution) -> str:
        finding = short(one.finding.strip())
        if one.docid:
            title = one_line(self.layers.metadata(one.docid).title)
            return f"{finding}: docid={one.docid} {title} (by {one.how})"
        could = f": {', '.join(one.candidates[:_CANDIDATES])}" if one.candidates else ""
        more = len(one.candidates) - _CANDIDATES
        return f"{finding}: {one.how}{could}" + (f" and {more} more" if more > 0 else "")

    def _named(self, docids: str, tool: str) -> list[str]:
        """The documents that an argument names, each once; at most `MOST_DOCIDS`."""
        names = _json_texts(docids) or _IDS.findall(docids)
        documents = list(dict.fromkeys(map(parent, names)))[:MOST_DOCIDS]
        self._check_known(documents, tool, "docids")
        return documents

    def _check_known(self, docids: Sequence[str], tool: str, field: str) -> None:
        unknown = next((docid for docid in docids if not self._has(docid)), None)
        if unknown is not None or not docids:
            raise ToolError(
                "unknown_docid",
                f"docid {quoted(unknown or '')} is unknown. Give a docid as results show it.",
                tool=tool,
                field=field,
            )

    def _has(self, docid: str) -> bool:
        try:
            return bool(self.store.document(docid))
        except KeyError:
            return False


def _json_texts(text: str) -> list[str]:
    """The members of a JSON list of strings, which may hold what separates docids elsewhere; empty
    for any other text."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return []
    texts = value if isinstance(value, list) else []
    return texts if all(isinstance(item, str) for item in texts) else []
