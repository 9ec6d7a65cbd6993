"""JSON in what a model writes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

_OPENING = re.compile(r"[{\[]")
# What cannot be read is tried again from the next bracket; each try may read to the end.
_MOST_FAILURES = 100


def json_values(text: str) -> Iterator[Any]:
    """The JSON objects and lists of a text, in order, none inside another."""
    decoder = json.JSONDecoder()
    position = failures = 0
    while (start := _OPENING.search(text, position)) and failures < _MOST_FAILURES:
        try:
            value, position = decoder.raw_decode(text, start.start())
        except (ValueError, RecursionError):
            position = start.end()
            failures += 1
            continue
        yield value
