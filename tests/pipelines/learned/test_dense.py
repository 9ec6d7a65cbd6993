"""Dense retrieval: vectors against transformers run directly and sentence-transformers, in float32;
exact search in an index that is complete or absent; a trained encoder on real texts."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support import checkpoints
from support.needs import cases

from soundingline.pipelines.compose import MaxP
from soundingline.pipelines.fusion import ReciprocalRankFusion
from soundingline.pipelines.learned.dense import Dense
from soundingline.pipelines.lexical.index import LexicalIndex
from soundingline.pipelines.stage import Collection
from soundingline.toolkit.benchmarks.beir import BeirBenchmark
from soundingline.toolkit.corpus.segmentation import Passages, WholeDocument
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError

torch = pytest.importorskip("torch")

TEXTS = ["the old mill", "", "a " * 40, "who built the bridge by the river?", "é\ud800"]
CONF = Path(__file__).resolve().parents[3] / "conf"
EXACT = {"dtype": "float32", "device": "cpu"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    import torch

    torch.set_num_threads(1)
    os.environ["HF_HUB_OFFLINE"] = "1"
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def qwen(folder):
    return checkpoints.save_qwen(folder / "qwen")


@pytest.fixture(scope="module")
def llama(folder):
    return checkpoints.save_llama(folder / "llama")


@pytest.fixture(scope="module")
def adapter(folder, llama):
    return checkpoints.save_embedder_adapter(folder / "adapter", llama)


@pytest.fixture(scope="module")
def sentence_model(folder):
    return checkpoints.save_sentence_model(folder / "sentence")


def alone(network, ids, pool):
    """The normalised pooled vector of one text that is by itself in its batch."""
    import torch

    with torch.no_grad():
        hidden = network(input_ids=torch.tensor([ids])).last_hidden_state[0]
    vector = pool(hidden).numpy()
    return vector / np.linalg.norm(vector)


def body(path):
    from transformers import AutoModel

    return AutoModel.from_pretrained(path, dtype="float32").eval()


def byte_ids(text, first):
    """What the tiny byte-level tokenizers make of a text, computed without them."""
    from tokenizers.pre_tokenizers import ByteLevel

    letters = sorted(ByteLevel.alphabet())
    pieces = "".join(p for p, _ in ByteLevel(add_prefix_space=False).pre_tokenize_str(text))
    return [first + letters.index(piece) for piece in pieces]


def test_qwen_vectors_are_the_end_tokens_with_the_instruction_before_queries_only(qwen):
    encoder = Dense(str(qwen), pooling="last", query_prefix=checkpoints.QWEN_PREFIX, **EXACT)
    network = body(qwen)
    text = "who built the mill"
    prefixed = checkpoints.QWEN_PREFIX + text
    # The end token, number 0, is the tokenizer's own doing.
    document = alone(network, [*byte_ids(text, 1), 0], lambda hidden: hidden[-1])
    query = alone(network, [*byte_ids(prefixed, 1), 0], lambda hidden: hidden[-1])
    np.testing.assert_allclose(encoder.encode([text])[0], document, atol=1e-6)
    np.testing.assert_allclose(encoder.encode_queries([text])[0], query, atol=1e-6)


def test_an_adapter_is_merged_and_its_texts_end_with_the_end_of_sequence(llama, adapter):
    from peft import PeftModel

    encoder = Dense(
        str(adapter),
        base=str(llama),
        pooling="last",
        append_eos=True,
        query_prefix="query: ",
        document_prefix="passage: ",
        **EXACT,
    )
    unmerged = PeftModel.from_pretrained(body(llama), adapter).eval()
    passage = [0, *byte_ids("passage: the mill", 2), 1]
    query = [0, *byte_ids("query: the mill", 2), 1]
    np.testing.assert_allclose(
        encoder.encode(["the mill"])[0], alone(unmerged, passage, lambda h: h[-1]), atol=1e-5
    )
    np.testing.assert_allclose(
        encoder.encode_queries(["the mill"])[0], alone(unmerged, query, lambda h: h[-1]), atol=1e-5
    )
    plain = Dense(str(llama), pooling="last", append_eos=True, document_prefix="passage: ", **EXACT)
    assert np.abs(plain.encode(["the mill"])[0] - encoder.encode(["the mill"])[0]).max() > 0.01


def test_an_adapter_names_its_base_by_itself(llama, adapter):
    settings = {"pooling": "last", "append_eos": True, **EXACT}
    named = Dense(str(adapter), base=str(llama), **settings)
    found = Dense(str(adapter), **settings)
    assert found.fingerprint == named.fingerprint
    np.testing.assert_array_equal(found.encode(["mill"])[0], named.encode(["mill"])[0])


@pytest.mark.parametrize(
    ("pooling", "pool"),
    [
        ("last", lambda hidden: hidden[-1]),
        ("mean", lambda hidden: hidden.mean(dim=0)),
        ("cls", lambda hidden: hidden[0]),
    ],
)
def test_each_pooling_takes_the_vectors_that_it_says(qwen, pooling, pool):
    encoder = Dense(str(qwen), pooling=pooling, document_prefix="d: ", **EXACT)
    expected = alone(body(qwen), [*byte_ids("d: old mill", 1), 0], pool)
    # Beside a longer text, so that padding has to be left out.
    found = encoder.encode(["old mill", "the old mill by the river"])[0]
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_e5_is_read_as_its_model_card_says(folder):
    """The card's own lines: prefixes, the mean over what is not padding, length 1."""
    import torch
    from omegaconf import OmegaConf
    from transformers import AutoTokenizer

    bert = checkpoints.save_bert(folder / "e5")
    option = OmegaConf.load(CONF / "retriever/e5_base.yaml")
    names = ("query_prefix", "document_prefix", "pooling", "max_length")
    encoder = Dense(str(bert), **{name: option[name] for name in names}, **EXACT)
    texts = ["query: who built the mill", "passage: the mill", "passage: the old mill stands"]
    batch = AutoTokenizer.from_pretrained(bert)(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = body(bert)(**batch).last_hidden_state
    mask = batch["attention_mask"].unsqueeze(-1)
    means = (hidden * mask).sum(dim=1) / mask.sum(dim=1)
    expected = torch.nn.functional.normalize(means, p=2, dim=1).numpy()
    vectors = [
        *encoder.encode_queries(["who built the mill"]),
        *encoder.encode(["the mill", "the old mill stands"]),
    ]
    np.testing.assert_allclose(np.stack(vectors), expected, atol=1e-5)


def test_a_long_text_is_cut_behind_and_keeps_its_end_token(qwen, llama):
    text = "the mill stands by the river"
    own = Dense(str(qwen), pooling="last", max_length=12, **EXACT)
    assert own.read([text, "the"])[1] == [12, 4]
    cut = [*byte_ids(text, 1)[:11], 0]
    np.testing.assert_allclose(
        own.encode([text])[0], alone(body(qwen), cut, lambda h: h[-1]), atol=1e-6
    )
    ended = Dense(
        str(llama), pooling="last", append_eos=True, max_length=12, document_prefix="p: ", **EXACT
    )
    assert ended.read([text, "the"])[1] == [12, 8]
    cut = [0, *byte_ids("p: " + text, 2)[:10], 1]
    np.testing.assert_allclose(
        ended.encode([text])[0], alone(body(llama), cut, lambda h: h[-1]), atol=1e-6
    )


def test_special_tokens_in_a_text_are_text_and_those_of_a_prefix_are_meant(qwen, llama):
    end = checkpoints.END
    qwens = Dense(str(qwen), pooling="last", query_prefix=end, **EXACT)
    (found,) = qwens.encode([f"mill {end}"])
    expected = alone(body(qwen), [*byte_ids(f"mill {end}", 1), 0], lambda hidden: hidden[-1])
    np.testing.assert_allclose(found, expected, atol=1e-5)
    (found,) = qwens.encode_queries(["mill"])
    expected = alone(body(qwen), [0, *byte_ids("mill", 1), 0], lambda hidden: hidden[-1])
    np.testing.assert_allclose(found, expected, atol=1e-5)
    stopped = Dense(str(llama), pooling="last", append_eos=True, **EXACT)
    (found,) = stopped.encode(["mill</s>"])
    ids = [0, *byte_ids("mill</s>", 2), 1]
    np.testing.assert_allclose(found, alone(body(llama), ids, lambda hidden: hidden[-1]), atol=1e-5)


def test_queries_have_a_length_of_their_own(qwen):
    encoder = Dense(
        str(qwen), pooling="last", max_length=64, query_max_length=8, query_prefix="", **EXACT
    )
    long, short = "the old mill by the river", "the old"
    np.testing.assert_allclose(
        encoder.encode_queries([long])[0], encoder.encode([short])[0], atol=1e-6
    )


@pytest.mark.parametrize("pooling", ["last", "mean", "cls", None])
def test_neither_the_batch_nor_the_order_changes_a_vector(qwen, sentence_model, pooling):
    model = str(qwen if pooling else sentence_model)
    wide = Dense(model, pooling=pooling, batch_tokens=100_000, **EXACT)
    narrow = Dense(model, pooling=pooling, batch_tokens=8, **EXACT)
    together, one_by_one = wide.encode(TEXTS), narrow.encode(TEXTS)
    turned = wide.encode(TEXTS[::-1])[::-1]
    for left, middle, right in zip(together, one_by_one, turned, strict=True):
        np.testing.assert_allclose(left, middle, atol=1e-5)
        np.testing.assert_allclose(left, right, atol=1e-5)
        assert np.linalg.norm(left) == pytest.approx(1.0, abs=1e-5)


def test_vectors_keep_their_length_where_they_are_not_normalised(qwen):
    raw = Dense(str(qwen), pooling="mean", normalise=False, **EXACT).encode(["old"])[0]
    unit = Dense(str(qwen), pooling="mean", **EXACT).encode(["old"])[0]
    assert abs(np.linalg.norm(raw) - 1) > 0.1
    np.testing.assert_allclose(raw / np.linalg.norm(raw), unit, atol=1e-6)


def test_a_sentence_transformers_checkpoint_brings_pooling_and_prompts(sentence_model):
    encoder = Dense(str(sentence_model), **EXACT)
    network = body(sentence_model)
    words = {word: len(checkpoints.BERT) + n for n, word in enumerate(checkpoints.EMBEDDER_WORDS)}
    for side, encode in (("passage", encoder.encode), ("query", encoder.encode_queries)):
        ids = [2, *(words[word] for word in (side, "the", "old", "mill")), 3]
        expected = alone(network, ids, lambda hidden: hidden.mean(dim=0))
        np.testing.assert_allclose(encode(["the old mill"])[0], expected, atol=1e-6)


def test_a_given_prefix_and_length_replace_those_of_the_checkpoint(sentence_model):
    encoder = Dense(str(sentence_model), document_prefix="river ", max_length=8, **EXACT)
    plain = Dense(str(sentence_model), document_prefix="", max_length=8, **EXACT)
    texts = ["the old mill", "the old mill stands by the river"]
    assert encoder.read(texts)[1] == [6, 8]
    np.testing.assert_allclose(
        encoder.encode(texts[:1])[0], plain.encode(["river the old mill"])[0], atol=1e-6
    )
    np.testing.assert_allclose(
        plain.encode(texts[1:])[0], plain.encode(["the old mill stands by the"])[0], atol=1e-6
    )


def test_a_sentence_transformers_checkpoint_is_read_at_its_own_length_unless_one_is_given(
    sentence_model,
):
    text = "mill " * 99
    own = Dense(str(sentence_model), **EXACT)
    given = Dense(str(sentence_model), max_length=80, query_max_length=80, **EXACT)
    assert own.read([text])[1] == [64]
    assert given.read([text])[1] == [80]
    np.testing.assert_allclose(own.encode([text])[0], given.encode(["mill " * 61])[0], atol=1e-6)
    assert np.abs(own.encode_queries([text])[0] - given.encode_queries([text])[0]).max() > 1e-4
    with pytest.raises(InputError, match="at most 1024, the positions of this model"):
        _ = Dense(str(sentence_model), max_length=1025, **EXACT).fingerprint


def test_our_pooling_is_that_of_sentence_transformers_which_pads_in_front(qwen, folder):
    """As Qwen3-Embedding is published: last-token pooling, padding on the left, prompts."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

    body = Transformer(str(qwen))
    body.tokenizer.padding_side = "left"
    published = SentenceTransformer(
        modules=[body, Pooling(32, "lasttoken"), Normalize()],
        prompts={"query": checkpoints.QWEN_PREFIX, "document": ""},
        device="cpu",
    )
    published.save_pretrained(str(folder / "published"))
    texts = ["the old mill", "by the river who built the bridge", "a"]
    ours = Dense(str(qwen), pooling="last", query_prefix=checkpoints.QWEN_PREFIX, **EXACT)
    theirs = Dense(str(folder / "published"), **EXACT)
    np.testing.assert_allclose(ours.encode_queries(texts), published.encode_query(texts), atol=1e-5)
    np.testing.assert_allclose(ours.encode(texts), published.encode_document(texts), atol=1e-5)
    np.testing.assert_allclose(ours.encode_queries(texts), theirs.encode_queries(texts), atol=1e-5)


def test_threads_share_one_model_and_get_their_own_vectors(qwen):
    from concurrent.futures import ThreadPoolExecutor

    encoder = Dense(str(qwen), pooling="last", **EXACT)
    texts = [f"question {number} " * (1 + number % 5) for number in range(32)]
    expected = Dense(str(qwen), pooling="last", **EXACT).encode_queries(texts)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda text: encoder.encode_queries([text])[0], texts))
    np.testing.assert_allclose(np.stack(found), expected, atol=1e-5)


def test_the_fingerprint_names_the_weights_and_every_setting_that_changes_a_vector(qwen, folder):
    def digest(model=qwen, **changed):
        return Dense(str(model), **{"pooling": "last", **EXACT, **changed}).fingerprint

    other = checkpoints.save_qwen(folder / "other", seed=5)
    changed = [
        digest(other),
        digest(pooling="mean"),
        digest(append_eos=True),
        digest(normalise=False),
        digest(max_length=64),
        digest(query_max_length=64),
        digest(query_prefix="q: "),
        digest(document_prefix="d: "),
        digest(dtype="bfloat16"),
    ]
    assert len({digest(), *changed}) == 1 + len(changed)
    assert digest(batch_tokens=64) == digest()


def test_nothing_is_loaded_before_the_first_text(qwen, monkeypatch):
    from soundingline.pipelines.models import Checkpoint

    monkeypatch.setattr(Checkpoint, "load", lambda *_: pytest.fail("loaded"))
    encoder = Dense(str(qwen), pooling="last", **EXACT)
    assert encoder.fingerprint
    assert encoder.encode([]) == []


@pytest.mark.parametrize("pooling", ["last", None])
@pytest.mark.parametrize(("model", "told"), [("/none/here", "no folder"), ("no/model", "hf down")])
def test_a_missing_model_is_told_in_one_line(folder, model, told, pooling):
    with pytest.raises(InputError, match=told) as caught:
        Dense(model, pooling=pooling, **EXACT).encode(["x"])
    assert "\n" not in str(caught.value)


def test_wrong_settings_are_refused_with_what_is_valid(qwen, llama):
    with pytest.raises(InputError, match="last, mean, cls"):
        Dense("any", pooling="max")
    with pytest.raises(InputError, match="pooling: last"):
        Dense("any", append_eos=True)
    with pytest.raises(InputError, match="max_length=0"):
        Dense("any", max_length=0)
    with pytest.raises(InputError, match="does not say how its vectors are pooled"):
        Dense(str(qwen), **EXACT).encode(["x"])
    with pytest.raises(InputError, match="is no adapter"):
        Dense(str(qwen), base=str(llama), pooling="last", **EXACT).encode(["x"])
    with pytest.raises(InputError, match="no such token"):
        Dense(str(qwen), append_eos=True, pooling="last", **EXACT).encode(["x"])


def test_a_model_that_does_not_fit_is_refused_with_the_sizes(qwen, monkeypatch):
    import soundingline.pipelines.models as checkpoints

    monkeypatch.setattr(checkpoints, "free_bytes", lambda device: 1000)
    with pytest.raises(InputError, match=r"needs .* GB and cpu has 0\.0 GB free"):
        Dense(str(qwen), pooling="last", **EXACT).encode(["x"])


UNITS = [
    Unit(f"d{number}%p{number % 3}", "Mill" if number % 2 else "", f"text {number % 40} é")
    for number in range(90)
]


SEARCHES = ("numpy", "torch")


def engine(qwen, **settings):
    exact = {"pooling": "last", "dtype": "float32", "device": "cpu", "query_prefix": "q: "}
    return Dense(str(qwen), **{**exact, **settings})


@pytest.fixture(scope="module")
def built(qwen, tmp_path_factory):
    path = tmp_path_factory.mktemp("indexes") / "dense"
    engine(qwen).build(UNITS, path, corpus_fingerprint="corpus")
    return path


def opened(qwen, built, **settings):
    return engine(qwen, **settings).open(built, corpus_fingerprint="corpus")


def queries(*texts):
    rows = {"qid": [f"q{n}" for n in range(len(texts))], "query": texts, "reasoning": "why"}
    return pd.DataFrame({name: list(v) if name != "reasoning" else v for name, v in rows.items()})


def random_index(tmp_path, qwen, vectors, search):
    """An index whose vectors are given, by an encoder that reads them from the text."""

    class Given(Dense):
        def read(self, texts):
            return [int(text or 0) for text in texts], [1] * len(texts)

        def encode_batch(self, items):
            return [vectors[number] for number in items]

    made = Given(str(qwen), pooling="last", dtype="float32", device="cpu", compute=search)
    units = [Unit(f"d{number}", "", str(number)) for number in range(len(vectors))]
    made.build(units, tmp_path / "index", corpus_fingerprint="c")
    return made.open(tmp_path / "index", corpus_fingerprint="c")


@pytest.mark.parametrize("search", SEARCHES)
def test_the_top_100_are_those_of_brute_force(tmp_path, qwen, search):
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((3000, 32)).astype(np.float32)
    index = random_index(tmp_path, qwen, vectors, search)
    asked = rng.standard_normal((7, 32)).astype(np.float32)
    frame = pd.DataFrame({"qid": list("abcdefg"), "query_vec": list(asked)})
    found = index.retriever(depth=100)(frame)
    for query, (_, hits) in zip(asked, found.groupby("qid", sort=False), strict=True):
        exact = vectors.astype(np.float64) @ query.astype(np.float64)
        best = np.argsort(-exact)[:100]
        assert hits["docno"].tolist() == [f"d{number}" for number in best]
        np.testing.assert_allclose(hits["score"], exact[best], rtol=1e-5)
        assert hits["rank"].tolist() == list(range(100))


@pytest.mark.parametrize("search", SEARCHES)
def test_equal_scores_are_kept_and_stand_in_the_order_of_the_index(tmp_path, qwen, search):
    vectors = np.ones((5000, 4), np.float32)
    vectors[4000] *= 2
    index = random_index(tmp_path, qwen, vectors, search)
    frame = pd.DataFrame({"qid": ["1"], "query_vec": [np.ones(4)]})
    assert index.retriever(depth=4)(frame)["docno"].tolist() == ["d4000", "d0", "d1", "d2"]


@pytest.mark.parametrize("search", SEARCHES)
def test_text_queries_rank_by_the_dot_product_with_their_own_vector(qwen, built, search):
    index = opened(qwen, built, compute=search)
    encoder = engine(qwen)
    texts = [unit.contents for unit in UNITS]
    asked = ["text 7", "who built the mill"]
    exact = np.stack(encoder.encode_queries(asked)) @ np.stack(encoder.encode(texts)).T
    found = index.retriever(depth=len(UNITS))(queries(*asked))
    for row, (_, hits) in zip(exact, found.groupby("qid", sort=False), strict=True):
        scores = dict(zip([unit.unit_id for unit in UNITS], row, strict=True))
        assert sorted(hits["docno"]) == sorted(scores)
        np.testing.assert_allclose(
            hits["score"], [scores[docno] for docno in hits["docno"]], atol=1e-5
        )
        assert (np.diff(hits["score"]) <= 0).all()


def test_other_columns_stay_and_queries_keep_their_order(qwen, built):
    frame = queries("text 7", "text 8").iloc[::-1].assign(query_0="before")
    found = opened(qwen, built).retriever(depth=2)(frame)
    assert found["qid"].tolist() == ["q1", "q1", "q0", "q0"]
    assert set(found["reasoning"]) == {"why"}
    assert set(found["query_0"]) == {"before"}
    assert found["rank"].tolist() == [0, 1, 0, 1]


def test_an_empty_frame_gives_an_empty_frame_with_all_columns(qwen, built):
    found = opened(qwen, built).retriever()(queries("x").iloc[:0])
    assert len(found) == 0
    assert {"qid", "query", "reasoning", "docno", "score", "rank"} <= set(found.columns)


def test_a_depth_beyond_the_index_gives_every_unit(qwen, built):
    assert len(opened(qwen, built).retriever(depth=10_000)(queries("x"))) == len(UNITS)


def test_a_rank_cutoff_becomes_the_depth(qwen, built):
    retriever = opened(qwen, built).retriever(depth=50)
    shorter = opened(qwen, built).retriever(depth=3)
    assert (retriever % 3).compile() == shorter % 3
    assert hash(retriever.at_depth(3)) == hash(shorter)
    assert retriever != opened(qwen, built).retriever(depth=3)


def test_opening_and_asking_by_vector_loads_no_model(qwen, built, monkeypatch):
    from soundingline.pipelines.models import Checkpoint

    monkeypatch.setattr(Checkpoint, "load", lambda *_: pytest.fail("loaded"))
    index = opened(qwen, built)
    assert len(index) == len(UNITS)
    frame = queries("x")
    frame["query_vec"] = [index.documents.vectors[5]]
    assert index.retriever(depth=1)(frame)["score"].iloc[0] == pytest.approx(1.0, abs=1e-5)


def test_another_corpus_encoder_or_a_damaged_file_is_refused(qwen, built, tmp_path):
    import shutil

    with pytest.raises(InputError, match="another corpus"):
        engine(qwen).open(built, corpus_fingerprint="other")
    with pytest.raises(InputError, match="another encoder"):
        opened(qwen, built, max_length=64)
    with pytest.raises(InputError, match="no dense index"):
        opened(qwen, tmp_path / "none")
    copied = Path(shutil.copytree(built, tmp_path / "copied"))
    with (copied / "vectors.npy").open("ab") as stream:
        stream.truncate(8)
    with pytest.raises(InputError, match="damaged"):
        opened(qwen, copied)


def test_a_killed_build_goes_on_and_gives_the_same_index(qwen, built, tmp_path, monkeypatch):
    monkeypatch.setattr("soundingline.pipelines.learned.retriever.BLOCK_CHARACTERS", {"cpu": 200})
    path = tmp_path / "index"
    encode, calls = Dense.encode_batch, []

    def killed(self, items):
        calls.append(len(items))
        if sum(calls) > 40:
            raise KeyboardInterrupt
        return encode(self, items)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Dense, "encode_batch", killed)
        engine(qwen).build(UNITS, path, corpus_fingerprint="corpus")
    assert not path.exists()
    before, again = sum(calls), []
    monkeypatch.setattr(
        Dense,
        "encode_batch",
        lambda self, items: again.append(len(items)) or encode(self, items),
    )
    engine(qwen).build(UNITS, path, corpus_fingerprint="corpus")
    assert before > 20
    assert sum(again) < len(UNITS)
    np.testing.assert_allclose(
        opened(qwen, path).documents.vectors, opened(qwen, built).documents.vectors, atol=1e-5
    )
    assert [child.name for child in tmp_path.iterdir()] == ["index"]


def test_an_empty_corpus_and_a_repeated_id_leave_nothing(qwen, tmp_path):
    with pytest.raises(InputError, match="empty"):
        engine(qwen).build([], tmp_path / "a", corpus_fingerprint="c")
    with pytest.raises(InputError, match="twice"):
        engine(qwen).build([UNITS[0]] * 2, tmp_path / "b", corpus_fingerprint="c")
    assert not (tmp_path / "a").exists()
    assert not (tmp_path / "b").exists()


def test_wrong_queries_are_refused(qwen, built):
    retriever = opened(qwen, built).retriever()
    with pytest.raises(InputError, match="query holds nan"):
        retriever(pd.DataFrame({"qid": ["1"], "query": [float("nan")]}))
    with pytest.raises(InputError, match=r"shape \[3\].*valid: \[32\]"):
        retriever(pd.DataFrame({"qid": ["1"], "query_vec": [np.ones(3)]}))
    with pytest.raises(InputError, match=r"shape \[3\]"):
        retriever(pd.DataFrame({"qid": ["1", "2"], "query_vec": [np.ones(3), np.ones(4)]}))
    with pytest.raises(InputError, match="numpy, torch"):
        engine(qwen, compute="faiss")
    with pytest.raises(InputError, match="depth=0"):
        opened(qwen, built).retriever(depth=0)


@pytest.mark.parametrize(("whole", "length"), [(True, 32), (False, 16)])
def test_whole_documents_may_have_a_length_of_their_own(qwen, whole, length):
    engines = []

    def open_index(engine):
        engines.append(engine)
        return "index"

    retriever = Dense(
        str(qwen), pooling="last", depth=7, max_length=16, document_max_length=32, device="cpu"
    )
    collection = Collection("c1", open_index=open_index, whole_documents=whole)
    assert retriever.index_in(collection) == "index"
    assert engines[0].read(["word " * 99])[1] == [length]


DEPTH = cases(100, 40)
MOST, QUESTIONS = cases(12_000, 50), cases(1000, 5)
# Short units, and a few that are cut, so that two encodings of a sample take seconds on one core.
SHORT, CUT = cases(100_000, 150), 2
# Of model.safetensors at huggingface.co/sentence-transformers/all-MiniLM-L6-v2.
PUBLISHED = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
# What rounding by the shape of a batch can move a score.
ROUNDING = 2e-6


@dataclass
class Sample:
    """Some units and questions of a collection, as sentence-transformers encodes them."""

    units: Sequence[Unit]
    questions: pd.DataFrame
    scores: np.ndarray

    def rows(self, docnos):
        """The numbers of units."""
        numbers = {unit.unit_id: number for number, unit in enumerate(self.units)}
        return [numbers[docno] for docno in docnos]


@pytest.fixture(scope="module")
def published(minilm):
    """The model as sentence-transformers opens it."""
    # Here, because the import takes seconds in each worker of the suite.
    sentence_transformers = pytest.importorskip("sentence_transformers")
    torch.set_num_threads(1)
    return sentence_transformers.SentenceTransformer(minilm, device="cpu")


def sample(published, folder, segmenter, documents_read):
    benchmark = BeirBenchmark(folder)
    documents = islice(benchmark.documents(), documents_read)
    units = [unit for document in documents for unit in segmenter.units(document)]
    longest = sorted(units, key=lambda unit: -len(unit.contents))[:CUT]
    short = [unit for unit in units if len(unit.contents) <= SHORT and unit not in longest]
    units = [*longest, *short[: MOST - CUT]]
    topics = benchmark.topics[:: max(1, len(benchmark.topics) // QUESTIONS)][:QUESTIONS]
    questions = pd.DataFrame([{"qid": topic.qid, "query": topic.text} for topic in topics])
    # In small batches, because the texts of one are filled up to its longest.
    texts = [unit.contents for unit in units]
    vectors = published.encode(texts, batch_size=4, normalize_embeddings=True)
    queries = published.encode(questions["query"].tolist(), normalize_embeddings=True)
    return Sample(units, questions, queries @ vectors.T)


@pytest.fixture(scope="module")
def cacm(published, data_root):
    return sample(published, data_root / "cacm", WholeDocument(), 100_000)


@pytest.fixture(scope="module")
def wikimix(published, data_root):
    return sample(published, data_root / "wikimix", Passages(max_tokens=40), cases(100_000, 300))


@pytest.fixture(scope="module")
def retriever(minilm):
    return Dense(minilm, dtype="float32", device="cpu", depth=MOST)


def collection_of(retriever, units, folder):
    def open_index(engine):
        path = folder / "dense"
        if not path.exists():
            engine.build(units, path, corpus_fingerprint="c")
        return engine.open(path, corpus_fingerprint="c")

    lexical = LexicalIndex.build(units, folder / "lexical")
    return Collection("c", index=lexical, open_index=open_index)


@pytest.fixture(scope="module")
def cacm_bound(retriever, cacm, tmp_path_factory):
    return collection_of(retriever, cacm.units, tmp_path_factory.mktemp("cacm"))


@pytest.fixture(scope="module")
def wikimix_bound(retriever, wikimix, tmp_path_factory):
    return collection_of(retriever, wikimix.units, tmp_path_factory.mktemp("wikimix"))


def test_the_package_holds_the_weights_that_the_hub_publishes(minilm):
    weights = Path(minilm, "model.safetensors").read_bytes()
    assert hashlib.sha256(weights).hexdigest() == PUBLISHED


@pytest.mark.parametrize("name", ["cacm", "wikimix"])
def test_rankings_are_those_of_sentence_transformers_and_brute_force(name, retriever, request):
    theirs = request.getfixturevalue(name)
    ours = retriever.bind(request.getfixturevalue(f"{name}_bound"))(theirs.questions)
    for qid, exact in zip(theirs.questions["qid"], theirs.scores, strict=True):
        hits = ours[ours["qid"] == qid].head(DEPTH)
        rows = theirs.rows(hits["docno"].tolist())
        np.testing.assert_allclose(hits["score"], exact[rows], atol=1e-5)
        best = np.sort(exact)[::-1][:DEPTH]
        # Rank by rank the score of the unit that stands there: the same unit, but for equal scores.
        np.testing.assert_allclose(exact[rows], best, atol=ROUNDING)
        assert len(set(rows)) == DEPTH


def test_rankings_are_fused_with_bm25s(retriever, cacm, cacm_bound):
    bm25 = cacm_bound.index.bm25(depth=MOST)
    fused = ReciprocalRankFusion(bm25, retriever, depth=MOST).bind(cacm_bound)(cacm.questions)
    lexical, neural = bm25(cacm.questions), retriever.bind(cacm_bound)(cacm.questions)
    for qid, hits in fused.groupby("qid"):
        expected = {}
        for ranking in (lexical, neural):
            rows = ranking[ranking["qid"] == qid]
            for docno, rank in zip(rows["docno"], rows["rank"], strict=True):
                expected[docno] = expected.get(docno, 0.0) + 1 / (61 + rank)
        scores = dict(zip(hits["docno"], hits["score"], strict=True))
        assert scores == pytest.approx(expected)
        assert hits["score"].is_monotonic_decreasing


def test_a_document_counts_by_its_best_passage(retriever, wikimix, wikimix_bound):
    documents = (retriever.bind(wikimix_bound) >> MaxP())(wikimix.questions)
    parents = np.array([unit.unit_id.partition("%")[0] for unit in wikimix.units])
    assert len(set(parents)) < len(parents)
    for qid, exact in zip(wikimix.questions["qid"], wikimix.scores, strict=True):
        hits = documents[documents["qid"] == qid]
        best = {parent: exact[parents == parent].max() for parent in set(parents)}
        scores = dict(zip(hits["docno"], hits["score"], strict=True))
        assert scores == pytest.approx(best, abs=1e-5)


def test_texts_are_read_as_far_as_the_model_was_made_for_unless_a_length_is_given(
    minilm, published
):
    text = "word " * 600
    made_for = Dense(minilm, dtype="float32", device="cpu")
    assert made_for.read([text])[1] == [256]
    expected = published.encode([text], normalize_embeddings=True)
    np.testing.assert_allclose(made_for.encode([text]), expected, atol=1e-5)
    np.testing.assert_allclose(made_for.encode_queries([text]), expected, atol=1e-5)
    longer = Dense(minilm, dtype="float32", device="cpu", max_length=400)
    assert longer.read([text])[1] == [400]
    assert longer.fingerprint != made_for.fingerprint


def test_bfloat16_keeps_the_vectors_but_for_a_ten_thousandth(minilm, published):
    texts = ["The tide at Brel rises nine metres.", "an old mill", "information retrieval " * 20]
    exact = published.encode(texts, normalize_embeddings=True)
    vectors = Dense(minilm, dtype="bfloat16", device="cpu").encode(texts)
    assert (np.stack(vectors) * exact).sum(axis=1).min() > 0.9999
