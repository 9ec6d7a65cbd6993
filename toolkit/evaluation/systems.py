"""Cells over several benchmarks as systems: what is the same but for the benchmark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolkit.errors import InputError
from toolkit.evaluation.cells import Cell

_BENCHMARK = "benchmark"


@dataclass(frozen=True)
class System:
    """One configuration on several benchmarks: its cell on each, by the benchmark's label."""

    label: str
    cells: Mapping[str, Cell]

    def value(self, measure: str, benchmark: str) -> float | None:
        """None where it was not run there, or has no such measure there."""
        cell = self.cells.get(benchmark)
        return None if cell is None else cell.metrics.get(measure)


@dataclass(frozen=True)
class Systems:
    """Systems by benchmarks, both in order of first appearance."""

    benchmarks: Sequence[str]
    systems: Sequence[System]

    def benchmarks_of(self, measure: str) -> list[str]:
        """The benchmarks on which any system has the measure."""
        return [
            benchmark
            for benchmark in self.benchmarks
            if any(system.value(measure, benchmark) is not None for system in self.systems)
        ]

    def macro_average(self, system: System, measure: str) -> float | None:
        """The mean over `benchmarks_of` the measure, each benchmark alike whatever its number of
        questions; None where the system lacks one of them, because a mean over easier benchmarks
        compares with nothing."""
        values = [system.value(measure, benchmark) for benchmark in self.benchmarks_of(measure)]
        present = [value for value in values if value is not None]
        if not present or len(present) < len(values):
            return None
        return sum(present) / len(present)

    def of(self, name: str) -> System | None:
        """The system that a cell belongs to; None where there is no such cell."""
        for system in self.systems:
            if any(cell.name == name for cell in system.cells.values()):
                return system
        return None


def by_benchmark(cells: Sequence[Cell]) -> list[list[Cell]]:
    """The cells of each benchmark content, in order of first appearance."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(_content(cell), []).append(cell)
    return list(groups.values())


def systems_of(cells: Sequence[Cell], by: Sequence[str] = ()) -> Systems | None:
    """The cells as systems by benchmarks; None where all are over one benchmark content.

    A system is what has the same settings in every group but the benchmark's, by the fingerprints
    in the manifests. `by` names factors that tell systems apart instead, where something else
    differs with the benchmark on purpose, such as the task of a prompt. A configuration that has
    two runs on one benchmark makes two systems. `InputError` for a factor that no cell has, and
    where different cells of one benchmark have the same ones.
    """
    groups = by_benchmark(cells)
    if len(groups) < 2:
        return None
    if by:
        _check_factors(groups, by)
    labels = _benchmark_labels([group[0] for group in groups])
    rows: dict[tuple[Any, int], dict[str, Cell]] = {}
    for label, group in zip(labels, groups, strict=True):
        for cell in group:
            key, occurrence = _settings(cell, by), 0
            while label in rows.get((key, occurrence), {}):
                occurrence += 1
            rows.setdefault((key, occurrence), {})[label] = cell
    names = _system_labels([next(iter(row.values())) for row in rows.values()], by)
    systems = [System(name, row) for name, row in zip(names, rows.values(), strict=True)]
    return Systems(labels, systems)


def _check_factors(groups: Sequence[Sequence[Cell]], by: Sequence[str]) -> None:
    """`InputError` where `by` does not tell the cells of each benchmark apart: which of them is
    whose equal on another benchmark would be a guess."""
    known = {name for group in groups for cell in group for name in cell.factors}
    varied = {name for name in known if any(_varies(name, group) for group in groups)}
    if unknown := sorted(set(by) - known):
        raise InputError(
            f"no run has the factor {', '.join(unknown)}",
            valid=", ".join(sorted(varied or known)),
        )
    for group in groups:
        first: dict[Any, Cell] = {}
        for cell in group:
            other = first.setdefault(_settings(cell, by), cell)
            if _settings(cell, ()) != _settings(other, ()):
                raise InputError(
                    f"{other.name} and {cell.name} have the same {', '.join(by)} and differ "
                    "otherwise",
                    valid="factors that tell the runs on one benchmark apart",
                    do=f"add {' or '.join(sorted(varied - set(by)))}",
                )


def _content(cell: Cell) -> str:
    return str(cell.manifest.get("fingerprints", {}).get(_BENCHMARK))


def _settings(cell: Cell, by: Sequence[str]) -> Any:
    """What is equal for the cells of one system."""
    factors = {name: value for name, value in cell.factors.items() if not _of_benchmark(name)}
    if by:
        return tuple(factors.get(name, "") for name in by)
    groups = cell.manifest.get("config", {})
    prints = {
        name: value
        for name, value in cell.manifest.get("fingerprints", {}).items()
        # Others are of content, which differs with the corpus.
        if (name in groups and name not in (_BENCHMARK, "sealed")) or name.startswith("prompt")
    }
    return tuple(sorted((prints or factors or {"run": cell.name}).items()))


def _of_benchmark(factor: str) -> bool:
    return factor == _BENCHMARK or factor.startswith(f"{_BENCHMARK}.")


def _varies(factor: str, cells: Sequence[Cell]) -> bool:
    return len({cell.factors.get(factor, "") for cell in cells}) > 1


def _benchmark_labels(cells: Sequence[Cell]) -> list[str]:
    """Names; those that several benchmarks have with the settings that differ between them."""
    factors = [name for cell in cells for name in cell.factors if _of_benchmark(name)]
    names = [_benchmark_name(cell) for cell in cells]
    labels = []
    for cell, name in zip(cells, names, strict=True):
        alike = [one for one, other in zip(cells, names, strict=True) if other == name]
        varied = [factor for factor in dict.fromkeys(factors) if _varies(factor, alike)]
        values = [str(cell.factors[factor]) for factor in varied if factor in cell.factors]
        labels.append(" ".join([name, *values]))
    return [
        label if labels.count(label) == 1 else f"{label} ({_content(cell)[:12]})"
        for label, cell in zip(labels, cells, strict=True)
    ]


def _benchmark_name(cell: Cell) -> str:
    settings = cell.manifest.get("config", {}).get(_BENCHMARK) or {}
    return str(settings.get("name") or cell.factors.get(_BENCHMARK) or _content(cell)[:12])


def _system_labels(cells: Sequence[Cell], by: Sequence[str]) -> list[str]:
    names = dict.fromkeys(name for cell in cells for name in cell.factors)
    varied = by or [name for name in names if not _of_benchmark(name) and _varies(name, cells)]
    labels = [
        " · ".join(str(cell.factors[name]) for name in varied if name in cell.factors) or "—"
        for cell in cells
    ]
    if len(set(labels)) < len(labels):
        return [cell.name for cell in cells]
    return labels
