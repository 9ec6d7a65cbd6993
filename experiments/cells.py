"""The cells of a sweep, with axes and single changes.

The cells of a sweep are the product of its parameters and axes, each cell as it is and with one
change at a time. With `indexing.shards=4` that product has a cell for each shard, from
`indexing.shard=0`. An experiment lists its cells below `hydra.sweeper`::

    hydra:
      mode: MULTIRUN
      sweeper:
        params: {unit: "document,passage"}     # every combination, as in Hydra's own sweeper
        axes:                                  # crossed too; an entry may set several keys
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

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from soundingline.toolkit.errors import InputError

SWEEPER = "hydra_plugins.soundingline.ChangeSweeper"


class Cells(NamedTuple):
    """The cells of a sweep: swept parameters, axes and changes, at the scale of a run."""

    params: Mapping[str, str] = {}
    axes: Sequence[Sequence[Sequence[str]]] = ()
    changes: Sequence[Sequence[str]] = ()
    late: Sequence[str] = ()

    @classmethod
    def of(cls, config: DictConfig) -> Cells | None:
        """Those of a composed configuration; None for a sweeper that chooses cells as it goes."""
        return cls.of_ours(config) if config.hydra.sweeper._target_ == SWEEPER else None

    @classmethod
    def of_ours(cls, config: DictConfig) -> Cells:
        """Those of a composed configuration with our sweeper: what stands below `hydra.sweeper` by
        the name of the scale, if anything does, in the place of the others."""
        sweeper: Any = OmegaConf.to_container(config.hydra.sweeper, resolve=True)
        chosen = sweeper.get(config.scale) or sweeper
        axes = (chosen.get("axes") or {}).items()
        params = {str(key): str(value) for key, value in (chosen.get("params") or {}).items()}
        indexing = config.indexing
        if indexing.shards > 1 and indexing.shard is None:
            params = {"indexing.shard": ",".join(map(str, range(indexing.shards))), **params}
        return cls(
            params,
            [[_words(entry, f"axes.{name}") for entry in entries] for name, entries in axes],
            [_words(entry, "changes") for entry in chosen.get("changes") or ()],
            sweeper.get("late") or (),
        )

    def named(self, loader: ConfigLoader, words: Sequence[str] = ()) -> list[list[str]]:
        """The overrides of each cell of the sweep that a command line with these `words` starts.
        An entry of an axis wins over an override of the same key, and a change over both. `loader`
        has the options that a `glob` may name. `InputError` for an interval, and for a `glob` that
        no option matches."""
        swept = [f"{key}={value}" for key, value in self.params.items()]
        given = OverridesParser.create(loader).parse_overrides([*swept, *words, *self.late])
        # Of two overrides of one key, the later one counts, in the place of the first.
        values = {override.get_key_element(): _values(override) for override in given}
        combinations = product(
            *([f"{key}={value}" for value in each] for key, each in values.items())
        )
        axes = [axis for axis in self.axes if axis and axis[0][0].partition("=")[0] not in values]
        return [
            [word for words in parts for word in words]
            for parts in product(combinations, *axes, ((), *self.changes))
        ]


def varied_options(cells: Sequence[Sequence[str]]) -> list[str]:
    """The keys that not all cells have with one value."""
    counts = Counter(word for cell in cells for word in {*cell})
    varied = {word.partition("=")[0] for word, count in counts.items() if count < len(cells)}
    return sorted(key.lstrip("+~").rpartition("@")[2] for key in varied)


def _values(override: Override) -> list[str]:
    """The values of an override, as a command line has them."""
    if not override.is_sweep_override():
        return [override.get_value_element_as_str()]
    if not override.is_discrete_sweep():
        raise InputError(
            f"{override.input_line} has no single values",
            valid="values with commas between them, choice(...), range(...) and glob(...)",
        )
    values = list(override.sweep_string_iterator())
    if not values:
        raise InputError(
            f"{override.input_line} matches no option",
            do=f"soundingline list {override.key_or_group} prints the options; those in folders "
            "are named with commas between them",
        )
    return values


def _words(entry: Any, where: str) -> list[str]:
    words = [entry] if isinstance(entry, str) else entry
    if not isinstance(words, list) or not words or not all(isinstance(w, str) for w in words):
        raise InputError(
            f"hydra.sweeper.{where} has the entry {entry!r}",
            valid="an override such as unit=passage, or a list of overrides",
        )
    for override in OverridesParser.create().parse_overrides(words):
        if override.is_sweep_override():
            raise InputError(
                f"{override.input_line} in hydra.sweeper.{where} has several values",
                do="write one entry for each value",
            )
    return words
