"""Hydra composes a choice of options once a worker.

A command composes its configuration several times, and most tests choose the same options; a
composition takes 0.12 s, which was a third of the suite. Two things are kept, as Hydra made them:

- what a file of options holds, as long as the file is not written again;
- the configuration of the options that are chosen, before Hydra sets the single values of a command
  line in it. Only for the options of `conf`: a test may change those of its own folders.

Two more are not made where nobody reads them: copies of every registered schema, and what the
options in a list of defaults may refer to, which Hydra makes for each file.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hydra._internal import config_loader_impl, defaults_list
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository, ConfigRepository
from hydra._internal.defaults_list import DefaultsList
from hydra.core.default_element import InputDefault
from hydra.core.object_type import ObjectType
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


class _FileKey(NamedTuple):
    provider: str
    path: str
    modified: int = 0
    size: int = 0


# Pickled, because that copies eight times as fast as `deepcopy`.
_FILES: dict[_FileKey, bytes] = {}
_LISTS: dict[_Key, DefaultsList] = {}
_COMPOSED: dict[int, bytes] = {}  # by the identity of the defaults in a list of `_LISTS`


def install() -> None:
    """Keep what Hydra composes from here on."""
    if ConfigLoaderImpl._compose_config_from_defaults_list is not _keeping_config:
        config_loader_impl.create_defaults_list = _keeping_list
        ConfigLoaderImpl._compose_config_from_defaults_list = _keeping_config  # type: ignore[method-assign]
        # Not those of the sources: Hydra executes the modules of its plugins once more.
        ConfigRepository.load_config = _keeping_file  # type: ignore[method-assign]
        CachingConfigRepository.__init__ = _sharing_sources  # type: ignore[method-assign]
        defaults_list._create_interpolation_map = _map_for_references


_list = config_loader_impl.create_defaults_list
_config = ConfigLoaderImpl._compose_config_from_defaults_list
_file = ConfigRepository.load_config
_map = defaults_list._create_interpolation_map


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


def _keeping_file(repository: ConfigRepository, config_path: str) -> ConfigResult | None:
    source = repository._find_object_source(config_path, ObjectType.CONFIG)
    if source is None or source.scheme() not in ("file", "pkg"):
        return _file(repository, config_path)
    name = source._normalize_file_name(config_path)
    if source.scheme() == "pkg":  # of an installed package, which does not change
        key = _FileKey(source.provider, f"{source.path}/{name}")
    else:
        path = Path(source.path, name)
        status = path.stat()
        key = _FileKey(source.provider, str(path), status.st_mtime_ns, status.st_size)
    if key not in _FILES:
        _FILES[key] = pickle.dumps(_file(repository, config_path))
    return pickle.loads(_FILES[key])  # type: ignore[no-any-return]


def _sharing_sources(repository: CachingConfigRepository, delegate: ConfigRepository) -> None:
    repository.delegate = copy.copy(delegate)  # whose list of sources is only ever replaced
    repository.cache = {}


def _map_for_references(overrides: Any, defaults: list[InputDefault], self_added: bool) -> Any:
    refers = any("${" in str(vars(item)) for item in defaults)
    return _map(overrides, defaults, self_added) if refers else None


def _sets_value(repo: Any, override: Override) -> bool:
    """Whether Hydra sets this in the composed configuration, rather than chooses an option."""
    if override.is_sweep_override():
        return False
    return isinstance(override.value(), dict) or not repo.group_exists(override.key_or_group)
