"""Where the numbers come from: what was constant, what was varied, versions and fingerprints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from toolkit.report.data import ReportData
from toolkit.report.measures import describe, ordered
from toolkit.report.tables import CellStyle, Column, Entry, Section, Table

_SETTINGS = "config"
_STAGES = "stages"
_ELSEWHERE = (_SETTINGS, _STAGES, "benchmark", "costs", "factors", "format")
_SETTING, _VALUE = Column("setting", numeric=False), Column("value", numeric=False)


def flat(value: Any, prefix: str = "") -> dict[str, str]:
    """Nested mappings as dotted keys and printable values; lists are joined by commas.

    >>> flat({"a": {"b": 1, "c": ["x", "y"]}})
    {'a.b': '1', 'a.c': 'x, y'}
    """
    if isinstance(value, Mapping):
        rows: dict[str, str] = {}
        for key, inner in value.items():
            rows |= flat(inner, f"{prefix}.{key}" if prefix else str(key))
        return rows
    if isinstance(value, (list, tuple)) and not any(isinstance(v, Mapping) for v in value):
        return {prefix: ", ".join(str(v) for v in value)}
    return {prefix: "" if value is None else str(value)}


def setup_section(data: ReportData) -> Section | None:
    """The resolved settings: a table of those that differ and one of those that do not."""
    configs = [flat(cell.manifest.get(_SETTINGS, {})) for cell in data.cells]
    factors = [{k: str(v) for k, v in cell.factors.items()} for cell in data.cells]
    if not any(configs) and not any(factors):
        return None
    tables = [
        t
        for t in (
            _constant(factors),
            _differing(data.styles, configs, folded="Settings that differ between cells"),
            _constant(configs, folded="Settings that all cells share"),
        )
        if t
    ]
    return Section("setup", "Setup", lead=_lead(factors), tables=tables)


def _lead(factors: Sequence[Mapping[str, str]]) -> str:
    varied = {
        name: list(dict.fromkeys(row.get(name, "—") for row in factors)) for name in _keys(factors)
    }
    varied_text = [f"{n} ({', '.join(values)})" for n, values in varied.items() if len(values) > 1]
    return f"Varied: {'; '.join(varied_text)}." if varied_text else "Nothing was varied."


def stages_section(data: ReportData) -> Section | None:
    """What the stages of each pipeline counted: a row a cell and stage, counts of 0 left out."""
    stages = [(style, style.cell.manifest.get(_STAGES, {})) for style in data.styles]
    rows = []
    for style, counted in stages:
        for stage, numbers in counted.items():
            counts = ", ".join(f"{name} {number:,}" for name, number in numbers.items() if number)
            entries = (Entry(text or "—") for text in (stage, counts))
            rows.append([Entry(style.label, style=style), *entries])
    if not rows:
        return None
    columns = [Column(title, numeric=False) for title in ("cell", "stage", "counted")]
    return Section(
        "stages",
        "What the stages counted",
        lead="Over all starts of each run; seconds are those in the stage’s model. Scores and "
        "rewrites that were kept from an earlier run are cache_hits and took no time here.",
        tables=[Table(columns, rows)],
    )


def provenance_section(data: ReportData) -> Section | None:
    """Everything of the manifests beside the settings."""
    rows = [
        flat({key: value for key, value in cell.manifest.items() if key not in _ELSEWHERE})
        for cell in data.cells
    ]
    tables = [
        t
        for t in (_constant(rows), _differing(data.styles, rows, folded="By cell"))
        if t is not None
    ]
    if not tables:
        return None
    lead = "From the manifests of the runs. Fingerprints are hashes of content."
    return Section("provenance", "Fingerprints and versions", lead=lead, tables=tables)


def _keys(rows: Sequence[Mapping[str, str]]) -> list[str]:
    return list(dict.fromkeys(key for row in rows for key in row))


def _constant(rows: Sequence[Mapping[str, str]], *, folded: str = "") -> Table | None:
    shared = [k for k in _keys(rows) if len({row.get(k) for row in rows}) == 1]
    entries = [[Entry(key), Entry(rows[0][key] or "—")] for key in shared]
    return Table((_SETTING, _VALUE), entries, folded=folded) if entries else None


def _differing(
    styles: Sequence[CellStyle], rows: Sequence[Mapping[str, str]], *, folded: str = ""
) -> Table | None:
    keys = [k for k in _keys(rows) if len({row.get(k) for row in rows}) > 1]
    if not keys:
        return None
    columns = [Column("cell", numeric=False), *(Column(key, numeric=False) for key in keys)]
    entries = [
        [Entry(style.label, style=style), *(Entry(row.get(key) or "—") for key in keys)]
        for style, row in zip(styles, rows, strict=True)
    ]
    return Table(columns, entries, folded=folded)


def glossary_section(data: ReportData) -> Section:
    """How every measure of the report is defined."""
    names = ordered(
        [n for cell in data.cells for n in cell.metrics]
        + [n for cell in data.cells for n in cell.per_question]
    )
    rows = []
    for name in names:
        measure = describe(name)
        if measure.definition:
            rows.append([Entry(name), Entry(measure.definition), Entry(measure.source or "—")])
    columns = [Column(t, numeric=False) for t in ("measure", "definition", "source")]
    return Section(
        "glossary",
        "How the measures are defined",
        lead="Judgements speak of documents: where passages are retrieved, their parent document "
        "counts once, at its best rank. Ranking measures of an agent’s run are of one ranking: the "
        "documents cited, then opened, then previewed, then surfaced.",
        tables=[Table(columns, rows)],
    )
