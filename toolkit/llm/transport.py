"""Connections to the server of a language model: addresses, keys, retries, and the translation of
the errors of the HTTP library."""

from __future__ import annotations

import asyncio
import os
import random
import re
import ssl
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from soundingline.toolkit.errors import InputError
from soundingline.toolkit.llm.errors import (
    BadReply,
    ModelError,
    ServerGone,
    ServerTimeout,
    UnknownModel,
    Unreachable,
    error_of_reply,
)
from soundingline.toolkit.optional import import_optional
from soundingline.toolkit.redaction import REDACTED

T = TypeVar("T")

_REQUEST_PATH = re.compile(r"/((chat/)?completions|responses|messages)/?$")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
# Seconds for a server to accept a connection, and then to say anything, before it is asked.
_PATIENCE = 5.0
# Below the five seconds after which uvicorn closes an idle connection: reusing one at that moment
# loses a request.
_KEEP_ALIVE = 4.0
_FIRST_WAIT = 0.5
# A generator of its own, so that a wait never changes the state of an experiment's generator.
_chance, _sleep = random.Random().random, asyncio.sleep
# What servers call the context window in their lists of models.
_WINDOWS = ("max_model_len", "context_length", "context_window", "max_context_length")


def hidden(text: str, secret: str) -> str:
    """An error's or a log's `text` with `***` for a key or password, which a server may quote back.

    For messages only, never for a model's reply. A secret that could be a word, such as `EMPTY`,
    `token-abc123` or `authentication`, stays: it protects only a local server, and replacing it
    would make the message wrong. Providers issue 32 characters and more, and `openssl rand -hex 8`
    gives 16 with digits among them; words of 16 characters are common, those with a digit are not.
    """
    is_word = len(secret) < 16 or (len(secret) < 32 and not any(map(str.isdigit, secret)))
    return text if is_word else text.replace(secret, REDACTED)


