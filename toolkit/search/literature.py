"""Literature search with the tools of PaSaMaster (Du et al., 2026): search, follow links, read in
layers, locate evidence, score requirements. What they need besides a ranking is bound as
`Operators`; a tool whose operator is missing is not offered."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple, Protocol

from soundingline.toolkit.corpus.links import DIRECTIONS, LinkGraph
from soundingline.toolkit.corpus.resolve import Resolver
from soundingline.toolkit.corpus.segmentation import rule_spans
from soundingline.toolkit.data import DocumentStore, Hit, Ranking, SearchRequest, Unit, parent
from soundingline.toolkit.errors import check_int
from soundingline.toolkit.json_text import try_json
from soundingline.toolkit.search.scoring import (
    CandidateDocument,
    Evidence,
    RequirementScorer,
    ScoresPage,
)
from soundingline.toolkit.search.session import CachedSearch, SearchTool, Tool, ToolOutput
from soundingline.toolkit.search.tool import (
    ABSTRACT,
    EVIDENCE,
    LARGEST_OFFSET,
    METADATA,
    TEXT,
    DocumentPage,
    Parameter,
    ResultsPage,
    document_page,
    one_line,
    short,
    unknown_docid,
)
from soundingline.toolkit.tokens import WORDS, Tokenizer
from soundingline.toolkit.trajectory import Exposure, RecordedCall

MOST_DOCIDS = 50  # of a call that takes several
_CANDIDATES = 3  # of an ambiguous reference, that a page names
_IDS = re.compile(r"[^\s,;\[\]]+")

# Further metadata of a document (by docid), by the name of the field.
Fields = Callable[[str], Mapping[str, str]]
# Orders a short list: question id, question, and (docid, text) of each document -> docids, best
# first.
ListReranker = Callable[[str, str, Sequence[tuple[str, str]]], list[str]]


class Located(NamedTuple):
    """A passage that concerns a requirement, and how much of the requirement it matches.

    Example:
        >>> Located("d1%p0", 0.5).unit_id
        'd1%p0'
    """

    unit_id: str
    score: float


class EvidenceLocator(Protocol):
    """Finds the passages of documents that concern requirements."""

    def locate(
        self, docids: Sequence[str], requirements: Sequence[str], most: int = 3
    ) -> list[list[list[Located]]]:
        """By document, then by requirement: at most `most` passages, best first; `KeyError` for an
        unknown document."""


@dataclass(frozen=True)
class Operators:
    """What the tools of `Literature` work with.

    Args:
        links: the links that `expand` follows.
        locator: finds the passages of `locate` and `score`.
        scorer: scores the requirements of `score`.
        passages: the texts of evidence by unit id; None: those of the document store.
        resolver: finds the documents of `resolve`.
        order: the re-ranker of `order`.
        fields: further metadata by docid; a field `abstract` is the abstract.

    Example:
        >>> tool = Literature(operators=Operators(passages=store)).open(backend, store)
        >>> [spec["name"] for spec in tool.specs()]
        ['search', 'read']
    """

    links: LinkGraph | None = None
    locator: EvidenceLocator | None = None
    scorer: RequirementScorer | None = None
    passages: DocumentStore | None = None
    resolver: Resolver | None = None
    order: ListReranker | None = None
    fields: Fields = lambda docid: {}


@dataclass(kw_only=True, eq=False)
class Literature(SearchTool):
    """`search`, `read` and, with their operators, `expand`, `locate`, `score`, `order`, `resolve`.

    Pages name the layer of reading that they show: metadata, abstract, evidence or whole text, the
    tiers of PaSaMaster's repository (Du et al., 2026, section 2.2).

    Args:
        depth: hits of a ranking, all of which count as surfaced.
        max_lines, max_bytes: size of one page of a whole text.
        operators: what the tools work with.

    Attributes:
        hits: hits that `search` and `expand` show, with their titles.
        abstract_tokens: length of an abstract that is made of the first sentences of a text.
        passages: passages of a document for each requirement.
        passage_tokens: their length.
        largest_hub: documents with more links than this are not expanded.

    Example:
        >>> literature = Literature().open(backend, store)
        >>> literature.call("search", {"query": "old mill"}).page.shown
        ('d1',)
    """

    hits: ClassVar = 20
    abstract_tokens: ClassVar = 200
    passages: ClassVar = 3
    passage_tokens: ClassVar = 250
    largest_hub: ClassVar = 1000

    depth: int = 1000
    max_lines: int = 200
    max_bytes: int = 50_000
    operators: Operators = field(default=Operators(), repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("depth", "max_lines", "max_bytes"):
            check_int(name, getattr(self, name))

    def begin(self) -> None:
        self._qid = str(getattr(self.backend, "qid", ""))
        self._located: dict[str, tuple[Unit, ...]] = {}

    def memory(self, docids: Iterable[str]) -> dict[str, Any]:
        """What is not on record of these documents, as JSON values for `restore`: the passages
        located in them, which later calls of `score` and `order` read."""
        located = [(docid, self._located[docid]) for docid in docids if docid in self._located]
        return {"located": {docid: [unit.unit_id for unit in units] for docid, units in located}}

    def restore(
        self,
        calls: Sequence[RecordedCall],
        exposures: Sequence[Exposure],
        memories: Sequence[Mapping[str, Any]],
    ) -> None:
        """Continue an earlier session from its record and its memories, in their order. Rankings
        are restored without scores."""
        located: dict[str, list[str]] = {}
        for memory in memories:
            located |= memory["located"]
        texts = self._passages(unit_id for unit_ids in located.values() for unit_id in unit_ids)
        self._calls += calls
        self.exposures.restore(calls, exposures)
        for docid, unit_ids in located.items():
            self._located[docid] = tuple(texts[unit_id] for unit_id in unit_ids)
        for call in calls:
            if call.name == "search" and not call.error:
                request = SearchRequest(call.arguments["query"].strip(), depth=self.depth)
                hits = Ranking(call.ranking, [0.0] * len(call.ranking))
                notes = {name: note for name, note in call.notes.items() if name != "layer"}
                self.cache(CachedSearch(request, hits, notes))

    def tools(self) -> Iterable[Tool]:
        operators = self.operators
        docid = Parameter("docid", "A docid as results show it.")
        docids = Parameter("docids", f"Up to {MOST_DOCIDS} docids, separated by spaces.")
        question = Parameter("question", "What is asked for, as a whole.")
        yield Tool(
            "search",
            f"Rank the collection for a query. Shows titles of the {self.hits} best documents.",
            (Parameter("query", "What the documents should speak of."),),
            self._search,
            searches_by="query",
        )
        layers = (METADATA, ABSTRACT, TEXT)
        offset = "First line of the text to show (default 1)."
        yield Tool(
            "read",
            "Read a document: its abstract (default), its metadata, or its text by lines.",
            (
                docid,
                Parameter("layer", "What to read.", choices=layers, default=ABSTRACT),
                Parameter("offset", offset, bounds=(1, LARGEST_OFFSET)),
            ),
            self._read,
            reads_by="docid",
        )
        if operators.links is not None:
            ways = DIRECTIONS
            yield Tool(
                "expand",
                "The documents that some documents refer to (out), that refer to them (in), or "
                "both (default); those linked with most of them first.",
                (
                    docids,
                    Parameter("direction", "Which links to follow.", choices=ways, default="both"),
                ),
                partial(self._expand, operators.links),
            )
        if operators.locator is not None:
            yield Tool(
                "locate",
                f"The {self.passages} passages of a document that speak most of a requirement.",
                (docid, Parameter("requirement", "One requirement, in words.")),
                partial(self._locate, operators.locator),
            )
        if operators.locator is not None and operators.scorer is not None:
            yield Tool(
                "score",
                "Hold documents against requirements: for each, whether its evidence meets them.",
                (docids, Parameter("requirements", "One requirement on each line."), question),
                partial(self._score, operators.locator, operators.scorer),
            )
        if operators.order is not None:
            best_first = Parameter("docids", f"Up to {MOST_DOCIDS} docids, the best first.")
            yield Tool(
                "order",
                "Put documents in order by comparing them with each other.",
                (best_first, question),
                partial(self._order, operators.order),
            )
        if operators.resolver is not None:
            yield Tool(
                "resolve",
                "Which documents of the collection titles, urls or identifiers mean, one on each "
                "line.",
                (Parameter("findings", "One title, url or identifier on each line."),),
                partial(self._resolve, operators.resolver),
            )

    def _search(self, query: str) -> ToolOutput:
        _, search = self.rank(query, self.depth)
        hits = search.hits[: self.hits]
        header = f"[{len(hits)} of {len(search.hits)} hits query={short(search.request.query)}]"
        return self._listed(header, hits, search)

    def _expand(self, links: LinkGraph, docids: str, direction: str) -> ToolOutput:
        seeds = self._named(docids, "expand")
        counts: Counter[str] = Counter()
        hubs = 0
        for seed in seeds:
            neighbours = links.neighbours(seed, direction)
            if len(neighbours) > self.largest_hub:
                hubs += 1
            else:
                counts.update(docid for docid in neighbours if docid not in seeds)
        linked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[: self.depth]
        hits = [
            Hit(docid, docid, rank, float(n)) for rank, (docid, n) in enumerate(linked, start=1)
        ]
        request = SearchRequest(f"{direction}: {' '.join(seeds)}", depth=self.depth)
        notes = {"operator": "expand", **({"hubs": hubs} if hubs else {})}
        search = CachedSearch(request, hits, notes)
        shown = hits[: self.hits]
        header = f"[{len(shown)} of {len(hits)} linked documents direction={direction}]"
        if hubs:
            header += f"\n{hubs} documents have too many links to be followed."
        return self._listed(header, shown, search)

    def _listed(self, header: str, hits: Sequence[Hit], search: CachedSearch) -> ToolOutput:
        """The documents of hits, each once, with their titles."""
        best: dict[str, Hit] = {}
        for hit in hits:
            best.setdefault(hit.docid, hit)
        rows = [
            Hit(docid, docid, rank, hit.score, title=self._title(docid))
            for rank, (docid, hit) in enumerate(best.items(), start=1)
        ]
        lines = [f"{row.rank}. docid={row.docid} {row.title}".rstrip() for row in rows]
        text = "\n".join([header, *(lines or ["Nothing was found. Try other words."])])
        total = len(search.hits)
        page = ResultsPage(search.request.query, tuple(rows), total, layer=METADATA)
        return ToolOutput(text, page, search)

    def _read(self, docid: str, layer: str, offset: int | None) -> ToolOutput:
        docid = parent(docid)
        self._check_known([docid], "read", "docid")
        if layer == TEXT:
            return self._text(docid, offset or 1)
        title = self._title(docid)
        if layer == METADATA:
            url = self.store.document(docid).url
            lines = [f"url: {url}"] if url else []
            fields = self.operators.fields(docid).items()
            lines += [f"{name}: {text}" for name, text in fields if name != ABSTRACT]
            hit = Hit(docid, docid, 1, 0.0, title=title)
            results = ResultsPage("", (hit,), 1, layer=METADATA)
            return ToolOutput("\n".join([f"[docid={docid} metadata] {title}", *lines]), results)
        abstract = tuple(self._abstract(docid).splitlines()) or ("",)
        page = DocumentPage(docid, title, abstract, len(abstract), layer=ABSTRACT)
        return ToolOutput("\n".join([f"[docid={docid} abstract] {title}", *abstract]), page)

    def _abstract(self, docid: str) -> str:
        """The abstract, or the first sentences of the text."""
        text = self.store.document(docid).text
        abstract = self.operators.fields(docid).get(ABSTRACT, "")
        return abstract or first_sentences(text, self.abstract_tokens, self.tokens)

    def _text(self, docid: str, first: int) -> ToolOutput:
        lines = self.read_lines("read", docid, first, self.max_lines, layer=TEXT)
        call = {"docid": docid, "layer": TEXT, "offset": 0}
        text, page = document_page(lines, "read", call, (LARGEST_OFFSET, self.max_bytes))
        more = page.continuation
        if more is not None:
            more = replace(more, arguments={**more.arguments, "layer": TEXT})
        return ToolOutput(text, replace(page, layer=TEXT, continuation=more))

    def _locate(self, locator: EvidenceLocator, docid: str, requirement: str) -> ToolOutput:
        docid = parent(docid)
        self._check_known([docid], "locate", "docid")
        ((located,),) = locator.locate([docid], [requirement], self.passages)
        header = f"[docid={docid} evidence for {short(requirement)}]"
        if not located:
            return ToolOutput(f"{header}\nNo passage speaks of it.")
        units = self._evidence([passage.unit_id for passage in located])
        passages = tuple(f"[{unit.unit_id}] {self._cut(unit)}" for unit in units)
        title = one_line(units[0].title)
        page = DocumentPage(docid, title, passages, len(passages), layer=EVIDENCE)
        return ToolOutput("\n".join([f"{header} {title}".rstrip(), *passages]), page)

    def _score(
        self,
        locator: EvidenceLocator,
        scorer: RequirementScorer,
        docids: str,
        requirements: str,
        question: str,
    ) -> ToolOutput:
        documents = self._named(docids, "score")
        lines = [" ".join(line.split()) for line in requirements.splitlines() if line.strip()]
        needs = list(dict.fromkeys(lines))
        located = locator.locate(documents, needs, self.passages)
        texts = self._passages(each.unit_id for rows in located for row in rows for each in row)
        candidates = []
        for docid, rows in zip(documents, located, strict=True):
            evidence = tuple(
                Evidence(need, tuple(texts[passage.unit_id] for passage in row))
                for need, row in zip(needs, rows, strict=True)
            )
            # The passages located earlier in this session are context.
            context, title = self._located.get(docid, ()), self._title(docid)
            candidate = CandidateDocument(question, docid, title, evidence, context, self._qid)
            self._located[docid] = candidate.passages
            candidates.append(candidate)
        page = ScoresPage(documents, needs, scorer.score(candidates))
        return ToolOutput(f"[{len(documents)} documents scored]\n{page.text}", page)

    def passage_texts(self, unit_ids: Iterable[str]) -> dict[str, str]:
        """The texts of passages as a scorer reads them, by their ids; unknown ids are left out."""
        texts: dict[str, str] = {}
        for unit_id in unit_ids:
            with suppress(KeyError):
                texts[unit_id] = self._passages([unit_id])[unit_id].text
        return texts

    def _passages(self, unit_ids: Iterable[str]) -> dict[str, Unit]:
        """Passages as a scorer reads them, by their ids; `KeyError` for an unknown one."""
        units = self._evidence(sorted(set(unit_ids)))
        return {unit.unit_id: Unit(unit.unit_id, "", self._cut(unit)) for unit in units}

    def _evidence(self, unit_ids: Sequence[str]) -> list[Unit]:
        return (self.operators.passages or self.store).texts(unit_ids)

    def _cut(self, unit: Unit) -> str:
        text = " ".join(unit.text.split())
        cut = self.tokens.truncate(text, self.passage_tokens)
        return f"{cut}{'…' if len(cut) < len(text) else ''}"

    def _order(self, reranker: ListReranker, docids: str, question: str) -> ToolOutput:
        documents = self._named(docids, "order")
        texts = []
        for docid in documents:  # title and located passages; without passages, the abstract
            passages = " ".join(passage.text for passage in self._located.get(docid, ()))
            texts.append(f"{self._title(docid)}\n{passages or self._abstract(docid)}".strip())
        ordered = reranker(self._qid, question, list(zip(documents, texts, strict=True)))
        hits = [Hit(docid, docid, rank, 0.0) for rank, docid in enumerate(ordered, start=1)]
        text = "\n".join(["[in order, the best first]", *(f"docid={docid}" for docid in ordered)])
        return ToolOutput(text, ResultsPage(question, tuple(hits), len(hits), layer=EVIDENCE))

    def _resolve(self, resolver: Resolver, findings: str) -> ToolOutput:
        resolutions = resolver.resolve_lines(findings)
        docids = list(dict.fromkeys(found.docid for found in resolutions if found.docid))
        hits = [
            Hit(docid, docid, rank, 1.0, title=self._title(docid))
            for rank, docid in enumerate(docids, start=1)
        ]
        lines = []
        for found in resolutions:
            meaning = f"{found.how}{': ' if found.candidates else ''}"
            meaning += ", ".join(found.candidates[:_CANDIDATES])
            if (more := len(found.candidates) - _CANDIDATES) > 0:
                meaning += f" and {more} more"
            if found.docid:
                meaning = f"docid={found.docid} {self._title(found.docid)} (by {found.how})"
            lines.append(f"{short(found.finding.strip())}: {meaning}")
        page = ResultsPage("", tuple(hits), len(hits), layer=METADATA)
        return ToolOutput("\n".join([f"[{len(docids)} of {len(resolutions)} found]", *lines]), page)

    def _title(self, docid: str) -> str:
        return one_line(self.store.document(docid).title)

    def _named(self, docids: str, tool: str) -> list[str]:
        """The documents that an argument names, each once; at most `MOST_DOCIDS`."""
        names = try_json(docids)  # a list, whose members may contain spaces
        if not (names and isinstance(names, list) and all(isinstance(name, str) for name in names)):
            names = _IDS.findall(docids)
        documents = list(dict.fromkeys(map(parent, names)))[:MOST_DOCIDS]
        self._check_known(documents, tool, "docids")
        return documents

    def _check_known(self, docids: Sequence[str], tool: str, argument: str) -> None:
        try:
            for docid in docids or [""]:
                self.store.document(docid)
        except KeyError:
            do = "Give a docid as results show it."
            raise unknown_docid(docid, do, tool=tool, field=argument) from None


def first_sentences(text: str, most: int, tokens: Tokenizer = WORDS) -> str:
    """The first sentences of `text`, at most `most` tokens; of a longer sentence its beginning."""
    head = tokens.truncate(text, most)
    if len(head) == len(text):
        return text.strip()
    # The last sentence of the head depends on the text that follows it.
    ends = [end for _, end in rule_spans(text[: 2 * len(head) + 1000]) if end <= len(head)]
    return text[: ends[-1]].strip() if ends else head.strip()
