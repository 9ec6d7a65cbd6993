"""Evaluations on disk, beside the trajectories that they were made of.

`metrics.json` is removed first and written last, so that its presence means a whole evaluation;
it is a flat map of measure to value and nothing else. What is derived can always be derived again.

A run may go on, and others may evaluate it, at the same time. An evaluation names the trajectories
that it was made of by the state that the folder had before they were read, writers take turns, and
a reader refuses files of two evaluations.

In a sealed run, `evaluation/verdicts.json`, which quotes answers, is sealed; the other files hold
ids and numbers alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from toolkit.benchmarks.judged import absent_documents, texts_of
from toolkit.contracts import Benchmark, document_sets
from toolkit.errors import InputError
from toolkit.evaluation.agent_run import evaluate_run
from toolkit.evaluation.answer_coverage import Texts
from toolkit.evaluation.answers import Judge
from toolkit.evaluation.cells import Cell
from toolkit.evaluation.evaluations import Evaluation
from toolkit.evaluation.repeats import repeated, variance_components
from toolkit.files import waiting_lock, write_atomic, write_json
from toolkit.masking import masked
from toolkit.runs.folder import RunFolder

FORMAT = 1
VERDICTS = Path("evaluation", "verdicts.json")


def write_evaluation(path: Path | str, evaluation: Evaluation, *, state: str) -> None:
    """Write `evaluation/*.json`, `run.trec` and `metrics.json` into a run folder, replacing what
    an earlier evaluation left there. `state` is the folder's `RunFolder.state()` from before its
    trajectories were read, by the judge or by whoever was first."""
    folder = RunFolder(path)
    try:
        with waiting_lock(folder.path / "evaluation" / ".lock"):
            _write(folder, evaluation, state)
    except OSError as error:
        raise InputError(
            f"cannot write the evaluation of {folder.path}: {error.strerror or error}",
            do="free or change the disk, then evaluate again",
        ) from error


def evaluate_folder(
    folder: RunFolder,
    benchmark: Benchmark,
    judges: Sequence[Judge],
    measures: Sequence[str],
    *,
    state: str,
    texts: Texts | None = None,
) -> Cell:
    """Evaluate what a run folder holds, write it there, and give it back as a cell. `judges` are
    those of its repeats; `state` is the folder's from before they read its trajectories;
    `InputError` where it has changed. `texts` gives documents; None reads them off the benchmark.
    """
    parts, evaluations = folder.repeats(), []
    sets = document_sets(benchmark)
    if len(parts) != len(judges):
        raise _went_on(folder)
    for part, judge in zip(parts, judges, strict=True):
        evaluation = evaluate_run(
            part.trajectories(),
            topics=benchmark.topics,
            judgements=benchmark.judgements,
            answers=benchmark.answers,
            measures=measures,
            judge=judge,
            sets=sets,
            absent=lambda docids: absent_documents(benchmark, docids),
            texts=texts or partial(texts_of, benchmark),
        )
        evaluations.append(evaluation)
        if part.number > 1:
            write_json(part.path / VERDICTS, [row._asdict() for row in evaluation.verdicts])
            ranking = trec_run(evaluation.rankings, f"{folder.name}-repeat{part.number}")
            write_atomic(part.path / "run.trec", ranking, clear=True)
    first = evaluations[0] if len(evaluations) == 1 else repeated(evaluations)
    write_evaluation(folder.path, first, state=state)
    if folder.state() != state:
        raise _went_on(folder)
    return load_cell(folder.path)


def _went_on(folder: RunFolder) -> InputError:
    return InputError(
        f"trajectories of {folder.path} were written while it was evaluated",
        do="evaluate it again once the run has ended",
    )


def _write(folder: RunFolder, evaluation: Evaluation, state: str) -> None:
    derived = folder.path / "evaluation"
    (folder.path / "metrics.json").unlink(missing_ok=True)
    write_json(derived / "questions.json", evaluation.per_question, clear=True)
    write_json(folder.path / VERDICTS, [row._asdict() for row in evaluation.verdicts])
    if evaluation.repeats:
        write_json(derived / "repeats.json", _repeats(evaluation), clear=True)
    else:
        (derived / "repeats.json").unlink(missing_ok=True)
    write_json(derived / "funnel.json", evaluation.funnel, clear=True)
    write_json(derived / "curves.json", evaluation.curves, clear=True)
    write_json(
        derived / "summary.json",
        {
            "format": FORMAT,
            "counts": evaluation.counts,
            "denominators": evaluation.denominators,
            "trajectories": state,
        },
        clear=True,
    )
    ranked = trec_run(evaluation.rankings, folder.name)
    write_atomic(folder.path / "run.trec", ranked, clear=True)
    write_json(folder.path / "metrics.json", evaluation.metrics, clear=True)


def _repeats(evaluation: Evaluation) -> dict[str, Any]:
    components = {
        measure: variance_components(values) for measure, values in evaluation.repeats.items()
    }
    variance = {measure: row._asdict() for measure, row in components.items() if row}
    return {"values": evaluation.repeats, "variance": variance}


def load_cell(path: Path | str, name: str = "") -> Cell:
    """The evaluated run in a folder, named after it unless `name` is given. `InputError` where it
    is no run, was not evaluated, was evaluated before its newest trajectories, or is evaluated
    anew at this moment."""
    folder = RunFolder(path)
    manifest = masked(folder.manifest())  # those of earlier versions may hold secrets
    again = f"run: python -m experiments.evaluate {folder.path}"
    written = _written(folder)
    if written is None:
        raise InputError(f"the run {folder.path} has not been evaluated", do=again)
    summary = _read(folder.path / "evaluation" / "summary.json", again)
    if summary.get("format") != FORMAT or summary.get("trajectories") != folder.state():
        raise InputError(
            f"the evaluation of {folder.path} is not of the trajectories that are there now",
            do=again,
        )
    curves = _read(folder.path / "evaluation" / "curves.json", again)
    several = summary.get("counts", {}).get("repeats", 1) > 1
    repeats = _read(folder.path / "evaluation" / "repeats.json", again) if several else {}
    cell = Cell(
        name=name or folder.name,
        factors=manifest.get("factors", {}),
        metrics=_read(folder.path / "metrics.json", again),
        per_question=_read(folder.path / "evaluation" / "questions.json", again),
        funnel=_read(folder.path / "evaluation" / "funnel.json", again),
        curves={unit: [(x, y) for x, y in points] for unit, points in curves.items()},
        counts=summary.get("counts", {}),
        manifest=manifest,
        repeats=repeats.get("values", {}),
    )
    if _written(folder) != written:
        raise InputError(
            f"the run {folder.path} was evaluated anew while its evaluation was read",
            do="run the same command again",
        )
    return cell


def _written(folder: RunFolder) -> tuple[int, int] | None:
    """What tells one writing of `metrics.json`, which is removed first and written last, from
    another; None where it is not there."""
    try:
        written = (folder.path / "metrics.json").stat()
    except FileNotFoundError:
        return None
    return written.st_ino, written.st_mtime_ns


def load_cells(paths: Sequence[Path | str]) -> list[Cell]:
    """The evaluated runs in the folders, each once, in the order given; runs of one folder name
    are named with the folder above."""
    folders = list(dict.fromkeys(Path(path).resolve() for path in paths))
    names = [folder.name for folder in folders]
    return [
        load_cell(
            folder,
            folder.name if names.count(folder.name) == 1 else f"{folder.parent.name}/{folder.name}",
        )
        for folder in folders
    ]


def trec_run(rankings: Mapping[str, Sequence[str]], tag: str) -> str:
    """Rankings as a TREC run. The score falls by one a rank, so that trec_eval, which sorts by
    score and then by docid, keeps the order. White space in ids, which the format cannot hold, is
    percent-encoded."""
    lines = [
        f"{_field(qid)} Q0 {_field(docid)} {rank} {len(docids) - rank + 1} {_field(tag)}\n"
        for qid, docids in rankings.items()
        for rank, docid in enumerate(docids, start=1)
    ]
    return "".join(lines)


def _field(text: str) -> str:
    return re.sub(r"\s", lambda match: f"%{ord(match[0]):02X}", text) or "%"


def _read(path: Path, again: str) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {path}: {error}", do=again) from error
