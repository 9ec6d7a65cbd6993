"""What workers of the suite and their commands share: what Hydra composes, figures of reports, and
compiled kernels.

A command composes its configuration several times, and most tests choose the same options, so that
composing was a third of the suite. These are kept for all workers and their commands
(`share_compositions`):

- the configuration of the chosen options, before Hydra sets the single values of a command line in
  it. Only options of `conf` are kept: a test may change those of its own folders;
- what a file of options holds, until the file is written again;
- what the first files of a list of defaults merge to, where lists go on differently, and
  how an override reads, both in this process;
- what Hydra composes of each cell of a sweep to see whether it can be, for the composition of the
  same overrides that follows.

Hydra also copies every registered schema for each composition, and makes a map of the options in a
list of defaults for each file, which only references (`${...}`) in that list read. These are made
where something reads them. Copies of a configuration, of which a job makes several, take a fifth
of the time.

Reports draw a figure of the same values once. Most sweeps of tests are alike, and drawing was half
of the time of a comparison. The tests of `soundingline.toolkit.report.plots` call its functions
directly, so that these draw each time.

Of several processes one compiles a kernel, and the others wait for its file.
"""

from __future__ import annotations

import copy
import fcntl
import hashlib
import os
import pickle
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

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
from soundingline.toolkit.report import agents, comparison, tuning
from soundingline.toolkit.report.page import RunStyle

_TESTS = Path(__file__).resolve().parents[1]
_OURS = {str(CONF), str(_TESTS / "experiments" / "options"), "hydra.conf", ""}
_COMPOSITIONS = "SOUNDINGLINE_TEST_COMPOSITIONS"
_KEPT = {}  # pickled, because that copies eight times as fast as `deepcopy`
_LISTS = {}
_KEYS = {}  # of the lists' defaults, by their identity
_OVERRIDES = {}
_CELLS = {}
_SEEN = set()
_BEGINNINGS = {}
_MARK = "HYDRA_REMOVE_TOP_LEVEL_DEFAULTS"
_list = config_loader_impl.create_defaults_list
_config = ConfigLoaderImpl._compose_config_from_defaults_list
_file = ConfigRepository.load_config
_map = defaults_list._create_interpolation_map
_parse = OverridesParser.parse_rule
_cell = ConfigLoaderImpl.load_sweep_config


def share_compositions(folder):
    """Keep what is composed in `folder` too, for other workers and for commands that tests start.
    A folder serves one run of the suite, in which no option of `conf` changes."""
    folder.mkdir(exist_ok=True)
    os.environ[_COMPOSITIONS] = str(folder)


def install_compositions():
    """Keep what Hydra composes from here on."""
    config_loader_impl.create_defaults_list = _keeping_list
    ConfigLoaderImpl._compose_config_from_defaults_list = _keeping_config
    # Not those of the sources: Hydra executes the modules of its plugins once more.
    ConfigRepository.load_config = _keeping_file
    CachingConfigRepository.__init__ = _sharing_sources
    defaults_list._create_interpolation_map = _map_for_references
    OverridesParser.parse_rule = _keeping_override
    Sweeper.validate_batch_is_legal = _keeping_cells
    ConfigLoaderImpl.load_sweep_config = _keeping_cell
    DictConfig.__deepcopy__ = _copied
    ListConfig.__deepcopy__ = _copied


def kept(key, kind, make):
    """What was made of this key before, here or in another process."""
    name = hashlib.sha256(repr((key, kind)).encode()).hexdigest()
    if name not in _KEPT:
        folder = os.environ.get(_COMPOSITIONS)
        path = Path(folder, name) if folder else None
        if path and path.exists():
            _KEPT[name] = path.read_bytes()
        else:
            _KEPT[name] = pickle.dumps(make())
            if path and path.parent.is_dir():
                partial = path.with_name(f"{name}.{os.getpid()}")
                partial.write_bytes(_KEPT[name])
                partial.replace(path)
    return pickle.loads(_KEPT[name])


def _keeping_list(repo, config_name, overrides_list, prepend_hydra, skip_missing):
    overrides = list(overrides_list)
    sources = tuple(source.path for source in repo.get_sources())
    if not set(sources) <= _OURS:
        return _list(repo, config_name, overrides, prepend_hydra, skip_missing)
    values = [item for item in overrides if _sets_value(repo, item)]
    choices = tuple(str(item.input_line) for item in overrides if item not in values)
    key = (config_name, choices, sources)
    try:
        if key not in _LISTS:
            # What is composed where nothing may be missing is the same where something may be.
            make = partial(_list, repo, config_name, overrides, prepend_hydra, False)
            _LISTS[key] = kept(key, "list", make)
        composed = _LISTS[key]
    except ConfigCompositionException:
        if not skip_missing:
            raise
        return _list(repo, config_name, overrides, prepend_hydra, skip_missing)
    _KEYS[id(composed.defaults)] = key, composed
    held = copy.copy(composed.overrides)
    held.known_choices = {}  # which are in the configuration that is kept
    return DefaultsList(composed.defaults, composed.defaults_tree, values, held)


def _keeping_config(loader, defaults, repo):
    if id(defaults) not in _KEYS:
        return _config(loader, defaults, repo)
    key, composed = _KEYS[id(defaults)]

    def make():
        config = _merged(loader, defaults, repo)
        config.hydra.runtime.choices.update(composed.overrides.known_choices)
        return config

    return kept(key, "config", make)


