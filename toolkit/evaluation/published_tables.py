"""Tables and figures of papers as data: `tables/<paper>.yaml` holds those of a paper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import ConfigDict

from soundingline.toolkit.errors import InputError, parse

FOLDER = Path(__file__).with_name("tables")
_STATISTICS = ("text_ranking/table1", "sira/table1")  # of benchmarks


@dataclass(frozen=True)
class PublishedTable:
    """A table or figure of a paper.

    Attributes:
        paper: the paper, by its arXiv identifier, and `source` the table, figure or section.
        columns: the factors and the measures of `rows`. A factor that is null in a row does not
            matter; a measure that is null is not published.
        questions, benchmark, judge, vllm: what the paper's runs were made with; null: unstated.
        averages: rows of means over the benchmarks of `rows`.
        other_systems: systems that no cell of the experiment runs.
        ranges: the lowest and the highest value of a measure over the paper's systems.
        released: by the path within a folder, the factors of a run that the authors released.
        state: whether our runs with the paper's models and data have reproduced the figures.
        differences: in what our experiment is known to differ from the paper's.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    paper: str
    source: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    questions: int | None = None
    benchmark: str | None = None
    judge: str | None = None
    vllm: str | None = None
    averages: tuple[tuple[Any, ...], ...] = ()
    other_systems: tuple[dict[str, Any], ...] = ()
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)
    released: dict[str, dict[str, Any]] = field(default_factory=dict)
    state: str = "not reproduced"
    differences: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        return f"{self.paper}, {self.source}"

    @property
    def cells(self) -> list[dict[str, Any]]:
        """The rows as mappings from column to value."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


@cache
def read_published(name: str) -> PublishedTable:
    """The published table of this name, `<paper>/<table>`: one of `tables/`, or, by a path, one of
    another file, such as `/home/me/paper/table1` of `/home/me/paper.yaml`.

    What a file states above its `tables` holds for all of them. `InputError` for an unknown name.
    """
    file = (FOLDER / name).parent.with_suffix(".yaml")
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
        table = content.pop("tables")[Path(name).name]
        return parse(PublishedTable, content | table, where=file)
    except (OSError, KeyError) as error:
        raise InputError(
            f"there is no published table {name}", valid=", ".join(published_names())
        ) from error


def published_names() -> list[str]:
    """The names of all tables in `tables/`."""
    return [
        f"{file.stem}/{name}"
        for file in sorted(FOLDER.glob("*.yaml"))
        for name in yaml.safe_load(file.read_text(encoding="utf-8"))["tables"]
    ]


def published_statistics(benchmark: Mapping[str, Any], option: str) -> tuple[str, dict[str, float]]:
    """The source and the statistics of a benchmark that a paper states; empty without any."""
    for table in map(read_published, _STATISTICS):
        for row in table.cells:
            if row.pop("dataset", None) == benchmark.get("dataset") and table.benchmark == option:
                return table.title, row
    return "", {}


def published_questions(benchmark: Mapping[str, Any], option: str) -> int | None:
    """How many questions a paper states of a whole benchmark; None for none, and a selection."""
    if any(benchmark.get(name) for name in ("qids", "sample", "limit", "split")):
        return None
    stated = published_statistics(benchmark, option)[1].get("questions")
    return None if stated is None else int(stated)
