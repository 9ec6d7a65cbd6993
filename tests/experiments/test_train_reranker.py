"""A re-ranker trained on a benchmark's judgements by one command, and ranked with by the next."""

import math
import os
import stat
from pathlib import Path

import pytest
from support import checkpoints

from soundingline.experiments.training import Example, fit, load
from soundingline.pipelines.rerank.cross_encoder import CrossEncoder
from soundingline.pipelines.rerank.reranker import Pair
from soundingline.toolkit.errors import InputError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

KINDS = {"monot5": checkpoints.small_t5, "cross_encoder": checkpoints.small_bert}
QUICK = ("steps=3", "batch=4", "depth=4")
LEARNT = [Example(Pair("mill", "the mill"), True), Example(Pair("mill", "the old"), False)]


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


def start(kind, folder):
    return checkpoints.save_network(folder, *KINDS[kind](["the old mill by the river"]))


def test_what_the_command_writes_is_a_model_of_the_reranker(kind, entry, beir, tmp_path, capsys):
    given = ("benchmark=beir", f"benchmark.path={beir}")
    trained = (*given, *QUICK, "--kind", kind, "--start", start(kind, tmp_path / "start"))
    before = os.umask(0o027)
    try:
        assert entry("train", "models/mine", *trained, "rate=0.01") == 0
    finally:
        os.umask(before)
    assert "candidates; loss" in capsys.readouterr().err
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in Path("models/mine").iterdir()}
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= set(modes)
    assert set(modes.values()) == {0o640}
    weights = [(Path(place) / "model.safetensors") for place in (tmp_path / "start", "models/mine")]
    assert weights[0].read_bytes() != weights[1].read_bytes()
    reranked = (f"reranker={kind}", "reranker.model=models/mine", "reranker.dtype=float32")
    assert entry("rank", *given, *reranked, "name=adapted") == 0


def test_the_same_seed_trains_the_same_weights(kind):
    trained = []
    for _ in range(2):
        network, tokenizer = KINDS[kind](["the old mill"])
        fit(kind, network, tokenizer, LEARNT, steps=2, batch=2, rate=0.01)
        trained.append(torch.cat([weight.flatten() for weight in network.parameters()]))
    assert torch.equal(*trained)


def test_an_encoder_is_given_a_classifier_and_a_cross_encoder_keeps_its_own(tmp_path):
    network, tokenizer = checkpoints.small_bert(["the old mill"])
    encoder = checkpoints.save_network(tmp_path / "encoder", network.bert, tokenizer)
    first, again = (load("cross_encoder", encoder, seed=3)[0] for _ in range(2))
    assert first.config.num_labels == 1
    assert torch.equal(first.classifier.weight, again.classifier.weight)
    for name, weight in network.bert.state_dict().items():
        assert torch.equal(weight, first.bert.state_dict()[name])
    resumed, _ = load("cross_encoder", checkpoints.save_network(tmp_path / "own", first, tokenizer))
    assert torch.equal(first.classifier.weight, resumed.classifier.weight)


@pytest.mark.parametrize("labels", [1, 2])
def test_the_loss_is_the_cross_entropy_of_the_logit_also_of_two_labels(labels, tmp_path):
    network, tokenizer = checkpoints.small_bert(["the old mill"])
    config = transformers.BertConfig(**{**network.config.to_dict(), "num_labels": labels})
    folder = checkpoints.save_network(tmp_path / "start", type(network)(config), tokenizer)
    pairs = [example.pair for example in LEARNT]
    good, bad = CrossEncoder(folder, device="cpu", dtype="float32").score(pairs)
    expected = (math.log1p(math.exp(-good)) + math.log1p(math.exp(bad))) / 2
    (loss,) = fit(
        "cross_encoder", *load("cross_encoder", folder), LEARNT, steps=1, batch=2, rate=1e-9
    )
    assert loss == pytest.approx(expected, abs=1e-4)


def test_what_is_nothing_to_start_from_is_refused(tmp_path):
    network, tokenizer = checkpoints.small_bert(["the old mill"])
    three = type(network)(transformers.BertConfig(**{**network.config.to_dict(), "num_labels": 3}))
    labels = checkpoints.save_network(tmp_path / "three", three, tokenizer)
    with pytest.raises(InputError, match="3 labels"):
        load("cross_encoder", labels)
    body = {name: rows for name, rows in network.bert.state_dict().items() if "layer.1" not in name}
    network.bert.save_pretrained(tmp_path / "half", state_dict=body)
    tokenizer.save_pretrained(tmp_path / "half")
    with pytest.raises(InputError, match=r"no weights for bert\.encoder\.layer\.1"):
        load("cross_encoder", str(tmp_path / "half"))
    with pytest.raises(InputError, match="kind bert"):
        load("monot5", labels)
    with pytest.raises(InputError, match="0 of 1 candidates are relevant"):
        fit("cross_encoder", network, tokenizer, LEARNT[1:], steps=1, batch=2, rate=0.01)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("models", "start=x"), "there is something at 'models'"),
        (("start=x",), "0 paths were named"),
        (("models/x",), "--start"),
        (("models/x", "start=x", "held_out=100"), "no judged question is left beyond the first"),
        (("models/x", "start=x", "steps=0"), "steps=0"),
        (("models/x", "start=x", "batch=3"), "batch=3. valid: an even number"),
        (("models/x", "depth=2", "--start", "/nowhere"), "there is no folder '/nowhere'"),
    ],
)
def test_what_cannot_be_trained_is_reported_and_leaves_nothing(entry, beir, given, message, capsys):
    Path("models").mkdir()
    assert entry("train", "benchmark=beir", f"benchmark.path={beir}", *given) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert list(Path("models").iterdir()) == []
