"""A re-ranker trained on a benchmark's judgements by one command, and ranked with by the next."""

from __future__ import annotations

import math
import os
import stat
from pathlib import Path

import pytest

from soundingline.experiments import training
from soundingline.experiments.training import (
    LEARNERS,
    CrossEncoderLearner,
    Example,
    fit_network,
    small_bert,
)
from soundingline.pipelines.rerank.cross_encoder import CrossEncoder
from soundingline.pipelines.rerank.reranker import Pair
from soundingline.toolkit.errors import InputError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

QUICK = ("steps=3", "batch=4", "depth=4")


@pytest.mark.parametrize("kind", LEARNERS)
def test_what_the_command_writes_is_a_model_of_the_reranker(kind, entry, beir, capsys):
    given = ("benchmark=beir", f"benchmark.path={beir}")
    trained = (*given, *QUICK, "--kind", kind)
    assert entry("train", "models/mine", *trained) == 0
    assert "candidates; loss" in capsys.readouterr().err
    reranked = (f"reranker={kind}", "reranker.model=models/mine", "reranker.dtype=float32")
    assert entry("rank", *given, *reranked, "name=adapted") == 0
    # It goes on from a checkpoint, its own too.
    start = ("--start", "models/mine", "--rate", "0.001")
    assert entry("train", "models/further", *trained, *start) == 0
    weights = [Path(f"models/{name}/model.safetensors") for name in ("mine", "further")]
    assert weights[0].read_bytes() != weights[1].read_bytes()


def test_the_checkpoint_has_the_rights_that_the_umask_leaves(entry, beir):
    before = os.umask(0o027)
    try:
        given = ("benchmark=beir", f"benchmark.path={beir}", *QUICK)
        assert entry("train", "models/mine", *given) == 0
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in Path("models/mine").iterdir()}
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= set(modes)
    assert set(modes.values()) == {0o640}


def test_it_trains_on_a_gpu_where_there_is_one(monkeypatch):
    model = LEARNERS["monot5"].from_nothing(["the old mill"], seed=0)
    learnt = [Example(Pair("mill", "the mill"), True), Example(Pair("mill", "the old"), False)]
    if torch.cuda.is_available():
        fit_network(model, learnt, steps=1, batch=2, rate=0.01)
        assert model.network.device.type == "cuda"
        return
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(AssertionError, match="not compiled with CUDA"):
        fit_network(model, learnt, steps=1, batch=2, rate=0.01)


def saved(folder, network, tokenizer):
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def test_an_encoder_is_given_a_classifier_and_a_cross_encoder_keeps_its_own(tmp_path):
    network, tokenizer = small_bert(["the old mill"])
    encoder = saved(tmp_path / "encoder", network.bert, tokenizer)
    first, again = (CrossEncoderLearner.from_checkpoint(encoder, seed=3) for _ in range(2))
    assert first.network.config.num_labels == 1
    assert torch.equal(first.network.classifier.weight, again.network.classifier.weight)
    for name, weight in network.bert.state_dict().items():
        assert torch.equal(weight, first.network.bert.state_dict()[name])
    trained = saved(tmp_path / "whole", first.network, tokenizer)
    resumed = CrossEncoderLearner.from_checkpoint(trained, seed=4)
    assert torch.equal(first.network.classifier.weight, resumed.network.classifier.weight)


def test_the_loss_is_the_cross_entropy_of_the_logit_also_of_two_labels(tmp_path):
    pairs, labels = [Pair("mill", "the mill"), Pair("mill", "old")], [True, False]
    network, tokenizer = small_bert(["the old mill"])
    two = type(network)(transformers.BertConfig(**{**network.config.to_dict(), "num_labels": 2}))
    for number, made in enumerate((network, two)):
        folder = saved(tmp_path / str(number), made, tokenizer)
        learner = CrossEncoderLearner.from_checkpoint(folder, seed=0)
        good, bad = CrossEncoder(folder, device="cpu", dtype="float32").score(pairs)
        expected = (math.log1p(math.exp(-good)) + math.log1p(math.exp(bad))) / 2
        loss = learner.loss(learner.encode(pairs), labels)
        assert loss.item() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("kind", LEARNERS)
def test_parts_of_a_batch_teach_what_the_whole_teaches(kind, monkeypatch):
    texts = ["the old mill", "by the river " * 9, "mill", "the river " * 4]
    learnt = [Example(Pair("mill", text), number < 2) for number, text in enumerate(texts)]
    gradients, losses = [], []
    for tokens in (1, 10_000):  # each example by itself, and all at once
        monkeypatch.setitem(training._PART_TOKENS, "cpu", tokens)
        model = LEARNERS[kind].from_nothing(texts, seed=0)
        losses += fit_network(model, learnt, steps=1, batch=4, rate=0.001)
        rows = [weight.grad.flatten() for weight in model.network.parameters()]
        gradients.append(torch.cat(rows))
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    assert gradients[0].norm() > 0.1
    torch.testing.assert_close(*gradients, atol=1e-5, rtol=0.0)


def test_what_is_nothing_to_start_from_is_refused(tmp_path):
    network, tokenizer = small_bert(["the old mill"])
    three = type(network)(transformers.BertConfig(**{**network.config.to_dict(), "num_labels": 3}))
    labels = saved(tmp_path / "three", three, tokenizer)
    with pytest.raises(InputError, match="3 labels"):
        CrossEncoderLearner.from_checkpoint(labels, seed=0)
    body = {name: rows for name, rows in network.bert.state_dict().items() if "layer.1" not in name}
    network.bert.save_pretrained(tmp_path / "half", state_dict=body)
    tokenizer.save_pretrained(tmp_path / "half")
    with pytest.raises(InputError, match=r"no weights for bert\.encoder\.layer\.1"):
        CrossEncoderLearner.from_checkpoint(str(tmp_path / "half"), seed=0)
    with pytest.raises(InputError, match="kind bert"):
        LEARNERS["monot5"].from_checkpoint(labels, seed=0)


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
    entry,
    beir,
    given,
    told,
    capsys,
):
    Path("models").mkdir()
    assert entry("train", "benchmark=beir", f"benchmark.path={beir}", *given) == 2
    error = capsys.readouterr().err
    assert told in error.splitlines()[-1]
    assert list(Path("models").iterdir()) == []
