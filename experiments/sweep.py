"""A sweep as a whole: what became of each cell, and the report over all of them.

Cells meet on disk only, so it does not matter which launcher ran them, on which machine, or in
which session. Hydra's sweeper raises where a cell failed, and then ends without a word to its
callbacks; so the report is written by the entry point, from what the cells have left on disk.
"""

from __future__ import annotations

import os
import re
import shutil
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.types import Sweep
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from hydra_plugins.soundingline import Cells, varied_options
from omegaconf import DictConfig, OmegaConf, flag_override

from soundingline.experiments.config import (
    Settings,
    check_keys,
    key_of,
    value_of,
)
from soundingline.experiments.refusals import refuse_secrets
from soundingline.experiments.slurm import slurm_watcher, wait_for_slurm
from soundingline.toolkit.console import Console, in_one_line, notify, users_frame
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.files import (
    dump_json,
    fingerprint,
    mark_obfuscated,
    read_json,
    write_quoting,
)
from soundingline.toolkit.obfuscation import is_obfuscated
from soundingline.toolkit.runs import RunFolder
from soundingline.toolkit.runs.run_folder import (
    CELLS,
    SWEEP,
    SWEEP_CELLS,
    VARIED,
    check_kind,
    evaluated_runs,
)

if TYPE_CHECKING:  # importing it takes longer than the help of a command
    from soundingline.toolkit.evaluation import EvaluatedRun

RECORD = "multirun.yaml"
JOBS = ".submitit"  # as our presets of launchers name it; a folder a job
RUNNING, DONE, FAILED = "running", "done", "failed"
# Reasons of cells that had not ended at Ctrl-C.
_INTERRUPTED = "interrupted"
_JOB = "submitted"
_OPEN = ("", _INTERRUPTED, _JOB)


class CellStatus(NamedTuple):
    """What became of a cell: its overrides, `running`, `done` or `failed`, and why it failed.
    `defect` is a traceback, empty for bad input. `shared_cause` is what may end other cells too, in
    a few words."""

    overrides: Sequence[str]
    state: str
    reason: str = ""
    defect: str = ""
    shared_cause: str = ""


class CellFailed(InputError):
    """A cell of a sweep had bad input, which has been reported. See `CellStatus`."""

    shared_cause = ""


