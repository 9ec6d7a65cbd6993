"""Evaluated runs: their measures, their repeats, and their files.

Repeats of a question are not independent of each other. The question therefore stays the unit of
every test and interval: its value is the mean over its repeats (Miller, Adding error bars to evals,
arXiv 2411.00640).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from html import escape
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from annotated_types import Len
from typing_extensions import NotRequired, TypedDict

from soundingline.toolkit.data import Qrels, Topic
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.evaluation.answers import Verdict
from soundingline.toolkit.evaluation.retrieval import (
    DEFAULT_MEASURES,
    PerQuestion,
    Rankings,
    documents,
    measure_rankings,
)
from soundingline.toolkit.evaluation.statistics import variance_components
from soundingline.toolkit.files import (
    dump_json,
    fingerprint,
    read_json,
    read_text,
    write_json,
    write_quoting,
    write_text,
)
from soundingline.toolkit.locks import file_lock
from soundingline.toolkit.redaction import redact
from soundingline.toolkit.runs.run_folder import EVALUATION_LOCK, METRICS, RunFolder, disk_errors
from soundingline.toolkit.trajectory import mapping

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 2
VERDICTS = Path("evaluation", "verdicts.json")
JUDGES = Path("evaluation", "judges.json")
RANKINGS = "run.trec"
KEYWORD_AGENT = "KeywordAgent"  # its answers are those of a simulated reader
_LARGEST = 1e30
_REPEATS = "evaluation/repeats.json"
_SUMMARY = "evaluation/summary.json"
_MANIFEST = "manifest.json"
_FILES: Mapping[str, tuple[str, Any]] = {  # name -> a field of `Evaluation` and its type
    "evaluation/questions.json": ("per_question", PerQuestion),
    "evaluation/funnel.json": ("funnel", dict[str, PerQuestion]),
    "evaluation/curves.json": ("curves", dict[str, list[Annotated[list[float], Len(2, 2)]]]),
    METRICS: ("metrics", dict[str, float]),
}
# Counts of questions, which are equal in all repeats. All other counts are of trajectories.
OF_QUESTIONS = (
    "questions",
    "unjudged",
    "without_accepted_answer",
    "yes_no",
    "yes_no_by_chance",
    "asking_for_documents",
    "without_targets",
    "left_out_yes_no",
    "left_out_in_question",
    "left_out_not_in_evidence",
)


class _Summary(TypedDict):
    format: int
    counts: dict[str, int]
    denominators: dict[str, int]
    trajectories: str
    judge: NotRequired[str]
    prices: NotRequired[dict[str, str]]
    files: dict[str, str]  # name -> hash


class _Repeats(TypedDict):
    values: dict[str, dict[str, list[float]]]


class RecordedJudge(TypedDict):
    """A judge of a run: its `model` (empty for the exact rule), and whether it finds each answer
    correct, by its `repeat_id`."""

    model: str
    verdicts: dict[str, bool]


class _Judges(TypedDict):
    trajectories: str
    judges: dict[str, RecordedJudge]


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The measures of a run.

    Attributes:
        metrics: measure -> value, as in `metrics.json`.
        per_question: measure -> question -> value. A measure of quality has a value for every
            judged question, a measure of effort for every recorded question whose effort is known.
        denominators: measure -> number of questions (or answers) that its value is a mean over.
        counts: `questions`, `answered`, `failed`, `unjudged` and others, and one for each exit
            status. With repeats, counts of trajectories are over all repeats.
        funnel: see `funnel.evidence_funnel`.
        curves: see `funnel.exposure_curves`.
        repeats: measure -> question -> its value in each repeat, whose mean is in `per_question`;
            empty without repeats.
        rankings: question -> docids, best first, as they were measured.
        scores: question -> the score of each docid of its ranking; empty if they have none.
        verdicts: the judge's verdicts on the recorded answers.
        judge: what judged the answers: a model's name, or the exact rule; empty without answers.
        prices: role -> the date of the price list by which its dollars were computed anew; empty if
            they are those that were billed.

    Example:
        >>> evaluation = evaluate_ranking({"q1": ["d2", "d1"]}, {"q1": {"d1": 1}}, ["RR"])
        >>> (evaluation.metrics, evaluation.per_question)
        ({'RR': 0.5}, {'RR': {'q1': 0.5}})
    """

    metrics: Mapping[str, float] = field(default_factory=dict)
    per_question: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    denominators: Mapping[str, int] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    funnel: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)
    curves: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    repeats: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)
    rankings: Mapping[str, Sequence[str]] = field(default_factory=dict)
    scores: Mapping[str, Sequence[float]] = field(default_factory=dict)
    verdicts: Sequence[Verdict] = ()
    judge: str = ""
    prices: Mapping[str, str] = field(default_factory=dict)

    def with_values(
        self,
        per_question: Mapping[str, Mapping[str, float]],
        over_answers: Mapping[str, tuple[float, int]] | None = None,
    ) -> Evaluation:
        """A copy with other measures: measure -> question -> value, whose means are the `metrics`,
        and the value and number of answers of measures `over_answers`, which have no value for one
        question, such as the calibration error. Measures without values are left out."""
        per_question = {name: values for name, values in per_question.items() if values}
        numbers = {
            **{name: (_mean(row.values()), len(row)) for name, row in per_question.items()},
            **(over_answers or {}),
        }
        return replace(
            self,
            per_question=per_question,
            metrics={name: value for name, (value, _) in numbers.items()},
            denominators={name: count for name, (_, count) in numbers.items()},
        )


