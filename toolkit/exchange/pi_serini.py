"""Run files of Pi-Serini's benchmark runner (Hsu, Yang and Lin, 2026): one JSON object a question.

As BrowseComp-Plus's, but with an ordered list of ids for each evidence tier, seconds, and neither
`retrieved_docids` nor the rankings of single calls. A failed call is followed by an `output_text`
item that tells of it, and a run that failed ends with one that holds the process's errors. Its own
evaluation takes `surfaced_docids` (1000 a search) for what was retrieved, and counts a document
whose reading failed as opened; here only what was shown counts as opened.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from toolkit.errors import InputError
from toolkit.exchange.outputs import output_text
from toolkit.exchange.run_files import RunFile, counts
from toolkit.exchange.transcript import Call, Said, Step, Transcript

# Files of the runner that stand beside the questions'.
NO_RUN_FILES = ("benchmark_manifest_snapshot.json", "run_setup.json", "judge_summary.json")
TIERS = ("surfaced_docids", "previewed_docids", "opened_docids", "cited_docids")
_FAILURE, _ERRORS = "pi-search extension failure (", "pi stderr:\n"


def read(files: Iterable[RunFile]) -> Iterator[Transcript]:
    """The transcript of each question, in the order of the files; `InputError` for the first file
    that is none."""
    return map(transcript, files)


def transcript(file: RunFile) -> Transcript:
    """The transcript of one file."""
    qid = file.qid("query_id")
    tiers = {name: _ids(file, name) for name in TIERS}
    items, stats = file.objects("result"), file.get("stats", dict, {})
    call_counts = counts(file.place, file.get("tool_call_counts", dict, {}), "tool_call_counts")
    status, metadata = file.get("status", str, ""), file.get("metadata", dict, {})
    seconds = stats.get("elapsed_seconds")
    return Transcript(
        qid=qid,
        steps=_steps(file.place, items),
        status=status,
        surfaced=tiers["surfaced_docids"],
        previewed=tiers["previewed_docids"],
        seconds=float(seconds) if isinstance(seconds, (int, float)) else 0.0,
        source={
            "format": "pi_serini",
            "file": file.place,
            "status": status,
            "ends_with_answer": bool(items) and items[-1].get("type") == "output_text",
            "retrieved_docids": tiers["surfaced_docids"],
            "opened_docids": tiers["opened_docids"],
            "tool_call_counts": call_counts,
            "metadata": metadata,
        },
    )


def _steps(location: str, items: Sequence[Mapping[str, Any]]) -> list[Step]:
    steps: list[Step] = []
    for item in items:
        kind, text = item.get("type"), output_text(item.get("output"))
        if kind == "tool_call" and isinstance(item.get("tool_name"), str):
            steps.append(Call(item["tool_name"], item.get("arguments"), item.get("output")))
        elif kind == "output_text" and text.startswith(_FAILURE):
            _fail_last(steps)
        elif kind == "output_text":
            if not text.startswith(_ERRORS):
                steps.append(Said(text))
        else:
            raise InputError(
                f"{location} has an item of type {str(kind)[:40]!r}",
                valid="output_text, and tool_call with a tool_name",
            )
    return steps


def _fail_last(steps: list[Step]) -> None:
    """The newest call has failed."""
    if steps and isinstance(steps[-1], Call):
        failed = steps[-1]
        steps[-1] = Call(failed.tool, failed.arguments, failed.output, "tool_error")


def _ids(file: RunFile, name: str) -> list[str]:
    values = file.get(name, list, [])
    if not all(isinstance(value, (str, int)) for value in values):
        raise InputError(f"{file.place} has {name!r} that are no ids")
    return [str(value) for value in values]
