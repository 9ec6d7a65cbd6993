"""Clients of language model APIs: their configuration, their requests, and the servers that they
start."""

from __future__ import annotations

import asyncio
import copy
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from soundingline.toolkit.errors import InputError, Runtime, check_int, check_number
from soundingline.toolkit.files import cached_file_hash, fingerprint
from soundingline.toolkit.llm.errors import (
    BadReply,
    ContextOverflow,
    ModelError,
    Refused,
    ServerFailed,
    Truncated,
)
from soundingline.toolkit.llm.local_servers import LocalServer, Servers, VllmServer, serving
from soundingline.toolkit.llm.messages import (
    ChatModel,
    Message,
    SamplingParams,
    Tools,
    Turn,
    Usage,
)
from soundingline.toolkit.llm.prices import UNKNOWN, Price
from soundingline.toolkit.llm.transport import Transport, checked_url, retrying
from soundingline.toolkit.obfuscation import is_obfuscated
from soundingline.toolkit.optional import import_optional
from soundingline.toolkit.redaction import VARIABLE, find_secrets

Body = dict[str, Any]
"""A request or a reply in an API's own form."""

ADDRESS_FILE = "file:"  # before the path of a file with an address
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


class RequestObserver(NamedTuple):
    """What a client calls during a request. A request may take several attempts, and a server may
    bill each of them. The observer is found by the context of the task, whatever layers there are
    between the ledger and the client.

    Attributes:
        waited: Called with the seconds that an attempt waited for its concurrency slot.
        again: Called with the error of an attempt before the same request is sent again. An
            exception that it raises ends the request.
        reply: Called with the client and the reply as soon as its last byte has been read, before
            any other task runs.
        cancelled: Called with what an attempt that was cancelled has cost.
    """

    waited: Callable[[float], None] = lambda seconds: None
    again: Callable[[ModelError], None] = lambda error: None
    reply: Callable[[ChatModel, Turn], None] = lambda model, turn: None
    cancelled: Callable[[ModelError], None] = lambda error: None


_OBSERVER = ContextVar("observer", default=RequestObserver())  # noqa: B039 (it is immutable)


