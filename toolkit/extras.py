"""Packages that the core install leaves out."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from toolkit.errors import InputError

_EXTRAS = {
    "torch": "rerank",
    "transformers": "rerank",
    "safetensors": "rerank",
    "peft": "rerank",
    "pyterrier_t5": "rerank",
    "sentence_transformers": "learned",
    "pyterrier_dr": "learned",
    "npids": "learned",
    "pyterrier_alpha": "learned",
    "sklearn": "enrich",
    "snowballstemmer": "enrich",
    "re2": "grep",
    "pyarrow": "browsecomp",
    "huggingface_hub": "browsecomp",
    "tokenizers": "tokenizers",
    "xllamacpp": "llamacpp",
    "zstandard": "inspect",
    "inspect_ai": "inspect",
    "starlette": "serve",
    "uvicorn": "serve",
    "mcp": "serve",
}


def check_installed(package: str) -> None:
    """The `InputError` of `require`, without importing anything: some of these take seconds."""
    if find_spec(package) is None:
        raise _missing(package)


def require(module: str) -> Any:
    """The module, imported; `InputError` that names the extra which installs it."""
    package = module.partition(".")[0]
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise _missing(package) from None


def _missing(package: str) -> InputError:
    return InputError(
        f"the package {package} is not installed",
        do=f"pip install 'soundingline[{_EXTRAS[package]}]'",
    )
