"""ColBERT against BERT run directly: markers, masks, what is left out, projection; MaxSim against
loops over every pair of tokens."""

import json
import pickle
from collections import namedtuple
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file
from support import checkpoints
from support.assertions import refused
from support.needs import cases
from support.pairs import sides

from soundingline.pipelines import device
from soundingline.pipelines.device import TokenizedTexts
from soundingline.pipelines.learned import vectors as module
from soundingline.pipelines.learned.colbert import ColBERT, colbert_retriever
from soundingline.pipelines.learned.vectors import (
    DocumentVectors,
    MultiVectorEngine,
    NumpySearch,
    TorchSearch,
    VectorIndex,
    maxsim,
)
from soundingline.pipelines.rerank import colbert as reranking
from soundingline.pipelines.rerank.colbert import ColBERTReranker, maxsim_of_pairs
from soundingline.pipelines.rerank.reranker import Pair
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
sentence_transformers = pytest.importorskip("sentence_transformers")

EXACT = {"dtype": "float32", "device": "cpu", "storage": "float32"}
IDS = {word: number for number, word in enumerate((*checkpoints.BERT, *checkpoints.EMBEDDER_WORDS))}
UNITS = [
    Unit(
        f"d{n}",
        "Mill" if n % 2 else "",
        " ".join(checkpoints.EMBEDDER_WORDS[n % 7 : n % 7 + n % 5 + 1]),
    )
    for n in range(40)
] + [Unit("marks", "", ". , ."), Unit("nothing", "", "")]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    torch.set_num_threads(1)
    return checkpoints.save_multi_vector(tmp_path_factory.mktemp("models"))


def encoder(model, **changed):
    return ColBERT(str(model), **{**EXACT, **changed})