@dataclass(frozen=True, kw_only=True, repr=False)
class EvaluatedRun(Evaluation):
    """An evaluation that was read from a run folder, without its rankings and verdicts. A notebook
    shows it as a table.

    Args:
        name: the name of the run.
        factors: what was varied, option names by group, such as `{"unit": "passage"}`.
        manifest: the manifest of the run.
        judges: every judge of the answers, by name, if there are several: `exact_answer` and those
            with a language model. All other arguments are those of `Evaluation`.

    Example:
        >>> EvaluatedRun(name="bm25", metrics={"AP": 0.25}, denominators={"AP": 40})
        <EvaluatedRun bm25: AP 0.25>
        >>> load_run("runs/first").to_frame()  # doctest: +SKIP
    """

    name: str
    factors: Mapping[str, str] = field(default_factory=dict)
    manifest: Mapping[str, Any] = field(default_factory=dict)
    judges: Mapping[str, RecordedJudge] = field(default_factory=dict)

    def to_frame(self, *, per_question: bool = False) -> pd.DataFrame:
        """The measures as a data frame.

        A row for each measure has its `value` and `n`, the number of questions (or answers) that it
        is a mean over. With `per_question`, a row for each question has a column for each measure,
        which is not a number where the question has no value.
        """
        import pandas as pd

        if per_question:
            return pd.DataFrame(dict(self.per_question)).rename_axis("qid")
        columns = {"value": dict(self.metrics), "n": dict(self.denominators)}
        return pd.DataFrame(columns, index=list(self.metrics)).rename_axis("measure")

    def __repr__(self) -> str:
        shown = ", ".join(f"{name} {value:.4g}" for name, value in self.metrics.items())
        return f"<EvaluatedRun {self.name}: {shown or 'no measures'}>"

    def setting(self, *keys: str) -> Any:
        """The setting at a path in the configuration of the run; None where it is absent."""
        value: Any = self.manifest.get("config")
        for key in keys:
            value = mapping(value).get(key)
        return value

    def _repr_html_(self) -> str:
        shown = ("questions", "answered", "failed")
        counts = ", ".join(f"{self.counts[name]:,} {name}" for name in shown if name in self.counts)
        return html_table(self.to_frame(), f"{self.name}: {counts}", stand_ins([self]))


def html_table(frame: pd.DataFrame, title: str, note: str, *, index: bool = True) -> str:
    """A frame as HTML for a notebook, with a title and a note (each may be empty)."""
    lines = [f"<p>{escape(line)}</p>" for line in (title, note) if line]
    return "".join([*lines, frame.to_html(index=index, border=0, float_format="{:.4g}".format)])


def agent_class(config: Mapping[str, Any]) -> str:
    """The class of the agent of a configuration, without its module; empty without an agent."""
    return str(mapping(config.get("agent")).get("_target_", "")).rpartition(".")[2]


def stand_ins(runs: Sequence[EvaluatedRun]) -> str:
    """Sentences that name the simulated reader, if one has given answers of the runs, and the
    models whose recorded replies a run has used."""
    configs = [run.manifest.get("config") or {} for run in runs]
    simulated = sum(
        "accuracy" in run.metrics and agent_class(config) == KEYWORD_AGENT
        for run, config in zip(runs, configs, strict=True)
    )
    options = [option for it in configs for option in it.values() if isinstance(option, Mapping)]
    recorded = [one for one in options if str(one.get("_target_")).endswith(".RecordedChat")]
    models = dict.fromkeys(str(one.get("model")) for one in recorded)
    sentences = [f"Recorded from {one}: wiring on real text, not a result." for one in models]
    if simulated:
        part = "" if simulated == len(runs) else f" in {simulated} of {len(runs)} runs"
        sentences.append(
            f"Simulated reader{part}: it gives an accepted answer exactly when what it needs was "
            "shown to the agent, and cites nothing. No language model reads."
        )
    return " ".join(sentences)


