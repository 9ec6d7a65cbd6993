"""Local servers of vLLM and llama.cpp: their weights and command lines, and how they are started,
waited for, stopped and shared."""

from __future__ import annotations

import glob
import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import IO, Annotated, Any, ClassVar

from soundingline.toolkit.console import progress_bar
from soundingline.toolkit.errors import FileName, InputError, Runtime, RuntimeKeys, check_int
from soundingline.toolkit.files import fingerprint
from soundingline.toolkit.locks import open_own
from soundingline.toolkit.obfuscation import encrypt_lines, is_obfuscated, read_text
from soundingline.toolkit.optional import check_optional, hub_file, install_command, is_hub_name
from soundingline.toolkit.redaction import find_secrets

HOST = "127.0.0.1"
_GUARD = Path(__file__).with_name("process_guard.py")
_TAIL = 15
_SETTLE = 0.2  # seconds until the last lines of an obfuscated log are there to be quoted
_DRAIN = 5.0  # seconds for what an ended server has written last
SERVE = ("vllm", "serve")
SERVER_KEY = "VLLM_API_KEY"  # the variable from which vLLM reads the key that it requires


def option_words(options: Mapping[str, Any]) -> Iterator[str]:
    """The words of options: True is a flag, False its `no-` form, None nothing; lists and objects
    are written as JSON."""
    for name, value in options.items():
        name = name.replace("_", "-")
        if isinstance(value, bool):
            yield f"--{name}" if value else f"--no-{name}"
        elif value is not None:
            yield f"--{name}"
            yield value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def check_secrets(
    options: Mapping[str, Any], launcher: Sequence[str], server: str, variable: str
) -> None:
    """`InputError` if the command line of `server` would hold a secret; it reads the key that it
    requires from the environment variable `variable`."""
    words = (f"{option}={value}" for option, value in pairwise(launcher))
    named = [f"its option {name}" for name, _ in find_secrets(options)]
    named += ["its launcher" for _ in find_secrets([*launcher, *words])]
    if named:
        raise InputError(
            f"the command line of {server} would hold a secret ({named[0]})",
            do=f"export {variable}=... and set key_env={variable}, or HF_TOKEN for the hub: "
            "servers are handed them by their environment",
        )


def check_launcher(launcher: Sequence[str], example: str) -> None:
    """`InputError` if a launcher is not a list of words."""
    if not launcher or isinstance(launcher, str):
        raise InputError(f"launcher is {launcher!r}", valid=f"a list of words, such as {example}")


@dataclass(frozen=True, kw_only=True)
class LocalServer(ABC):
    """How a local model is served.

    Args:
        environment: Variables that are added to the environment of the server.
        start_seconds: How long loading may take.
        host: The address at which the server listens; 0.0.0.0 for other machines.

    Attributes:
        name: What messages call the server.
        key_variable: The environment variable from which the server reads the key that it requires.
        installed_by: The extra that installs the server.
        gpus: How many GPUs it occupies; 0 where that is unknown.
    """

    name: ClassVar[str]
    key_variable: ClassVar[str]
    installed_by: ClassVar[str]
    environment: Runtime[Mapping[str, str]] = field(default_factory=dict)
    start_seconds: Runtime[float] = 1800.0
    host: str = HOST

    @property
    def gpus(self) -> int:
        return 0

    @abstractmethod
    def check(self, model: str) -> None:
        """`InputError` for what cannot work. Reads no file and starts nothing."""

    @abstractmethod
    def weights_fingerprint(self, model: str, hashed: Callable[[Path], str]) -> str:
        """What identifies the weights where the name `model` does not; `hashed` hashes a file."""

    @abstractmethod
    def command(self, model: str, port: int) -> list[str]:
        """The command line that serves the weights as `model`.

        Raises:
            InputError: If a value is impossible, the weights or the server are absent, or the
                command line would hold a secret: every user of the machine can read it.
        """


# Options of vLLM that change how fast it answers, and not what.
_SPEED = RuntimeKeys(
    frozenset(
        {
            *("tensor_parallel_size", "data_parallel_size", "gpu_memory_utilization"),
            *("max_num_seqs", "enable_prefix_caching", "enable_prompt_tokens_details"),
        }
    )
)


