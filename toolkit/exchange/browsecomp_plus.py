"""Run files of BrowseComp-Plus (Chen et al., 2025) and of Pi-Serini's benchmark runner (Hsu, Yang
and Lin, 2026), the faults of such files, and entries of BrowseComp-Plus's leaderboard. A run file
is one JSON object a question; the last item of an answered question is an `output_text`. Published
files are obfuscated with a canary. Pi-Serini's evaluation counts a document as opened even if
reading it failed; here only documents that were shown count."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field
from typing_extensions import Required, TypedDict

from soundingline.toolkit.benchmarks.formats import Id
from soundingline.toolkit.data import Qrels, parent
from soundingline.toolkit.errors import InputError, is_number, parse
from soundingline.toolkit.evaluation.answers import ExactAnswerJudge
from soundingline.toolkit.evaluation.judge import UNREADABLE, ModelVerdict
from soundingline.toolkit.evaluation.published import (
    browsecomp_plus_measures,
    count_calls,
    judged_response,
    published_recall,
    published_status,
    retrieved_docids,
    tool_call_counts,
)
from soundingline.toolkit.exchange.transcript import (
    RECORD_KEY,
    ForeignCall,
    Message,
    Step,
    Transcript,
    call_arguments,
    chat_messages,
    edited_file,
    embed_record,
    extract_record,
    is_text_part,
    output_text,
)
from soundingline.toolkit.files import fingerprint
from soundingline.toolkit.json_text import try_json
from soundingline.toolkit.obfuscation import Canary, NotObfuscated
from soundingline.toolkit.trajectory import SEARCHES, TIERS, Trajectory, final_message

# Files of Pi-Serini's runner and of both evaluators in the folder of the run files.
NO_RUN_FILES = (
    *("benchmark_manifest_snapshot.json", "run_setup.json", "judge_summary.json"),
    "evaluation_summary.json",
)
TO_FILL_IN = "change me when submitting"

_OBFUSCATED = re.compile(r"[A-Za-z0-9+/]{40,}={0,2}")
_USAGE = {  # their name of a number, and ours
    "input_tokens": "input_tokens",
    "input_tokens_cached": "cached_tokens",
    "output_tokens": "output_tokens",
    "included_reasoning_tokens": "reasoning_tokens",
}
_NOT_COMPARED = ("metadata", "usage")
_PI_STATUSES = {"completed": "completed", "timed_out": "timeout", "timeout": "timeout"}
_CLIENT_ERRORS = ("Error executing", '{"error"', '{\n  "error"')
_PI_FAILURE, _PI_ERRORS = "pi-search extension failure (", "pi stderr:\n"


class ObfuscatedFile(InputError):
    """An obfuscated file that is read without a canary or with a wrong one."""


class _Item(TypedDict, total=False):
    type: Required[Literal["reasoning", "tool_call", "output_text"]]
    tool_name: str | None
    arguments: Any
    output: Any


class _RunFile(TypedDict, total=False):
    query_id: Required[Annotated[Id, Field(pattern=r"\S")]]
    status: str | None
    metadata: dict[str, Any] | None
    tool_call_counts: dict[str, Annotated[int, Field(ge=0, strict=True)]] | None
    usage: dict[str, Any] | None
    retrieved_docids: list[Id] | None
    result: list[_Item] | None
    surfaced_docids: list[Id] | None
    previewed_docids: list[Id] | None
    opened_docids: list[Id] | None
    stats: dict[str, Any] | None


def write(trajectory: Trajectory, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The run file of a trajectory, with facts about the run as `metadata`, such as `model`.
    `InputError` for messages that are not in the function-calling form."""
    items = _items(trajectory)
    tokens = {theirs: trajectory.usage.get(ours) for theirs, ours in _USAGE.items()}
    usage = {name: int(value) for name, value in tokens.items() if value is not None}
    return {
        "metadata": {**metadata, RECORD_KEY: embed_record(trajectory, _outputs(items))},
        "query_id": trajectory.qid,
        "tool_call_counts": tool_call_counts(trajectory),
        **({"usage": usage} if usage else {}),
        "status": published_status(trajectory),
        "retrieved_docids": retrieved_docids(trajectory),
        "result": items,
    }