def evaluate_ranking(
    rankings: Rankings,
    qrels: Qrels,
    measures: Sequence[str] = DEFAULT_MEASURES,
    topics: Sequence[Topic] | None = None,
) -> Evaluation:
    """Evaluate rankings (question -> units, best first) that no agent made, by `qrels` of one tier.

    A passage counts as its document, and a document once, at its best rank. Means are over the
    judged ones of `topics`; None for all judged questions. The `counts` are `questions`, `answered`
    (with a ranking), `failed` (0) and `unjudged`.
    """
    qids = [topic.qid for topic in topics] if topics is not None else list(qrels)
    judged = {qid: qrels[qid] for qid in qids if qid in qrels}
    ranked = {qid: documents(rankings[qid]) for qid in qids if rankings.get(qid)}
    counts = {
        "questions": len(qids),
        "answered": len(ranked),
        "failed": 0,
        "unjudged": len(qids) - len(judged),
    }
    evaluation = Evaluation(counts=counts, rankings=ranked)
    return evaluation.with_values(measure_rankings(ranked, judged, measures))


def average_repeats(evaluations: Sequence[Evaluation]) -> Evaluation:
    """The evaluation of a run from the evaluations of its repeats.

    Values of a question are means over the repeats that have one. Measures without a value for one
    question, the funnel and the curves are means over the repeats. Counts of trajectories are sums.
    Rankings and verdicts are those of the first repeat.
    """
    first = evaluations[0]
    repeats: dict[str, dict[str, list[float]]] = {}
    for evaluation in evaluations:
        for measure, values in evaluation.per_question.items():
            for qid, value in values.items():
                repeats.setdefault(measure, {}).setdefault(qid, []).append(value)
    over_answers = {}
    for name in _keys(evaluation.metrics for evaluation in evaluations):
        if name not in repeats:
            having = [evaluation for evaluation in evaluations if name in evaluation.metrics]
            value = _mean(evaluation.metrics[name] for evaluation in having)
            over_answers[name] = value, sum(evaluation.denominators[name] for evaluation in having)
    counts = Counter[str]()
    for evaluation in evaluations:
        counts.update(evaluation.counts)
    of_questions = {name: first.counts.get(name, 0) for name in OF_QUESTIONS if name in counts}
    averaged = replace(
        first,
        counts={**counts, **of_questions, "repeats": len(evaluations)},
        # All repeats have the same questions and judgements, so that means of means are means.
        funnel=_mean_numbers([evaluation.funnel for evaluation in evaluations]),
        curves={
            unit: _mean_curve([evaluation.curves[unit] for evaluation in evaluations])
            for unit in first.curves
        },
        repeats=repeats,
    )
    per_question = {
        measure: {qid: _mean(row) for qid, row in rows.items()} for measure, rows in repeats.items()
    }
    return averaged.with_values(per_question, over_answers)


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def _keys(maps: Iterable[Mapping[str, object]]) -> list[str]:
    """All keys, each once, in order of first appearance."""
    return list(dict.fromkeys(chain.from_iterable(maps)))


