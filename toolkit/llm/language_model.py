"""What the configuration calls an `llm`: a model's client, its settings, its price, and how to
serve it where it is a local one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from toolkit.errors import InputError
from toolkit.files import fingerprint, recorded_fingerprint
from toolkit.llm.access import Key
from toolkit.llm.command import SERVE, SERVER_KEY, serve_command
from toolkit.llm.prices import UNKNOWN, Price
from toolkit.llm.protocol import ChatModel, ModelClient, Settings
from toolkit.llm.server import Servers, serving
from toolkit.sealing import is_sealed


class ModelServer(Protocol):
    """How a local model is served. `name` is what messages call the server, `environment` is added
    to its own, `start_seconds` is how long loading may take, `key_variable` the variable from which
    it reads the key that it asks for, and `advice` how it is installed."""

    @property
    def name(self) -> str: ...

    @property
    def environment(self) -> Mapping[str, str]: ...

    @property
    def start_seconds(self) -> float: ...

    @property
    def key_variable(self) -> str: ...

    @property
    def advice(self) -> str: ...

    def check(self, model: str) -> None:
        """`InputError` for what cannot work. Starts nothing."""
        ...

    def command(self, model: str, port: int) -> list[str]:
        """The command line that serves `model` under that name."""
        ...


@dataclass(frozen=True)
class VllmServer:
    """A local vLLM. `weights` is a folder or a name on a hub (None: the model's name); `options`
    are keywords of `serve_command`; `environment` is added to the server's; `start_seconds` is how
    long loading may take."""

    weights: str | None = None
    launcher: Sequence[str] = SERVE
    options: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    start_seconds: float = 1800.0

    name = "vLLM"
    key_variable = SERVER_KEY
    advice = "pip install 'soundingline[vllm]'"

    def check(self, model: str) -> None:
        """See `ModelServer`."""
        self.command(model, 0)

    def command(self, model: str, port: int) -> list[str]:
        """The command line that serves `model` under that name."""
        return serve_command(
            self.weights or model,
            port=port,
            launcher=self.launcher,
            served_name=model if self.weights else None,
            **self.options,
        )

    def weights_content(self, model: str, hashed: Callable[[Path], str]) -> str:
        """What a folder or file of this machine holds, hidden files aside, file by file `hashed`;
        of weights on the hub what the model's name does not tell: their own name, and the revision
        among the further options."""
        source = Path(self.weights or model)
        if source.is_file():
            return hashed(source)
        if source.is_dir():
            paths = sorted(path.relative_to(source) for path in source.rglob("*") if path.is_file())
            # What a download left of itself is in `.cache`.
            shown = [path for path in paths if not any(part[0] == "." for part in path.parts)]
            hashes = [hashed(source / path) for path in shown]
            return fingerprint([path.as_posix() for path in shown], *hashes)
        revision = (self.options.get("extra") or {}).get("revision")
        own_name = self.weights if self.weights != model else None
        return "@".join(str(part) for part in (own_name, revision) if part)


class LanguageModel:
    """`model` is its name at the server. `client` holds an adapter's own arguments; its `connect`
    is given the rest. `base_url` (None: the API's own, or a server that we start) is a server
    that runs already; `key_env` names the variable with its key, which a server of ours asks for
    too. `server` is None for an API.
    `content` is what its weights are where the name does not tell, empty until `read_weights`.
    `settings` (an attribute too, with what the client fills in) are how it samples;
    `context_window` in tokens is told to whoever budgets. Making one needs no key, no SDK and no
    server."""

    def __init__(
        self,
        *,
        model: str,
        client: ModelClient,
        base_url: str | None = None,
        key_env: str | None = None,
        settings: Settings | None = None,
        price: Price | None = None,
        server: ModelServer | None = None,
        context_window: int | None = None,
        concurrency: int = 64,
    ) -> None:
        self.name = model
        self.content = ""
        self.price = price or UNKNOWN
        self.context_window = context_window
        self._server = server
        if not callable(getattr(client, "connect", None)) or isinstance(client, type):
            raise InputError(
                f"the client of the language model {model} is {client!r}",
                valid="an object with connect(model, base_url, key_env, settings, concurrency)",
                do="name its class as client._target_, without _partial_",
            )
        self._client = client
        self._key = Key(key_env)
        self._given = base_url is not None
        chosen = settings or Settings()
        self._sampling = chosen
        self._concurrency = concurrency
        # Connected here, so that wrong arguments are told before anything is started.
        self._connected = self._connect(base_url)
        # A client may fill in what its API demands, such as a maximum of output.
        self.settings: Settings = getattr(self._connected, "settings", chosen)
        if server and not self._given:
            server.check(model)

    @property
    def gives_logprobs(self) -> bool:
        """Whether its client can ask for log-probabilities; a server may still give none."""
        return bool(getattr(self._connected, "gives_logprobs", True))

    def read_weights(self, record: Path | None) -> None:
        """Have a server of ours tell what its weights are where the name does not: local files are
        hashed, and their hashes kept in `record` (None: nowhere). `InputError` where they cannot be
        read."""
        weights_content = getattr(self._server, "weights_content", None)
        if weights_content is None or self._given:
            return
        try:
            self.content = weights_content(self.name, partial(recorded_fingerprint, record=record))
        except OSError as error:
            raise InputError(
                f"the weights of {self.name} cannot be read: {error}", do="check the path"
            ) from error

    @contextmanager
    def running(self, log: Path, servers: Servers | None = None) -> Iterator[ChatModel]:
        """The model, ready to be asked for as long as the block; a server of our own writes to
        `log`. Close the model before the block ends. Errors of `ready` and of `serving`.

        `servers` are those of ours that run already: several models of one configuration (an
        agent's and a rewriter's, say), and several runs, share them. A server that is started joins
        them, and ends with them. Without any, it ends with the block.
        """
        self._connected.ready()
        if self._server is None or self._given:
            yield self._connected
            return
        if servers is None:
            with Servers() as own, self.running(log, own) as model:
                yield model
            return
        server = self._server
        environment = {**server.environment, **self._server_key(server)}
        # A server that works for several runs has one log, which is sealed or is not.
        command = server.command(self.name, 0)
        started_with = fingerprint(command, environment, is_sealed(log), self.content)
        start = partial(
            serving,
            lambda port: server.command(self.name, port),
            log=log,
            start_seconds=server.start_seconds,
            environment=environment,
            advice=server.advice,
            name=server.name,
        )
        with servers.using(started_with, start) as address:
            yield self._connect(f"{address}/v1")

    def _connect(self, base_url: str | None) -> ChatModel:
        return self._client.connect(
            model=self.name,
            base_url=base_url,
            key_env=self._key.variable,
            settings=self._sampling,
            concurrency=self._concurrency,
        )

    def _server_key(self, server: ModelServer) -> dict[str, str]:
        """The key that our server asks for, where it asks for one, is the one that we send: by
        the environment, because every user of the machine sees command lines."""
        key = self._key.value(f"the server of {self.name}")
        return {server.key_variable: key} if key else {}
