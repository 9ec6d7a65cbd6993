"""Checkpoints: what they are, whether they can be had, whether they fit.

`model` is a name on the Hugging Face hub or a folder; `revision` a branch, tag or commit of it.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from pickle import UnpicklingError
from types import SimpleNamespace
from typing import Any, NamedTuple

from toolkit.errors import InputError
from toolkit.extras import require
from toolkit.files import file_fingerprint, fingerprint

# What a change of a checkpoint shows in; notes and pictures beside it change no score.
_CONTENT = ("*.safetensors", "*.bin", "*.json", "*.model", "*.txt", "*.jinja")
# A checkpoint is data: code that it brings is not run (and nobody is asked whether to), and weights
# that were pickled are read by torch's reader of tensors alone.
NO_CODE: Mapping[str, Any] = {"trust_remote_code": False}
DATA_ONLY: Mapping[str, Any] = {**NO_CODE, "weights_only": True}
# Models whose positions begin behind that of padding, which is the padding's token number.
_COUNTED_FROM_PADDING = ("camembert", "mpnet", "roberta", "xlm-roberta", "xlm-roberta-xl")
_LIBRARIES = ("huggingface_hub", "transformers", "sentence_transformers", "peft")


def checkpoint_config(model: str, revision: str | None = None) -> Any:
    """The transformers configuration of a checkpoint; `InputError` where it cannot be had."""
    transformers = require("transformers")
    with opening(model):
        return transformers.AutoConfig.from_pretrained(model, revision=revision, **NO_CODE)


def stored_config(model: str, revision: str | None = None) -> SimpleNamespace:
    """What the config.json of a checkpoint says, without the defaults that transformers fills in
    and without importing it. `InputError` where it cannot be had."""
    with opening(model, files_only=True):
        values = json.loads(_file(model, "config.json", revision).read_text("utf-8"))
        if not isinstance(values, dict):
            raise ValueError("config.json holds no object")
    return SimpleNamespace(**values)


def stored_file(model: str, name: str, revision: str | None = None) -> Path | None:
    """A file of a checkpoint; None where it has none, and where there is no such checkpoint.
    `InputError` where that cannot be learned."""
    absent = require("huggingface_hub.errors").EntryNotFoundError
    with opening(model, files_only=True):
        try:
            path = _file(model, name, revision)
        except absent:
            return None
    return path if path.exists() else None


def _file(model: str, name: str, revision: str | None) -> Path:
    folder = Path(model)
    if folder.is_dir():
        return folder / name
    hub = require("huggingface_hub.file_download")
    return Path(hub.hf_hub_download(model, name, revision=revision))


def checkpoint_fingerprint(model: str, revision: str | None = None) -> str:
    """What the checkpoint is, for keys of indexes and caches: the commit of one from the hub, a
    hash over all files of a folder. Equal content, equal fingerprint; reads no weights into memory.
    """
    folder = Path(model)
    if folder.is_dir():
        files = sorted({path for pattern in _CONTENT for path in folder.rglob(pattern)})
        return _hashed(folder, tuple((path, *_state(path)) for path in files))
    with opening(model, files_only=True):
        path = _file(model, "config.json", revision)
    # <cache>/models--<name>/snapshots/<commit>/config.json
    return f"{model}@{path.parent.name}"


@contextmanager
def opening(model: str, *, files_only: bool = False) -> Iterator[None]:
    """Around whatever loads from a checkpoint: one clear line where it cannot be had, instead of
    what the libraries say beside it. Whether all weights are there is for the caller to check.
    With `files_only`, for what reads files and makes no model, transformers is not imported."""
    folder = Path(model)
    written_as_path = folder.is_absolute() or model.startswith((".", "~")) or model.count("/") > 1
    if written_as_path and not folder.is_dir():
        raise InputError(f"there is no folder '{model}' with a model", do="check the path")
    damaged = require("safetensors").SafetensorError
    try:
        with _quiet(_hub_bars() if files_only else _all_bars()):
            yield
    except (OSError, ValueError, UnpicklingError, damaged) as error:
        raise InputError(_cannot(model, folder, error), do=_how(model, folder)) from error


class _Bars(NamedTuple):
    """The progress bars of a library: whether they are on, and how to turn them off and on."""

    on: bool
    hide: Callable[[], None]
    show: Callable[[], None]


def _hub_bars() -> _Bars:
    hub = require("huggingface_hub.utils")
    on = not hub.are_progress_bars_disabled()
    return _Bars(on, hub.disable_progress_bars, hub.enable_progress_bars)


def _all_bars() -> _Bars:
    """Those of transformers, which turns off the hub's with its own."""
    bars = require("transformers.utils.logging")
    on = bars.is_progress_bar_enabled()
    return _Bars(on, bars.disable_progress_bar, bars.enable_progress_bar)


@contextmanager
def _quiet(bars: _Bars) -> Iterator[None]:
    """Without the libraries' talk (each try of a download, tables of weights, warnings of
    each other's) and, because they do not ask whether they write to a terminal, their bars."""
    hidden = not sys.stderr.isatty() and bars.on
    loggers = [logging.getLogger(name) for name in _LIBRARIES]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        if hidden:
            bars.hide()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        if hidden:
            bars.show()


