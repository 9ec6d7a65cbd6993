"""Our plugins of Hydra: a sweeper with axes and single changes, and a launcher for Ray.

Hydra takes plugins from the namespace `hydra_plugins` only, in which this package is installed as
`hydra_plugins.soundingline`. It does not find packages of an editable installation there, so that
`soundingline.experiments.config.register` registers both classes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.core.singleton import Singleton
from hydra.core.utils import run_job, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict

from soundingline.experiments.cells import Cells
from soundingline.toolkit.console import notify
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.optional import import_optional
from soundingline.toolkit.runs.run_folder import SWEEP, VARIED


class ChangeSweeper(Sweeper):  # type: ignore[misc]
    """Hydra's sweeper with axes and single changes (`soundingline.experiments.cells`).

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
