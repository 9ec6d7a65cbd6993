"""Replaying a run: its recorded searches through another pipeline."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Quote, QuotedString

from soundingline.agents.base import Budget
from soundingline.experiments.build import make, make_search_tool
from soundingline.experiments.config import Settings, key_of
from soundingline.experiments.evaluate import ComparisonOptions, compare_folders
from soundingline.experiments.naming import (
    RANKING,
    cell_folder,
    cell_name,
    factors,
    fingerprints,
)
from soundingline.experiments.pipeline import (
    build_pipeline,
    parts_of,
    with_literature_tools,
)
from soundingline.experiments.recorded import recorded_benchmark
from soundingline.experiments.run_context import open_run
from soundingline.pipelines.backend import PipelineBackend
from soundingline.toolkit.benchmarks.benchmark import Benchmark
from soundingline.toolkit.console import Console, track
from soundingline.toolkit.data import DocumentStore
from soundingline.toolkit.errors import InputError, check_int
from soundingline.toolkit.evaluation import evaluate_run, write_evaluation
from soundingline.toolkit.evaluation.agent_run import without_texts
from soundingline.toolkit.evaluation.funnel import relevant_documents
from soundingline.toolkit.evaluation.replay import (
    EFFORT,
    PREFIX,
    TIERS,
    Replay,
    calls_until_evidence,
    first_calls,
    replay,
    without_answer,
)
from soundingline.toolkit.files import write_json
from soundingline.toolkit.queries import parse_query
from soundingline.toolkit.runs import RunFolder
from soundingline.toolkit.runs.manifest import SEALED
from soundingline.toolkit.runs.run_folder import RECORDED, REPLAYS, check_kind, evaluated_runs
from soundingline.toolkit.search.session import SearchTool
from soundingline.toolkit.trajectory import Trajectory

# Groups whose settings decide what the pages of a replay show.
REPLAYED = (*RANKING, "tool", "scorer", "list_reranker")
TESTED = ("recall_surfaced", "recall_previewed", "recall_opened", *EFFORT, "first_evidence_call")
_TOOLS = {"browsecomp_plus": "top_k", "pi_serini": "pi_serini"}
_BEFORE_CHANGE = (*(f"recall_{tier}" for tier in TIERS), *EFFORT)
_KEPT = (*_BEFORE_CHANGE, "search_calls", "tool_errors")


@dataclass
class ReplayedSide:
    """One side of a comparison: trajectories without texts, values by measure and question, and of
    a replay the trajectories before the first changed page."""

    rows: list[Trajectory] = field(default_factory=list)
    values: dict[str, dict[str, float]] = field(default_factory=dict)
    heads: list[Trajectory] = field(default_factory=list)

    def add(self, row: Trajectory, values: Mapping[str, float | None]) -> None:
        """One question."""
        self.rows.append(without_texts(row))
        for name, value in values.items():
            if value is not None:
                self.values.setdefault(name, {})[row.qid] = value


class Replaying:
    """Recorded runs through a backend. `recorded` and `replayed` are the two sides, `calls` the
    numbers of calls, of unchanged ones, and of queries with operators by question; `evidence` are
    relevant docids by qid."""

    def __init__(
        self,
        backend: PipelineBackend,
        store: DocumentStore,
        search_tool: SearchTool,
        evidence: Mapping[str, frozenset[str]],
    ) -> None:
        self.recorded, self.replayed = ReplayedSide(), ReplayedSide()
        self.calls: dict[str, dict[str, int]] = {}
        self._backend = backend
        self._store = store
        self._search_tool = search_tool
        self._evidence = evidence

    def replay(self, run: RunFolder, concurrency: int) -> None:
        """Replay every question, at most `concurrency` at once, and twice as many in memory."""
        pending = track(run.trajectories(), "Replaying", len(run.statuses()))
        with ThreadPoolExecutor(concurrency, "replay") as pool:
            waiting = deque(pool.submit(self._one, one) for one in islice(pending, 2 * concurrency))
            while waiting:
                self._add(*waiting.popleft().result())
                waiting.extend(pool.submit(self._one, one) for one in islice(pending, 1))

    def _one(self, recorded: Trajectory) -> tuple[Trajectory, Replay]:
        session = self._search_tool.open(self._backend.for_question(recorded.qid), self._store)
        relevant = self._evidence.get(recorded.qid, frozenset())
        return without_answer(recorded, recorded.calls), replay(recorded, session, relevant)

    def _add(self, before: Trajectory, after: Replay) -> None:
        relevant = self._evidence.get(before.qid, frozenset())
        self.recorded.add(before, _first(before, relevant))
        compared = {"overlap@10": after.overlap, "evidence_moved": after.moved}
        share = {"unchanged_calls": after.unchanged / after.calls if after.calls else 1.0}
        values = {**share, **compared, **_first(after.trajectory, relevant)}
        self.replayed.add(after.trajectory, values)
        self.replayed.heads.append(without_texts(first_calls(after.trajectory, after.unchanged)))
        queries = [parse_query(call.query) for call in before.calls if call.query is not None]
        self.calls[before.qid] = {
            "calls": after.calls,
            "unchanged": after.unchanged,
            "queries": len(queries),
            "with_phrases": sum(bool(query.phrases) for query in queries),
            "with_exclusions": sum(bool(query.excluded) for query in queries),
        }


def replay_run(settings: Settings, run: Path) -> None:
    """Send the recorded calls of a run through another pipeline; no agent's model is asked.

    The queries of each question are sent in their order, and what the pages would have shown is
    measured and tested against what was recorded. What an agent would have seen differs from its
    first changed page on: `<measure>_unchanged` counts the calls before that point alone, and
    `unchanged_calls` is their share. Each replay is a cell of `runs/<name=>`, which holds the
    report; the tool is the recorded one, or the one that its format has.
    """
    recorded = RunFolder(run)
    manifest = recorded.manifest()
    name = settings.config.name or f"{recorded.name[:150]}-replay"
    root = RunFolder.named(Path(settings.config.paths.runs), name).path
    check_kind(root, REPLAYS)
    if not recorded.has_trajectories():
        raise InputError(f"the run {recorded.path} has no trajectories", do="replay one that has")
    benchmark = recorded_benchmark(recorded, settings)
    settings = with_tool(settings, manifest)
    config = settings.config
    check_int("concurrency", config.concurrency)
    search_tool = make_search_tool(config.tool)
    folder = cell_folder(root, cell_name(settings, REPLAYED))
    budget: Budget = make(config.budget)
    built = build_pipeline(config, budget, benchmark)
    search_tool, operator_prints = with_literature_tools(search_tool, built, config)
    described = dict(manifest.get("factors", {}))
    same = {name: value for name, value in described.items() if name.startswith("benchmark")}
    chosen = {**factors(settings, REPLAYED), **same, "agent": "replay"}
    prints = {
        **fingerprints(settings, built, REPLAYED),
        **operator_prints,
        "replayed": recorded.state(),
    }
    backend = PipelineBackend(built.pipeline)
    evidence = relevant_documents(benchmark.qrels.get("evidence", {}))
    replaying = Replaying(backend, built.collection.store, search_tool, evidence)
    of_benchmark = manifest.get("benchmark") or {}
    (root / RECORDED).mkdir(parents=True, exist_ok=True)  # from here on a folder of replays
    with open_run(settings, folder, prints, chosen, budget, of_benchmark) as context:
        with context.running(built.stages, parts_of(search_tool, built)):
            replaying.replay(recorded, config.concurrency)
        write_json(folder.path / "replay.json", replaying.calls)
        _write(folder, replaying.replayed, benchmark)
    reference = RunFolder.named(root, RECORDED)
    described["agent"] = RECORDED
    shared = {name: prints[name] for name in ("benchmark", SEALED, "replayed") if name in prints}
    with reference.writing({**context.manifest, "factors": described, "fingerprints": shared}):
        _write(reference, replaying.recorded, benchmark)
    _tell(recorded, replaying.calls)
    cells = evaluated_runs(root)
    ordered = [reference.path, *(cell for cell in cells if cell.name != RECORDED)]
    compare_folders(ordered, root, ComparisonOptions(TESTED, RECORDED), title=root.name)


def with_tool(settings: Settings, manifest: Mapping[str, Any]) -> Settings:
    """With the tool that the run was made with, where the command line chooses none: the option of
    its name here, with the plain values that its manifest holds. Likewise with its scorer."""
    chosen = {key_of(item).partition(".")[0] for item in settings.overrides}
    if "tool" in chosen:
        return settings
    imported = manifest.get("imported") or {}
    name = manifest.get("factors", {}).get("tool") or _TOOLS.get(str(imported.get("format")), "")
    if name not in settings.option_names("tool"):
        return settings
    recorded = _as_recorded(settings, manifest, "tool", name)
    scorer = manifest.get("factors", {}).get("scorer")
    if scorer in settings.option_names("scorer") and "scorer" not in chosen:
        recorded += _as_recorded(settings, manifest, "scorer", scorer)
    return Settings.compose([*settings.overrides, *recorded], settings.search_path)


def _as_recorded(
    settings: Settings, manifest: Mapping[str, Any], group: str, name: str
) -> list[str]:
    """The overrides that choose the option `name` of a group, with the manifest's plain values. A
    text that refers to other values is left out: whose manifest it is may be anybody."""
    option = settings.option(group, name)
    recorded = (manifest.get("config") or {}).get(group)
    overrides = [f"{group}={name}"]
    for key, value in recorded.items() if isinstance(recorded, Mapping) else ():
        plain = isinstance(value, (bool, int, float, str, type(None))) and "${" not in str(value)
        if plain and key in option and not key.startswith("_") and value != option[key]:
            written = "null" if value is None else str(value)
            if isinstance(value, str):
                written = QuotedString(value, Quote.single).with_quotes()
            overrides.append(f"{group}.{key}={written}")
    return overrides


def _first(trajectory: Trajectory, relevant: frozenset[str]) -> dict[str, float]:
    return {"first_evidence_call": calls_until_evidence(trajectory, relevant)} if relevant else {}


def _write(folder: RunFolder, side: ReplayedSide, benchmark: Benchmark) -> None:
    """The evaluation of one side: what is retrieved and shown, and no answer."""
    judged = Benchmark(benchmark.name, benchmark.topics, benchmark.qrels)  # without answers
    evaluation = evaluate_run(side.rows, judged, measures=())
    per_question = evaluation.per_question
    heads = evaluate_run(side.heads, judged, measures=()).per_question if side.heads else {}
    values = {
        **{name: per_question[name] for name in _KEPT if name in per_question},
        **side.values,
        **{f"{name}{PREFIX}": heads[name] for name in _BEFORE_CHANGE if name in heads},
    }
    write_evaluation(folder.path, evaluation.with_values(values), state=folder.state())


def _tell(run: RunFolder, shares: Mapping[str, Mapping[str, int]]) -> None:
    total = sum(map(Counter, shares.values()), Counter[str]())
    calls, unchanged, queries = total["calls"], total["unchanged"], total["queries"]
    console = Console(stderr=True, soft_wrap=True)
    console.print(
        f"{calls:,} calls of {len(shares):,} questions; {unchanged:,} "
        f"({unchanged / max(1, calls):.1%}) before the first changed page of their question"
    )
    if queries:
        console.print(
            f"{queries:,} recorded queries: {total['with_phrases'] / queries:.1%} with a quoted "
            f"phrase, {total['with_exclusions'] / queries:.1%} with an exclusion "
            "(+retriever.operators=phrases honours them)"
        )
    if "imported" in run.manifest():
        console.print(
            "the run was imported: pages of a tool that is not ours differ from the first one on"
        )
