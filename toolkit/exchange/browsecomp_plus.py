"""Run files of BrowseComp-Plus (Chen et al., 2025): one JSON object a question.

`query_id, tool_call_counts, status, retrieved_docids, result`, the last a list of `reasoning`,
`tool_call` and `output_text` items, of which an answered question's ends with `output_text`. Files
lie in a folder, or as the lines of a `.jsonl` file. Published ones are obfuscated by a canary: the
outputs, and in the traces of Meng et al. (2026) the arguments of calls too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from toolkit.contracts import Trajectory
from toolkit.errors import InputError
from toolkit.evaluation.published import (
    judged_response,
    published_status,
    retrieved_docids,
    tool_call_counts,
)
from toolkit.exchange.outputs import output_text
from toolkit.exchange.own import KEY, changed, kept_beside, restored
from toolkit.exchange.run_files import RunFile, counts
from toolkit.exchange.transcript import Call, Reasoning, Said, Step, Transcript
from toolkit.sealing import NotSealed, Seal

_SEALED = re.compile(r"[A-Za-z0-9+/]{40,}={0,2}")
# Their name of a number, and ours.
_USAGE = {
    "input_tokens": "input_tokens",
    "input_tokens_cached": "cached_tokens",
    "output_tokens": "output_tokens",
    "included_reasoning_tokens": "reasoning_tokens",
}
_PLAIN = ("query_id", "status", "tool_call_counts", "retrieved_docids", "result")


def write(trajectory: Trajectory, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The run file of a trajectory; `metadata` is what it tells of the run, such as `model`."""
    items = result_items(trajectory.messages)
    outputs = [item["output"] for item in items if item["type"] == "tool_call"]
    if items and items[-1]["type"] == "output_text" and not judged_response(trajectory):
        items.pop()  # the last word of a question without an answer is none
    tokens = {theirs: trajectory.usage.get(ours) for theirs, ours in _USAGE.items()}
    usage = {name: int(value) for name, value in tokens.items() if value is not None}
    return {
        "metadata": {**metadata, KEY: kept_beside(trajectory, outputs)},
        "query_id": trajectory.qid,
        "tool_call_counts": tool_call_counts(trajectory),
        **({"usage": usage} if usage else {}),
        "status": published_status(trajectory),
        "retrieved_docids": retrieved_docids(trajectory),
        "result": items,
    }


