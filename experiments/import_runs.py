"""`soundingline import_runs PATH format=... benchmark=... name=...`: a run of another program.

PATH is a folder of run files, a file, or a log of Inspect AI. It becomes the run folder
`runs/<name>`, which is evaluated, and which `soundingline compare` accepts. Overrides choose the
benchmark and the judge.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from soundingline.experiments.build import make
from soundingline.experiments.cli import CommandParser, one_path, run_command
from soundingline.experiments.config import Settings, plain_values
from soundingline.experiments.evaluate import check_judge, evaluate_recorded
from soundingline.experiments.naming import factors, form_of
from soundingline.experiments.recorded import recorded_option
from soundingline.toolkit.benchmarks.benchmark import Benchmark
from soundingline.toolkit.console import Console
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.exchange import browsecomp_plus, inspect_ai
from soundingline.toolkit.exchange.transcript import (
    Transcript,
    run_files,
    run_paths,
    trajectory_of,
)
from soundingline.toolkit.files import atomic_folder, file_hash, write_json
from soundingline.toolkit.obfuscation import VARIABLE, Canary
from soundingline.toolkit.redaction import redact
from soundingline.toolkit.report import comparison_table
from soundingline.toolkit.runs import RunFolder, make_manifest
from soundingline.toolkit.trajectory import Trajectory

Recorded = Transcript | Trajectory
_MOST, _SHOWN = 3, 80  # models that are named, and characters of a name


def import_runs(
    settings: Settings,
    paths: Sequence[str],
    *,
    format: str,
    model: str = "",
    canary_env: str = "",
) -> None:
    """Import the run at `paths[0]`, evaluate it and print its measures."""
    config = settings.config
    if config.name is None:
        raise InputError("name= is not given", do="give the run a name: name=NAME")
    check_judge(config)
    folder = RunFolder.named(Path(config.paths.runs), config.name)
    path = one_path(paths, "a folder, a file or a log")
    files = run_paths(path, browsecomp_plus.NO_RUN_FILES if format == "pi_serini" else ())
    benchmark: Benchmark = make(config.benchmark)
    imported = {"format": format, "from": path.name, "files": len(files), "model": model}
    manifest = _manifest(settings, benchmark, imported, files)
    if folder.path.exists():
        _check_imported(folder, manifest)
        message = "imported before; it is evaluated again"
    else:
        with atomic_folder(folder.path) as unfinished:
            run, models = RunFolder(unfinished), Counter[str]()
            with run.writing(manifest):
                message = _write(run, _READERS[format](files, canary_env, models), benchmark)
            if not model and models:
                write_json(run.manifest_path, _with_model(manifest, models), clear=True)
    Console(stderr=True, soft_wrap=True).print(f"{folder.path}: {message}")
    Console().print(comparison_table([evaluate_recorded(folder, benchmark, config)]))


def _with_model(manifest: dict[str, Any], models: Counter[str]) -> dict[str, Any]:
    """The manifest with the models that the files name, most frequent first."""
    named: str = redact(", ".join(name[:_SHOWN] for name, _ in models.most_common(_MOST)))
    return {
        **manifest,
        "factors": {**manifest["factors"], "llm": named},
        "imported": {**manifest["imported"], "model": named},
    }


def _check_imported(folder: RunFolder, manifest: Mapping[str, Any]) -> None:
    """`InputError` unless a folder is an import of exactly these files. Such a folder is whole,
    because it appears after all files are read, but it may not be evaluated yet."""
    known = folder.manifest() if folder.manifest_path.exists() else {}
    imported = dict(known.get("imported", {}))
    if not manifest["imported"]["model"]:
        imported["model"] = ""  # It was read from the files.
    same = known.get("fingerprints") == manifest["fingerprints"]
    if not same or imported != manifest["imported"]:
        raise InputError(
            f"there is a run {folder.path}, which holds something else", do="choose another name="
        )


def _write(folder: RunFolder, reader: Iterable[Recorded], benchmark: Benchmark) -> str:
    """Write the trajectories as they are read; what was imported, in words."""
    questions = {topic.qid: topic.text for topic in benchmark.topics}
    documents = {
        docid for qrels in benchmark.qrels.values() for grades in qrels.values() for docid in grades
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
                do="move one away; soundingline lint lists all of them",
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
        "imported": file_hash(*files),
        **form_of(settings.config, benchmark),
    }
    manifest = make_manifest(config, prints, chosen, recorded_option(settings))
    return {**manifest, "imported": dict(imported)}


def _read_browsecomp_plus(
    files: list[Path], canary_env: str, models: Counter[str]
) -> Iterator[Recorded]:
    return browsecomp_plus.read(_count_models(run_files(files), models), canary_of(canary_env))


def _read_pi_serini(files: list[Path], canary_env: str, models: Counter[str]) -> Iterator[Recorded]:
    return browsecomp_plus.read_pi_serini(_count_models(run_files(files), models))


def _read_inspect(files: list[Path], canary_env: str, models: Counter[str]) -> Iterator[Recorded]:
    for file in files:
        for recorded in inspect_ai.read(file):
            models.update(map(str, recorded.source.get("models", ())))
            yield recorded


def _count_models(
    files: Iterable[tuple[str, dict[str, Any]]], models: Counter[str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The files. The models that they name (`metadata.model`) are counted in `models`."""
    for location, content in files:
        metadata = content.get("metadata")
        model = metadata.get("model") if isinstance(metadata, dict) else None
        if isinstance(model, str) and model.strip():
            models[model.strip()] += 1
        yield location, content


def canary_of(variable: str) -> Canary | None:
    """The canary in an environment variable; None if no variable is named and the usual one is not
    set."""
    canary = os.environ.get(variable or VARIABLE, "")
    if variable and not canary:
        raise InputError(
            f"the environment variable {variable} is not set",
            do=f"export {variable}='...' with the canary that the run was published with",
        )
    return Canary(canary) if canary else None


def add_canary(parser: CommandParser) -> None:
    """Add the flag for the variable that contains the canary of obfuscated files."""
    about = f"that holds the canary of obfuscated files ({VARIABLE})"
    parser.add_argument("--canary-env", default="", metavar="VARIABLE", help=about)


_READERS: dict[str, Callable[[list[Path], str, Counter[str]], Iterator[Recorded]]] = {
    "browsecomp_plus": _read_browsecomp_plus,
    "pi_serini": _read_pi_serini,
    "inspect": _read_inspect,
}

PARSER = CommandParser(__doc__, "PATH")
PARSER.add_argument("--format", required=True, choices=list(_READERS))
PARSER.add_argument("--model", default="", help="its name (the one that the files tell)")
add_canary(PARSER)


start = partial(run_command, import_runs, PARSER)
