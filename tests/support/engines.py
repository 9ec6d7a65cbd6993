"""Engines for tests: Anserini in one Java machine, and a search cluster in memory."""

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from support.needs import absent

from soundingline.pipelines.engines.anserini import AnseriniEngine, AnseriniProcess
from soundingline.pipelines.engines.opensearch import OpenSearchEngine
from soundingline.pipelines.engines.pisa import PisaEngine
from soundingline.pipelines.lexical.index import LexicalEngine
from soundingline.toolkit.errors import InputError


class SharedProcess:
    """An `AnseriniProcess` that shares its machine, which opens the index of each one in turn."""

    def __init__(self, machine, opened):
        self.machine, self.opened, self.jar = machine, opened, machine.jar
        self.closed = False

    def request(self, name, **arguments):
        assert not self.closed
        if vars(self.machine).get("used_by") is not self and self.opened is not None:
            self.machine.request("open", path=str(self.opened))
        self.machine.used_by = self
        return self.machine.request(name, **arguments)

    def close(self):
        self.closed = True


MACHINES: list[AnseriniProcess] = []


@dataclass(frozen=True)
class SharingEngine(AnseriniEngine):
    """Builds and searches in one machine, because each start takes a second."""

    processes: list[Any] = field(default_factory=list, compare=False, repr=False)

    def __reduce__(self):
        return SharingEngine, (self.document_vectors,)

    def process(self, opened=None):
        if not MACHINES:
            MACHINES.append(AnseriniProcess(heap="1g"))
        self.processes.append(SharedProcess(MACHINES[0], opened))
        return self.processes[-1]


def sharing_engine(**settings):
    engine = SharingEngine(**settings)
    try:
        engine.process()
    except InputError as error:
        absent(f"Anserini is optional and not installed: {error}")
    return engine


@contextmanager
def osmem():
    """The address of osmem-server, an in-memory server with OpenSearch's protocol."""
    pytest.importorskip("opensearchpy", reason="pip install -e '.[opensearch]'")
    reason = "osmem-server has wheels for Linux on x86_64 only"
    server = pytest.importorskip("osmem_server", reason=reason)
    with server.OsmemServer.start(japanese=False) as running:
        yield running.url


@contextmanager
def an_engine(name):
    """An engine with the analyzer `english`."""
    if name == "opensearch":
        with osmem() as url:
            yield OpenSearchEngine(url=url, shards=3, replicas=0, timeout_s=30)
    elif name == "pisa":
        pytest.importorskip("pyterrier_pisa", reason="PISA is optional: pip install -e '.[bench]'")
        yield PisaEngine()
    else:
        yield sharing_engine() if name == "anserini" else LexicalEngine()
