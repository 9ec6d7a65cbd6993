"""Clients of language model APIs: connections, keys, retries and the translation of errors."""

from __future__ import annotations

import asyncio
import copy
import os
import random
import re
import ssl
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple
from urllib.parse import SplitResult, urlsplit

from soundingline.toolkit.errors import InputError, Runtime
from soundingline.toolkit.files import cached_file_hash, fingerprint
from soundingline.toolkit.llm import wire
from soundingline.toolkit.llm.errors import (
    BadReply,
    ContextOverflow,
    ModelError,
    Refused,
    ServerFailed,
    ServerGone,
    ServerTimeout,
    Truncated,
    UnknownModel,
    Unreachable,
    fault,
)
from soundingline.toolkit.llm.local_servers import LocalServer, VllmServer
from soundingline.toolkit.llm.messages import Message, SamplingParams, Tools, Turn, Usage
from soundingline.toolkit.llm.prices import UNKNOWN, Price
from soundingline.toolkit.llm.server import Servers, serving
from soundingline.toolkit.obfuscation import is_obfuscated
from soundingline.toolkit.optional import import_optional, install_command
from soundingline.toolkit.redaction import REDACTED, VARIABLE, find_secrets

Arrived = Callable[..., None]
Body = dict[str, Any]
"""A request or a reply in an API's own form."""

ADDRESS_FILE = "file:"  # before the path of a file with an address
_REQUEST_PATH = re.compile(r"/((chat/)?completions|responses|messages)/?$")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_PORTS = {"http": 80, "https": 443}
# Seconds for a server to accept a connection, and then to say anything, before it is asked.
_PATIENCE = 5.0
# Below the five seconds after which uvicorn closes an idle connection: reusing one at that moment
# loses a request.
_KEEP_ALIVE = 4.0
_FIRST_WAIT = 0.5
# Why a reply with status 200 is incomplete, by its finish reason. vLLM says `abort` if the engine
# is paused or shut down and `error` if it failed, and ends a reply that repeats itself; its
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


def _origin(parts: SplitResult) -> tuple[str, str | None, int | None]:
    return parts.scheme, parts.hostname, parts.port or _PORTS.get(parts.scheme)


class RequestObserver(NamedTuple):
    """What a client calls during a request. A request may take several attempts, and a server may
    bill each of them. The observer is found by the context of the task, whatever layers there are
    between the ledger and the client.

    Attributes:
        again: Called with the error of an attempt before the same request is sent again. An
            exception that it raises ends the request.
        reply: Called with the reply as soon as its last byte has been read, before any other task
            runs.
    """

    again: Callable[[ModelError], None] = lambda error: None
    reply: Callable[[Turn], None] = lambda turn: None


_OBSERVER = ContextVar("observer", default=RequestObserver())  # noqa: B039 (it is immutable)


@contextmanager
def observed_by(observer: RequestObserver) -> Iterator[None]:
    """The requests of the block call `observer`, and no observer of an outer block."""
    token = _OBSERVER.set(observer)
    try:
        yield
    finally:
        _OBSERVER.reset(token)


class Connection(NamedTuple):
    """An SDK client, the places in flight, and a turnstile, all of one event loop.

    One request passes the turnstile in a round of the loop. Preparing a request takes longer than
    reading a reply, so that many together would delay the reading of replies that have arrived.
    """

    client: Any
    slots: asyncio.Semaphore
    turnstile: asyncio.Lock


