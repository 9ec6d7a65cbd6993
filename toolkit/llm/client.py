"""What the adapters share: the SDK, the key, the cap on requests in flight, and errors."""

from __future__ import annotations

import asyncio
import copy
import ssl
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, TypeVar
from urllib.parse import urlsplit

from toolkit.errors import InputError
from toolkit.llm import wire
from toolkit.llm.access import Key, checked_url, hidden, is_local, load
from toolkit.llm.errors import (
    BadReply,
    ContextOverflow,
    ModelError,
    Refused,
    ServerFailed,
    ServerGone,
    ServerTimeout,
    Truncated,
)
from toolkit.llm.faults import fault
from toolkit.llm.protocol import Message, Settings, Turn
from toolkit.llm.retries import Retries
from toolkit.masking import secrets_in

# Below the five seconds after which uvicorn closes an idle connection: reusing one at that moment
# loses a request.
_KEEP_ALIVE = 4.0
# Why a reply with status 200 is not whole, by its finish reason. vLLM says `abort` where the engine
# is paused or shut down and `error` where it failed, and ends a reply that repeats itself; its
# Responses API says `cancelled` for `abort`. DeepSeek runs out of resources.
_CUT_SHORT: Mapping[str, tuple[type[ModelError], str]] = {
    "length": (Truncated, "its output limit was reached"),
    "repetition": (Truncated, "it repeated itself"),
    "incomplete": (Truncated, "the server calls it incomplete"),
    "overflow": (ContextOverflow, "the context window is full"),
    **{
        word: (ServerFailed, f"the server gave up ({word})")
        for word in ("abort", "error", "cancelled", "insufficient_system_resource")
    },
}

Connected = TypeVar("Connected", bound="ApiModel")


class ApiConnection(NamedTuple):
    """An SDK client and the places in flight; both belong to one event loop."""

    client: Any
    slots: asyncio.Semaphore


@asynccontextmanager
async def _place_in_flight(slots: asyncio.Semaphore, queued: list[float]) -> AsyncIterator[None]:
    """One of the `slots` for the block; the seconds of waiting for it, in vain or not, are added to
    `queued`."""
    began = time.monotonic()
    try:
        await slots.acquire()
    finally:
        queued.append(time.monotonic() - began)
    try:
        yield
    finally:
        slots.release()