@contextmanager
def observed_by(observer: RequestObserver) -> Iterator[None]:
    """The requests of the block call `observer`, and no observer of an outer block."""
    token = _OBSERVER.set(observer)
    try:
        yield
    finally:
        _OBSERVER.reset(token)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ModelConfig:
    """What an option of `llm` sets.

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

    Raises:
        InputError: If an argument is impossible or the server cannot be started as configured.
    """

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

    def __post_init__(self) -> None:
        if not self.model:
            raise InputError("the model has no name", do="set llm.model=<name>")
        check_int("concurrency", self.concurrency)
        check_int("attempts", self.attempts)
        check_number("longest_wait", self.longest_wait)
        # The value is not repeated: it may be the key itself.
        if self.key_env is not None and not VARIABLE.fullmatch(self.key_env):
            raise InputError(
                "key_env is not the name of an environment variable",
                valid="capital letters, digits and underscores, such as OPENAI_API_KEY",
                do="export the key under such a name; never write it into the configuration",
            )
        if self.own_server:
            self.own_server.check(self.model)

    @property
    def own_server(self) -> LocalServer | None:
        """The server that `LanguageModel.running` starts, if any."""
        return self.server if self.base_url is None else None


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class LanguageModel(ModelConfig, ABC):
    """A language model with an HTTP API. See `ModelConfig` for the arguments.

    Creating one needs no key, no HTTP library and no server. It takes any number of requests at
    once, from one event loop or several.

    Attributes:
        transport: The connections to its server.
        weights_fingerprint: What the weights are where the name does not say it: see
            `fingerprint_weights`.
    """

    path: ClassVar[str]
    """The path of requests at the address."""
    models_path: ClassVar[str] = "/models"
    key_header: ClassVar[tuple[str, str]] = ("Authorization", "Bearer ")
    """The header with the key, and what precedes the key in it."""
    headers: ClassVar[Mapping[str, str]] = {}
    """The other headers that the API requires."""
    default_url: ClassVar[str]
    gives_logprobs: ClassVar[bool] = True
    """Whether the API has log-probabilities. A server may still return none."""
    continues_text: ClassVar[bool] = False
    """Whether the API continues one text, without a chat template."""

    transport: Transport = field(init=False)
    weights_fingerprint: str = field(default="", init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._connect(self.base_url or self.default_url)

    def _set(self, name: str, value: Any) -> None:
        """Set an attribute while the model is made or copied, before anybody else has it."""
        object.__setattr__(self, name, value)

    def _connect(self, address: str) -> None:
        transport = Transport(
            name=self.model,
            address=address if address.startswith(ADDRESS_FILE) else checked_url(address),
            path=self.path,
            models_path=self.models_path,
            key_header=self.key_header,
            headers=self.headers,
            key_env=self.key_env,
            concurrency=self.concurrency,
            secrets=tuple(secret for _, secret in find_secrets(self.settings.extra)),
        )
        self._set("transport", transport)

    def _at(self, address: str) -> LanguageModel:
        model = copy.copy(self)
        model._connect(address)
        return model

    @property
    def name(self) -> str:
        """The name of the model."""
        return self.model

    @property
    def address(self) -> str:
        """The address of the server, or `file:` and a path."""
        return self.transport.address

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r} at {self.address})"

    def ready(self) -> None:
        """`InputError` if httpx2 or the key is missing. Sends nothing."""
        import_optional("httpx2")
        self.transport.key()

    def fingerprint_weights(self, record: Path | None) -> None:
        """Set `weights_fingerprint` to what identifies the weights of a server that `running`
        starts, if the name of the model does not. The hashes of local files are stored in `record`
        (None: they are not stored). `InputError` if the files cannot be read."""
        if not (server := self.own_server):
            return
        try:
            hashed = partial(cached_file_hash, record=record)
            self._set("weights_fingerprint", server.weights_fingerprint(self.name, hashed))
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
            InputError: As `ready` and `soundingline.toolkit.llm.local_servers.serving`.
        """
        self.ready()
        if self.address.startswith(ADDRESS_FILE):
            yield self._at(self._address_in_file())
            return
        if not (server := self.own_server):
            yield self
            return
        key = self.transport.key(f"the server of {self.name}")
        command = server.command(self.name, 0)
        # A server that works for several runs has one log, which is obfuscated or is not.
        started_with = fingerprint(
            command, server.environment, key, is_obfuscated(log), self.weights_fingerprint
        )
        start = partial(serving, server, self.name, log=log, key=key)
        with (
            Servers() if servers is None else nullcontext(servers) as shared,
            shared.using(started_with, start) as address,
        ):
            yield self._at(f"{address}/v1")

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
        """Check before the first question that the server takes a connection; `Unreachable` if it
        does not. Requests the list of models. Any answer counts, and so does a server that is too
        busy to answer: a model or a path that it does not have is an error of the first request.
        """
        self.transport.reach()

    def reported_window(self) -> int | None:
        """The context window of the model in tokens, as its server reports it; None if it does
        not. Sends no request to the model."""
        return self.transport.reported_window()

    def server_version(self) -> str:
        """The program and the version that a local vLLM reports, such as `vLLM 0.32.0`; empty for
        another server, and for one that reports none."""
        version = self.transport.version() if isinstance(self.server, VllmServer) else ""
        return f"{VllmServer.name} {version}" if version else ""

    async def respond(
        self, messages: Sequence[Message], tools: Tools = (), settings: SamplingParams | None = None
    ) -> Turn:
        """See `ChatModel.respond`. The observer of the context is told of each attempt."""
        settings = settings or self.settings
        body = self._body(messages, tools, settings)
        request = _Request(self, body, settings.timeout, tuple(messages))
        return await retrying(
            request.attempt,
            attempts=self.attempts,
            longest_wait=self.longest_wait,
            again=request.observer.again,
        )

    async def close(self) -> None:
        """Close the connections of the running event loop."""
        await self.transport.close()

    @abstractmethod
    def _body(self, messages: Sequence[Message], tools: Tools, settings: SamplingParams) -> Body:
        """The request in the API's own form."""

    @abstractmethod
    async def _send(
        self, client: Any, body: Body, timeout: float, reply: Body, arrived: Callable[[], None]
    ) -> None:
        """Send once by the HTTP client, fill `reply` with the JSON values that come, and call
        `arrived` as soon as it is complete, before anything is awaited."""

    @abstractmethod
    def _turn(self, reply: Body, messages: Sequence[Message]) -> Turn:
        """The reply in our form. May raise what dictionaries raise if fields are missing."""

    @abstractmethod
    def _usage(self, usage: Any) -> Usage:
        """The `usage` of a reply in our form. Raises nothing, whatever the server sent."""

    def _read(self, reply: Body, messages: Sequence[Message]) -> Turn:
        try:
            turn = self._turn(reply, messages)
            model = str(reply.get("model") or "")
            return replace(turn, usage=self._usage(reply.get("usage")), model=model)
        except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
            kind = type(error).__name__
            raise BadReply(
                f"{self.transport.where}: the reply is out of its protocol ({kind})"
            ) from None

    def _check_complete(self, turn: Turn) -> Turn:
        """The turn; `ModelError` with it if it was cut short or refused."""
        if turn.finish_reason in _CUT_SHORT:
            kind, reason = _CUT_SHORT[turn.finish_reason]
            raise kind(f"{self.transport.where} stopped in the middle: {reason}", turn=turn)
        if turn.finish_reason == "refusal":
            reason = f": {self.transport.hide(turn.text)[:200]}" if turn.text else ""
            raise Refused(f"{self.transport.where} refused to answer{reason}", turn=turn)
        return turn


