"""What `make demo-learned` runs, on a few documents."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

# Not imported here: that takes seconds in each worker of the suite.
pytestmark = pytest.mark.skipif(
    find_spec("sentence_transformers") is None, reason="sentence-transformers is not installed"
)

CELLS = {"bm25_default", "minilm", "fusion_minilm"}


def test_the_demo_compares_a_trained_retriever_with_bm25_and_their_fusion(
    entry,
    beir,
    minilm,
    monkeypatch,
    capsys,
):
    monkeypatch.setenv("SOUNDINGLINE_MINILM", minilm)
    demo = ("experiment=demo_learned", "benchmark=beir", f"benchmark.path={beir}")
    assert entry("rank", *demo) == 0
    manifests = Path("runs/demo-learned").glob("*/manifest.json")
    contents = [json.loads(path.read_text("utf-8")) for path in manifests]
    assert {content["factors"]["retriever"] for content in contents} == CELLS
    report = Path("runs/demo-learned/report.html").read_text("utf-8")
    assert all(cell in report for cell in CELLS)
    table = capsys.readouterr().out.rpartition("retriever ")[2]
    assert all(cell in table for cell in CELLS)


def test_minilm_is_the_hubs_unless_a_folder_is_named(entry, monkeypatch, capsys):
    monkeypatch.delenv("SOUNDINGLINE_MINILM", raising=False)
    assert entry("rank", "retriever=minilm", "--cfg=job") == 0
    assert "model: sentence-transformers/all-MiniLM-L6-v2" in resolved(capsys)
    monkeypatch.setenv("SOUNDINGLINE_MINILM", "/some/folder")
    assert entry("rank", "retriever=minilm", "--cfg=job", "--resolve") == 0
    assert "model: /some/folder" in capsys.readouterr().out


def resolved(capsys):
    """The printed configuration, with defaults of variables in place."""
    return capsys.readouterr().out.replace("${oc.env:SOUNDINGLINE_MINILM,", "").replace("}", "")
