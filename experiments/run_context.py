"""What surrounds every command that writes a run: its manifest, its lock, the ledger of its
requests, the servers that it may share, and the counts of its stages."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from soundingline.agents.base import Agent, Budget
from soundingline.agents.keyword import SimulatedReader
from soundingline.experiments.build import make
from soundingline.experiments.config import Settings, plain_values
from soundingline.experiments.naming import claim_cell
from soundingline.experiments.pipeline import (
    BoundPipeline,
    Stages,
    chosen_parameters,
    stage_counts,
)
from soundingline.experiments.recorded import recorded_option
from soundingline.pipelines.backend import PipelineBackend
from soundingline.pipelines.stage import matching_of
from soundingline.toolkit.llm.client import LanguageModel
from soundingline.toolkit.llm.ledger import Ledger, open_ledger
from soundingline.toolkit.llm.local_servers import Servers
from soundingline.toolkit.runs import RunFolder, make_manifest
from soundingline.toolkit.search.session import SearchTool

# The servers of a sweep, in the process that runs its cells. They end with the sweep
# (`end_servers`), or else with the process.
_OF_SWEEP = Servers()


@dataclass(frozen=True)
class RunContext:
    """A locked run folder with its manifest, ledger and servers."""

    folder: RunFolder
    manifest: Mapping[str, Any]
    ledger: Ledger
    servers: Servers

    @contextmanager
    def running(
        self,
        stages: Stages,
        parts: Mapping[str, Any] | None = None,
        llm: LanguageModel | None = None,
        *,
        timed: bool = True,
    ) -> Iterator[dict[str, dict[str, float]]]:
        """The language models of `stages` run during the block, which gets an empty mapping. When
        the block ends, in whichever way, it holds what `parts` have counted since its beginning,
        the GPU seconds of the servers on this machine, also of `llm`, the agent's model. That,
        the parameters that the parts chose and, if it is `timed`, the times of the block are added
        to the manifest."""
        counted: dict[str, dict[str, float]] = {}
        parts, began = parts or {}, time.monotonic()
        before = stage_counts(parts)
        self.folder.note("chosen_parameters", chosen_parameters(parts))
        run = f"{self.folder.manifest()['created']} {self.folder.name}"
        try:
            with (
                self.folder.timed() if timed else nullcontext(),
                stages.asking(self.ledger, self.folder.path, self.servers, run) as versions,
            ):
                self.folder.note_servers(versions)
                yield counted
        finally:
            counted |= stage_counts(parts, before)
            models = [
                *((group, model) for group, (_, model) in stages.models.items()),
                ("llm", llm),
            ]
            # A model that several ask has one server.
            held = {model.name: (group, model) for group, model in models if model}
            for group, model in held.values():
                if gpus := getattr(getattr(model, "server", None), "gpus", 0):
                    seconds = round(gpus * (time.monotonic() - began), 3)
                    counted.setdefault(group, {})["gpu_seconds"] = seconds
            self.folder.add_counts(counted)


class RunJudge(NamedTuple):
    """The judge of runs, its language model (None: it asks none), and the dollars that the command
    line lets a run spend (None: no cap)."""

    judge: Any
    llm: LanguageModel | None
    cap: float | None


@dataclass(frozen=True)
class Components:
    """One agent for each repeat of the questions, its language model and budget, the pipeline, the
    search tool, what counts in both (`parts`), and the judge of the answers."""

    agents: Sequence[Agent]
    llm: LanguageModel | None
    budget: Budget
    built: BoundPipeline
    search_tool: SearchTool
    backend: PipelineBackend
    parts: Mapping[str, Any]
    judge: RunJudge
    reader: SimulatedReader | None = None

    @property
    def rollouts(self) -> int:
        """The number of questions, repeats included."""
        return len(self.built.benchmark.topics) * len(self.agents)

    @property
    def asks_model(self) -> bool:
        """Whether the agent or a stage of the pipeline asks a language model."""
        return bool(self.llm or self.built.stages.models)

    def session(self, qid: str) -> SearchTool:
        """The search tool for one question."""
        backend, store = self.backend.for_question(qid), self.built.collection.store
        matching = matching_of(self.built.parts.get("retriever"))
        return self.search_tool.open(backend, store, matching=matching)


@contextmanager
def open_run(
    settings: Settings,
    folder: RunFolder,
    prints: Mapping[str, str],
    factors: Mapping[str, str],
    budget: Budget,
    benchmark: Mapping[str, Any] | None = None,
    *,
    question_cap: bool = False,
) -> Iterator[RunContext]:
    """Lock a run folder, write its manifest, and open its ledger.

    Args:
        settings: the configuration.
        folder: the run folder.
        prints: the fingerprints that must be equal if the run is resumed.
        factors: the run's coordinates in a comparison.
        budget: its `run_dollars` cap what the run may spend.
        benchmark: how the manifest describes the benchmark; None for the configuration's option.
        question_cap: whether its `dollars` cap what a question may spend.

    Raises: InputError: if the folder holds a run with other fingerprints, or is locked.
    """
    config = settings.config
    if config.logger is not None:
        make(config.logger)  # which refuses what is wrong before anything is written
    described = recorded_option(settings) if benchmark is None else benchmark
    manifest = make_manifest(plain_values(config), dict(prints), dict(factors), dict(described))
    folder = claim_cell(settings, folder)
    caps = {"cap": budget.run_dollars, "question_cap": budget.dollars if question_cap else None}
    with (
        folder.writing(manifest),
        open_ledger(folder.ledger_path, **caps) as ledger,
        nullcontext(_OF_SWEEP) if settings.multirun else Servers() as servers,
    ):
        yield RunContext(folder, manifest, ledger, servers)
    if config.logger is not None:
        from soundingline.experiments.loggers import log_folder

        log_folder(config.logger, folder.path)


def end_servers() -> None:
    """End the servers that cells of a sweep have left running for each other."""
    _OF_SWEEP.close()


@contextmanager
def running(
    llm: LanguageModel | None, log: Path, servers: Servers | None = None
) -> Iterator[Mapping[str, LanguageModel]]:
    """`model`, ready for requests during the block; nothing without a model. A server that is
    started writes to `log`; `servers` are those that run already. `Unreachable` if there is no
    connection to its server, so that no question waits for one."""
    if llm is None:
        yield {}
        return
    with llm.running(log, servers) as model:
        model.reach()
        yield {"model": model}
