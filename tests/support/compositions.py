"""Hydra composes a choice of options once for the whole suite.

A command composes its configuration several times, and most tests choose the same options; a
composition takes 0.12 s, which was a third of the suite. These are kept, as Hydra made them:

- what a file of options holds, as long as the file is not written again;
- the configuration of the options that are chosen, before Hydra sets the single values of a command
  line in it, in a folder that all workers and their commands share (`share`). Only for the options
  of `conf`: a test may change those of its own folders;
- what the first files of a list of defaults have merged to, where lists go on differently;
- what is read of an option for a list of defaults, which Hydra only looks at;
- how an override reads;
- what Hydra composes of each cell of a sweep to see whether it can be, for the composition of the
  same overrides that follows.

Two more are not made where nobody reads them: copies of every registered schema, and what the
options in a list of defaults may refer to, which Hydra makes for each file.
"""

from __future__ import annotations

import copy
import hashlib
import os
import pickle
from pathlib import Path
from typing import Any, NamedTuple

from hydra._internal import config_loader_impl, defaults_list
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository, ConfigRepository
from hydra._internal.defaults_list import DefaultsList
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import ConfigCompositionException
from hydra.plugins.sweeper import Sweeper
from omegaconf import DictConfig, ListConfig, OmegaConf, flag_override
from omegaconf.base import Node, UnionNode
from omegaconf.basecontainer import BaseContainer
from omegaconf.errors import OmegaConfBaseException

from soundingline.experiments.config import CONF

_TESTS = Path(__file__).resolve().parents[1]
_OURS = {str(CONF), str(_TESTS / "experiments" / "options"), "hydra.conf", ""}


class _Key(NamedTuple):
    config_name: str | None
    choices: tuple[str, ...]
    sources: tuple[str, ...]


class _FileKey(NamedTuple):
    provider: str
    path: str
    modified: int = 0
    size: int = 0


class _ForCell(NamedTuple):
    """What Hydra composed to see whether a cell of a sweep can be, and of what."""

    loader: ConfigLoaderImpl
    master: DictConfig
    config: DictConfig


class _Step(NamedTuple):
    """A file that is merged, and where."""

    path: str | None
    package: str | None
    primary: bool


class _Sources(NamedTuple):
    """What a list of defaults is made from: options that it looks at and leaves as they are."""

    repo: Any
    paths: tuple[str, ...]

    def load_config(self, config_path):
        return self._kept("load_config", config_path)  # type: ignore[no-any-return]

    def group_exists(self, config_path):
        return bool(self._kept("group_exists", config_path))

    def config_exists(self, config_path):
        return bool(self._kept("config_exists", config_path))

    def _kept(self, method, config_path):
        key = (self.paths, method, config_path)
        if key not in _READ:
            # Not through the repository's own cache, which is merged from, and changed by that.
            result = getattr(self.repo.delegate, method)(config_path)
            if not result:  # may be registered later
                return result
            _READ[key] = result
        return _READ[key]

    def __getattr__(self, name):
        return getattr(self.repo, name)


_MARK = "HYDRA_REMOVE_TOP_LEVEL_DEFAULTS"
_FOLDER = "SOUNDINGLINE_TEST_COMPOSITIONS"
# Pickled, because that copies eight times as fast as `deepcopy`.
_FILES = {}
_LISTS = {}
_KEYS = {}  # of the lists' defaults, which are kept, by their identity
_COMPOSED = {}
_READ = {}
_SEEN = set()
_BEGINNINGS = {}
_OVERRIDES = {}
_for_cells = {}


def share(folder):
    """Keep what is composed in `folder` too, for other workers and for commands that tests start.
    A folder serves one run of the suite, in which no option of `conf` changes."""
    folder.mkdir(exist_ok=True)
    os.environ[_FOLDER] = str(folder)


