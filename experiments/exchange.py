"""Runs of other programs: a run is exported to their formats and imported from them."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timezone
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

from soundingline.experiments.build import make
from soundingline.experiments.collection import texts_under
from soundingline.experiments.config import Settings, plain_values
from soundingline.experiments.evaluate import RunJudge, evaluate_recorded, make_judge
from soundingline.experiments.naming import factors, form_of
from soundingline.experiments.pipeline import evidence_passages
from soundingline.experiments.published_figures import compare_with_published
from soundingline.experiments.recorded import recorded_benchmark, recorded_option
from soundingline.toolkit.benchmarks.benchmark import Benchmark
from soundingline.toolkit.console import Console, notify, print_next
from soundingline.toolkit.data import parent
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.evaluation import EvaluatedRun, final_ranking, load_run
from soundingline.toolkit.evaluation.agent_run import without_texts
from soundingline.toolkit.evaluation.evaluation import RANKINGS, read_rankings, trec_run
from soundingline.toolkit.evaluation.judge import ImportedVerdicts, ModelVerdict
from soundingline.toolkit.evaluation.published_tables import read_published
from soundingline.toolkit.exchange import browsecomp_plus, inspect_ai, trec_rag
from soundingline.toolkit.exchange.transcript import (
    Transcript,
    run_files,
    run_paths,
    trajectory_of,
)
from soundingline.toolkit.files import (
    atomic_file,
    atomic_folder,
    dump_json,
    file_hash,
    fingerprint,
    write_json,
    write_text,
)
from soundingline.toolkit.llm.prices import AGENTS
from soundingline.toolkit.obfuscation import VARIABLE, Canary
from soundingline.toolkit.redaction import redact
from soundingline.toolkit.report import ReportData, comparison_table
from soundingline.toolkit.runs import RunFolder, make_manifest
from soundingline.toolkit.runs.run_folder import escape_qid
from soundingline.toolkit.search.scoring import training_rows
from soundingline.toolkit.trajectory import SEARCHES, Trajectory

ExportFormat = Literal[
    "browsecomp_plus",
    "pi_serini",
    "leaderboard",
    "trec",
    "trec_rag",
    "judgements",
    "training",
    "inspect",
    "inspect_json",
]
ImportFormat = Literal["browsecomp_plus", "pi_serini", "inspect"]
Recorded = Transcript | Trajectory
CanaryVariable = Annotated[str, f"the variable with the canary of obfuscated files ({VARIABLE})"]
_RETRIEVAL = ("unit", "rewriter", "retriever", "reranker")
_SCORES = ("accuracy", "answer_f1", "completion", "recall_", "citation_")
_MODELS, _MODEL_CHARACTERS = 3, 80  # models that are named, and characters of a name
_PLACES = 3  # locations of a fault in a warning


def export(
    settings: Settings,
    run: Path,
    *,
    format: Annotated[ExportFormat, "see above"],
    out: Annotated[Path, "the folder that is made"],
    team: Annotated[str, "the team's id, for trec_rag"] = "",
    description: Annotated[str, "of the run, for trec_rag (default: its retriever and model)"] = "",
) -> None:
    """Write a run in the format of another program. Nothing is written if any part fails.

    browsecomp_plus: run files of BrowseComp-Plus, one a question.
    pi_serini: files of Pi-Serini's benchmark runner, with the judgements, for its summaries.
    leaderboard: an entry of BrowseComp-Plus's leaderboard; the run must be evaluated.
    trec: the final ranking of each question as a TREC run; also of a run of `soundingline rank`.
    inspect, inspect_json: a log of Inspect AI, .eval or .json, for `inspect view`.
    trec_rag: the two files of TREC RAG 2026, documents (task R) and answers (task RAG).
    judgements: the scores of a navigator's scorer with the passages, to train a smaller scorer.
    scorer=file reads them too.
    training: triplets of an agent's query, a document that it opened and cited, and one that it saw
    among the hits of the query and did not open, to train a retriever with sentence-transformers.
    """
    folder = RunFolder(run)
    sealed = folder.manifest().get("sealed")
    if folder.has_trajectories():
        if format != "judgements" and (repeats := len(folder.repeats())) > 1:
            notify(f"{folder.path} has {repeats} repeats; the first one is exported")
    elif format != "trec" or not _ranked(folder):
        ranked = bool(_ranked(folder))
        raise InputError(
            f"{folder.path} has {'rankings and no' if ranked else 'neither rankings nor'} "
            "trajectories",
            valid="format=trec for a run of `soundingline rank`, any format for one of "
            "`soundingline run`",
            do="set format=trec" if ranked else "name another run",
        )
    if out.exists() and any(out.iterdir() if out.is_dir() else [out]):
        raise InputError(f"{out} exists and is not empty", do="name another out=")
    if sealed:
        notify(f"{folder.path} is of a sealed benchmark; the export holds its texts in the clear")
    writer = _WRITERS[format]
    if format == "trec_rag":
        if not team:
            raise InputError("team= is missing", do="name the team: team=ID")
        writer = partial(_trec_rag, team=team, description=description)
    with atomic_folder(out) as unfinished:
        message = writer(folder, unfinished, settings)
    Console(stderr=True, soft_wrap=True).print(f"{out}: {message}")
    print_next(f"open {out}")


def _ranked(folder: RunFolder) -> str:
    """The rankings of a run without trajectories as a TREC run; empty without rankings."""
    return read_rankings(folder) if (folder.path / RANKINGS).is_file() else ""


def _browsecomp_plus(folder: RunFolder, out: Path, settings: Settings) -> str:
    metadata = {"model": _model(folder), "output_dir": folder.name}
    for trajectory in folder.trajectories():
        name = f"run_{escape_qid(trajectory.qid)}.json"
        write_json(out / name, browsecomp_plus.write(trajectory, metadata))
    return f"{len(list(out.iterdir()))} run files"


def _pi_serini(folder: RunFolder, out: Path, settings: Settings) -> str:
    benchmark = recorded_benchmark(folder, settings)
    metadata = {"benchmark_id": benchmark.name, "model": _model(folder), "output_dir": folder.name}
    # Their programs read files that are named by a number, and take the id from within.
    numbered = not all(re.fullmatch("[0-9]+", qid) for qid in folder.statuses())
    for number, trajectory in enumerate(folder.trajectories(), start=1):
        name = str(number) if numbered else trajectory.qid
        write_json(out / f"{name}.json", browsecomp_plus.write_pi_serini(trajectory, metadata))
    files = len(list(out.iterdir()))
    for tier, judged in benchmark.qrels.items():
        rows = [f"{qid} 0 {docid} {n}\n" for qid, row in judged.items() for docid, n in row.items()]
        write_text(out / f"qrels_{tier}.txt", "".join(rows))
    return f"{files} run files, and the judgements in qrels_evidence.txt"


def _trec(folder: RunFolder, out: Path, settings: Settings) -> str:
    if not folder.has_trajectories():
        text = _ranked(folder)
        write_text(out / f"{folder.name}.trec", text)
        return f"the rankings of {len({line.split()[0] for line in text.splitlines()})} questions"
    with atomic_file(out / f"{folder.name}.trec") as stream:
        for trajectory in folder.trajectories():
            ranking = {trajectory.qid: final_ranking(trajectory)}
            stream.write(trec_run(ranking, folder.name).encode())
    return "the final ranking of each question"


def _trec_rag(
    folder: RunFolder, out: Path, settings: Settings, team: str = "", description: str = ""
) -> str:
    description = description or f"{_retriever(folder.manifest())}, {_model(folder)}"
    counts: Counter[str] = Counter()
    with (
        atomic_file(out / trec_rag.RETRIEVAL_FILE) as documents,
        atomic_file(out / trec_rag.RAG_FILE) as answers,
    ):
        for trajectory in folder.trajectories():
            ranking = trec_rag.useful_documents(trajectory)
            documents.write(trec_run({trajectory.qid: ranking}, folder.name).encode())
            row = trec_rag.rag_row(trajectory, team=team, run=folder.name, description=description)
            answers.write(dump_json(row, indent=None).encode())
            counts["questions"] += 1
            counts["documents"] += len(ranking)
            counts["without an answer"] += not row["answer"]
    return ", ".join(f"{count} {what}" for what, count in counts.items())


def _judgements(folder: RunFolder, out: Path, settings: Settings) -> str:
    benchmark = recorded_benchmark(folder, settings)
    passages = evidence_passages(benchmark, settings.config).store
    rows = 0
    with atomic_file(out / f"{folder.name}.jsonl") as stream:
        for repeat in folder.repeats():
            for trajectory in repeat.trajectories():
                for row in training_rows(trajectory, passages, repeat.number):
                    stream.write(dump_json(row, indent=None).encode())
                    rows += 1
    if not rows:
        raise InputError(
            f"no document of {folder.path} was scored",
            valid="a run of agent=navigator with a scorer",
            do="name such a run",
        )
    return f"{rows} documents with the scores of their requirements"


def _training(folder: RunFolder, out: Path, settings: Settings) -> str:
    benchmark = recorded_benchmark(folder, settings)
    rows = list(dict.fromkeys(chain.from_iterable(map(triplets, folder.trajectories()))))
    if not rows:
        raise InputError(
            f"no query of {folder.path} has a hit that was opened and cited, and one that was not "
            "opened",
            valid="a run of an agent that reads documents and cites them",
            do="name such a run",
        )
    docids = {docid for _, *pair in rows for docid in pair}
    text = dict(texts_under(Path(settings.config.paths.indexes), benchmark, docids))
    with atomic_file(out / f"{folder.name}.jsonl") as stream:
        for query, positive, negative in rows:
            if positive in text and negative in text:
                row = {"anchor": query, "positive": text[positive], "negative": text[negative]}
                stream.write(dump_json(row, indent=None).encode())
    return f"{len(rows)} triplets of {len({query for query, *_ in rows})} queries"


def triplets(trajectory: Trajectory) -> Iterator[tuple[str, str, str]]:
    """Triplets (query, positive, negative) of a question, to train a retriever.

    The positives of a query are the documents among the hits that the agent was shown for it,
    further pages included, that it opened at any time and cited. The negatives are those that it
    was shown with an excerpt, where there are excerpts, and never opened. Each positive and each
    negative is in a triplet at least once: the shorter list is repeated. A query without one of the
    two has no triplet.
    """
    tiers = {tier: {*trajectory.tiers.get(tier, ())} for tier in ("previewed", "opened", "cited")}
    searches: list[tuple[str, set[str], dict[str, None]]] = []  # query, ranking, documents shown
    for call in trajectory.calls:
        query = call.arguments.get("query")
        if call.error or call.name not in (*SEARCHES, "read_search_results"):
            continue
        if call.name in SEARCHES and isinstance(query, str):
            searches.append((query, {*call.ranking}, {}))
        pages = [row for row in searches if row[1].issuperset(call.shown)] or searches
        if pages:
            pages[-1][2].update(dict.fromkeys(map(parent, call.shown)))
    for query, _, documents in searches:
        positives = [d for d in documents if d in tiers["opened"] and d in tiers["cited"]]
        negatives = [d for d in documents if d in tiers["previewed"] - tiers["opened"]]
        if positives and negatives:
            for number in range(max(len(positives), len(negatives))):
                positive = positives[number % len(positives)]
                yield query, positive, negatives[number % len(negatives)]


def _leaderboard(folder: RunFolder, out: Path, settings: Settings) -> str:
    benchmark = recorded_benchmark(folder, settings)
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


def _inspect(folder: RunFolder, out: Path, settings: Settings, form: str = "eval") -> str:
    """A log with the scores of the run's evaluation, if there is one."""
    benchmark = recorded_benchmark(folder, settings)
    manifest, model = folder.manifest(), _model(folder)
    evaluated = folder.is_evaluated()
    cell = load_run(folder.path) if evaluated else EvaluatedRun(name=folder.name)
    scored = [name for name in cell.per_question if name.startswith(_SCORES)]
    head = inspect_ai.header(
        folder.name,
        created=str(manifest.get("created", "1970-01-01T00:00:00+00:00")),
        identity=fingerprint(folder.name, folder.state()),
        benchmark=benchmark.name,
        model=model,
        factors={str(name): str(value) for name, value in manifest.get("factors", {}).items()},
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
    counts = {f"{role}_calls" for role in AGENTS}
    used = configured and any(counts & set(each.usage) for each in folder.trajectories())
    agents_model = configured if used else None
    return str(imported.get("model") or agents_model or factors.get("agent") or "unknown")


def _retriever(manifest: Mapping[str, Any]) -> str:
    """The options of the pipeline in their order, without those that are `none`."""
    factors = manifest.get("factors") or {}
    options = [str(factors.get(group, "none")) for group in _RETRIEVAL]
    return " ".join(option for option in options if option != "none") or "unknown"


_WRITERS: dict[ExportFormat, Callable[[RunFolder, Path, Settings], str]] = {
    "browsecomp_plus": _browsecomp_plus,
    "pi_serini": _pi_serini,
    "leaderboard": _leaderboard,
    "trec": _trec,
    "trec_rag": _trec_rag,
    "judgements": _judgements,
    "training": _training,
    "inspect": _inspect,
    "inspect_json": partial(_inspect, form="json"),
}


def import_run(
    settings: Settings,
    path: Path,
    *,
    format: Annotated[ImportFormat, "the program's format"],
    model: Annotated[str, "the name of its model (default: the one that the files name)"] = "",
    canary_env: CanaryVariable = "",
) -> None:
    """Import a run of another program, evaluate it and print its measures.

    PATH is a folder of run files, a file, or a log of Inspect AI, whose epochs become repeats. It
    becomes the run folder `runs/<name>` (name=NAME), which `soundingline compare` accepts.
    Overrides choose the benchmark and the judge. Verdicts of an evaluator (`*_eval.json`) that are
    among the files take the place of the exact rule. A warning names each kind of fault in the
    files that changes a published figure, with the figure as it is and without the fault.

    With an experiment of published runs, PATH is a folder with the authors' released runs. They
    become the cells of `runs/<name>`, and their figures are printed next to the paper's.
    """
    config, table = settings.config, settings.config.comparison.published
    if config.name is None:
        raise InputError("name= is missing", do="give the run a name: name=NAME")
    by = make_judge(config, make(config.budget))
    folder = RunFolder.named(Path(config.paths.runs), config.name)
    benchmark: Benchmark = make(config.benchmark)
    released = read_published(table).released if table else {}
    bring = partial(
        _import, settings, benchmark, by, format=format, model=model, canary_env=canary_env
    )
    if not released:
        Console().print(comparison_table(ReportData([bring(folder, path, {})])))
        print_next(f"soundingline compare {folder.path} ANOTHER_RUN")
        return
    present = {name: values for name, values in released.items() if (path / name).exists()}
    if not present:
        raise InputError(
            f"{path} has no released run of {table}",
            valid=f"a folder with some of {', '.join(released)}",
            do="download the authors' runs",
        )
    for name, values in present.items():
        cell = "-".join(str(value).replace("/", "-") for value in values.values())
        bring(RunFolder(folder.path / cell), path / name, values)
    if missing := [name for name in released if name not in present]:
        notify(f"{path} has no {', '.join(missing)}")
    compare_with_published([folder.path])
    print_next(f"soundingline replay {folder.path}/RUN retriever=NAME sends their queries to it")


def _import(
    settings: Settings,
    benchmark: Benchmark,
    by: RunJudge,
    folder: RunFolder,
    path: Path,
    values: Mapping[str, Any],
    *,
    format: ImportFormat,
    model: str,
    canary_env: str,
) -> EvaluatedRun:
    """Import the files at a path into a run folder, with the values of its factors, and evaluate
    it by a judge."""
    files = run_paths(path, browsecomp_plus.NO_RUN_FILES)
    imported = {"format": format, "from": path.name, "files": len(files), "model": model}
    manifest = _manifest(settings, benchmark, imported, files)
    manifest["factors"] |= {name: str(value).replace("/", "-") for name, value in values.items()}
    if folder.path.exists():
        # Such a folder is whole, because it appears after all files are read, but it may not be
        # evaluated yet. The model may have been read from the files.
        present = folder.manifest() if folder.manifest_path.exists() else {}
        recorded = {**present.get("imported", {}), **({} if model else {"model": ""})}
        same = present.get("fingerprints") == manifest["fingerprints"]
        if not same or recorded != manifest["imported"]:
            raise InputError(
                f"there is a run {folder.path}, which holds something else",
                do="choose another name=",
            )
        message = "imported before; it is evaluated again"
    else:
        with atomic_folder(folder.path) as unfinished:
            run, models = RunFolder(unfinished), Counter[str]()
            verdicts: Verdicts = {}
            with run.writing(manifest):
                reader = _READERS[format](files, canary_env, models, verdicts)
                message, rows = _write(run, reader, benchmark)
            _warn(rows, benchmark)
            if verdicts:
                judges = Counter(judge for judge, _ in verdicts.values())
                ((judge, _),) = judges.most_common(1)
                ImportedVerdicts.write(unfinished, judge, (row for _, row in verdicts.values()))
                message += f", with {len(verdicts)} verdicts of {', '.join(judges)}"
            if not model and models:  # of those that the files name, the most frequent
                names = (name[:_MODEL_CHARACTERS] for name, _ in models.most_common(_MODELS))
                named = redact(", ".join(names))
                manifest["factors"].setdefault("llm", named)
                manifest["imported"]["model"] = named
                write_json(run.manifest_path, manifest)
    Console(stderr=True, soft_wrap=True).print(f"{folder.path}: {message}")
    return evaluate_recorded(folder, benchmark, settings.config, by)


def _write(
    folder: RunFolder, reader: Iterable[Recorded], benchmark: Benchmark
) -> tuple[str, dict[str, Trajectory]]:
    """Write the trajectories as they are read. Returns what was imported, in words, and the first
    trajectory of each question by its location, without texts."""
    questions = {topic.qid: topic.text for topic in benchmark.topics}
    documents = {
        docid for qrels in benchmark.qrels.values() for grades in qrels.values() for docid in grades
    }
    written: dict[tuple[str, int], str] = {}
    first: dict[str, Trajectory] = {}
    others = 0
    for recorded in reader:
        if recorded.qid not in questions:
            others += 1
            continue
        location = str(recorded.source.get("file", recorded.qid))
        question, repeat = questions[recorded.qid], 1
        if recorded.question is not None and _normal(question) not in _normal(recorded.question):
            raise InputError(
                f"{location} has another question than {recorded.qid!r} of {benchmark.name}",
                valid="a run over the chosen benchmark and split",
                do="choose another benchmark=",
            )
        if isinstance(recorded, Transcript):
            repeat = recorded.repeat
            recorded = trajectory_of(recorded, question, documents)
        key = recorded.qid, repeat
        if key in written:
            raise InputError(
                f"{location} is a second file of question {recorded.qid!r}, after {written[key]}",
                valid="one a question",
                do="move one away",
            )
        written[key] = location
        folder.repeat(repeat).write(recorded)
        if repeat == 1:
            first[location] = without_texts(recorded)
    repeats = Counter(repeat for _, repeat in written)
    if written and not repeats[1]:
        raise InputError(
            f"the first epoch is missing; those on record are {', '.join(map(str, repeats))}",
            valid="a complete log",
        )
    if not written:
        raise InputError(
            f"none of the {others} questions on record is one of {benchmark.name}",
            valid="a run over the chosen benchmark and split",
            do="choose another benchmark=",
        )
    imported = len({qid for qid, _ in written})
    missing = len(questions) - imported
    times = f" in {len(repeats)} repeats" if len(repeats) > 1 else ""
    left = f"; {others} of other questions were left out" if others else ""
    message = f"{imported} questions imported{times}, {missing} of {benchmark.name} have none{left}"
    return message, first


def _warn(rows: Mapping[str, Trajectory], benchmark: Benchmark) -> None:
    """Print a line for each kind of fault of the files that changes a published figure."""
    qids = [topic.qid for topic in benchmark.topics]
    answers = {qid: texts for qid, texts in benchmark.answers.items() if texts}
    qrels = benchmark.qrels.get("evidence", {})
    for fault, count, places, changes in browsecomp_plus.findings(rows, qids, answers, qrels):
        shown = ", ".join([*places[:_PLACES], *(["..."] if len(places) > _PLACES else [])])
        effect = ", ".join(f"{name} is {a:.4f}, not {b:.4f}" for name, (a, b) in changes.items())
        notify(f"{fault}: {count} ({shown}), with which {effect}")


def _normal(text: str) -> str:
    """A text without the differences that do not make another question of it."""
    return " ".join(text.split()).casefold()


def _manifest(
    settings: Settings, benchmark: Benchmark, imported: Mapping[str, Any], files: list[Path]
) -> dict[str, Any]:
    chosen = {
        **factors(settings, ("benchmark",)),
        "agent": f"imported from {imported['format']}",
        **({"llm": str(imported["model"])} if imported["model"] else {}),
    }
    published = settings.config.comparison.published
    config = {"benchmark": plain_values(settings.config.benchmark)}
    config |= {"comparison": {"published": published}} if published else {}
    prints = {
        "benchmark": benchmark.fingerprint,
        "imported": file_hash(*files),
        **form_of(settings.config, benchmark),
    }
    manifest = make_manifest(config, prints, chosen, recorded_option(settings))
    return {**manifest, "imported": dict(imported)}


Verdicts = dict[str, tuple[str, ModelVerdict]]  # by question, with the model


def _read_run_files(
    files: list[Path],
    canary_env: str,
    models: Counter[str],
    verdicts: Verdicts,
    pi_serini: bool = False,
) -> Iterator[Recorded]:
    """The questions of run files. The models that the files name are counted in `models`, and the
    verdicts of an evaluator among the files added to `verdicts`."""

    def counted() -> Iterator[tuple[str, dict[str, Any]]]:
        for location, content in run_files(files):
            if "judge_result" in content:
                judge, verdict = browsecomp_plus.read_judgement(location, content)
                verdicts[verdict.qid] = judge, verdict
                continue
            metadata = content.get("metadata") or content  # a released file of Pi-Serini
            model = metadata.get("model") if isinstance(metadata, dict) else None
            if isinstance(model, str) and model.strip():
                models[model.strip()] += 1
            yield location, content

    return browsecomp_plus.read(counted(), canary_of(canary_env), pi_serini=pi_serini)


def _read_inspect(
    files: list[Path], canary_env: str, models: Counter[str], verdicts: Verdicts
) -> Iterator[Recorded]:
    for file in files:
        for recorded in inspect_ai.read(file):
            models.update(map(str, recorded.source.get("models", ())))
            yield recorded


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


_READERS: dict[
    ImportFormat, Callable[[list[Path], str, Counter[str], Verdicts], Iterator[Recorded]]
] = {
    "browsecomp_plus": _read_run_files,
    "pi_serini": partial(_read_run_files, pi_serini=True),
    "inspect": _read_inspect,
}