def check_kind(config: Any, model: str, kinds: tuple[str, ...], what: str) -> None:
    """`InputError` where a checkpoint is of another architecture (`model_type`) than `what`
    needs."""
    kind = getattr(config, "model_type", None)
    if kind not in kinds:
        raise InputError(
            f"{what} was given '{model}', a model of the kind {kind}",
            valid=f"a checkpoint of the kind {' or '.join(kinds)}",
            do="choose a checkpoint that was trained for it",
        )


def positions(config: Any) -> int | None:
    """Tokens that a checkpoint reads at most; None where its positions are relative."""
    count: int | None = getattr(config, "max_position_embeddings", None)
    if count is not None and getattr(config, "model_type", None) in _COUNTED_FROM_PADDING:
        return count - (getattr(config, "pad_token_id", None) or 1) - 1
    return count


def check_length(config: Any, model: str, tokens: int, setting: str = "max_length") -> None:
    """`InputError` where a checkpoint has fewer positions than `tokens`; those whose positions are
    relative have no bound."""
    most = positions(config)
    if most is not None and tokens > most:
        raise InputError(
            f"{setting}={tokens} with '{model}'",
            valid=f"at most {most}, the positions of this model",
            do=f"set {setting}={most} or less",
        )


def weight_bytes(model: str, revision: str | None = None) -> int | None:
    """Bytes of a folder's weight files, or of those that the hub's cache holds; None where that is
    not known."""
    folder = Path(model)
    if not folder.is_dir():
        hub = require("huggingface_hub")
        config = hub.try_to_load_from_cache(model, "config.json", revision=revision)
        if not isinstance(config, str):
            return None
        folder = Path(config).parent
    weights = list(folder.glob("*.safetensors")) or list(folder.glob("*.bin"))
    return sum(path.stat().st_size for path in weights) or None


def check_memory(needed: int, device: Any, what: str) -> None:
    """`InputError` with the sizes where `device` has less free memory than `needed` bytes."""
    free = free_bytes(device)
    if needed > free:
        raise InputError(
            f"{what} needs {gigabytes(needed)} and {device} has {gigabytes(free)} free",
            do="choose a smaller model, dtype=bfloat16, or another device",
        )


def free_bytes(device: Any) -> int:
    """Memory that a model could take on the device; on a CPU at most what the process's control
    group (a container, a Slurm job) is allowed beyond what it uses."""
    if device.type == "cuda":
        return int(require("torch").cuda.mem_get_info(device)[0])
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
        known = dict(line.split(":", 1) for line in lines)
        free = int(known["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([free, *_group_limits()])


def _group_limits(
    root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> Iterator[int]:
    """Bytes left under the memory limit of each control group (version 2) that holds us."""
    try:
        (path,) = (row[3:].strip() for row in own.read_text().splitlines() if row.startswith("0::"))
    except (OSError, ValueError):
        return
    folder = root / path.lstrip("/")
    for group in (folder, *folder.parents):
        if not group.is_relative_to(root):
            return
        with suppress(OSError, ValueError, KeyError):
            # The limit is the word "max" where there is none. Cached files count as used and give
            # way.
            limit = int((group / "memory.max").read_text())
            used = int((group / "memory.current").read_text())
            statistics = dict(
                line.split() for line in (group / "memory.stat").read_text().splitlines()
            )
            yield max(0, limit - used + int(statistics["file"]))


@contextmanager
def within_memory(
    device: Any,
    what: str,
    do: str = "set fewer batch_tokens, dtype=bfloat16, or a smaller model",
) -> Iterator[None]:
    """Around a computation: an allocation that fails is told with `what` was computed, the memory
    that is free, and what to `do`."""
    torch = require("torch")
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        cpu = "DefaultCPUAllocator" in str(error)
        if not isinstance(error, (MemoryError, torch.OutOfMemoryError)) and not cpu:
            raise
        raise InputError(
            f"{what} does not fit into the memory of {device}, which has "
            f"{gigabytes(free_bytes(device))} free",
            do=do,
        ) from error


def gigabytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB"


def _state(path: Path) -> tuple[int, int, int]:
    known = path.stat()
    # A copy may keep size and time of the content, but not the time of its own change.
    return known.st_size, known.st_mtime_ns, known.st_ctime_ns


@lru_cache(maxsize=64)
def _hashed(folder: Path, states: tuple[tuple[Path, int, int, int], ...]) -> str:
    """The states are what a hash that was made before depends on."""
    files = [path for path, *_ in states]
    names = [path.relative_to(folder).as_posix() for path in files]
    return fingerprint(names, file_fingerprint(*files))


def _cannot(model: str, folder: Path, error: Exception) -> str:
    reason = str(error).strip().partition("\n")[0]
    where = "in that folder" if folder.is_dir() else "neither on this machine nor to be downloaded"
    return f"the model '{model}' cannot be loaded, {where} ({reason})"


def _how(model: str, folder: Path) -> str:
    if folder.is_dir():
        return "give a folder that save_pretrained has written"
    return (
        f"run `hf download {model}` on a machine with network, and copy it or its cache (HF_HOME) "
        "here; or give the path of a folder"
    )