@pytest.fixture(scope="module")
def built(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("indexes") / "colbert"
    engine(model).build(UNITS, path, corpus_fingerprint="corpus")
    return path


def engine(model, **changed):
    return colbert_retriever(str(model), **{**EXACT, **changed}).engine


def opened(model, built):
    return engine(model).open(built, corpus_fingerprint="corpus")


def searched(index, made, texts, depth=100):
    return (made >> index.retriever(depth=depth))(frame(*texts))


def frame(*texts):
    return pd.DataFrame({"qid": [f"q{n}" for n in range(len(texts))], "query": list(texts)})


def projection(model):
    return load_file(model / "1_Dense" / "model.safetensors")["linear.weight"]


def directly(bert, linear, ids, seen, kept):
    """BERT's last layer, projected and normalised, of one text; `seen` is what attention sees."""
    bert = transformers.AutoModel.from_pretrained(bert, dtype="float32").eval()
    with torch.no_grad():
        hidden = bert(
            input_ids=torch.tensor([ids]), attention_mask=torch.tensor([seen]).long()
        ).last_hidden_state[0]
    rows = hidden.numpy()[kept] @ linear.T
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_documents_have_their_marker_and_no_punctuation(model):
    words = ["[CLS]", "[D]", "the", "old", ",", "mill", ".", "[SEP]"]
    kept = [word not in (",", ".") for word in words]
    ids = [IDS[word] for word in words]
    expected = directly(model, projection(model), ids, [True] * len(words), kept)
    # Beside a longer one, so that padding has to be left out.
    found = encoder(model).encode(["the old, mill.", "the old mill stands by the river"])[0]
    assert found.shape == (6, 16)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_queries_are_filled_with_masks_that_attention_does_not_see(model):
    words = ["[CLS]", "[Q]", "who", "built", "the", "mill", "[SEP]"]
    ids = [IDS[word] for word in words] + [IDS["[MASK]"]] * 5
    seen = [n < len(words) for n in range(12)]
    expected = directly(model, projection(model), ids, seen, [True] * 12)
    found = encoder(model).encode_queries(["who built the mill"])[0]
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_lengths_are_those_that_are_asked_for(model):
    long = "the old mill by the river " * 20
    own, short = encoder(model), encoder(model, max_length=10, query_max_length=16)
    assert own.tokenize([long, "the"]).lengths == [48, 4]
    assert short.tokenize([long, "the"]).lengths == [10, 4]
    assert len(short.encode([long])[0]) == 10
    assert len(own.encode_queries(["mill"])[0]) == 12
    assert len(short.encode_queries(["mill"])[0]) == 16


def test_a_document_of_which_nothing_is_kept_has_one_vector_of_zeros(model, monkeypatch):
    made = encoder(model)

    def nothing(features, **_):
        return {**features, "attention_mask": features["attention_mask"] * 0}

    monkeypatch.setattr(made._network[2], "forward", nothing)
    assert made.encode(["."])[0].tolist() == [[0.0] * 16]


def test_the_ranking_is_that_of_loops_over_all_tokens(model, built):
    asked = ["who built the mill", "river"]
    made = encoder(model)
    documents = made.encode([unit.contents for unit in UNITS])
    ranked = searched(opened(model, built), made, asked, len(UNITS))
    rankings = [hits for _, hits in ranked.groupby("qid", sort=False)]
    for query, hits in zip(made.encode_queries(asked), rankings, strict=True):
        exact = {
            unit.unit_id: sum(max(float(token @ row) for row in rows) for token in query)
            for unit, rows in zip(UNITS, documents, strict=True)
        }
        assert sorted(hits["docno"]) == sorted(exact)
        scores = [exact[docno] for docno in hits["docno"]]
        np.testing.assert_allclose(hits["score"], scores, atol=1e-4)
        assert (np.diff(hits["score"]) <= 0).all()
        assert hits["rank"].tolist() == list(range(len(UNITS)))


def test_scores_are_those_of_the_library(model, built):
    library = sentence_transformers.MultiVectorEncoder(str(model), device="cpu")
    texts = [unit.contents for unit in UNITS]
    theirs = library.similarity(
        library.encode_query(["who built the mill"]), library.encode_document(texts)
    )[0].tolist()
    ours = searched(opened(model, built), encoder(model), ["who built the mill"])
    scores = dict(zip(ours["docno"], ours["score"], strict=True))
    np.testing.assert_allclose([scores[unit.unit_id] for unit in UNITS], theirs, atol=1e-4)


def test_half_precision_halves_the_file_and_hardly_moves_a_score(model, built, tmp_path):
    half = engine(model, storage="float16")
    half.build(UNITS, tmp_path / "half", corpus_fingerprint="corpus")
    index = half.open(tmp_path / "half")
    whole = opened(model, built)
    assert index.documents.vectors.nbytes * 2 == whole.documents.vectors.nbytes
    ours, theirs = (searched(each, encoder(model), ["the river"]) for each in (index, whole))
    merged = ours.merge(theirs, on="docno")
    np.testing.assert_allclose(merged["score_x"], merged["score_y"], atol=5e-3)
    refused("another encoder", lambda: half.open(built))


def test_a_query_may_come_as_vectors_and_no_model_is_loaded(model, built, monkeypatch):
    index = opened(model, built)
    monkeypatch.setattr(ColBERT, "_network", property(lambda self: pytest.fail("loaded")))
    vectors = index.documents.vectors[: index.documents.offsets[1]]
    asked = pd.DataFrame({"qid": ["1"], "query_vec": [vectors], "reasoning": ["why"]})
    found = index.retriever(depth=1)(asked)
    assert found["score"].iloc[0] == pytest.approx(len(vectors), abs=1e-4)
    assert found["reasoning"].tolist() == ["why"]
    with pytest.raises(InputError, match=r"valid: \[tokens, 16\]"):
        index.retriever()(pd.DataFrame({"qid": ["1"], "query_vec": [np.ones(16)]}))


def test_a_disk_too_small_is_told_with_the_sizes_before_anything_is_encoded(
    model, tmp_path, monkeypatch
):
    usage = namedtuple("usage", "total used free")
    tokens = sum(encoder(model).tokenize([unit.contents for unit in UNITS]).lengths)
    retriever = "soundingline.pipelines.learned.retriever.encoded"
    monkeypatch.setattr(retriever, lambda *_, **__: pytest.fail("encoded"))
    # Twice the tokens x 16 dimensions x 4 bytes, and one byte less.
    disk = usage(0, 0, 2 * tokens * 16 * 4 - 1)
    monkeypatch.setattr("shutil.disk_usage", lambda path: disk)
    message = r"the vectors of 42 units, .* GB .* free.*reranker=colbert"
    refused(message, engine(model).build, UNITS, tmp_path / "i", corpus_fingerprint="c")
    # A byte that a killed build has written is not needed again.
    (tmp_path / "i.encoding").mkdir()
    (tmp_path / "i.encoding" / "block").write_bytes(b"x")
    engine(model).check_disk(UNITS, tmp_path / "i")


def test_a_model_of_another_kind_or_none_is_refused_in_one_line(tmp_path, model, monkeypatch):
    bert = checkpoints.save_bert(tmp_path / "bert")
    single = checkpoints.save_sentence_model(tmp_path / "single")
    for path in (bert, single):
        with pytest.raises(InputError, match="not a multi-vector checkpoint"):
            encoder(path).encode(["x"])
    refused("no folder", lambda: encoder(tmp_path / "none").encode(["x"]))
    refused("hf download no/model", lambda: ColBERT("no/model", **EXACT).encode(["x"]))
    refused("float16, float32", lambda: encoder(model, storage="int8"))
    refused("max_length=2", lambda: encoder(model, max_length=2))


def test_a_checkpoint_that_colbert_itself_saved_is_read_with_its_projection(tmp_path, model):
    """Stanford's format, which colbert-ir/colbertv2.0 has: BERT and `linear.weight` in one file,
    `[unused0]` and `[unused1]` as markers, settings in artifact.metadata."""
    bert = checkpoints.save_bert(tmp_path / "stanford", markers=("[unused0]", "[unused1]"))
    weights = {f"bert.{key}": value for key, value in load_file(bert / "model.safetensors").items()}
    linear = np.random.default_rng(0).standard_normal((16, 32)).astype(np.float32)
    save_file({**weights, "linear.weight": linear}, bert / "model.safetensors", {"format": "pt"})
    config = json.loads((bert / "config.json").read_text())
    (bert / "config.json").write_text(json.dumps({**config, "architectures": ["HF_ColBERT"]}))
    metadata = {"query_maxlen": 32, "doc_maxlen": 24, "mask_punctuation": True}
    (bert / "artifact.metadata").write_text(json.dumps(metadata))
    made = encoder(bert)
    assert made.tokenize(["the mill " * 30]).lengths == [24]
    assert len(made.encode_queries(["the mill"])[0]) == 32
    ids = [IDS[word] for word in ("[CLS]", "[D]", "the", "mill", ".", "[SEP]")]
    same = checkpoints.save_bert(tmp_path / "same")
    expected = directly(same, linear, ids, [True] * 6, [0, 1, 2, 3, 5])
    np.testing.assert_allclose(made.encode(["the mill."])[0], expected, atol=1e-5)


def collection(rng, lengths, kind="float32"):
    vectors = rng.standard_normal((sum(lengths), 8)).astype(kind)
    return DocumentVectors(vectors, np.cumsum([0, *lengths]))


def naive(query, documents):
    scores = []
    for first, last in zip(documents.offsets[:-1], documents.offsets[1:], strict=True):
        rows = documents.vectors[first:last].astype(np.float64)
        scores.append(sum(max(float(token @ row) for row in rows) for token in query))
    return scores


@settings(max_examples=cases(40))
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    queries=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    rows=st.integers(1, 200),
    kind=st.sampled_from(["float32", "float16"]),
    seed=st.integers(0, 99),
)
def test_scores_are_those_of_loops_whatever_the_blocks(lengths, queries, rows, kind, seed):
    rng = np.random.default_rng(seed)
    documents = collection(rng, lengths, kind)
    asked = [rng.standard_normal((count, 8)).astype(np.float32) for count in queries]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_ROWS", rows)
        found = maxsim(asked, documents)
        numbers = rng.permutation(len(lengths))[: 1 + len(lengths) // 2]
        given_numbers = maxsim(asked, documents, numbers)
    np.testing.assert_allclose(found, [naive(query, documents) for query in asked], atol=1e-4)
    assert (given_numbers == found[:, numbers]).all()


@pytest.mark.parametrize("kind", ["float32", "float16"])
@pytest.mark.parametrize("size", [100, 1 << 24])
def test_both_searches_give_the_top_100_of_loops(kind, size, monkeypatch):
    monkeypatch.setattr(module, "_BLOCK_ROWS", size)
    monkeypatch.setattr(module, "_ROWS", size)
    rng = np.random.default_rng(1)
    documents = collection(rng, rng.integers(1, 20, 400).tolist(), kind)
    asked = [rng.standard_normal((count, 8)).astype(np.float32) for count in (4, 1, 7)]
    searches = NumpySearch(documents), TorchSearch(documents, torch.device("cpu"))
    for search in searches:
        for query, found in zip(asked, search(asked, 100), strict=True):
            exact = np.array(naive(query, documents))
            order = np.argsort(-exact, kind="stable")[:100]
            assert found.numbers.tolist() == order.tolist()
            np.testing.assert_allclose(found.scores, exact[order], atol=1e-4)


@pytest.mark.parametrize(
    ("device", "gpus", "kind"),
    [
        ("cpu", 1, NumpySearch),
        (None, 0, NumpySearch),
        (None, 1, TorchSearch),
        ("cuda:1", 2, TorchSearch),
    ],
)
def test_vectors_are_searched_on_the_device_of_their_encoder(
    model, built, monkeypatch, device, gpus, kind
):
    """GPUs that are not there: what is copied to one stays."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 30, 1 << 30))
    monkeypatch.setattr(torch.Tensor, "to", lambda self, place: places.append(place) or self)
    places = []
    encoder = ColBERT(str(model), **{**EXACT, "device": device})
    index = MultiVectorEngine(encoder).open(built)
    assert type(index._search) is kind
    assert {*places} == (set() if kind is NumpySearch else {torch.device(device or "cuda")})
    assert type(VectorIndex(built)._search) is NumpySearch  # without an encoder


@pytest.mark.parametrize("free", [1 << 30, 20_000])
@pytest.mark.parametrize("kind", ["float32", "float16"])
@pytest.mark.parametrize("scale", [1, 300])
def test_a_device_that_holds_not_all_vectors_finds_the_same(free, kind, scale, monkeypatch):
    """Also with vectors whose products do not fit into half precision."""
    monkeypatch.setattr(module, "free_bytes", lambda device: free)
    rng = np.random.default_rng(7)
    documents = collection(rng, rng.integers(1, 20, 300).tolist(), kind)
    documents = DocumentVectors(documents.vectors * np.array(scale, kind), documents.offsets)
    asked = [scale * rng.standard_normal((count, 8)).astype(np.float32) for count in (4, 1, 7)]
    search = TorchSearch(documents, torch.device("cpu"))
    assert bool(search._held) == (free == 1 << 30) and len(search._blocks) > (free == 20_000)
    sizes = [int(search._lengths[block].max()) * len(block) for block in search._blocks]
    assert max(sizes) <= max(19, free // 16 // (8 * documents.vectors.itemsize))
    for ours, theirs in zip(search(asked, 20), NumpySearch(documents)(asked, 20), strict=True):
        assert ours.numbers.tolist() == theirs.numbers.tolist()
        assert ours.scores.tolist() == theirs.scores.tolist()


def test_candidates_in_half_precision_hold_all_of_the_best():
    """Of 2,000 scores out of 50,000, hundreds differ by less than half precision tells apart. Each
    is a sum of eight products, whose roundings add up."""
    rng = np.random.default_rng(16)
    vectors = rng.standard_normal((50_000, 16))
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float16)
    documents = DocumentVectors(vectors, np.arange(50_001))
    query = rng.standard_normal((8, 16)).astype(np.float32)
    (ours,) = TorchSearch(documents, torch.device("cpu"))([query], 2000)
    (theirs,) = NumpySearch(documents)([query], 2000)
    assert ours.numbers.tolist() == theirs.numbers.tolist()
    assert (np.diff(theirs.scores) > -(2**-11)).sum() > 500


def test_equal_scores_stand_in_the_order_of_the_documents():
    documents = DocumentVectors(np.ones((60, 4), np.float32), np.arange(0, 61, 2))
    for search in (NumpySearch(documents), TorchSearch(documents, torch.device("cpu"))):
        found = search([np.ones((3, 4), np.float32)], 5)[0]
        assert found.numbers.tolist() == [0, 1, 2, 3, 4]
        assert found.scores.tolist() == [12.0] * 5


@pytest.mark.parametrize("scores", [1, 1 << 26])
def test_a_vector_is_a_text_of_one_token(scores, monkeypatch):
    monkeypatch.setattr(module, "_SCORES", scores)
    rng = np.random.default_rng(3)
    vectors = rng.standard_normal((50, 8)).astype(np.float32)
    queries = rng.standard_normal((4, 8)).astype(np.float32)
    exact = queries.astype(np.float64) @ vectors.T.astype(np.float64)
    one_a_text = DocumentVectors(vectors)
    as_tokens = DocumentVectors(vectors, np.arange(51))
    for search in (NumpySearch, lambda documents: TorchSearch(documents, torch.device("cpu"))):
        rankings = search(one_a_text)(list(queries), 10)
        by_tokens = search(as_tokens)([query[None] for query in queries], 10)
        for query, ranking, other in zip(exact, rankings, by_tokens, strict=True):
            order = np.argsort(-query, kind="stable")[:10].tolist()
            assert ranking.numbers.tolist() == other.numbers.tolist() == order
            np.testing.assert_allclose(ranking.scores, query[order], atol=1e-5)
            np.testing.assert_allclose(other.scores, query[order], atol=1e-5)


@pytest.mark.parametrize("queries", [1, 3, 17])
@pytest.mark.parametrize("kind", ["float32", "float16"])
@pytest.mark.parametrize("rows", [64, 1 << 13])
def test_one_vector_a_document_is_searched_by_dot_products(queries, kind, rows, monkeypatch):
    monkeypatch.setattr(module, "_ROWS", rows)  # several threads, or one
    rng = np.random.default_rng(queries)
    vectors = rng.standard_normal((301, 33)).astype(kind)
    vectors.flags.writeable = False  # as those that are mapped from disk
    asked = [rng.standard_normal(33).astype(np.float32) for _ in range(queries)]
    exact = np.array(asked, np.float64) @ vectors.astype(np.float64).T
    rankings = NumpySearch(DocumentVectors(vectors))(asked, 20)
    for row, ranking in zip(exact, rankings, strict=True):
        order = np.argsort(-row, kind="stable")[:20]
        assert ranking.numbers.tolist() == order.tolist()
        np.testing.assert_allclose(ranking.scores, row[order], rtol=1e-5)


@pytest.mark.parametrize("lengths", [None, (1, 9), (100, 190)], ids=["dense", "short", "long"])
def test_equal_documents_have_equal_scores_in_the_order_of_the_corpus(lengths):
    """Whatever the number of queries and of documents that are searched together: each of 40
    documents is in the corpus nine times, and a product of matrices rounds by their shapes."""
    rng = np.random.default_rng(5)
    sizes = np.ones(40, int) if lengths is None else rng.integers(*lengths, 40)
    texts = [rng.standard_normal((size, 48)).astype(np.float32) for size in sizes]
    numbers = rng.integers(0, 40, 360)
    vectors = np.concatenate([texts[number] for number in numbers])
    offsets = None if lengths is None else np.concatenate([[0], np.cumsum(sizes[numbers])])
    documents = DocumentVectors(vectors, offsets)
    shape = (48,) if lengths is None else (5, 48)
    queries = [rng.standard_normal(shape).astype(np.float32) for _ in range(19)]
    alone = [NumpySearch(documents)([query], 360)[0] for query in queries]
    for ranking in alone:
        of_text = dict(zip(numbers[ranking.numbers], ranking.scores.tolist(), strict=True))
        assert len({*of_text.values()}) == 40
        order = np.lexsort((np.arange(360), [-of_text[number] for number in numbers]))
        assert ranking.numbers.tolist() == order.tolist()
    for search in (NumpySearch(documents), TorchSearch(documents, torch.device("cpu"))):
        for count in (1, 2, 16, 17, 19):
            for ranking, whole in zip(search(queries[:count], 25), alone, strict=False):
                assert ranking.numbers.tolist() == whole.numbers[:25].tolist()
                assert ranking.scores.tolist() == whole.scores[:25].tolist()


CPU = {"dtype": "float32", "device": "cpu"}
TEXTS = ["the old mill.", "", "by the river " * 9, "who built the bridge", "town ,", "x?"]
QUERIES = ["who built the mill", "river"]
PAIRS = [Pair(query, text) for query in QUERIES for text in TEXTS]


def stage_of(model, **changed):
    return ColBERTReranker(str(model), **{**CPU, **changed})


def test_a_text_of_several_queries_is_encoded_once_and_cut_ones_are_counted(model):
    scorer = stage_of(model, max_length=16)
    scorer.score(*sides(PAIRS))
    assert [scorer.counts[each] for each in ("pairs", "encoded", "truncated")] == [12, 6, 1]


def test_queries_and_texts_of_a_request_are_tokenized_by_a_call_each(model, monkeypatch):
    scorer, calls = stage_of(model), []
    scorer.score(*sides(PAIRS))  # which measures the prompts once
    tokenize = transformers.PreTrainedTokenizerBase.__call__

    def counted(self, texts, *args, **settings):
        calls.append(len(texts))
        return tokenize(self, texts, *args, **settings)

    monkeypatch.setattr(transformers.PreTrainedTokenizerBase, "__call__", counted)
    scorer.score(*sides(PAIRS))
    assert calls == [len(QUERIES), len(TEXTS)]


@pytest.fixture
def on_gpu(monkeypatch):
    """Let a scorer, whose model is loaded, compute as on a GPU, whose memory is that of the CPU."""

    def move(scorer):
        for each in (device, reranking):
            monkeypatch.setattr(each, "moved", lambda tensor, place: tensor)
        monkeypatch.setattr(reranking, "maxsim", lambda *_: pytest.fail("scored on the CPU"))
        scorer.encoder.placement.device = SimpleNamespace(type="cuda")

    return move


@pytest.mark.parametrize("batch_tokens", [1, 60, None])
@pytest.mark.parametrize(("dtype", "error"), [("float32", 2e-5), ("bfloat16", 2e-2)])
def test_a_gpu_scores_texts_where_it_encodes_them(model, on_gpu, dtype, error, batch_tokens):
    """Queries of several lengths, of which each scores some of the texts."""
    pairs = [*PAIRS[1:], Pair("the mill by the river of the town", TEXTS[2]), PAIRS[3]]
    scorer = stage_of(model, dtype=dtype, batch_tokens=batch_tokens)
    scorer.encoder._network[0].query_expansion = None  # a query has as many vectors as tokens
    assert len({len(rows) for rows in scorer.encoder.encode_queries(QUERIES)}) == 2
    expected = scorer.score(*sides(pairs))
    on_gpu(scorer)
    assert scorer.score(*sides(pairs)) == pytest.approx(expected, abs=error)


def test_pairs_of_padded_vectors_have_the_scores_of_loops():
    """Two texts of 4 and of 2 vectors of which 3 and none are kept; queries of 2 and 3."""
    chance = np.random.default_rng(8)
    queries = chance.standard_normal((3, 3, 8)).astype(np.float16)
    queries[0, 2] = 0
    documents = chance.standard_normal((3, 4, 8)).astype(np.float16)
    kept = np.array([[True, False, True, True], [False] * 4, [True, True, False, False]])
    found = maxsim_of_pairs(*map(torch.from_numpy, (queries, documents, kept)))
    assert found.dtype == torch.float32 and found[1] == 0
    for number, count in ((0, 2), (2, 3)):
        rows = documents[number][kept[number]].astype(np.float64)
        products = queries[number, :count].astype(np.float64) @ rows.T
        assert found[number].item() == pytest.approx(products.max(1).sum(), abs=1e-2)


def drawn(documents, dimensions=16, seed=3):
    """Token vectors of generated passages: each token is a noisy copy of one of 500 directions, and
    each passage draws from 30 of them. Also a query for each of the first ten passages."""
    chance = np.random.default_rng(seed)
    unit = lambda rows: rows / np.linalg.norm(rows, axis=-1, keepdims=True)  # noqa: E731
    kinds = unit(chance.standard_normal((500, dimensions)))
    arrays = []
    for size in chance.integers(30, 60, documents):
        kind = kinds[chance.choice(chance.choice(500, 30), size)]
        noise = unit(chance.standard_normal(kind.shape))
        arrays.append(unit(kind + 0.3 * noise).astype(np.float32))
    queries = [
        unit(rows[:8] + 0.3 * unit(chance.standard_normal((8, dimensions)))).astype(np.float32)
        for rows in arrays[:10]
    ]
    return arrays, queries


class Drawn(ColBERT):
    """ColBERT whose vectors are drawn: the text of a unit is its number."""

    arrays, _ = drawn(600)
    encoded = 0

    def tokenize(self, texts, role="document"):
        return TokenizedTexts({"texts": texts}, [1] * len(texts))

    def encode_tokens(self, tokens, role="document"):
        texts = tokens.features["texts"]
        Drawn.encoded += len(texts)
        return [self.arrays[int(text or 0)] for text in texts]


def drawn_engine(model, **settings):
    return MultiVectorEngine(Drawn(str(model), **EXACT), compression="ivf_pq", **settings)


NUMBERED = [Unit(f"d{n}", "", str(n)) for n in range(600)]


@pytest.fixture(scope="module")
def compressed(model, tmp_path_factory):
    # Its threads would wait for each other on a machine with other work.
    pytest.importorskip("faiss", reason="the extra faiss is not installed").omp_set_num_threads(1)
    path = tmp_path_factory.mktemp("compressed") / "colbert"
    retriever = drawn_engine(model)
    retriever.build(NUMBERED, path, corpus_fingerprint="corpus")
    return path


def test_a_compressed_index_finds_what_exact_search_finds(model, compressed):
    ends = np.cumsum([0, *map(len, Drawn.arrays)], dtype=np.int64)
    exact = NumpySearch(DocumentVectors(np.concatenate(Drawn.arrays), ends))
    queries, shared, scored = drawn(600)[1], [], []
    retriever = drawn_engine(model)
    index = retriever.open(compressed, corpus_fingerprint="corpus")
    for number, (query, best) in enumerate(zip(queries, exact(queries, 100), strict=True)):
        ((found, scores),) = index.rank([query], None, 100)
        names = list(found)
        assert names[0] == f"d{number}" and len(names) == 100
        assert (np.diff(scores) <= 0).all()
        shared.append(len({*names} & {f"d{n}" for n in best.numbers}) / 100)
        numbers = np.array([int(name[1:]) for name in names], np.int32)
        (given,) = index.score([query], [numbers], None)
        scored.append(np.abs(given - scores).max())
    assert np.mean(shared) >= 0.8
    assert max(scored) == 0
    # 4 bytes of codes and 2 of the list, where 16 float32 take 64.
    rows = sum(map(len, Drawn.arrays))
    assert sum((compressed / name).stat().st_size for name in ("codes.npy", "lists.npy")) < 7 * rows


def test_more_documents_than_are_rescored_are_first_ordered_by_their_centroids(
    model, compressed, monkeypatch
):
    retriever = drawn_engine(model, probes=1000)
    index = retriever.open(compressed)
    queries = drawn(600)[1]
    every = index._search(queries, 10)
    monkeypatch.setattr(module, "_LEAST", 40)
    few = index._search(queries, 10)
    assert [best.numbers[0] for best in few] == list(range(10))
    shared = [len({*a.numbers} & {*b.numbers}) for a, b in zip(every, few, strict=True)]
    assert np.mean(shared) >= 7


def test_postings_name_each_document_of_a_centroid_once(compressed):
    lists, bounds = np.load(compressed / "lists.npy"), np.load(compressed / "bounds.npy")
    postings, offsets = np.load(compressed / "postings.npy"), np.load(compressed / "offsets.npy")
    documents = np.repeat(np.arange(600), np.diff(offsets))
    for number in range(len(bounds) - 1):
        own = postings[bounds[number] : bounds[number + 1]]
        assert own.tolist() == sorted(set(documents[lists == number].tolist()))


def test_a_build_killed_while_it_compresses_keeps_the_encoding_and_leaves_no_index(
    model, tmp_path, monkeypatch
):
    pytest.importorskip("faiss", reason="the extra faiss is not installed").omp_set_num_threads(1)
    retriever, path = drawn_engine(model), tmp_path / "index"
    with monkeypatch.context() as patch:
        patch.setattr(
            module, "_write_postings", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        with pytest.raises(KeyboardInterrupt):
            retriever.build(NUMBERED, path, corpus_fingerprint="corpus")
    assert [entry.name for entry in tmp_path.iterdir()] == ["index.encoding"]
    monkeypatch.setattr(Drawn, "encoded", 0)
    retriever.build(NUMBERED, path, corpus_fingerprint="corpus")
    assert Drawn.encoded < len(NUMBERED)  # a sample estimates the space
    assert len(retriever.open(path)) == 600 and not (tmp_path / "index.encoding").exists()


def test_an_index_is_searched_as_its_engine_says_also_in_another_process(model, built, compressed):
    index = opened(model, built)
    again = pickle.loads(pickle.dumps(index))
    assert type(index._search) is type(again._search) is NumpySearch and index == again
    index = drawn_engine(model, probes=7).open(compressed)
    again = pickle.loads(pickle.dumps(index))
    assert index.probes == again.probes == again._search._probes == 7


def test_compression_changes_the_index_and_probes_do_not(model, built, compressed):
    kept, other = engine(model), engine(model, compression="ivf_pq")
    assert kept.fingerprint != other.fingerprint
    assert other.fingerprint == engine(model, compression="ivf_pq", probes=2).fingerprint
    refused("with other settings", lambda: other.open(built))
    refused("with other settings", lambda: kept.open(compressed))


def test_what_compression_cannot_do_is_told_in_one_line(model, tmp_path, compressed, monkeypatch):
    refused("none, ivf_pq", lambda: engine(model, compression="int4"))
    refused("probes=0", lambda: engine(model, compression="ivf_pq", probes=0))
    with pytest.raises(InputError, match="8192 vectors or more"):
        engine(model, compression="ivf_pq").build(UNITS, tmp_path / "i", corpus_fingerprint="c")
    index = drawn_engine(model).open(compressed)
    refused(r"valid: \[tokens, 16\]", lambda: index.rank([np.ones((3, 8), np.float32)], None, 5))
    monkeypatch.setattr("soundingline.toolkit.optional.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install -e '\.\[faiss\]'"):
        _ = engine(model, compression="ivf_pq").fingerprint
