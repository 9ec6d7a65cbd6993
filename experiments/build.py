"""From a composed configuration to live objects: benchmark, unit, index, pipeline, tool, agent."""

from __future__ import annotations

from functools import partial
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import get_method, instantiate
from omegaconf import DictConfig, OmegaConf

from toolkit.errors import InputError


def make(config: DictConfig, *args: Any, **kwargs: Any) -> Any:
    """Instantiate one group's option. An argument that its class does not take, or a value that
    it refuses, is told with the option's own valid arguments."""
    try:
        return instantiate(config, *args, **kwargs)
    except InstantiationException as error:
        cause = error.__cause__
        if isinstance(cause, InputError):
            raise cause from None
        if isinstance(cause, TypeError):
            raise InputError(
                f"{config.get('_target_')} was given {sorted(set(config) - {'_target_'})}: {cause}",
                do="see the option's file in conf/ for its arguments",
            ) from error
        raise


def settings(config: DictConfig) -> dict[str, Any]:
    """The group's resolved plain values."""
    values = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    if not isinstance(values, dict):
        raise InputError(f"a group came as {values!r}", valid="an option with a _target_")
    return {str(key): value for key, value in values.items()}


__all__ = ["get_method", "make", "partial", "settings"]
