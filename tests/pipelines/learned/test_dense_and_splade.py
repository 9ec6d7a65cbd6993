"""Dense retrieval: vectors against transformers run directly and sentence-transformers, in float32;
exact search in an index that is complete or absent; a trained encoder on real texts. SPLADE with a
tiny random checkpoint, against transformers in float32; impacts against sums over a dense
matrix."""

import hashlib
import json
import shutil
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyterrier as pt
import pytest
from lz4.frame import LZ4FrameFile
from omegaconf import OmegaConf
from support import checkpoints
from support.assertions import refused
from support.checkpoints import SPLADE_POSITIONS as POSITIONS
from support.checkpoints import SPLADE_WORDS as WORDS
from support.checkpoints import write_splade
from support.needs import cases

from soundingline.pipelines.learned.dense import Dense, dense_retriever
from soundingline.pipelines.learned.encoding import SPARSE, Block
from soundingline.pipelines.learned.retriever import LearnedRetriever
from soundingline.pipelines.learned.splade import (
    ImpactEngine,
    ImpactIndex,
    Sparta,
    Splade,
    splade_retriever,
)
from soundingline.pipelines.learned.vectors import VectorEngine
from soundingline.pipelines.stage import Collection
from soundingline.toolkit.benchmarks.beir import BeirBenchmark
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
torch.set_num_threads(1)

