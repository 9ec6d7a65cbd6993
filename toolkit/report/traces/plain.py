"""What other programs wrote, as values of a trace whose keys are ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolkit.files import dump_json


def pairs(values: Mapping[str, Any]) -> list[list[str]]:
    """Names and texts; what is no text is JSON."""
    return [[str(name), as_text(value)] for name, value in values.items()]


def as_text(value: Any) -> str:
    """A text as it is, anything else as JSON."""
    return value if isinstance(value, str) else dump_json(value, indent=None).rstrip("\n")
