"""Traces: static HTML pages of what an agent did, one for each question and repeat of a run.

`write_traces` writes them, and a page with a table of all questions, into the folder `traces/` of a
run. `write_side_by_side` writes a table of the questions of two runs. The pages load nothing. Pages
of questions have no scripts, and texts of benchmarks, documents and models are escaped.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate, compress
from operator import add
from pathlib import Path
from textwrap import shorten
from typing import Any
from urllib.parse import quote

from markupsafe import Markup, escape

from soundingline.toolkit.benchmarks.benchmark import Benchmark
from soundingline.toolkit.data import PASSAGE_MARK, DocumentStore, Qrels, parent
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.evaluation.answers import Verdict
from soundingline.toolkit.evaluation.comparison import by_benchmark
from soundingline.toolkit.evaluation.evaluation import VERDICTS, EvaluatedRun
from soundingline.toolkit.evaluation.funnel import LABELS
from soundingline.toolkit.evaluation.judge import ModelVerdict
from soundingline.toolkit.files import (
    dump_json,
    fingerprint,
    read_json,
    write_text,
)
from soundingline.toolkit.json_text import decode_json
from soundingline.toolkit.llm.messages import Usage
from soundingline.toolkit.llm.prices import Price, of_attempt
from soundingline.toolkit.locks import file_lock
from soundingline.toolkit.report.comparison import notice_of
from soundingline.toolkit.report.measures import decimals, number
from soundingline.toolkit.report.page import Column, Table, TableEntry, templates, texts
from soundingline.toolkit.runs import RunFolder
from soundingline.toolkit.runs.run_folder import escape_qid
from soundingline.toolkit.trajectory import (
    TIERS,
    Trajectory,
    checklist_of,
    items,
    last_checklist,
    mapping,
    number_of,
    scored_documents,
    text_of,
)

PAGE = Path("traces", "index.html")
SIDE_BY_SIDE = "traces.html"
_FORMAT = 8
_MOST_DOCUMENTS = 200  # rows of the table of documents and requirements
_SIGNS = {"satisfied": "✓", "not": "✗", "unknown": "?"}

Labels = Mapping[str, Sequence[str]]


def write_traces(
    folder: RunFolder,
    benchmark: Benchmark,
    run: EvaluatedRun,
    reasons: Sequence[Mapping[str, ModelVerdict]] = (),
    passages: DocumentStore | None = None,
) -> Path:
    """Write the pages that are missing or out of date, and return the path of `traces/index.html`.

    The texts of the benchmark are in the pages in plain text, also in an obfuscated run.

    Args:
        folder: an evaluated run.
        benchmark: its benchmark.
        run: the newest evaluation of the run.
        reasons: for each repeat, the verdicts of a judging model by question.
        passages: the texts of the passages on which the requirement scores of a navigator are
            based. Without it, new pages do not have these texts.

    Raises:
        InputError: if the folder cannot be written.
    """
    page = folder.path / PAGE
    content, price = benchmark.fingerprint, _recorded_price(run)
    try:
        with file_lock(page.parent / ".lock"):
            rows = []
            for row, repeat, shown in _questions(folder, benchmark, run, reasons):
                path, qid = page.parent / f"{row['name']}.html", row["topic"].qid
                stamp = repeat.stamp(qid)
                source = fingerprint(_FORMAT, stamp, content, dump_json(shown))
                facts = _read_facts(path, source) if stamp else {}
                if stamp and not facts and (trajectory := repeat.read(qid)):
                    labels = judged_documents(benchmark.qrels, qid)
                    values = trace_values(trajectory, labels, price, passages) | shown
                    values |= {"repeat": row["repeat"], "accepted": benchmark.answers.get(qid, ())}
                    facts, text = _page(trajectory, source, values)
                    _write(path, text)
                rows.append({**row, **facts})
            _write(page, _rendered(index_values(folder.name, benchmark, rows)))
    except OSError as error:
        raise InputError(
            f"cannot write the traces of {folder.path}: {error.strerror or error}",
            do="free or change the disk, or set traces=false; then evaluate again",
        ) from error
    return page


def _questions(
    folder: RunFolder,
    benchmark: Benchmark,
    run: EvaluatedRun,
    reasons: Sequence[Mapping[str, ModelVerdict]],
) -> list[tuple[dict[str, Any], RunFolder, dict[str, Any]]]:
    """For each question and repeat, the repeats of a question together: its row for `index_values`,
    the folder of the repeat, and what its page shows besides the trajectory."""
    by_question: dict[str, list[Any]] = {topic.qid: [] for topic in benchmark.topics}
    for place, repeat in enumerate(folder.repeats()):
        verdicts = read_json(repeat.path / VERDICTS, list[Verdict], do="evaluate the run again")
        by_rule = {row["qid"]: row for row in verdicts}
        by_model = reasons[place] if place < len(reasons) else {}
        names = {one.qid: f"{repeat.number}-{escape_qid(one.qid)}" for one in benchmark.topics}
        recorded = [name for qid, name in names.items() if repeat.stamp(qid)]
        around = zip([None, *recorded], [*recorded[1:], None], strict=False)
        neighbours = dict(zip(recorded, around, strict=True))
        for topic in benchmark.topics:
            qid, rule, value = topic.qid, by_rule.get(topic.qid), partial(_value, run, place)
            row = {
                **{"name": names[qid], "topic": topic, "repeat": repeat.number},
                **{"verdict": _verdict(rule), **{t: value(f"recall_{t}", qid) for t in TIERS}},
                "label": next((name for name in LABELS if value(f"label_{name}", qid)), ""),
            }
            shown = {
                **{"verdict": row["verdict"], "rule": rule, "model": by_model.get(qid)},
                "notice": benchmark.notice,
                "neighbours": neighbours.get(names[qid], (None, None)),
            }
            by_question[qid].append((row, repeat, shown))
    return [each for repeats in by_question.values() for each in repeats]


def _page(
    trajectory: Trajectory, source: str, values: Mapping[str, Any]
) -> tuple[dict[str, Any], str]:
    """What the tables of questions have of a trajectory, and the page of the trajectory. The first
    line of a page is a comment with the former and with a fingerprint of this and of the `source`
    of the page, so that a trajectory is read only if its page is written."""
    facts = {
        "status": trajectory.status,
        "calls": len(trajectory.calls),
        "tokens": sum(call.tokens for call in trajectory.calls),
        "dollars": number_of(trajectory.usage.get("dollars")),
        "seconds": number_of(trajectory.seconds),
        "asked": shorten(trajectory.question, 160, placeholder="…"),
        "answered": shorten(trajectory.answer.exact, 80, placeholder="…"),
    }
    comment = json.dumps({"key": fingerprint(source, facts), **facts})
    comment = comment.replace("<", r"\u003c").replace(">", r"\u003e")
    return facts, f"<!-- {comment} -->\n{_rendered({**values, **facts})}"


def index_values(
    run: str, benchmark: Benchmark, rows: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """What the page of all questions shows, for the template."""
    repeats = len({row["repeat"] for row in rows})
    labels = [label for label in LABELS if any(row["label"] == label for row in rows)]
    items = []
    for row in rows:
        topic, status = row["topic"], row.get("status", "missing")
        name = topic.qid + (f", repeat {row['repeat']}" if repeats > 1 else "")
        link = f"{quote(row['name'])}.html" if "status" in row else ""
        snippet = shorten(topic.text, 160, placeholder="…")
        item = {
            "Question": TableEntry(name, sub=snippet, link=link),
            "Status": TableEntry(status.replace("_", " "), kind=status),
            "Verdict": TableEntry(row["verdict"] or None, kind=row["verdict"]),
            "Label": row["label"].replace("_", " ") or None,
        }
        items.append({**row, **item})
    shown = [
        *texts("Question", "Status", "Verdict", "Label"),
        *(Column(f"recall {tier}", tier, decimals(2)) for tier in TIERS),
        Column("calls", form=decimals(0)),
        Column("tokens of tool output", "tokens", decimals(0)),
        Column("dollars", form=decimals(4)),
        Column("seconds", form=decimals(1)),
    ]
    count = len({row["topic"].qid for row in rows})
    subtitle = f"{benchmark.name}, {count:,} question{'' if count == 1 else 's'}"
    subtitle += f", each run {repeats} times" if repeats > 1 else ""
    filters = {
        "Status": dict.fromkeys(item["Status"].value for item in items),
        "Verdict": dict.fromkeys(item["Verdict"].value for item in items),
        "Label": [label.replace("_", " ") for label in labels],
    }
    table = Table(shown, items)
    return _questions_page(f"Traces of {run}", subtitle, table, filters, notice=benchmark.notice)


def _questions_page(
    title: str, subtitle: str, table: Table, filters: Mapping[str, Iterable[Any]], **more: Any
) -> dict[str, Any]:
    """A page with a table of questions, whose `filters` choose rows by values of columns."""
    script = templates().get_template("questions.js").render()
    digest = hashlib.sha256(script.encode()).digest()
    return {
        **{"title": title, "subtitle": subtitle, "table": table, **more},
        "filters": {name: list(filter(None, values)) for name, values in filters.items()},
        "script": script,
        "script_hash": base64.b64encode(digest).decode("ascii"),
    }


def write_side_by_side(folder: Path, runs: Sequence[tuple[Path, EvaluatedRun]]) -> Path | None:
    """Write `traces.html` into the folder of a comparison: the questions of two runs side by side,
    with links to their traces, and return its path.

    Without two runs over one benchmark that have traces, nothing is written, and an earlier page is
    removed. An obfuscated run has traces only by `traces=plain`. With repeats, values are means
    over them, and the links lead to the first.

    Args:
        folder: the folder of the comparison.
        runs: for each run its folder and its newest evaluation.
    """
    page = folder / SIDE_BY_SIDE
    one_benchmark = len(by_benchmark([run for _, run in runs])) == 1
    if len(runs) != 2 or not (one_benchmark and all((path / PAGE).is_file() for path, _ in runs)):
        page.unlink(missing_ok=True)
        return None
    base = folder.resolve()
    sides = [
        (side, run.name, quote(os.path.relpath((path / PAGE).resolve(), base)))
        for side, (path, run) in zip("AB", runs, strict=True)
    ]
    rows, measures = [], [row for _, run in runs for row in run.per_question.values()]
    for qid in dict.fromkeys(qid for row in measures for qid in row):
        both = [_on_side(path, run, qid, base) for path, run in runs]
        values = {
            f"{name} {side}": value
            for side, row in zip("AB", both, strict=True)
            for name, value in row.items()
        }
        asked = next((row["asked"] for row in both if row["asked"]), "")
        right = _right_in(*(row["accuracy"] for row in both))
        rows.append({"Question": TableEntry(qid, sub=asked), "Right in": right, **values})
    filters = {
        name: sorted({row[name] for row in rows} - {None})
        for name in ("Right in", "Label A", "Label B")
    }
    numbers = {"recall opened": 2, "calls": 0, "tokens": 0}
    shown = [
        *texts("Question", "Right in", "Verdict A", "Verdict B", "Label A", "Label B"),
        *(
            Column(f"{name} {side}", form=decimals(n))
            for name, n in numbers.items()
            for side in "AB"
        ),
    ]
    title, subtitle = (
        "Two runs side by side",
        f"{len(rows):,} question{'' if len(rows) == 1 else 's'}",
    )
    more = {"sides": sides, "notice": notice_of(run for _, run in runs)}
    _write(page, _rendered(_questions_page(title, subtitle, Table(shown, rows), filters, **more)))
    return page


def _on_side(path: Path, run: EvaluatedRun, qid: str, base: Path) -> dict[str, Any]:
    """What the table of two runs has of a question in one of them, whose folder is `path`."""
    values = {measure: row.get(qid) for measure, row in run.per_question.items()}
    trace = path / PAGE.parent / f"1-{escape_qid(qid)}.html"
    facts, accuracy = _first_line(trace), values.get("accuracy")
    kind = "" if accuracy is None else {1.0: "correct", 0.0: "wrong"}.get(accuracy, "")
    label = max(LABELS, key=lambda name: values.get(f"label_{name}") or 0.0)
    return {
        "accuracy": accuracy,
        "asked": text_of(facts.get("asked")),
        "Verdict": TableEntry(
            None if accuracy is None else kind or f"{accuracy:.0%} correct",
            kind=kind,
            sub=text_of(facts.get("answered")),
            link=quote(os.path.relpath(trace.resolve(), base)) if facts else "",
        ),
        "Label": label.replace("_", " ") if values.get(f"label_{label}") else None,
        "recall opened": values.get("recall_opened"),
        "calls": number_of(facts.get("calls")),
        "tokens": number_of(facts.get("tokens")),
    }


def _right_in(a: float | None, b: float | None) -> str | None:
    """In which of two runs a question is answered correctly, by its accuracy in each.

    >>> _right_in(1.0, 0.0), _right_in(0.0, 0.0), _right_in(0.5, 1.0), _right_in(None, 1.0)
    ('A, not B', 'neither', 'B more often', None)
    """
    if a is None or b is None:
        return None
    if a == b:
        return {0.0: "neither", 1.0: "both"}.get(a, "equally often")
    names = ("A", "B") if a > b else ("B", "A")
    return "{}, not {}".format(*names) if {a, b} == {0.0, 1.0} else f"{names[0]} more often"


def _rendered(values: Mapping[str, Any]) -> str:
    return templates().get_template("traces.html").render(values)


def _read_facts(path: Path, source: str) -> dict[str, Any]:
    """The values in the first line of a page; empty unless the page was made from `source`."""
    facts = _first_line(path)
    return facts if facts.pop("key", None) == fingerprint(source, facts) else {}


def _first_line(path: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError), path.open(encoding="utf-8") as stream:
        line = stream.readline(4000)
        return dict(mapping(decode_json(line.removeprefix("<!-- ").removesuffix(" -->\n"))))
    return {}


def _write(path: Path, text: str) -> None:
    if not path.is_file() or path.read_bytes() != text.encode():
        write_text(path, text)


def _verdict(verdict: Mapping[str, Any] | None) -> str:
    """`correct`, `wrong`, `undecided` without a verdict, or empty if there was nothing to judge."""
    if verdict is None:
        return ""
    if verdict.get("error"):
        return "undecided"
    return "correct" if verdict.get("correct") else "wrong"


def _value(run: EvaluatedRun, place: int, measure: str, qid: str) -> float | None:
    """The value of a measure in the repeat at a place; None where it is not known."""
    if not run.repeats:
        return run.per_question.get(measure, {}).get(qid)
    values = run.repeats.get(measure, {}).get(qid, ())
    return values[place] if place < len(values) else None


# The values of a page.


def judged_documents(qrels: Mapping[str, Qrels], qid: str) -> dict[str, list[str]]:
    """The relevant documents of a question, with the levels of judgement in which they are relevant
    and with grades other than 1.

    >>> judged_documents({"evidence": {"q": {"d1": 1}}, "gold": {"q": {"d1": 2, "d2": 0}}}, "q")
    {'d1': ['evidence', 'gold 2']}
    """
    labels: dict[str, list[str]] = {}
    for level, grades in qrels.items():
        for docid, grade in grades.get(qid, {}).items():
            if grade > 0:
                labels.setdefault(docid, []).append(level if grade == 1 else f"{level} {grade}")
    return labels


def trace_values(
    trajectory: Trajectory, labels: Labels, price: Price, passages: DocumentStore | None = None
) -> dict[str, Any]:
    """What the page of a trajectory shows, for the template: by the `labels` of
    `judged_documents` and the price of the agent's model."""
    ranks = [_ranks(call.ranking, labels) for call in trajectory.calls]
    answer = trajectory.answer
    evidence = [_evidence(docid, labels[docid], ranks, trajectory) for docid in labels]
    return {
        "title": f"Question {trajectory.qid}",
        "trajectory": trajectory,
        "citations": [(docid, labels.get(parent(docid), ())) for docid in answer.citations],
        "documents": [(docid, labels.get(parent(docid), ())) for docid in answer.documents],
        "evidence": Table(texts("document", "judgement", "best rank", *TIERS), evidence),
        "rounds": [_round(row, n, trajectory) for n, row in enumerate(trajectory.rounds, start=1)],
        "matrix": matrix_values(trajectory, labels, passages),
        "steps": list(_steps(trajectory, labels, ranks, price)),
        "as_text": as_text,
        "number": number,
    }