def result_items(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The items of a transcript in the function-calling form, in their order."""
    items: list[dict[str, Any]] = []
    outputs = {row.get("tool_call_id"): row.get("content") for row in messages}
    for message in messages:
        if message.get("role") != "assistant":
            continue
        if message.get("reasoning"):
            items.append(_item("reasoning", [message["reasoning"]]))
        if message.get("content"):
            items.append(_item("output_text", message["content"]))
        for call in message.get("tool_calls", ()):
            function = call["function"]
            output = outputs.get(call["id"], "")
            items.append(_item("tool_call", output, function["name"], function["arguments"]))
    return items


def read(files: Iterable[RunFile], seal: Seal | None = None) -> Iterator[Transcript | Trajectory]:
    """Each question, in the order of the files: a trajectory where we wrote the file, else its
    transcript. `InputError` for the first file that is none, or that is obfuscated and not opened
    by `seal`."""
    for file in files:
        file.qid("query_id")
        metadata = file.get("metadata", dict, {})
        if KEY in metadata:
            yield _ours(file, metadata[KEY])
        else:
            yield transcript(opened(file, seal))


def transcript(file: RunFile) -> Transcript:
    """The transcript of a file that is not obfuscated."""
    items = file.objects("result")
    recorded = file.get("retrieved_docids", list, [])
    if not all(isinstance(docid, (str, int)) for docid in recorded):
        raise InputError(f"{file.place} has 'retrieved_docids' that are no ids")
    retrieved = [str(docid) for docid in recorded]
    call_counts = counts(file.place, file.get("tool_call_counts", dict, {}), "tool_call_counts")
    usage = file.get("usage", dict, {})
    status = file.get("status", str, "")
    return Transcript(
        qid=file.qid("query_id"),
        steps=[_step(file.place, item) for item in items],
        status=status,
        previewed=retrieved,
        usage={
            ours: value
            for theirs, ours in _USAGE.items()
            if isinstance(value := usage.get(theirs), (int, float))
        },
        source={
            "format": "browsecomp_plus",
            "file": file.place,
            "status": status,
            "ends_with_answer": bool(items) and items[-1].get("type") == "output_text",
            "retrieved_docids": retrieved,
            "tool_call_counts": call_counts,
            "metadata": file.get("metadata", dict, {}),
        },
    )


def opened(file: RunFile, seal: Seal | None) -> RunFile:
    """The file with its texts opened by `seal` where they are obfuscated; `InputError` where they
    are and it does not open them."""
    if not is_obfuscated(file):
        return file
    if seal is None:
        raise InputError(
            f"{file.place} is obfuscated",
            valid="a file with its canary",
            do="export the canary that it was published with, and name the variable with "
            "canary_env=NAME",
        )
    try:
        result = [_opened(item, seal) for item in file.objects("result")]
    except NotSealed:
        raise InputError(
            f"the canary does not open {file.place}",
            valid="the canary that the run was published with, which need not be the benchmark's",
            do="name the variable that holds it with canary_env=NAME",
        ) from None
    return RunFile(file.place, {**file.content, "result": result})


def is_obfuscated(file: RunFile) -> bool:
    """Whether any of its outputs looks like base64 and nothing else."""
    texts = (text for item in file.objects("result") for text in _texts(item.get("output")))
    return any(_SEALED.fullmatch(text) for text in texts)


def _ours(file: RunFile, own_record: Any) -> Trajectory:
    items = file.objects("result")
    outputs = [item.get("output") for item in items if item.get("type") == "tool_call"]
    if not all(isinstance(output, str) for output in outputs):
        raise changed(file.place)
    trajectory = restored(file.place, own_record, [str(output) for output in outputs])
    again = write(trajectory, {})
    if any(again[name] != file.content.get(name) for name in _PLAIN):
        raise changed(file.place)
    return trajectory


def _step(location: str, item: Mapping[str, Any]) -> Step:
    kind, output = item.get("type"), item.get("output")
    if kind == "reasoning":
        return Reasoning(output_text(output))
    if kind == "output_text":
        return Said(output_text(output))
    if kind == "tool_call" and isinstance(item.get("tool_name"), str):
        return Call(item["tool_name"], item.get("arguments"), output, _error(output))
    raise InputError(
        f"{location} has an item of type {str(kind)[:40]!r}",
        valid="reasoning, output_text, and tool_call with a tool_name",
    )


def _error(output: Any) -> str:
    """Their clients write what went wrong into the output."""
    text = output_text(output)[:200].lstrip()
    failed = text.startswith(("Error executing", '{"error"', '{\n  "error"'))
    return "tool_error" if failed else ""


def _texts(output: Any) -> list[str]:
    if isinstance(output, str):
        return [output]
    parts = output if isinstance(output, list) else []
    return [part["text"] for part in parts if isinstance(part, dict) and _is_text(part)]


def _opened(item: Mapping[str, Any], seal: Seal) -> dict[str, Any]:
    output: Any = item.get("output")
    if isinstance(output, str):
        output = _plain(seal.open(output))
    elif isinstance(output, list):
        output = [
            {**part, "text": seal.open(part["text"])} if _is_text(part) else part for part in output
        ]
    arguments = item.get("arguments")
    if isinstance(arguments, str):
        with suppress(NotSealed):  # Only some publish them obfuscated.
            arguments = seal.open(arguments)
    return {**item, "arguments": arguments, "output": output}


def _plain(text: str) -> Any:
    """A text, or the list or null that was written as JSON before it was obfuscated."""
    if text == "null" or text.startswith("["):
        with suppress(ValueError, RecursionError):
            return json.loads(text)
    return text


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and isinstance(part.get("text"), str)


def _item(
    kind: str, output: Any, tool: str | None = None, arguments: str | None = None
) -> dict[str, Any]:
    return {"type": kind, "tool_name": tool, "arguments": arguments, "output": output}