@dataclass(frozen=True, kw_only=True)
class VllmServer(LocalServer):
    """A local vLLM server. vLLM is never imported.

    Args:
        weights: A folder, or a name on a hub. None: the name of the model.
        launcher: The words that start vLLM: `vllm serve`, or `python -m
            vllm.entrypoints.openai.api_server` where the distribution has another name.
        options: Options of `vllm serve` by their names there, with underscores or dashes, such as
            `tensor_parallel_size`. True is a flag, False its `no-` form, None leaves the option
            out; lists and objects are sent as JSON. `tool_call_parser` also turns on the automatic
            choice of tools.

    See `LocalServer` for the other arguments.
    """

    weights: str | None = None
    launcher: Runtime[Sequence[str]] = SERVE
    options: Annotated[Mapping[str, Any], _SPEED] = field(default_factory=dict)

    name = "vLLM"
    key_variable = SERVER_KEY
    installed_by = "vllm"

    @property
    def gpus(self) -> int:
        sizes = [self.options.get(f"{kind}_parallel_size") for kind in ("tensor", "data")]
        return math.prod(size or 1 for size in sizes)

    def check(self, model: str) -> None:
        self.command(model, 0)

    def command(self, model: str, port: int) -> list[str]:
        weights = self.weights or model
        if not weights or weights.startswith("-"):
            raise InputError(
                f"the model to serve is {weights!r}", valid="a name on a hub, or a folder"
            )
        check_launcher(self.launcher, "[vllm, serve]")
        chosen = {name.replace("-", "_"): value for name, value in self.options.items()}
        options = {
            "host": self.host,
            "port": port,
            "served_model_name": model if self.weights else None,
            "enable_auto_tool_choice": True if chosen.get("tool_call_parser") else None,
            **chosen,
        }
        check_secrets(options, self.launcher, self.name, self.key_variable)
        # `vllm serve` takes the model by place, the module by option.
        named = [weights] if self.launcher[-1] == "serve" else ["--model", weights]
        return [*self.launcher, *named, *option_words(options)]

    def weights_fingerprint(self, model: str, hashed: Callable[[Path], str]) -> str:
        """Of a folder or file of this machine what it holds, except hidden files; of weights on the
        hub their own name and the revision among the options."""
        source = Path(self.weights or model)
        if source.is_file():
            return hashed(source)
        if source.is_dir():
            paths = sorted(path.relative_to(source) for path in source.rglob("*") if path.is_file())
            # What a download left of itself is in `.cache`.
            shown = [path for path in paths if not any(part[0] == "." for part in path.parts)]
            hashes = [hashed(source / path) for path in shown]
            return fingerprint([path.as_posix() for path in shown], *hashes)
        revision = self.options.get("revision")
        own_name = self.weights if self.weights != model else None
        return "@".join(str(part) for part in (own_name, revision) if part)


PROGRAM = "llama-server"
_PART = re.compile(r"-\d{5}-of-")  # of weights in several files
_EMBEDDED = Path(__file__).with_name("llamacpp_server.py")


