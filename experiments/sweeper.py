"""The cells of a sweep: the product of its parameters, or one change at a time against a baseline.

An experiment lists its cells below `hydra.sweeper`::

    hydra:
      mode: MULTIRUN
      sweeper:
        params: {unit: "document,passage"}     # every combination, as in Hydra's own sweeper
        changes:                               # the baseline, and one cell for each entry
          - retriever=bm25_default
          - [reranker=monot5_3b, reranker.depth=10]
        laptop: {params: {}, changes: []}      # in their place with scale=laptop
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hydra._internal.core_plugins import basic_sweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from omegaconf import DictConfig, OmegaConf

from soundingline.toolkit.errors import InputError

# Hydra's search for plugins executes the module of its sweeper once more, so that it comes first.
Plugins.instance()
BasicSweeper: Any = basic_sweeper.BasicSweeper


class ChangeSweeper(BasicSweeper):  # type: ignore[misc]
    """Hydra's sweeper with single changes. Each combination of the swept parameters is run as it
    is, and once with each change.

    Args:
        max_batch_size: See Hydra's `BasicSweeper`.
        params: Swept values by key, with commas between them.
        changes: Each entry is one override or a list of overrides, which make one cell.
        laptop: `params` and `changes` that replace these with `scale=laptop`.

    Raises:
        InputError: If an entry of `changes` is no override, or sweeps over several values.
    """

    # Hydra 1.3 instantiates sweepers of its own modules and of the namespace hydra_plugins only.
    # The class joins the module of its base, so that no second top-level package is installed.
    __module__ = basic_sweeper.__name__

    def __init__(
        self,
        max_batch_size: int | None = None,
        params: Mapping[str, str] | None = None,
        changes: Sequence[Any] | None = None,
        laptop: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(max_batch_size, dict(params or {}))
        self._changes, self._laptop = changes or (), laptop

    def setup(self, *, config: DictConfig, **context: Any) -> None:
        super().setup(config=config, **context)
        params, changes = cells_of(config)
        self.params, self._changes = params, changes

    def split_arguments(  # type: ignore[override]  # Hydra calls its static method on the object.
        self, overrides: list[Override], max_batch_size: int | None
    ) -> list[list[list[str]]]:
        cells = with_changes(overrides, self._changes)
        return list(map(list, self.split_overrides_to_chunks(cells, max_batch_size)))


def register_sweeper() -> None:
    """Make the sweeper known to Hydra."""
    basic_sweeper.ChangeSweeper = ChangeSweeper  # type: ignore[attr-defined]
    Plugins.instance().register(ChangeSweeper)


def cells_of(config: DictConfig) -> tuple[dict[str, str], list[list[str]]]:
    """The swept parameters and the changes of a composed configuration, at its scale."""
    sweeper: Any = OmegaConf.to_container(config.hydra.sweeper, resolve=True)
    chosen = (config.laptop and sweeper["laptop"]) or sweeper
    params = {str(key): str(value) for key, value in (chosen.get("params") or {}).items()}
    return params, [_words(entry) for entry in chosen.get("changes") or ()]


def with_changes(
    overrides: Sequence[Override], changes: Sequence[Sequence[str]]
) -> list[list[str]]:
    """The overrides of each cell: every combination of the swept values, each as it is and with
    each change. A change wins over an override of the same key."""
    (cells,) = BasicSweeper.split_arguments(list(overrides), None)
    return [[*cell, *change] for cell in cells for change in ((), *changes)]


def _words(entry: Any) -> list[str]:
    words = [entry] if isinstance(entry, str) else entry
    if not isinstance(words, list) or not words or not all(isinstance(w, str) for w in words):
        raise InputError(
            f"hydra.sweeper.changes has the entry {entry!r}",
            valid="an override such as unit=passage, or a list of overrides",
        )
    for override in OverridesParser.create().parse_overrides(words):
        if override.is_sweep_override():
            raise InputError(
                f"the change {override.input_line} has several values",
                do="write one entry for each value",
            )
    return words
