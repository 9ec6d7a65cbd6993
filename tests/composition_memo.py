"""Hydra composes a choice of options once for the whole suite.

A command composes its configuration several times, and most tests choose the same options; a
composition takes 0.12 s, which was a third of the suite. These are kept, as Hydra made them:

- what a file of options holds, as long as the file is not written again;
- the configuration of the options that are chosen, before Hydra sets the single values of a command
  line in it, in a folder that all workers and their commands share (`share`). Only for the options
  of `conf`: a test may change those of its own folders;
- what Hydra's own options, which come first, have merged to;
- the settings of chosen options alone, which the name of each cell is compared with;
- what Hydra composes to learn its mode, for the composition of the same overrides that follows.

Two more are not made where nobody reads them: copies of every registered schema, and what the
options in a list of defaults may refer to, which Hydra makes for each file.
"""

from __future__ import annotations

import copy
import hashlib
import os
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from hydra._internal import config_loader_impl, defaults_list
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository, ConfigRepository
from hydra._internal.defaults_list import DefaultsList
from hydra.core.default_element import InputDefault, ResultDefault
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import ConfigCompositionException
from hydra.plugins.config_source import ConfigResult
from hydra.types import RunMode
from omegaconf import DictConfig

from experiments.settings import Settings, is_choice

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


class _ForMode(NamedTuple):
    """What Hydra composed to learn its mode, and of what."""

    loader: ConfigLoaderImpl
    config_name: str | None
    overrides: tuple[str, ...]
    config: DictConfig


@dataclass
class _Merged(ResultDefault):
    """Stands for the options of a list of defaults that have been merged already."""

    config: bytes = b""


_FOLDER = "SOUNDINGLINE_TEST_COMPOSITIONS"
# Pickled, because that copies eight times as fast as `deepcopy`.
_FILES: dict[_FileKey, bytes] = {}
_LISTS: dict[_Key, DefaultsList] = {}
_COMPOSED: dict[_Key, bytes] = {}
_HYDRAS: dict[tuple[tuple[str, str], ...], bytes] = {}
_SETTINGS: dict[tuple[tuple[str, ...], tuple[tuple[str, str], ...]], Settings] = {}
_for_mode: _ForMode | None = None


def share(folder: Path) -> None:
    """Keep what is composed in `folder` too, for other workers and for commands that tests start.
    A folder serves one run of the suite, in which no option of `conf` changes."""
    folder.mkdir(exist_ok=True)
    os.environ[_FOLDER] = str(folder)


def install() -> None:
    """Keep what Hydra composes from here on."""
    if ConfigLoaderImpl._compose_config_from_defaults_list is not _keeping_config:
        config_loader_impl.create_defaults_list = _keeping_list
        ConfigLoaderImpl._compose_config_from_defaults_list = _keeping_config  # type: ignore[method-assign]
        ConfigLoaderImpl._load_single_config = _loading  # type: ignore[method-assign]
        ConfigLoaderImpl._load_configuration_impl = _keeping_for_mode  # type: ignore[method-assign]
        # Not those of the sources: Hydra executes the modules of its plugins once more.
        ConfigRepository.load_config = _keeping_file  # type: ignore[method-assign]
        CachingConfigRepository.__init__ = _sharing_sources  # type: ignore[method-assign]
        defaults_list._create_interpolation_map = _map_for_references
        Settings.chosen_only = cached_property(_keeping_chosen)
        Settings.chosen_only.__set_name__(Settings, "chosen_only")


_list = config_loader_impl.create_defaults_list
_config = ConfigLoaderImpl._compose_config_from_defaults_list
_single = ConfigLoaderImpl._load_single_config
_configuration = ConfigLoaderImpl._load_configuration_impl
_file = ConfigRepository.load_config
_map = defaults_list._create_interpolation_map
_chosen: Any = Settings.chosen_only.func


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
        shared = _shared(key, "list")
        if shared is not None and shared.exists():
            _LISTS[key] = pickle.loads(shared.read_bytes())
        else:
            try:
                # What is composed where nothing may be missing is the same where something may be.
                _LISTS[key] = _list(repo, config_name, overrides, prepend_hydra, skip_missing=False)
            except ConfigCompositionException:
                return _list(repo, config_name, overrides, prepend_hydra, skip_missing)
            _write(shared, pickle.dumps(_LISTS[key]))
    held = _LISTS[key]
    return DefaultsList(held.defaults, held.defaults_tree, values, held.overrides)