def _evidence(
    docid: str, judged: Sequence[str], ranks: Sequence[Mapping[str, int]], trajectory: Trajectory
) -> dict[str, TableEntry]:
    """The row of a judged document: its best rank, and the first call in each tier, which may not
    be recorded."""
    ranked = [(row[docid], call) for call, row in enumerate(ranks, start=1) if docid in row]
    first: dict[str, int] = {
        exposure.tier: exposure.call
        for exposure in reversed(trajectory.exposures)
        if exposure.docid == docid
    }
    if ranked:
        first["surfaced"] = min(call for _, call in ranked)
    row = {"document": TableEntry(docid), "judgement": TableEntry("", judged=judged)}
    for rank, call in sorted(ranked)[:1]:
        row["best rank"] = TableEntry(rank, f"{rank:,} in call {call}", link=f"#call-{call}")
    for tier in TIERS:
        shown = first.get(tier, 0 if docid in trajectory.tiers.get(tier, ()) else None)
        if shown and tier != "cited":
            row[tier] = TableEntry(f"call {shown}", link=f"#call-{shown}")
        else:
            row[tier] = TableEntry("never" if shown is None else "yes")
    return row


def as_text(value: Any) -> str:
    """A text as it is, any other value as JSON."""
    return value if isinstance(value, str) else dump_json(value, indent=None).rstrip("\n")


