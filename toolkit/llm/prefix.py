"""Whether one request begins with the one before it, which is what lets a server reuse its work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from toolkit.llm.protocol import Message


def broken_prefix(before: Sequence[Message], after: Sequence[Message]) -> str:
    """What in `after` is not as it was in `before`, in words; empty if `after` only adds to it."""
    for number, (old, new) in enumerate(zip(before, after, strict=False)):
        if old != new:
            return f"message {number} ({old.get('role')}): {_difference(old, new)}"
    if len(after) < len(before):
        return f"the last {len(before) - len(after)} of {len(before)} messages are gone"
    return ""


def _difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    key = next(key for key in [*old, *new] if old.get(key) != new.get(key))
    if key not in old or key not in new:
        return f"{key} was {'added' if key not in old else 'removed'}"
    one, other = str(old[key]), str(new[key])
    length = min(len(one), len(other))
    place = next((i for i in range(length) if one[i] != other[i]), length)
    return f"{key} changed from its character {place} on"