def install():
    """Keep what Hydra composes from here on."""
    if ConfigLoaderImpl._compose_config_from_defaults_list is not _keeping_config:
        config_loader_impl.create_defaults_list = _keeping_list
        ConfigLoaderImpl._compose_config_from_defaults_list = _keeping_config  # type: ignore[method-assign]
        ConfigLoaderImpl.load_sweep_config = _keeping_for_cell  # type: ignore[method-assign]
        Sweeper.validate_batch_is_legal = _keeping_cells  # type: ignore[method-assign]
        # Not those of the sources: Hydra executes the modules of its plugins once more.
        ConfigRepository.load_config = _keeping_file  # type: ignore[method-assign]
        CachingConfigRepository.__init__ = _sharing_sources  # type: ignore[method-assign]
        defaults_list._create_interpolation_map = _map_for_references
        OverridesParser.parse_rule = _keeping_override  # type: ignore[method-assign]
        DictConfig.__deepcopy__ = _copied  # type: ignore[assignment]
        ListConfig.__deepcopy__ = _copied  # type: ignore[assignment]


_list = config_loader_impl.create_defaults_list
_config = ConfigLoaderImpl._compose_config_from_defaults_list
_for_sweep = ConfigLoaderImpl.load_sweep_config
_file = ConfigRepository.load_config
_map = defaults_list._create_interpolation_map
_parse = OverridesParser.parse_rule


def _keeping_list(
    repo,
    config_name,
    overrides_list,
    prepend_hydra,
    skip_missing,
):
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
                looked_at = _Sources(repo, sources)
                _LISTS[key] = _list(looked_at, config_name, overrides, prepend_hydra, False)
            except ConfigCompositionException:
                if not skip_missing:
                    raise
                return _list(repo, config_name, overrides, prepend_hydra, skip_missing)
            _write(shared, pickle.dumps(_LISTS[key]))
    composed = _LISTS[key]
    _KEYS[id(composed.defaults)] = key
    overrides_held = copy.copy(composed.overrides)
    overrides_held.known_choices = {}  # which stand in the configuration that is kept
    return DefaultsList(composed.defaults, composed.defaults_tree, values, overrides_held)


def _keeping_config(loader, defaults, repo):
    key = _KEYS.get(id(defaults))
    if key is None:
        return _config(loader, defaults, repo)
    if key not in _COMPOSED:
        shared = _shared(key, "config")
        if shared is not None and shared.exists():
            _COMPOSED[key] = shared.read_bytes()
        else:
            config = _merged(loader, defaults, repo)
            config.hydra.runtime.choices.update(_LISTS[key].overrides.known_choices)
            _COMPOSED[key] = pickle.dumps(config)
            _write(shared, _COMPOSED[key])
    return pickle.loads(_COMPOSED[key])  # type: ignore[no-any-return]


def _merged(loader, defaults, repo):
    """As `_compose_config_from_defaults_list` does it, from the longest beginning that is kept. One
    is kept where this list goes on differently from all before."""
    sources = tuple(source.path for source in repo.get_sources())
    steps = [_Step(item.config_path, item.package, item.primary) for item in defaults]
    keys = [(sources, tuple(steps[:count])) for count in range(len(steps) + 1)]
    start = max((count for count, key in enumerate(keys) if key in _BEGINNINGS), default=0)
    config = pickle.loads(_BEGINNINGS[keys[start]]) if start else OmegaConf.create()
    with flag_override(config, "no_deepcopy_set_nodes", True):
        for count, item in enumerate(defaults[start:], start + 1):
            loaded = loader._load_single_config(default=item, repo=repo)
            try:
                # Not `merge_with`, which sets the parent of every node in the whole, each time.
                BaseContainer._map_merge(config, loaded.config)
            except OmegaConfBaseException:  # Hydra says what is wrong
                repo.cache.clear()
                return _config(loader, defaults, repo)
            if keys[count] in _SEEN and count < len(steps) and keys[count + 1] not in _SEEN:
                _BEGINNINGS[keys[count]] = pickle.dumps(config)
    config._set_flag("no_deepcopy_set_nodes", None)  # which a beginning has
    config._re_parent()
    _strip_defaults(config)
    _SEEN.update(keys)
    return config


