"""A local llama.cpp server: its weights, one GGUF file, and its command line."""

from __future__ import annotations

import glob
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolkit.errors import InputError
from toolkit.extras import check_installed
from toolkit.files import fingerprint
from toolkit.hub import hub_file, is_hub_name
from toolkit.llm.command import check_launcher, check_secrets, option_words
from toolkit.llm.server import HOST

PROGRAM = "llama-server"
_PART = re.compile(r"-\d{5}-of-")  # of weights in several files
_EMBEDDED = Path(__file__).with_name("llamacpp_server.py")


@dataclass(frozen=True)
class LlamaCppServer:
    """A local llama.cpp. The weights are the file `gguf`, or else `file` of the hub's repository
    that is the model's name, which is fetched when it is first needed.

    `launcher` is the program (None: `llama-server` where it is on the path, else the server in the
    package xllamacpp). `parallel` requests are worked on at once, each in a window of
    `context_length` tokens. `threads` of the processor (None: llama.cpp's choice, one a core);
    `gpu_layers` of the model on a GPU (None: as many as fit). `extra` maps further options of
    llama-server, without dashes, as in `command.serve_command`. `environment` is added to the
    server's; `start_seconds` is how long loading may take. `InputError` for impossible values.
    """

    gguf: str | None = None
    file: str | None = None
    launcher: Sequence[str] | None = None
    context_length: int = 8192
    parallel: int = 1
    threads: int | None = None
    gpu_layers: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    start_seconds: float = 600.0

    name = "llama.cpp"
    key_variable = "LLAMA_API_KEY"
    advice = "pip install 'soundingline[llamacpp]'"

    def check(self, model: str) -> None:
        """`InputError` for what cannot work. Reads no file and starts nothing."""
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
        """The command line that serves the weights as `model`. `InputError` where they, or what
        serves them, cannot be had."""
        return self._command(model, str(self._weights(model)), port, self._launcher())

    def weights_files(self) -> list[Path]:
        """The files that `gguf` names: it, or all of the parts that it is one of. `InputError`
        where there is none."""
        path = self._local()
        return sorted(path.parent.glob(_PART.sub("-?????-of-", glob.escape(path.name))))

    def weights_content(self, model: str, hashed: Callable[[Path], str]) -> str:
        """What the files that `gguf` names hold, each of them `hashed`; of the hub's the name of
        the file, because a repository has one for each precision."""
        if not self.gguf:
            return str(self.file)
        return fingerprint(*map(hashed, self.weights_files()))

    def _command(self, model: str, weights: str, port: int, launcher: Sequence[str]) -> list[str]:
        options: dict[str, Any] = {
            "model": weights,
            "alias": model,
            "host": HOST,
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

    def _weights(self, model: str) -> Path:
        if not self.gguf:
            return hub_file(model, str(self.file))
        return self._local()

    def _local(self) -> Path:
        path = Path(str(self.gguf)).expanduser().resolve()
        if not path.is_file():
            raise InputError(
                f"there is no file {self.gguf}",
                do="give the path of a GGUF file: llm.server.gguf=... (docs/language-models.md "
                "tells how to get one)",
            )
        return path

    def _launcher(self) -> Sequence[str]:
        if self.launcher is not None:
            return self.launcher
        if shutil.which(PROGRAM):
            return [PROGRAM]
        check_installed("xllamacpp")
        return [sys.executable, str(_EMBEDDED)]
