"""Models that one command trains or distills, and that the next command ranks with."""

import json
import math
import os
import stat
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from experiment_samples import TINY
from support import checkpoints

from soundingline.experiments import distillation
from soundingline.experiments.distillation import Question, cluster, examples, split, word_vectors
from soundingline.experiments.training import Example, calibration_error, fit, load
from soundingline.pipelines.rerank.cross_encoder import CrossEncoder
from soundingline.pipelines.rerank.reranker import Pair
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.runs import RunFolder

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
KINDS = {"monot5": checkpoints.small_t5, "cross_encoder": checkpoints.small_bert}
QUICK_TRAINING = ("steps=3", "batch=4", "depth=4")
LEARNT = [Example(Pair("mill", "the mill"), True), Example(Pair("mill", "the old"), False)]


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


def saved_start(kind, folder):
    return checkpoints.save_network(folder, *KINDS[kind](["the old mill by the river"]))


def test_what_the_command_writes_is_a_model_of_the_reranker(kind, entry, beir, tmp_path, capsys):
    given = ("benchmark=beir", f"benchmark.path={beir}")
    begun = saved_start(kind, tmp_path / "start")
    trained = (*given, *QUICK_TRAINING, "--kind", kind, "--start", begun)
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


pytest.importorskip("sklearn")


OPTIONS = Path(__file__).resolve().parent / "options"
SYSTEM = (*TINY, "benchmark.questions=sets:2", "agent=navigator", "agent.pool=4", "traces=false")
TEACHER = (
    f"hydra.searchpath=[file://{OPTIONS}]",
    *("llm=scripted", "llm.log=asked.txt", "scorer=chat"),
    *("llm@librarian_llm=scripted", "librarian_llm.wavering=true", "librarian_llm.log=asked.txt"),
)
QUICK = ("clusters=6", "questions=1", "steps=2", "batch=2", "held_out=0.7")


@pytest.fixture
def start(tmp_path):
    pytest.importorskip("transformers")
    return checkpoints.save_network(tmp_path / "start", *checkpoints.small_bert(["the old mill"]))


@pytest.mark.slow
def test_a_student_is_distilled_in_steps_that_are_not_repeated(entry, start, monkeypatch, capsys):
    given = ("distill", "student", *SYSTEM, *TEACHER, *QUICK, f"start={start}")

    def broken(*arguments, **settings):
        raise InputError("no training today")

    with monkeypatch.context() as patched:
        patched.setattr(distillation, "fit", broken)
        assert entry(*given) == 2
    folder = Path("student")
    assert {path.name for path in folder.iterdir()} == {
        *(".lock", "recipe.json", "questions.json", "ledger.jsonl"),
        *("candidates", "judgements.jsonl"),
    }
    asked = Path("asked.txt").read_text()
    assert entry(*given) == 0
    assert Path("asked.txt").read_text() == asked, "no request is repeated"

    written = json.loads((folder / "questions.json").read_text())
    assert all(row["by"] == "scripted" and row["text"].startswith("Find pages") for row in written)
    rows = [json.loads(line) for line in (folder / "judgements.jsonl").read_text().splitlines()]
    assert {row["query"] for row in rows} == {row["text"] for row in written}
    assert {row["overall"] for row in rows} == {0.8, 0.3}
    cells = [cell for row in rows for cell in row["requirements"]]
    assert all(cell["rationale"] for cell in cells)
    assert {cell["score"] for cell in cells if cell["passage"]} == {0.9, 0.1}
    report = json.loads((folder / "report.json").read_text())
    assert (report["teacher"], report["teacher_llm"]) == ("chat", "scripted")
    assert report["relevant"]["checking"] < report["documents"]["checking"]
    assert 0 <= report["ece"]["after"] <= 1
    assert (folder / "reliability.png").read_bytes().startswith(b"\x89PNG")

    # The system with the student in the place of the teacher.
    student = ("scorer=cross_encoder", "scorer.scorer.model=student/student", "name=after")
    assert entry("run", *SYSTEM, *student, "agent.calibration=student/calibration.json") == 0
    (first, *_) = RunFolder("runs/after").trajectories()
    assert not any("calibra" in line for line in first.warnings), "fitted for this scorer"
    scored = [row for one in first.rounds for row in one["documents"].values()]
    assert all("calibrated" in row for row in scored)

    capsys.readouterr()
    assert entry(*given, "clusters=5") == 2
    assert "was begun with another clusters" in " ".join(capsys.readouterr().err.split())
    assert entry(*given, "steps=3") == 2
    assert "was begun with another steps" in " ".join(capsys.readouterr().err.split())
    (folder / "recipe.json").unlink()
    assert entry(*given) == 2
    assert "'student' is not empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("tool=ranked_browsing",), "there is no teacher"),
        (("clusters=1",), "clusters=1"),
        (("held_out=1",), "held_out=1"),
        (("batch=3",), "batch=3"),
        (("start=/nowhere",), "there is no folder '/nowhere'"),
    ],
)
def test_what_cannot_be_distilled_is_refused_before_anything_is_written(
    entry, given, message, capsys
):
    pytest.importorskip("transformers")
    assert entry("distill", "student", *SYSTEM, "start=/nowhere", *given) == 2
    assert message in capsys.readouterr().err
    assert not Path("student").exists()


