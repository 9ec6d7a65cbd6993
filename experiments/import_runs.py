"""`python -m experiments.import_runs PATH format=... benchmark=... name=...`: a run of others.

The files become the run folder `runs/<name>`, which is then evaluated as any other, so that
`experiments.compare` takes it. PATH is a folder of run files, one file, or a log of Inspect AI.
Overrides choose the benchmark and the judge.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from experiments.arguments import Arguments, command
from experiments.build import make
from experiments.evaluate import evaluate_folder
from experiments.judging import check_judge
from experiments.naming import factors
from experiments.recorded import recorded_option
from experiments.settings import Settings, plain_values
from toolkit.console import Console
from toolkit.contracts import Benchmark, Trajectory
from toolkit.errors import InputError
from toolkit.exchange import browsecomp_plus, pi_serini
from toolkit.exchange.run_files import run_files, run_paths
from toolkit.exchange.transcript import Transcript, trajectory_of
from toolkit.files import file_fingerprint, folder_made_whole
from toolkit.report import comparison_table
from toolkit.runs import RunFolder, make_manifest
from toolkit.sealing import VARIABLE, Seal

Recorded = Transcript | Trajectory
FORMATS = ("browsecomp_plus", "pi_serini", "inspect")
WORDS = {
    "format": ", ".join(FORMATS),
    "name": "the run folder's name below paths.runs",
    "model": "what to call the model, where the files do not tell",
    "canary_env": f"the variable that holds the files' canary (default {VARIABLE})",
}


def import_runs(arguments: Arguments) -> None:
    """Import, evaluate, and print the numbers."""
    form, name = arguments.word("format", FORMATS), arguments.word("name")
    path = arguments.one_path("the files to import")
    settings = arguments.settings()
    config = settings.config
    check_judge(config)
    folder = RunFolder.named(Path(config.paths.runs), name)
    if folder.path.exists():
        raise InputError(f"there is a run {folder.path}", do="choose another name=")
    paths = run_paths(path, pi_serini.NO_RUN_FILES if form == "pi_serini" else ())
    benchmark: Benchmark = make(config.benchmark)
    reader = _READERS[form](paths, arguments)
    console = Console(stderr=True, soft_wrap=True)
    with folder_made_whole(folder.path) as place:
        said = _written(RunFolder(place), reader, benchmark, settings, arguments, paths)
    console.print(f"{folder.path}: {said}")
    cell = evaluate_folder(folder, benchmark, settings)
    Console().print(comparison_table([cell]))


def _written(
    folder: RunFolder,
    reader: Iterable[Recorded],
    benchmark: Benchmark,
    settings: Settings,
    arguments: Arguments,
    paths: list[Path],
) -> str:
    """Write the trajectories as they are read; what was imported, in words."""
    questions = {topic.qid: topic.text for topic in benchmark.topics}
    documents = {
        docid
        for judgements in benchmark.judgements.values()
        for grades in judgements.values()
        for docid in grades
    }
    written: dict[str, str] = {}
    others = 0
    manifest = _manifest(settings, benchmark, arguments, paths)
    with folder.writing(manifest):
        for recorded in reader:
            if recorded.qid not in questions:
                others += 1
                continue
            place = str(recorded.source.get("file", recorded.qid))
            if recorded.qid in written:
                raise InputError(
                    f"{place} is a second file of question {recorded.qid!r}, after "
                    f"{written[recorded.qid]}",
                    valid="one a question",
                    do="move one away; python -m experiments.lint lists all of them",
                )
            written[recorded.qid] = place
            folder.write(_trajectory(recorded, questions[recorded.qid], documents))
    if not written:
        raise InputError(
            f"none of the {others} questions in {arguments.paths[0]} is one of {benchmark.name}",
            valid="a run over the chosen benchmark and split",
            do="choose another benchmark=",
        )
    missing = len(questions) - len(written)
    left = f"; {others} of other questions were left out" if others else ""
    return f"{len(written)} questions imported, {missing} of {benchmark.name} have none{left}"


def _trajectory(recorded: Recorded, question: str, documents: set[str]) -> Trajectory:
    if isinstance(recorded, Trajectory):
        return recorded
    return trajectory_of(recorded, question, documents)


def _manifest(
    settings: Settings, benchmark: Benchmark, arguments: Arguments, paths: list[Path]
) -> dict[str, Any]:
    form, model = arguments.words["format"], arguments.words.get("model", "")
    chosen = {**factors(settings, ("benchmark",)), "agent": f"imported from {form}"}
    chosen |= {"llm": model} if model else {}
    config = {"benchmark": plain_values(settings.config.benchmark)}
    prints = {"benchmark": benchmark.fingerprint, "imported": file_fingerprint(*paths)}
    manifest = make_manifest(config, prints, chosen, recorded_option(settings))
    imported = {"format": form, "from": arguments.paths[0].name, "files": len(paths)}
    return {**manifest, "imported": {**imported, "model": model}}


def _read_browsecomp_plus(paths: list[Path], arguments: Arguments) -> Iterator[Recorded]:
    return browsecomp_plus.read(run_files(paths), _seal(arguments))


def _read_pi_serini(paths: list[Path], arguments: Arguments) -> Iterator[Recorded]:
    return pi_serini.read(run_files(paths))


def _seal(arguments: Arguments) -> Seal | None:
    """The seal of the files' canary; None where there is none in the environment."""
    variable = arguments.words.get("canary_env", "")
    canary = os.environ.get(variable or VARIABLE, "")
    if variable and not canary:
        raise InputError(
            f"the environment variable {variable} is not set",
            do=f"export {variable}='...' with the canary that the run was published with",
        )
    return Seal(canary) if canary else None


_READERS: dict[str, Callable[[list[Path], Arguments], Iterator[Recorded]]] = {
    "browsecomp_plus": _read_browsecomp_plus,
    "pi_serini": _read_pi_serini,
}


if __name__ == "__main__":
    command(import_runs, __doc__, WORDS)
