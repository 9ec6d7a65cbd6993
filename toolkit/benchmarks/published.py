"""Rows of published data sets: Parquet or JSON lines, from the hub by name or from local paths."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from toolkit.benchmarks.reading import Place, records
from toolkit.errors import InputError
from toolkit.extras import require
from toolkit.hub import hub_dataset, is_hub_name

_SUFFIXES = (".parquet", ".jsonl")
_PATTERNS = ("*.parquet", "*.jsonl")
_BATCH = 128  # rows that are held at once


def published_files(source: str, revision: str | None = None) -> list[Path]:
    """The files of a data set, in the order of their names: `source` is a file, a folder with such
    files at any depth, or, where no such path exists, the name of a data set on the hub at
    `revision`. `InputError` where there is none."""
    path = Path(source).expanduser()
    if path.is_file() and path.suffix in _SUFFIXES:
        return [path]
    if not path.exists() and is_hub_name(source):
        path = hub_dataset(source, _PATTERNS, revision)
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix in _SUFFIXES)
        if len({file.suffix for file in files}) == 1:
            return files
    raise InputError(
        f"there are no rows at {source}",
        valid="a .parquet or .jsonl file, a folder with files of one of these kinds, or the name "
        "of a data set on the Hugging Face hub",
        do="check the path",
    )


def published_rows(
    files: Sequence[Path], columns: Sequence[str]
) -> Iterator[tuple[Place, dict[str, Any]]]:
    """The rows of the files with those of `columns` that they have, each with its place: the row
    of a Parquet file, or the line of a file of JSON lines, counted from 1. A file that cannot be
    read raises `InputError` where the reading gets to it."""
    for path in files:
        rows = _parquet_rows(path, columns) if path.suffix == ".parquet" else records(path)
        for location, row in rows:
            yield location, {name: row[name] for name in columns if name in row}


def _parquet_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[Place, dict[str, Any]]]:
    parquet, errors = require("pyarrow.parquet"), require("pyarrow").ArrowException
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            present = [name for name in columns if name in file.schema_arrow.names]
            for batch in file.iter_batches(batch_size=_BATCH, columns=present):
                for row in batch.to_pylist():
                    number += 1
                    yield Place(path, number), row
    except (errors, OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path} cannot be read behind row {number}: {error}",
            valid="a whole Parquet file",
            do="fetch the file again",
        ) from error