def _ranks(ranking: Sequence[str], labels: Labels) -> dict[str, int]:
    """The best rank of each judged document in a ranking of units, counted from 1."""
    ranks: dict[str, int] = {}
    for rank, unit in enumerate(ranking, start=1):
        docid = unit if PASSAGE_MARK not in unit else parent(unit)
        if docid in labels:
            ranks.setdefault(docid, rank)
    return ranks


def _steps(
    trajectory: Trajectory, labels: Labels, ranks: Sequence[Mapping[str, int]], price: Price
) -> Iterator[dict[str, Any]]:
    """Messages and calls in the order in which they reached the agent; other calls come last."""
    calls, messages = trajectory.calls, trajectory.messages
    spent = _spending(trajectory, price)
    tokens = list(accumulate(call.tokens for call in calls))
    in_order = sum(message.get("role") == "tool" for message in messages) <= len(calls)
    done = 0

    def call_step(place: int, spent: Sequence[str]) -> dict[str, Any]:
        call = calls[place]
        facts = [f"{tokens[place]:,} tokens of tool output so far", *spent]
        facts.append(f"took {call.seconds:.3f} s")
        exposed = [row for row in trajectory.exposures if row.call == place + 1]
        shown = {parent(unit) for unit in call.shown}
        judged = [
            {
                "docid": docid,
                "judged": labels[docid],
                "rank": ranks[place].get(docid),
                "shown": docid in shown,
                "first": [r.tier for r in exposed if r.docid == docid and r.tier != "cited"],
            }
            for docid in labels
            if docid in ranks[place] or docid in shown
        ]
        notes = dict(call.notes)
        rewrites = [name for name in notes if re.fullmatch(r"rewrite(_\d+)?", name)]
        return {
            "number": place + 1,
            "call": call,
            "rewritten": [
                as_text(mapping(notes.pop(name)).get("rewritten", "")) for name in rewrites
            ],
            "notes": notes,
            "judged": judged,
            "output": marked(call.output, labels),
            "spent": " · ".join(facts),
        }

    so_far: list[str] = []
    for message, facts in zip(messages, spent, strict=True):
        so_far = facts or so_far
        content, reasoning = message.get("content"), message.get("reasoning")
        if (
            message.get("role") == "tool"
            and done < len(calls)
            and (in_order or calls[done].output == content)
        ):
            yield call_step(done, so_far)
            done += 1
        elif content or reasoning:
            yield {
                "number": 0,
                "role": as_text(message.get("role", "")),
                "text": as_text(content or ""),
                "reasoning": as_text(reasoning or ""),
                "spent": " · ".join(facts),
            }
    yield from (call_step(place, so_far) for place in range(done, len(calls)))


