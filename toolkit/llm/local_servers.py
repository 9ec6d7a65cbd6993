"""Local servers of vLLM and llama.cpp: their weights and their command lines."""

from __future__ import annotations

import glob
import json
import math
import re
import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

from soundingline.toolkit.errors import InputError
from soundingline.toolkit.files import fingerprint
from soundingline.toolkit.llm.server import HOST
from soundingline.toolkit.optional import check_optional, hub_file, is_hub_name
from soundingline.toolkit.redaction import find_secrets

SERVE = ("vllm", "serve")
SERVER_KEY = "VLLM_API_KEY"  # the variable from which vLLM reads the key that it requires


def option_words(name: str, value: Any) -> list[str]:
    """The words of one option: True is a flag, False its `no-` form, None nothing; lists and
    objects are written as JSON."""
    name = name.replace("_", "-")
    if value is None:
        return []
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    return [f"--{name}", text]


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
    environment: Mapping[str, str] = field(default_factory=dict)
    start_seconds: float = 1800.0
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
    launcher: Sequence[str] = SERVE
    options: Mapping[str, Any] = field(default_factory=dict)

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
        for name in ("tensor_parallel_size", "data_parallel_size"):
            if (value := chosen.get(name)) is not None and value < 1:
                raise InputError(f"vLLM's {name} is {value}", valid="1 or more devices")
        share = chosen.get("gpu_memory_utilization")
        if share is not None and not 0 < share <= 1:
            raise InputError(
                f"vLLM's gpu_memory_utilization is {share}", valid="a share above 0, at most 1"
            )
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
        words = (word for pair in options.items() for word in option_words(*pair))
        return [*self.launcher, *named, *words]

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

    gguf: str | None = None
    file: str | None = None
    launcher: Sequence[str] | None = None
    context_length: int = 8192
    parallel: int = 1
    threads: int | None = None
    gpu_layers: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    start_seconds: float = 600.0

    name = "llama.cpp"
    key_variable = "LLAMA_API_KEY"
    installed_by = "llamacpp"

    def check(self, model: str) -> None:
        numbers = {name: getattr(self, name) for name in ("context_length", "parallel", "threads")}
        for name, value in numbers.items():
            if value is not None and value < 1:
                raise InputError(f"llama.cpp's {name} is {value}", valid="1 or more")
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
        self._command(model, self.gguf or "", 0, self.launcher or [PROGRAM])

    def command(self, model: str, port: int) -> list[str]:
        weights = self._gguf() if self.gguf else hub_file(model, str(self.file))
        launcher = self.launcher
        if launcher is None and shutil.which(PROGRAM):
            launcher = [PROGRAM]
        elif launcher is None:
            check_optional("xllamacpp")
            launcher = [sys.executable, str(_EMBEDDED)]
        return self._command(model, str(weights), port, launcher)

    def weights_files(self) -> list[Path]:
        """The file `gguf`, or all parts if it is one of several; `InputError` if it is absent."""
        path = self._gguf()
        return sorted(path.parent.glob(_PART.sub("-?????-of-", glob.escape(path.name))))

    def weights_fingerprint(self, model: str, hashed: Callable[[Path], str]) -> str:
        """Of local files what they hold; of the hub the name of the file, because a repository has
        one for each precision."""
        if not self.gguf:
            return str(self.file)
        return fingerprint(*map(hashed, self.weights_files()))

    def _command(self, model: str, weights: str, port: int, launcher: Sequence[str]) -> list[str]:
        options: dict[str, Any] = {
            "model": weights,
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
        check_secrets(options, launcher, self.name, self.key_variable)
        return [*launcher, *(word for pair in options.items() for word in option_words(*pair))]

    def _gguf(self) -> Path:
        path = Path(str(self.gguf)).expanduser().resolve()
        if not path.is_file():
            raise InputError(
                f"there is no file {self.gguf}",
                do="give the path of a GGUF file: llm.server.gguf=... (see docs/models.md)",
            )
        return path
