"""OpenSearch (or a compatible cluster) as an engine: BM25 over an index that many machines share.

Lucene's analyzers are the cluster's, and `build` compares their tokens with ours; terms of the
other analyzers are made here. k1 and b are a setting of an index, so each pair has a clone of the
first index. OpenSearch before 3.0 and Elasticsearch multiply scores by k1 + 1, which we divide out.
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from threading import RLock
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from soundingline.pipelines.engines.engine import NOTHING, DeletedIndex, RankedList, TermQuery
from soundingline.pipelines.engines.opensearch_client import Cluster, Passing, may_pass
from soundingline.pipelines.index_folder import (
    TermIndex,
    UniqueUnits,
    as_units,
    batches,
    read_manifest,
    write_manifest,
)
from soundingline.pipelines.lexical.analyzers import make_analyzer
from soundingline.pipelines.lexical.bm25 import idf
from soundingline.pipelines.lexical.index import weights_of
from soundingline.pipelines.lexical.storage import DECODED_LENGTHS, encode_lengths
from soundingline.toolkit.console import notify, track
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError, check_int
from soundingline.toolkit.files import atomic_folder, fingerprint
from soundingline.toolkit.optional import import_optional

NAME = "opensearch"
_VERSION = 2  # of the fields below, and of the names of indexes
_META = "soundingline"
_SIMILARITY = "soundingline"
_FIRST = (0.9, 0.4)  # k1 and b of the index that is loaded
_WINDOW = 10_000  # the cluster's default of `index.max_result_window`
_CLAUSES = 1024  # and of `indices.query.bool.max_clause_count`
_QUERIES_AT_ONCE = 64
_UNITS_AT_ONCE = 2000
_NUMBERS_AT_ONCE = 1000
_TOKENS_AT_ONCE = 9000  # below the default of `index.analyze.max_token_count`
_PROBED = 5  # documents
_TOLERANCE = 1e-4
_LONGEST_ID = 512  # bytes
_SHARD_WAIT_S = 5
_SLOW_S = 3600.0
_JOIN = "\ue000"  # for the space of an n-gram, at which the cluster would cut
_POSSESSIVE = {"type": "stemmer", "language": "possessive_english"}
# Lucene's analyzers under our names. All other terms are made here and cut at white space there.
_ANALYZERS: dict[str, dict[str, Any]] = {
    "english": {"type": "english"},  # standard, possessive, lower case, stop, Porter
    "english_unstemmed": {
        "type": "custom",
        "tokenizer": "standard",
        "filter": ["possessive", "lowercase", "stop"],
    },
    "standard": {"type": "custom", "tokenizer": "standard", "filter": ["lowercase"]},
    "whitespace": {"type": "whitespace"},
}
# Stored fields are read from compressed blocks with the texts, columns of values are not.
_IDS = {"_source": False, "stored_fields": "_none_", "docvalue_fields": ["id"]}
_TERMS = {"type": "custom", "tokenizer": "terms", "filter": []}


@dataclass(frozen=True)
class OpenSearchEngine:
    """Loads an index into a search cluster and opens it (the extra `opensearch`).

    Args:
        url: the address of a node, or of several.
        index: the name of an alias for the loaded index. None: an index named after its content.
        analyzer: see `make_analyzer`.
        shards, replicas: of the index. Statistics are those of all shards.
        shared: whether other jobs search the index, so that each (k1, b) needs a clone. False:
            (k1, b) is set in the index itself, and one job at a time may search it.
        force_merge: merge each shard into one segment after loading.
        ca_certs, timeout_s: see `Cluster`.

    Raises:
        InputError: for an unknown analyzer and for numbers out of range; from `build` and `open`
            for whatever the cluster refuses, and for a cluster that computes another BM25.
    """

    url: str | Sequence[str] | None = None
    index: str | None = None
    analyzer: str = "english"
    shards: int = 1
    replicas: int = 1
    shared: bool = True
    force_merge: bool = False
    ca_certs: str | None = None
    timeout_s: float = 60.0
    name: str = NAME
    _content: tuple[str, ...] = field(default=(), init=False, repr=False)
    supports: ClassVar[frozenset[str]] = frozenset(
        {"bm25", "rm3", "weighted queries", "enriched documents"}
    )

    def __post_init__(self) -> None:
        make_analyzer(self.analyzer)
        check_int("engine.shards", self.shards)
        check_int("engine.replicas", self.replicas, ge=0)

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.name, self._urls, self.index, *self._made)

    @property
    def _urls(self) -> tuple[str, ...]:
        urls = (self.url,) if isinstance(self.url, str) else self.url or ()
        return tuple(url.rstrip("/") for url in urls)

    @property
    def _made(self) -> tuple[Any, ...]:
        analyzer = make_analyzer(self.analyzer).fingerprint
        return analyzer, self.shards, self.shared, self._content, _VERSION

    def of_content(self, content: str) -> OpenSearchEngine:
        """See `RemoteEngine`."""
        engine = copy.copy(self)
        object.__setattr__(engine, "_content", (*self._content, content))
        return engine

    def cluster(self) -> Cluster:
        """The cluster, which is not asked yet."""
        return Cluster(self._urls, self.ca_certs, self.timeout_s)

    def build(self, units: Iterable[Unit], path: Path, *, corpus_fingerprint: str) -> None:
        """Load the units. The folder, which appears at the end, records what the index is.

        The index is named after `corpus_fingerprint`, which must therefore be another one for
        passages than for documents, unless `of_content` tells them apart. An index that was loaded
        completely before is used as it is. One whose loading was stopped is completed: units that
        it has are not sent again. An older index that the alias named stays.
        """
        name = f"{self.index or NAME}-{fingerprint(corpus_fingerprint, *self._made)}"
        loading = _Loading(self, self.cluster(), name)
        with atomic_folder(Path(path)) as folder:
            counts = loading.counts() or loading.load(units)
            if self.index:
                loading.point_alias(self.index)
            content = {
                "corpus_fingerprint": corpus_fingerprint,
                "analyzer_fingerprint": make_analyzer(self.analyzer).fingerprint,
                "index": name,
                "counts": counts,
                "identity": _identity(loading.cluster, name, loading.description(), self.shared),
            }
            write_manifest(folder, NAME, content)

    def open(self, path: Path, *, corpus_fingerprint: str | None = None) -> OpenSearchIndex:
        """`InputError` if the folder or the index in the cluster is missing, of another corpus or
        analyzer, or changed, and for a red index."""
        manifest = read_manifest(Path(path), NAME, corpus_fingerprint)
        index = OpenSearchIndex(Path(path), manifest, self)
        index.check_unchanged()
        return index


def _field(analyzer: str) -> str:
    return "contents_" + analyzer.replace(":", "_")


def _similarity(k1: float, b: float) -> dict[str, Any]:
    return {"similarity": {_SIMILARITY: {"type": "BM25", "k1": k1, "b": b}}}


def _described(cluster: Cluster, name: str) -> Any:
    """Settings and mapping of an index; None if there is none."""
    reply = cluster.ask("GET", f"/{name}", missing=True)
    return None if reply is None else next(iter(reply.values()))


def _k1_b(settings: Mapping[str, Any]) -> tuple[float, float]:
    similarity = settings["index"].get("similarity", {}).get(_SIMILARITY, {})
    return float(similarity.get("k1", 1.2)), float(similarity.get("b", 0.75))


def _identity(
    cluster: Cluster, name: str, description: Mapping[str, Any], shared: bool
) -> dict[str, Any]:
    """What makes two indexes of a cluster one. `InputError` for an index that stays red."""
    cluster.patiently(lambda: _check_health(cluster, name))
    settings = description["settings"]["index"]
    return {
        "uuid": settings["uuid"],
        "documents": cluster.total(name),
        "settings": {key: settings.get(key) for key in ("analysis", "number_of_shards")},
        "similarity": list(_k1_b(description["settings"])) if shared else "set for each search",
        "mapping": description["mappings"],
        "server": cluster.ask("GET", "/")["version"]["number"],
    }


def _check_health(cluster: Cluster, name: str) -> None:
    if cluster.ask("GET", f"/_cluster/health/{name}")["status"] == "red":
        raise Passing(
            f"the index '{name}' at {cluster.urls[0]} is red: a shard has no copy that answers",
            do="bring its node back; a ranking without its documents would be wrong",
        )


class _Loading:
    """One index while it is loaded."""

    def __init__(self, engine: OpenSearchEngine, cluster: Cluster, name: str) -> None:
        self.engine, self.cluster, self.name = engine, cluster, name
        self.analyzer = make_analyzer(engine.analyzer)

    def description(self) -> Any:
        """Settings and mapping of the index; None if there is none."""
        return _described(self.cluster, self.name)

    def counts(self) -> dict[str, int] | None:
        """The statistics of an index that is complete; None for any other."""
        description = self.description()
        counts = description and description["mappings"].get("_meta", {}).get(_META)
        return {key: int(value) for key, value in counts.items()} if counts else None

    def load(self, units: Iterable[Unit]) -> dict[str, int]:
        """Send what is missing, and complete the index. Returns its statistics."""
        counts = self._send_missing(units)
        self.cluster.ask("POST", f"/{self.name}/_refresh", request_timeout=_SLOW_S)
        loaded = self.cluster.total(self.name)  # which waits until all shards answer
        if loaded != counts["units"]:
            raise InputError(
                f"the index '{self.name}' has {loaded} documents of {counts['units']}",
                do="delete it in the cluster, and give the same command again",
            )
        self._merge_deleted()
        self._complete(counts)
        return counts

    def _send_missing(self, units: Iterable[Unit]) -> dict[str, int]:
        """Send the units that the index does not have yet. Returns the statistics of all units."""
        resuming = self.description() is not None
        if not resuming:
            self.cluster.create("PUT", f"/{self.name}", self._definition())
        checked = UniqueUnits(track(as_units(units), "indexing (opensearch)"))
        rows, tokens, with_terms = self._rows(checked), 0, 0
        for number, batch in enumerate(batches(rows, _UNITS_AT_ONCE)):
            if number == 0:
                self._check_analysis([row[_field(self.engine.analyzer)] for row in batch])
            self._send(self._absent(batch) if resuming else batch)
            tokens += sum(row["length"] for row in batch)
            with_terms += sum(row["length"] > 0 for row in batch)
        return {"units": checked.finish(), "tokens": tokens, "with_terms": with_terms}

    def _absent(self, rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """The rows whose units the index does not have."""
        ids = {"ids": [row["id"] for row in rows]}
        reply = self.cluster.ask("POST", f"/{self.name}/_mget", ids, _source="false")["docs"]
        present = {document["_id"] for document in reply if document.get("found")}
        return [row for row in rows if row["id"] not in present]

    def _merge_deleted(self) -> None:
        """Merge the segments if the engine wants that or if documents were deleted, which Lucene
        counts in its statistics until they are merged away."""
        ask, path = self.cluster.ask, f"/{self.name}"
        deleted = ask("GET", f"{path}/_stats/docs")["_all"]["primaries"]["docs"]["deleted"]
        if self.engine.force_merge or deleted:
            merging: dict[str, Any] = {"max_num_segments": 1, "request_timeout": _SLOW_S}
            ask("POST", f"{path}/_forcemerge", **merging)
            ask("POST", f"{path}/_refresh", request_timeout=_SLOW_S)

    def _complete(self, counts: Mapping[str, int]) -> None:
        """Close the index for writing, and record its statistics in it."""
        ask, path = self.cluster.ask, f"/{self.name}"
        last = {"refresh_interval": None, "number_of_replicas": self.engine.replicas}
        ask("PUT", f"{path}/_settings", {"index": {**last, "blocks": {"write": True}}})
        ask("PUT", f"{path}/_mapping", {"_meta": {_META: counts}})

    def point_alias(self, alias: str) -> None:
        """Let the alias name this index alone, in one step."""
        aliased = self.cluster.ask("GET", f"/{alias}", missing=True) or {}
        if alias in aliased:
            raise InputError(
                f"engine.index={alias!r} is an index at {self.cluster.urls[0]}",
                valid="a new name, or an alias of an index that this engine loaded",
            )
        if list(aliased) != [self.name]:
            others = [{"remove": {"index": other, "alias": alias}} for other in aliased]
            actions = [*others, {"add": {"index": self.name, "alias": alias}}]
            self.cluster.ask("POST", "/_aliases", {"actions": actions})
            if aliased:
                notify(f"{alias} names {self.name} now; {', '.join(aliased)} is still there")

    def _definition(self) -> dict[str, Any]:
        analysis = {
            "analyzer": {"contents": _ANALYZERS.get(self.engine.analyzer, _TERMS)},
            "filter": {"possessive": _POSSESSIVE},
            "tokenizer": {"terms": {"type": "whitespace", "max_token_length": 1 << 20}},
        }
        name = _field(self.engine.analyzer)
        properties = {
            "id": {"type": "keyword"},
            "number": {"type": "long"},
            "length": {"type": "long"},
            name: {"type": "text", "analyzer": "contents", "similarity": _SIMILARITY},
        }
        settings = {
            "number_of_shards": self.engine.shards,
            "number_of_replicas": 0,
            "refresh_interval": "-1",
            "analysis": analysis,
            **_similarity(*_FIRST),
        }
        mappings = {"dynamic": False, "_source": {"excludes": [name]}, "properties": properties}
        return {"settings": {"index": settings}, "mappings": mappings}

    def _rows(self, units: UniqueUnits) -> Iterator[dict[str, Any]]:
        ours = self.engine.analyzer not in _ANALYZERS
        for number, unit in enumerate(units):
            if len(unit.unit_id.encode()) > _LONGEST_ID:
                raise InputError(
                    f"unit id '{unit.unit_id:.60}...' is too long for a search cluster",
                    valid=f"{_LONGEST_ID} bytes at most",
                )
            terms = self.analyzer.terms(unit.contents)
            yield {
                "id": unit.unit_id,
                "number": number,
                "length": len(terms),
                "title": unit.title,
                "text": unit.text,
                _field(self.engine.analyzer): " ".join(map(_stored, terms))
                if ours
                else unit.contents,
            }

    def _check_analysis(self, texts: Sequence[str]) -> None:
        """`InputError` if the cluster's tokens of the first texts are not ours."""
        if self.engine.analyzer not in _ANALYZERS:
            return
        parts: list[list[str]] = []
        size = _TOKENS_AT_ONCE
        for text in texts:
            part = text[: 4 * _TOKENS_AT_ONCE]  # of a text with too many tokens for one request
            tokens = len(part.split()) + sum(not char.isalnum() for char in part)
            size += tokens
            if size > _TOKENS_AT_ONCE:
                parts.append([])
                size = tokens
            parts[-1].append(part)
        for batch in parts:
            request = {"analyzer": "contents", "text": batch}
            reply = self.cluster.ask("POST", f"/{self.name}/_analyze", request)
            theirs = [token["token"] for token in reply["tokens"]]
            own = [term for text in batch for term in self.analyzer.terms(text)]
            if theirs != own:
                # The first place where the lists differ; their common part may be all of one.
                pairs = enumerate(zip_longest(theirs, own))
                place = next(number for number, (one, other) in pairs if one != other)
                raise InputError(
                    f"the analyzer '{self.engine.analyzer}' of {self.cluster.urls[0]} gives "
                    f"{theirs[place : place + 3]} where ours gives {own[place : place + 3]}",
                    do="use a cluster whose analyzers are Lucene's, or engine=lexical",
                )

    def _send(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Load the rows; what the cluster rejects because it is busy is sent again."""
        helpers = import_optional("opensearchpy").helpers
        # `create` never replaces a document, so a repeated request leaves no deleted ones.
        head = {"_op_type": "create", "_index": self.name}
        remaining = {row["id"]: {**head, "_id": row["id"], "_source": row} for row in rows}

        def send() -> None:
            reason = ""
            results = helpers.parallel_bulk(
                self.cluster.client,
                list(remaining.values()),
                thread_count=2,
                raise_on_error=False,
                raise_on_exception=False,
                # A shard that is lost is reported after this time; the client waits longer.
                timeout=f"{_SHARD_WAIT_S}s",
                request_timeout=self.cluster.timeout_s,
            )
            for ok, item in results:
                result = next(iter(item.values()))
                status = result.get("status")
                if ok or status == 409:
                    del remaining[result["_id"]]
                    continue
                error = self.cluster.redacted(json.dumps(result.get("error"), default=str))
                reason = error[:300]
                if status not in ("N/A", "TIMEOUT") and not may_pass(status, error):
                    raise InputError(f"the cluster refuses unit '{result['_id']}': {reason}")
            if remaining:
                raise Passing(
                    f"{len(remaining)} units were not loaded into '{self.name}': {reason}",
                    do="continue with the same command; units that arrived are not sent again",
                )

        self.cluster.patiently(send)


def _stored(term: str) -> str:
    return term.replace(" ", _JOIN)


def _id(hit: Mapping[str, Any]) -> str:
    """The unit id of a hit of a search with `_IDS`."""
    (unit_id,) = hit["fields"]["id"]
    return str(unit_id)


class _Docnos:
    """Unit ids and numbers of units."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster, self._name = cluster, name

    def take(self, numbers: NDArray[Any]) -> NDArray[np.object_]:
        """The ids of the units with these numbers."""
        order = {**_IDS, "sort": [{"number": "asc"}]}
        names = {hit["sort"][0]: _id(hit) for hit in self._hits(numbers, order)}
        return np.array([names[number] for number in numbers.tolist()], dtype=object)

    def sources(self, numbers: NDArray[Any], *fields: str) -> Iterator[dict[str, Any]]:
        """The fields of the units with these numbers, each once, and their numbers."""
        for hit in self._hits(numbers, {"_source": ["number", *fields]}):
            yield hit["_source"]

    def _hits(self, numbers: NDArray[Any], wanted: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        for part in batches(np.unique(numbers).tolist(), _NUMBERS_AT_ONCE):
            body = {"query": {"terms": {"number": part}}, "size": len(part), **wanted}
            (found,) = self._cluster.searched(self._name, [body], ["unit ids"])
            yield from found

    def numbers(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """-1 for an unknown id."""
        documents = self.documents(ids, "number")
        return np.array([-1 if row is None else row["number"] for row in documents], np.int64)

    def documents(self, ids: Sequence[str], *fields: str) -> list[Any]:
        """Fields of the units, None for an unknown id."""
        rows: list[Any] = []
        chosen: dict[str, Any] = {"_source_includes": ",".join(fields)}
        for part in batches(ids, _NUMBERS_AT_ONCE):
            body = {"ids": part}
            reply = self._cluster.ask("POST", f"/{self._name}/_mget", body, **chosen)["docs"]
            if failed := next((row for row in reply if "error" in row), None):
                reason = self._cluster.redacted(json.dumps(failed["error"])[:300])
                raise InputError(f"unit '{failed['_id']}' cannot be read: {reason}")
            rows += [row["_source"] if row.get("found") else None for row in reply]
        return rows


def _among(numbers: Sequence[int]) -> dict[str, Any]:
    """The part of a search that keeps the units with these numbers. A filter inside the query would
    change scores: a shard without these units drops the query, and with it its statistics."""
    return {"post_filter": {"terms": {"number": numbers}}}


class OpenSearchIndex(TermIndex):
    """An opened index of a search cluster, ranked with the statistics of all shards. Equal scores
    are in the order of the corpus."""

    def __init__(self, path: Path, manifest: dict[str, Any], engine: OpenSearchEngine) -> None:
        super().__init__(path, manifest, make_analyzer(engine.analyzer))
        self.engine = engine
        self.cluster = engine.cluster()
        self.docnos = _Docnos(self.cluster, manifest["index"])
        self.vocabulary: list[str] = []
        """Terms of documents that feedback has read."""
        self._numbers: dict[str, int] = {}
        self._frequencies: dict[str, int] = {}
        self._targets: dict[tuple[float, float], tuple[str, float]] = {}
        self._lock = RLock()
        self._clauses: int | None = None

    def __len__(self) -> int:
        return int(self.manifest["counts"]["units"])

    @property
    def fingerprint(self) -> str:
        """Of the index in the cluster: UUID, documents, settings, mapping, similarity, server."""
        return fingerprint(self.manifest["identity"])

    @property
    def _identity(self) -> tuple[str, ...]:
        return *super()._identity, self.fingerprint

    def check_unchanged(self) -> None:
        """`DeletedIndex` if the index is not there any more, `InputError` if it is not the one that
        was loaded."""
        before, name = self.manifest["identity"], self.manifest["index"]
        description = _described(self.cluster, name)
        if description is None:
            what = f"{self.cluster.urls[0]} has no index '{name}', which '{self.path}' records"
            raise DeletedIndex(what, do=f"remove the folder '{self.path}', and load it again")
        now = _identity(self.cluster, name, description, self.engine.shared)
        changed = [key for key in before if before[key] != now[key]]
        if changed:
            shown = [f"{key} ({before[key]} -> {now[key]})"[:200] for key in changed]
            raise InputError(
                f"the index '{self.manifest['index']}' at {self.cluster.urls[0]} has changed since "
                f"'{self.path}' recorded it: {', '.join(shown)}",
                do=f"remove the folder '{self.path}', and the same command records or loads the "
                "index again",
            )

    def document_frequency(self, term: str) -> int:
        """In how many documents an index term occurs."""
        self._read_frequencies([term])
        return self._frequencies[term]

    def _read_frequencies(self, terms: Iterable[str]) -> None:
        unknown = [name for name in terms if name not in self._frequencies]
        for part in batches(unknown, _NUMBERS_AT_ONCE):
            bodies = [
                {"query": self._term(name), "size": 0, "track_total_hits": True} for name in part
            ]
            totals = self.cluster.searched(self.manifest["index"], bodies, part)
            self._frequencies.update(zip(part, totals, strict=True))

    def idf(self, term: str) -> float:
        """Lucene's inverse document frequency of an index term; 0 for an unknown one."""
        df = self.document_frequency(term)
        return idf(self.manifest["counts"]["with_terms"], df) if df else 0.0

    def texts(self, unit_ids: Sequence[str]) -> list[Unit]:
        """The units, in the order of their ids; `KeyError` for an unknown id."""
        rows = self.base.docnos.documents(unit_ids, "title", "text")
        if None in rows:
            raise KeyError(unit_ids[rows.index(None)])
        pairs = zip(unit_ids, rows, strict=True)
        return [Unit(unit_id, row["title"], row["text"]) for unit_id, row in pairs]

    def vectors(
        self, numbers: NDArray[Any], largest_share: float
    ) -> list[tuple[NDArray[np.int32], NDArray[np.int32]]]:
        """Terms of documents, as `LexicalIndex.vectors`: their numbers in `vocabulary`, in the
        order of the terms, and their frequencies."""
        counts = self._counted(numbers)
        largest = int(largest_share * self.manifest["counts"]["with_terms"])
        self._read_frequencies(sorted({term for row in counts.values() for term in row}))
        vectors = []
        for row in (counts[number] for number in numbers.tolist()):
            terms = [term for term in sorted(row) if self._frequencies[term] <= largest]
            with self._lock:
                for term in terms:
                    if term not in self._numbers:
                        self._numbers[term] = len(self.vocabulary)
                        self.vocabulary.append(term)
            names = np.array([self._numbers[term] for term in terms], np.int32)
            vectors.append((names, np.array([row[term] for term in terms], np.int32)))
        return vectors

    def _counted(self, numbers: NDArray[Any]) -> dict[int, Counter[str]]:
        """The terms of documents of these numbers."""
        counts: dict[int, Counter[str]] = {}
        for row in self.docnos.sources(numbers, "title", "text"):
            contents = Unit("", row["title"], row["text"]).contents
            counts[row["number"]] = Counter(self.analyzer.terms(contents))
        return counts

    def rank(self, queries: Sequence[Any], model: Any, depth: int) -> Sequence[RankedList]:
        """See `OpenedIndex`. `InputError` for more units than the cluster ranks."""
        if depth > _WINDOW:
            raise InputError(f"depth={depth}", valid=f"{_WINDOW} at most in a search cluster")
        rankings = [NOTHING] * len(queries)
        order = {"sort": [{"_score": "desc"}, {"number": "asc"}], **_IDS}
        clauses = list(map(self._should, queries))
        places = [place for place, clause in enumerate(clauses) if clause]
        rows = [{"query": {"bool": {"should": clauses[place]}}, **order} for place in places]
        with self._scoring(float(model.k1), float(model.b)) as (name, factor):
            bodies = [{**row, "size": depth, "track_total_hits": False} for row in rows]
            at_once = min(_QUERIES_AT_ONCE, 100_000 // depth)
            results = self.cluster.searched(
                name, bodies, [queries[place] for place in places], at_once
            )
        for place, hits in zip(places, results, strict=True):
            scores = [hit["_score"] / factor for hit in hits]
            rankings[place] = RankedList(list(map(_id, hits)), scores)
        return rankings

    def score(
        self, queries: Sequence[Any], numbers: Sequence[NDArray[Any]], model: Any
    ) -> Sequence[NDArray[np.float32]]:
        """For each query, the scores of the documents of these numbers by `model`."""
        order = {"sort": [{"number": "asc"}], "track_scores": True, **_IDS}
        out = []
        with self._scoring(float(model.k1), float(model.b)) as (name, factor):
            for query, own in zip(queries, numbers, strict=True):
                by_number: dict[int, float] = {}
                clauses = self._should(query)
                wanted = np.unique(own).tolist() if clauses else []
                for part in batches(wanted, _NUMBERS_AT_ONCE):
                    query_of = {"query": {"bool": {"should": clauses}}, **_among(part)}
                    body = {**query_of, "size": len(part), **order}
                    (hits,) = self.cluster.searched(name, [body], [query])
                    by_number.update((hit["sort"][0], hit["_score"] / factor) for hit in hits)
                out.append(np.array([by_number.get(n, 0.0) for n in own.tolist()], np.float32))
        return out

    def _term(self, term: str, weight: float = 1.0) -> dict[str, Any]:
        value = term if self.engine.analyzer in _ANALYZERS else _stored(term)
        return {"term": {_field(self.engine.analyzer): {"value": value, "boost": weight}}}

    def _should(self, query: str | TermQuery) -> list[dict[str, Any]]:
        """The clauses of a query. `InputError` for more than the cluster takes."""
        terms = self.analyzer.terms(query) if isinstance(query, str) else query
        weights = weights_of(terms)
        if len(weights) > _CLAUSES and len(weights) > self._clause_limit():
            raise InputError(
                f"a query has {len(weights)} terms",
                valid=f"{self._clause_limit()} at most in this cluster",
                do="raise indices.query.bool.max_clause_count of its nodes, or shorten the query",
            )
        return [self._term(term, weight) for term, weight in weights.items()]

    def _clause_limit(self) -> int:
        if self._clauses is None:
            shown: dict[str, Any] = {"include_defaults": "true", "flat_settings": "true"}
            try:
                reply = self.cluster.ask("GET", "/_cluster/settings", **shown)
            except InputError:  # not every user may read the settings
                reply = {}
            settings = {**reply.get("defaults", {}), **reply.get("persistent", {})}
            settings |= reply.get("transient", {})
            self._clauses = int(settings.get("indices.query.bool.max_clause_count", _CLAUSES))
        return self._clauses

    @contextmanager
    def _scoring(self, k1: float, b: float) -> Iterator[tuple[str, float]]:
        """The name of an index with this similarity, and by what its scores exceed ours."""
        if self.engine.shared:
            with self._lock:
                if (k1, b) not in self._targets:
                    name = self._clone(k1, b)
                    self._targets[k1, b] = name, self._probe(name, k1, b)
            yield self._targets[k1, b]
            return
        name = self.manifest["index"]
        with self._lock:
            self._set_similarity(name, k1, b)
            if (k1, b) not in self._targets:
                self._targets[k1, b] = name, self._probe(name, k1, b)
            yield self._targets[k1, b]
            if _k1_b(_described(self.cluster, name)["settings"]) != (k1, b):
                raise InputError(
                    f"another job changed k1 and b of '{name}' during a search",
                    do="set engine.shared=true, which gives each setting its own index",
                )

    def _set_similarity(self, name: str, k1: float, b: float) -> None:
        description = _described(self.cluster, name)
        if description is not None and _k1_b(description["settings"]) == (k1, b):
            return
        ask = self.cluster.ask
        ask("POST", f"/{name}/_close")
        ask("PUT", f"/{name}/_settings", {"index": _similarity(k1, b)})
        ask("POST", f"/{name}/_open")
        health: dict[str, Any] = {"timeout": "60s", "request_timeout": 90}
        ask("GET", f"/_cluster/health/{name}", wait_for_status="yellow", **health)

    def _clone(self, k1: float, b: float) -> str:
        """The name of the index with this similarity, which is made if it is missing."""
        name: str = self.manifest["index"]
        if (k1, b) == _FIRST:
            return name
        clone = f"{name}-k1_{k1!r}-b_{b!r}"
        if _described(self.cluster, clone) is None:
            replicas = {"settings": {"index": {"number_of_replicas": self.engine.replicas}}}
            self.cluster.create("POST", f"/{name}/_clone/{clone}", replicas)
        self._set_similarity(clone, k1, b)
        if (count := self.cluster.total(clone)) != len(self):
            raise InputError(
                f"the index '{clone}' has {count} documents of {len(self)}",
                do="delete it in the cluster, and the same command makes it again",
            )
        return clone

    def _probe(self, name: str, k1: float, b: float) -> float:
        """By what factor the cluster's scores exceed the formula: 1, or k1 + 1. `InputError` for a
        cluster that computes something else.

        The probe is a search with `explain`, because `_explain` alone knows the statistics of one
        shard only.
        """
        counts = self.manifest["counts"]
        numbers = np.unique(np.linspace(0, counts["units"] - 1, _PROBED).astype(np.int64))
        factors = {1.0, k1 + 1}
        for number, terms in self._counted(numbers).items():
            if not terms:
                continue
            term, frequency = max(terms.items(), key=lambda item: (item[1], item[0]))
            (code,) = encode_lengths(np.array([terms.total()], np.int32))
            length = DECODED_LENGTHS[code] * counts["with_terms"] / counts["tokens"]
            norm = k1 * (1 - b + b * length)
            expected = self.idf(term) * frequency / (frequency + norm)
            body = {"query": self._term(term), **_among([number]), "size": 1, "explain": True}
            hits = self.cluster.searched(name, [body], [term])[0]
            received = float(hits[0]["_explanation"]["value"]) if hits else 0.0
            agreeing = {f for f in factors if abs(received / f - expected) <= _TOLERANCE * expected}
            if not agreeing:
                shown = f"{received:.6g} where BM25 with k1={k1:g}, b={b:g} is {expected:.6g}"
                raise InputError(
                    f"{self.cluster.urls[0]} scores the term '{term}' in document {number} {shown}",
                    valid="a cluster that computes Lucene's BM25 with the index's k1 and b",
                    do="use another server, or engine=lexical",
                )
            factors &= agreeing
        return min(factors)
