"""The documents that the output of a foreign search tool shows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

_DEEPEST = 4  # wrappers around a list of hits; MCP has two
_QUOTED = re.compile(r'"docid"\s*:\s*(?:"([^"]+)"|(\d+))')
# The pages of Pi-Serini and of our own tools.
_LINE = re.compile(r"^(?:\d+\. )?docid=(\S+)(?: score=| title=|$)", re.MULTILINE)
_LISTS = ("results", "hits", "documents")


def docids_shown(output: Any) -> list[str]:
    """Ids of documents or passages in the order of the output, each once: of JSON with `docid`
    fields, however wrapped, of text that quotes such JSON, and of pages with lines `docid=...`."""
    return list(dict.fromkeys(_docids(output, _DEEPEST)))


def output_text(output: Any) -> str:
    """The output as text: what its text parts say, or its JSON; empty for None."""
    if output is None or isinstance(output, str):
        return output or ""
    parts = output if isinstance(output, list) else [output]
    if parts and all(_is_text(part) for part in parts):
        return "\n".join(part if isinstance(part, str) else part["text"] for part in parts)
    return json.dumps(output, ensure_ascii=False)


def _docids(output: Any, levels: int) -> Iterator[str]:
    if levels == 0:
        return
    if isinstance(output, str):
        yield from _in_text(output, levels)
    elif isinstance(output, list):
        for item in output:
            yield from _docids(item, levels - 1)
    elif isinstance(output, dict):
        if isinstance(docid := output.get("docid"), (str, int)) and not isinstance(docid, bool):
            yield str(docid)
        elif _is_text(output):
            yield from _in_text(output["text"], levels)
        for name in _LISTS:
            if isinstance(output.get(name), list):
                yield from _docids(output[name], levels - 1)


def _in_text(text: str, levels: int) -> Iterator[str]:
    if text.lstrip()[:1] in ("[", "{"):
        try:
            parsed = json.loads(text)
        except (ValueError, RecursionError):
            parsed = None
        if isinstance(parsed, (list, dict)):
            yield from _docids(parsed, levels - 1)
            return
    if '"docid"' in text:
        yield from (quoted or number for quoted, number in _QUOTED.findall(text))
    else:
        yield from _LINE.findall(text)


def _is_text(part: Any) -> bool:
    return isinstance(part, str) or (isinstance(part, dict) and isinstance(part.get("text"), str))