def marked(text: str, labels: Labels) -> Markup:
    """A result page with the ids of judged documents marked, as HTML.

    >>> marked("1. docid=d1 <b>", {"d1": ["gold"]})
    Markup('1. docid=<mark title="judged: gold">d1</mark> &lt;b&gt;')
    """
    if not labels:
        return escape(text)
    ids = "|".join(map(re.escape, labels))
    pieces = re.split(rf"(docid[\"'=:\s]{{1,6}})({ids})(?![\w-])", text)
    html = escape(pieces[0])
    for before, docid, after in zip(pieces[1::3], pieces[2::3], pieces[3::3], strict=True):
        mark = Markup('<mark title="judged: {}">{}</mark>').format(", ".join(labels[docid]), docid)
        html += escape(before) + mark + escape(after)
    return html


def _spending(trajectory: Trajectory, price: Price) -> list[list[str]]:
    """For each message of the agent's model, tokens and dollars up to it; nothing for others.

    A trajectory has the tokens of each reply, but the dollars of the whole question only. These
    (`agent_dollars`) are divided among the replies in proportion to the price of their tokens.
    Without a price or a record of the dollars, or if a reply has no tokens, dollars are left out.
    """
    is_reply = [message.get("role") == "assistant" for message in trajectory.messages]
    counts = [mapping(message.get("usage")) for message in compress(trajectory.messages, is_reply)]
    usages = [
        Usage(input=row.get("input"), cached=row.get("cached"), output=row.get("output"))
        for row in counts
    ]
    attempts = (of_attempt(usage, price.cost(usage), seconds=0.0) for usage in usages)
    sums = list(accumulate(attempts, add))
    billed = trajectory.usage.get("agent_dollars")
    facts = []
    for so_far in sums:
        read, cached, written = so_far.input_tokens, so_far.cached_tokens, so_far.output_tokens
        of_input = f" ({cached:,} cached)" if cached else ""
        tokens = f"model so far {read:,} tokens in{of_input}, {written:,} out"
        facts.append([tokens] if read or written else [])
        if billed is not None and sums[-1].dollars and not sums[-1].unpriced:
            share = so_far.dollars / sums[-1].dollars
            facts[-1].append(f"≈ ${billed * share:.4f} so far")
    of_replies = iter(facts)
    return [next(of_replies) if reply else [] for reply in is_reply]


