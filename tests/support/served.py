"""A server over a few documents, in a thread of the test's process."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

import uvicorn
from support.assertions import until
from support.benchmarks import WordBackend, store_of

from soundingline.experiments.serve import ServerOptions
from soundingline.experiments.serve.http import http_server
from soundingline.experiments.serve.server import listen, make_service
from soundingline.experiments.serve.sessions import QuestionQueue, Service
from soundingline.toolkit.data import Document, Topic
from soundingline.toolkit.search import RankedBrowsing

DOCUMENTS = {
    "mill": Document("mill", "Mill", "Grenholm Mill was built by Torvald Brekke.\nIt is old."),
    "12": Document("12", "", "The mill of place twelve is “old”, too."),
    **{
        f"m{number}": Document(f"m{number}", f"Place {number}", f"A mill, number {number}.")
        for number in range(8)
    },
    "empty": Document("empty", "", ""),
}
TOPICS = [Topic("q1", "Who built Grenholm Mill?"), Topic("a/b", "What is old?"), Topic("q3", "?")]
STORE = store_of(DOCUMENTS)


def plain_backend(qid=""):
    texts = {docid: f"{each.title} {each.text}" for docid, each in DOCUMENTS.items()}
    return WordBackend(texts)


@dataclass
class Served:
    """A running server. `post` and `get` give status and body of a reply."""

    service: Service
    server: uvicorn.Server
    port: int
    headers: dict[str, str]

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def request(self, method, path, body=b"", headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            kind = {"Content-Type": "application/json"}
            connection.request(method, path, body, {**kind, **self.headers, **(headers or {})})
            reply = connection.getresponse()
            return reply.status, reply.read()
        finally:
            connection.close()

    def post(self, path, **body):
        status, reply = self.request("POST", path, json.dumps(body).encode())
        return status, json.loads(reply)

    def ask(self, path, **body):
        """The body of a reply that must be a good one."""
        status, reply = self.post(path, **body)
        assert status == 200, reply
        return reply

    def get(self, path):
        status, reply = self.request("GET", path)
        return status, json.loads(reply)


@contextmanager
def serving(
    search_tool=None,
    *,
    folder=None,
    topics=TOPICS,
    backend=plain_backend,
    store=STORE,
    **options,
):
    """A server as `soundingline serve` makes it; with a `folder`, one that records a run."""
    given = ServerOptions(**{"port": 0, **options})
    given.check()
    tool = search_tool or RankedBrowsing()
    with ExitStack() as stack:
        if folder is not None:
            stack.enter_context(folder.writing({"fingerprints": {}}))
        questions = None if folder is None else QuestionQueue(folder, topics)
        service = make_service(tool, backend, store, given, questions=questions)
        server = http_server(service)
        listener = stack.enter_context(listen(given.host, given.port))
        serve = partial(server.serve, [listener])
        thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
        thread.start()
        until(lambda: server.started)
        headers = {"Authorization": f"Bearer {given.token}"} if given.token else {}
        port = server.servers[0].sockets[0].getsockname()[1]
        try:
            yield Served(service, server, port, headers)
        finally:
            server.should_exit = True
            thread.join(20)
            assert not thread.is_alive()
