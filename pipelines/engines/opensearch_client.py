"""Requests to a search cluster with waiting, retries and one-line errors (`opensearch-py`).

A request that a cluster cannot answer now, because it is busy (429, 502, 503, 504) or because a
node was lost, is sent again after the time of its `Retry-After`, or after pauses that double. One
line says what is missing, and how long the command waits for it. Credentials are the environment's
`OPENSEARCH_USERNAME` and `OPENSEARCH_PASSWORD`; no message, file or address contains them.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from threading import Lock
from typing import Any, TypeVar
from urllib.parse import urlsplit

from soundingline.toolkit.console import notify
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.llm.errors import retry_after
from soundingline.toolkit.optional import import_optional

_T = TypeVar("_T")
USERNAME, PASSWORD = "OPENSEARCH_USERNAME", "OPENSEARCH_PASSWORD"
BUSY = frozenset({429, 502, 503, 504})
_ATTEMPTS = 16  # in about two minutes, in which a node starts again
_FIRST_ATTEMPTS = 6  # in 15 seconds: a cluster that has never answered may have another address
_FIRST_PAUSE, _LAST_PAUSE = 0.5, 10.0  # seconds; each is twice as long as the one before it
_LONGEST_PAUSE = 120.0  # that a cluster may ask for
_REASON_SHOWN = 300  # characters
_WHOLE: dict[str, Any] = {
    "search_type": "dfs_query_then_fetch",
    "allow_partial_search_results": False,
}
_NDJSON = {"content-type": "application/x-ndjson"}
_WHEN_COMPLETE = "continue with the same command when all shards are available"
_CONNECTIONS = 1024  # to a node that are kept open, at most: one for each thread that searches
# What a request meets while another job closes and opens the index, a shard moves, or a node is
# lost and another copy of its shards takes over. A search that fails on some shards is a valid one.
_PASSING = (
    "index_closed_exception",
    "no_shard_available",
    "node_disconnected",
    "node_not_connected",
    "node_closed",
    "connect_transport",
    "illegal_index_shard_state",
    "search_context_missing",
    "cluster_manager_not_discovered",
    "Partial shards failure",
)
_ALL_FAILED = "all shards failed"  # of a wrong search too, whose status is below 500


class Passing(InputError):
    """A failure after which the same request may succeed."""


def pauses(attempts: int | None = None) -> Iterator[float | None]:
    """Seconds to wait after each failed attempt; None after the last one."""
    count = _ATTEMPTS if attempts is None else attempts
    yield from (min(_FIRST_PAUSE * 2**n, _LAST_PAUSE) for n in range(count - 1))
    yield None


def may_pass(status: Any, reason: str) -> bool:
    """Whether a request may succeed later, by the status of its reply and all that it says."""
    if status in BUSY or any(name in reason for name in _PASSING):
        return True
    return isinstance(status, int) and status >= 500 and _ALL_FAILED in reason


class Cluster:
    """One search cluster.

    Args:
        urls: the addresses of its nodes, such as `https://search.example.org:9200`.
        ca_certs: a file of certificate authorities for TLS; None for those of the system.
        timeout_s: seconds to wait for a reply.

    Raises:
        InputError: for an address that holds credentials or is none, and from every request that
            fails for good.
    """

    def __init__(self, urls: Sequence[str], ca_certs: str | None, timeout_s: float) -> None:
        for url in urls:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise InputError(f"engine.url={url!r}", valid="http://host:port or https://host")
            if parts.username or parts.password:
                raise InputError(
                    f"engine.url has credentials of the user at {parts.hostname}",
                    valid="an address without credentials, because runs record it",
                    do=f"set {USERNAME} and {PASSWORD} in the environment",
                )
        if not urls:
            raise InputError("engine.url is missing", do="set engine.url=http://localhost:9200")
        self.urls, self._ca_certs, self.timeout_s = tuple(urls), ca_certs, timeout_s
        self._library = import_optional("opensearchpy")
        self._lock = Lock()
        self._silent_until = 0.0
        self._attempts = min(_FIRST_ATTEMPTS, _ATTEMPTS)

    @cached_property
    def client(self) -> Any:
        """The client of `opensearch-py`, which waits for a busy cluster."""
        for name in ("opensearch", "opensearchpy.trace"):  # retries, and whole requests with texts
            logging.getLogger(name).setLevel(logging.ERROR)

        wait, answered = self.wait, self._answered
        connection: Any = self._library.Urllib3HttpConnection

        class Patient(connection):
            """A connection that asks a busy node again."""

            def perform_request(self, *request: Any, ignore: Any = (), **settings: Any) -> Any:
                for pause in pauses():
                    status, headers, data = super().perform_request(
                        *request, ignore=(*ignore, *BUSY), **settings
                    )
                    answered()
                    if status not in BUSY or status in ignore:
                        break
                    if pause is None:
                        self._raise_error(status, data, headers.get("content-type"))
                    lower = {name.lower(): value for name, value in headers.items()}
                    seconds = retry_after(lower, time.time())
                    wait(
                        (pause or 0.0) if seconds is None else seconds,
                        f"{self.host} answers {status}: {data[:_REASON_SHOWN]}.",
                    )
                return status, headers, data

        user, password = os.environ.get(USERNAME), os.environ.get(PASSWORD)
        return self._library.OpenSearch(
            list(self.urls),
            http_auth=(user, password) if user and password else None,
            connection_class=Patient,
            timeout=self.timeout_s,
            pool_maxsize=_CONNECTIONS,
            max_retries=len(self.urls) - 1,  # the other nodes; `ask` waits
            retry_on_timeout=True,
            **({"ca_certs": self._ca_certs} if self._ca_certs else {}),
        )

    def ask(
        self, method: str, path: str, body: Any = None, *, missing: bool = False, **params: Any
    ) -> Any:
        """The decoded reply; None for a 404 where `missing` is true. `body`: a value for JSON, or
        a list of values as lines of JSON."""
        lines = isinstance(body, list)
        sent = "".join(json.dumps(row) + "\n" for row in body) if lines else body
        headers = _NDJSON if lines else {}

        def once() -> Any:
            try:
                return self.client.transport.perform_request(
                    method, path, params=params or None, body=sent, headers=headers
                )
            except self._library.TransportError as error:
                if missing and error.status_code == 404:
                    return None
                raise self._explained(error, f"{method} {path}") from None

        return self.patiently(once)

    def create(self, method: str, path: str, body: Any) -> None:
        """A request that makes an index, unless another job, or an attempt whose reply was lost,
        has made it."""
        try:
            self.ask(method, path, body)
        except InputError as error:
            if "resource_already_exists" not in str(error):
                raise

    def patiently(self, request: Callable[[], _T]) -> _T:
        """The result of a request, which is repeated while it raises `Passing`."""
        attempts = enumerate(pauses(), start=1)
        while True:
            number, pause = next(attempts)
            try:
                return request()
            except Passing as failure:
                if pause is None or number >= self._attempts:
                    raise
                self.wait(pause, str(failure))

    def _answered(self) -> None:
        """A node has answered, so that the address is right."""
        self._attempts = _ATTEMPTS

    def wait(self, pause: float, reason: str) -> None:
        """Wait after a failed attempt. A line says why, and for how long; the lines of other
        threads, and of later attempts, are left out."""
        patience = sum(filter(None, pauses(self._attempts)))
        with self._lock:
            silent_until, now = self._silent_until, time.time()
            if now >= silent_until:
                self._silent_until = now + patience
        if now >= silent_until:
            reason = " ".join(self.redacted(reason).split())
            notify(f"{reason} The request is sent again for at least {patience:.0f} s")
        time.sleep(min(pause, _LONGEST_PAUSE))

    def searched(
        self, name: str, bodies: Sequence[Any], queries: Sequence[Any], at_once: int = 100
    ) -> list[Any]:
        """The hits of each search of an index, with the statistics of all shards; the number of all
        hits of a search for none. A search of which a part is missing is sent again, and is an
        `InputError`, which names its query, if it stays so."""
        results: list[Any] = []
        head = {"index": name, **_WHOLE}
        for start in range(0, len(bodies), at_once):
            part = bodies[start : start + at_once]
            hits: list[Any] = [None] * len(part)
            missing = list(range(len(part)))
            for pause in pauses():
                rows = [row for place in missing for row in (head, part[place])]
                replies = self.ask("POST", "/_msearch", rows)["responses"]
                failures: dict[int, str] = {}
                for place, reply in zip(missing, replies, strict=True):
                    reason, passing = self.failure(reply)
                    if not reason:
                        own = reply["hits"]
                        hits[place] = own["hits"] if part[place]["size"] else own["total"]["value"]
                    elif passing and pause is not None:
                        failures[place] = reason
                    else:
                        what = f"the search for {queries[start + place]!r:.80} failed: {reason}"
                        raise InputError(what, do=_WHEN_COMPLETE)
                if not (missing := list(failures)):
                    break
                self.wait(pause or 0, f"a search failed: {failures[missing[0]]}.")
            results += hits
        return results

    def total(self, name: str) -> int:
        """The number of documents of an index."""
        body = {"query": {"match_all": {}}, "size": 0, "track_total_hits": True}
        (total,) = self.searched(name, [body], ["the number of documents"])
        return int(total)

    def _explained(self, error: Any, request: str) -> InputError:
        """A failure as one line without credentials; `Passing` unless it is for good."""
        where, status, do = ", ".join(self.urls), error.status_code, ""
        kind = InputError
        reason = self.redacted(_reason(error))
        if isinstance(error, self._library.SSLError):
            what = f"TLS with {where} failed: {reason}"
            do = "set engine.ca_certs to the file of the cluster's certificate authority"
        elif isinstance(error, self._library.ConnectionTimeout):
            kind, what = Passing, f"{where} gave no answer to {request} within {self.timeout_s:g} s"
            do = "raise engine.timeout_s, or look at the cluster"
        elif isinstance(error, self._library.ConnectionError):
            kind, what = Passing, f"{where} cannot be reached: {reason}"
            do = "correct engine.url, or start the cluster"
        elif status == 401:
            wrong = "are wrong" if os.environ.get(USERNAME) else "are missing"
            what = f"{where} answers 401: the credentials {wrong}"
            do = f"set {USERNAME} and {PASSWORD} in the environment"
        elif status == 403:
            what = f"{where} does not allow {request}: {reason}"
        elif status in BUSY:
            what = f"{where} answers {status} to {request} after {_ATTEMPTS} attempts: {reason}"
            do = "continue with the same command when the cluster is available"
        else:
            what = f"{where} answers {status} to {request}: {reason}"
            kind = Passing if may_pass(status, json.dumps(error.info, default=str)) else InputError
        return kind(what, do=do)

    def redacted(self, text: str) -> str:
        """Text of the cluster without the user's password."""
        password = os.environ.get(PASSWORD)
        return text.replace(password, "***") if password else text

    def failure(self, reply: Mapping[str, Any]) -> tuple[str, bool]:
        """Why the reply to a search is not a whole ranking, and whether it may be one later; empty
        for a whole one."""
        if error := reply.get("error"):
            reason = self.redacted(json.dumps(error))
            return reason[:_REASON_SHOWN], may_pass(reply.get("status"), reason)
        shards = reply["_shards"]
        if shards["failed"] or shards["successful"] < shards["total"]:
            missing = shards["total"] - shards["successful"]
            reasons = self.redacted(json.dumps(shards.get("failures", []))[:_REASON_SHOWN])
            return f"{missing} of {shards['total']} shards failed: {reasons}", True
        stopped = "the cluster stopped the search at its time limit"
        return (stopped, True) if reply.get("timed_out") else ("", False)


def _reason(error: Any) -> str:
    reason = getattr(error, "info", None) or error.error
    if isinstance(reason, Mapping) and isinstance(reason.get("error"), Mapping):
        reason = f"{reason['error'].get('type')}: {reason['error'].get('reason')}"
    return str(reason)[:_REASON_SHOWN]
