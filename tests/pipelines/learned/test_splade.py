"""SPLADE with a tiny random checkpoint, against transformers in float32; impacts against sums over
a dense matrix."""

import numpy as np
import pandas as pd
import pyterrier as pt
import pytest
from support.checkpoints import SPLADE_POSITIONS as POSITIONS
from support.checkpoints import SPLADE_WORDS as WORDS
from support.checkpoints import write_splade

from soundingline.pipelines.learned.encoding import SPARSE, Block
from soundingline.pipelines.learned.splade import ImpactIndex, Sparta, Splade
from soundingline.pipelines.stage import Collection
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError

torch = pytest.importorskip("torch", reason="pip install -e '.[learned]'")
transformers = pytest.importorskip("transformers", reason="pip install -e '.[learned]'")

torch.set_num_threads(1)


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


def test_a_long_text_is_read_to_max_length_special_tokens_included(checkpoint):
    random = np.random.default_rng(4)
    words = [str(word) for word in random.choice(WORDS, 80)]
    made = encoder(checkpoint, max_length=12)
    read, longer = " ".join(words[:10]), " ".join(words)
    assert made.read([read, longer, ""])[1] == [12, 12, 2]
    kept, cut = made.encode([read, longer])
    np.testing.assert_array_equal(kept, cut)
    (less,) = made.encode([" ".join(words[:9])])
    assert not np.array_equal(less, kept)


def test_special_tokens_in_a_text_are_text(checkpoint):
    made = encoder(checkpoint)
    masked, word = made.encode(["ban [MASK] kora", "ban mask kora"])
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint, split_special_tokens=True)
    assert made.read(["ban [MASK] kora"])[1] == [len(tokenizer("ban [MASK] kora")["input_ids"])]
    model = transformers.AutoModelForMaskedLM.from_pretrained(checkpoint).eval()
    with torch.no_grad():
        logits = model(**tokenizer("ban [MASK] kora", return_tensors="pt")).logits[0]
    expected = torch.log(1 + torch.relu(logits)).amax(0).numpy()
    np.testing.assert_allclose(dense([masked], len(made.vocabulary))[0], expected, atol=2e-6)
    assert len(masked) != len(word) or not np.array_equal(masked, word)


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
    asked = ["ban kora", "lin", "ban kora", "lone \ud800"]
    first = made.queries(asked)
    expected = direct(checkpoint, ["ban kora", "lin", "ban kora", "lone ?"])
    for weights, row in zip(first, expected, strict=True):
        assert set(weights) == {made.vocabulary[n] for n in np.flatnonzero(row > 0)}
        for term, weight in weights.items():
            assert weight == pytest.approx(row[made.vocabulary.index(term)], abs=2e-6)
    monkeypatch.setattr(made, "_run", None)  # would fail if it were called
    assert made.queries(asked) == first
    with pytest.raises(TypeError):
        made.queries(["a new one"])


def splade(opened, **settings):
    return Splade(**settings).bind(Collection("c1", open_index=opened))


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
    made = Sparta(str(folder), depth=DEPTH, **settings)
    expected = sparta_by_hand(folder, [unit.contents for unit in units], terms)
    arrays = made.encode([unit.contents for unit in units])
    np.testing.assert_allclose(dense(arrays, len(made.vocabulary)), expected, atol=2e-6)
    assert 0 < (expected > 0).mean() < 0.9

    bound = made.bind(Collection("c1", open_index=indexed(tmp_path, units)))
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
    with pytest.raises(InputError, match="no encoder without a head"):
        _ = Sparta(str(checkpoint)).fingerprint
    with pytest.raises(InputError, match="terms"):
        Sparta(str(checkpoint), terms=0)
    whole, cut = (Sparta(str(checkpoint), terms=n) for n in (2000, 10))
    assert whole.weighting != cut.weighting


def test_a_query_model_of_its_own_encodes_the_queries(checkpoint, tmp_path):
    other = write_splade(tmp_path / "query", seed=5)
    settings = {"dtype": "float32", "max_length": 40, "scale": None}
    opened = indexed(tmp_path, corpus(30))
    two = splade(opened, model=str(checkpoint), query_model=str(other), **settings)
    frame = pd.DataFrame({"qid": ["q1"], "query": ["ban kora lin"]})
    given = frame.assign(query_toks=[encoder(other).queries(["ban kora lin"])[0]])
    assert two(frame)["docno"].tolist() == two(given)["docno"].tolist()
    one = splade(opened, model=str(checkpoint), **settings)
    assert one(frame)["score"].tolist() != two(frame)["score"].tolist()
    stranger = write_splade(tmp_path / "stranger", words=WORDS[:50])
    with pytest.raises(InputError, match="another vocabulary"):
        splade(opened, model=str(checkpoint), query_model=str(stranger), **settings)


def test_models_that_cannot_serve_are_told_in_a_line(checkpoint, tmp_path, monkeypatch):
    opened = indexed(tmp_path, corpus(3))
    with pytest.raises(InputError, match="there is no folder"):
        splade(opened, model=str(tmp_path / "nowhere"))
    transformers.T5Config(d_model=8, num_layers=1).save_pretrained(tmp_path / "t5")
    with pytest.raises(InputError, match=r"gives terms no weights.*a masked language model"):
        splade(opened, model=str(tmp_path / "t5"))
    model = transformers.AutoModelForMaskedLM.from_pretrained(checkpoint)
    model.bert.save_pretrained(tmp_path / "headless")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "headless" / name).write_bytes((checkpoint / name).read_bytes())
    with pytest.raises(InputError, match=r"gives terms no weights \(BertModel\)"):
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
    return ImpactIndex.build(blocks(matrix), TERMS, path, **others)


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
    monkeypatch.setattr("soundingline.pipelines.learned.splade._MB", 1000)
    build(matrix, tmp_path / "many", memory_mb=1)
    for path in sorted((tmp_path / "one").glob("[!.]*")):
        assert path.read_bytes() == (tmp_path / "many" / path.name).read_bytes()


def test_terms_and_weights_without_meaning_find_nothing_or_are_refused(tmp_path):
    index = build(weights(50), tmp_path / "index")
    for asked in ({}, {"unheard of": 3.0}, {"term1": 0.0}):
        assert len(index.search(asked)[0]) == 0
    for weight in (-1.0, float("nan"), float("inf")):
        with pytest.raises(InputError, match="of term 'term1'"):
            index.search({"term1": weight})
    for scale in (0, -1, float("inf"), 10**7, "100"):
        with pytest.raises(InputError, match="scale="):
            build(weights(5), tmp_path / "other", scale=scale)
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


class Table:
    """An encoder of known queries; counts its calls."""

    def __init__(self, known):
        self.known, self.calls = known, 0

    def queries(self, texts):
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
    out = index.retriever(encoder, depth=7)(frame)
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
    with pytest.raises(InputError, match="no encoder for the queries"):
        retriever(pd.DataFrame({"qid": ["q1"], "query": ["text"]}))
    with pytest.raises(InputError, match="a dict of index terms to weights"):
        retriever(pd.DataFrame({"qid": ["q1"], "query_toks": ["term1"]}))
    with pytest.raises(Exception, match="query"):
        retriever(pd.DataFrame({"qid": ["q1"], "docno": ["d1"]}))