def write_pi_serini(trajectory: Trajectory, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The file of a trajectory in the form of Pi-Serini's runner, for its summaries; see `write`.

    As there, all calls count, also those with an error, reasoning is left out, and any other end
    than an answer or a time limit is `failed`.
    """
    items = [item for item in _items(trajectory) if item["type"] != "reasoning"]
    texts = items[-1:] if items and items[-1]["type"] == "output_text" else []
    calls = [
        {**item, "arguments": call_arguments(item["arguments"])}
        for item in items
        if item["type"] == "tool_call"
    ]
    counts = Counter(call.name for call in trajectory.calls)
    turns = sum(message.get("role") == "assistant" for message in trajectory.messages)
    status = _PI_STATUSES.get(published_status(trajectory), "failed")
    tiers = {tier: list(trajectory.tiers.get(tier, ())) for tier in TIERS}
    return {
        "metadata": {
            **metadata,
            "query": trajectory.question,
            RECORD_KEY: embed_record(trajectory, _outputs(calls)),
        },
        "query_id": trajectory.qid,
        "tool_call_counts": dict(counts),
        "status": status,
        **{f"{tier}_docids": docids for tier, docids in tiers.items()},
        "agent_docids": list(dict.fromkeys([*tiers["opened"], *tiers["cited"]])),
        "stats": {
            "elapsed_seconds": round(trajectory.seconds, 3),
            "assistant_turns": turns,
            "tool_calls_total": counts.total(),
            "search_calls": sum(counts[name] for name in SEARCHES),
            "read_search_results_calls": counts["read_search_results"],
            "read_document_calls": counts["read_document"] + counts["get_document"],
            "timed_out": status == "timeout",
        },
        "result": [*calls, *texts],
    }


def _items(trajectory: Trajectory) -> list[dict[str, Any]]:
    """The items of a run file. The last one is a text if the question was answered."""
    messages = chat_messages(trajectory)
    tool_outputs = {row.get("tool_call_id"): row.get("content") for row in messages}
    items: list[dict[str, Any]] = []
    for message in messages:
        if message.get("role") != "assistant":
            continue
        if message.get("reasoning"):
            items.append(_item("reasoning", [message["reasoning"]]))
        if message.get("content"):
            items.append(_item("output_text", message["content"]))
        for call in message.get("tool_calls") or ():
            function, output = call["function"], tool_outputs.get(call["id"], "")
            items.append(_item("tool_call", output, function["name"], function["arguments"]))
    if items and items[-1]["type"] == "output_text" and not judged_response(trajectory):
        items.pop()  # Otherwise it would be read as an answer.
    return items


def _outputs(items: Iterable[Mapping[str, Any]]) -> list[Any]:
    return [item.get("output") for item in items if item["type"] == "tool_call"]


def _item(
    kind: str, output: Any, tool: str | None = None, arguments: str | None = None
) -> dict[str, Any]:
    return {"type": kind, "tool_name": tool, "arguments": arguments, "output": output}


def read(
    files: Iterable[tuple[str, Mapping[str, Any]]],
    canary: Canary | None = None,
    *,
    pi_serini: bool = False,
) -> Iterator[Transcript | Trajectory]:
    """The questions of run files of BrowseComp-Plus, or of Pi-Serini's runner, in the order of the
    files, each with its location (`transcript.run_files`): the trajectory if we wrote the file,
    else a transcript. `InputError` for other content, and for an obfuscated file that the `canary`
    does not decrypt."""
    form, writer = ("pi_serini", write_pi_serini) if pi_serini else ("browsecomp_plus", write)
    for location, content in files:
        row = _parsed(location, content)
        if RECORD_KEY in (row.get("metadata") or {}):
            yield _own_trajectory(location, content, writer)
            continue
        row["result"] = _readable_items(location, row, canary)
        retrieved = row.get("surfaced_docids") if pi_serini else row.get("retrieved_docids")
        retrieved = retrieved or []
        source = _source(form, location, row, retrieved)
        listed: dict[str, Any]  # what the file lists beside its items
        if pi_serini:
            source["opened_docids"] = row.get("opened_docids") or []
            seconds = (row.get("stats") or {}).get("elapsed_seconds")
            listed = {"surfaced": retrieved, "previewed": row.get("previewed_docids") or []}
            listed["seconds"] = float(seconds) if is_number(seconds) else 0.0
        else:
            counts = row.get("usage") or {}
            usage = {ours: counts.get(theirs) for theirs, ours in _USAGE.items()}
            listed = {"previewed": retrieved}
            listed["usage"] = {name: count for name, count in usage.items() if count is not None}
        yield Transcript(
            qid=row["query_id"],
            steps=_steps(row, pi_serini),
            status=row.get("status") or "",
            source=source,
            **listed,
        )


def _readable_items(location: str, row: _RunFile, canary: Canary | None) -> list[_Item]:
    """The items of a file, decrypted if they are obfuscated."""
    items = row.get("result") or []
    if not any(map(_is_obfuscated, items)):
        return items
    if canary is None:
        raise ObfuscatedFile(
            f"{location} is obfuscated",
            valid="a file with its canary",
            do="export the canary that it was published with, and name the variable with "
            "canary_env=NAME",
        )
    try:
        return [_decrypted(item, canary) for item in items]
    except NotObfuscated:
        raise ObfuscatedFile(
            f"the canary does not decrypt {location}",
            valid="the canary that the run was published with, which need not be the benchmark's",
            do="name the variable that holds it with canary_env=NAME",
        ) from None


def _own_trajectory(
    location: str,
    content: Mapping[str, Any],
    writer: Callable[[Trajectory, Mapping[str, Any]], dict[str, Any]],
) -> Trajectory:
    """The trajectory of a file that `writer` has written; `InputError` if it was changed since."""
    outputs = _outputs(content.get("result") or ())
    if not all(isinstance(output, str) for output in outputs):
        raise edited_file(location)
    record = content["metadata"][RECORD_KEY]
    trajectory = extract_record(location, record, list(map(str, outputs)))
    again = writer(trajectory, {})
    if any(again[name] != content.get(name) for name in again if name not in _NOT_COMPARED):
        raise edited_file(location)
    return trajectory


class _Judged(TypedDict, total=False):
    query_id: Required[Annotated[Id, Field(pattern=r"\S")]]
    judge_result: Required[dict[str, Any]]
    calibration_confidence: float | None
    model_info: dict[str, Any] | None


def read_judgement(location: str, content: Mapping[str, Any]) -> tuple[str, ModelVerdict]:
    """The judge's model and its verdict from a file `*_eval.json` of BrowseComp-Plus's or of
    Pi-Serini's evaluator. The former takes the confidence that the judge read for calibration, the
    latter the one that the answer states. A file without a readable verdict counts as wrong."""
    row = parse(_Judged, dict(content), where=location)
    result = row["judge_result"]
    readable = isinstance(result.get("correct"), bool) and not result.get("parse_error")
    confidence = row.get("calibration_confidence", result.get("confidence"))
    verdict = ModelVerdict(
        row["query_id"],
        readable and result["correct"],
        confidence=float(confidence) if readable and is_number(confidence) else None,
        error="" if readable else UNREADABLE,
    )
    return str((row.get("model_info") or {}).get("judge_model", "unnamed")), verdict


def leaderboard_entry(
    trajectories: Sequence[Trajectory],
    correct: Mapping[str, bool],
    answers: Mapping[str, Sequence[str]],
    qrels: Qrels,
    *,
    llm: str,
    retriever: str,
    date: str,
) -> dict[str, Any]:
    """An entry of BrowseComp-Plus's leaderboard: the JSON that its evaluator writes.

    The figures are those of the published evaluator (`soundingline.toolkit.evaluation.published`),
    because all entries of the leaderboard are computed by it. Percentages have two decimals, and
    are None if there is nothing to compute them from.

    Args:
        trajectories: the run.
        correct: by qid, whether the answer is correct.
        answers: the accepted answers by qid. Questions without any are left out.
        qrels: grades by qid and docid.
        llm, retriever: their names.
        date: of the evaluation, in ISO 8601.
    """
    rows = [row for row in trajectories if row.qid in answers]
    verdicts = [correct.get(row.qid, False) for row in rows]
    figures = browsecomp_plus_measures(rows, verdicts, answers, qrels)
    values = {name: value for name, (value, _) in figures.items()}
    calls: Counter[str] = Counter()
    for row in rows:
        calls.update(tool_call_counts(row))
    return {
        "LLM": llm,
        "Accuracy (%)": _percent(values.get("accuracy_published")),
        "Recall (%)": _percent(values.get("recall_published")),
        "avg_tool_stats": {tool: count / len(rows) for tool, count in calls.items()},
        "Calibration Error (%)": round(values.get("calibration_error_published", 0.0), 2),
        "Retriever": retriever,
        "Link": TO_FILL_IN,
        "Evaluation Date": date,
        "per_query_metrics": [
            {
                "query_id": row.qid,
                "correct": bool(judged_response(row)) and correct.get(row.qid, False),
                "recall": _percent(published_recall(row, qrels.get(row.qid, {}))),
            }
            for row in rows
        ],
    }


def _percent(share: float | None) -> float | None:
    return None if share is None else round(100 * share, 2)


def _parsed(location: str, content: Mapping[str, Any]) -> _RunFile:
    do = "move it away if it is not a run file"
    row = parse(_RunFile, dict(content), where=location, do=do)
    for number, item in enumerate(row.get("result") or ()):
        if item["type"] == "tool_call" and not item.get("tool_name"):
            raise InputError(f"{location} has no field 'result.{number}.tool_name'", do=do)
    return row


def _source(form: str, location: str, row: _RunFile, retrieved: Sequence[str]) -> dict[str, Any]:
    items = row.get("result") or []
    return {
        "format": form,
        "file": location,
        "status": row.get("status") or "",
        "ends_with_answer": bool(items) and items[-1]["type"] == "output_text",
        "retrieved_docids": retrieved,
        "tool_call_counts": row.get("tool_call_counts") or {},
        "metadata": row.get("metadata") or {},
    }


def _steps(row: _RunFile, pi_serini: bool) -> list[Step]:
    """The items of a file. The clients of BrowseComp-Plus write what went wrong into the output of
    a call, Pi-Serini's into the message that follows it."""
    steps: list[Step] = []
    for item in row.get("result") or ():
        output = item.get("output")
        text = output_text(output)
        if item["type"] == "tool_call":
            failed = not pi_serini and text[:200].lstrip().startswith(_CLIENT_ERRORS)
            error = "tool_error" if failed else ""
            steps.append(ForeignCall(str(item["tool_name"]), item.get("arguments"), output, error))
        elif item["type"] == "reasoning" or not pi_serini:
            steps.append(Message(text, reasoning=item["type"] == "reasoning"))
        elif text.startswith(_PI_FAILURE):
            if steps and isinstance(failed_call := steps[-1], ForeignCall):
                steps[-1] = replace(failed_call, error="tool_error")
        elif not text.startswith(_PI_ERRORS):
            steps.append(Message(text))
    return steps


def _is_obfuscated(item: _Item) -> bool:
    """Whether the output looks like base64 and nothing else."""
    output = item.get("output")
    parts: list[Any] = output if isinstance(output, list) else [{"text": output}]
    return any(is_text_part(part) and _OBFUSCATED.fullmatch(part["text"]) for part in parts)


def _decrypted(item: _Item, canary: Canary) -> _Item:
    output, arguments = item.get("output"), item.get("arguments")
    if isinstance(output, str):
        output = canary.decrypt(output)
        if output == "null" or output.startswith("["):  # JSON of a list or of null
            output = try_json(output, output)
    elif isinstance(output, list):
        output = [
            {**part, "text": canary.decrypt(part["text"])} if is_text_part(part) else part
            for part in output
        ]
    if isinstance(arguments, str):
        with suppress(NotObfuscated):  # Only some publications obfuscate them.
            arguments = canary.decrypt(arguments)
    return {**item, "arguments": arguments, "output": output}


# Faults of run files that change a published figure.

_BRACKETS = (re.compile(r"\[([^\[\]]*)\]"), re.compile(r"【([^【】]*)】"))
_ID = re.compile(r"(?=\S*\d)\S{1,64}")
_NOTICEABLE = 1e-9


class ImportFault(NamedTuple):
    """One kind of fault, its number, the locations of what has it, and the published figures that
    change, each with and without the fault."""

    fault: str
    number: int
    places: Sequence[str]
    changes: Mapping[str, tuple[float, float]]


def findings(
    rows: Mapping[str, Trajectory],
    qids: Sequence[str],
    answers: Mapping[str, Sequence[str]],
    qrels: Qrels,
) -> list[ImportFault]:
    """The faults that change a published figure. Answers are judged by the exact rule, which needs
    no model.

    Args:
        rows: the trajectory of each file by its location; `agent_run.without_texts` is enough.
        qids: all questions of the benchmark.
        answers: accepted answers by qid, of questions that have any.
        qrels: grades by qid and docid.
    """

    def figures(trajectories: Iterable[Trajectory]) -> dict[str, float]:
        read, judge = list(trajectories), ExactAnswerJudge()
        right = [
            bool(accepted) and judge.verdict(row.qid, row.answer, accepted).correct
            for row in read
            for accepted in [answers.get(row.qid, ())]
        ]
        measures = browsecomp_plus_measures(read, right, answers, qrels)
        return {name: value for name, (value, _) in measures.items()}

    def finding(fault: str, count: int, places: Sequence[str], after: Figures) -> ImportFault:
        pairs = {name: (before[name], value) for name, value in after.items() if name in before}
        noticeable = {name: (a, b) for name, (a, b) in pairs.items() if abs(a - b) > _NOTICEABLE}
        return ImportFault(fault, count, places, noticeable)

    before = figures(rows.values())
    asked = [qid for qid in qids if qid in answers or not answers]
    missing = sorted({*asked} - {row.qid for row in rows.values()})
    share = 1 - len(missing) / max(len(asked), 1)
    whole = {name: value * share for name, value in before.items() if name in _OVER_FILES}
    found = [finding("questions without a file", len(missing), missing, whole)]
    documents = {docid for grades in qrels.values() for docid in grades}
    for fault, repair in _repairs(documents).items():
        repaired = {at: repair(row) for at, row in rows.items()}
        wrong = [at for at, row in rows.items() if repaired[at] is not row]
        if wrong:
            found.append(finding(fault, len(wrong), wrong, figures(repaired.values())))
    settings = Counter(map(_settings, rows.values())).most_common()
    usual = [row for row in rows.values() if _settings(row) == settings[0][0]]
    if others := len(rows) - len(usual):
        names = [f"{name}: {count}" for name, count in settings]
        found.append(finding("files of other models or settings", others, names, figures(usual)))
    return [each for each in found if each.changes]


Figures = Mapping[str, float]
_OVER_FILES = ("accuracy_published", "completion_published")


def _repairs(documents: Set[str]) -> dict[str, Callable[[Trajectory], Trajectory]]:
    """Each kind of fault, and what returns a trajectory without it; the same one if it has none.
    `documents` are the judged ones."""

    def with_last_answer(row: Trajectory) -> Trajectory:
        cut = row.answer.exact.strip() and not row.source.get("ends_with_answer", True)
        return _with_source(row, ends_with_answer=True) if cut else row

    def with_own_counts(row: Trajectory) -> Trajectory:
        wrong = _wrong_counts(row)
        return _with_source(row, tool_call_counts=count_calls(row.calls)) if wrong else row

    def with_own_docids(row: Trajectory) -> Trajectory:
        docids = _recorded_docids(row)
        same = set(retrieved_docids(row)) == set(docids)
        return row if same else _with_source(row, retrieved_docids=docids)

    def with_documents(row: Trajectory) -> Trajectory:
        names = retrieved_docids(row)
        docids = [
            _document(name) if name not in documents and _document(name) in documents else name
            for name in names
        ]
        return row if docids == list(names) else _with_source(row, retrieved_docids=docids)

    return {
        "answers that are not the last item": with_last_answer,
        "tool_call_counts that contradict the calls": with_own_counts,
        "retrieved_docids that contradict the calls": with_own_docids,
        "retrieved_docids that name passages": with_documents,
        "citations of ids that were never shown": _without_invented,
    }


def _with_source(row: Trajectory, **facts: Any) -> Trajectory:
    return replace(row, source={**row.source, **facts})


def _settings(row: Trajectory) -> str:
    metadata = row.source.get("metadata") or {}
    settings = {name: metadata.get(name) for name in ("model", "reasoning", "prompt_variant", "k")}
    settings["models"] = row.source.get("models")
    return f"{settings['model'] or 'unnamed'} ({fingerprint(settings)[:6]})"


def _wrong_counts(row: Trajectory) -> bool:
    """Some harnesses count calls that failed, and others do not."""
    listed = row.source.get("tool_call_counts") or {}
    successes = sum(count_calls(row.calls).values())
    return bool(listed) and not successes <= sum(listed.values()) <= len(row.calls)


def _recorded_docids(row: Trajectory) -> list[str]:
    """The ids that the field of the file should list: whole rankings in the format of Pi-Serini,
    and otherwise what pages showed. A file without the field lists nothing else."""
    if row.source.get("retrieved_docids") is None:
        return retrieved_docids(row)
    tier = "surfaced" if row.source.get("format") == "pi_serini" else "previewed"
    return list(row.tiers.get(tier, ()))


def _document(docid: str) -> str:
    plain = parent(docid.removeprefix("browsecomp_plus_"))
    head, _, number = plain.rpartition("_")
    return head if number.isdecimal() else plain


def _invented(name: str, row: Trajectory) -> bool:
    """Whether a name in brackets looks like an id (a digit and no space) that was never shown."""
    shown = {*row.tiers.get("surfaced", ()), *row.tiers.get("opened", ())}
    docid = name.partition("†")[0].strip()
    return bool(_ID.fullmatch(docid)) and not {docid, _document(docid)} & shown


def _without_invented(row: Trajectory) -> Trajectory:
    """The trajectory without citations of ids that were never shown; the same one without any."""
    final = final_message(row)
    if final is None or not row.answer.exact:
        return row

    def shown_only(match: re.Match[str]) -> str:
        names = [name for name in match[1].split(",") if not _invented(name, row)]
        return f"{match[0][0]}{','.join(names)}{match[0][-1]}"

    text = str(final["content"])
    for brackets in _BRACKETS:
        text = brackets.sub(shown_only, text)
    same = text == final["content"]
    return row if same else replace(row, messages=(*row.messages[:-1], {**final, "content": text}))
