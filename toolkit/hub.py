"""Files of the Hugging Face hub, by name; once fetched they are found without a network."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from toolkit.errors import InputError
from toolkit.extras import require

_NAME = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)


def is_hub_name(text: str) -> bool:
    """Whether a text can be the name of a repository, `owner/name`; so can be a relative path."""
    return bool(_NAME.fullmatch(text)) and not text.startswith(".")


def hub_file(name: str, file: str, revision: str | None = None) -> Path:
    """One file of a model's repository; `InputError` where it cannot be had."""
    hub = require("huggingface_hub")
    with _reaching(f"{file} of {name}"):
        return Path(hub.hf_hub_download(name, file, revision=revision))


def hub_dataset(name: str, patterns: Sequence[str], revision: str | None = None) -> Path:
    """The folder with those files of a data set's repository that match `patterns`; `InputError`
    where they cannot be had."""
    hub = require("huggingface_hub")
    with _reaching(f"the data set {name}"):
        folder = hub.snapshot_download(
            name, repo_type="dataset", revision=revision, allow_patterns=list(patterns)
        )
    return Path(folder)


@contextmanager
def _reaching(what: str) -> Iterator[None]:
    errors = require("huggingface_hub.errors")
    try:
        yield
    except (OSError, ValueError, errors.HfHubHTTPError) as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise InputError(
            f"{what} cannot be had from the Hugging Face hub: {reason}",
            do="check the name and the network, or give the path of a local copy",
        ) from error