def _strip_defaults(node):
    """Hydra's mark and the lists of defaults under it go, as at the end of its own function."""
    content = node._content if isinstance(node, DictConfig) else None
    if not isinstance(content, dict):
        return
    if (node._metadata.flags or {}).get(_MARK):
        with flag_override(node, ["readonly", "struct"], False):
            node._set_flag(_MARK, None)
            node.pop("defaults", None)
    for value in content.values():
        _strip_defaults(value)


def _shared(key, kind):
    """The file of all workers that holds this; None where nothing is shared."""
    folder = os.environ.get(_FOLDER)
    name = hashlib.sha256(repr(key).encode()).hexdigest()
    return Path(folder, f"{name}.{kind}") if folder else None


def _write(path, content):
    """Whole or not at all: others read it meanwhile."""
    if path is not None and path.parent.is_dir():
        partial = path.with_name(f"{path.name}.{os.getpid()}")
        partial.write_bytes(content)
        partial.replace(path)


def _keeping_cells(sweeper, batch):
    """What Hydra composes of all cells before it runs the first, is what it then runs in this
    process."""
    loader, master = sweeper.hydra_context.config_loader, sweeper.config
    _for_cells.clear()
    for overrides in batch:
        config = _for_sweep(loader, master, list(overrides))
        _for_cells[tuple(overrides)] = _ForCell(loader, master, config)


def _keeping_for_cell(loader, master_config, sweep_overrides):
    composed = _for_cells.pop(tuple(sweep_overrides), None)
    if composed is None or composed.loader is not loader or composed.master is not master_config:
        return _for_sweep(loader, master_config, sweep_overrides)
    return composed.config


def _keeping_override(parser, text, rule):
    if rule != "override":
        return _parse(parser, text, rule)
    if text not in _OVERRIDES:
        _OVERRIDES[text] = _parse(parser, text, rule)
    return copy.deepcopy(_OVERRIDES[text])  # which sweepers may change


def _copied(node, memo):
    """A copy in a fifth of the time: a job of Hydra's makes several of the whole configuration. As
    in OmegaConf's own, values and the parent are those of the original."""
    return _copy_of(node, node.__dict__["_parent"])


def _copy_of(node, parent):
    copied = object.__new__(type(node))
    attributes = copied.__dict__
    attributes.update(node.__dict__, _parent=parent, _flags_cache=None)
    metadata = object.__new__(type(node._metadata))
    of_node = metadata.__dict__
    of_node.update(node._metadata.__dict__)
    for key in ("flags", "resolver_cache"):  # which are mostly empty
        of_node[key] = copy.deepcopy(of_node[key]) if of_node[key] else copy.copy(of_node[key])
    attributes["_metadata"] = metadata
    content = attributes.get("_content")
    if isinstance(content, dict):
        attributes["_content"] = {key: _copy_of(item, copied) for key, item in content.items()}
    elif isinstance(content, list):
        attributes["_content"] = [_copy_of(item, copied) for item in content]
    elif isinstance(node, UnionNode) and isinstance(content, Node):
        attributes["_content"] = _copy_of(content, copied)
    return copied


def _keeping_file(repository, config_path):
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


def _sharing_sources(repository, delegate):
    repository.delegate = copy.copy(delegate)  # whose list of sources is only ever replaced
    repository.cache = {}


def _map_for_references(overrides, defaults, self_added):
    refers = any("${" in str(vars(item)) for item in defaults)
    return _map(overrides, defaults, self_added) if refers else None


def _sets_value(repo, override):
    """Whether Hydra sets this in the composed configuration, rather than chooses an option."""
    if override.is_sweep_override():
        return False
    return isinstance(override.value(), dict) or not repo.group_exists(override.key_or_group)
