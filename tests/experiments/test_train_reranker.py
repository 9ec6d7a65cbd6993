"""A re-ranker trained on a benchmark's judgements by one command, and ranked with by the next."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from conftest import Entry

from experiments.train_reranker import Example, small_t5, train
from pipelines.rerank.base import Pair

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

QUICK = ("steps=3", "batch=4", "depth=4")


def test_what_the_command_writes_is_a_model_of_the_reranker(
    entry: Entry, beir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("benchmark=beir", f"benchmark.path={beir}")
    assert entry("train_reranker", "models/mine", *given, *QUICK) == 0
    assert "candidates; loss" in capsys.readouterr().err
    reranked = ("reranker=monot5", "reranker.model=models/mine", "reranker.dtype=float32")
    assert entry("rank", *given, *reranked, "name=adapted") == 0
    # It goes on from a checkpoint, its own too.
    start = ("--start", "models/mine", "--rate", "0.001")
    assert entry("train_reranker", "models/further", *given, *QUICK, *start) == 0
    weights = [Path(f"models/{name}/model.safetensors") for name in ("mine", "further")]
    assert weights[0].read_bytes() != weights[1].read_bytes()


def test_the_checkpoint_has_the_rights_that_the_umask_leaves(entry: Entry, beir: Path) -> None:
    before = os.umask(0o027)
    try:
        given = ("benchmark=beir", f"benchmark.path={beir}", *QUICK)
        assert entry("train_reranker", "models/mine", *given) == 0
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in Path("models/mine").iterdir()}
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= set(modes)
    assert set(modes.values()) == {0o640}


def test_it_trains_on_a_gpu_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    network, tokenizer = small_t5(["the old mill"])
    learnt = [Example(Pair("mill", "the mill"), True), Example(Pair("mill", "the old"), False)]
    if torch.cuda.is_available():
        train(network, tokenizer, learnt, steps=1, batch=2, rate=0.01)
        assert network.device.type == "cuda"
        return
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(AssertionError, match="not compiled with CUDA"):
        train(network, tokenizer, learnt, steps=1, batch=2, rate=0.01)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("models",), "there is something at 'models'"),
        ((), "0 paths were named"),
        (("models/x", "held_out=100"), "no judged question is left beyond the first 100"),
        (("models/x", "steps=0"), "steps=0"),
        (("models/x", "batch=3"), "batch=3. valid: an even number"),
        (("models/x", "depth=2", "--start", "/nowhere"), "there is no folder '/nowhere'"),
    ],
)
def test_what_cannot_be_trained_is_told_and_leaves_nothing(
    entry: Entry,
    beir: Path,
    given: tuple[str, ...],
    told: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("models").mkdir()
    assert entry("train_reranker", "benchmark=beir", f"benchmark.path={beir}", *given) == 2
    error = capsys.readouterr().err
    assert told in error.splitlines()[-1]
    assert list(Path("models").iterdir()) == []