class SweepRefused(BaseException):
    """Ends a sweep before its first cell. Hydra turns every `Exception` of a callback into a
    warning, and goes on."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass
class CommandSweep:
    """The sweep that a command starts, if it starts one.

    Args:
        command: the command.
        folder: where its cells and its report are.
        start: names this start, and the folder of its statuses; empty before it has started.
        cells: the number of different cells; 0 where the sweeper decides as it goes.
        submits_jobs: whether cells are jobs, which go on without this process.
        slurm: whether Slurm runs these jobs.
        logger: the option of that group.
        baseline: the factors of the cell to compare with.
        interrupted: whether Ctrl-C has ended it.
        unfinished: the cells that did not end well, once it has ended.
    """

    command: str = ""
    folder: Path = Path()
    start: str = ""
    cells: int = 0
    submits_jobs: bool = False
    slurm: bool = False
    logger: Any = None
    baseline: Mapping[str, str] = field(default_factory=dict)
    interrupted: bool = False
    unfinished: Sequence[CellStatus] = ()

    def statuses(self) -> list[CellStatus]:
        """What its cells have left; an unreadable status is that of a killed cell."""
        return [_status(path) for path in sorted(self._statuses.glob("*.json"))]

    @property
    def _statuses(self) -> Path:
        return self.folder / CELLS / self.start

    def wait_for_jobs(self) -> None:
        """Wait for the jobs that submitit has started, as jobs of Slurm or as processes of ours:
        its launcher raises where one was killed, while others still run or are queued again."""
        jobs = [folder.name for folder in (self.folder / JOBS).glob("*")]
        if self.slurm:
            # Of an array, each job has a folder of the form 123_0.
            wait_for_slurm(job for job in jobs if job.replace("_", "").isdigit())
            return
        for job in filter(str.isdigit, jobs):
            with suppress(ChildProcessError):  # it has ended, or belongs to an earlier session
                os.waitpid(int(job), 0)

    def end(self) -> None:
        """Compare every evaluated cell, and tell of the cells that did not end well. To be called
        when no cell runs any more, or when the sweep was interrupted, after which jobs may go on.
        `InputError` if all cells ended well and none is the baseline."""
        statuses = self.statuses()
        reason = _JOB if self.submits_jobs else _INTERRUPTED
        self.unfinished = [
            status._replace(reason=reason)
            if self.interrupted and status.state == RUNNING
            else status
            for status in statuses
            if status.state != DONE
        ]
        waiting = max(self.cells - len(statuses), 0)
        missing = self._report(waiting)
        _print_failures(self.unfinished, statuses)
        # Where no cell has begun, the error that ended the command says why.
        if self.unfinished or (waiting and statuses) or self.interrupted:
            notify(_how_many_are_left(self.unfinished, waiting))
            return
        # Those of other starts stay: two may overlap, and jobs may go on after Ctrl-C.
        shutil.rmtree(self._statuses, ignore_errors=True)
        if missing:
            raise missing

    def _report(self, waiting: int) -> InputError | None:
        """Compare the evaluated cells, and log the report. The error that no cell is the baseline,
        if none is."""
        cells = evaluated_runs(self.folder)
        if not cells:
            return None
        # Imported here: evaluating opens models, which a command that sweeps nothing need not.
        from soundingline.experiments.evaluate import MissingBaseline, compare_folders

        lines = self._published()
        if waiting:
            lines.append(f"{_cells(waiting)} not begun")
        missing = None
        try:
            compare_folders(
                cells,
                self.folder,
                title=self.folder.name,
                factors=self.baseline,
                unfinished=lines,
            )
        except MissingBaseline as error:
            missing = error
        if self.logger is not None:
            from soundingline.experiments.loggers import log_folder

            log_folder(self.logger, self.folder)
        return missing

    def _published(self) -> list[str]:
        """The lines for a report, which quotes nothing of an obfuscated benchmark."""
        unfinished = self.unfinished
        if is_obfuscated(self._statuses / "any"):
            reason = f"its reason is sealed, in {CELLS}"
            unfinished = [
                status._replace(reason=reason) if status.reason not in _OPEN else status
                for status in unfinished
            ]
        return [_line(status) for status in unfinished]


class SweepStart(Callback):
    """Hydra callback, before the first cell runs: gives the sweep a name where it has none, notes
    where it stands and how many cells it has, refuses a configuration with secrets before Hydra
    writes it to `multirun.yaml` there, and prints the threats to the validity of `soundingline
    run`. Each cell composes its own configuration from the files of options."""

    sweep: ClassVar[CommandSweep] = CommandSweep()  # of the command that runs in this process

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        with _refusing():
            _announce(config)

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        words: Any = OmegaConf.to_container(config.hydra.overrides.task, resolve=False)
        with _refusing():
            check_keys(config)
            if config.name is None:
                with flag_override(config, ["readonly", "struct"], [False, False]):
                    config.name = sweep_name([*words, *(config.hydra.sweeper.get("late") or ())])
                    config.hydra.overrides.task.append(f"name={config.name}")  # for each cell
            refuse_secrets((), config)
            folder = Path(config.hydra.sweep.dir)
            check_kind(folder, SWEEP_CELLS)
            cells = _cells_of(config, words)
            _announce(config, cells)
        for path in (folder / RECORD, folder / CELLS):
            if path.is_symlink():  # What is written there would land elsewhere.
                path.unlink()
        (folder / CELLS).mkdir(parents=True, exist_ok=True)  # which marks a sweep
        launcher, sweep = config.hydra.launcher._target_, SweepStart.sweep
        sweep.folder, sweep.cells = folder, len(set(map(tuple, cells)))
        sweep.submits_jobs, sweep.slurm = "submitit" in launcher, launcher.endswith("SlurmLauncher")
        sweep.logger = config.logger
        sweep.baseline = {str(key): str(value) for key, value in config.comparison.baseline.items()}
        sweep.start = fingerprint(os.getpid(), os.urandom(8).hex())
        if sweep.slurm:
            slurm_watcher()
        # Launchers hand the environment on to the processes and jobs that they start.
        os.environ[SWEEP] = sweep.start
        os.environ[VARIED] = " ".join(varied_options(cells))


@contextmanager
def _refusing() -> Iterator[None]:
    """A block of a callback whose errors end the command, instead of becoming warnings of Hydra."""
    try:
        yield
    except Exception as error:
        raise SweepRefused(error) from None


def _announce(config: DictConfig, cells: Sequence[Sequence[str]] | None = None) -> None:
    """Print the threats to the validity of what `soundingline run` is about to start."""
    if SweepStart.sweep.command == "run" and cells != []:
        # Imported here, because other commands need not wait for it.
        from soundingline.experiments.validity import announce

        announce(config, cells)


def _cells_of(config: DictConfig, words: Sequence[str]) -> list[list[str]]:
    """The overrides of each cell that our sweeper makes of these words of a command line; none for
    other sweepers, and for overrides that Hydra will refuse."""
    try:
        cells = Cells.of(config)
        return cells.named(GlobalHydra.instance().config_loader(), words) if cells else []
    except HydraException:
        return []


def sweep_name(overrides: Sequence[str]) -> str:
    """The name of a sweep without `name=`: a function of its overrides, so that the same command
    resumes the same sweep and a different one gets its own folder."""
    chosen = dict(item.split("=", 1) for item in overrides if "=" in item)
    benchmark = re.sub(r"[^\w.+-]", "-", chosen.get("benchmark", "sweep").replace(",", "+"))
    return f"{benchmark}-{fingerprint(sorted(overrides))[:6]}"


def check_name(overrides: Iterable[str]) -> None:
    """`InputError` for a `name=` that names no folder, or several. The folder of a sweep is written
    before its first cell could refuse it."""
    for text in overrides:
        if key_of(text) != "name" or "=" not in text:
            continue
        name = value_of(text)
        if isinstance(name, Sweep):
            raise InputError(f"{text} gives several names", valid="one, for all cells")
        if isinstance(name, str) and "${" not in name:
            RunFolder.named("", name)


def is_first(settings: Settings, cause: str) -> bool:
    """Whether no other cell of this sweep has reported a cause that ends each of them."""
    if not settings.multirun:
        return True
    try:
        (cells_folder(settings) / f"reported-{fingerprint(cause)}").touch(exist_ok=False)
    except FileExistsError:
        return False
    except OSError:  # such as a full disk, which is to be reported
        return True
    return True


@contextmanager
def recorded_cell(settings: Settings) -> Iterator[None]:
    """Around one cell of a sweep: its status on disk. A cell that is killed stays `running`."""
    overrides = list(map(str, settings.overrides))
    path = cells_folder(settings) / f"{fingerprint(overrides)}.json"
    status = CellStatus(overrides, RUNNING)
    write_quoting(path, dump_json(status._asdict()))
    try:
        yield
        status = CellStatus(overrides, DONE)
    except CellFailed as error:
        status = CellStatus(overrides, FAILED, str(error), shared_cause=error.shared_cause)
        raise
    except KeyboardInterrupt:  # no defect, whose traceback would be worth reading
        status = CellStatus(overrides, FAILED, _INTERRUPTED)
        raise
    except BaseException as error:
        reason = f"{type(error).__name__}: {error}"
        status = CellStatus(overrides, FAILED, reason, traceback.format_exc())
        raise
    finally:
        write_quoting(path, dump_json(status._asdict()))


def optimized_value(run: EvaluatedRun, config: DictConfig, command: str) -> float | None:
    """The measure of a cell that is returned to an optimising sweeper: `optimized_metric`, else the
    objective of a tuning, or the main measure of the sweep's report. None for a run without
    measures; `InputError` for a metric that the run does not have."""
    # Imported here, like the evaluation in `CommandSweep`.
    from soundingline.toolkit.evaluation.comparison import TESTED
    from soundingline.toolkit.report.measures import main_measure

    metric = config.optimized_metric
    if metric and metric not in run.metrics:
        raise InputError(
            f"optimized_metric={metric} is not a measure of {run.name}",
            valid=", ".join(run.metrics) or "none",
            do="name one of them, or add it to measures=",
        )
    main = config.tuning.objective if command == "tune" else config.comparison.primary
    return run.metrics.get(metric or main or main_measure(run.metrics, TESTED))


def cells_folder(settings: Settings) -> Path:
    """The folder that the cells of this start of a sweep share."""
    cells = Path(settings.config.paths.runs) / str(settings.config.name) / CELLS
    return cells / os.environ.get(SWEEP, "")


def _status(path: Path) -> CellStatus:
    try:
        return CellStatus(**read_json(path, CellStatus))
    except InputError:
        return CellStatus([path.stem], RUNNING)


def obfuscate_cells(settings: Settings) -> None:
    """Obfuscate the status of this sweep's cells: the reason of a failure may quote texts."""
    if settings.multirun:
        mark_obfuscated(cells_folder(settings))