def checked_url(url: str) -> str:
    """A server's address without a slash at its end; `InputError` if it is none, holds a password,
    or is that of one kind of request."""
    parts = urlsplit(url)
    if parts.username or parts.password:
        raise InputError(
            "base_url has a user name or password in it",
            valid="http://host:port/v1, and the key in an environment variable",
            do="name that variable in key_env",
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError(f"base_url is {url!r}", valid="http://host:port/v1 or https://host/v1")
    if path := _REQUEST_PATH.search(parts.path):
        raise InputError(
            f"base_url is {url!r}, which is the address of one kind of request",
            valid=url.replace(path[0], "", 1),
            do=f"leave out {path[0]}, which is added to it",
        )
    return url.rstrip("/")


async def retrying(
    attempt: Callable[[], Awaitable[T]],
    *,
    attempts: int,
    longest_wait: float,
    again: Callable[[ModelError], None],
) -> T:
    """The result of a request, which is sent again after an error that may pass.

    The wait before the next attempt is what the server requests and up to a tenth more, else a
    random part of 1, 2, 4, ... seconds ("full jitter"), so that clients do not return together.

    Args:
        attempt: Sends the request once.
        attempts: How often it is sent at most.
        longest_wait: Seconds. A request whose server asks for a longer wait fails at once.
        again: Called with the error of an attempt that is followed by another, before the wait. An
            exception that it raises ends the request.
    """
    number = 1
    while True:
        try:
            return await attempt()
        except ModelError as error:
            requested = error.retry_after
            passes = error.retryable and (requested or 0.0) <= longest_wait
            if not passes or number >= attempts:
                raise
            again(error)
        if requested is None:
            wait = min(longest_wait, _FIRST_WAIT * 2**number) * _chance()
        else:
            wait = requested * (1 + 0.1 * _chance())
        await _sleep(wait)
        number += 1


class Connection(NamedTuple):
    """An HTTP client, the concurrency slots, and the admission lock, all of one event loop.

    One request is admitted in a round of the loop. Preparing a request takes longer than reading a
    reply, so that many together would delay the reading of replies that have arrived.
    """

    client: Any
    slots: asyncio.Semaphore
    admission_lock: asyncio.Lock


@dataclass(frozen=True, kw_only=True, eq=False)
class Transport:
    """The connections to one model's server, one of each event loop. Creating it opens none.

    Args:
        concurrency: The largest number of requests in flight on one event loop.
        secrets: What the requests hold beside the key that no message may quote.

    The others are those of `soundingline.toolkit.llm.client.LanguageModel`.
    """

    name: str
    address: str
    path: str
    models_path: str
    key_header: tuple[str, str]
    headers: Mapping[str, str]
    key_env: str | None
    concurrency: int
    secrets: tuple[str, ...]
    _connections: WeakKeyDictionary[asyncio.AbstractEventLoop, Connection] = field(
        default_factory=WeakKeyDictionary, init=False
    )
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    @property
    def where(self) -> str:
        """The model and its server, for messages."""
        return f"{self.name} at {urlsplit(self.address).netloc}"

    def key(self, where: str = "") -> str:
        """The key for `where`, empty if none is needed; `InputError` if it is not set. It is read
        when it is used, and is in no attribute, representation, record or error."""
        if self.key_env is None:
            return ""
        key = os.environ.get(self.key_env, "").strip()
        if not key:
            raise InputError(
                f"the environment variable {self.key_env} with the key for {where or self.where} "
                "is not set",
                do=f"export {self.key_env}=... in the shell that starts the run",
            )
        if not key.isascii() or not key.isprintable() or " " in key:
            raise InputError(
                f"the key in {self.key_env} has characters that no key has",
                do="export it again, without quotation marks or line breaks",
            )
        return key

    def hide(self, text: str) -> str:
        """A server's words without the key and the other secrets that it was sent."""
        for secret in (*self.secrets, os.environ.get(self.key_env or "", "").strip()):
            text = hidden(text, secret)
        return text

    def connection(self) -> Connection:
        """The connection of the running event loop, opened at its first request."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if loop not in self._connections:
                slots, admission_lock = asyncio.Semaphore(self.concurrency), asyncio.Lock()
                self._connections[loop] = Connection(self._client(), slots, admission_lock)
            return self._connections[loop]

    async def close(self) -> None:
        """Close the connections of the running event loop."""
        with self._lock:
            connection = self._connections.pop(asyncio.get_running_loop(), None)
        if connection:
            await connection.client.aclose()

    def _client(self) -> Any:
        http = import_optional("httpx2")
        limits = http.Limits(
            max_connections=self.concurrency,
            max_keepalive_connections=self.concurrency,
            keepalive_expiry=_KEEP_ALIVE,
        )
        return http.AsyncClient(limits=limits, **self._client_arguments())

    def _client_arguments(self) -> dict[str, Any]:
        """The headers of each request, and how a server on this machine is reached."""
        key, (header, scheme) = self.key(), self.key_header
        headers = {"Accept": "application/json", **self.headers}
        if key:
            headers[header] = f"{scheme}{key}"
        if urlsplit(self.address).hostname not in _LOOPBACK:
            return {"headers": headers}
        # The environment's proxies are not for this machine; and reading all certificates for a
        # plain connection takes longer than connecting.
        plain = self.address.startswith("http:")
        verify = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if plain else True
        return {"headers": headers, "trust_env": False, "verify": verify}

    @asynccontextmanager
    async def post(
        self, client: Any, body: Mapping[str, Any], timeout: float
    ) -> AsyncIterator[Any]:
        """The response of httpx2 to a request, before its body is read; `ModelError` if the server
        answers with an error, or redirects, because that could take the prompt to another server.
        `timeout` in seconds is that of each step of the connection."""
        url = f"{self.address}{self.path}"
        async with client.stream("POST", url, json=body, timeout=timeout) as response:
            if response.next_request is not None:
                target = response.next_request.url.copy_with(query=None)
                raise UnknownModel(
                    f"{self.where}: the server redirects to {self.hide(str(target))}, and prompts "
                    "do not follow it; set base_url to that address if it is the right one"
                )
            if not response.is_success:
                await response.aread()
                raise self.error_of_reply(response.status_code, response.text, response.headers)
            yield response

    def _get(self, url: str) -> Any:
        """The response of httpx2 to a request outside of an event loop."""
        http = import_optional("httpx2")
        with http.Client(timeout=_PATIENCE, **self._client_arguments()) as client:
            return client.get(url)

    def reach(self) -> None:
        """Check that the server takes a connection: see `LanguageModel.reach`."""
        http = import_optional("httpx2")
        try:
            self._get(f"{self.address}{self.models_path}")
        except (http.ConnectError, http.ConnectTimeout, http.ProxyError) as error:
            reason, address = str(error) or type(error).__name__, self._address_without_query
            unreachable = Unreachable(
                f"no connection to the server of {self.name} at {address}: {self.hide(reason)}"
            )
            unreachable.shared_cause = f"no connection to {address}"
            raise unreachable from None
        except http.HTTPError:
            pass  # The server is there.

    def reported_window(self) -> int | None:
        """The context window in tokens, by the list of models (of vLLM, SGLang, Groq, Mistral and
        OpenRouter, for example), or by the properties of a llama.cpp server; None if neither has
        it. Gemini writes `models/` before each name in its list."""
        http = import_optional("httpx2")
        try:
            listed = self._get(f"{self.address}{self.models_path}").json()["data"]
            models = {entry["id"].removeprefix("models/"): entry for entry in listed}
            model = models[self.name.removeprefix("models/")]
            sizes = [model.get(name) for name in _WINDOWS]
            if model.get("owned_by") == "llamacpp":
                properties = self._get(f"{self._root}/props").json()
                sizes.append(properties["default_generation_settings"]["n_ctx"])
        except (http.HTTPError, ValueError, LookupError, TypeError, AttributeError):
            return None
        return next((size for size in sizes if isinstance(size, int) and size > 0), None)

    def version(self) -> str:
        """The version that a vLLM reports; empty if there is none."""
        http = import_optional("httpx2")
        try:
            version = self._get(f"{self._root}/version").json()["version"]
        except (http.HTTPError, ValueError, LookupError, TypeError):
            return ""
        return version if isinstance(version, str) else ""

    def error_of(self, error: Exception, timeout: float) -> Exception:
        """Our error for one of the HTTP library; any other one as it is."""
        http = import_optional("httpx2")
        cut = f"no connection, or one that was cut ({type(error).__name__})"
        kinds: tuple[tuple[type[Exception], type[ModelError], str], ...] = (
            (asyncio.TimeoutError, ServerTimeout, f"no complete reply in {timeout:g} s"),
            (http.TimeoutException, ServerTimeout, "the connection stalled"),
            (http.DecodingError, BadReply, f"the compressed body is damaged ({error})"),
            (http.SSEError, BadReply, "the reply is not a stream of events"),
            (http.TransportError, ServerGone, cut),
        )
        for kind, translation, what in kinds:
            if isinstance(error, kind):
                return translation(f"{self.where}: {what}")
        return error

    def error_of_reply(self, status: int, body: Any, headers: Mapping[str, str]) -> ModelError:
        """Our error for a reply with an error."""
        now, hide = time.time(), self.hide
        error = error_of_reply(status, body, headers, where=self.where, now=now, hide=hide)
        return self._not_served(error) if isinstance(error, UnknownModel) else error

    def _not_served(self, error: ModelError) -> UnknownModel:
        """What was requested, what came, and what to set, which a page of HTML must not push
        out."""
        usual = "" if self.path.startswith("/v1") else " (most end in /v1)"
        return UnknownModel(
            f"POST {self._address_without_query}{self.path} for {str(error)[:160]}; set base_url "
            f"to the address before {self.path}{usual}, or model to a model of that server"
        )

    @property
    def _root(self) -> str:
        parts = urlsplit(self.address)
        return f"{parts.scheme}://{parts.netloc}"

    @property
    def _address_without_query(self) -> str:
        return f"{self._root}{urlsplit(self.address).path}"
