"""A collection's link graph and its resolver, kept beside its store and opened at later starts.

indexes/<benchmark>/links-<fingerprint>/      of the corpus and of what the links are made of
indexes/<benchmark>/headings-<fingerprint>/   of the corpus: titles, urls, identifiers
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from pipelines.made_once import MadeOnce
from toolkit.benchmarks.links import FORMAT as LINKS_FORMAT
from toolkit.benchmarks.links import LinkGraph
from toolkit.console import tell
from toolkit.contracts import Benchmark, links_fingerprint, links_of
from toolkit.corpus import SqliteStore
from toolkit.corpus.resolve import FORMAT as HEADINGS_FORMAT
from toolkit.corpus.resolve import Resolver
from toolkit.files import fingerprint, folder_made_whole, waiting_lock

# What a file of another kind, or a part of one, makes a reader raise.
_DAMAGE = (OSError, ValueError, LookupError, TypeError, AttributeError, EOFError)


class _Writable(Protocol):
    def write(self, folder: Path) -> None: ...


Part = TypeVar("Part", bound=_Writable)


def link_graph(
    benchmark: Benchmark, store: SqliteStore, corpus: str, folder: Path
) -> Callable[[], LinkGraph] | None:
    """What gives the graph of a benchmark's links when it is first asked for; None where it has
    none. `corpus` is the fingerprint of the documents. Links to documents that the corpus lacks are
    told. Without a fingerprint of the links
    (`toolkit.contracts.links_fingerprint`) the graph is built at each start."""
    links, content = links_of(benchmark), links_fingerprint(benchmark)
    if links is None:
        return None

    def build() -> LinkGraph:
        return LinkGraph.build(links, store)

    def graph() -> LinkGraph:
        if content is None:
            result = build()
        else:
            key = fingerprint(corpus, content, LINKS_FORMAT)
            result = kept(folder / f"links-{key}", LinkGraph.open, build)
        if result.missing:
            total = len(result) + result.missing + result.repeated + result.own
            lacking = f"{result.missing:,} of {total:,} links of {benchmark.name}"
            tell(f"{lacking} name documents that its corpus lacks; they are left out")
        return result

    return _once(graph)


def title_resolver(store: SqliteStore, corpus: str, folder: Path) -> Callable[[], Resolver]:
    """What gives the resolver of a store when it is first asked for; `corpus` is the fingerprint of
    its documents."""
    place = folder / f"headings-{fingerprint(corpus, HEADINGS_FORMAT)}"
    return _once(lambda: kept(place, Resolver.open, lambda: Resolver(store.headings())))


def kept(place: Path, open_: Callable[[Path], Part], build: Callable[[], Part]) -> Part:
    """What the folder `place` holds, opened; built and left there where it is missing or damaged.
    One process at a time."""
    with waiting_lock(place.parent / f".{place.name}.lock"):
        try:
            return open_(place)
        except _DAMAGE:
            part = build()
        with folder_made_whole(place) as temporary:
            part.write(temporary)
    return part


def _once(make: Callable[[], Part]) -> Callable[[], Part]:
    """`make`, called once, for many threads."""
    values = MadeOnce()
    return lambda: values.get("part", make)