@dataclass(frozen=True, kw_only=True)
class LlamaCppServer(LocalServer):
    """A local llama.cpp server.

    Args:
        gguf: The file of the weights, or one of the files if there are several.
        file: The file of the weights in the hub's repository that the model's name names, which is
            downloaded when it is first needed. Used if `gguf` is None.
        launcher: The words that start the server. None: `llama-server` if it is on the path, else
            the server in the package xllamacpp.
        context_length: The window of each request in tokens.
        parallel: The number of requests that are served at once.
        threads: Threads of the processor. None: the choice of llama.cpp, one a core.
        gpu_layers: Layers of the model on a GPU. None: as many as fit.
        extra: Further options of llama-server, as the `options` of `VllmServer`.

    See `LocalServer` for the other arguments.
    """

    gguf: FileName[str | None] = None
    file: str | None = None
    launcher: Runtime[Sequence[str] | None] = None
    context_length: int = 8192
    parallel: Runtime[int] = 1
    threads: Runtime[int | None] = None
    gpu_layers: Runtime[int | None] = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    start_seconds: Runtime[float] = 600.0

    name = "llama.cpp"
    key_variable = "LLAMA_API_KEY"
    installed_by = "llamacpp"

    def check(self, model: str) -> None:
        check_int("llama.cpp's context_length", self.context_length)
        check_int("llama.cpp's parallel", self.parallel)
        if self.threads is not None:
            check_int("llama.cpp's threads", self.threads)
        if self.launcher is not None:
            check_launcher(self.launcher, f"[{PROGRAM}]")
        if not self.gguf and not (self.file and is_hub_name(model)):
            raise InputError(
                f"the weights of {model} are not named",
                valid="llm.server.gguf=<path of a GGUF file>, or llm.model=<owner/name on the hub> "
                "and llm.server.file=<file there>",
            )
        if self.gguf and not self.gguf.endswith(".gguf"):
            raise InputError(f"llm.server.gguf is {self.gguf!r}", valid="the path of a .gguf file")
        check_secrets(self.extra, self.launcher or (), self.name, self.key_variable)

    def command(self, model: str, port: int) -> list[str]:
        weights = self._gguf() if self.gguf else hub_file(model, str(self.file))
        launcher = self.launcher
        if launcher is None and shutil.which(PROGRAM):
            launcher = [PROGRAM]
        elif launcher is None:
            check_optional("xllamacpp")
            launcher = [sys.executable, str(_EMBEDDED)]
        options: dict[str, Any] = {
            "model": str(weights),
            "alias": model,
            "host": self.host,
            "port": port,
            # The server divides its whole context among the requests.
            "ctx-size": self.context_length * self.parallel,
            "parallel": self.parallel,
            "threads": self.threads,
            "gpu-layers": self.gpu_layers,
        }
        options.update({name.replace("_", "-"): value for name, value in self.extra.items()})
        return [*launcher, *option_words(options)]

    def weights_fingerprint(self, model: str, hashed: Callable[[Path], str]) -> str:
        """Of a local file, or of all its parts if there are several, what they hold; of the hub the
        name of the file, because a repository has one for each precision."""
        if not self.gguf:
            return str(self.file)
        path = self._gguf()
        parts = sorted(path.parent.glob(_PART.sub("-?????-of-", glob.escape(path.name))))
        return fingerprint(*map(hashed, parts))

    def _gguf(self) -> Path:
        path = Path(str(self.gguf)).expanduser().resolve()
        if not path.is_file():
            raise InputError(
                f"there is no file {self.gguf}",
                do="give the path of a GGUF file: llm.server.gguf=... (see docs/models.md)",
            )
        return path


@contextmanager
def serving(
    server: LocalServer, model: str, *, log: Path, key: str = "", grace: float = 20.0
) -> Iterator[str]:
    """Run a server of the model while the block runs. It also ends when this process is killed.

    Args:
        server: What is started.
        model: The name of the model.
        log: The file to whose end the output goes, obfuscated in an obfuscated folder
            (`soundingline.toolkit.obfuscation`).
        key: The key that requests must have; empty for none. The server reads it from its
            environment, because every user of the machine can read command lines.
        grace: Seconds between the request to end and the kill of the server's process group.

    Yields:
        The address, `http://127.0.0.1:<port>`.

    Raises:
        InputError: If the program is not installed, or the server is not ready in time. The message
            then has the last lines of the log.
    """
    with socket.socket() as probe:  # for a free port
        probe.bind((HOST, 0))
        port = probe.getsockname()[1]
    words, address = server.command(model, port), f"http://{HOST}:{port}"
    if shutil.which(words[0]) is None:
        raise InputError(
            f"the program {words[0]!r} is not installed here",
            do=f"install it ({install_command(server.installed_by)}), or set llm.base_url to a "
            "server that runs already",
        )
    keys = {server.key_variable: key} if key else {}
    with _output(log) as output:
        guard = subprocess.Popen(
            [sys.executable, "-I", str(_GUARD), str(grace), *words],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **server.environment, **keys},
            start_new_session=True,
        )
        try:
            _wait(guard, f"{address}/health", server.name, log, server.start_seconds)
            yield address
        finally:
            _stop(guard, grace)


