"""Traces of a run on disk, each written once and again only when its trajectory is another one."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from toolkit.contracts import TIERS, Benchmark, DocumentStore, Topic, Trajectory
from toolkit.errors import InputError
from toolkit.evaluation import Cell
from toolkit.evaluation.judge_llm import LlmVerdict
from toolkit.evaluation.store import VERDICTS
from toolkit.files import dump_json, waiting_lock, write_atomic
from toolkit.llm.prices import Price
from toolkit.report.traces.page import trace_page
from toolkit.report.traces.spending import recorded_price
from toolkit.report.traces.values import trace_values
from toolkit.runs import RunFolder
from toolkit.runs.names import escape_qid
from toolkit.sealing import is_sealed, read_text, seal

FORMAT = 2
PAGE = Path("traces", "index.html")
INDEX, VERDICT_DETAILS = "index", "verdicts"
MISSING = "missing"
COLUMNS = (
    *("name", "qid", "repeat", "question", "status", "verdict"),
    *(f"recall_{tier}" for tier in TIERS),
    *("calls", "tokens", "dollars", "seconds"),
)
_LONGEST_QUESTION = 160  # characters of a question in the table
_LONGEST_HEAD = 4000  # characters
_COMMENT = "// "
# What could end a script or one of its lines, were it not for JSON's own escapes.
_ESCAPES = {ord(character): f"\\u{ord(character):04x}" for character in "<\u2028\u2029"}

Verdicts = Mapping[str, Mapping[str, Any]]
Reasons = Mapping[str, LlmVerdict]


class _Part(NamedTuple):
    """One repeat of a run: its folder, its place among the repeats, the rule's verdicts, and the
    verdicts of a model, both by question."""

    folder: RunFolder
    place: int
    verdicts: Verdicts
    reasons: Reasons


def write_traces(
    folder: RunFolder,
    benchmark: Benchmark,
    cell: Cell,
    reasons: Sequence[Reasons] = (),
    passages: DocumentStore | None = None,
) -> Path:
    """Write what is missing or out of date in `traces/` of an evaluated run; its page.

    `cell` is the run's newest evaluation; `reasons` are the verdicts of a judging model, a mapping
    by question for each repeat. `passages` gives the texts of passages that a navigator's scores
    stand on; what is written without them stays so. A trajectory's own file
    (`<repeat>-<escaped qid>.js`) holds nothing that an evaluation can change, so that evaluating
    again writes the table (`index.js`) and the verdicts (`verdicts.js`) alone. `InputError` where
    the folder cannot be written.
    """
    page = folder.path / PAGE
    try:
        with waiting_lock(page.parent / ".lock"):
            writer = _Writer(page.parent, benchmark, recorded_price(cell.manifest), passages)
            _write(folder, page, writer, benchmark, cell, reasons)
    except OSError as error:
        raise InputError(
            f"cannot write the traces of {folder.path}: {error.strerror or error}",
            do="free or change the disk, or set traces=false; then evaluate again",
        ) from error
    return page


def _write(
    folder: RunFolder,
    page: Path,
    writer: _Writer,
    benchmark: Benchmark,
    cell: Cell,
    reasons: Sequence[Reasons],
) -> None:
    rows: list[list[Any]] = []
    details: dict[str, Any] = {}
    for position, repeat in enumerate(folder.repeats()):
        by_model = reasons[position] if position < len(reasons) else {}
        part = _Part(repeat, position, _verdicts(repeat), by_model)
        for topic in benchmark.topics:
            head = writer.trace(repeat, topic)
            rows.append(_row(part, topic, head, cell))
            if detail := _detail(part, topic.qid):
                details[_name(repeat, topic)] = detail
    table = {
        "run": folder.name,
        "benchmark": benchmark.name,
        "columns": list(COLUMNS),
        "rows": sorted(rows, key=_by_question(benchmark.topics)),
    }
    writer.script(VERDICT_DETAILS, details)
    writer.script(INDEX, table)
    if not page.is_file() or page.read_text(encoding="utf-8") != trace_page():
        write_atomic(page, trace_page(), clear=True)


class _Writer:
    """Writes the scripts of one folder, obfuscated where it is sealed."""

    def __init__(
        self, folder: Path, benchmark: Benchmark, price: Price, passages: DocumentStore | None
    ) -> None:
        self._folder = folder
        self._passages = passages
        self._benchmark = benchmark
        self._price = price
        self._sealed = is_sealed(folder / PAGE.name)

    def trace(self, part: RunFolder, topic: Topic) -> dict[str, Any]:
        """Have the trace of a question on disk; its head, empty where it has no trajectory."""
        stamp = part.stamp(topic.qid)
        if stamp is None:
            return {}
        name = _name(part, topic)
        origin = {
            "trace": FORMAT,
            "sealed": self._sealed,
            "benchmark": self._benchmark.fingerprint,
            "trajectory": list(stamp),
        }
        head = _head(self._folder / f"{name}.js")
        if any(head.get(key) != value for key, value in origin.items()):
            trajectory = part.read(topic.qid)
            if trajectory is None:
                return {}
            head = {**origin, **_summary(trajectory)}
            accepted = self._benchmark.answers.get(topic.qid, ())
            judgements = self._benchmark.judgements
            values = trace_values(trajectory, judgements, accepted, self._price, self._passages)
            self.script(name, values, head)
        return head

    def script(self, name: str, value: Any, head: Mapping[str, Any] | None = None) -> None:
        """A script that hands `value` over. `head` is a comment in front of it that is never
        obfuscated, so that it can be read alone."""
        text = dump_json(_finite(value), indent=None).rstrip("\n")
        argument = json.dumps(seal().close(text)) if self._sealed else text
        comment = f"{_COMMENT}{dump_json(head, indent=None)}" if head else ""
        script = f"{comment}soundingline({json.dumps(name)}, {argument});\n"
        path, content = self._folder / f"{name}.js", script.translate(_ESCAPES)
        if not path.is_file() or path.read_bytes() != content.encode():
            write_atomic(path, content, clear=True)


def _name(part: RunFolder, topic: Topic) -> str:
    return f"{part.number}-{escape_qid(topic.qid)}"


def _head(path: Path) -> dict[str, Any]:
    """The comment in front of a trace; empty where there is none that can be read."""
    try:
        with path.open(encoding="utf-8") as stream:
            line = stream.readline(_LONGEST_HEAD)
        head = json.loads(line.removeprefix(_COMMENT)) if line.startswith(_COMMENT) else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return head if isinstance(head, dict) else {}


def _summary(trajectory: Trajectory) -> dict[str, Any]:
    """What the table tells of a trajectory: no text of the benchmark, because it is in the clear.
    `tokens` are those of all tool output."""
    summary = {
        "status": trajectory.status,
        "calls": len(trajectory.calls),
        "tokens": sum(call.tokens for call in trajectory.calls),
        "dollars": trajectory.usage.get("dollars"),
        "seconds": round(trajectory.seconds, 1),
    }
    return dict(_finite(summary))


def _row(part: _Part, topic: Topic, head: Mapping[str, Any], cell: Cell) -> list[Any]:
    verdict = part.verdicts.get(topic.qid)
    return [
        _name(part.folder, topic),
        topic.qid,
        part.folder.number,
        _cut(topic.text),
        head.get("status", MISSING),
        _word(verdict),
        *(_recall(cell, f"recall_{tier}", topic.qid, part.place) for tier in TIERS),
        *(head.get(name) for name in ("calls", "tokens", "dollars", "seconds")),
    ]


def _word(verdict: Mapping[str, Any] | None) -> str:
    """`right`, `wrong`, `undecided` where the judge gave no verdict, or empty where there was
    nothing to judge: no accepted answer, or a question that failed."""
    if verdict is None:
        return ""
    if verdict.get("error"):
        return "undecided"
    return "right" if verdict.get("correct") else "wrong"


def _recall(cell: Cell, measure: str, qid: str, position: int) -> float | None:
    if not cell.repeats:
        value = cell.per_question.get(measure, {}).get(qid)
    else:
        # Recall has a value in every repeat, so that places are those of the repeats.
        values = cell.repeats.get(measure, {}).get(qid, ())
        value = values[position] if position < len(values) else None
    return None if value is None else round(value, 4)


def _verdicts(part: RunFolder) -> Verdicts:
    path = part.path / VERDICTS
    return {row["qid"]: row for row in json.loads(read_text(path))}


def _detail(part: _Part, qid: str) -> dict[str, Any]:
    verdict, reason = part.verdicts.get(qid), part.reasons.get(qid)
    if verdict is None:
        return {}
    by_rule = {
        name: verdict.get(name) for name in ("judge", "answer", "exact", "contained", "f1", "error")
    }
    if reason is None:
        return by_rule
    return {**by_rule, "extracted": reason.extracted, "reasoning": reason.reasoning}


def _by_question(topics: Sequence[Topic]) -> Callable[[list[Any]], tuple[int, int]]:
    positions = {topic.qid: position for position, topic in enumerate(topics)}
    return lambda row: (positions[row[1]], row[2])


def _cut(text: str) -> str:
    joined = " ".join(text.split())
    return joined if len(joined) <= _LONGEST_QUESTION else joined[:_LONGEST_QUESTION] + "…"


def _finite(value: Any) -> Any:
    """Without numbers that JSON lacks, which stand for unknown ones."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return value