class _Request:
    """A request: its attempts, and what has come of the reply to the one under way."""

    def __init__(
        self, model: LanguageModel, body: Body, timeout: float, messages: Sequence[Message]
    ) -> None:
        self.observer = _OBSERVER.get()
        self._model, self._body, self._timeout = model, body, timeout
        self._messages = messages
        self._connection = model.transport.connection()
        self._reply: Body = {}
        self._outcome: Turn | Exception | None = None

    async def attempt(self) -> Turn:
        """Send it once. `ModelError` if there is no usable reply."""
        self._reply, self._outcome = {}, None
        try:
            await self._wait_for_slot()
            try:
                await self._exchange()
            finally:
                self._connection.slots.release()
        except asyncio.CancelledError:
            self.observer.cancelled(self._with_costs(ModelError("the request was cancelled")))
            raise
        outcome = self._outcome
        if isinstance(outcome, Turn):
            return outcome
        if isinstance(outcome, ModelError):
            self._with_costs(outcome)
        # Not chained: the errors of the HTTP library quote the server, which may quote the key.
        raise outcome or RuntimeError(f"{self._model!r} sent a request and looked at no reply")

    async def _wait_for_slot(self) -> None:
        began = time.monotonic()
        try:
            await self._connection.slots.acquire()
        finally:
            self.observer.waited(time.monotonic() - began)

    async def _exchange(self) -> None:
        client, admission_lock = self._connection.client, self._connection.admission_lock
        try:
            async with admission_lock:
                await asyncio.sleep(0)
            sending = self._model._send(
                client, self._body, self._timeout, self._reply, self._arrived
            )
            await asyncio.wait_for(sending, self._timeout)
        except Exception as error:
            # What fails once the reply is complete takes nothing from it.
            failure = self._model.transport.error_of(error, self._timeout)
            self._outcome = self._outcome or failure

    def _arrived(self) -> None:
        try:
            self._outcome = self._model._check_complete(
                self._model._read(self._reply, self._messages)
            )
            self.observer.reply(self._model, self._outcome)
        except Exception as error:
            self._outcome = error  # Raised when the connection has been read to its end.

    def _with_costs(self, error: ModelError) -> ModelError:
        """The error of an attempt that failed, with what was paid for a reply that cannot be used,
        as far as it came, unless the server sent nothing, or an error without usage."""
        reply = self._reply
        if error.turn is None and reply and (reply.get("usage") or not reply.get("error")):
            usage = self._model._usage(reply.get("usage"))
            error.turn = Turn(usage=usage, finish_reason="error")
        return error