@contextmanager
def _output(log: Path) -> Iterator[IO[bytes]]:
    """The file to which a server writes: the log, or a pipe whose lines are written to the log
    obfuscated."""
    with os.fdopen(open_own(log, append=True), "ab", buffering=0) as file:
        if not is_obfuscated(log):
            yield file
            return
        reading, writing = os.pipe()

        def copy() -> None:
            with os.fdopen(reading, "rb") as lines:
                for line in lines:
                    file.write(encrypt_lines(line))

        thread = threading.Thread(target=copy, name="obfuscation", daemon=True)
        thread.start()
        try:
            with os.fdopen(writing, "wb") as pipe:
                yield pipe
        finally:
            thread.join(_DRAIN)


def _wait(guard: subprocess.Popen[bytes], url: str, name: str, log: Path, seconds: float) -> None:
    """Wait until the server is healthy; `InputError` if it ends, or is not within `seconds`."""
    deadline = time.monotonic() + seconds
    pause = 0.02
    with progress_bar(transient=True) as progress:
        task = progress.add_task(f"starting {name}", total=None, note="")
        while not is_healthy(url):
            reason = ""
            if guard.poll() is not None:
                time.sleep(_SETTLE)
                reason = "ended before it was ready"
            elif time.monotonic() > deadline:
                reason = f"was not ready within {seconds:g} s"
            if reason:
                raise InputError(f"{name} {reason}. Its log ends: {tail(log)}", do=f"see {log}")
            progress.update(task, note=tail(log, 1)[:60])
            time.sleep(pause)
            pause = min(1.0, pause * 1.5)


def _stop(guard: subprocess.Popen[bytes], grace: float) -> None:
    """Closing its standard input ends the guard and its group; killing is for a guard that hangs.

    Waits even if Ctrl-C comes again, because the child is in another group and does not get it.
    """
    assert guard.stdin is not None
    with suppress(OSError):
        guard.stdin.close()
    try:
        guard.wait(grace + 5)
    finally:
        if guard.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(guard.pid, signal.SIGKILL)
            guard.wait()


class _Shared:
    """A server that several models may use, and how many use it now."""

    def __init__(self, block: AbstractContextManager[str]) -> None:
        self.users = 0
        self.stack = ExitStack()
        self.address = self.stack.enter_context(block)


class Servers:
    """Servers that this process has started, by what they were started with.

    A server is started when it is first needed and shared by all models that need the same. It runs
    until `close`, until the end of the block, or until another one has to be started while this one
    is unused, because a machine may have room for only one.
    """

    def __init__(self) -> None:
        self._running: dict[str, _Shared] = {}

    def __enter__(self) -> Servers:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @contextmanager
    def using(self, key: str, start: Callable[[], AbstractContextManager[str]]) -> Iterator[str]:
        """The address of the server `key`, for the block. `start` (such as `serving`) starts it if
        it does not run or does not answer; errors are those of `start`."""
        server = self._running.get(key)
        if server is None or not is_healthy(f"{server.address}/health"):
            self._end(name for name, other in self._running.items() if not other.users)
            server = self._running[key] = _Shared(start())
        server.users += 1
        try:
            yield server.address
        finally:
            server.users -= 1

    def close(self) -> None:
        """End all servers."""
        self._end(self._running)

    def _end(self, keys: Iterable[str]) -> None:
        for key in list(keys):
            self._running.pop(key).stack.close()


def is_healthy(url: str) -> bool:
    """Whether an address answers with status 200."""
    # No proxies: the environment's are not for this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=5) as answer:
            return int(answer.status) == 200
    except (urllib.error.URLError, OSError, ValueError):
        return False


def tail(log: Path, lines: int = _TAIL) -> str:
    """The last lines of a log, joined by ` | `."""
    text = read_text(log, errors="replace")
    last_lines = deque((line.strip() for line in text.splitlines() if line.strip()), maxlen=lines)
    return " | ".join(last_lines)