CONF = Path(__file__).resolve().parents[3] / "conf"
EXACT = {"dtype": "float32", "device": "cpu"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
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


def assert_pooled(found, network, ids, pool=lambda hidden: hidden[-1], atol=1e-5):
    """The vector of one text that is by itself in its batch, pooled and normalised."""
    with torch.no_grad():
        hidden = network(input_ids=torch.tensor([ids])).last_hidden_state[0]
    vector = pool(hidden).numpy()
    np.testing.assert_allclose(found, vector / np.linalg.norm(vector), atol=atol)


def body(path):
    return transformers.AutoModel.from_pretrained(path, dtype="float32").eval()


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
    assert_pooled(encoder.encode([text])[0], network, [*byte_ids(text, 1), 0], atol=1e-6)
    query = encoder.encode_queries([text])[0]
    assert_pooled(query, network, [*byte_ids(prefixed, 1), 0], atol=1e-6)


@pytest.mark.parametrize(
    ("save", "pooling", "masked"),
    [("qwen", "last", False), ("qwen", "mean", True), ("sentence_model", "last", True)],
)
def test_a_network_that_looks_back_gets_no_mask_for_its_last_token_and_caches_nothing(
    save, pooling, masked, request, monkeypatch
):
    """Both would only cost memory. Vectors are those of single texts, which have no padding."""
    encoder = Dense(str(request.getfixturevalue(save)), pooling=pooling, **EXACT)
    network, texts = encoder._network._network, ["the old mill", "by the river the mill stands"]
    alone = [encoder.encode([text])[0] for text in texts]
    calls = []
    forward = network.forward

    def counted(*args, **inputs):
        calls.append((inputs, forward(*args, **inputs)))
        return calls[-1][1]

    monkeypatch.setattr(network, "forward", counted)
    np.testing.assert_allclose(np.stack(encoder.encode(texts)), np.stack(alone), atol=1e-6)
    ((inputs, output),) = calls
    assert ("attention_mask" in inputs) == masked
    assert getattr(output, "past_key_values", None) is None


def test_an_adapter_is_merged_and_its_texts_end_with_the_end_of_sequence(llama, adapter):
    from peft import PeftModel

    settings = {"pooling": "last", "append_eos": True, "document_prefix": "passage: ", **EXACT}
    encoder = Dense(str(adapter), base=str(llama), query_prefix="query: ", **settings)
    unmerged = PeftModel.from_pretrained(body(llama), adapter).eval()
    passage = [0, *byte_ids("passage: the mill", 2), 1]
    query = [0, *byte_ids("query: the mill", 2), 1]
    assert_pooled(encoder.encode(["the mill"])[0], unmerged, passage)
    assert_pooled(encoder.encode_queries(["the mill"])[0], unmerged, query)
    plain = Dense(str(llama), **settings)
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
    # Beside a longer text, so that padding has to be left out.
    found = encoder.encode(["old mill", "the old mill by the river"])[0]
    assert_pooled(found, body(qwen), [*byte_ids("d: old mill", 1), 0], pool)


def test_e5_is_read_as_its_model_card_says(folder):
    """The card's own lines: prefixes, the mean over what is not padding, length 1."""
    bert = checkpoints.save_bert(folder / "e5")
    option = OmegaConf.load(CONF / "retriever/e5_base.yaml")
    names = ("query_prefix", "document_prefix", "pooling", "max_length")
    encoder = Dense(str(bert), **{name: option[name] for name in names}, **EXACT)
    texts = ["query: who built the mill", "passage: the mill", "passage: the old mill stands"]
    batch = transformers.AutoTokenizer.from_pretrained(bert)(
        texts, padding=True, return_tensors="pt"
    )
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
    assert own.tokenize([text, "the"]).lengths == [12, 4]
    assert_pooled(own.encode([text])[0], body(qwen), [*byte_ids(text, 1)[:11], 0], atol=1e-6)
    ended = Dense(
        str(llama), pooling="last", append_eos=True, max_length=12, document_prefix="p: ", **EXACT
    )
    assert ended.tokenize([text, "the"]).lengths == [12, 8]
    cut = [0, *byte_ids("p: " + text, 2)[:10], 1]
    assert_pooled(ended.encode([text])[0], body(llama), cut, atol=1e-6)


def test_special_tokens_in_a_text_are_text_and_those_of_a_prefix_are_meant(qwen, llama):
    end = checkpoints.END
    qwens = Dense(str(qwen), pooling="last", query_prefix=end, **EXACT)
    (found,) = qwens.encode([f"mill {end}"])
    assert_pooled(found, body(qwen), [*byte_ids(f"mill {end}", 1), 0])
    (found,) = qwens.encode_queries(["mill"])
    assert_pooled(found, body(qwen), [0, *byte_ids("mill", 1), 0])
    stopped = Dense(str(llama), pooling="last", append_eos=True, **EXACT)
    (found,) = stopped.encode(["mill</s>"])
    assert_pooled(found, body(llama), [0, *byte_ids("mill</s>", 2), 1])


def test_queries_have_a_length_of_their_own(qwen):
    encoder = Dense(
        str(qwen), pooling="last", max_length=64, query_max_length=8, query_prefix="", **EXACT
    )
    long, short = "the old mill by the river", "the old"
    cut, plain = encoder.encode_queries([long])[0], encoder.encode([short])[0]
    np.testing.assert_allclose(cut, plain, atol=1e-6)


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
        found = encode(["the old mill"])[0]
        assert_pooled(found, network, ids, lambda hidden: hidden.mean(dim=0), atol=1e-6)


def test_a_given_prefix_and_length_replace_those_of_the_checkpoint(sentence_model):
    encoder = Dense(str(sentence_model), document_prefix="river ", max_length=8, **EXACT)
    plain = Dense(str(sentence_model), document_prefix="", max_length=8, **EXACT)
    texts = ["the old mill", "the old mill stands by the river"]
    assert encoder.tokenize(texts).lengths == [6, 8]
    found = [*encoder.encode(texts[:1]), *plain.encode(texts[1:])]
    expected = plain.encode(["river the old mill", "the old mill stands by the"])
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_sentence_transformers_checkpoint_is_read_at_its_own_length_unless_one_is_given(
    sentence_model,
):
    text = "mill " * 99
    own = Dense(str(sentence_model), **EXACT)
    given = Dense(str(sentence_model), max_length=80, query_max_length=80, **EXACT)
    assert own.tokenize([text]).lengths == [64]
    assert given.tokenize([text]).lengths == [80]
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


def test_a_network_in_a_folder_of_its_own_is_read_and_checked(sentence_model, tmp_path):
    """As sentence-transformers wrote its checkpoints before version 2."""
    safetensors = pytest.importorskip("safetensors.torch")
    own = tmp_path / "model" / "0_Transformer"
    shutil.copytree(sentence_model, tmp_path / "model")
    own.mkdir()
    for path in (tmp_path / "model").glob("*"):
        if path.is_file() and path.name not in (
            "modules.json",
            "config_sentence_transformers.json",
        ):
            path.rename(own / path.name)
    modules = tmp_path / "model" / "modules.json"
    first, *others = json.loads(modules.read_text("utf-8"))
    modules.write_text(json.dumps([{**first, "path": own.name}, *others]), "utf-8")
    texts = ["the old mill"]
    expected = Dense(str(sentence_model), **EXACT).encode(texts)
    np.testing.assert_array_equal(Dense(str(tmp_path / "model"), **EXACT).encode(texts), expected)
    weights = safetensors.load_file(own / "model.safetensors")
    weights.pop("embeddings.word_embeddings.weight")
    safetensors.save_file(weights, own / "model.safetensors", {"format": "pt"})
    it = Dense(str(tmp_path / "model"), **EXACT)
    refused("no weights for embeddings.word_embeddings", lambda: it.encode(texts))


def test_wrong_settings_are_refused_with_what_is_valid(qwen, llama):
    refused("last, mean, cls", lambda: Dense("any", pooling="max"))
    refused("pooling: last", lambda: Dense("any", append_eos=True))
    refused("max_length=0", lambda: Dense("any", max_length=0))
    with pytest.raises(InputError, match="does not say how its vectors are pooled"):
        Dense(str(qwen), **EXACT).encode(["x"])
    with pytest.raises(InputError, match="is not an adapter"):
        Dense(str(qwen), base=str(llama), pooling="last", **EXACT).encode(["x"])
    with pytest.raises(InputError, match="no such token"):
        Dense(str(qwen), append_eos=True, pooling="last", **EXACT).encode(["x"])


UNITS = [
    Unit(f"d{number}%p{number % 3}", "Mill" if number % 2 else "", f"text {number % 40} é")
    for number in range(90)
]


def retriever(qwen, **settings):
    exact = {"pooling": "last", "dtype": "float32", "device": "cpu", "query_prefix": "q: "}
    return dense_retriever(str(qwen), **{**exact, **settings})


@pytest.fixture(scope="module")
def built(qwen, tmp_path_factory):
    path = tmp_path_factory.mktemp("indexes") / "dense"
    retriever(qwen).engine.build(UNITS, path, corpus_fingerprint="corpus")
    return path


def opened(qwen, built, **settings):
    index = retriever(qwen).engine.open(built, corpus_fingerprint="corpus")
    return LearnedRetriever(retriever(qwen).engine, index=index, **settings)


def test_wrong_queries_are_refused(qwen, built):
    whole = opened(qwen, built)
    refused("query holds nan", lambda: whole(pd.DataFrame({"qid": ["1"], "query": [float("nan")]})))
    with pytest.raises(InputError, match=r"shape \[3\].*valid: \[32\]"):
        whole(pd.DataFrame({"qid": ["1"], "query_vec": [np.ones(3)]}))
    with pytest.raises(InputError, match=r"shape \[3\]"):
        whole(pd.DataFrame({"qid": ["1", "2"], "query_vec": [np.ones(3), np.ones(4)]}))
    refused("depth=0", lambda: opened(qwen, built, depth=0))


class Anything:
    """An index that nobody searches."""

    supports = frozenset()


@pytest.mark.parametrize(("whole", "length"), [(True, 32), (False, 16)])
def test_whole_documents_may_have_a_length_of_their_own(qwen, whole, length):
    engines = []

    def open_index(engine):
        engines.append(engine)
        return "index"

    retriever = dense_retriever(
        str(qwen), pooling="last", depth=7, max_length=16, document_max_length=32, device="cpu"
    )
    collection = Collection("c1", open_index=open_index, whole_documents=whole)
    assert retriever.index_in(collection) == "index"
    collection = replace(collection, open_index=lambda engine: engines.append(engine) or Anything())
    bound = retriever.bind(collection)
    assert bound.engine.encoder is engines[-1].encoder  # one model for units and queries
    assert engines[0].encoder.tokenize(["word " * 99]).lengths == [length]


# Of model.safetensors at huggingface.co/sentence-transformers/all-MiniLM-L6-v2.
PUBLISHED = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


@pytest.fixture(scope="module")
def published(minilm):
    """The model as sentence-transformers opens it."""
    # Here, because the import takes seconds in each worker of the suite.
    sentence_transformers = pytest.importorskip("sentence_transformers")
    torch.set_num_threads(1)
    return sentence_transformers.SentenceTransformer(minilm, device="cpu")


def test_the_package_holds_the_weights_that_the_hub_publishes(minilm):
    weights = Path(minilm, "model.safetensors").read_bytes()
    assert hashlib.sha256(weights).hexdigest() == PUBLISHED


def test_rankings_are_those_of_sentence_transformers_and_brute_force(
    minilm, published, data_root, tmp_path
):
    benchmark, most = BeirBenchmark(data_root / "cacm"), cases(600, 24)
    documents = sorted(benchmark.documents(), key=lambda each: -len(each.text))
    # Two that are cut, and short ones, so that two encodings take seconds on one core.
    units = [
        Unit(each.docid, each.title, each.text) for each in documents[:2] + documents[2 - most :]
    ]
    topics = benchmark.topics[:: max(1, len(benchmark.topics) // cases(1000, 5))]
    questions = pd.DataFrame([{"qid": topic.qid, "query": topic.text} for topic in topics])
    # In small batches, because the texts of one are filled up to its longest.
    texts, exactly = [unit.contents for unit in units], {"normalize_embeddings": True}
    vectors = published.encode(texts, batch_size=4, **exactly)
    expected = published.encode(questions["query"].tolist(), **exactly) @ vectors.T

    depth = min(40, most - 4)
    engine = VectorEngine(Dense(minilm, dtype="float32", device="cpu"))
    engine.build(units, tmp_path / "dense", corpus_fingerprint="c")
    index = engine.open(tmp_path / "dense")
    ranking = LearnedRetriever(engine, index=index, depth=depth)(questions)
    numbers = {unit.unit_id: number for number, unit in enumerate(units)}
    for qid, exact in zip(questions["qid"], expected, strict=True):
        hits = ranking[ranking["qid"] == qid]
        rows = [numbers[docno] for docno in hits["docno"]]
        np.testing.assert_allclose(hits["score"], exact[rows], atol=1e-5)
        # The same units, but for equal scores and for what the shape of a batch moves them.
        np.testing.assert_allclose(exact[rows], np.sort(exact)[::-1][:depth], atol=2e-6)
        assert len(set(rows)) == depth


def test_bfloat16_keeps_the_vectors_but_for_a_ten_thousandth(minilm, published):
    texts = ["The tide at Brel rises nine metres.", "an old mill", "information retrieval " * 20]
    exact = published.encode(texts, normalize_embeddings=True)
    vectors = Dense(minilm, dtype="bfloat16", device="cpu").encode(texts)
    assert (np.stack(vectors) * exact).sum(axis=1).min() > 0.9999


# SPLADE.

DEPTH = 100


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_splade(tmp_path_factory.mktemp("splade") / "bert")


def encoder(checkpoint, **others):
    return Splade(str(checkpoint), **{"dtype": "float32", "max_length": 40, **others})


def text(random, most=30):
    return " ".join(random.choice(WORDS, random.integers(1, most)))


@pytest.fixture(scope="module")
def directly(checkpoint):
    return direct(checkpoint, [unit.contents for unit in corpus()])


def corpus(count=150):
    random = np.random.default_rng(11)
    made = [Unit(f"d{n}%p0", text(random, 3), text(random, 60)) for n in range(count)]
    return [*made, Unit("empty", "", "")]


def direct(checkpoint, texts, max_length=40):
    """float32 [texts, terms], one text at a time, as the model's authors write it down."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    model = transformers.AutoModelForMaskedLM.from_pretrained(checkpoint).eval()
    rows = []
    for each in texts:
        read = tokenizer(each, truncation=True, max_length=max_length, return_tensors="pt")
        with torch.no_grad():
            logits = model(**read).logits
        mask = read["attention_mask"].unsqueeze(-1)
        rows.append((torch.log(1 + torch.relu(logits)) * mask).max(dim=1).values[0].numpy())
    return np.array(rows)


def dense(arrays, terms):
    rows = []
    for array in arrays:
        row = np.zeros(terms, np.float32)
        row[array["term"]] = array["weight"]
        rows.append(row)
    return np.array(rows)


@pytest.mark.parametrize("kind", ["bert", "distilbert"])
def test_weights_are_those_of_transformers(kind, tmp_path):
    folder = write_splade(tmp_path / kind, kind=kind)
    texts = [unit.contents for unit in corpus(40)]
    expected = direct(folder, texts)
    made = encoder(folder)
    np.testing.assert_allclose(dense(made.encode(texts), len(made.vocabulary)), expected, atol=2e-6)
    assert 0.2 < (expected > 0).mean() < 0.9


@pytest.mark.parametrize("pooling", ["max", "sum"])
@pytest.mark.parametrize("activation", ["relu", "log1p_relu"])
def test_a_sparse_encoder_of_the_library_keeps_its_pooling(
    pooling, activation, checkpoint, tmp_path
):
    from sentence_transformers import SparseEncoder
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sparse_encoder.modules import SpladePooling

    body = Transformer(str(checkpoint), transformer_task="fill-mask")
    library = SparseEncoder(modules=[body, SpladePooling(pooling, activation)], device="cpu")
    library.save_pretrained(str(tmp_path / "saved"))
    library.max_seq_length = 40
    texts = [unit.contents for unit in corpus(20)]
    expected = library.encode_document(texts, convert_to_sparse_tensor=False).numpy()
    made = encoder(tmp_path / "saved")
    np.testing.assert_allclose(dense(made.encode(texts), len(made.vocabulary)), expected, atol=1e-5)
    # On a network that computes in bfloat16, only logits are rounded to its eight bits.
    rounded = np.concatenate(encoder(tmp_path / "saved", dtype="bfloat16").encode(texts))["weight"]
    weights = torch.from_numpy(rounded)
    finer = (weights != weights.bfloat16().float()).float().mean()
    assert finer > 0.5 or (pooling, activation) == ("max", "relu")


def test_a_long_text_is_read_to_max_length_special_tokens_included(checkpoint):
    random = np.random.default_rng(4)
    words = [str(word) for word in random.choice(WORDS, 80)]
    made = encoder(checkpoint, max_length=12)
    read, longer = " ".join(words[:10]), " ".join(words)
    assert made.tokenize([read, longer, ""]).lengths == [12, 12, 2]
    kept, cut = made.encode([read, longer])
    np.testing.assert_array_equal(kept, cut)
    (less,) = made.encode([" ".join(words[:9])])
    assert not np.array_equal(less, kept)


def test_special_tokens_in_a_text_are_text(checkpoint):
    made = encoder(checkpoint)
    masked, word = made.encode(["ban [MASK] kora", "ban mask kora"])
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint, split_special_tokens=True)
    assert made.tokenize(["ban [MASK] kora"]).lengths == [
        len(tokenizer("ban [MASK] kora")["input_ids"])
    ]
    model = transformers.AutoModelForMaskedLM.from_pretrained(checkpoint).eval()
    with torch.no_grad():
        logits = model(**tokenizer("ban [MASK] kora", return_tensors="pt")).logits[0]
    expected = torch.log(1 + torch.relu(logits)).amax(0).numpy()
    np.testing.assert_allclose(dense([masked], len(made.vocabulary))[0], expected, atol=2e-6)
    assert not np.array_equal(masked, word)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_not_a_number_stays_for_whoever_checks(checkpoint, dtype):
    """A single token of one text, as where a network overflows behind its last attention."""
    splade = encoder(checkpoint, dtype=dtype)

    def overflown(head, inputs, logits):
        logits[0, 1] = float("nan")

    splade._network[0].model.cls.register_forward_hook(overflown)
    spoilt, sound = splade.encode(["ban kora lin", "ban kora"])
    assert len(spoilt) == len(splade.vocabulary) and np.isnan(spoilt["weight"]).all()
    assert len(sound) and np.isfinite(sound["weight"]).all()


def test_queries_are_weights_by_term_and_are_computed_once(checkpoint, monkeypatch):
    made = encoder(checkpoint)
    asked = ["ban kora", "lin", "ban kora", "lone ?"]
    first = made.encode_queries(asked)
    expected = direct(checkpoint, ["ban kora", "lin", "ban kora", "lone ?"])
    for weights, row in zip(first, expected, strict=True):
        assert set(weights) == {made.vocabulary[n] for n in np.flatnonzero(row > 0)}
        for term, weight in weights.items():
            assert weight == pytest.approx(row[made.vocabulary.index(term)], abs=2e-6)
    monkeypatch.setattr(made, "encode_batch", None)  # would fail if it were called
    assert made.encode_queries(asked) == first
    with pytest.raises(TypeError):
        made.encode_queries(["a new one"])


def splade(opened, **settings):
    return splade_retriever(**settings).bind(Collection("c1", open_index=opened))


def indexed(root, units):
    def open_or_build(engine):
        path = root / f"{engine.name}-{engine.fingerprint}"
        if not path.exists():
            engine.build(units, path, corpus_fingerprint="c1")
        return engine.open(path, corpus_fingerprint="c1")

    return open_or_build


@pytest.mark.parametrize("scale", [100, None], ids=["hundredths", "exact"])
def test_the_ranking_is_that_of_brute_force(scale, checkpoint, directly, tmp_path):
    """Brute force: dense vectors, multiplied and added term by term, and every document sorted."""
    units = corpus()
    made = encoder(checkpoint)
    ours = splade(
        indexed(tmp_path, units),
        model=str(checkpoint),
        scale=scale,
        dtype="float32",
        max_length=40,
        depth=DEPTH,
        batch_tokens=200,
    )
    matrix = np.zeros((len(units), len(made.vocabulary)), np.float32)
    for number, term in enumerate(made.vocabulary):
        documents, impacts = ours.index.postings(term)
        matrix[documents, number] = impacts
    expected = directly
    # Between batches of other shapes, float32 differs at its seventh digit, and rarely rounds so.
    assert np.abs(matrix - np.rint(expected * 100) if scale else matrix - expected).mean() < 1e-3
    matrix = matrix.astype(np.int64) if scale else matrix

    def search(frame):
        (asked,) = dense(made.encode([frame["query"].iloc[0]]), len(made.vocabulary))
        if scale:
            asked = np.rint(asked.astype(float) * scale).astype(np.int64)
        sums = np.zeros(len(matrix), matrix.dtype)
        for term in np.flatnonzero(asked):
            sums += matrix[:, term] * asked[term]
        best = np.argsort(-sums, kind="stable")[:DEPTH]
        found = {"docno": [units[n].unit_id for n in best], "score": sums[best].astype(float)}
        return pd.DataFrame({"qid": frame["qid"].iloc[0], **found})

    brute = pt.apply.by_query(search, add_ranks=True)
    random = np.random.default_rng(9)
    for number in range(20):
        frame = pd.DataFrame({"qid": [f"q{number}"], "query": [text(random, 12)]})
        found, theirs = ours(frame), brute(frame)
        assert len(found) == DEPTH
        assert found["docno"].tolist() == theirs["docno"].tolist()
        assert found["score"].tolist() == theirs["score"].tolist()


def sparta_by_hand(folder, texts, terms=None):
    """float32 [texts, vocabulary]: equations 4 to 6 of SPARTA, one text at a time, without bias and
    without the embeddings of special tokens, as in BEIR."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    embeddings = model.embeddings.word_embeddings.weight.detach().clone()
    embeddings[tokenizer.all_special_ids] = 0
    rows = []
    for each in texts:
        read = tokenizer(each, truncation=True, max_length=40, return_tensors="pt")
        with torch.no_grad():
            matches = embeddings @ model(**read).last_hidden_state[0].T
        row = torch.log(torch.relu(matches.max(dim=1).values) + 1).numpy()
        if terms is not None:
            row[np.argsort(-row, kind="stable")[terms:]] = 0
        rows.append(row)
    return np.array(rows)


@pytest.mark.parametrize("terms", [None, 12])
def test_sparta_ranks_by_the_sum_over_the_tokens_of_the_query(terms, tmp_path):
    folder = write_splade(tmp_path / "sparta", kind="encoder", seed=3)
    units = corpus(60)
    settings = {"dtype": "float32", "max_length": 40, "batch_tokens": 200}
    settings |= {} if terms is None else {"terms": terms}
    made = Sparta(str(folder), **settings)
    expected = sparta_by_hand(folder, [unit.contents for unit in units], terms)
    arrays = made.encode([unit.contents for unit in units])
    np.testing.assert_allclose(dense(arrays, len(made.vocabulary)), expected, atol=2e-6)
    assert 0 < (expected > 0).mean() < 0.9

    stage = LearnedRetriever(ImpactEngine(made, scale=None), depth=DEPTH)
    bound = stage.bind(Collection("c1", open_index=indexed(tmp_path, units)))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    # A repeated token counts twice; unknown words and special tokens count nothing.
    query = f"{WORDS[0]} {WORDS[7]} {WORDS[0]} xyzzy [MASK]"
    tokens = tokenizer(f"{WORDS[0]} {WORDS[7]} {WORDS[0]}", add_special_tokens=False)["input_ids"]
    scores = expected[:, tokens].sum(axis=1)
    found = bound(pd.DataFrame({"qid": ["q"], "query": [query]}))
    by_id = dict(zip((unit.unit_id for unit in units), scores, strict=True))
    assert set(found["docno"]) == {name for name, score in by_id.items() if score > 0}
    np.testing.assert_allclose(found["score"], [by_id[d] for d in found["docno"]], rtol=1e-5)
    assert found["score"].is_monotonic_decreasing


def test_sparta_refuses_a_checkpoint_with_a_head(checkpoint):
    refused("is not an encoder without a head", lambda: Sparta(str(checkpoint)).fingerprint)
    refused("terms", lambda: Sparta(str(checkpoint), terms=0))
    whole, cut = (Sparta(str(checkpoint), terms=n) for n in (2000, 10))
    assert whole.weighting != cut.weighting


def test_a_query_model_of_its_own_encodes_the_queries(checkpoint, tmp_path):
    other = write_splade(tmp_path / "query", seed=5)
    settings = {"dtype": "float32", "max_length": 40, "scale": None}
    opened = indexed(tmp_path, corpus(30))
    two = splade(opened, model=str(checkpoint), query_model=str(other), **settings)
    frame = pd.DataFrame({"qid": ["q1"], "query": ["ban kora lin"]})
    given = frame.assign(query_toks=[encoder(other).encode_queries(["ban kora lin"])[0]])
    assert two(frame)["docno"].tolist() == two(given)["docno"].tolist()
    one = splade(opened, model=str(checkpoint), **settings)
    assert one(frame)["score"].tolist() != two(frame)["score"].tolist()
    stranger = write_splade(tmp_path / "stranger", words=WORDS[:50])
    with pytest.raises(InputError, match="another vocabulary"):
        splade(opened, model=str(checkpoint), query_model=str(stranger), **settings)


def test_models_that_cannot_serve_are_told_in_a_line(checkpoint, tmp_path, monkeypatch):
    opened = indexed(tmp_path, corpus(3))
    refused("there is no folder", lambda: splade(opened, model=str(tmp_path / "nowhere")))
    transformers.T5Config(d_model=8, num_layers=1).save_pretrained(tmp_path / "t5")
    with pytest.raises(InputError, match=r"gives terms no weights.*a masked language model"):
        splade(opened, model=str(tmp_path / "t5"))
    model = transformers.AutoModelForMaskedLM.from_pretrained(checkpoint)
    model.bert.save_pretrained(tmp_path / "headless")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "headless" / name).write_bytes((checkpoint / name).read_bytes())
    with pytest.raises(InputError, match=r"gives terms no weights .*bert: BertModel"):
        splade(opened, model=str(tmp_path / "headless"), max_length=POSITIONS)
    with pytest.raises(InputError, match=f"max_length=512.*at most {POSITIONS}"):
        splade(opened, model=str(checkpoint), max_length=512)


TERMS = [f"term{n}" for n in range(60)]


def weights(documents, seed=1):
    """A sparse matrix of weights, most of them below 2.55 and some above; frequent and rare terms,
    and a few documents without any."""
    random = np.random.default_rng(seed)
    chance = np.linspace(0.9, 0.002, len(TERMS))
    held = random.random((documents, len(TERMS))) < chance
    held[random.integers(0, documents, max(documents // 50, 1))] = False
    return np.where(held, random.gamma(1.2, 0.6, held.shape), 0).astype(np.float32)


def blocks(matrix, size=300):
    made = []
    for first in range(0, len(matrix), size):
        rows = matrix[first : first + size]
        values = np.empty(np.count_nonzero(rows), SPARSE)
        values["term"], values["weight"] = np.nonzero(rows)[1], rows[np.nonzero(rows)]
        ends = np.cumsum(np.count_nonzero(rows, axis=1))
        names = [f"d{n}" for n in range(first, first + len(rows))]
        made.append(Block(names, values, np.concatenate([[0], ends])))
    return made


def build(matrix, path, **others):
    return ImpactIndex.build(blocks(matrix), path, vocabulary=TERMS, **others)


def drawn_query(random, whole):
    chosen = random.choice(len(TERMS), random.integers(1, 40), replace=False)
    drawn = random.gamma(1.2, 0.6, len(chosen)).astype(np.float32)
    values = np.rint(drawn * 100) if whole else drawn
    return {TERMS[n]: float(value) for n, value in zip(chosen.tolist(), values, strict=True)}


def brute_force(impacts, asked, depth=DEPTH):
    """Sums over columns, in the type of `impacts`, term after term in the order of their numbers;
    then a stable sort of every document."""
    sums = np.zeros(len(impacts), impacts.dtype)
    for number in sorted(TERMS.index(term) for term in asked):
        sums += impacts[:, number] * impacts.dtype.type(asked[TERMS[number]])
    order = np.argsort(-sums, kind="stable")[:depth]
    order = order[sums[order] > 0]
    return order.tolist(), sums[order].tolist()


@pytest.mark.parametrize("documents", [1, 40, 2500, 40_000])
@pytest.mark.parametrize("scale", [100, None, 1000], ids=["hundredths", "exact", "thousandths"])
def test_the_best_are_those_of_brute_force(documents, scale, tmp_path):
    matrix = weights(documents)
    index = build(matrix, tmp_path / "index", scale=scale)
    impacts = matrix if scale is None else np.rint(matrix.astype(float) * scale).astype(np.int64)
    random = np.random.default_rng(3)
    for _ in range(20):
        asked = drawn_query(random, whole=scale is not None)
        found, scores = index.search(asked, DEPTH)
        assert (found.tolist(), scores.tolist()) == brute_force(impacts, asked)


def test_postings_hold_rounded_weights_and_drop_those_that_round_to_nothing(tmp_path):
    matrix = np.zeros((4, len(TERMS)), np.float32)
    matrix[:, 7] = [0.004, 0.0051, 2.549, 3.141]
    index = build(matrix, tmp_path / "index")
    documents, impacts = index.postings("term7")
    assert (documents.tolist(), impacts.tolist()) == ([1, 2, 3], [1.0, 255.0, 314.0])
    assert index.document_frequency("term7") == 3
    assert index.document_frequency("unheard of") == 0
    assert len(index.postings("unheard of")[0]) == 0


def test_a_build_in_many_passes_gives_the_same_bytes(tmp_path, monkeypatch):
    matrix = weights(700)
    build(matrix, tmp_path / "one", memory_mb=16)
    monkeypatch.setattr("soundingline.pipelines.learned.splade.MB", 1000)
    build(matrix, tmp_path / "many", memory_mb=1)
    for path in sorted((tmp_path / "one").glob("[!.]*")):
        assert path.read_bytes() == (tmp_path / "many" / path.name).read_bytes()


def documents_of(matrix):
    """The rows of a matrix as PyTerrier's indexers take them; some without any term."""
    return [
        {"docno": f"d{n}", "toks": {TERMS[t]: float(row[t]) for t in np.flatnonzero(row)}}
        for n, row in enumerate(matrix)
    ]


@pytest.mark.parametrize("form", [list, iter, pd.DataFrame])
@pytest.mark.parametrize("scale", [100, None], ids=["hundredths", "exact"])
def test_documents_with_weights_are_indexed_whatever_they_come_in(
    form, scale, tmp_path, monkeypatch
):
    monkeypatch.setattr("soundingline.pipelines.learned.splade._AT_ONCE", 7)
    matrix = weights(300)
    index = ImpactIndex.build(form(documents_of(matrix)), tmp_path / "index", scale=scale)
    assert len(index) == 300
    assert index.docnos.take(np.arange(300)).tolist() == [f"d{n}" for n in range(300)]
    impacts = matrix if scale is None else np.rint(matrix.astype(float) * scale)
    for number, term in enumerate(TERMS):
        held = np.flatnonzero(impacts[:, number])
        documents, found = index.postings(term)
        assert documents.tolist() == held.tolist()
        assert found.tolist() == impacts[held, number].tolist()
    assert [path.name for path in tmp_path.iterdir()] == ["index"]
    assert not (tmp_path / "index" / "work").exists()


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        ([], "there is no document to index"),
        (
            [{"docno": "d1", "toks": {}}, {"docno": "d1", "toks": {}}],
            "document 2 has the docno 'd1'",
        ),
        ([{"docno": "", "toks": {}}], "document 1 has the docno ''"),
        ([{"docno": 1.5, "toks": {}}], "document 1 has the docno 1.5"),
        ([{"docno": "d1", "text": "mill"}], "valid: a mapping with docno, and toks"),
        (
            pd.DataFrame({"docno": ["d1"], "text": ["mill"]}),
            "valid: a mapping with docno, and toks",
        ),
        ([{"docno": "d1", "toks": ["mill"]}], "valid: a mapping with docno, and toks"),
        ([{"docno": "d1", "toks": {"mill": -1.0}}], "weight -1.0 of term 'mill'"),
    ],
)
def test_documents_that_are_not_weighted_are_refused_and_leave_nothing(
    documents, message, tmp_path
):
    refused(message, lambda: ImpactIndex.build(documents, tmp_path / "index"))
    assert list(tmp_path.iterdir()) == []


def test_an_impact_index_is_an_artifact(tmp_path):
    index = build(weights(50), tmp_path / "index", corpus_fingerprint="c")
    assert ImpactIndex.load(index.path) == index == ImpactIndex(index.path)
    kind = ("sparse_index", "soundingline_impacts")
    assert pt.inspect.artifact_type_format(index) == kind
    opened = pt.Artifact.load(str(index.path), corpus_fingerprint="c")
    assert isinstance(opened, ImpactIndex) and opened == index
    refused("another corpus", lambda: pt.Artifact.load(str(index.path), corpus_fingerprint="o"))
    metadata = {}
    package = Path(index.build_package(verbose=False, metadata_out=metadata))
    assert (metadata["type"], metadata["format"]) == kind
    with LZ4FrameFile(package) as stream, tarfile.open(fileobj=stream) as files:
        files.extractall(tmp_path / "moved", filter="data")
    moved = pt.Artifact.load(str(tmp_path / "moved"))
    assert moved.search({"term3": 2.0})[1].tolist() == index.search({"term3": 2.0})[1].tolist()


def test_terms_and_weights_without_meaning_find_nothing_or_are_refused(tmp_path):
    index = build(weights(50), tmp_path / "index")
    for asked in ({}, {"unheard of": 3.0}, {"term1": 0.0}):
        assert len(index.search(asked)[0]) == 0
    for weight in (-1.0, float("nan"), float("inf")):
        refused("of term 'term1'", index.search, {"term1": weight})
    for scale in (0, -1, float("inf"), 10**7, "100"):
        with pytest.raises(InputError, match="scale="):
            build(weights(5), tmp_path / "other", scale=scale)
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


class Table:
    """An encoder of known queries; counts its calls."""

    def __init__(self, known):
        self.known, self.calls = known, 0

    def encode_queries(self, texts):
        self.calls += 1
        return [self.known[text] for text in texts]


def test_a_frame_keeps_its_columns_and_ranks_each_query(tmp_path):
    matrix = weights(300)
    index = build(matrix, tmp_path / "index")
    encoder = Table({"first": {"term3": 1.234, "term9": 0.5}, "second": {"nothing": 1.0}})
    frame = pd.DataFrame(
        [["q1", "first", "a"], ["q2", "second", "b"], ["q3", "first", "c"]],
        columns=["qid", "query", "note"],
    )
    out = LearnedRetriever(ImpactEngine(encoder), index=index, depth=7)(frame)
    assert list(out.columns) == ["qid", "query", "note", "docno", "score", "rank"]
    assert out.groupby("qid").size().to_dict() == {"q1": 7, "q3": 7}
    assert out["rank"].tolist() == [*range(7), *range(7)]
    numbers, scores = brute_force(
        np.rint(matrix.astype(float) * 100).astype(np.int64), {"term3": 123, "term9": 50}, 7
    )
    first = out[out["qid"] == "q1"]
    assert first["docno"].tolist() == [f"d{n}" for n in numbers]
    assert first["score"].tolist() == scores
    assert encoder.calls == 1


def test_given_weights_are_taken_as_they_are_and_need_no_encoder(tmp_path):
    index = build(weights(300), tmp_path / "index")
    given = {"term3": 1.25, "term9": 0.5}
    frame = pd.DataFrame({"qid": ["q1"], "query": ["ignored"], "query_toks": [given]})
    out = index.retriever(depth=5)(frame)
    numbers, scores = index.search(given, 5)
    assert out["docno"].tolist() == [f"d{n}" for n in numbers]
    assert out["score"].tolist() == scores.tolist()


def test_bad_frames_are_refused(tmp_path):
    retriever = build(weights(50), tmp_path / "index").retriever()
    with pytest.raises(pt.validate.InputValidationError, match="query_toks"):
        retriever(pd.DataFrame({"qid": ["q1"], "query": ["text"]}))
    with pytest.raises(InputError, match="a dict of index terms to weights"):
        retriever(pd.DataFrame({"qid": ["q1"], "query_toks": ["term1"]}))
    with pytest.raises(Exception, match="query"):
        retriever(pd.DataFrame({"qid": ["q1"], "docno": ["d1"]}))
