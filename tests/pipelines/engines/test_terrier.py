"""Terrier where its jars can be had; elsewhere, the one clear line that says so."""

from __future__ import annotations

from pathlib import Path

import pyterrier as pt
import pytest

from pipelines.engines.terrier import TerrierEngine
from toolkit.contracts import Unit
from toolkit.errors import InputError

UNITS = [Unit("d1", "", "the cat sat on the mat"), Unit("d2", "", "two dogs, and other dogs")]


def unreachable() -> None:
    raise OSError("name or service not known")


def test_without_its_jars_terrier_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pt.java, "init", unreachable)
    with pytest.raises(InputError, match=r"name or service.*Maven Central.*engine=lexical"):
        TerrierEngine().build(UNITS, tmp_path / "index", corpus_fingerprint="")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_index_is_told_before_java_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pt.java, "init", unreachable)
    with pytest.raises(InputError, match="there is no terrier index"):
        TerrierEngine().open(tmp_path / "absent", corpus_fingerprint="")


def test_terrier_ranks_what_it_indexed(tmp_path: Path) -> None:
    engine = TerrierEngine()
    try:
        engine.build(UNITS, tmp_path / "index", corpus_fingerprint="c")
    except InputError as error:
        pytest.skip(f"Terrier is optional: {error}")
    index = engine.open(tmp_path / "index", corpus_fingerprint="c")
    assert index.bm25().search("dogs'")["docno"].tolist() == ["d2"]
    assert [index.document_frequency(term) for term in ("dog", "absent")] == [1, 0]
