"""The cells of a sweep: the product of its parameters and axes, each cell as it is and with one
change at a time. With `shards=4` that product has a cell for each shard, from `shard=0`.

An experiment lists its cells below `hydra.sweeper`::

    hydra:
      mode: MULTIRUN
      sweeper:
        params: {unit: "document,passage"}     # every combination, as in Hydra's own sweeper
        axes:                                  # crossed likewise; an entry may set several keys
          benchmarks:
            - benchmark=vaswani
            - [benchmark=ir_datasets, benchmark.dataset=beir/scifact/test]
        changes:                               # each cell as it is, and once with each entry
          - retriever=bm25_default
          - [reranker=monot5_3b, reranker.depth=10]
        laptop: {params: {}, axes: {}, changes: []}  # in their place with scale=laptop

An override of the command line replaces the values of `params` with its key, and each axis whose
entries begin with its key: `benchmark=cacm` replaces the axis above.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import product
from typing import Any, NamedTuple

from hydra._internal.core_plugins import basic_sweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from omegaconf import DictConfig, OmegaConf

from soundingline.toolkit.errors import InputError

# Hydra's search for plugins executes the module of its sweeper once more, so that it comes first.
Plugins.instance()
BasicSweeper: Any = basic_sweeper.BasicSweeper
NAME = f"{basic_sweeper.__name__}.ChangeSweeper"


class ChangeSweeper(BasicSweeper):  # type: ignore[misc]
    """Hydra's sweeper with axes and single changes (see the module).

    Args:
        max_batch_size: See Hydra's `BasicSweeper`.
        params: Swept values by key, with commas between them.
        axes: Lists of entries by a name. An entry is one override or a list of overrides.
        changes: Entries as those of an axis.
        laptop: `params`, `axes` and `changes` that replace these with `scale=laptop`.

    Raises:
        InputError: If an entry is no override, or sweeps over several values.
    """

    def __init__(
        self,
        max_batch_size: int | None = None,
        params: Mapping[str, str] | None = None,
        axes: Mapping[str, Sequence[Any]] | None = None,
        changes: Sequence[Any] | None = None,
        laptop: Mapping[str, Any] | None = None,
    ) -> None:
        # `setup` reads axes, changes and laptop from the composed configuration.
        super().__init__(max_batch_size, dict(params or {}))
        self._cells = Cells()

    def setup(self, *, config: DictConfig, **context: Any) -> None:
        super().setup(config=config, **context)
        self._cells = Cells.of(config)
        self.params = self._cells.params

    def split_arguments(  # type: ignore[override]  # Hydra calls its static method on the object.
        self, overrides: list[Override], max_batch_size: int | None
    ) -> list[list[list[str]]]:
        cells = self._cells.overrides(overrides)
        return list(map(list, self.split_overrides_to_chunks(cells, max_batch_size)))


class Cells(NamedTuple):
    """The cells of a sweep: swept parameters, axes and changes, at the scale of a run."""

    params: Mapping[str, str] = {}
    axes: Sequence[Sequence[Sequence[str]]] = ()
    changes: Sequence[Sequence[str]] = ()

    @classmethod
    def of(cls, config: DictConfig) -> Cells:
        """Those of a composed configuration."""
        sweeper: Any = OmegaConf.to_container(config.hydra.sweeper, resolve=True)
        cells = cls.read(sweeper, laptop=config.laptop)
        if config.get("shards", 1) > 1 and config.shard is None:
            shards = ",".join(map(str, range(config.shards)))
            return cells._replace(params={"shard": shards, **cells.params})
        return cells

    @classmethod
    def read(cls, sweeper: Mapping[str, Any], *, laptop: bool) -> Cells:
        """Those of the values below `hydra.sweeper`."""
        chosen = (laptop and sweeper.get("laptop")) or sweeper
        axes = (chosen.get("axes") or {}).items()
        return cls(
            {str(key): str(value) for key, value in (chosen.get("params") or {}).items()},
            [[_words(entry, f"axes.{name}") for entry in entries] for name, entries in axes],
            [_words(entry, "changes") for entry in chosen.get("changes") or ()],
        )

    def named(self, given: Sequence[Override] = ()) -> list[list[str]]:
        """The overrides of each cell of the sweep that a command line with `given` starts."""
        swept = [f"{key}={value}" for key, value in self.params.items()]
        return self.overrides([*override_parser().parse_overrides(swept), *given])

    def overrides(self, given: Sequence[Override]) -> list[list[str]]:
        """The overrides of each cell, from those of `params` and the command line. An entry of an
        axis wins over an override of the same key, and a change over both."""
        (combinations,) = BasicSweeper.split_arguments(list(given), None)
        keys = {override.get_key_element() for override in given}
        axes = [axis for axis in self.axes if axis and axis[0][0].partition("=")[0] not in keys]
        return [
            [word for words in parts for word in words]
            for parts in product(combinations, *axes, ((), *self.changes))
        ]


@cache
def override_parser() -> Any:
    """Hydra's, which keeps nothing of what it has parsed."""
    return OverridesParser.create()


def register_sweeper() -> None:
    """Make the sweeper known to Hydra.

    Hydra 1.3 instantiates sweepers of its own modules and of the namespace `hydra_plugins` only.
    The sweeper gets a name in the module of its base, so that no second top-level package is
    installed. In its own module, other processes find it when they unpickle a job.
    """
    basic_sweeper.ChangeSweeper = ChangeSweeper  # type: ignore[attr-defined]
    Plugins.instance().class_name_to_class[NAME] = ChangeSweeper


def _words(entry: Any, where: str) -> list[str]:
    words = [entry] if isinstance(entry, str) else entry
    if not isinstance(words, list) or not words or not all(isinstance(w, str) for w in words):
        raise InputError(
            f"hydra.sweeper.{where} has the entry {entry!r}",
            valid="an override such as unit=passage, or a list of overrides",
        )
    for override in override_parser().parse_overrides(words):
        if override.is_sweep_override():
            raise InputError(
                f"{override.input_line} in hydra.sweeper.{where} has several values",
                do="write one entry for each value",
            )
    return words
