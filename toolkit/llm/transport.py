"""Connections to the server of a language model: addresses, keys, retries, and the translation of
the errors of an SDK and its HTTP library."""

from __future__ import annotations

import asyncio
import os
import random
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import SplitResult, urlsplit
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

_REQUEST_PATH = re.compile(r"/((chat/)?completions|responses|messages)/?$")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_PORTS = {"http": 80, "https": 443}
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


def retrying(attempts: int, longest_wait: float, again: Callable[[ModelError], None]) -> Any:
    """A tenacity object for one request: `await retrying(...)(function)`.

    The wait before the next attempt is what the server requests and up to a tenth more, else a
    random part of 1, 2, 4, ... seconds ("full jitter"), so that clients do not return together. The
    SDKs' own retries are off: they also retry when the quota is exhausted, and they would hold a
    concurrency slot while they wait.

    Args:
        attempts: How often the request is sent at most.
        longest_wait: Seconds. A request whose server asks for a longer wait fails at once.
        again: Called with the error of an attempt that is followed by another, before the wait. An
            exception that it raises ends the request.
    """

    def is_worth_retrying(error: BaseException) -> bool:
        if not isinstance(error, ModelError) or not error.retryable:
            return False
        return (error.retry_after or 0.0) <= longest_wait

    def wait(state: Any) -> float:
        wish = state.outcome.exception().retry_after
        if wish is not None:
            return float(wish * (1 + 0.1 * _chance()))
        return float(min(longest_wait, _FIRST_WAIT * 2**state.attempt_number) * _chance())

    tenacity = import_optional("tenacity")
    return tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception(is_worth_retrying),
        wait=wait,
        stop=tenacity.stop_after_attempt(attempts),
        before_sleep=lambda state: again(state.outcome.exception()),
        sleep=_sleep,
        reraise=True,
    )


