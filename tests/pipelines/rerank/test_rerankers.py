"""What every re-ranker must do, one row a class; those by a checkpoint against their libraries; and
cross-encoders of other architectures."""

import json
import math
import pickle
import random
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd
import pyterrier as pt
import pytest
from support import checkpoints
from support.llm_model import ScriptedPrompts, longest_first, points, reasoned
from support.pairs import sides

from soundingline.pipelines import device
from soundingline.pipelines.learned.colbert import ColBERT
from soundingline.pipelines.rerank.colbert import ColBERTReranker
from soundingline.pipelines.rerank.cross_encoder import CrossEncoder
from soundingline.pipelines.rerank.listwise import Listwise
from soundingline.pipelines.rerank.monot5 import MonoT5
from soundingline.pipelines.rerank.pointwise import Pointwise
from soundingline.pipelines.rerank.rank1 import Rank1
from soundingline.pipelines.rerank.rankllama import RankLLaMA
from soundingline.pipelines.rerank.reranker import Pair, RerankTop, Scorer
from soundingline.pipelines.stage import Collection
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("sentence_transformers")

WORDS = ("the", "old", "mill", "stands", "by", "river", "who", "built")
LENGTH = 96
SIZES = {
    **{"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "initializer_range": 0.3},
}
CPU = {"device": "cpu", "dtype": "float32"}


def text_of(length, seed=0):
    return " ".join(random.Random(f"{length} {seed}").choices(WORDS, k=length))


PAIRS = [
    Pair(text_of(1 + length % 7, 1), text_of(length)) for length in (0, 1, 3, 8, 17, 17, 40, 60)
]


def save(folder, network, tokenizer, seed=0):
    """A checkpoint with weights, biases and norms that are all random: scores are far apart."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in network.parameters():
            weight += 0.1 * torch.randn(weight.shape, generator=draw)
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_bert(folder, seed=0, words=LENGTH + 32, **changed):
    """With BERT's tokenizer, of `words` tokens a pair."""
    _, tokenizer = checkpoints.small_bert(WORDS)
    tokenizer.model_max_length = words
    config = transformers.BertConfig(
        vocab_size=len(tokenizer), **{**SIZES, "num_labels": 1, **changed}
    )
    return save(folder, transformers.BertForSequenceClassification(config), tokenizer, seed)


# The scores of pairs, each alone, by the library of a model.


def by_classifier(folder, pairs):
    tokens = transformers.AutoTokenizer.from_pretrained(folder)
    automatic = transformers.AutoModelForSequenceClassification
    network = automatic.from_pretrained(folder, dtype=torch.float32).eval()
    for pair in pairs:
        # In lists: an empty text by itself would be taken for none.
        inputs = tokens(
            [pair.query], [pair.text], truncation=True, max_length=64, return_tensors="pt"
        )
        logits = network(**inputs).logits[0]
        yield logits[-1] - (logits[0] if len(logits) > 1 else 0)


def by_model_card(folder, pairs):
    automatic = transformers.AutoModelForSequenceClassification
    network, tokenizer = automatic.from_pretrained(folder).eval(), checkpoints.llama_tokenizer()
    for pair in pairs:
        texts = f"query: {pair.query}", f"document: {pair.text}"
        yield network(**tokenizer(*texts, return_tensors="pt")).logits[0][0]


def by_loops(folder, pairs):
    encoder = ColBERT(folder, **CPU, storage="float32")
    for pair in pairs:
        (query,), (text,) = encoder.encode_queries([pair.query]), encoder.encode([pair.text])
        yield sum(max(float(token @ row) for row in text) for token in query)


def alone(reference, folder, pairs):
    with torch.no_grad():
        return list(map(float, reference(str(folder), pairs)))


@dataclass(kw_only=True, eq=False, repr=False)
class Lengths(Scorer):
    """A scorer as a user writes it."""

    weight: float = 1.0

    def score(self, queries, texts):
        pairs = zip(queries, texts, strict=True)
        return [self.weight * len(text) + len(query) / 1000 for query, text in pairs]


LONGEST = pt.apply.generic(
    lambda rows: rows.assign(score=rows["text"].map(len).astype(float))[rows["text"] != "nothing"]
)


class Row(NamedTuple):
    """A class: how one is made (a checkpoint of it first), arguments that change scores, and by
    their message those that are refused; of a checkpoint its library and the class of weights."""

    kind: Any
    make: Callable[..., Any] | None = None
    changes: tuple[Mapping[str, Any], ...] = ()
    wrong: Mapping[str, Mapping[str, Any]] = {}
    save: Callable[..., Any] | None = None
    reference: Any = None
    loaded: str = ""


DEVICE = {
    "batch_tokens=0": {"batch_tokens": 0},
    "device='tpu'": {"device": "tpu"},
    "bfloat16, float32": {"dtype": "float16"},
}
ROWS = {
    "monot5": Row(
        MonoT5,
        wrong={
            **DEVICE,
            r"max_length=0.*1 or more": {"max_length": 0},
            r"max_length=3.*more than the 3 tokens": {"max_length": 3},
        },
        save=checkpoints.save_t5,
        reference=checkpoints.t5_scores,
        loaded="T5ForConditionalGeneration",
    ),
    "cross_encoder": Row(
        CrossEncoder,
        wrong={
            **DEVICE,
            "8 or more": {"max_length": 4},
            "at most 512, the positions of this model": {"max_length": 513},
        },
        save=save_bert,
        reference=by_classifier,
        loaded="BertForSequenceClassification",
    ),
    "rankllama": Row(
        RankLLaMA,
        changes=({"layout": "joined"}, {"end_of_sequence": True}, {"query_prefix": "query:  "}),
        wrong={**DEVICE, "pair, joined": {"layout": "sandwich"}, "32 or more": {"max_length": 4}},
        save=checkpoints.save_rankllama,
        reference=by_model_card,
        loaded="LlamaForSequenceClassification",
    ),
    "colbert": Row(
        ColBERTReranker,
        changes=({"query_max_length": 16},),
        wrong={**DEVICE, "max_length=2": {"max_length": 2}},
        save=checkpoints.save_multi_vector,
        reference=by_loops,
        loaded="BertModel",
    ),
    "rank1": Row(
        Rank1,
        lambda **given: Rank1(**{"model": ScriptedPrompts(reasoned), **given}),
        ({"max_tokens": 1000}, {"context_window": 8000}, {"prompt_tokens": 1024}),
        {
            "context_window": {"max_tokens": 0},
            "3900 of reasoning": {"max_tokens": 3900},
            "prompt_tokens=10": {"prompt_tokens": 10},
        },
    ),
    "pointwise": Row(
        Pointwise,
        lambda **given: Pointwise(**{"model": ScriptedPrompts(points), **given}),
        ({"score": "p_yes"}, {"max_characters": 9}),
        {
            "max_characters=0": {"max_characters": 0},
            r"score is 'likely'\. valid: generated, expected, p_yes": {"score": "likely"},
            "score=p_yes requests one token": {"score": "p_yes", "structured": True},
        },
    ),
    "listwise": Row(
        Listwise,
        lambda **given: Listwise(**{"model": ScriptedPrompts(longest_first), **given}),
        ({"window": 10, "step": 5}, {"passes": 2}, {"max_words": 9}),
        {
            "window=1": {"window": 1, "step": 1},
            "window=2.5": {"window": 2.5},
            "step=0": {"step": 0},
            "step is 10 and window is 10": {"window": 10},
            "passes=0": {"passes": 0},
            "max_words=0": {"max_words": 0},
        },
    ),
    "pyterrier": Row(RerankTop, lambda: LONGEST),
    "own": Row(
        Lengths,
        lambda **given: Lengths(**given),
        ({"weight": -1.0},),
        {"Lengths has no windows": {"long_documents": "max_passage"}},
    ),
}
for name in ("rank1", "own", "monot5", "cross_encoder", "rankllama", "colbert"):
    ROWS[name] = ROWS[name]._replace(
        wrong={**ROWS[name].wrong, "null, truncate, max_passage": {"long_documents": "cut"}}
    )
CHECKPOINTS = [name for name, row in ROWS.items() if row.save]
SCORED = [name for name in ROWS if name != "listwise"]  # by each text alone
CACHED = [name for name in ROWS if name != "pyterrier"]
PROMPTS = {"pointwise": "{query} {text}", "listwise": "{query} {count} {passages}"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A checkpoint of each kind."""
    made: dict[str, Any] = {}

    def folder(name):
        if name not in made:
            made[name] = ROWS[name].save(tmp_path_factory.mktemp(name) / "model")
        return made[name]

    return folder


@pytest.fixture
def maker(folders):
    """How a re-ranker of a row is made."""

    def of(name):
        row = ROWS[name]
        if row.make:
            return row.make
        return lambda **given: row.kind(str(folders(name)), **{**CPU, **given})

    return of


@pytest.fixture(params=ROWS)
def name(request):
    return request.param


@pytest.fixture
def make(maker, name):
    return maker(name)


@pytest.fixture
def make_top(make):
    """How the `RerankTop` of a re-ranker of a row is made."""
    return lambda depth=None, texts=None, **given: RerankTop(
        make(**given), depth=depth, texts=texts
    )


@pytest.fixture(scope="module")
def plain_stages():
    return {}


@pytest.fixture
def plain(name, make_top, plain_stages):
    """One of default arguments, which the tests of its row share."""
    if name not in plain_stages:
        plain_stages[name] = make_top()
    return plain_stages[name]


# Of different lengths, which some rows score by.
TEXTS = {
    "d0": "the old mill",
    "d1": "by the river stands the old mill",
    "d2": "",
    "d3": "who built the mill by the old river",
    "d4": "river",
}


def ranking(qid="q", query="who built the mill", texts=TEXTS, **columns):
    rows = {"qid": qid, "query": query, "docno": list(texts), "text": list(texts.values())}
    count = len(texts)
    frame = pd.DataFrame({**rows, "score": [float(count - n) for n in range(count)]}, dtype=object)
    return frame.astype({"score": float}).assign(rank=range(count), **columns)


def scores(ranked):
    return dict(zip(ranked["docno"], ranked["score"], strict=True))


def one_by_one(stage):
    """The score of each text by itself; of a listwise re-ranker its length."""
    if isinstance(stage.scorer, Listwise):
        return {docno: len(text) for docno, text in TEXTS.items()}
    frames = (ranking(texts={docno: text}) for docno, text in TEXTS.items())
    return {docno: score for frame in frames for docno, score in scores(stage(frame)).items()}


def units(texts):
    return lambda docnos: [Unit(docno, "", texts[docno]) for docno in docnos]


def test_the_top_comes_in_the_order_of_the_model_and_the_rest_below_it(make_top, plain):
    frame = ranking(url=[f"u{n}" for n in range(5)], reasoning="why")
    before = frame.copy()
    ranked = make_top(depth=3)(frame)
    expected = one_by_one(plain)
    head = sorted(["d0", "d1", "d2"], key=lambda docno: -expected[docno])
    assert ranked["docno"].tolist() == [*head, "d3", "d4"]
    assert ranked["url"].tolist() == [f"u{docno[1:]}" for docno in ranked["docno"]]
    assert ranked["rank"].tolist() == list(range(5)) and set(ranked["reasoning"]) == {"why"}
    assert ranked["score"].is_monotonic_decreasing and ranked["score"].is_unique
    assert set(ranked.columns) == set(frame.columns)
    pd.testing.assert_frame_equal(frame, before)
    # As it is by ranks alone, and in a pipeline that is cut afterwards.
    source = pt.Transformer.from_df(frame.iloc[::-1])
    cut = (source >> make_top(depth=3) % 1)(pd.DataFrame({"qid": ["q"], "query": ["mill"]}))
    assert cut["docno"].tolist() == head[:1]


def test_neither_other_queries_nor_their_number_change_a_score(make_top, plain):
    frames = [ranking("q"), ranking("r", "the river"), ranking("s", "mill", {"d9": "the old"})]
    together = make_top()(pd.concat(frames, ignore_index=True))
    assert together["qid"].drop_duplicates().tolist() == ["q", "r", "s"]
    for frame in frames:
        own = together[together["qid"] == frame["qid"].iloc[0]]
        assert scores(own) == pytest.approx(scores(plain(frame)), abs=5e-5)


def test_many_threads_get_the_scores_that_each_gets_alone(make_top, plain):
    stage = make_top()
    frames = [ranking(f"q{n}", text_of(1 + n % 4, n)) for n in range(16)]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(stage, frames))
    for ranked, frame in zip(together, frames, strict=True):
        assert scores(ranked) == pytest.approx(scores(plain(frame)), abs=5e-5)
    pairs = 80 if isinstance(stage.scorer, Scorer) else None
    assert stage.counts.get("pairs_scored") == pairs


def test_texts_are_those_of_the_column_or_of_the_store(make_top, plain):
    expected = plain(ranking()).drop(columns="text")
    frame = ranking().drop(columns="text")
    for stage in (
        make_top(texts=units(TEXTS)),
        make_top().bind(Collection("c", texts=units(TEXTS))),
    ):
        pd.testing.assert_frame_equal(stage(frame), expected)
    other = make_top(texts=units(dict.fromkeys(TEXTS, "mill")))(ranking())
    pd.testing.assert_frame_equal(other.drop(columns="text"), expected)


@pytest.mark.parametrize("missing", [None, float("nan"), pd.NA])
def test_a_missing_text_scores_as_an_empty_one_and_is_counted(name, make_top, plain, missing):
    frame = ranking()
    frame["text"] = pd.Series([missing if text == "" else text for text in TEXTS.values()])
    stage = make_top()
    assert scores(stage(frame)) == pytest.approx(scores(plain(ranking())), abs=1e-6)
    assert stage.counts.get("missing_text") == (None if name == "pyterrier" else 1)


@pytest.mark.parametrize("name", SCORED, indirect=True)
def test_a_row_without_a_score_ends_the_top(make_top, monkeypatch):
    texts = {**TEXTS, "d2": "nothing"}
    stage = make_top(depth=4)
    if isinstance(stage.scorer, Scorer):
        score = stage.scorer.score

        def unsure(queries, texts):
            scores = score(queries, texts)
            return [
                math.nan if text == "nothing" else value
                for text, value in zip(texts, scores, strict=True)
            ]

        monkeypatch.setattr(stage.scorer, "score", unsure)
    ranked = stage(ranking(texts=texts))
    assert ranked["docno"].tolist()[3:] == ["d2", "d4"]
    assert ranked["score"].notna().all() and ranked["score"].is_monotonic_decreasing
    assert stage.counts.get("unscored") == (1 if isinstance(stage.scorer, Scorer) else None)


def test_an_empty_ranking_stays_empty_and_nobody_is_asked(make_top):
    for frame in (ranking()[:0], ranking()[:0].drop(columns=["text", "rank"])):
        ranked = make_top(texts=lambda docnos: pytest.fail("asked"))(frame)
        assert len(ranked) == 0 and set(ranked.columns) == {*frame.columns, "rank"}
        assert (ranked["score"].dtype, ranked["rank"].dtype) == ("float64", "int64")


def test_a_docno_that_comes_twice_keeps_both_of_its_rows(make_top):
    frame = ranking(texts={"d1": TEXTS["d1"], "d0": TEXTS["d0"]}).assign(docno="d")
    ranked = make_top()(frame)
    assert sorted(ranked["text"]) == sorted(frame["text"]) and ranked["score"].is_unique


@pytest.mark.parametrize("name", CACHED, indirect=True)
def test_scores_are_kept_on_disk_and_only_what_changed_is_scored(make_top, plain, tmp_path):
    first, again, changed = (make_top(cache=tmp_path) for _ in range(3))
    expected = first(ranking())
    pd.testing.assert_frame_equal(again(ranking()), expected, check_exact=True)
    lookups = [
        (stage.counts["cache_hits"], stage.counts["cache_misses"]) for stage in (first, again)
    ]
    asked = lookups[0][1]
    assert lookups == [(0, asked), (asked, 0)] and asked in (1, 5)
    counter = "pairs_scored" if isinstance(again.scorer, Scorer) else "asked"
    assert again.counts[counter] == 0 < first.counts[counter]
    frame = ranking(texts={**TEXTS, "d0": "by the mill stands who"})
    assert scores(changed(frame)) == pytest.approx(scores(plain(frame)), abs=5e-5)
    assert changed.counts["cache_misses"] == 1
    other = make_top(cache=tmp_path)
    other(ranking(query="another"))
    assert other.counts["cache_hits"] == 0


def test_its_representation_names_its_arguments(name, make_top):
    arguments = [{}, {"depth": 9}, {"texts": units}, *ROWS[name].changes]
    assert len({repr(make_top(**each)) for each in arguments}) == len(arguments)
    stage = make_top(depth=9)
    assert repr(stage) == f"RerankTop({stage.scorer!r}, depth=9, texts=None)"


def test_what_cannot_be_ranked_is_refused_in_one_line(name, make, make_top):
    def absent(docnos):
        raise KeyError(docnos[0])

    without = ranking().drop(columns="text")
    for stage, frame, message in (
        (
            make_top(),
            without,
            r"no text .* texts=index.texts\), or texts=store.texts; or put pt.text.get_text",
        ),
        (
            make_top(texts=absent),
            without,
            r"names 'd0', which is missing from the document store.*same corpus",
        ),
        (make_top(), ranking(query=None), r"the query 'q' is (None|nan)\. give each query as text"),
        (make_top(), ranking(query=7), r"the query 'q' is 7\. give each query as text"),
    ):
        with pytest.raises(InputError, match=message) as refused:
            stage(frame)
        assert "\n" not in str(refused.value)
    with pytest.raises(pt.validate.InputValidationError):
        make_top()(pd.DataFrame({"qid": ["1"], "query": ["x"]}))
    if ROWS[name].kind.needs_llm:
        assert make(model=None).needs_llm
        with pytest.raises(InputError, match=r"not bound|asks a language model"):
            make_top(model=None)(ranking())
    else:
        assert not make_top().needs_llm


def test_wrong_arguments_are_refused(name, make, make_top):
    for depth in (0, -1, True, 1.5, "10"):
        with pytest.raises(InputError, match=r"depth=.* valid: a whole number, 1 or more"):
            make_top(depth=depth)
    for message, arguments in ROWS[name].wrong.items():
        with pytest.raises(InputError, match=message):
            _ = make(**arguments).fingerprint


# Re-rankers by a checkpoint.


@pytest.mark.parametrize("batch_tokens", [1, 200, 100_000])
@pytest.mark.parametrize("name", CHECKPOINTS, indirect=True)
def test_scores_are_those_of_each_pair_alone_by_the_library(name, folders, make, batch_tokens):
    pairs = [pair for pair in PAIRS if name != "cross_encoder" or len(pair.text) < 200]
    expected = dict(zip(pairs, alone(ROWS[name].reference, folders(name), pairs), strict=True))
    assert max(expected.values()) - min(expected.values()) > 0.1
    it = make(batch_tokens=batch_tokens)
    shuffled = random.Random(3).sample(pairs, len(pairs))
    for pair, score in zip(shuffled, it.score(*sides(shuffled)), strict=True):
        assert score == pytest.approx(expected[pair], abs=2e-5)
    assert it.score([], []) == []


@pytest.mark.parametrize("name", CHECKPOINTS, indirect=True)
def test_bfloat16_keeps_the_scores_apart(make):
    pairs = [*PAIRS, *(Pair(text_of(3, 1), text_of(length)) for length in range(100, 220))]
    exact, rounded = make().score(*sides(pairs)), make(dtype="bfloat16").score(*sides(pairs))
    assert rounded == pytest.approx(exact, abs=0.5)
    assert rounded != exact
    # An output that is rounded to eight bits gives unlike texts the same score.
    assert len({*rounded}) >= len({*exact}) - 2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("name", CHECKPOINTS, indirect=True)
def test_a_gpu_gives_the_scores_of_the_cpu(make):
    on_cpu = make().score(*sides(PAIRS))
    assert make(device="cuda").score(*sides(PAIRS)) == pytest.approx(on_cpu, abs=1e-4)
    assert make(device="cuda", dtype="bfloat16").score(*sides(PAIRS)) == pytest.approx(
        on_cpu, abs=0.5
    )


@pytest.mark.parametrize("name", CHECKPOINTS, indirect=True)
def test_rows_that_are_wider_than_their_texts_have_the_same_scores(make, monkeypatch):
    """As on a GPU, where the width of a batch is a multiple of 8."""
    expected, widths = make().score(*sides(PAIRS)), []
    wider = lambda longest, _: widths.append(longest) or -(-longest // 8) * 8 + 8  # noqa: E731
    monkeypatch.setattr(device, "padded_width", wider)
    assert make().score(*sides(PAIRS)) == pytest.approx(expected, abs=1e-5) and widths


LAYOUTS = [(name, {}) for name in CHECKPOINTS]
LAYOUTS += [("rankllama", {"layout": each, "end_of_sequence": True}) for each in ("pair", "joined")]


@pytest.mark.parametrize(("name", "arguments"), LAYOUTS, indirect=["name"])
def test_windows_hold_every_word_once_and_fit(make, arguments):
    words = random.Random(5).choices([*WORDS, "Zürich", "x" * 9, "9" * 7], k=400)
    pair = Pair("who built the old mill", "\n".join(words))
    it = make(max_length=LENGTH, **arguments)
    texts = it.windows(*pair)
    assert len(texts) > 3
    assert " ".join(texts).split() == words
    windows = [Pair(pair.query, text) for text in texts]
    it.score(*sides(windows))
    assert it.counts["truncated"] == 0
    # No window but the last one has room for another word.
    more = [Pair(pair.query, f"{text} {'x' * 9} {'x' * 9}") for text in texts[:-1]]
    it.score(*sides(more))
    assert it.counts["truncated"] >= len(more) - 1


@pytest.mark.parametrize("text", ["x" * 900, "x" * 300 + " " + "☃" * 900 + " mill", " " * 2000])
@pytest.mark.parametrize("name", CHECKPOINTS, indirect=True)
def test_a_text_without_white_space_is_cut_anyway(make, text):
    it = make(max_length=LENGTH)
    windows = it.windows("mill", text)
    assert "".join("".join(windows).split()) == "".join(text.split())
    it.score(*sides([Pair("mill", window) for window in windows]))
    assert it.counts["truncated"] == 0


@pytest.mark.parametrize("text", ["", "the river", "the old mill stands"])
@pytest.mark.parametrize("name", CHECKPOINTS, indirect=True)
def test_a_text_that_fits_is_its_own_window(make, text):
    assert make().windows("mill", text) == [text]


@pytest.mark.parametrize("name", CHECKPOINTS, indirect=True)
def test_weights_are_loaded_once_by_many_threads(name, make, monkeypatch):
    make()  # saves the checkpoint of the row, unless a test before has done so
    network = getattr(transformers, ROWS[name].loaded)
    loads, load = [], network.from_pretrained

    def counted(*arguments, **settings):
        if settings.get("device_map") != "meta":  # which reads the names of the weights alone
            loads.append(1)
        return load(*arguments, **settings)

    monkeypatch.setattr(network, "from_pretrained", counted)
    it = make()
    _ = it.fingerprint
    assert not loads
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda number: it.score_pairs(*sides(PAIRS[number:])), range(8)))
    assert len(loads) == 1
    for number, each in enumerate(found):
        assert each == pytest.approx(found[0][number:], abs=2e-5)


@pytest.mark.parametrize("name", CACHED, indirect=True)
def test_the_fingerprint_follows_what_changes_scores(name, make, make_top, tmp_path):
    row = ROWS[name]
    changed = [make(**arguments) for arguments in row.changes]
    if row.save:
        changed += [make(dtype="bfloat16"), make(max_length=48)]
        changed.append(row.kind(str(row.save(tmp_path / "other", seed=1)), **CPU))
    if name in PROMPTS:
        (tmp_path / "own.txt").write_text(PROMPTS[name])
        changed.append(make(prompt=str(tmp_path / "own.txt")))
    assert len({each.fingerprint for each in (make(), *changed)}) == 1 + len(changed)
    assert make_top(depth=9).fingerprint == make().fingerprint


@pytest.mark.parametrize("name", CHECKPOINTS, indirect=True)
def test_the_size_of_a_batch_changes_no_fingerprint(make):
    assert make(batch_tokens=7).fingerprint == make().fingerprint


@pytest.mark.parametrize("name", [*CHECKPOINTS, "own"], indirect=True)
def test_a_pickled_one_has_its_arguments_and_loads_its_model_again(make):
    it = make().bind(Collection("c"))
    before = it.score_pairs(*sides(PAIRS[:2]))
    copy = pickle.loads(pickle.dumps(it))
    assert repr(copy) == repr(it) and copy.collection == it.collection
    assert copy.counts["batches"] == 0
    assert copy.score_pairs(*sides(PAIRS[:2])) == before


@pytest.mark.parametrize("name", CHECKPOINTS, indirect=True)
def test_a_checkpoint_that_is_missing_is_refused_in_one_line(name, tmp_path, monkeypatch):
    monkeypatch.setattr(pytest.importorskip("huggingface_hub.constants"), "HF_HUB_OFFLINE", True)
    kind = ROWS[name].kind
    for it, message in (
        (kind(), f"hf download {kind().model}"),
        (kind(str(tmp_path / "nowhere")), "there is no folder"),
    ):
        with pytest.raises(InputError, match=message) as refused:
            _ = it.fingerprint
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["monot5", "cross_encoder", "rankllama"], indirect=True)
def test_weights_that_do_not_fit_are_refused_with_the_sizes(name, folders, make, monkeypatch):
    network = getattr(transformers, ROWS[name].loaded).from_pretrained(folders(name))
    weights = sum(each.numel() for each in network.parameters())
    monkeypatch.setattr(device, "free_bytes", lambda device: 3 * weights)
    make(dtype="bfloat16").score(*sides(PAIRS[:1]))
    with pytest.raises(InputError, match=r"needs 0\.0 GB and cpu has 0\.0 GB free"):
        make().score(*sides(PAIRS[:1]))


@pytest.mark.parametrize(
    ("whole", "argument", "by_windows"),
    [(True, None, True), (False, None, False), (True, "truncate", False)],
)
@pytest.mark.parametrize("name", CHECKPOINTS, indirect=True)
def test_a_long_document_scores_as_its_best_window_where_units_are_documents(
    make, tmp_path, whole, argument, by_windows
):
    texts = {"bridge": text_of(300), "river": "by the river", "zebra": "the mill"}
    collection = Collection(
        "c",
        texts=lambda ids: [Unit(each, "the mill", texts[each]) for each in ids],
        whole_documents=whole,
        caches=tmp_path,
    )
    unbound = make(max_length=64, long_documents=argument)
    stage = RerankTop(unbound, depth=2).bind(collection)
    assert unbound.collection is None and unbound.long_documents == argument
    assert ("windows" in stage.counts) == by_windows
    ranked = scores(stage(ranking(query="who", texts=texts).drop(columns="text")))
    for docno in ("bridge", "river"):
        pair = Pair("who", f"the mill\n{texts[docno]}")
        parts = [Pair("who", text) for text in unbound.windows(*pair)] if by_windows else [pair]
        assert (len(parts) > 3) == (by_windows and docno == "bridge")
        best = max(unbound.score(*sides(parts)))
        assert ranked[docno] == pytest.approx(best, abs=1e-4)
    assert list(ranked)[2] == "zebra"


# Cross-encoders.

EDGES = [
    *(Pair(text_of(1 + length % 7, 1), text_of(length)) for length in (0, 1, 5, 16, 17, 40, 90)),
    Pair(text_of(90, 2), text_of(80)),  # both are cut
    Pair(text_of(70, 3), "mill"),  # of which the query is
    Pair("", "the river"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_bert(tmp_path_factory.mktemp("bert") / "one", words=64)


def scorer(model, **arguments):
    return CrossEncoder(str(model), **{**CPU, "max_length": 64, **arguments})


def test_scores_are_the_logits_of_sentence_transformers(model, tmp_path):
    library = pytest.importorskip("sentence_transformers")
    network, own_tokenizer = checkpoints.small_bert(WORDS)
    own_tokenizer.model_max_length = 64
    trained = save(tmp_path / "trained", network, own_tokenizer)
    for folder in (model, save_bert(tmp_path / "two", words=64, num_labels=2), trained):
        reference = library.CrossEncoder(str(folder), device="cpu")
        expected = reference.predict(EDGES, activation_fn=torch.nn.Identity())
        if expected.ndim == 2:
            expected = expected[:, 1] - expected[:, 0]
        assert expected.max() - expected.min() > 0.5
        assert scorer(folder).score(*sides(EDGES)) == pytest.approx(expected.tolist(), abs=1e-5)
        shown = reference.predict(EDGES)
        # Of one label, the sigmoid, which orders texts alike.
        order = shown if shown.ndim == 1 else shown[:, 1] - shown[:, 0]
        assert order.argsort().tolist() == expected.argsort().tolist()


NETWORKS = {
    "DistilBert": {
        **{"dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4, "initializer_range": 0.3},
    },
    "XLMRoberta": {
        **{"type_vocab_size": 1, "max_position_embeddings": 66},
        **{"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, **SIZES},
    },
    "ModernBert": {"pad_token_id": 0, **SIZES},
    "Llama": SIZES,
}


# XLM-R's positions begin after that of padding.
POSITIONS = {"DistilBert": 512, "XLMRoberta": 64, "ModernBert": 8192, "Llama": 2048}


def network_of(name, vocabulary):
    sizes = {"vocab_size": vocabulary, "num_labels": 1, **NETWORKS[name]}
    config = getattr(transformers, f"{name}Config")(**sizes)
    return getattr(transformers, f"{name}ForSequenceClassification")(config)


def plain_tokenizer(*template, **named):
    """Of whole words: `<s>` is 0, `<pad>` 1, `</s>` 2, as XLM-R has them."""
    tokenizers = pytest.importorskip("tokenizers")
    pieces = ["<s>", "<pad>", "</s>", "<unk>", *WORDS]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        pair=" ".join(template), special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **named)


@pytest.mark.parametrize("name", NETWORKS)
def test_other_architectures_score_as_transformers_has_them(name, tmp_path):
    # The texts are of a second kind, which none of these networks has.
    names = ["input_ids", "token_type_ids", "attention_mask"]
    template = "<s> $A </s> </s> $B:1 </s>:1"
    tokens = plain_tokenizer(template, pad_token="<pad>", model_input_names=names)
    folder = save(tmp_path / "model", network_of(name, len(tokens)), tokens)
    tokens.model_input_names = ["input_ids", "attention_mask"]
    tokens.save_pretrained(tmp_path / "reference")
    for path in folder.glob("*.*"):
        if "tokenizer" not in path.name:
            (tmp_path / "reference" / path.name).write_bytes(path.read_bytes())
    pairs = [pair for pair in EDGES if pair.text]
    expected = alone(by_classifier, tmp_path / "reference", pairs)
    assert max(expected) - min(expected) > 0.1
    assert scorer(folder).score(*sides(pairs)) == pytest.approx(expected, abs=1e-5)
    most = POSITIONS[name]
    assert scorer(folder, max_length=most).fingerprint
    with pytest.raises(InputError, match=f"at most {most}, the positions of this model"):
        _ = scorer(folder, max_length=most + 1).fingerprint


def test_names_of_special_tokens_in_a_text_are_text(model):
    hostile = Pair("mill", "the [SEP] river")
    row = scorer(model)._inputs.encode([hostile])[0].row
    assert row["input_ids"].count(checkpoints.small_bert(WORDS)[1].sep_token_id) == 2
    assert scorer(model).score(*sides([hostile])) != alone(by_classifier, model, [hostile])


def test_counts_tell_which_pairs_were_cut(model):
    it = scorer(model)
    exact = Pair("the mill", text_of(64 - 5))  # and [CLS], two [SEP]
    it.score(*sides([exact, Pair(exact.query, f"{exact.text} river"), Pair(text_of(70), "mill")]))
    assert it.counts["truncated"] == 2


def test_a_query_that_leaves_little_room_has_one_window(model):
    whole = Pair(text_of(54), text_of(99))
    assert scorer(model).windows(*whole) == [whole.text]


def test_what_cannot_score_pairs_is_refused_in_one_line(tmp_path):
    _, tokenizer = checkpoints.small_bert(WORDS)
    sizes = {"vocab_size": len(tokenizer), **SIZES}
    encoder, three = tmp_path / "encoder", tmp_path / "three"
    save(encoder, transformers.BertModel(transformers.BertConfig(**sizes)), tokenizer)
    three.mkdir()
    transformers.BertConfig(num_labels=3, **sizes).save_pretrained(three)
    unpadded = plain_tokenizer("<s> $A </s> $B </s>", eos_token="</s>")
    endless = save(tmp_path / "endless", network_of("Llama", len(unpadded)), unpadded)
    for folder, message in (
        (encoder, r"has no output that was trained to score pairs .*bert: BertModel"),
        (three, "has no output that was trained to score pairs .*, 3 labels"),
        (endless, "has no token to pad with"),
    ):
        with pytest.raises(InputError, match=message) as refused:
            _ = scorer(folder).fingerprint
        assert "\n" not in str(refused.value)
    # One that claims to be a classifier, and has no such weights.
    config = json.loads((encoder / "config.json").read_text())
    config["architectures"] = ["BertForSequenceClassification"]
    (encoder / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"no weights for classifier\.bias, classifier\.weight"):
        scorer(encoder).score(*sides(EDGES[:1]))
