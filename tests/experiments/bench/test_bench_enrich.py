"""The enrichment benchmark on a few documents."""

from __future__ import annotations

from soundingline.experiments.bench import enrich
from soundingline.experiments.bench.harness import Cost


def test_an_enriched_index_costs_what_the_harness_measured(tmp_path, monkeypatch):
    def measured(function, *arguments):
        function(*arguments)
        return Cost(seconds=12.3, peak_mb=456.0, processor=78.9)

    sections = []
    monkeypatch.setattr(enrich, "DATA", tmp_path)
    monkeypatch.setattr(enrich, "in_own_process", measured)
    monkeypatch.setattr(enrich, "ask", lambda *arguments: [])
    monkeypatch.setattr(enrich, "report", lambda section, write: sections.append(section))
    enrich.main(["--documents=64", "--queries=1", "--terms=2"])
    (section,) = sections
    caption, indexed = section.parts[:2]
    assert caption.startswith("An index of documents with 10 phrases each (the plain one has ")
    (row,) = indexed.rows
    assert row[:2] == ["64", "640"] and row[4:] == ["12.3", "78.9", "456"]