def _keeping_config(loader: ConfigLoaderImpl, defaults: Any, repo: Any) -> DictConfig:
    key = next((key for key, held in _LISTS.items() if held.defaults is defaults), None)
    if key is None:
        return _config(loader, defaults, repo)
    if key not in _COMPOSED:
        shared = _shared(key, "config")
        if shared is not None and shared.exists():
            _COMPOSED[key] = shared.read_bytes()
        else:
            _COMPOSED[key] = pickle.dumps(_merged(loader, defaults, repo))
            _write(shared, _COMPOSED[key])
    return pickle.loads(_COMPOSED[key])  # type: ignore[no-any-return]


def _merged(loader: ConfigLoaderImpl, defaults: Sequence[ResultDefault], repo: Any) -> DictConfig:
    hydras = list(takewhile(lambda item: str(item.config_path).startswith("hydra/"), defaults))
    key = tuple((str(item.config_path), str(item.package)) for item in hydras)
    if key not in _HYDRAS:
        _HYDRAS[key] = pickle.dumps(_config(loader, hydras, repo))
    return _config(loader, [_Merged(config=_HYDRAS[key]), *defaults[len(hydras) :]], repo)


def _loading(loader: ConfigLoaderImpl, default: ResultDefault, repo: Any) -> ConfigResult:
    if isinstance(default, _Merged):
        return ConfigResult("", "", pickle.loads(default.config), header={})
    return _single(loader, default, repo)


def _shared(key: _Key, kind: str) -> Path | None:
    """The file of all workers that holds this; None where nothing is shared."""
    folder = os.environ.get(_FOLDER)
    name = hashlib.sha256(repr(key).encode()).hexdigest()
    return Path(folder, f"{name}.{kind}") if folder else None


def _write(path: Path | None, content: bytes) -> None:
    """Whole or not at all: others read it meanwhile."""
    if path is not None and path.parent.is_dir():
        partial = path.with_name(f"{path.name}.{os.getpid()}")
        partial.write_bytes(content)
        partial.replace(path)


def _keeping_for_mode(
    loader: ConfigLoaderImpl,
    config_name: str | None,
    overrides: list[str],
    run_mode: RunMode,
    from_shell: bool = True,
    validate_sweep_overrides: bool = True,
) -> DictConfig:
    """What Hydra composes to learn its mode, which may be `???` in it, is what it then runs."""
    global _for_mode
    held, _for_mode = _for_mode, None
    if not validate_sweep_overrides:  # only there
        config = _configuration(loader, config_name, overrides, run_mode, from_shell, False)
        if all(source.path in _OURS for source in loader.get_sources()):
            _for_mode = _ForMode(loader, config_name, tuple(overrides), config)
        return config
    if held is None or held[:3] != (loader, config_name, tuple(overrides)):
        return _configuration(loader, config_name, overrides, run_mode, from_shell)
    parsed = OverridesParser.create().parse_overrides(overrides)
    loader.validate_sweep_overrides_legal(parsed, run_mode, from_shell)
    return held.config


def _keeping_chosen(settings: Settings) -> Settings:
    choices = tuple(item for item in settings.overrides if is_choice(item))
    variables = tuple(sorted(item for item in os.environ.items() if "SOUNDINGLINE" in item[0]))
    if settings.search_path:  # a test may change what is there
        return _chosen(settings)  # type: ignore[no-any-return]
    key = (choices, variables)
    if key not in _SETTINGS:
        _SETTINGS[key] = _chosen(settings)
    return _SETTINGS[key]


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
