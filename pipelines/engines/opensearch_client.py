"""Requests to a search cluster with waiting, retries and one-line errors (`opensearch-py`).

A busy cluster (429, 502, 503, 504) receives the request again after the time of its `Retry-After`,
or after pauses that double. Credentials are the environment's `OPENSEARCH_USERNAME` and
`OPENSEARCH_PASSWORD`; no message, file or address contains them.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

from soundingline.toolkit.errors import InputError
from soundingline.toolkit.llm.errors import retry_after
from soundingline.toolkit.optional import import_optional

USERNAME, PASSWORD = "OPENSEARCH_USERNAME", "OPENSEARCH_PASSWORD"
BUSY = frozenset({429, 502, 503, 504})
_ATTEMPTS = 6
_FIRST_PAUSE = 0.5  # seconds; each further one is twice as long
_LONGEST_PAUSE = 120.0
_REASON_SHOWN = 300  # characters
_PARTIAL = "allow_partial_search_results"
_WHOLE: dict[str, Any] = {"search_type": "dfs_query_then_fetch", _PARTIAL: False}
_NDJSON = {"content-type": "application/x-ndjson"}
# What a request meets while another job closes and opens the index, or a shard moves.
_PASSING = ("index_closed_exception", "no_shard_available")


def pauses() -> Iterator[float | None]:
    """Seconds to wait after each failed attempt; None after the last one."""
    yield from (_FIRST_PAUSE * 2**attempt for attempt in range(_ATTEMPTS - 1))
    yield None


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
        self.urls, self._ca_certs, self._timeout_s = tuple(urls), ca_certs, timeout_s
        self._library = import_optional("opensearchpy")

    @cached_property
    def client(self) -> Any:
        """The client of `opensearch-py`, which waits for a busy cluster."""
        for name in ("opensearch", "opensearchpy.trace"):  # retries, and whole requests with texts
            logging.getLogger(name).setLevel(logging.ERROR)

        class Patient(self._library.Urllib3HttpConnection):  # type: ignore[misc, name-defined]
            """A connection that asks a busy node again."""

            def perform_request(self, *request: Any, ignore: Any = (), **settings: Any) -> Any:
                for pause in pauses():
                    status, headers, data = super().perform_request(
                        *request, ignore=(*ignore, *BUSY), **settings
                    )
                    if status not in BUSY or status in ignore:
                        break
                    if pause is None:
                        self._raise_error(status, data, headers.get("content-type"))
                    lower = {name.lower(): value for name, value in headers.items()}
                    seconds = retry_after(lower, time.time())
                    time.sleep(min(pause or 0 if seconds is None else seconds, _LONGEST_PAUSE))
                return status, headers, data

        user, password = os.environ.get(USERNAME), os.environ.get(PASSWORD)
        return self._library.OpenSearch(
            list(self.urls),
            http_auth=(user, password) if user and password else None,
            connection_class=Patient,
            timeout=self._timeout_s,
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
        error: Any
        for pause in pauses():
            try:
                return self.client.transport.perform_request(
                    method, path, params=params or None, body=sent, headers=_NDJSON if lines else {}
                )
            except self._library.TransportError as failed:
                error = failed
            if missing and error.status_code == 404:
                return None
            if pause is None or not self._may_pass(error):
                raise self._explained(error, f"{method} {path}") from None
            time.sleep(pause)

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
                again = []
                for place, reply in zip(missing, replies, strict=True):
                    if self._again(reply, pause, queries[start + place]):
                        again.append(place)
                    else:
                        own = reply["hits"]
                        hits[place] = own["hits"] if part[place]["size"] else own["total"]["value"]
                if not (missing := again):
                    break
                time.sleep(pause or 0)
            results += hits
        return results

    def page(self, body: Any) -> Any:
        """The hits of a search at a point in time, as `searched`."""
        for pause in pauses():
            reply = self.ask("POST", "/_search", body, **{**_WHOLE, _PARTIAL: "false"})
            if not self._again(reply, pause, "at depth"):
                break
            time.sleep(pause or 0)
        return reply["hits"]

    def _again(self, reply: Any, pause: float | None, query: Any) -> bool:
        """Whether a search must be sent again after the pause; `InputError` if that is no use."""
        reason, may_pass = self.failure(reply)
        if reason and (pause is None or not may_pass):
            raise InputError(
                f"the search for {query!r:.80} failed: {reason}",
                do="continue with the same command when all shards are available",
            )
        return bool(reason)

    def _may_pass(self, error: Any) -> bool:
        if isinstance(error, self._library.ConnectionError):  # also a time-out
            return not isinstance(error, self._library.SSLError)
        return any(name in str(error.error) for name in _PASSING)

    def _explained(self, error: Any, request: str) -> InputError:
        """A failure for good, as one line without credentials."""
        where, status, do = ", ".join(self.urls), error.status_code, ""
        reason = self.redacted(_reason(error))
        if isinstance(error, self._library.SSLError):
            what = f"TLS with {where} failed: {reason}"
            do = "set engine.ca_certs to the file of the cluster's certificate authority"
        elif isinstance(error, self._library.ConnectionTimeout):
            what = f"{where} gave no answer to {request} within {self._timeout_s:g} s"
            do = "raise engine.timeout_s, or look at the cluster"
        elif isinstance(error, self._library.ConnectionError):
            what, do = f"{where} cannot be reached: {reason}", "correct engine.url"
        elif status == 401:
            wrong = "are wrong" if os.environ.get(USERNAME) else "are missing"
            what = f"{where} answers 401: the credentials {wrong}"
            do = f"set {USERNAME} and {PASSWORD} in the environment"
        elif status == 403:
            what = f"{where} does not allow {request}: {reason}"
        elif status in BUSY:
            what = f"{where} answers {status} to {request} after {_ATTEMPTS} attempts: {reason}"
            do = "continue with the same command when the cluster has free disk space"
        else:
            what = f"{where} answers {status} to {request}: {reason}"
        return InputError(what, do=do)

    def redacted(self, text: str) -> str:
        """Text of the cluster without the user's password."""
        password = os.environ.get(PASSWORD)
        return text.replace(password, "***") if password else text

    def failure(self, reply: Mapping[str, Any]) -> tuple[str, bool]:
        """Why the reply to a search is no whole ranking, and whether it may be one later; empty for
        a whole one."""
        if error := reply.get("error"):
            reason = self.redacted(json.dumps(error)[:_REASON_SHOWN])
            return reason, reply.get("status") in BUSY or any(name in reason for name in _PASSING)
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
