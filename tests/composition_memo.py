"""Hydra composes a choice of options once a worker.

A command composes its configuration several times, and most tests choose the same options; a
composition takes 0.12 s, which was a third of the suite. Two things are kept, as Hydra made them:

- what a file of options holds, as long as the file is not written again;
- the configuration of the options that are chosen, before Hydra sets the single values of a command
  line in it. Only for the options of `conf`: a test may change those of its own folders.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hydra._internal import config_loader_impl
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra._internal.defaults_list import DefaultsList
from hydra.core.override_parser.types import Override
from hydra.errors import ConfigCompositionException
from hydra.plugins.config_source import ConfigResult
from omegaconf import DictConfig

_TESTS = Path(__file__).resolve().parent
_OURS = {str(_TESTS.parent / "conf"), str(_TESTS / "experiments" / "options"), "hydra.conf", ""}


class _Key(NamedTuple):
    config_name: str | None
    choices: tuple[str, ...]
    sources: tuple[str, ...]


# Pickled, because that copies eight times as fast as `deepcopy`.
_FILES: dict[tuple[str, str, int, int], bytes] = {}
_LISTS: dict[_Key, DefaultsList] = {}
_COMPOSED: dict[int, bytes] = {}  # by the identity of the defaults in a list of `_LISTS`


def install() -> None:
    """Keep what Hydra composes from here on."""
    if ConfigLoaderImpl._compose_config_from_defaults_list is not _keeping_config:
        config_loader_impl.create_defaults_list = _keeping_list
        ConfigLoaderImpl._compose_config_from_defaults_list = _keeping_config  # type: ignore[method-assign]
        FileConfigSource.load_config = _keeping_file  # type: ignore[method-assign]


_list = config_loader_impl.create_defaults_list
_config = ConfigLoaderImpl._compose_config_from_defaults_list
_file = FileConfigSource.load_config


def _keeping_list(
    repo: Any,
    config_name: str | None,
    overrides_list: Sequence[Override],
    prepend_hydra: bool,
    skip_missing: bool,
) -> DefaultsList:
    overrides = list(overrides_list)
    sources = tuple(source.path for source in repo.get_sources())
    if not set(sources) <= _OURS:
        return _list(repo, config_name, overrides, prepend_hydra, skip_missing)
    values = [item for item in overrides if _sets_value(repo, item)]
    choices = tuple(str(item.input_line) for item in overrides if item not in values)
    key = _Key(config_name, choices, sources)
    if key not in _LISTS:
        try:
            # What is composed where nothing may be missing is the same where something may be.
            _LISTS[key] = _list(repo, config_name, overrides, prepend_hydra, skip_missing=False)
        except ConfigCompositionException:
            return _list(repo, config_name, overrides, prepend_hydra, skip_missing)
    held = _LISTS[key]
    return DefaultsList(held.defaults, held.defaults_tree, values, held.overrides)


def _keeping_config(loader: ConfigLoaderImpl, defaults: Any, repo: Any) -> DictConfig:
    if not any(defaults is held.defaults for held in _LISTS.values()):
        return _config(loader, defaults, repo)
    if id(defaults) not in _COMPOSED:
        _COMPOSED[id(defaults)] = pickle.dumps(_config(loader, defaults, repo))
    return pickle.loads(_COMPOSED[id(defaults)])  # type: ignore[no-any-return]


def _keeping_file(source: FileConfigSource, config_path: str) -> ConfigResult:
    path = Path(source.path, source._normalize_file_name(config_path))
    try:
        status = path.stat()
    except OSError:
        return _file(source, config_path)
    key = (source.provider, str(path), status.st_mtime_ns, status.st_size)
    if key not in _FILES:
        _FILES[key] = pickle.dumps(_file(source, config_path))
    return pickle.loads(_FILES[key])  # type: ignore[no-any-return]


def _sets_value(repo: Any, override: Override) -> bool:
    """Whether Hydra sets this in the composed configuration, rather than chooses an option."""
    if override.is_sweep_override():
        return False
    return isinstance(override.value(), dict) or not repo.group_exists(override.key_or_group)
