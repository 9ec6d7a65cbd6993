"""What a file of ours in a foreign format holds besides, so that it reads back as it was.

Tool outputs, which fill most of a file, are held once: where a text of the trajectory is an output
of the file, its number stands in its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from toolkit.contracts import Trajectory
from toolkit.errors import InputError
from toolkit.runs.records import from_record, to_record

KEY = "soundingline"
_NUMBER = "output_number"


def kept_beside(trajectory: Trajectory, outputs: Sequence[str]) -> dict[str, Any]:
    """The trajectory as plain values, without what `outputs`, the tool outputs of the file in their
    order, hold already."""
    numbers: dict[str, int] = {}
    for number, text in enumerate(outputs):
        numbers.setdefault(text, number)
    record = to_record(trajectory)
    record["calls"] = [_shortened(call, "output", numbers) for call in record["calls"]]
    record["messages"] = [_shortened(message, "content", numbers) for message in record["messages"]]
    return record


def restored(location: str, own_record: Any, outputs: Sequence[str]) -> Trajectory:
    """The trajectory that `kept_beside` was given; `InputError` where it is damaged."""
    try:
        record = dict(own_record)
        record["calls"] = [_completed(call, "output", outputs) for call in record["calls"]]
        record["messages"] = [
            _completed(message, "content", outputs) for message in record["messages"]
        ]
        return from_record(record)
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, RecursionError) as error:
        raise InputError(
            f"{location} was written by us, and its {KEY!r} is damaged: {error}",
            do=f"export the run again, or remove {KEY!r} to read it as a foreign file",
        ) from None


def changed(location: str) -> InputError:
    """For a file that says another thing than what we keep beside it."""
    return InputError(
        f"{location} was changed after it was exported: its content and its {KEY!r} differ",
        do=f"export the run again, or remove {KEY!r} to read it as a foreign file",
    )


def _shortened(row: Mapping[str, Any], name: str, numbers: Mapping[str, int]) -> dict[str, Any]:
    short = dict(row)
    number = numbers.get(row.get(name, "")) if isinstance(row.get(name), str) else None
    if number is not None and row[name]:
        # In the same place among the keys, so that a restored file is equal to the byte.
        return {_NUMBER if key == name else key: value for key, value in short.items()} | {
            _NUMBER: number
        }
    return short


def _completed(row: Any, name: str, outputs: Sequence[str]) -> dict[str, Any]:
    if _NUMBER not in row:
        return dict(row)
    number = row[_NUMBER]
    if not isinstance(number, int) or not 0 <= number < len(outputs):
        raise ValueError(f"there is no output {str(number)[:40]}")
    return {name if key == _NUMBER else key: row[key] for key in row} | {name: outputs[number]}