@dataclass(kw_only=True, eq=False, repr=False)
class LanguageModel(ABC):
    """A language model behind an HTTP API, and the server of it that a run starts, if any.

    Creating one needs no key, no SDK and no server. It takes any number of requests at once, from
    one event loop or several.

    Args:
        model: The name of the model at its server.
        base_url: The address of a server that is running, or `file:` and the path of a file with
            it, which `running` waits for as long as `server` may take to start. None: the address
            of the API, or that of `server`.
        key_env: The environment variable that holds the key. None: the server needs no key.
        settings: How to sample. A client may fill in what its API requires, such as a limit on the
            output.
        price: The price of tokens. Unknown prices make costs unknown.
        server: The local server that `running` starts when `base_url` is None.
        context_window: The window of the model in tokens, for whoever limits transcripts.
        concurrency: The largest number of requests in flight.
        attempts: How often one request is sent at most, the first time included.
        longest_wait: The longest wait between two attempts in seconds. A request whose server asks
            for a longer wait fails at once.
        sleep: Waits for a number of seconds, for tests.
        chance: Returns a random number between 0 and 1, for tests. The default uses a generator of
            its own, so that a wait never changes the state of an experiment's generator.

    Raises:
        InputError: If an argument is impossible or the server cannot be started as configured.
    """

    sdk: ClassVar[str]
    sdk_client: ClassVar[str]
    """The class of the SDK's client; that of the asynchronous one has `Async` before it."""
    path: ClassVar[str]
    """The path of requests at the address."""
    models_path: ClassVar[str] = "/models"
    default_url: ClassVar[str]
    reports_replies: ClassVar[bool] = True
    """Whether `respond` returns the turn that it has reported (`replied`). A subclass that changes
    the turn afterwards says no, and its ledger and caches take what it returns."""

    gives_logprobs: ClassVar[bool] = True
    """Whether the API has log-probabilities. A server may still return none."""
    continues_text: ClassVar[bool] = False
    """Whether the API continues one text, without a chat template."""

    model: str
    base_url: Runtime[str | None] = None
    key_env: Runtime[str | None] = None
    settings: SamplingParams = field(default_factory=SamplingParams)
    price: Runtime[Price] = UNKNOWN
    server: LocalServer | None = None
    context_window: int | None = None
    concurrency: Runtime[int] = 64
    attempts: Runtime[int] = 6
    longest_wait: Runtime[float] = 60.0
    sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep
    chance: Callable[[], float] = field(default_factory=lambda: random.Random().random)

    def __post_init__(self) -> None:
        if not self.model:
            raise InputError("the model has no name", do="set llm.model=<name>")
        for name in ("concurrency", "attempts"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}", valid="1 or more")
        if not self.longest_wait >= 0:
            raise InputError(f"longest_wait is {self.longest_wait}", valid="seconds, 0 or more")
        self.name = self.model
        # What the weights are where the name does not say it: see `fingerprint_weights`.
        self.weights_fingerprint = ""
        # The value is not repeated: it may be the key itself.
        if self.key_env is not None and not VARIABLE.fullmatch(self.key_env):
            raise InputError(
                "key_env is not the name of an environment variable",
                valid="capital letters, digits and underscores, such as OPENAI_API_KEY",
                do="export the key under such a name; never write it into the configuration",
            )
        self._lock = threading.Lock()
        self._use_address(self.base_url or self.default_url)
        if server := self._own_server:
            server.check(self.model)

    def _use_address(self, url: str) -> None:
        self.address = url if url.startswith(ADDRESS_FILE) else checked_url(url)
        self._sessions: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Connection] = (
            weakref.WeakKeyDictionary()
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r} at {self.address})"

    def _key(self, where: str) -> str:
        """The key for `where`, empty if none is needed; `InputError` if it is not set. It is read
        when it is used, and is in no attribute, representation, record or error."""
        if self.key_env is None:
            return ""
        key = os.environ.get(self.key_env, "").strip()
        if not key:
            raise InputError(
                f"the environment variable {self.key_env} with the key for {where} is not set",
                do=f"export {self.key_env}=... in the shell that starts the run",
            )
        if not key.isascii() or not key.isprintable() or " " in key:
            raise InputError(
                f"the key in {self.key_env} has characters that no key has",
                do="export it again, without quotation marks or line breaks",
            )
        return key

    def ready(self) -> None:
        """`InputError` if the SDK or the key is missing. Sends nothing."""
        import_optional(self.sdk)
        import_optional("tenacity")
        self._key(self._where)

    def fingerprint_weights(self, record: Path | None) -> None:
        """Set `weights_fingerprint` to what identifies the weights of a server that `running`
        starts, if the name of the model does not. The hashes of local files are stored in `record`
        (None: they are not stored). `InputError` if the files cannot be read."""
        if not (server := self._own_server):
            return
        try:
            hashed = partial(cached_file_hash, record=record)
            self.weights_fingerprint = server.weights_fingerprint(self.name, hashed)
        except OSError as error:
            raise InputError(
                f"the weights of {self.name} cannot be read: {error}", do="check the path"
            ) from error

    @contextmanager
    def running(self, log: Path, servers: Servers | None = None) -> Iterator[LanguageModel]:
        """The model, ready for requests, while the block runs. Close it before the block ends.

        Args:
            log: The file that receives the output of a server that is started here.
            servers: Servers that are running already. Several models of one configuration (those
                of an agent and of a rewriter, for example) and several runs share them. A server
                that is started is added to them and ends with them. None: it ends with the block.

        Raises:
            InputError: As `ready` and `soundingline.toolkit.llm.server.serving`.
        """
        self.ready()
        if self.address.startswith(ADDRESS_FILE):
            model = copy.copy(self)
            model._use_address(self._address_in_file())
            yield model
            return
        if not (server := self._own_server):
            yield self
            return
        # The server requires the key that we send. It reads it from the environment, because every
        # user of the machine can read command lines.
        key = self._key(f"the server of {self.name}")
        environment = {**server.environment, **({server.key_variable: key} if key else {})}
        # A server that works for several runs has one log, which is obfuscated or is not.
        command = server.command(self.name, 0)
        started_with = fingerprint(
            command, environment, is_obfuscated(log), self.weights_fingerprint
        )
        start = partial(
            serving,
            lambda port: server.command(self.name, port),
            log=log,
            start_seconds=server.start_seconds,
            environment=environment,
            advice=install_command(server.installed_by),
            name=server.name,
        )
        with (
            Servers() if servers is None else nullcontext(servers) as shared,
            shared.using(started_with, start) as address,
        ):
            model = copy.copy(self)
            model._use_address(f"{address}/v1")
            yield model

    @property
    def _own_server(self) -> LocalServer | None:
        """The server that `running` starts, if any."""
        return self.server if self.base_url is None else None

    def _address_in_file(self) -> str:
        path = Path(self.address.removeprefix(ADDRESS_FILE))
        seconds = self.server.start_seconds if self.server else 0.0
        deadline = time.monotonic() + seconds
        while not path.is_file():
            if time.monotonic() >= deadline:
                raise InputError(
                    f"no server of {self.name} has written its address to {path} within "
                    f"{seconds:g} s",
                    do="start one with the same options: soundingline model ...",
                )
            time.sleep(min(1.0, seconds))
        return path.read_text(encoding="utf-8").strip()

    def reach(self) -> None:
        """Check the address before the first question, at no cost.

        Requests the list of models. If the server has no such list, or one without the model, a
        request without messages is sent, which servers refuse: the reply shows whether the path and
        the model exist. Any other answer counts, and so does a server that is too busy to answer.

        Raises:
            Unreachable: If no connection to the server can be made.
            UnknownModel: If the server has no such path or no such model.
        """
        http, sdk = import_optional("httpx2"), import_optional(self.sdk)
        with http.Client(timeout=_PATIENCE, **self._route()) as http_client:
            client = getattr(sdk, self.sdk_client)(**self._sdk_arguments(http_client))
            try:
                if self._is_listed(client.get(self.models_path, cast_to=http.Response)):
                    return
            except sdk.APIStatusError as error:
                if error.status_code not in (404, 405):
                    return
            except sdk.APIConnectionError as error:
                self._raise_unreachable(error)
                return
            body = {"model": self.name, "messages": [], "max_tokens": 1}
            try:
                text = client.post(self.path, cast_to=http.Response, body=body).text
                failure: Exception = self._fault(200, text, {})
                wire.json_object(text, self._where, hide=self._hide)
            except BadReply as page:  # a web page at this path
                failure = self._not_served(page)
            except sdk.APIError as error:
                failure = self._failure(error, _PATIENCE)
        if isinstance(failure, UnknownModel):
            raise failure from None

    def _is_listed(self, reply: Any) -> bool:
        """Whether a list of models has this one. Gemini writes `models/` before each name."""
        try:
            names = {entry["id"].removeprefix("models/") for entry in reply.json()["data"]}
        except (ValueError, LookupError, TypeError, AttributeError):
            return False
        return self.name.removeprefix("models/") in names

    def _raise_unreachable(self, error: Exception) -> None:
        """`Unreachable` for an error of the SDK that means that there is no connection."""
        http, cause = import_optional("httpx2"), error.__cause__
        if isinstance(cause, (http.ConnectError, http.ConnectTimeout, http.ProxyError)):
            reason = str(cause) or type(cause).__name__
            address = self._address_without_query
            unreachable = Unreachable(
                f"no connection to the server of {self.name} at {address}: {self._hide(reason)}"
            )
            unreachable.fault = f"no connection to {address}"
            raise unreachable from None

    def server_version(self) -> str:
        """The program and the version that a local vLLM reports, such as `vLLM 0.32.0`; empty for
        another server, and for one that reports none."""
        if not isinstance(self.server, VllmServer):
            return ""
        http = import_optional("httpx2")
        parts = urlsplit(self.address)
        try:
            with http.Client(timeout=_PATIENCE, **self._route()) as client:
                reply = client.get(f"{parts.scheme}://{parts.netloc}/version")
                version = reply.json()["version"]
        except (http.HTTPError, ValueError, LookupError, TypeError):
            return ""
        return f"{self.server.name} {version}" if isinstance(version, str) else ""

    async def respond(
        self, messages: Sequence[Message], tools: Tools = (), settings: SamplingParams | None = None
    ) -> Turn:
        """See `ChatModel.respond`."""
        settings = settings or self.settings
        body = self._body(messages, tools, settings)
        queued: list[float] = []
        attempt = partial(
            self._attempt, self._session(), body, settings.timeout, tuple(messages), queued
        )
        turn: Turn = await self._retrying(_OBSERVER.get().again)(attempt)
        return turn

    def replied(self, turn: Turn) -> Turn:
        """The turn, after the request's observer was told of it."""
        _OBSERVER.get().reply(turn)
        return turn

    async def close(self) -> None:
        """Close the connections of the running event loop."""
        with self._lock:
            session = self._sessions.pop(asyncio.get_running_loop(), None)
        if session:
            await session.client.close()

    @abstractmethod
    def _body(self, messages: Sequence[Message], tools: Tools, settings: SamplingParams) -> Body:
        """The request in the API's own form."""

    @abstractmethod
    async def _send(
        self, client: Any, body: Body, timeout: float, reply: Body, arrived: Arrived
    ) -> None:
        """Send once, and call `arrived` as soon as the reply is complete, before anything is
        awaited: with its body, or without it if `reply` was filled with its JSON values as they
        came."""

    @abstractmethod
    def _turn(self, reply: Body, messages: Sequence[Message]) -> Turn:
        """The reply in our form. May raise what dictionaries raise if fields are missing."""

    @abstractmethod
    def _usage(self, usage: Any) -> Usage:
        """The `usage` of a reply in our form. Raises nothing, whatever the server sent."""

    @property
    def _where(self) -> str:
        return f"{self.name} at {urlsplit(self.address).netloc}"

    @property
    def _address_without_query(self) -> str:
        parts = urlsplit(self.address)
        return f"{parts.scheme}://{parts.netloc}{parts.path}"

    def _sdk_arguments(self, http_client: Any) -> dict[str, Any]:
        return {
            "api_key": self._key(self._where) or "none",
            "base_url": self.address,
            "max_retries": 0,
            "http_client": http_client,
        }

    def _retrying(self, again: Callable[[ModelError], None]) -> Any:
        """A tenacity object for one request: `await retrying(function, *arguments)`. `again` is
        called with the error of an attempt that is followed by another, before the wait. An
        exception that it raises ends the request.

        The SDKs' own retries are off: they also retry when the quota is exhausted, and they would
        hold a place in flight while they wait."""
        tenacity = import_optional("tenacity")
        return tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(self._is_worth_retrying),
            wait=lambda state: self._wait(state.attempt_number, state.outcome.exception()),
            stop=tenacity.stop_after_attempt(self.attempts),
            before_sleep=lambda state: again(state.outcome.exception()),
            sleep=self.sleep,
            reraise=True,
        )

    def _is_worth_retrying(self, error: BaseException) -> bool:
        if not isinstance(error, ModelError) or not error.retryable:
            return False
        return (error.retry_after or 0.0) <= self.longest_wait

    def _wait(self, attempt: int, error: ModelError) -> float:
        """Seconds before the next attempt: what the server requests and up to a tenth more, else a
        random part of 1, 2, 4, ... seconds ("full jitter"), so that clients do not return together.
        """
        if error.retry_after is not None:
            return error.retry_after * (1 + 0.1 * self.chance())
        return float(min(self.longest_wait, _FIRST_WAIT * 2**attempt) * self.chance())

    async def _attempt(
        self,
        session: Connection,
        body: Body,
        timeout: float,
        messages: Sequence[Message],
        queued: list[float],
    ) -> Turn:
        """One attempt; `queued` has the seconds that each attempt so far waited for its place."""
        reply: Body = {}
        outcome: Turn | Exception | None = None

        def arrived(content: bytes | None = None) -> None:
            nonlocal outcome
            try:
                if content is not None:
                    self._fill(reply, content)
                turn = self._whole(self._read(reply, messages))
                turn = replace(turn, attempts=len(queued), queue_seconds=queued[-1])
                outcome = self.replied(turn)
            except Exception as error:
                outcome = error  # Raised when the connection has been read to its end.

        began = time.monotonic()
        try:
            try:
                await session.slots.acquire()
            finally:
                queued.append(time.monotonic() - began)
            try:
                async with session.turnstile:
                    await asyncio.sleep(0)
                sending = self._send(session.client, body, timeout, reply, arrived)
                await asyncio.wait_for(sending, timeout)
            except Exception as error:
                # What fails once the reply is complete takes nothing from it.
                outcome = outcome or self._failure(error, timeout)
            finally:
                session.slots.release()
        except asyncio.CancelledError as error:
            self._note_attempt(error, reply, queued)
            raise
        if isinstance(outcome, Turn):
            return outcome
        if isinstance(outcome, ModelError):
            self._note_attempt(outcome, reply, queued)
        # Not chained: the SDK's errors quote the server, which may quote the key.
        raise outcome or RuntimeError(f"{self!r} sent a request and looked at no reply")

    def _note_attempt(self, error: Any, reply: Body, queued: list[float]) -> None:
        """Add to the error what the ledger records of an attempt that failed: also what was paid
        for a reply that cannot be used, as far as it came, unless the server sent nothing, or an
        error without usage."""
        error.queue_seconds, error.attempts = queued[-1], len(queued)
        error.turn = getattr(error, "turn", None)
        if error.turn is None and reply and (reply.get("usage") or not reply.get("error")):
            error.turn = Turn(usage=self._usage(reply.get("usage")), finish_reason="error")

    def _read(self, reply: Body, messages: Sequence[Message]) -> Turn:
        try:
            turn = self._turn(reply, messages)
            model = str(reply.get("model") or "")
            return replace(turn, usage=self._usage(reply.get("usage")), model=model)
        except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
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

    def _failure(self, error: Exception, timeout: float) -> Exception:
        """Our error for one of the SDK or of its HTTP library; any other one as it is."""
        if isinstance(error, asyncio.TimeoutError):
            return ServerTimeout(f"{self._where}: no complete reply in {timeout:g} s")
        sdk, http = import_optional(self.sdk), import_optional("httpx2")
        if isinstance(error, sdk.APIStatusError):
            return self._fault(error.status_code, error.body, error.response.headers)
        if isinstance(error, (sdk.APITimeoutError, http.TimeoutException)):
            return ServerTimeout(f"{self._where}: the connection stalled")
        for cause in (error, error.__cause__):  # Some versions of the SDKs wrap these errors.
            if isinstance(cause, ModelError):
                return cause
            if isinstance(cause, http.TooManyRedirects):
                return UnknownModel(f"{self._where}: its redirects lead in a circle; set base_url")
            if isinstance(cause, http.DecodingError):
                return BadReply(f"{self._where}: the compressed body is damaged ({cause})")
        if isinstance(error, (sdk.APIConnectionError, http.TransportError)):
            kind = type(error.__cause__ or error).__name__
            return ServerGone(f"{self._where}: no connection, or one that was cut ({kind})")
        return error

    def _session(self) -> Connection:
        """The connection of the running event loop, opened at its first request."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if loop in self._sessions:
                return self._sessions[loop]
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
            client = getattr(sdk, f"Async{self.sdk_client}")(**self._sdk_arguments(http_client))
            slots, turnstile = asyncio.Semaphore(self.concurrency), asyncio.Lock()
            self._sessions[loop] = Connection(client, slots, turnstile)
            return self._sessions[loop]

    async def _stay_at_server(self, request: Any) -> None:
        """Called before each request and each redirected one: `UnknownModel` if it would take the
        prompt to another server. That of the same name over https is the same one."""
        own, next_ = urlsplit(self.address), urlsplit(str(request.url))
        upgraded = (own.scheme, next_.scheme) == ("http", "https")
        if _origin(own) != _origin(next_) and not (upgraded and own.hostname == next_.hostname):
            raise UnknownModel(
                f"{self._where}: the server redirects to {next_.scheme}://{next_.netloc}, and "
                "prompts do not follow it; set base_url to that address if it is the right one"
            )

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

    def _fault(self, status: int, body: Any, headers: Mapping[str, str]) -> ModelError:
        hide = self._hide
        error = fault(status, body, headers, where=self._where, now=time.time(), hide=hide)
        return self._not_served(error) if isinstance(error, UnknownModel) else error

    def _not_served(self, error: ModelError) -> UnknownModel:
        """What was requested, what came, and what to set. A page of HTML must not push out the
        last."""
        usual = "" if self.path.startswith("/v1") else " (most end in /v1)"
        return UnknownModel(
            f"POST {self._address_without_query}{self.path} for {str(error)[:160]}; set base_url "
            f"to the address before {self.path}{usual}, or model to a model of that server"
        )

    def _fill(self, reply: Body, content: bytes) -> None:
        """Fill `reply` with the JSON object `content`; if it is none, with what can be read of its
        usage, and `BadReply`."""
        text = content.decode("utf-8-sig", "replace")
        try:
            reply.update(wire.json_object(text, self._where, hide=self._hide))
        except BadReply:
            reply.update(wire.usage_of_damaged(text))
            raise

    def _hide(self, text: str) -> str:
        # A server may quote whatever it was sent.
        key = os.environ.get(self.key_env or "", "").strip()
        for secret in (*find_secrets(self.settings.extra), key):
            text = hidden(text, secret)
        return text
