"""The benchmark of a recorded run, made again from an option of this installation.

A run folder is data that somebody may have sent: nothing that its manifest names is imported or
called. What the run adds to an option of `conf/benchmark/` (or of one's own `--config-dir`) are
plain values, and the benchmark's fingerprint must come out as recorded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from hydra.errors import InstantiationException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from soundingline.experiments.build import make
from soundingline.experiments.config import Settings, key_of, merged, plain_values
from soundingline.toolkit.benchmarks.benchmark import Benchmark
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.redaction import REDACTED
from soundingline.toolkit.runs import RunFolder

GROUP = "benchmark"
_OPTION = re.compile(r"\w[\w.+-]*(/\w[\w.+-]*)*")
_SHOWN = 80  # characters of a recorded value in a message


def recorded_option(settings: Settings) -> dict[str, Any]:
    """What a manifest keeps of the benchmark: the name of the `option`, and its resolved values as
    plain `arguments`. What the option makes of other settings (`${paths.data}/cacm`) is left out,
    so that another machine evaluates the run with its own; but not where the command line changed
    it."""
    changed = set(map(key_of, settings.overrides))
    moved = any(key.startswith("paths.") for key in changed)
    derived = {
        key
        for key, value in settings.benchmark.items()
        if isinstance(value, str) and "${" in value
        if not moved and f"{GROUP}.{key}" not in changed
    }
    values = plain_values(settings.config[GROUP])
    arguments = {key: value for key, value in values.items() if key not in derived}
    return {"option": settings.choices[GROUP], "arguments": _without_instructions(arguments)}


def names_benchmark(settings: Settings) -> bool:
    """Whether the command line names a benchmark."""
    return any(key_of(item).partition(".")[0] == GROUP for item in settings.overrides)


def recorded_benchmark(folder: RunFolder, settings: Settings) -> Benchmark:
    """The benchmark that a run was made on: that of `settings` if the command line names one, else
    the recorded option of this installation with the recorded arguments.

    `InputError` if the manifest holds anything but plain arguments, if there is no such option, and
    if the content is not what it was when the run was made.
    """
    manifest = folder.manifest()
    try:
        option = (
            settings.config[GROUP] if names_benchmark(settings) else _recorded(manifest, settings)
        )
        benchmark: Benchmark = make(option)
        fingerprint = benchmark.fingerprint
    except (InputError, InstantiationException, OmegaConfBaseException) as error:
        raise InputError(
            f"the benchmark of {folder.path} cannot be made again: {error}",
            do=f"name it on the command line: {GROUP}=... with its arguments",
        ) from error
    recorded = _mapping(manifest.get("fingerprints")).get(GROUP)
    if fingerprint != recorded:
        raise InputError(
            f"the benchmark of {folder.path} has changed: it was {str(recorded)[:_SHOWN]} when the "
            f"run was made and is {fingerprint} now",
            do=f"restore its files, name them with {GROUP}=..., or run again under another name=",
        )
    return benchmark


def _recorded(manifest: Mapping[str, Any], settings: Settings) -> DictConfig:
    described = _mapping(manifest.get(GROUP))
    name, arguments = described.get("option"), described.get("arguments")
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise InputError("its manifest names no option with its arguments")
    _check_plain(arguments, "")
    # A masked secret replaces nothing: the option here has its own.
    option = _option(name, settings)
    values = merged(option, arguments, lambda value: isinstance(value, str) and REDACTED in value)
    return OmegaConf.create({GROUP: values})[GROUP]  # a group, for the names in messages


def _option(name: str, settings: Settings) -> dict[str, Any]:
    """The resolved values of the option of this installation with that name."""
    folder, _, last = name.rpartition("/")
    if not _OPTION.fullmatch(name) or last not in settings.option_names(
        f"{GROUP}/{folder}".rstrip("/")
    ):
        raise InputError(
            f"there is no option {GROUP}={name[:_SHOWN]!r} here",
            valid=", ".join(settings.option_names(GROUP)),
            do="name the folder of your own options with --config-dir",
        )
    return settings.option(GROUP, name)


def _mapping(value: Any) -> dict[str, Any]:
    """A copy; empty for anything but an object of JSON."""
    return dict(value) if isinstance(value, dict) else {}


def _check_plain(value: Any, argument: str) -> None:
    """`InputError` for what could be more than a value: keys that Hydra reads as instructions, and
    interpolations."""
    if isinstance(value, str) and "${" in value:
        raise InputError(
            f"its argument {argument[:_SHOWN]} is {value[:_SHOWN]!r}", valid="text without ${...}"
        )
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key.startswith("_"):
                raise InputError(
                    f"its arguments have the key {key[:_SHOWN]!r}",
                    valid="keys that do not begin with an underscore",
                )
            _check_plain(inner, f"{argument}.{key}".lstrip("."))
    elif isinstance(value, list):
        for inner in value:
            _check_plain(inner, argument)


def _without_instructions(value: Any) -> Any:
    """Without the keys that Hydra reads as instructions, at any depth."""
    if isinstance(value, Mapping):
        plain = {key: inner for key, inner in value.items() if not str(key).startswith("_")}
        return {key: _without_instructions(inner) for key, inner in plain.items()}
    if isinstance(value, list):
        return [_without_instructions(inner) for inner in value]
    return value
