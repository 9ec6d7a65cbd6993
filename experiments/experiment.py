"""`Experiment`: a cell in Python, without a command line."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pyterrier as pt
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from soundingline.experiments.config import Settings, search_path_to
from soundingline.experiments.refusals import refusal_line
from soundingline.toolkit.console import silent
from soundingline.toolkit.errors import InputError, check_call

if TYPE_CHECKING:
    from soundingline.experiments.pipeline import BoundPipeline
    from soundingline.toolkit.evaluation import EvaluatedRun


# What builds, ranks, runs and evaluates is imported where it is called: composing need not wait.
class Experiment:
    """One configuration: a benchmark, a pipeline over its corpus, a search tool and an agent.

    `Experiment.compose("benchmark=vaswani", "unit=maxp", "retriever=bm25_tuned")` takes what the
    command line takes, without a Hydra application. Nothing is read or built before it is needed;
    what cannot work is an `InputError` before an index is built. An index is opened once.

    Args:
        settings: the composed configuration.
        verbose: whether to print tables and progress as the commands do. Warnings always are.

    Example:
        >>> experiment = Experiment.compose("unit=maxp", "retriever=bm25_tuned")
        >>> experiment
        Experiment.compose('unit=maxp', 'retriever=bm25_tuned')
        >>> experiment.rank().to_frame()  # doctest: +SKIP
    """

    def __init__(self, settings: Settings, *, verbose: bool = False) -> None:
        self.settings, self.verbose = settings, verbose

    @classmethod
    @check_call
    def compose(
        cls, *overrides: str, config_dir: Path | str | None = None, verbose: bool = False
    ) -> Experiment:
        """The experiment of these overrides; `config_dir` is a folder of options of one's own.
        `InputError` for what cannot be composed."""
        try:
            return cls(Settings.compose(overrides, search_path_to(config_dir)), verbose=verbose)
        except (HydraException, OmegaConfBaseException) as error:
            raise InputError(refusal_line(error)) from error

    def pipeline(self) -> pt.Transformer:
        """The pipeline as a PyTerrier transformer, over indexes that are built where they are
        missing. Stages that ask a language model rank inside `rank` and `run` only."""
        return self.built.pipeline

    @cached_property
    def built(self) -> BoundPipeline:
        """Benchmark, document store, opened indexes, and the pipeline over them."""
        from soundingline.experiments.build import make
        from soundingline.experiments.pipeline import build_pipeline

        with self._printing():
            config = self.settings.config
            return build_pipeline(config, make(config.budget))

    def rank(self) -> EvaluatedRun:
        """Rank the benchmark's questions without an agent; as `soundingline rank`."""
        from soundingline.experiments.rank import rank

        with self._printing():
            return rank(self.settings, lambda: self.built)

    def run(self) -> EvaluatedRun:
        """Let the agent answer the questions, or go on where it stopped; as
        `soundingline run`."""
        from soundingline.experiments.run import run

        with self._printing():
            return run(self.settings, lambda: self.built)

    def evaluate(self) -> EvaluatedRun:
        """Evaluate again what the run folder holds; no agent runs."""
        from soundingline.experiments.build import make
        from soundingline.experiments.evaluate import evaluate_recorded, make_judge
        from soundingline.experiments.naming import cell_name, run_folder
        from soundingline.experiments.recorded import recorded_benchmark

        folder = run_folder(self.settings, cell_name(self.settings))
        benchmark = recorded_benchmark(folder, self.settings)
        with self._printing():
            config = self.settings.config
            judge = make_judge(config, make(config.budget))
            return evaluate_recorded(folder, benchmark, config, judge)

    def _printing(self) -> AbstractContextManager[None]:
        return nullcontext() if self.verbose else silent()

    def __repr__(self) -> str:
        overrides = ", ".join(map(repr, self.settings.overrides))
        return f"Experiment.compose({overrides})"