def _recorded_price(run: EvaluatedRun) -> Price:
    """The price of the agent's model of a run; an unknown one if it is absent or damaged."""
    with suppress(TypeError, ValueError, InputError):
        return Price.of_record(mapping(run.setting("llm", "price")))
    return Price()


# The rounds of a navigator. `soundingline.agents.literature.rounds` defines their rows; those of
# another version are shown as far as they can be read.


def _round(row: Mapping[str, Any], place: int, trajectory: Trajectory) -> dict[str, Any]:
    """A round with its queries, its checklist and other facts."""
    facts = ("planned_by", "left_out", "unscored", "stopped")
    queries = []
    for query in map(mapping, items(row.get("librarians"))):
        docids = [text_of(docid) for docid in items(query.get("docids"))]
        text = text_of(query.get("text")) or " ".join(docids)
        # A call has its documents as a list in JSON, or with spaces between them.
        forms = {text, json.dumps(docids)} if text else set()
        calls = (
            number
            for number, call in enumerate(trajectory.calls, start=1)
            if forms & set(map(str, call.arguments.values()))
        )
        numbers = ((name, number_of(query.get(name))) for name in ("candidates", "new"))
        words = [text_of(query.get("operator")), text_of(query.get("direction"))]
        words += [f"{count:g} {name}" for name, count in numbers if count is not None]
        if error := text_of(query.get("error")):
            words.append(f"failed: {error}")
        queries.append(
            {
                "text": text,
                "facts": ", ".join(filter(None, words)),
                "reason": text_of(query.get("reason")),
                "call": next(calls, None),
            }
        )
    shown = {name.replace("_", " "): as_text(row[name]) for name in facts if row.get(name)}
    if missing := list(map(text_of, items(row.get("missing")))):
        shown = {"missing": "; ".join(missing), **shown}
    if strategy := text_of(row.get("strategy")):
        shown = {"strategy": strategy, **shown}
    return {
        "number": int(number_of(row.get("round")) or place),
        "note": text_of(row.get("reason")),
        "queries": queries,
        "checklist": checklist_of(row),
        "facts": shown,
    }