class ApiModel(ABC):
    """One model behind one HTTP API.

    `key_env` names the environment variable that holds the key (None: the server wants none);
    `concurrency` is the most requests in flight; `attempts`, `longest_wait`, `sleep` and `chance`
    as in `Retries`. Without a `model` it is an option that asks nobody: `connect` gives the client.
    """

    sdk: ClassVar[str]
    default_url: ClassVar[str]
    gives_logprobs: ClassVar[bool] = True
    """Whether log-probabilities can be asked for; a server may still give none."""
    name: str = ""

    def __init__(
        self,
        *,
        model: str | None = None,
        base_url: str | None = None,
        key_env: str | None = None,
        settings: Settings | None = None,
        concurrency: int = 64,
        attempts: int = 6,
        longest_wait: float = 60.0,
        sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
        chance: Callable[[], float] | None = None,
    ) -> None:
        self._retries = Retries(
            attempts=attempts, longest_wait=longest_wait, sleep=sleep, chance=chance
        )
        if model is not None:
            self._connect(model, base_url, key_env, settings or Settings(), concurrency)

    def connect(
        self: Connected,
        *,
        model: str,
        base_url: str | None,
        key_env: str | None,
        settings: Settings,
        concurrency: int,
    ) -> Connected:
        """See `ModelClient`. Sends nothing; `InputError` for settings that cannot work."""
        connected = copy.copy(self)
        connected._connect(model, base_url, key_env, settings, concurrency)
        return connected

    def _connect(
        self,
        model: str,
        base_url: str | None,
        key_env: str | None,
        settings: Settings,
        concurrency: int,
    ) -> None:
        if not model:
            raise InputError("the model has no name", do="set llm.model=<name>")
        if concurrency < 1:
            raise InputError(f"concurrency is {concurrency}", valid="1 or more requests in flight")
        self.name = model
        self.settings = settings
        self.base_url = checked_url(base_url or self.default_url)
        self.concurrency = concurrency
        self._key = Key(key_env)
        self._sessions: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, ApiConnection] = (
            weakref.WeakKeyDictionary()
        )
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        server = f"{self.name!r} at {self.base_url}" if self.name else ""
        return f"{type(self).__name__}({server})"

    def ready(self) -> None:
        """`InputError` where the SDK or the key is missing. Sends nothing."""
        if not self.name:
            raise InputError(
                f"this {type(self).__name__} is connected to no model", do="call connect(model=...)"
            )
        load(self.sdk)
        load("tenacity")
        self._key.value(self._where)

    async def respond(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        settings: Settings | None = None,
    ) -> Turn:
        """See `ChatModel.respond`."""
        settings = settings or self.settings
        body = self._body(messages, tools, settings)
        session = self._session()
        retrying = self._retries.caller()
        queued: list[float] = []
        try:
            turn: Turn = await retrying(
                self._attempt, session, body, settings.timeout, tuple(messages), queued
            )
        except (ModelError, asyncio.CancelledError) as error:
            # The ledger reads it, of a request that is cancelled too.
            error.queued = sum(queued)  # type: ignore[union-attr]
            if isinstance(error, ModelError):
                error.attempts = retrying.statistics.get("attempt_number", 1)
            raise
        return replace(turn, attempts=retrying.statistics["attempt_number"], queued=sum(queued))

    async def close(self) -> None:
        """Close the connections of the running event loop."""
        with self._lock:
            session = self._sessions.pop(asyncio.get_running_loop(), None)
        if session:
            await session.client.close()

    @abstractmethod
    def _body(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], settings: Settings
    ) -> dict[str, Any]:
        """The request in the API's own form."""

    @abstractmethod
    def _client(self, sdk: Any, **arguments: Any) -> Any:
        """The SDK's asynchronous client."""

    @abstractmethod
    async def _send(self, client: Any, body: dict[str, Any], timeout: float) -> dict[str, Any]:
        """Send once; the reply as JSON values, whole."""

    @abstractmethod
    def _turn(self, reply: dict[str, Any], messages: Sequence[Message]) -> Turn:
        """The reply in our form. May raise what dictionaries raise where fields are missing."""

    @property
    def _where(self) -> str:
        return f"{self.name} at {urlsplit(self.base_url).netloc}"

    async def _attempt(
        self,
        session: ApiConnection,
        body: dict[str, Any],
        timeout: float,
        messages: Sequence[Message],
        queued: list[float],
    ) -> Turn:
        async with _place_in_flight(session.slots, queued):
            try:
                reply = await asyncio.wait_for(self._send(session.client, body, timeout), timeout)
            except asyncio.TimeoutError:
                raise ServerTimeout(f"{self._where}: no complete reply in {timeout:g} s") from None
            except ModelError:
                raise
            except Exception as error:
                known = self._translated(error)
                if known is None:
                    raise
                # Not chained: the SDK's errors quote the server, which may quote the key.
                raise known from None
        return self._whole(self._read(reply, messages))

    def _read(self, reply: dict[str, Any], messages: Sequence[Message]) -> Turn:
        try:
            return self._turn(reply, messages)
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            kind = type(error).__name__
            raise BadReply(f"{self._where}: the reply is out of its protocol ({kind})") from None

    def _whole(self, turn: Turn) -> Turn:
        if turn.finish_reason in _CUT_SHORT:
            kind, reason = _CUT_SHORT[turn.finish_reason]
            raise kind(f"{self._where} stopped in the middle: {reason}", turn=turn)
        if turn.finish_reason == "refusal":
            reason = f": {self._hide(turn.text)[:200]}" if turn.text else ""
            raise Refused(f"{self._where} refused to answer{reason}", turn=turn)
        return turn

    def _translated(self, error: Exception) -> ModelError | None:
        """Our error for one of the SDK or of its HTTP library; None for a stranger."""
        sdk, http = load(self.sdk), load("httpx2")
        if isinstance(error, sdk.APIStatusError):
            return self._fault(error.status_code, error.body, error.response.headers)
        if isinstance(error, (sdk.APITimeoutError, http.TimeoutException)):
            return ServerTimeout(f"{self._where}: the connection stalled")
        if isinstance(error, (sdk.APIConnectionError, http.TransportError)):
            cause = type(error.__cause__ or error).__name__
            return ServerGone(f"{self._where}: no connection, or one that was cut ({cause})")
        return None

    def _session(self) -> ApiConnection:
        loop = asyncio.get_running_loop()
        with self._lock:
            if loop not in self._sessions:
                self._sessions[loop] = self._open()
            return self._sessions[loop]

    def _open(self) -> ApiConnection:
        sdk = load(self.sdk)
        client = self._client(
            sdk,
            api_key=self._key.value(self._where) or "none",
            base_url=self.base_url,
            max_retries=0,
            http_client=self._http(sdk),
        )
        return ApiConnection(client, asyncio.Semaphore(self.concurrency))

    def _http(self, sdk: Any) -> Any:
        http = load("httpx2")
        limits = http.Limits(
            max_connections=self.concurrency,
            max_keepalive_connections=self.concurrency,
            keepalive_expiry=_KEEP_ALIVE,
        )
        if is_local(self.base_url):
            # The environment's proxies, which the SDKs look up, are not for this machine; and
            # reading all certificates for a plain connection takes longer than connecting.
            # Without any, a redirection to https fails.
            plain = self.base_url.startswith("http:")
            verify = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if plain else True
            return http.AsyncClient(
                trust_env=False, verify=verify, limits=limits, follow_redirects=True
            )
        return sdk.DefaultAsyncHttpxClient(limits=limits)

    def _fault(self, status: int, body: Any, headers: Mapping[str, str]) -> ModelError:
        hide = self._hide
        return fault(status, body, headers, where=self._where, now=time.time(), hide=hide)

    def _object(self, content: str) -> dict[str, Any]:
        return wire.json_object(content, self._where, hide=self._hide)

    def _hide(self, text: str) -> str:
        # A server may quote whatever it was sent.
        for secret in secrets_in(self.settings.extra):
            text = hidden(text, secret)
        return self._key.hide(text)
