"""Files with one JSON object a question: a folder of them, or lines of one file."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from toolkit.benchmarks.reading import records
from toolkit.errors import InputError

LARGEST = 1 << 29  # bytes of one file that is read whole
_NAMES = {dict: "an object", list: "a list", str: "a string", int: "a number", bool: "a boolean"}


class RunFile(NamedTuple):
    """One object, and where it stands, for messages and records: a path, or a path and a line."""

    place: str
    content: dict[str, Any]

    def get(self, name: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
        """A field of this type, `default` where it is absent or null; `InputError` for another
        type."""
        value = self.content.get(name)
        if value is None:
            return default
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise InputError(
                f"{self.place} has a {name!r} of type {type(value).__name__}",
                valid=_NAMES.get(kind, "a number") if isinstance(kind, type) else "a number",
            )
        return value

    def objects(self, name: str) -> list[dict[str, Any]]:
        """A list of objects; `InputError` for anything else."""
        values = self.get(name, list, [])
        if not all(isinstance(value, dict) for value in values):
            raise InputError(f"{self.place} has a {name!r} that is no list of objects")
        return list(values)

    def qid(self, name: str) -> str:
        """The question's id, a string or a number; `InputError` where there is none."""
        value = self.content.get(name)
        if isinstance(value, (str, int)) and not isinstance(value, bool) and str(value).strip():
            return str(value)
        raise InputError(
            f"{self.place} is no run file: it has no {name!r}",
            valid="one JSON object a question",
            do="move it away; python -m experiments.lint lists all such files",
        )


def run_paths(path: Path, skip: Collection[str] = ()) -> list[Path]:
    """The files of a run: `path` itself, or the `.json`, `.jsonl` and `.eval` files in the folder,
    without hidden ones and those called as in `skip`. `InputError` where there is none."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise InputError(f"there is no file or folder {path}", do="check the path")
    files = sorted(
        file
        for file in path.iterdir()
        if file.suffix in (".json", ".jsonl", ".eval") and file.is_file()
        if not file.name.startswith(".") and file.name not in skip
    )
    if not files:
        raise InputError(f"{path} holds no run files", valid=".json or .jsonl files")
    return files


def run_files(paths: Collection[Path]) -> Iterator[RunFile]:
    """The objects of the files, one at a time; `InputError` for the first that is none."""
    for path in paths:
        if path.suffix == ".jsonl":
            for location, content in records(path):
                yield RunFile(str(location), content)
        else:
            yield RunFile(str(path), json_object(path))


def json_object(path: Path) -> dict[str, Any]:
    """The object that a JSON file holds; `InputError` in one line where it holds none."""
    try:
        if path.stat().st_size > LARGEST:
            raise InputError(
                f"{path} has {path.stat().st_size:,} bytes",
                valid=f"at most {LARGEST:,} a question",
                do="split it into one file a question, or into lines of a .jsonl file",
            )
        content = json.loads(path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path} is not JSON: {str(error)[:200]}", valid="one JSON object a file"
        ) from None
    if not isinstance(content, dict):
        raise InputError(f"{path} is a JSON {type(content).__name__}", valid="one JSON object")
    return content


def counts(location: str, values: Mapping[str, Any], name: str) -> dict[str, int]:
    """Whole numbers by tool; `InputError` for anything else."""
    for tool, count in values.items():
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise InputError(
                f"{location} counts {str(count)[:40]!r} calls of {tool[:40]!r} in {name}"
            )
    return dict(values)