def matrix_values(
    trajectory: Trajectory, labels: Labels, passages: DocumentStore | None
) -> dict[str, Any]:
    """Documents and the requirements of the last checklist.

    The `table` has at most 200 documents, first those of the answer in its order, then the others
    by score, and a column for each requirement. `passages` has each passage on which a score is
    based, with its text (empty if it is unknown) and its `reasons`: (requirement, score,
    rationale).
    """
    checklist = last_checklist(trajectory.rounds)
    scored = scored_documents(trajectory.rounds)
    listed = {docid: rank for rank, docid in enumerate(trajectory.answer.documents, start=1)}
    order = sorted(scored, key=lambda docid: -(scored[docid].score or 0.0))
    order.sort(key=lambda docid: listed.get(docid, len(listed) + 1))
    based: dict[str, dict[str, Any]] = {}
    rows = []
    for docid in order[:_MOST_DOCUMENTS]:
        units = {}
        if passages is not None:
            for name in scored[docid].passages:
                with suppress(KeyError):  # the corpus may have changed
                    units[name] = passages.texts([name])[0]
        title = next((unit.title for unit in units.values()), "")
        row = {
            "document": TableEntry(docid, sub=title, judged=labels.get(parent(docid), ())),
            "place in the answer": listed.get(docid),
            "score": TableEntry(scored[docid].score, number(scored[docid].score, 2)),
            "overall": scored[docid].probability,
        }
        for place, need in enumerate(checklist, start=1):
            if (cell := scored[docid].requirements.get(need)) is None:
                continue
            verdict, unit_id = text_of(cell.get("verdict")), text_of(cell.get("passage"))
            kind = verdict if verdict in _SIGNS else "unknown"
            score = f"{_SIGNS[kind]} {number(number_of(cell.get('score')), 2)}"
            reason, link = text_of(cell.get("rationale")), ""
            if unit_id:
                text = units[unit_id].text if unit_id in units else ""
                new: dict[str, Any] = {"place": len(based) + 1, "text": text, "reasons": []}
                based.setdefault(unit_id, new)["reasons"].append((place, score, reason))
                link = f"#passage-{based[unit_id]['place']}"
            row[str(place)] = TableEntry(score, link=link, kind=kind, tip=reason)
        rows.append(row)
    shown = [
        *texts("document"),
        *(Column("place in the answer"), Column("score"), Column("overall", form=decimals(2))),
        *(Column(str(n), numeric=False, tip=need) for n, need in enumerate(checklist, start=1)),
    ]
    return {"checklist": checklist, "table": Table(shown, rows), "passages": based}