class Connection(NamedTuple):
    """An SDK client, the concurrency slots, and the admission lock, all of one event loop.

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
        sdk_client: The class of the SDK's client; that of the asynchronous one has `Async` before
            it.
        concurrency: The largest number of requests in flight on one event loop.
        secrets: What the requests hold beside the key that no message may quote.

    The others are those of `soundingline.toolkit.llm.client.LanguageModel`.
    """

    name: str
    address: str
    path: str
    sdk: str
    sdk_client: str
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
            await connection.client.close()

    def _client(self) -> Any:
        sdk, http = import_optional(self.sdk), import_optional("httpx2")
        limits = http.Limits(
            max_connections=self.concurrency,
            max_keepalive_connections=self.concurrency,
            keepalive_expiry=_KEEP_ALIVE,
        )
        route, hooks = self._route(), {"request": [self._stay_at_server]}
        if route:
            http_client = http.AsyncClient(
                limits=limits, follow_redirects=True, event_hooks=hooks, **route
            )
        else:
            http_client = sdk.DefaultAsyncHttpxClient(limits=limits, event_hooks=hooks)
        return getattr(sdk, f"Async{self.sdk_client}")(**self._sdk_arguments(http_client))

    @contextmanager
    def blocking_client(self, timeout: float) -> Iterator[Any]:
        """An SDK client for requests before the first question, with `timeout` in seconds."""
        http, sdk = import_optional("httpx2"), import_optional(self.sdk)
        with http.Client(timeout=timeout, **self._route()) as http_client:
            yield getattr(sdk, self.sdk_client)(**self._sdk_arguments(http_client))

    def _sdk_arguments(self, http_client: Any) -> dict[str, Any]:
        return {
            "api_key": self.key() or "none",
            "base_url": self.address,
            "max_retries": 0,
            "http_client": http_client,
        }

    def _route(self) -> dict[str, Any]:
        """How an HTTP client reaches a server on this machine; nothing for any other one."""
        if urlsplit(self.address).hostname not in _LOOPBACK:
            return {}
        # The environment's proxies, which the SDKs look up, are not for this machine; and reading
        # all certificates for a plain connection takes longer than connecting. Without any, a
        # redirection to https fails.
        plain = self.address.startswith("http:")
        verify = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if plain else True
        return {"trust_env": False, "verify": verify}

    async def _stay_at_server(self, request: Any) -> None:
        """Called before each request and each redirected one: `UnknownModel` if it would take the
        prompt to another server. That of the same name over https is the same one."""
        own, next_ = urlsplit(self.address), urlsplit(str(request.url))
        upgraded = (own.scheme, next_.scheme) == ("http", "https")
        if _origin(own) != _origin(next_) and not (upgraded and own.hostname == next_.hostname):
            raise UnknownModel(
                f"{self.where}: the server redirects to {next_.scheme}://{next_.netloc}, and "
                "prompts do not follow it; set base_url to that address if it is the right one"
            )

    def reach(self, models_path: str) -> None:
        """Check that the server takes a connection: see `LanguageModel.reach`."""
        http, sdk = import_optional("httpx2"), import_optional(self.sdk)
        try:
            with self.blocking_client(_PATIENCE) as client:
                client.get(models_path, cast_to=http.Response)
        except sdk.APIConnectionError as error:
            self._raise_unreachable(error)
        except sdk.APIStatusError:
            pass  # An answer.

    def _entry(self, reply: Any) -> Mapping[str, Any] | None:
        """This model in a list of models; None without it. Gemini writes `models/` before each
        name."""
        try:
            named = {entry["id"].removeprefix("models/"): entry for entry in reply.json()["data"]}
        except (ValueError, LookupError, TypeError, AttributeError):
            return None
        return named.get(self.name.removeprefix("models/"))

    def reported_window(self, models_path: str) -> int | None:
        """The context window in tokens, by the list of models (of vLLM, SGLang, Groq, Mistral and
        OpenRouter, for example), or by the properties of a llama.cpp server; None if neither has
        it."""
        http, sdk = import_optional("httpx2"), import_optional(self.sdk)
        parts = urlsplit(self.address)
        try:
            with self.blocking_client(_PATIENCE) as client:
                entry = self._entry(client.get(models_path, cast_to=http.Response)) or {}
                sizes = [entry.get(name) for name in _WINDOWS]
                if entry.get("owned_by") == "llamacpp":
                    address = f"{parts.scheme}://{parts.netloc}/props"
                    properties = client.get(address, cast_to=http.Response).json()
                    sizes.append(properties["default_generation_settings"]["n_ctx"])
        except (sdk.APIError, http.HTTPError, ValueError, LookupError, TypeError):
            return None
        return next((size for size in sizes if isinstance(size, int) and size > 0), None)

    def _raise_unreachable(self, error: Exception) -> None:
        """`Unreachable` for an error of the SDK that means that no connection can be made."""
        http, cause = import_optional("httpx2"), error.__cause__
        if isinstance(cause, (http.ConnectError, http.ConnectTimeout, http.ProxyError)):
            reason, address = str(cause) or type(cause).__name__, self._address_without_query
            unreachable = Unreachable(
                f"no connection to the server of {self.name} at {address}: {self.hide(reason)}"
            )
            unreachable.shared_cause = f"no connection to {address}"
            raise unreachable from None

    def version(self) -> str:
        """The version that a vLLM reports; empty if there is none."""
        http = import_optional("httpx2")
        parts = urlsplit(self.address)
        try:
            with http.Client(timeout=_PATIENCE, **self._route()) as client:
                reply = client.get(f"{parts.scheme}://{parts.netloc}/version")
                version = reply.json()["version"]
        except (http.HTTPError, ValueError, LookupError, TypeError):
            return ""
        return version if isinstance(version, str) else ""

    def error_of(self, error: Exception, timeout: float) -> Exception:
        """Our error for one of the SDK or of its HTTP library; any other one as it is."""
        if isinstance(error, asyncio.TimeoutError):
            return ServerTimeout(f"{self.where}: no complete reply in {timeout:g} s")
        sdk, http = import_optional(self.sdk), import_optional("httpx2")
        if isinstance(error, sdk.APIStatusError):
            return self.error_of_reply(error.status_code, error.body, error.response.headers)
        if isinstance(error, (sdk.APITimeoutError, http.TimeoutException)):
            return ServerTimeout(f"{self.where}: the connection stalled")
        for cause in (error, error.__cause__):  # Some versions of the SDKs wrap these errors.
            if isinstance(cause, ModelError):
                return cause
            if isinstance(cause, http.TooManyRedirects):
                return UnknownModel(f"{self.where}: its redirects lead in a circle; set base_url")
            if isinstance(cause, http.DecodingError):
                return BadReply(f"{self.where}: the compressed body is damaged ({cause})")
        if isinstance(error, (sdk.APIConnectionError, http.TransportError)):
            kind = type(error.__cause__ or error).__name__
            return ServerGone(f"{self.where}: no connection, or one that was cut ({kind})")
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
    def _address_without_query(self) -> str:
        parts = urlsplit(self.address)
        return f"{parts.scheme}://{parts.netloc}{parts.path}"


def _origin(parts: SplitResult) -> tuple[str, str | None, int | None]:
    return parts.scheme, parts.hostname, parts.port or _PORTS.get(parts.scheme)
