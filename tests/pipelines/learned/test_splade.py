"""SPLADE with a tiny random checkpoint, against transformers in float32 and brute force."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pyterrier as pt
import pytest
from tiny_splade import POSITIONS, WORDS, write_splade

torch = pytest.importorskip("torch", reason="pip install 'soundingline[learned]'")
transformers = pytest.importorskip("transformers", reason="pip install 'soundingline[learned]'")

from soundingline.pipelines.learned.impacts import ImpactIndex  # noqa: E402
from soundingline.pipelines.learned.splade import Splade  # noqa: E402
from soundingline.pipelines.stage import Collection  # noqa: E402
from soundingline.toolkit.data import Unit  # noqa: E402
from soundingline.toolkit.errors import InputError  # noqa: E402

torch.set_num_threads(1)
DEPTH = 100


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_splade(tmp_path_factory.mktemp("splade") / "bert")


def encoder(checkpoint, **others):
    return Splade(str(checkpoint), **{"dtype": "float32", "max_length": 40, **others})


def text(random, most=30):
    return " ".join(random.choice(WORDS, random.integers(1, most)))


def corpus(count=250):
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


def test_terms_ascend_and_have_the_tokenizers_names(checkpoint):
    made = encoder(checkpoint)
    for array in made.encode([unit.contents for unit in corpus(5)]):
        assert (np.diff(array["term"]) > 0).all() and (array["weight"] > 0).all()
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    assert [tokenizer.convert_tokens_to_ids(term) for term in made.vocabulary] == list(
        range(len(tokenizer))
    )


def test_padding_does_not_change_weights(checkpoint):
    random = np.random.default_rng(2)
    short, long = text(random, 3), text(random, 35)
    made = encoder(checkpoint)
    alone = dense(made.encode([short]), len(made.vocabulary))
    beside = dense(made.encode([long, short]), len(made.vocabulary))[1:]
    np.testing.assert_allclose(beside, alone, atol=1e-6)


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


def test_bfloat16_stays_near_float32(checkpoint):
    texts = [unit.contents for unit in corpus(20)]
    coarse = encoder(checkpoint, dtype="bfloat16")
    found = dense(coarse.encode(texts), len(coarse.vocabulary))
    expected = direct(checkpoint, texts)
    assert 1e-5 < np.abs(found - expected).max() < 0.1


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


def test_threads_at_once_load_one_model_and_agree(checkpoint, monkeypatch):
    loads = []
    load = Splade.load_from_library

    def counted(*arguments):
        loads.append(1)
        return load(*arguments)

    monkeypatch.setattr(Splade, "load_from_library", counted)
    random = np.random.default_rng(6)
    asked = [text(random, 8) for _ in range(40)]
    made = encoder(checkpoint)
    with ThreadPoolExecutor(16) as pool:
        together = list(pool.map(lambda query: made.queries([query])[0], asked))
    assert len(loads) == 1
    assert (
        together
        == [encoder(checkpoint).queries([query])[0] for query in asked[:3]] + (together[3:])
    )
    expected = direct(checkpoint, asked)
    for weights, row in zip(together, expected, strict=True):
        assert sum(weights.values()) == pytest.approx(row.sum(), abs=1e-3)


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
def test_the_ranking_is_that_of_brute_force(scale, checkpoint, tmp_path):
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
    expected = direct(checkpoint, [unit.contents for unit in units])
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


def test_the_index_holds_what_the_encoder_gives(checkpoint, tmp_path):
    units = corpus(60)
    engine = encoder(checkpoint, scale=None)
    engine.build(units, tmp_path / "index", corpus_fingerprint="c1")
    index = engine.open(tmp_path / "index", corpus_fingerprint="c1")
    expected = direct(checkpoint, [unit.contents for unit in units])
    assert index.vocabulary == engine.vocabulary
    assert len(index) == 61
    for number, term in enumerate(index.vocabulary):
        documents, impacts = index.postings(term)
        assert documents.tolist() == np.flatnonzero(expected[:, number] > 0).tolist()
        np.testing.assert_allclose(impacts, expected[documents, number], atol=2e-6)
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


def test_a_build_that_failed_goes_on_where_it_was(checkpoint, tmp_path, monkeypatch):
    engine = encoder(checkpoint)

    def no_room(*_, **__):
        raise OSError("no room")

    with monkeypatch.context() as patched:
        patched.setattr(ImpactIndex, "build", no_room)
        with pytest.raises(OSError, match="no room"):
            engine.build(corpus(20), tmp_path / "index", corpus_fingerprint="c1")
    monkeypatch.setattr(Splade, "encode_batch", None)  # would fail if it were called
    engine.build(corpus(20), tmp_path / "index", corpus_fingerprint="c1")
    assert len(engine.open(tmp_path / "index", corpus_fingerprint="c1")) == 21


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


def test_what_changes_weights_changes_the_fingerprint(checkpoint, tmp_path):
    base = {"model": str(checkpoint), "dtype": "float32", "max_length": 40}
    changed = [
        {"dtype": "bfloat16"},
        {"max_length": 41},
        {"scale": None},
        {"model": str(write_splade(tmp_path / "other", seed=1))},
    ]
    prints = {Splade(**{**base, **each}).fingerprint for each in [{}, *changed]}
    assert len(prints) == 5
    same = [{"batch_tokens": 7}, {"depth": 5}, {"device": "cpu"}]
    assert {Splade(**{**base, **each}).fingerprint for each in same} <= prints


def test_stages_of_equal_settings_are_equal_and_travel(checkpoint, tmp_path):
    opened = indexed(tmp_path, corpus(10))
    settings = {"model": str(checkpoint), "dtype": "float32", "max_length": 40}
    one, two = splade(opened, **settings), splade(opened, **settings)
    assert one == two and hash(one) == hash(two)
    assert one != splade(opened, **settings, depth=5)
    frame = pd.DataFrame({"qid": ["q1"], "query": ["ban kora lin"]})
    again = pickle.loads(pickle.dumps(one))
    assert again(frame).equals(one(frame))


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


def test_a_model_that_is_not_on_this_machine_is_told_in_a_line(tmp_path, monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(InputError, match="hf download naver/splade-v3"):
        splade(indexed(tmp_path, corpus(3)))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"scale": 0}, "scale=0"),
        ({"batch_tokens": 0}, "batch_tokens=0"),
        ({"max_length": 2}, "max_length=2"),
    ],
)
def test_settings_without_meaning_are_refused(bad, message):
    with pytest.raises(InputError, match=message):
        Splade(**bad)


def test_bad_corpora_are_refused(checkpoint, tmp_path):
    engine = encoder(checkpoint)
    with pytest.raises(InputError, match="corpus is empty"):
        engine.build([], tmp_path / "index", corpus_fingerprint="c1")
    double = [Unit("a", "", "ban"), Unit("a", "", "lin")]
    with pytest.raises(InputError, match="'a' comes twice"):
        engine.build(double, tmp_path / "index", corpus_fingerprint="c1")
    engine.build([Unit("a", "", "ban")], tmp_path / "other", corpus_fingerprint="c1")
    with pytest.raises(InputError, match="another corpus"):
        engine.open(tmp_path / "other", corpus_fingerprint="c2")
    assert not (tmp_path / "index").exists()


def test_a_frame_without_queries_gives_none(checkpoint, tmp_path):
    stage = splade(
        indexed(tmp_path, corpus(3)), model=str(checkpoint), dtype="float32", max_length=40
    )
    out = stage(pd.DataFrame({"qid": [], "query": []}))
    assert list(out.columns) == ["qid", "query", "docno", "score", "rank"] and len(out) == 0
