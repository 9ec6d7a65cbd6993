"""Hydra composes a choice of options once for the whole suite.

A command composes its configuration several times, and most tests choose the same options, so that
composing was a third of the suite. Kept is the configuration of the chosen options, before Hydra
sets the single values of a command line in it, for all workers and their commands (`share`). Only
options of `conf` are kept: a test may change those of its own folders.
"""

from __future__ import annotations

import copy
import hashlib
import os
import pickle
from functools import partial
from pathlib import Path

from hydra._internal import config_loader_impl
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.defaults_list import DefaultsList
from hydra.errors import ConfigCompositionException

from soundingline.experiments.config import CONF

_TESTS = Path(__file__).resolve().parents[1]
_OURS = {str(CONF), str(_TESTS / "experiments" / "options"), "hydra.conf", ""}
_FOLDER = "SOUNDINGLINE_TEST_COMPOSITIONS"
_KEPT = {}  # pickled, because that copies eight times as fast as `deepcopy`
_LISTS = {}
_KEYS = {}  # of the lists' defaults, by their identity
_list = config_loader_impl.create_defaults_list
_config = ConfigLoaderImpl._compose_config_from_defaults_list


def share(folder):
    """Keep what is composed in `folder` too, for other workers and for commands that tests start.
    A folder serves one run of the suite, in which no option of `conf` changes."""
    folder.mkdir(exist_ok=True)
    os.environ[_FOLDER] = str(folder)


def install():
    """Keep what Hydra composes from here on."""
    config_loader_impl.create_defaults_list = _keeping_list
    ConfigLoaderImpl._compose_config_from_defaults_list = _keeping_config


def _kept(key, kind, make):
    """What was made of this key before, here or in another process."""
    name = hashlib.sha256(repr((key, kind)).encode()).hexdigest()
    if name not in _KEPT:
        folder = os.environ.get(_FOLDER)
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
            _LISTS[key] = _kept(key, "list", make)
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
        config = _config(loader, defaults, repo)
        config.hydra.runtime.choices.update(composed.overrides.known_choices)
        return config

    return _kept(key, "config", make)


def _sets_value(repo, override):
    if override.is_sweep_override():
        return False
    return isinstance(override.value(), dict) or not repo.group_exists(override.key_or_group)
