"""`python -m experiments.lint PATH`: what cannot be trusted in a set of run files.

PATH is a folder of run files of BrowseComp-Plus or Pi-Serini, with the verdicts of an evaluator
(`*_eval.json`) where they stand beside them, a log of Inspect AI, or a run folder of ours.
One line a finding: its count, its first places, and what the published figures would be without it.
The exit code is 1 where a figure would change. With `benchmark=...` the questions, answers,
judgements and documents are checked too; without, only what the files tell.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from experiments.build import make
from experiments.entry import CommandParser, one_path, run_command
from experiments.import_runs import add_canary, seal_of
from experiments.settings import Settings, key_of
from toolkit.benchmarks.reading import lines
from toolkit.console import Console
from toolkit.contracts import Benchmark, Trajectory
from toolkit.errors import InputError
from toolkit.exchange import browsecomp_plus, inspect_log, pi_serini
from toolkit.exchange.lint import Finding, LintRow, Truth, findings, judges_of, linted
from toolkit.exchange.run_files import RunFile, json_object, run_paths
from toolkit.exchange.transcript import Transcript, trajectory_of
from toolkit.runs import RunFolder
from toolkit.sealing import Seal

_PLACES = 3
_WRONG = 1


def lint(
    settings: Settings, paths: Sequence[str], *, canary_env: str = "", no_corpus: bool = False
) -> None:
    """Print the findings; leaves with 1 where a figure would change."""
    path = one_path(paths, "a folder of run files, a log, or a run folder")
    truth = _truth(settings, no_corpus)
    reading = _Reading(seal_of(canary_env), {d for grades in truth.judged.values() for d in grades})
    rows = list(reading.rows(path))
    if not rows:
        raise InputError(f"{path} holds no run file", do="name the folder with the run files")
    results = [*findings(rows, truth, reading.foreign), judges_of(reading.verdicts)]
    present = [finding for finding in results if finding.number]
    console = Console(soft_wrap=True)
    for finding in present:
        console.print(line(finding))
    console.print(f"{len(rows)} files, {len(present)} kinds of findings")
    if any(finding.changes or finding.at_most for finding in present):
        sys.exit(_WRONG)


def line(finding: Finding) -> str:
    """A finding in words."""
    shown = ", ".join(finding.places[:_PLACES])
    more = ", ..." if len(finding.places) > _PLACES else ""
    changes = [f"{name} {a:.4f} -> {b:.4f}" for name, (a, b) in finding.changes.items()]
    effect = "; ".join([*changes, *([finding.at_most] if finding.at_most else [])])
    return f"{finding.code}: {finding.number} ({shown}{more}){f': {effect}' if effect else ''}"


class _Reading:
    """Reads files one at a time. `foreign` are places of what is no run file, `verdicts` pairs of a
    place and a judge."""

    def __init__(self, seal: Seal | None, documents: set[str]) -> None:
        self.foreign: list[str] = []
        self.verdicts: list[tuple[str, str]] = []
        self._seal = seal
        self._documents = documents

    def rows(self, path: Path) -> Iterator[LintRow]:
        """The rows of all that can be read at `path`."""
        if (path / "manifest.json").exists():
            yield from self._ours(RunFolder(path))
            return
        for file in run_paths(path, pi_serini.NO_RUN_FILES):
            if file.suffix == ".eval":
                yield from map(self._row, inspect_log.read(file))
                continue
            for location, content in _objects(file):
                if isinstance(judge := _judge(content), str):
                    self.verdicts.append((location, judge))
                else:
                    yield from self._file(location, content)

    def _ours(self, folder: RunFolder) -> Iterator[LintRow]:
        for verdicts in sorted((folder.path / "evaluation").glob("verdicts-*.json*")):
            self.verdicts.append((verdicts.name, verdicts.stem.removeprefix("verdicts-")))
        for trajectory in folder.trajectories():
            yield linted(str(trajectory.source.get("file", trajectory.qid)), trajectory)

    def _file(self, location: str, content: Any) -> Iterator[LintRow]:
        if not isinstance(content, dict) or not {"query_id", "result"} <= content.keys():
            self.foreign.append(location)
            return
        read = pi_serini.read if "surfaced_docids" in content else self._browsecomp_plus
        try:
            yield from map(self._row, read([RunFile(location, content)]))
        except InputError:
            if self._seal is None and _is_obfuscated(content):
                raise
            self.foreign.append(location)

    def _browsecomp_plus(self, files: Sequence[RunFile]) -> Iterator[Transcript | Trajectory]:
        return browsecomp_plus.read(files, self._seal)

    def _row(self, recorded: Transcript | Trajectory) -> LintRow:
        if isinstance(recorded, Transcript):
            recorded = trajectory_of(recorded, "", self._documents)
        return linted(str(recorded.source.get("file", recorded.qid)), recorded)


def _truth(settings: Settings, no_corpus: bool) -> Truth:
    """Of the benchmark that the command line names; empty where it names none."""
    if not any(key_of(item).partition(".")[0] == "benchmark" for item in settings.overrides):
        return Truth()
    benchmark: Benchmark = make(settings.config.benchmark)
    documents = None if no_corpus else {document.docid for document in benchmark.documents()}
    return Truth(
        qids=[topic.qid for topic in benchmark.topics],
        answers={qid: texts for qid, texts in benchmark.answers.items() if texts},
        judged=benchmark.judgements.get("evidence", {}),
        documents=documents,
    )


def _objects(file: Path) -> Iterator[tuple[str, Any]]:
    """What each file or line holds; None for what is not JSON."""
    if file.suffix != ".jsonl":
        try:
            yield str(file), json_object(file)
        except InputError:
            yield str(file), None
        return
    yield from ((str(location), _parsed(text)) for location, text in lines(file))


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _judge(content: Any) -> str | None:
    """The judge of an evaluator's file; None for other files."""
    if not isinstance(content, dict) or "judge_result" not in content:
        return None
    model_info = content.get("model_info")
    return str(model_info.get("judge_model")) if isinstance(model_info, dict) else "unnamed"


def _is_obfuscated(content: dict[str, Any]) -> bool:
    try:
        return browsecomp_plus.is_obfuscated(RunFile("", content))
    except InputError:
        return False


PARSER = CommandParser(__doc__, "PATH")
PARSER.add_argument("--no-corpus", action="store_true", help="do not read the corpus's documents")
add_canary(PARSER)

if __name__ == "__main__":
    run_command(lint, PARSER)
