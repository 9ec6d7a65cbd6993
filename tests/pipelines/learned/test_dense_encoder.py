"""Vectors against transformers run directly, in float32, one text at a time."""

import os
from pathlib import Path

import numpy as np
import pytest
import tiny_embedder

from soundingline.pipelines.learned.dense import Dense
from soundingline.toolkit.errors import InputError

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
    return tiny_embedder.save_qwen(folder / "qwen")


@pytest.fixture(scope="module")
def llama(folder):
    return tiny_embedder.save_llama(folder / "llama")


@pytest.fixture(scope="module")
def adapter(folder, llama):
    return tiny_embedder.save_adapter(folder / "adapter", llama)


@pytest.fixture(scope="module")
def sentence_model(folder):
    return tiny_embedder.save_sentence_model(folder / "sentence")


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
    encoder = Dense(str(qwen), pooling="last", query_prefix=tiny_embedder.QWEN_PREFIX, **EXACT)
    network = body(qwen)
    text = "who built the mill"
    prefixed = tiny_embedder.QWEN_PREFIX + text
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

    bert = tiny_embedder.save_bert(folder / "e5")
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
    end = tiny_embedder.END
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
    words = {word: len(tiny_embedder.BERT) + n for n, word in enumerate(tiny_embedder.WORDS)}
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
        prompts={"query": tiny_embedder.QWEN_PREFIX, "document": ""},
        device="cpu",
    )
    published.save_pretrained(str(folder / "published"))
    texts = ["the old mill", "by the river who built the bridge", "a"]
    ours = Dense(str(qwen), pooling="last", query_prefix=tiny_embedder.QWEN_PREFIX, **EXACT)
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

    other = tiny_embedder.save_qwen(folder / "other", seed=5)
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
