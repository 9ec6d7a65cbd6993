"""`soundingline export runs/<name> format=... out=FOLDER`: a run in the format of another program.

browsecomp_plus: run files of BrowseComp-Plus, one a question.
leaderboard: an entry of BrowseComp-Plus's leaderboard; the run must be evaluated.
trec: the final ranking of each question as a TREC run; also of a run of `soundingline rank`.
inspect, inspect_json: a log of Inspect AI, .eval or .json, for `inspect view`.
judgements: the scores of a navigator's scorer with the passages, to train a smaller scorer.
scorer=file reads them too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

from soundingline.experiments.cli import CommandParser, one_path, run_command
from soundingline.experiments.config import Settings
from soundingline.experiments.pipeline import evidence_passages
from soundingline.experiments.recorded import Options, recorded_benchmark
from soundingline.toolkit.console import Console, notify
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.evaluation import EvaluatedRun, final_ranking, load_run
from soundingline.toolkit.evaluation.agent_run import without_texts
from soundingline.toolkit.evaluation.evaluation import (
    RANKINGS,
    read_rankings,
    trec_run,
)
from soundingline.toolkit.exchange import browsecomp_plus, inspect_ai
from soundingline.toolkit.files import (
    atomic_file,
    atomic_folder,
    dump_json,
    fingerprint,
    write_json,
    write_text,
)
from soundingline.toolkit.llm.prices import AGENTS
from soundingline.toolkit.runs import RunFolder
from soundingline.toolkit.runs.run_folder import escape_qid
from soundingline.toolkit.search.scoring import training_rows

_RETRIEVAL = ("unit", "rewriter", "retriever", "reranker")


def export(settings: Settings, paths: Sequence[str], *, format: str, out: str) -> None:
    """Write the run in the folder `paths[0]` into the folder `out`, whole or not at all."""
    folder, target = RunFolder(one_path(paths, "a run folder")), Path(out)
    folder.manifest()
    _check_content(folder, format)
    if target.exists() and any(target.iterdir() if target.is_dir() else [target]):
        raise InputError(f"{out} exists and is not empty", do="name another out=")
    if folder.manifest().get("sealed"):
        notify(f"{folder.path} is of a sealed benchmark; the export holds its texts in the clear")
    with atomic_folder(target) as unfinished:
        message = _WRITERS[format](folder, unfinished, settings)
    Console(stderr=True, soft_wrap=True).print(f"{out}: {message}")


def _check_content(folder: RunFolder, format: str) -> None:
    """`InputError` if the folder contains nothing for this format."""
    if folder.has_trajectories():
        if format != "judgements" and (repeats := len(folder.repeats())) > 1:
            notify(f"{folder.path} has {repeats} repeats; the first one is exported")
        return
    ranked = bool(_ranked(folder))
    if format == "trec" and ranked:
        return
    raise InputError(
        f"{folder.path} has rankings and no trajectories"
        if ranked
        else f"{folder.path} has neither trajectories nor rankings",
        valid="format=trec for a run of `soundingline rank`, any format for one of "
        "`soundingline run`",
        do="set format=trec" if ranked else "name another run",
    )


def _ranked(folder: RunFolder) -> str:
    """The rankings of a run without trajectories as a TREC run; empty without rankings."""
    return read_rankings(folder) if (folder.path / RANKINGS).is_file() else ""


def _browsecomp_plus(folder: RunFolder, out: Path, settings: Settings) -> str:
    metadata = {"model": _model(folder), "output_dir": folder.name}
    for trajectory in folder.trajectories():
        name = f"run_{escape_qid(trajectory.qid)}.json"
        write_json(out / name, browsecomp_plus.write(trajectory, metadata))
    return f"{len(list(out.iterdir()))} run files"


def _trec(folder: RunFolder, out: Path, settings: Settings) -> str:
    if not folder.has_trajectories():
        text = _ranked(folder)
        write_text(out / f"{folder.name}.trec", text, clear=True)
        return f"the rankings of {len({line.split()[0] for line in text.splitlines()})} questions"
    with atomic_file(out / f"{folder.name}.trec") as stream:
        for trajectory in folder.trajectories():
            ranking = {trajectory.qid: final_ranking(trajectory)}
            stream.write(trec_run(ranking, folder.name).encode())
    return "the final ranking of each question"


def _judgements(folder: RunFolder, out: Path, settings: Settings) -> str:
    benchmark = recorded_benchmark(folder, settings, Options(settings))
    passages = evidence_passages(benchmark, settings.config).store
    rows = 0
    with atomic_file(out / f"{folder.name}.jsonl") as stream:
        for part in folder.repeats():
            for trajectory in part.trajectories():
                for row in training_rows(trajectory, passages, part.number):
                    stream.write(dump_json(row, indent=None).encode())
                    rows += 1
    if not rows:
        raise InputError(
            f"no document of {folder.path} was scored",
            valid="a run of agent=navigator with a scorer",
            do="name such a run",
        )
    return f"{rows} documents with the scores of their requirements"


def _leaderboard(folder: RunFolder, out: Path, settings: Settings) -> str:
    benchmark = recorded_benchmark(folder, settings, Options(settings))
    cell = load_run(folder.path)  # refuses a run without an evaluation of its own
    manifest = folder.manifest()
    rows = [without_texts(trajectory) for trajectory in folder.trajectories()]
    right = {qid: value == 1 for qid, value in cell.per_question.get("accuracy", {}).items()}
    accepted = {qid: texts for qid, texts in benchmark.answers.items() if texts}
    if not accepted:
        raise InputError(f"{benchmark.name} has no accepted answers", do="choose another format=")
    evaluated = (folder.path / "metrics.json").stat().st_mtime
    content = browsecomp_plus.leaderboard_entry(
        rows,
        right,
        accepted,
        benchmark.qrels.get("evidence", {}),
        llm=_model(folder),
        retriever=_retriever(manifest),
        date=datetime.fromtimestamp(evaluated, timezone.utc).date().isoformat(),
    )
    write_json(out / f"{folder.name}.json", content)
    files, questions = len(content["per_query_metrics"]), len(benchmark.topics)
    accuracy = cell.metrics.get("accuracy", 0.0)
    return (
        f"accuracy {content['Accuracy (%)']} % of {files} files, as the published evaluator "
        f"counts; {100 * accuracy:.2f} % of all {questions} questions"
    )


def _inspect(folder: RunFolder, out: Path, settings: Settings) -> str:
    return _inspect_log(folder, out, settings, "eval")


def _inspect_json(folder: RunFolder, out: Path, settings: Settings) -> str:
    return _inspect_log(folder, out, settings, "json")


def _inspect_log(folder: RunFolder, out: Path, settings: Settings, form: str) -> str:
    """A log with the scores of the run's evaluation, if there is one."""
    benchmark = recorded_benchmark(folder, settings, Options(settings))
    manifest, model = folder.manifest(), _model(folder)
    cell = (
        load_run(folder.path)
        if (folder.path / "metrics.json").exists()
        else EvaluatedRun(name=folder.name)
    )
    scored = [name for name in cell.per_question if name.startswith(_SCORES)]
    head = inspect_ai.header(
        folder.name,
        created=str(manifest.get("created", "1970-01-01T00:00:00+00:00")),
        identity=fingerprint(folder.name, folder.state()),
        benchmark=benchmark.name,
        model=model,
        factors=_factors(manifest),
        versions=manifest.get("versions", {}),
        means={name: cell.metrics[name] for name in scored},
        sample_ids=list(folder.statuses()),
    )
    samples = (
        inspect_ai.sample(
            trajectory,
            model=model,
            target=benchmark.answers.get(trajectory.qid, ()),
            scores={
                name: cell.per_question[name][trajectory.qid]
                for name in scored
                if trajectory.qid in cell.per_question[name]
            },
        )
        for trajectory in folder.trajectories()
    )
    path = out / inspect_ai.log_name(head, form)
    return f"{inspect_ai.write(path, head, samples)} samples"


