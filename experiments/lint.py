"""`soundingline lint PATH`: faults in a set of run files.

PATH is a folder of run files of BrowseComp-Plus or Pi-Serini, which may contain the verdicts of an
evaluator (`*_eval.json`) too, a log of Inspect AI, or a run folder of ours. The output has one line
a kind of fault: the number of files, the first of them, and the published figures with and without
the fault. The exit code is 1 if a figure changes. With `benchmark=...` the questions, answers,
judgements and documents are checked too.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from soundingline.experiments.build import make
from soundingline.experiments.cli import CommandParser, one_path, run_command
from soundingline.experiments.config import Settings, key_of
from soundingline.experiments.import_runs import add_canary, canary_of
from soundingline.toolkit.benchmarks.benchmark import Benchmark
from soundingline.toolkit.benchmarks.formats import lines
from soundingline.toolkit.console import Console
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.evaluation.agent_run import without_texts
from soundingline.toolkit.exchange import browsecomp_plus, inspect_ai
from soundingline.toolkit.exchange.lint import Finding, GroundTruth, findings
from soundingline.toolkit.exchange.transcript import Transcript, run_paths, trajectory_of
from soundingline.toolkit.files import read_json
from soundingline.toolkit.obfuscation import Canary
from soundingline.toolkit.runs import RunFolder
from soundingline.toolkit.trajectory import Trajectory

_PLACES = 3  # locations in a line
_CHANGED = 1  # exit code


def lint(
    settings: Settings, paths: Sequence[str], *, canary_env: str = "", no_corpus: bool = False
) -> None:
    """Print the findings; the process ends with the code 1 if a figure changes."""
    path = one_path(paths, "a folder of run files, a log, or a run folder")
    truth = _ground_truth(settings, no_corpus)
    foreign: list[str] = []
    verdicts: dict[str, str] = {}
    rows: dict[str, Trajectory] = {}
    documents = {docid for grades in truth.qrels.values() for docid in grades}
    for read in _read(path, canary_of(canary_env), foreign, verdicts):
        row = trajectory_of(read, "", documents) if isinstance(read, Transcript) else read
        rows[str(row.source.get("file", row.qid))] = without_texts(row)
    if not rows:
        raise InputError(f"{path} contains no run file", do="name the folder with the run files")
    present = findings(rows, truth, foreign, verdicts)
    console = Console(soft_wrap=True)
    for finding in present:
        console.print(line(finding))
    console.print(f"{len(rows)} files, {len(present)} kinds of findings")
    if any(finding.changes or finding.at_most for finding in present):
        sys.exit(_CHANGED)


def line(finding: Finding) -> str:
    """A finding in words."""
    shown = ", ".join(finding.places[:_PLACES])
    more = ", ..." if len(finding.places) > _PLACES else ""
    changes = [f"{name} {a:.4f} -> {b:.4f}" for name, (a, b) in finding.changes.items()]
    effect = "; ".join([*changes, *([finding.at_most] if finding.at_most else [])])
    return f"{finding.code}: {finding.count} ({shown}{more}){f': {effect}' if effect else ''}"


def _read(
    path: Path, canary: Canary | None, foreign: list[str], verdicts: dict[str, str]
) -> Iterator[Transcript | Trajectory]:
    """The questions at `path`. Locations of files that are not run files are added to `foreign`,
    and the judges of verdicts by location to `verdicts`."""
    if (path / "manifest.json").exists():
        folder = RunFolder(path)
        judged = sorted((path / "evaluation").glob("verdicts-*.json*"))
        verdicts.update((file.name, file.stem.removeprefix("verdicts-")) for file in judged)
        yield from folder.trajectories()
        return
    for file in run_paths(path, browsecomp_plus.NO_RUN_FILES):
        if file.suffix == ".eval":
            yield from inspect_ai.read(file)
            continue
        for location, content in _objects(file):
            if "judge_result" in content:
                model = content.get("model_info")
                judge = model.get("judge_model") if isinstance(model, dict) else "unnamed"
                verdicts[location] = str(judge)
                continue
            entry = (location, content)
            try:
                if "surfaced_docids" in content:
                    yield from browsecomp_plus.read_pi_serini([entry])
                else:
                    yield from browsecomp_plus.read([entry], canary)
            except browsecomp_plus.ObfuscatedFile:
                raise
            except InputError:
                foreign.append(location)


def _ground_truth(settings: Settings, no_corpus: bool) -> GroundTruth:
    """Of the benchmark on the command line; empty if there is none."""
    if not any(key_of(item).partition(".")[0] == "benchmark" for item in settings.overrides):
        return GroundTruth()
    benchmark: Benchmark = make(settings.config.benchmark)
    documents = None if no_corpus else {document.docid for document in benchmark.documents()}
    return GroundTruth(
        qids=[topic.qid for topic in benchmark.topics],
        answers={qid: texts for qid, texts in benchmark.answers.items() if texts},
        qrels=benchmark.qrels.get("evidence", {}),
        documents=documents,
    )


def _objects(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The object of a file or of each of its lines; an empty one for anything else."""
    if file.suffix != ".jsonl":
        try:
            yield str(file), read_json(file, dict[str, Any])
        except InputError:
            yield str(file), {}
        return
    for location, text in lines(file):
        try:
            content = json.loads(text)
        except (ValueError, RecursionError):
            content = None
        yield str(location), content if isinstance(content, dict) else {}


PARSER = CommandParser(__doc__, "PATH")
PARSER.add_argument("--no-corpus", action="store_true", help="do not read the corpus's documents")
add_canary(PARSER)


start = partial(run_command, lint, PARSER)
