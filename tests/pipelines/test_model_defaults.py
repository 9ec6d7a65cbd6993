"""What every model takes where nothing is given: float32 on a CPU, the checkpoint's own length."""

from __future__ import annotations

import inspect
import json
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("sentence_transformers")

import tiny_embedder  # noqa: E402
import tiny_llama  # noqa: E402
import tiny_splade  # noqa: E402
import tiny_t5  # noqa: E402

from soundingline import pipelines  # noqa: E402
from soundingline.pipelines import models  # noqa: E402
from soundingline.pipelines.learned.colbert import ColBERT, ColBERTReranker  # noqa: E402
from soundingline.pipelines.learned.dense import Dense  # noqa: E402
from soundingline.pipelines.learned.splade import Splade  # noqa: E402
from soundingline.pipelines.models import own_length  # noqa: E402
from soundingline.pipelines.rerank.cross_encoder import CrossEncoder  # noqa: E402
from soundingline.pipelines.rerank.monot5 import MonoT5  # noqa: E402
from soundingline.pipelines.rerank.rankllama import RankLLaMA  # noqa: E402
from soundingline.pipelines.rerank.reranker import Pair  # noqa: E402

LENGTH = 40
CPU = torch.device("cpu")


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    torch.set_num_threads(1)


def says(folder, length):
    """The checkpoint with a tokenizer that names this length."""
    path = folder / "tokenizer_config.json"
    content = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps({**content, "model_max_length": length}), "utf-8")
    return folder


def save_cross_encoder(folder):
    body = tiny_embedder.save_bert(folder / "body")
    loaded = transformers.AutoModelForSequenceClassification.from_pretrained(body, num_labels=1)
    loaded.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(body).save_pretrained(folder)
    return folder


def scored(kind, **fixed):
    """The score of a long document by a scorer of this kind."""

    def result(folder, **given):
        words = " ".join(("mill", "river", "old", "the") * 40)
        return kind(str(folder), **fixed, **given).score([Pair("the mill", words)])

    return result


def encoded(kind, **fixed):
    """The tokens that an encoder of this kind reads of a long document."""

    def result(folder, **given):
        words = (*tiny_splade.WORDS[:4], "mill", "river", "old", "the")
        return kind(str(folder), **fixed, **given).read([" ".join(words * 40)])[1]

    return result


MODELS = {
    "monoT5": (lambda f: says(tiny_t5.save_t5(f), LENGTH), scored(MonoT5), LENGTH),
    "RankLLaMA": (
        lambda f: says(tiny_llama.save_rankllama(f), LENGTH),
        scored(RankLLaMA),
        LENGTH,
    ),
    "cross-encoder": (
        lambda f: says(save_cross_encoder(f), LENGTH),
        scored(CrossEncoder),
        LENGTH,
    ),
    "SPLADE": (
        lambda f: says(tiny_splade.write_splade(f), LENGTH),
        encoded(Splade),
        LENGTH,
    ),
    "SPLADE, positions": (tiny_splade.write_splade, encoded(Splade), tiny_splade.POSITIONS),
    "dense, pooling": (
        lambda f: says(tiny_embedder.save_bert(f), LENGTH),
        encoded(Dense, pooling="mean"),
        LENGTH,
    ),
    # Lengths that these makers write into the configuration of sentence-transformers.
    "dense, sentence-transformers": (tiny_embedder.save_sentence_model, encoded(Dense), 64),
    "ColBERT, retriever": (tiny_embedder.save_multi_vector, encoded(ColBERT), 48),
    "ColBERT, re-ranker": (tiny_embedder.save_multi_vector, scored(ColBERTReranker), 48),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_reads_as_many_tokens_as_its_checkpoint_was_made_for(name, tmp_path):
    save, result, length = MODELS[name]
    folder = save(tmp_path / "model")
    own = result(folder)
    np.testing.assert_array_equal(own, result(folder, max_length=length))
    assert own != result(folder, max_length=length - 2)
    if length == LENGTH:
        assert own != result(folder, max_length=length + 2)


@pytest.mark.parametrize("kind", [MonoT5, RankLLaMA, CrossEncoder, Splade])
def test_an_own_length_that_is_given_as_well_changes_no_fingerprint(kind, tmp_path):
    makers = {
        MonoT5: tiny_t5.save_t5,
        RankLLaMA: tiny_llama.save_rankllama,
        CrossEncoder: save_cross_encoder,
        Splade: tiny_splade.write_splade,
    }
    folder = str(says(makers[kind](tmp_path / "model"), LENGTH))
    own = kind(folder, device="cpu").fingerprint
    assert kind(folder, device="cpu", max_length=LENGTH).fingerprint == own
    assert kind(folder, device="cpu", max_length=LENGTH + 1).fingerprint != own


@pytest.mark.parametrize(
    ("positions", "tokenizer", "expected"),
    [(512, 180, 180), (128, 512, 128), (128, 1e30, 128), (None, 77, 77), (None, 1e30, 512)],
)
def test_the_tokenizer_names_the_length_and_the_positions_bound_it(positions, tokenizer, expected):
    config = SimpleNamespace(max_position_embeddings=positions)
    assert own_length(config, tokenizer) == expected


@pytest.mark.parametrize("computes", [True, False])
def test_a_cpu_computes_in_float32_whatever_its_instructions(computes, monkeypatch):
    monkeypatch.setattr(models, "computes_bfloat16", lambda device: computes)
    assert models.choose_dtype(None, CPU) == torch.float32
    assert models.choose_dtype("bfloat16", CPU) == torch.bfloat16
    gpu = torch.bfloat16 if computes else torch.float32
    assert models.choose_dtype(None, torch.device("cuda")) == gpu


def test_no_model_sets_a_length_or_a_precision_of_its_own():
    named = [getattr(pipelines, name) for name in pipelines.__all__]
    checked = 0
    for kind in named:
        parameters = inspect.signature(kind).parameters
        if "dtype" not in parameters:
            continue
        checked += 1
        for name in ("dtype", "max_length", "query_max_length"):
            if name in parameters:
                assert parameters[name].default is None, f"{kind.__name__}({name}=...)"
    assert checked == 7