def _print_failures(unfinished: Sequence[CellStatus], statuses: Sequence[CellStatus]) -> None:
    console = Console(stderr=True, soft_wrap=True)
    for group in _by_reason(unfinished):
        console.print(_summary(group, statuses))
        for status in filter(lambda status: status.defect, group):
            console.print(status.defect)
            if users_frame(status.defect):
                console.print(in_one_line(status.defect))


def _how_many_are_left(unfinished: Sequence[CellStatus], waiting: int) -> str:
    counts = Counter(status.reason for status in unfinished if status.reason in _OPEN[1:])
    counts["failed"] = len(unfinished) - counts.total()
    counts["not started"] = waiting
    words = {_JOB: "submitted and may still run"}
    shown = [f"{count} {words.get(name, name)}" for name, count in counts.items() if count]
    faulty = any(status.reason not in _OPEN for status in unfinished)
    after = "correct the cause, and " if faulty else ""
    return f"{', '.join(shown) or _INTERRUPTED}; {after}the same command continues"


def _by_reason(unfinished: Sequence[CellStatus]) -> list[list[CellStatus]]:
    """The cells that failed, those with the same cause or reason together. A cell with a defect,
    or without a reason, is alone."""
    groups: dict[Any, list[CellStatus]] = {}
    for number, status in enumerate(unfinished):
        if status.reason not in _OPEN[1:]:
            alone = number if status.defect or not status.reason else -1
            groups.setdefault((status.shared_cause or status.reason, alone), []).append(status)
    return list(groups.values())


def _summary(group: Sequence[CellStatus], statuses: Sequence[CellStatus]) -> str:
    """A line on the cells that failed for one reason, named by the overrides in which the cells of
    the sweep differ. The first cell has reported a shared cause in full."""
    first = group[0]
    if len(group) == 1 and not first.shared_cause:
        return _line(first)
    common = set.intersection(*(set(each.overrides) for each in statuses))
    words = [[word for word in each.overrides if word not in common] for each in group]
    names = sorted(" ".join(each) or "no change" for each in words)
    shown = f" ({'; '.join(names)})" if any(words) else ""
    return f"{_cells(len(group))} failed{shown}: {first.shared_cause or first.reason}"


def _cells(number: int) -> str:
    return "1 cell" if number == 1 else f"{number} cells"


def _line(status: CellStatus) -> str:
    cell = f"The cell {' '.join(status.overrides) or 'without overrides'}"
    if status.reason == _INTERRUPTED:
        return f"{cell} was interrupted"
    if status.reason == _JOB:
        return f"{cell} had not ended, and its job may still run"
    return f"{cell} failed: {status.reason or 'it was killed, or its job never ended'}"
