"""What is absent on a machine skips the tests that need it, unless everything must be there."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import needs as required
from support.needs import COLLECTIONS, collections, needs

ROOT = Path(__file__).resolve().parents[1]
SKIPPED, FAILED = pytest.skip.Exception, pytest.fail.Exception


@pytest.mark.parametrize(("everything", "outcome"), [(False, SKIPPED), (True, FAILED)])
def test_absent_collections_are_told_with_where_they_come_from(
    tmp_path,
    monkeypatch,
    everything,
    outcome,
):
    monkeypatch.setenv("CI", "true")  # which every public service sets
    monkeypatch.setattr(required, "REQUIRED", everything)
    with pytest.raises(outcome, match=r"cacm, .* not below .*docs/data\.md") as caught:
        collections(tmp_path / "nowhere")
    assert ("SOUNDINGLINE_REQUIRE_ALL=1" in str(caught.value)) == everything
    for name in COLLECTIONS[1:]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "corpus.jsonl").touch()
    with pytest.raises(outcome, match=f"^{COLLECTIONS[0]} not below"):
        collections(tmp_path)
    (tmp_path / COLLECTIONS[0]).mkdir()
    (tmp_path / COLLECTIONS[0] / "corpus.jsonl").touch()
    assert collections(tmp_path) == tmp_path


def test_an_absent_package_skips_unless_everything_must_be_there(
    monkeypatch,
):
    for everything, skips in ((False, True), (True, False)):
        monkeypatch.setattr(required, "REQUIRED", everything)
        mark = needs(("json", "no_such_package"), "llm").mark
        assert mark.args == (skips,)
        assert mark.kwargs["reason"] == "not installed: no_such_package (pip install -e '.[llm]')"


def test_the_projects_own_gate_asks_for_everything():
    assert "SOUNDINGLINE_REQUIRE_ALL=1" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    # The gate installs it itself.
    assert "make anserini" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
