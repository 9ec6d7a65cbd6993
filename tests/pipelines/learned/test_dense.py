"""Dense retrieval: vectors against transformers run directly and sentence-transformers, in float32;
exact search in an index that is complete or absent; a trained encoder on real texts."""

import hashlib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from omegaconf import OmegaConf
from support import checkpoints
from support.assertions import refused
from support.needs import cases

from soundingline.pipelines.learned.dense import Dense
from soundingline.pipelines.stage import Collection
from soundingline.toolkit.benchmarks.beir import BeirBenchmark
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

CONF = Path(__file__).resolve().parents[3] / "conf"
EXACT = {"dtype": "float32", "device": "cpu"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.set_num_threads(1)
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
    assert own.read([text, "the"])[1] == [12, 4]
    assert_pooled(own.encode([text])[0], body(qwen), [*byte_ids(text, 1)[:11], 0], atol=1e-6)
    ended = Dense(
        str(llama), pooling="last", append_eos=True, max_length=12, document_prefix="p: ", **EXACT
    )
    assert ended.read([text, "the"])[1] == [12, 8]
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
    assert encoder.read(texts)[1] == [6, 8]
    found = [*encoder.encode(texts[:1]), *plain.encode(texts[1:])]
    expected = plain.encode(["river the old mill", "the old mill stands by the"])
    np.testing.assert_allclose(found, expected, atol=1e-6)


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


def test_wrong_settings_are_refused_with_what_is_valid(qwen, llama):
    refused("last, mean, cls", lambda: Dense("any", pooling="max"))
    refused("pooling: last", lambda: Dense("any", append_eos=True))
    refused("max_length=0", lambda: Dense("any", max_length=0))
    with pytest.raises(InputError, match="does not say how its vectors are pooled"):
        Dense(str(qwen), **EXACT).encode(["x"])
    with pytest.raises(InputError, match="is no adapter"):
        Dense(str(qwen), base=str(llama), pooling="last", **EXACT).encode(["x"])
    with pytest.raises(InputError, match="no such token"):
        Dense(str(qwen), append_eos=True, pooling="last", **EXACT).encode(["x"])


UNITS = [
    Unit(f"d{number}%p{number % 3}", "Mill" if number % 2 else "", f"text {number % 40} é")
    for number in range(90)
]


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


def test_wrong_queries_are_refused(qwen, built):
    retriever = opened(qwen, built).retriever()
    with pytest.raises(InputError, match="query holds nan"):
        retriever(pd.DataFrame({"qid": ["1"], "query": [float("nan")]}))
    with pytest.raises(InputError, match=r"shape \[3\].*valid: \[32\]"):
        retriever(pd.DataFrame({"qid": ["1"], "query_vec": [np.ones(3)]}))
    with pytest.raises(InputError, match=r"shape \[3\]"):
        retriever(pd.DataFrame({"qid": ["1", "2"], "query_vec": [np.ones(3), np.ones(4)]}))
    refused("numpy, torch", lambda: engine(qwen, compute="faiss"))
    refused("depth=0", lambda: opened(qwen, built).retriever(depth=0))


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
    benchmark, most = BeirBenchmark(data_root / "cacm"), cases(12_000, 24)
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
    retriever = Dense(minilm, dtype="float32", device="cpu", depth=depth)
    retriever.build(units, tmp_path / "dense", corpus_fingerprint="c")
    ranking = retriever.open(tmp_path / "dense").retriever(depth=depth)(questions)
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
