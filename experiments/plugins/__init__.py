"""Our plugins of Hydra: a sweeper with axes and single changes, and a launcher for Ray.

Hydra takes plugins from the namespace `hydra_plugins` only, in which this package is installed as
`hydra_plugins.soundingline`. It does not find packages of an editable installation there, so that
`soundingline.experiments.config.register` registers both classes.

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

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain, product
from pathlib import Path
from typing import Any, NamedTuple

from hydra.core.config_loader import ConfigLoader
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.core.singleton import Singleton
from hydra.core.utils import run_job, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict

from soundingline.toolkit.console import notify
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.optional import import_optional
from soundingline.toolkit.runs.run_folder import SWEEP, VARIED

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
        overrides = OverridesParser.create(loader).parse_overrides([*swept, *words, *self.late])
        # Of two overrides of one key, the later one counts, in the place of the first.
        values = {override.get_key_element(): _values(override) for override in overrides}
        combinations = product(
            *([f"{key}={value}" for value in each] for key, each in values.items())
        )
        axes = [axis for axis in self.axes if axis and axis[0][0].partition("=")[0] not in values]
        return [
            list(chain(*groups)) for groups in product(combinations, *axes, ((), *self.changes))
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


class ChangeSweeper(Sweeper):  # type: ignore[misc]
    """Hydra's sweeper with axes and single changes (`Cells`).

    Args:
        max_batch_size: How many cells the launcher receives at once; None for all.
        params: Swept values by key, with commas between them.
        axes: Lists of entries by a name. An entry is one override or a list of overrides.
        changes: Entries as those of an axis.
        laptop: `params`, `axes` and `changes` that replace these with `scale=laptop`.
        late: Overrides of every cell that the start of the sweep is composed without.

    Raises:
        InputError: If an entry is not an override, or sweeps over several values.
    """

    def __init__(
        self,
        max_batch_size: int | None = None,
        params: Mapping[str, str] | None = None,
        axes: Mapping[str, Sequence[Any]] | None = None,
        changes: Sequence[Any] | None = None,
        laptop: Mapping[str, Any] | None = None,
        late: Sequence[str] = (),
    ) -> None:
        self.max_batch_size = max_batch_size

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        self.hydra_context, self.config = hydra_context, config
        self._loader, self._folder = hydra_context.config_loader, Path(config.hydra.sweep.dir)
        self._cells = Cells.of_ours(config)
        self._launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: Sequence[str]) -> list[list[Any]]:
        cells = self._cells.named(self._loader, arguments)
        self._folder.mkdir(parents=True, exist_ok=True)
        OmegaConf.save(self.config, self._folder / "multirun.yaml")
        returned = []
        size = self.max_batch_size or len(cells)
        for first in range(0, len(cells), size):
            batch = cells[first : first + size]
            self.validate_batch_is_legal(batch)
            ended = self._launcher.launch(batch, initial_job_idx=first)
            returned.append([job.return_value for job in ended])  # raises what a job has raised
        return returned


class RayLauncher(Launcher):  # type: ignore[misc]
    """Runs each cell as a task of a Ray cluster, on its public interface only.

    `hydra-ray-launcher` 1.2.2 requires `cloudpickle<3`, boto3 and Ray's dashboard, and ends the
    other cells as soon as one cannot be finished.

    Args:
        init: Arguments of `ray.init`. Without `address`, Ray takes RAY_ADDRESS, or starts on this
            machine.
        remote: Options of the task of a cell, such as `num_cpus`, `num_gpus`, `resources` and
            `max_retries`: how often Ray starts a cell again whose worker or node was lost.

    Raises:
        InputError: If Ray is not installed, or a cell was lost more often than `max_retries`.
    """

    def __init__(self, init: Mapping[str, Any], remote: Mapping[str, Any]) -> None:
        self.init, self.remote = dict(init), dict(remote)
        self.job: dict[str, Any] = {}

    def setup(self, **job: Any) -> None:
        self.job = job

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[Any]:
        ray: Any = import_optional("ray")
        began = not ray.is_initialized()
        if began:
            ray.init(**self.init)
        try:
            task = ray.remote(**self.remote)(_run_cell)
            environment = {n: os.environ[n] for n in (SWEEP, VARIED) if n in os.environ}
            shared = ray.put((self.job, Singleton.get_state(), str(Path.cwd()), environment))
            cells = enumerate(job_overrides, initial_job_idx)
            tasks = [task.remote(number, list(words), shared) for number, words in cells]
            # All cells are waited for, whatever becomes of one.
            ended = [_result(ray, reference) for reference in tasks]
            if lost := sum(isinstance(each, Exception) for each in ended):
                raise InputError(f"Ray has lost {lost} of {len(ended)} cells")
            return ended
        finally:
            if began:
                ray.shutdown()


def _result(ray: Any, task: Any) -> Any:
    """What a task has returned, or the error with which Ray has lost it."""
    try:
        return ray.get(task)
    except ray.exceptions.RayError as error:
        notify(f"a cell was lost by Ray: {' '.join(str(error).split())}")
        return error


def _run_cell(number: int, overrides: list[str], shared: Any) -> Any:
    """A cell, in a worker of Ray."""
    job, singletons, folder, environment = shared
    os.chdir(folder)
    os.environ.update(environment)
    setup_globals()
    Singleton.set_state(singletons)
    context = job["hydra_context"]
    config = context.config_loader.load_sweep_config(job["config"], overrides)
    with open_dict(config):
        config.hydra.job.id, config.hydra.job.num = f"{config.hydra.job.name}_{number}", number
    HydraConfig.instance().set_config(config)
    return run_job(job["task_function"], config, "hydra.sweep.dir", "hydra.sweep.subdir", context)
