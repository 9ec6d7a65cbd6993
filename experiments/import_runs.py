"""`python -m experiments.import_runs PATH format=... benchmark=... name=...`: a run of others.

The files become the run folder `runs/<name>`, which is then evaluated as any other, so that
`experiments.compare` takes it. PATH is a folder of run files, one file, or a log of Inspect AI.
Overrides choose the benchmark and the judge.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.build import make
from experiments.entry import CommandParser, one_path, run_command
from experiments.judging import check_judge, evaluate_recorded
from experiments.naming import factors, form_of
from experiments.recorded import recorded_option
from experiments.settings import Settings, plain_values
from toolkit.console import Console
from toolkit.contracts import Benchmark, Trajectory
from toolkit.errors import InputError
from toolkit.exchange import browsecomp_plus, inspect_log, pi_serini
from toolkit.exchange.run_files import run_files, run_paths
from toolkit.exchange.transcript import Transcript, trajectory_of
from toolkit.files import file_fingerprint, folder_made_whole
from toolkit.report import comparison_table
from toolkit.runs import RunFolder, make_manifest
from toolkit.sealing import VARIABLE, Seal

Recorded = Transcript | Trajectory


def import_runs(
    settings: Settings,
    paths: Sequence[str],
    *,
    format: str,
    model: str = "",
    canary_env: str = "",
) -> None:
    """Import the run at `paths[0]`, evaluate it, and print the numbers."""
    config = settings.config
    if config.name is None:
        raise InputError("name= is not given", do="give the run a name: name=NAME")
    check_judge(config)
    folder = RunFolder.named(Path(config.paths.runs), config.name)
    if folder.path.exists():
        raise InputError(f"there is a run {folder.path}", do="choose another name=")
    path = one_path(paths, "a folder, a file or a log")
    files = run_paths(path, pi_serini.NO_RUN_FILES if format == "pi_serini" else ())
    benchmark: Benchmark = make(config.benchmark)
    imported = {"format": format, "from": path.name, "files": len(files), "model": model}
    with folder_made_whole(folder.path) as unfinished:
        run = RunFolder(unfinished)
        with run.writing(_manifest(settings, benchmark, imported, files)):
            message = _write(run, _READERS[format](files, canary_env), benchmark)
    Console(stderr=True, soft_wrap=True).print(f"{folder.path}: {message}")
    Console().print(comparison_table([evaluate_recorded(folder, benchmark, config)]))


def _write(folder: RunFolder, reader: Iterable[Recorded], benchmark: Benchmark) -> str:
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
    for recorded in reader:
        if recorded.qid not in questions:
            others += 1
            continue
        location = str(recorded.source.get("file", recorded.qid))
        if recorded.qid in written:
            raise InputError(
                f"{location} is a second file of question {recorded.qid!r}, after "
                f"{written[recorded.qid]}",
                valid="one a question",
                do="move one away; python -m experiments.lint lists all of them",
            )
        written[recorded.qid] = location
        folder.write(_trajectory(recorded, questions[recorded.qid], documents))
    if not written:
        raise InputError(
            f"none of the {others} questions on record is one of {benchmark.name}",
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
    settings: Settings, benchmark: Benchmark, imported: Mapping[str, Any], files: list[Path]
) -> dict[str, Any]:
    chosen = {
        **factors(settings, ("benchmark",)),
        "agent": f"imported from {imported['format']}",
        **({"llm": str(imported["model"])} if imported["model"] else {}),
    }
    config = {"benchmark": plain_values(settings.config.benchmark)}
    prints = {
        "benchmark": benchmark.fingerprint,
        "imported": file_fingerprint(*files),
        **form_of(settings.config, benchmark),
    }
    manifest = make_manifest(config, prints, chosen, recorded_option(settings))
    return {**manifest, "imported": dict(imported)}


def _read_browsecomp_plus(files: list[Path], canary_env: str) -> Iterator[Recorded]:
    return browsecomp_plus.read(run_files(files), seal_of(canary_env))


def _read_pi_serini(files: list[Path], canary_env: str) -> Iterator[Recorded]:
    return pi_serini.read(run_files(files))


def _read_inspect(files: list[Path], canary_env: str) -> Iterator[Recorded]:
    return (recorded for file in files for recorded in inspect_log.read(file))


def seal_of(variable: str) -> Seal | None:
    """The seal of the files' canary; None where there is none in the environment."""
    canary = os.environ.get(variable or VARIABLE, "")
    if variable and not canary:
        raise InputError(
            f"the environment variable {variable} is not set",
            do=f"export {variable}='...' with the canary that the run was published with",
        )
    return Seal(canary) if canary else None


def add_canary(parser: CommandParser) -> None:
    """The flag that names the variable with the canary of obfuscated files."""
    about = f"that holds the canary of obfuscated files ({VARIABLE})"
    parser.add_argument("--canary-env", default="", metavar="VARIABLE", help=about)


_READERS: dict[str, Callable[[list[Path], str], Iterator[Recorded]]] = {
    "browsecomp_plus": _read_browsecomp_plus,
    "pi_serini": _read_pi_serini,
    "inspect": _read_inspect,
}

PARSER = CommandParser(__doc__, "PATH")
PARSER.add_argument("--format", required=True, choices=list(_READERS))
PARSER.add_argument("--model", default="", help="its name, where the files do not tell")
add_canary(PARSER)

if __name__ == "__main__":
    run_command(import_runs, PARSER)
