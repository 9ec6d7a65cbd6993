"""Names that are imported when they are first used, packages that an extra installs, and files of
the Hugging Face hub."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, url2pathname

from soundingline.toolkit.errors import InputError, did_you_mean

_MODELS = ("torch", "transformers", "safetensors", "huggingface_hub")
# The extras whose packages have other names than the extra. Of several extras that install a
# package, the first is named, unless a stage has its own.
_EXTRAS = {
    "browsecomp": ("pyarrow", "huggingface_hub"),
    "rerank": (*_MODELS, "peft", "pyterrier_t5"),
    "learned": (*_MODELS, "sentence_transformers"),
    "enrich": ("sklearn", "snowballstemmer"),
    "llamacpp": ("xllamacpp",),
    "inspect": ("zstandard", "inspect_ai"),
    "serve": ("fastapi", "uvicorn", "mcp"),
    "llm": ("httpx2",),
    "launchers": ("submitit",),
    "opensearch": ("opensearchpy",),
    "pisa": ("pyterrier_pisa",),
}


def lazy_names(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package that imports its public names when they are first
    used, so that importing the package loads no model library.

    Args:
        package: the name of the package.
        homes: public name -> the module below the package that has it (with a dot in front: below
            the package above); empty for a module of that name itself.
    """

    def get(name: str) -> Any:
        if name not in homes:
            what = f"module {package!r} has no attribute {name!r}"
            meant = did_you_mean(name, homes)
            # With `name` alone, Python adds no suggestion of its own.
            raise AttributeError(f"{what}; {meant}" if meant else what, name=name)
        module = import_module(f".{homes[name] or name}", package)
        return getattr(module, name) if homes[name] else module

    return get, lambda: sorted(homes)


class PackageMissing(InputError):
    """An optional package is not installed.

    Args:
        package: its name.
        extra: the extra to name, if it installs the package.
    """

    def __init__(self, package: str, extra: str = "") -> None:
        extras = [name for name, packages in _EXTRAS.items() if package in packages] or [package]
        do = install_command(extra if extra in extras else extras[0])
        super().__init__(f"the package {package} is not installed", do=do)
        self.package = package


def check_optional(package: str) -> None:
    """Raise `PackageMissing` if an optional package is not installed. Nothing is imported, which
    takes seconds for some packages."""
    if find_spec(package) is None:
        raise PackageMissing(package)


def install_command(extra: str) -> str:
    """The command that installs an extra: from this checkout, or from the file that pip installed;
    by the distribution's name only if pip had it from an index."""
    checkout = Path(__file__).resolve().parents[1]
    if (checkout / "pyproject.toml").is_file():
        source = "." if checkout == Path.cwd().resolve() else str(checkout)
        return f"pip install -e '{source}[{extra}]'"
    try:
        # https://packaging.python.org/en/latest/specifications/direct-url/
        origin = json.loads(distribution("soundingline").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        origin = {}
    address = urlsplit(origin.get("url", ""))
    source = url2pathname(address.path) if address.scheme == "file" else "soundingline"
    return f"pip install '{source}[{extra}]'"


def import_optional(module: str) -> Any:
    """Import a module of an optional package; `InputError` if the package is not installed."""
    check_optional(module.partition(".")[0])
    return import_module(module)


def is_hub_name(text: str) -> bool:
    """Whether a text can be the name of a repository, `owner/name`; a relative path can be too."""
    return bool(re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", text, re.ASCII))


def hub_file(name: str, file: str) -> Path:
    """One file of a model's repository; `InputError` if it cannot be downloaded."""
    hub = import_optional("huggingface_hub")
    with _reaching(f"{file} of {name}"):
        return Path(hub.hf_hub_download(name, file))


def hub_dataset(name: str, patterns: Sequence[str], revision: str | None = None) -> Path:
    """A folder with the files of a data set's repository that match `patterns`; `InputError` if
    they cannot be downloaded."""
    hub = import_optional("huggingface_hub")
    with _reaching(f"the data set {name}"):
        folder = hub.snapshot_download(
            name, repo_type="dataset", revision=revision, allow_patterns=list(patterns)
        )
    return Path(folder)


@contextmanager
def _reaching(what: str) -> Iterator[None]:
    errors = import_optional("huggingface_hub.errors")
    with without_absent_hub() as fault:
        try:
            yield
        except (OSError, ValueError, errors.HfHubHTTPError) as error:
            reason = fault or str(error).strip().partition("\n")[0] or type(error).__name__
            refusal = InputError(
                f"{what} cannot be downloaded from the Hugging Face hub: {reason}",
                do="check the name and the network, or give the path of a local copy",
            )
            refusal.shared_cause = fault
            raise refusal from error


@contextmanager
def without_absent_hub() -> Iterator[str]:
    """A block in which the hub's client reads its cache only, if the name of the hub's host cannot
    be resolved; it would try for half a minute otherwise. Yields `no connection to <host>` then,
    else an empty string."""
    constants = import_optional("huggingface_hub.constants")
    host = urlsplit(constants.ENDPOINT).hostname
    proxied = not {"https", "all"}.isdisjoint(getproxies())
    if constants.HF_HUB_OFFLINE or proxied or _is_known(host, time.monotonic() // 60):
        yield ""
        return
    constants.HF_HUB_OFFLINE = True
    try:
        yield f"no connection to {host}"
    finally:
        constants.HF_HUB_OFFLINE = False


@lru_cache(maxsize=1)
def _is_known(host: str, minute: float) -> bool:
    """Whether a host's name is resolved; asked once a minute, as an answer may take seconds."""
    try:
        socket.getaddrinfo(host, 443)
    except OSError:
        return False
    return True