def _model(folder: RunFolder) -> str:
    """The language model of the agent, or the name of an agent without one."""
    manifest = folder.manifest()
    imported = manifest.get("imported") or {}
    llm = (manifest.get("config") or {}).get("llm") or {}
    factors = manifest.get("factors") or {}
    configured = llm.get("model") if isinstance(llm, Mapping) else None
    # A configuration may name a model that only the stages of the pipeline use.
    agents_model = configured if configured and _agent_asked(folder) else None
    return str(imported.get("model") or agents_model or factors.get("agent") or "unknown")


def _agent_asked(folder: RunFolder) -> bool:
    """Whether the agent used a language model, by the recorded usage."""
    counts = {f"{role}_calls" for role in AGENTS}
    return any(counts & set(trajectory.usage) for trajectory in folder.trajectories())


def _retriever(manifest: Mapping[str, Any]) -> str:
    """The options of the pipeline in their order, without those that are `none`."""
    factors = manifest.get("factors") or {}
    options = [str(factors.get(group, "none")) for group in _RETRIEVAL]
    return " ".join(option for option in options if option != "none") or "unknown"


def _factors(manifest: Mapping[str, Any]) -> dict[str, str]:
    """The run's factors as plain text."""
    return {str(name): str(value) for name, value in (manifest.get("factors") or {}).items()}


_WRITERS: dict[str, Callable[[RunFolder, Path, Settings], str]] = {
    "browsecomp_plus": _browsecomp_plus,
    "leaderboard": _leaderboard,
    "trec": _trec,
    "judgements": _judgements,
    "inspect": _inspect,
    "inspect_json": _inspect_json,
}
_SCORES = ("accuracy", "answer_f1", "completion", "recall_", "citation_")


PARSER = CommandParser(__doc__, "RUN")
PARSER.add_argument("--format", required=True, choices=list(_WRITERS))
PARSER.add_argument("--out", required=True, metavar="FOLDER", help="the folder that is made")

start = partial(run_command, export, PARSER)
