"""`python -m experiments.export runs/<name> format=... out=FOLDER`: a run in a format of others.

browsecomp_plus: run files as BrowseComp-Plus's clients write them, one a question.
leaderboard: the JSON of its evaluator, which its leaderboard takes; needs an evaluated run.
trec: the final ranking of each question as a TREC run.
inspect, inspect_json: a log of Inspect AI, as .eval or .json, for `inspect view`.
judgements: what a navigator's scorer gave each document, with the passages: rows to train a smaller
scorer with, which scorer=file reads too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from experiments.entry import CommandParser, one_path, run_command
from experiments.operators import evidence_passages
from experiments.recorded import Options, recorded_benchmark
from experiments.settings import Settings
from toolkit.console import Console, tell
from toolkit.errors import InputError
from toolkit.evaluation import Cell, final_ranking, load_cell
from toolkit.evaluation.agent_run import lean
from toolkit.evaluation.store import trec_run
from toolkit.exchange import browsecomp_plus, inspect_log, leaderboard
from toolkit.exchange.inspect_samples import sample
from toolkit.exchange.judgements import judgement_rows
from toolkit.files import dump_json, file_made_whole, fingerprint, folder_made_whole, write_json
from toolkit.llm.accounts import AGENTS
from toolkit.runs import RunFolder
from toolkit.runs.names import escape_qid

_RETRIEVAL = ("unit", "rewriter", "retriever", "reranker")


def export(settings: Settings, paths: Sequence[str], *, format: str, out: str) -> None:
    """Write the run in the folder `paths[0]` into the folder `out`, whole or not at all."""
    folder, target = RunFolder(one_path(paths, "a run folder")), Path(out)
    folder.manifest()
    if target.exists() and any(target.iterdir() if target.is_dir() else [target]):
        raise InputError(f"{out} exists and is not empty", do="name another out=")
    if folder.manifest().get("sealed"):
        tell(f"{folder.path} is of a sealed benchmark; the export holds its texts in the clear")
    with folder_made_whole(target) as unfinished:
        message = _WRITERS[format](folder, unfinished, settings)
    Console(stderr=True, soft_wrap=True).print(f"{out}: {message}")


def _browsecomp_plus(folder: RunFolder, out: Path, settings: Settings) -> str:
    metadata = {"model": _model(folder), "output_dir": folder.name}
    for trajectory in folder.trajectories():
        name = f"run_{escape_qid(trajectory.qid)}.json"
        write_json(out / name, browsecomp_plus.write(trajectory, metadata))
    return f"{len(list(out.iterdir()))} run files"


def _trec(folder: RunFolder, out: Path, settings: Settings) -> str:
    with file_made_whole(out / f"{folder.name}.trec") as stream:
        for trajectory in folder.trajectories():
            ranking = {trajectory.qid: final_ranking(trajectory)}
            stream.write(trec_run(ranking, folder.name).encode())
    return "the final ranking of each question"


def _judgements(folder: RunFolder, out: Path, settings: Settings) -> str:
    benchmark = recorded_benchmark(folder, settings, Options(settings))
    passages = evidence_passages(benchmark, settings.config).store
    rows = 0
    with file_made_whole(out / f"{folder.name}.jsonl") as stream:
        for part in folder.repeats():
            for trajectory in part.trajectories():
                for row in judgement_rows(trajectory, passages, part.number):
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
    cell = load_cell(folder.path)  # refuses a run without an evaluation of its own
    manifest = folder.manifest()
    rows = [lean(trajectory) for trajectory in folder.trajectories()]
    right = {qid: value == 1 for qid, value in cell.per_question.get("accuracy", {}).items()}
    accepted = {qid: texts for qid, texts in benchmark.answers.items() if texts}
    if not accepted:
        raise InputError(f"{benchmark.name} has no accepted answers", do="choose another format=")
    evaluated = (folder.path / "metrics.json").stat().st_mtime
    content = leaderboard.entry(
        rows,
        right,
        accepted,
        benchmark.judgements.get("evidence", {}),
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
    return _inspect_log(folder, out / f"{folder.name}.eval", settings, inspect_log.write_eval)


def _inspect_json(folder: RunFolder, out: Path, settings: Settings) -> str:
    return _inspect_log(folder, out / f"{folder.name}.json", settings, inspect_log.write_json_log)


def _inspect_log(
    folder: RunFolder,
    path: Path,
    settings: Settings,
    write: Callable[[Path, Mapping[str, Any], Iterable[Mapping[str, Any]]], int],
) -> str:
    """A log with the scores of the run's evaluation, and without any where it has none."""
    benchmark = recorded_benchmark(folder, settings, Options(settings))
    manifest, model = folder.manifest(), _model(folder)
    cell = load_cell(folder.path) if (folder.path / "metrics.json").exists() else Cell(folder.name)
    scored = [name for name in cell.per_question if name.startswith(_SCORES)]
    statuses = folder.statuses()
    head = inspect_log.header(
        folder.name,
        created=str(manifest.get("created", "1970-01-01T00:00:00+00:00")),
        identity=fingerprint(folder.name, folder.state()),
        benchmark=benchmark.name,
        model=model,
        factors=_factors(manifest),
        versions=manifest.get("versions", {}),
        means={name: cell.metrics[name] for name in scored},
        samples=len(statuses),
    )
    samples = (
        sample(
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
    return f"{write(path, head, samples)} samples"


def _model(folder: RunFolder) -> str:
    """The language model that the agent asked, or the agent's name where it asked none."""
    manifest = folder.manifest()
    imported = manifest.get("imported") or {}
    llm = (manifest.get("config") or {}).get("llm") or {}
    factors = manifest.get("factors") or {}
    configured = llm.get("model") if isinstance(llm, Mapping) else None
    # A configuration may name one that only its stages ask, or nobody.
    agents_model = configured if configured and _agent_asked(folder) else None
    return str(imported.get("model") or agents_model or factors.get("agent") or "unknown")


def _agent_asked(folder: RunFolder) -> bool:
    """Whether the agent asked a language model, by the usage on record."""
    counts = {f"{role}_calls" for role in AGENTS}
    return any(counts & set(trajectory.usage) for trajectory in folder.trajectories())


def _retriever(manifest: Mapping[str, Any]) -> str:
    """The pipeline's options in their order, those that are none left out."""
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

if __name__ == "__main__":
    run_command(export, PARSER)