def _merged(loader, defaults, repo):
    """As Hydra does it, from the longest beginning that is kept. One is kept where this list goes
    on differently from all before."""
    sources = tuple(source.path for source in repo.get_sources())
    steps = [(item.config_path, item.package, item.primary) for item in defaults]
    keys = [(sources, tuple(steps[:count])) for count in range(len(steps) + 1)]
    start = max((count for count, key in enumerate(keys) if key in _BEGINNINGS), default=0)
    config = pickle.loads(_BEGINNINGS[keys[start]]) if start else OmegaConf.create()
    with flag_override(config, "no_deepcopy_set_nodes", True):
        for count, item in enumerate(defaults[start:], start + 1):
            loaded = loader._load_single_config(default=item, repo=repo)
            try:
                # Not `merge_with`, which sets the parent of every node of the root, each time.
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


def _sets_value(repo, override):
    if override.is_sweep_override():
        return False
    return isinstance(override.value(), dict) or not repo.group_exists(override.key_or_group)


def _keeping_file(repository, config_path):
    source = repository._find_object_source(config_path, ObjectType.CONFIG)
    if source is None or source.scheme() not in ("file", "pkg"):
        return _file(repository, config_path)
    name = source._normalize_file_name(config_path)
    key = (source.provider, source.path, name)
    if source.scheme() == "file":
        status = Path(source.path, name).stat()
        key = (*key, status.st_mtime_ns, status.st_size)
    return kept(key, "file", lambda: _file(repository, config_path))


def _sharing_sources(repository, delegate):
    repository.delegate = copy.copy(delegate)  # whose list of sources is only ever replaced
    repository.cache = {}


def _map_for_references(overrides, defaults, self_added):
    refers = any("${" in str(vars(item)) for item in defaults)
    return _map(overrides, defaults, self_added) if refers else None


def _keeping_override(parser, text, rule):
    if rule != "override":
        return _parse(parser, text, rule)
    if text not in _OVERRIDES:
        _OVERRIDES[text] = _parse(parser, text, rule)
    return copy.deepcopy(_OVERRIDES[text])  # which sweepers may change


def _keeping_cells(sweeper, batch):
    loader, master = sweeper.hydra_context.config_loader, sweeper.config
    _CELLS.clear()
    for overrides in batch:
        _CELLS[tuple(overrides)] = loader, master, _cell(loader, master, list(overrides))


def _keeping_cell(loader, master_config, sweep_overrides):
    *made_by, config = _CELLS.pop(tuple(sweep_overrides), (None, None, None))
    if made_by[0] is loader and made_by[1] is master_config:
        return config
    return _cell(loader, master_config, sweep_overrides)


def _copied(node, memo):
    """As in OmegaConf's own copy, values and the parent are those of the original."""
    return _copy_of(node, node.__dict__["_parent"])


def _copy_of(node, parent):
    copied = object.__new__(type(node))
    attributes = copied.__dict__
    attributes.update(node.__dict__, _parent=parent, _flags_cache=None)
    metadata = object.__new__(type(node._metadata))
    metadata.__dict__.update(node._metadata.__dict__)
    for key in ("flags", "resolver_cache"):  # which are mostly empty
        value = metadata.__dict__[key]
        metadata.__dict__[key] = copy.deepcopy(value) if value else copy.copy(value)
    attributes["_metadata"] = metadata
    content = attributes.get("_content")
    if isinstance(content, dict):
        attributes["_content"] = {key: _copy_of(item, copied) for key, item in content.items()}
    elif isinstance(content, list):
        attributes["_content"] = [_copy_of(item, copied) for item in content]
    elif isinstance(node, UnionNode) and isinstance(content, Node):
        attributes["_content"] = _copy_of(content, copied)
    return copied


_DRAWING = {
    agents: ("against_cost", "exposure", "funnel", "spreads"),
    comparison: ("forest",),
    tuning: ("heat_map",),
}


def install_figures():
    """Keep the figures of reports from here on, where compositions are kept."""
    for module, names in _DRAWING.items():
        for name in names:
            setattr(module, name, partial(_kept_figure, getattr(module, name)))


def _kept_figure(draw, *arguments, **options):
    arguments = _without_runs(arguments)
    key = pickle.dumps((arguments, options))
    return kept(key, draw.__name__, partial(draw, *arguments, **options))


def _without_runs(value):
    """The arguments without the runs in their styles, which differ in folders and times. A function
    that reads a run fails for lack of it, and draws no figure of another run."""
    if isinstance(value, RunStyle):
        return replace(value, run=None)
    if type(value) in (list, tuple):
        return type(value)(_without_runs(item) for item in value)
    return value


_KERNELS = "SOUNDINGLINE_TEST_KERNELS"
_HELD = set()


def share_kernels(folder):
    """Processes that start from here on, and call `install_kernels`, wait for each other by files
    there."""
    folder.mkdir()
    os.environ[_KERNELS] = str(folder)


def install_kernels():
    from numba.core.compiler_lock import global_compiler_lock
    from numba.core.dispatcher import Dispatcher

    compile_one = Dispatcher.compile

    def compile_alone(dispatcher, signature):
        # Threads of this process first, as numba has them wait: in the other order each could hold
        # what the other needs. Of several kernels the one that calls comes before the one called.
        with global_compiler_lock, _alone(dispatcher.py_func):
            return compile_one(dispatcher, signature)

    Dispatcher.compile = compile_alone


@contextmanager
def _alone(function):
    path = Path(os.environ[_KERNELS], f"{function.__module__}.{function.__qualname__}")
    if path in _HELD or not path.parent.is_dir():  # it calls itself; or the suite has ended
        yield
        return
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        _HELD.add(path)
        try:
            yield
        finally:
            _HELD.remove(path)
            fcntl.flock(file, fcntl.LOCK_UN)  # also of processes that were forked meanwhile