def _mean_numbers(tables: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The means of equally nested mappings, number by number. One that a table does not have counts
    as 0, such as those of a layer of reading that a repeat did not show."""
    return {
        key: _mean_numbers([table.get(key, {}) for table in tables])
        if any(isinstance(table.get(key), Mapping) for table in tables)
        else _mean(table.get(key, 0.0) for table in tables)
        for key in _keys(tables)
    }


def _mean_curve(curves: Sequence[Sequence[tuple[float, float]]]) -> list[tuple[float, float]]:
    """The mean of step functions, at all their points."""
    grid = sorted({x for curve in curves for x, _ in curve})
    steps = [np.array(curve, dtype=float) for curve in curves]
    heights = [step[np.searchsorted(step[:, 0], grid, side="right") - 1, 1] for step in steps]
    average = np.mean(heights, axis=0)
    return [(float(x), float(y)) for x, y in zip(grid, average, strict=True)]


def write_evaluation(path: Path | str, evaluation: Evaluation, *, state: str) -> None:
    """Write an evaluation into a run folder and replace an earlier one.

    `metrics.json` is removed first and written last: if it is there, the evaluation is complete.
    `evaluation/summary.json` has `state`, the `RunFolder.state()` from before the trajectories were
    read, so that an evaluation of older ones is recognised, and a hash of every file that is read
    again. Writers of one folder wait for each other. `evaluation/verdicts.json` quotes answers and
    is obfuscated in an obfuscated run; the other files hold only ids and numbers.

    `InputError` if the folder cannot be written.
    """
    folder = RunFolder(path)
    summary = {
        "format": FORMAT,
        "counts": evaluation.counts,
        "denominators": evaluation.denominators,
        "trajectories": state,
        **({"judge": evaluation.judge} if evaluation.judge else {}),
        **({"prices": evaluation.prices} if evaluation.prices else {}),
    }
    texts = {name: dump_json(getattr(evaluation, field)) for name, (field, _) in _FILES.items()}
    metrics = texts.pop(METRICS)
    texts[RANKINGS] = trec_run(evaluation.rankings, folder.name, evaluation.scores)
    if evaluation.repeats:
        components = {name: variance_components(row) for name, row in evaluation.repeats.items()}
        variance = {name: row._asdict() for name, row in components.items() if row}
        texts[_REPEATS] = dump_json({"values": evaluation.repeats, "variance": variance})
    texts[METRICS] = metrics
    hashes = {name: fingerprint(text) for name, text in texts.items()}
    hashes[_SUMMARY] = fingerprint(dump_json(summary))
    with disk_errors(folder.path / "evaluation"), file_lock(folder.path / EVALUATION_LOCK):
        hashes[_MANIFEST] = fingerprint(_compared(folder.manifest()))
        (folder.path / METRICS).unlink(missing_ok=True)
        write_verdicts(folder, evaluation.verdicts)
        if not evaluation.repeats:
            (folder.path / _REPEATS).unlink(missing_ok=True)
        write_json(folder.path / _SUMMARY, {**summary, "files": hashes})
        for name, text in texts.items():
            write_text(folder.path / name, text)


def write_verdicts(folder: RunFolder, verdicts: Iterable[Verdict]) -> None:
    """Write `evaluation/verdicts.json`."""
    write_quoting(folder.path / VERDICTS, dump_json([row._asdict() for row in verdicts]))


def load_run(path: Path | str, name: str = "") -> EvaluatedRun:
    """Read the evaluation of a run folder, under the name of the folder or another one. It waits
    for a process that is evaluating the run.

    Raises:
        InputError: if this is not a run, or one that was not evaluated or was evaluated before its
            newest trajectories were written, and if a file of the evaluation is damaged.
    """
    folder = RunFolder(path)
    with file_lock(folder.path / EVALUATION_LOCK, reading=True):
        return _load_run(folder, name)


def _load_run(folder: RunFolder, name: str) -> EvaluatedRun:
    manifest, summary = folder.manifest(), _read_summary(folder)
    if summary["trajectories"] != folder.state():
        raise InputError(
            f"the evaluation of {folder.path} is not of the trajectories that are there now",
            do=_evaluate_again(folder),
        )
    _check_hash(folder, _MANIFEST, _compared(manifest), summary)
    several, redacted = summary["counts"].get("repeats", 1) > 1, redact(manifest)
    files = {field: _read(folder, file, kind, summary) for file, (field, kind) in _FILES.items()}
    files["curves"] = {unit: [(x, y) for x, y in curve] for unit, curve in files["curves"].items()}
    return EvaluatedRun(
        name=name or folder.name,
        factors=redacted.get("factors", {}),
        manifest=redacted,
        denominators=summary["denominators"],
        counts=summary["counts"],
        judge=summary.get("judge", ""),
        prices=summary.get("prices", {}),
        repeats=_read(folder, _REPEATS, _Repeats, summary)["values"] if several else {},
        judges=_read_judges(folder, summary),
        **files,
    )


def load_runs(paths: Sequence[Path | str]) -> list[EvaluatedRun]:
    """Read the evaluations of several run folders, each once, in their order. Folders of one name
    are named with the folder above."""
    folders = list(dict.fromkeys(Path(path).resolve() for path in paths))
    names = [folder.name for folder in folders]
    return [
        load_run(
            folder,
            folder.name if names.count(folder.name) == 1 else f"{folder.parent.name}/{folder.name}",
        )
        for folder in folders
    ]


def read_rankings(folder: RunFolder) -> str:
    """The rankings that were evaluated, as a TREC run; `InputError` without a sound file."""
    summary, path = _read_summary(folder), folder.path / RANKINGS
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}", do=_evaluate_again(folder)) from error
    _check_hash(folder, RANKINGS, text, summary)
    return text


def _read_summary(folder: RunFolder) -> _Summary:
    """The summary, by whose hashes other files are known to be of the same evaluation, also on a
    file system without locks. `InputError` without `metrics.json`, which is removed first and
    written last."""
    if not (folder.path / METRICS).exists():
        raise InputError(
            f"the run {folder.path} has not been evaluated",
            do=f"run: soundingline evaluate {folder.path}",
        )
    summary: _Summary = read_json(folder.path / _SUMMARY, _Summary, do=_evaluate_again(folder))
    content = {key: value for key, value in summary.items() if key != "files"}
    _check_hash(folder, _SUMMARY, dump_json(content), summary)
    return summary


def _read(folder: RunFolder, name: str, kind: Any, summary: _Summary) -> Any:
    value = read_json(folder.path / name, kind, do=_evaluate_again(folder))
    _check_hash(folder, name, read_text(folder.path / name), summary)
    return value


def _read_judges(folder: RunFolder, summary: _Summary) -> Mapping[str, RecordedJudge]:
    """The judges of the evaluated answers; those of older answers are left out."""
    if not (folder.path / JUDGES).exists():
        return {}
    recorded: _Judges = read_json(folder.path / JUDGES, _Judges, do=_evaluate_again(folder))
    return recorded["judges"] if recorded["trajectories"] == summary["trajectories"] else {}


def _compared(manifest: Mapping[str, Any]) -> str:
    """The part of a manifest by which runs are compared."""
    return dump_json(manifest.get("fingerprints"))


def _check_hash(folder: RunFolder, name: str, text: str, summary: _Summary) -> None:
    if summary["format"] != FORMAT or summary["files"].get(name) != fingerprint(text):
        raise InputError(
            f"{folder.path / name} is damaged: it is not as the evaluation wrote it",
            do=_evaluate_again(folder),
        )


def _evaluate_again(folder: RunFolder) -> str:
    if folder.has_trajectories():
        return f"evaluate it again: soundingline evaluate {folder.path}"
    return "run the command that made it again"


def trec_run(
    rankings: Mapping[str, Sequence[str]],
    tag: str,
    scores: Mapping[str, Sequence[float]] | None = None,
) -> str:
    """Rankings as a TREC run, with `decreasing` scores; without scores, they count down to 1. White
    space in ids, which the format cannot hold, is percent-encoded.

    Example:
        >>> print(trec_run({"q1": ["d2", "d 1"]}, "bm25", {"q1": [7.5, 7.5]}), end="")
        q1 Q0 d2 1 7.5 bm25
        q1 Q0 d%201 2 7.49999952 bm25
    """
    lines = []
    for qid, docids in rankings.items():
        values = decreasing(scores[qid]) if scores else range(len(docids), 0, -1)
        lines += [
            f"{_field(qid)} Q0 {_field(docid)} {rank} {value:.9g} {_field(tag)}\n"
            for rank, (docid, value) in enumerate(zip(docids, values, strict=True), start=1)
        ]
    return "".join(lines)


def decreasing(scores: Sequence[float]) -> list[float]:
    """The scores of a ranking in 32 bits, each lowered to the next number below its predecessor if
    it is not less. trec_eval reads 32 bits, and sorts by score and then by docid, descending: it
    would reorder equal scores. Scores beyond 1e30 become 1e30; one that is not a number, -1e30."""
    finite = np.nan_to_num(np.asarray(scores, float), nan=-_LARGEST)
    values = np.clip(finite, -_LARGEST, _LARGEST).astype(np.float32)
    # The bits of a float without its sign count up from 0, and are -1 times that below 0.
    counted = np.abs(values).view(np.int32).astype(np.int64) * np.where(values < 0, -1, 1)
    places = np.arange(len(counted))
    counted = np.minimum.accumulate(counted + places) - places
    lowered = np.abs(counted).astype(np.int32).view(np.float32)
    return (lowered * np.where(counted < 0, -1, 1)).astype(float).tolist()


@lru_cache(maxsize=1 << 16)  # a document is in many rankings
def _field(text: str) -> str:
    return re.sub(r"\s", lambda match: f"%{ord(match[0]):02X}", text) or "%"