def test_clusters_are_those_of_k_means_nearest_to_the_centre_first():
    points = np.array([[0, 0], [10, 10], [0, 1], [10, 12], [0, 2]], np.float32)
    # The centres are (0, 1) and (10, 11).
    assert sorted(cluster(points, 2, 0)) == [[1, 3], [2, 0, 4]]
    texts = ["barley mill grinds", "mill grinds barley", "harbour tide sea", "sea tide harbour"]
    vectors = word_vectors(texts, 0)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(4), abs=1e-5)
    assert sorted(map(sorted, cluster(vectors, 2, 0))) == [[0, 1], [2, 3]]


def test_a_question_is_learnt_calibrated_or_checked():
    written = [Question(f"g{n}", f"question {n}", 0, (), "rules") for n in range(20)]
    parts = split(written, 0.4)
    assert [len(part) for part in parts] == [12, 4, 4]
    assert frozenset.union(*parts) == {one.text for one in written}
    assert [len(part) for part in split(written[:3], 0.1)] == [1, 1, 1]
    with pytest.raises(InputError, match="there are 2 questions"):
        split(written[:2], 0.4)


def test_a_student_learns_scores_at_their_passages_and_the_overall_judgement():
    cell = {"verdict": "satisfied", "rationale": "r"}
    row = {
        "query": "q",
        "chunks": [{"id": "d%p0", "text": "zero"}, {"id": "d%p1", "text": "one"}],
        "requirements": [
            {"requirement": "a", "score": 0.9, "passage": "d%p1", **cell},
            {"requirement": "b", "score": 0.3, "passage": "", **cell},
        ],
        "overall": None,
    }
    found = [(one.pair.query, one.pair.text, one.label) for one in examples(row)]
    # A teacher without an overall judgement: the mean of its scores, (0.9 + 0.3) / 2.
    assert [(query, text) for query, text, _ in found] == [
        ("a", "one"),
        ("q", "zero"),
        ("q", "one"),
    ]
    assert [label for _, _, label in found] == pytest.approx([0.9, 0.6, 0.6])


def test_the_expected_calibration_error_by_hand():
    # Bins: 0.05 and 0.06 (none met), 0.95 (one of two met).
    error = calibration_error([0.05, 0.06, 0.95, 0.95], [False, False, True, False])
    assert error == pytest.approx((2 * 0.055 + 2 * (0.95 - 0.5)) / 4)
    assert calibration_error([0.0, 1.0], [False, True]) == 0


CELLS = {"bm25_default", "minilm", "fusion_minilm"}


@pytest.mark.skipif(
    find_spec("sentence_transformers") is None, reason="sentence-transformers is not installed"
)
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


@pytest.mark.skipif(
    find_spec("sentence_transformers") is None, reason="sentence-transformers is not installed"
)
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
