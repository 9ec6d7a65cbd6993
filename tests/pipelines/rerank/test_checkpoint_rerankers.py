"""monoT5 and RankLLaMA against the libraries of their models, and small models with random weights
that are trained on judgements, saved, and loaded by their paths."""

import json
import random
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support import checkpoints
from support.assertions import refused
from support.pairs import sides

from soundingline.experiments.fitting import Example, fit
from soundingline.pipelines.lexical.index import LexicalIndex
from soundingline.pipelines.rerank.cross_encoder import CrossEncoder
from soundingline.pipelines.rerank.monot5 import MonoT5, MonoT5Prompts
from soundingline.pipelines.rerank.rankllama import RankLLaMA, RankLlamaPrompts
from soundingline.pipelines.rerank.reranker import Pair, RerankTop
from soundingline.toolkit.benchmarks.beir import BeirBenchmark
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.evaluation.retrieval import measure_rankings

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

LENGTHS = (0, 1, 3, 8, 17, 40, 120, 470, 500, 501, 505, 900)


def text_of(length, seed=0):
    return " ".join(random.Random(f"{length} {seed}").choices(checkpoints.T5_WORDS, k=length))


T5_PAIRS = [Pair(text_of(1 + length % 7, 1), text_of(length)) for length in LENGTHS]


@pytest.fixture(scope="module")
def monot5(tmp_path_factory):
    return checkpoints.save_t5(tmp_path_factory.mktemp("monot5") / "model")


def t5_scorer(model, **arguments):
    return MonoT5(str(model), **{"device": "cpu", "dtype": "float32", **arguments})


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
        {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 20},
        {"feed_forward_proj": "gelu", "d_kv": 4, "num_decoder_layers": 1},
    ],
)
def test_other_shapes_of_t5_are_computed_as_they_are(tmp_path, changed):
    model = checkpoints.save_t5(tmp_path / "model", seed=3, **changed)
    expected = checkpoints.t5_scores(model, T5_PAIRS)
    assert np.std(expected) > 0.001
    assert t5_scorer(model).score(*sides(T5_PAIRS)) == pytest.approx(expected, abs=2e-5)


def test_monot5_is_loaded_without_pyterrier_t5(monot5, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyterrier_t5", None)  # an import fails
    assert t5_scorer(monot5).score(*sides(T5_PAIRS[:1]))


def test_scores_are_the_single_pair_scores_of_pyterrier_t5(monot5):
    reference = pytest.importorskip("pyterrier_t5").MonoT5ReRanker(
        tok_model=str(monot5), model=str(monot5), batch_size=1, device="cpu", verbose=False
    )
    # Names of special tokens and pieces of the prompt, which both read as they are read there.
    odd = [
        Pair("who </s> built it", "the <pad> mill </s> stands"),
        Pair("a Document: b", "Relevant:"),
    ]
    pairs = [*T5_PAIRS, *odd]
    frame = pd.DataFrame(pairs, columns=["query", "text"])
    frame = frame.assign(qid=frame.index.astype(str), docno="d")
    expected = reference(frame).set_index("qid")["score"][frame["qid"]]
    it = t5_scorer(monot5)
    assert it.score(*sides(pairs)) == pytest.approx(expected.tolist(), abs=1e-4)
    # Prompts at, and just beyond, the 512 tokens that fit.
    assert 2 <= it.counts["truncated"] < len(pairs)


def test_bfloat16_is_no_further_off_than_transformers_own(monot5):
    exact = np.array(checkpoints.t5_scores(monot5, T5_PAIRS))
    theirs = np.array(checkpoints.t5_scores(monot5, T5_PAIRS, dtype="bfloat16"))
    for batch_tokens in (1, None):
        scorer = t5_scorer(monot5, dtype="bfloat16", batch_tokens=batch_tokens)
        ours = np.array(scorer.score(*sides(T5_PAIRS)))
        assert 0 < np.abs(ours - exact).mean() < 1.25 * np.abs(theirs - exact).mean()


def test_two_rows_of_the_output_layer_are_multiplied_in_float32(monot5):
    """T5 has an output for each of its 32,128 tokens, and bfloat16 has eight bits."""
    scorer = t5_scorer(monot5, dtype="bfloat16")
    network, tokenizer, made = scorer._network, scorer._tokenizer, []
    layer = network.get_output_embeddings()
    layer.register_forward_hook(lambda _, given, logits: made.append((given[0], logits)))
    scorer.score(*sides(T5_PAIRS[:3]))
    ((states, logits),) = made
    rows = tokenizer.convert_tokens_to_ids(["▁true", "▁false"])
    expected = network.get_input_embeddings().weight[rows].detach().float()
    assert torch.equal(layer.weight, expected)
    assert states.dtype == logits.dtype == torch.float32 and logits.shape == (3, 1, 2)
    assert network.get_input_embeddings().weight.dtype == torch.bfloat16


def test_the_position_bias_of_t5_is_contiguous_and_equal(monot5):
    """Fused kernels take no other; transformers permutes [queries, keys, heads]."""
    kind = transformers.T5ForConditionalGeneration
    theirs, ours = kind.from_pretrained(str(monot5)), t5_scorer(monot5)._network
    for name in ("encoder", "decoder"):
        layers = [getattr(each, name).block[0].layer[0].SelfAttention for each in (theirs, ours)]
        expected, bias = (layer.compute_bias(9, 9) for layer in layers)
        assert torch.equal(bias, expected) and bias.is_contiguous()
        assert not expected.is_contiguous()


class CountedTokenizer:
    """A tokenizer, and how often it is called."""

    def __init__(self, tokenizer):
        self.tokenizer, self.calls = tokenizer, 0
        for name in ("eos_token_id", "bos_token_id", "unk_token_id"):
            setattr(self, name, getattr(tokenizer, name))

    def __call__(self, *texts, **settings):
        self.calls += 1
        return self.tokenizer(*texts, **settings)


def test_the_tokenizer_is_called_for_all_pairs_at_once(monot5):
    pairs = [Pair(f"mill {number}", text_of(600, number)) for number in range(20)]
    counted = CountedTokenizer(transformers.AutoTokenizer.from_pretrained(str(monot5)))
    prompts = MonoT5Prompts(counted)
    counted.calls = 0
    # The texts, those whose beginning was too short, and the queries of those that are cut.
    assert all(each.truncated for each in prompts.encode(pairs)) and counted.calls <= 3
    for layout in ("pair", "joined"):
        counted = CountedTokenizer(checkpoints.llama_tokenizer())
        inputs = RankLlamaPrompts(counted, max_length=64, layout=layout).encode(pairs)
        assert all(each.truncated for each in inputs) and counted.calls == 2


def test_the_document_is_cut_and_the_end_of_the_prompt_is_not(monot5):
    long, longer = Pair("mill", text_of(600)), Pair("mill", text_of(600) + " old river")
    it = t5_scorer(monot5)
    scores = it.score(*sides([long, longer]))
    assert scores[0] == pytest.approx(scores[1], abs=1e-6)
    assert it.counts["truncated"] == 2
    prompts = MonoT5Prompts(transformers.AutoTokenizer.from_pretrained(str(monot5)))
    ids = prompts.encode([long])[0].ids
    tokens = transformers.AutoTokenizer.from_pretrained(str(monot5)).convert_ids_to_tokens(ids)
    assert len(tokens) == 512
    assert tokens[-3:] == ["▁Relevant", ":", "</s>"]
    assert tokens[:5] == ["▁Query", ":", "▁mill", "▁Document", ":"]


def test_a_query_that_fills_the_prompt_leaves_the_document_unread_and_is_counted(monot5):
    pairs = [Pair(text_of(600), "the old mill"), Pair(text_of(600), "river")]
    it = t5_scorer(monot5)
    scores = it.score(*sides([*pairs, Pair("mill", "river")]))
    assert scores[0] == pytest.approx(scores[1], abs=1e-6)
    assert scores[:2] == pytest.approx(checkpoints.t5_scores(monot5, pairs), abs=1e-5)
    assert it.counts["queries_too_long"] == 2
    assert it.windows(*pairs[0]) == [pairs[0].text]


@pytest.mark.parametrize(
    "text",
    [
        text_of(5000),
        "the old mill " + " " * 9000 + text_of(700),
        "x" * 9000,
        "mill\n" * 3000,
        ("ﬁ" * 40 + " ") * 300,
    ],
    ids=["words", "white space", "one word", "lines", "ligatures"],
)
def test_what_is_read_of_a_very_long_text_is_its_beginning(monot5, text):
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(monot5))
    whole = tokenizer(f"Query: mill Document: {text}", add_special_tokens=False).input_ids
    prompt = MonoT5Prompts(tokenizer).encode([Pair("mill", text)])[0]
    assert prompt.ids[:-3] == whole[:509]
    assert prompt.truncated


def test_models_of_the_hub_are_read_with_t5s_tokenizer_where_they_bring_none(
    tmp_path, monot5, monkeypatch
):
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))

    def downloaded(name, commit):
        folder = tmp_path / f"models--{name.replace('/', '--')}"
        (folder / "refs").mkdir(parents=True)
        (folder / "refs" / "main").write_text(commit)
        (folder / "snapshots" / commit).mkdir(parents=True)
        return folder / "snapshots" / commit

    checkpoints.save_t5(downloaded("castorini/monot5-base-msmarco", "a" * 40), own=False)
    with pytest.raises(InputError, match=r"no tokenizer\.json.*hf download t5-base"):
        _ = MonoT5(device="cpu", dtype="float32").fingerprint
    checkpoints.t5_tokenizer().save_pretrained(downloaded("t5-base", "b" * 40))
    found = MonoT5(device="cpu", dtype="float32")
    assert found.score(*sides(T5_PAIRS)) == pytest.approx(
        t5_scorer(monot5).score(*sides(T5_PAIRS)), abs=1e-6
    )


def test_another_tokenizer_changes_the_fingerprint_and_one_that_does_not_fit_is_refused(
    tmp_path, monot5
):
    words = checkpoints.T5_WORDS

    def with_tokenizer(pieces):
        checkpoints.t5_tokenizer(pieces).save_pretrained(tmp_path / str(len(pieces)))
        return t5_scorer(monot5, tokenizer=str(tmp_path / str(len(pieces)))).fingerprint

    assert (
        with_tokenizer([word for word in words if word != "mill"]) != t5_scorer(monot5).fingerprint
    )
    with pytest.raises(InputError, match=r"'true'.*T5's tokenizer.*tokenizer=t5-base"):
        with_tokenizer(["Query", "Document", "Relevant", "false"])
    with pytest.raises(InputError, match=r"has 123 tokens.*knows 114"):
        with_tokenizer([*words, *(f"word{n}" for n in range(9))])


def test_a_model_of_another_kind_and_an_encoder_alone_are_refused(tmp_path, monot5):
    bert = checkpoints.save_bert(tmp_path / "bert")
    refused(r"is not a T5 .* of the kind bert.*kind t5", lambda: t5_scorer(bert).fingerprint)
    encoder = tmp_path / "encoder"
    transformers.T5EncoderModel.from_pretrained(str(monot5)).save_pretrained(encoder)
    with pytest.raises(InputError, match=r"no weights for decoder"):
        t5_scorer(encoder, tokenizer=str(monot5)).score(*sides(T5_PAIRS[:1]))


def test_a_batch_that_does_not_fit_is_told(monot5, monkeypatch):
    it = t5_scorer(monot5)

    it.score(*sides([Pair("mill", "river")]))

    def no_room(**inputs):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(it._network, "forward", no_room)
    with pytest.raises(InputError, match=r"batch of 11 tokens.*GB free.*fewer batch_tokens"):
        it.score(*sides([Pair("the mill", "old river")]))


TEXTS = (
    "the old mill",
    "by the river the mill stands",
    "zebra über alles, 42 times " * 5,
    "the " * 60 + "river",
    "",
    "who built the old mill by the river",
)
LLAMA_PAIRS = [
    Pair(query, text) for query in ("who built the old mill", "river?") for text in TEXTS
]


@pytest.fixture(scope="module")
def rankllama(tmp_path_factory):
    return checkpoints.save_rankllama(tmp_path_factory.mktemp("retriever") / "whole")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return checkpoints.save_base(tmp_path_factory.mktemp("base") / "llama")


def encoded(pair, **settings):
    return RankLlamaPrompts(checkpoints.llama_tokenizer(), **settings).encode([pair])[0]


def llama_scorer(model, **arguments):
    return RankLLaMA(str(model), **{"device": "cpu", "dtype": "float32", **arguments})


def card_score(model, tokenizer, pair):
    """As the model card computes one pair: the tokenizer's own pair, the model's own pooling."""
    text = " ".join(pair.text.split())
    inputs = tokenizer(f"query: {pair.query}", f"document: {text}", return_tensors="pt")
    with torch.no_grad():
        return float(model(**inputs).logits[0][0])


def whole_model(folder):
    automatic = transformers.AutoModelForSequenceClassification
    return automatic.from_pretrained(folder, num_labels=1).eval()


def logit(model, ids):
    with torch.no_grad():
        return float(model(torch.tensor([ids])).logits[0][0])


def test_the_last_token_is_found_where_padding_and_text_share_a_token(tmp_path):
    # A model that calls `</s>` its padding: looking for the last token that is no padding would
    # find the one before the end of the sequence.
    folder = checkpoints.save_rankllama(tmp_path / "whole", pad_token_id=2)
    model = whole_model(folder)
    model.config.pad_token_id = None
    it = llama_scorer(folder, end_of_sequence=True)
    expected = [logit(model, encoded(pair, end_of_sequence=True).ids) for pair in LLAMA_PAIRS]
    assert it.score(*sides(LLAMA_PAIRS)) == pytest.approx(expected, abs=2e-5)
    without = llama_scorer(folder).score(*sides(LLAMA_PAIRS))
    assert all(abs(one - other) > 1e-3 for one, other in zip(without, expected, strict=True))


def test_a_long_document_is_cut_and_the_end_of_sequence_stays(rankllama):
    tokenizer = checkpoints.llama_tokenizer()
    pair = Pair("who built the mill", "by the river " * 200)
    card = tokenizer(f"query: {pair.query}", f"document: {pair.text.strip()}").input_ids
    plain = encoded(pair, max_length=64)
    ended = encoded(pair, max_length=64, end_of_sequence=True)
    assert plain.ids == card[:64]
    assert ended.ids == [*card[:63], tokenizer.eos_token_id]
    assert plain.truncated and not plain.queries_truncated
    it = llama_scorer(rankllama, max_length=64, end_of_sequence=True)
    assert it.score(*sides([pair])) == pytest.approx(
        [logit(whole_model(rankllama), ended.ids)], abs=2e-5
    )


def test_what_fits_exactly_is_not_cut():
    tokenizer = checkpoints.llama_tokenizer()
    pair = Pair("who built the mill", "by the river " * 12)
    size = len(tokenizer(f"query: {pair.query}", f"document: {pair.text.strip()}").input_ids)
    assert not encoded(pair, max_length=size).truncated
    assert encoded(pair, max_length=size - 1).truncated
    ended = encoded(pair, max_length=size, end_of_sequence=True)
    assert (ended.truncated, len(ended.ids)) == (True, size)


def test_a_query_gives_way_only_beyond_half_of_the_room():
    tokenizer = checkpoints.llama_tokenizer()
    cut = encoded(Pair("river " * 100, "the old mill"), max_length=64)
    words = tokenizer.convert_ids_to_tokens(cut.ids)
    assert cut.queries_truncated
    assert words.count("▁river") == 32 - 2  # "query" and ":" are two
    assert words[-3:] == ["▁the", "▁old", "▁mill"]


def test_the_joined_layout_is_one_text_behind_one_beginning(rankllama):
    tokenizer = checkpoints.llama_tokenizer()
    pair = Pair("who built the old mill", "title\nby  the river")
    joined = tokenizer("query: who built the old mill document: title by the river").input_ids
    assert joined[0] == tokenizer.bos_token_id
    assert encoded(pair, layout="joined").ids == joined
    score = logit(whole_model(rankllama), joined)
    assert llama_scorer(rankllama, layout="joined").score(*sides([pair])) == pytest.approx(
        [score], abs=2e-5
    )
    # As the text-ranking study has it.
    prefixes = {"query_prefix": "query:  ", "document_prefix": "document:   "}
    study = tokenizer("query:  who built the old mill document:   title by the river").input_ids
    assert encoded(pair, layout="joined", **prefixes).ids == study


def test_an_adapter_scores_as_the_model_that_it_is_merged_into(tmp_path, base):
    adapted = checkpoints.save_rankllama_adapter(tmp_path / "adapter", base)
    tokenizer = checkpoints.llama_tokenizer()
    expected = [card_score(adapted, tokenizer, pair) for pair in LLAMA_PAIRS]
    adapted.merge_and_unload().save_pretrained(tmp_path / "merged")
    tokenizer.save_pretrained(tmp_path / "merged")
    from_adapter, from_merged = (
        llama_scorer(tmp_path / "adapter"),
        llama_scorer(tmp_path / "merged"),
    )
    assert from_adapter.score(*sides(LLAMA_PAIRS)) == pytest.approx(expected, abs=1e-4)
    assert from_merged.score(*sides(LLAMA_PAIRS)) == pytest.approx(expected, abs=1e-4)


def test_another_base_than_the_named_one_can_be_given(tmp_path, base):
    checkpoints.save_rankllama_adapter(tmp_path / "adapter", base)
    config = tmp_path / "adapter" / "adapter_config.json"
    named = json.loads(config.read_text())
    expected = llama_scorer(tmp_path / "adapter").score(*sides(LLAMA_PAIRS))
    config.write_text(json.dumps({**named, "base_model_name_or_path": str(tmp_path / "gone")}))
    refused(r"gone", lambda: llama_scorer(tmp_path / "adapter").fingerprint)
    assert llama_scorer(tmp_path / "adapter", base=str(base)).score(*sides(LLAMA_PAIRS)) == expected


def test_an_adapter_without_an_output_is_refused(tmp_path, base):
    checkpoints.save_rankllama_adapter(tmp_path / "adapter", base, head=False)
    with pytest.raises(InputError, match=r"no weights for score\.weight"):
        llama_scorer(tmp_path / "adapter").score(*sides(LLAMA_PAIRS[:1]))


def test_a_checkpoint_that_claims_an_output_and_lacks_it_is_refused(tmp_path, base):
    config = json.loads((base / "config.json").read_text())
    for path in base.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config["id2label"] = {"0": "LABEL_0"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    refused("no weights for score", lambda: llama_scorer(tmp_path).score(*sides(LLAMA_PAIRS[:1])))


def test_counts_tell_what_was_cut(rankllama):
    it = llama_scorer(rankllama, max_length=64)
    assert it.score([], []) == []
    it.score(["mill", "mill", "mill " * 99], ["river", "river " * 99, "river"])
    assert (it.counts["truncated"], it.counts["queries_truncated"]) == (1, 1)


def test_the_fingerprint_of_an_adapter_follows_adapter_and_base(tmp_path):
    one, two = (checkpoints.save_base(tmp_path / f"base{seed}", seed) for seed in (0, 1))
    checkpoints.save_rankllama_adapter(tmp_path / "a", one)
    checkpoints.save_rankllama_adapter(tmp_path / "b", one, seed=2)
    found = [
        llama_scorer(tmp_path / "a"),
        llama_scorer(tmp_path / "a", base=str(two)),
        llama_scorer(tmp_path / "b"),
        llama_scorer(tmp_path / "b", base=str(two)),
    ]
    assert len({each.fingerprint for each in found}) == 4


def test_a_model_of_another_kind_is_refused(tmp_path, base):
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    refused(r"kind bert.*kind llama", lambda: llama_scorer(tmp_path).fingerprint)
    refused("no output that was trained", lambda: llama_scorer(base).fingerprint)


def test_special_tokens_in_a_text_are_text():
    tokenizer = checkpoints.llama_tokenizer()
    for layout, begins in (("pair", 2), ("joined", 1)):
        prompt = RankLlamaPrompts(tokenizer, layout=layout, end_of_sequence=True)
        ids = prompt.encode([Pair("who </s> built", "<s> the old </s> mill </s>")])[0].ids
        assert ids.count(tokenizer.bos_token_id) == begins
        assert ids.count(tokenizer.eos_token_id) == 1 and ids[-1] == tokenizer.eos_token_id
    assert "</s>" in prompt.windows(Pair("who", "the </s> mill"))[0]


QUESTIONS, DEPTH = 4, 16


class Collection:
    """The first questions of vaswani, BM25's best candidates for them, and their judgements."""

    def __init__(self, root: Path, folder: Path) -> None:
        benchmark = BeirBenchmark(root / "vaswani")
        self.units = {each.docid: Unit(each.docid, "", each.text) for each in benchmark.documents()}
        topics = benchmark.topics[:QUESTIONS]
        questions = pd.DataFrame([{"qid": each.qid, "query": each.text} for each in topics])
        index = LexicalIndex.build(self.units.values(), folder)
        self.ranking = index.bm25(depth=DEPTH)(questions)
        self.qrels = {each.qid: benchmark.qrels["evidence"][each.qid] for each in topics}

    def texts(self, docnos):
        return [self.units[each] for each in docnos]

    def ndcg(self, ranking):
        ordered = ranking.sort_values(["qid", "rank"])
        rankings = {str(qid): rows["docno"].tolist() for qid, rows in ordered.groupby("qid")}
        found = measure_rankings(rankings, self.qrels, ["nDCG@10"])["nDCG@10"]
        return sum(found.values()) / len(found)

    def best_ndcg(self):
        """With the same candidates in the order of their judgements."""
        grades = [
            self.qrels[qid].get(docno, 0)
            for qid, docno in zip(self.ranking["qid"], self.ranking["docno"], strict=True)
        ]
        return self.ndcg(self.ranking.assign(rank=[-grade for grade in grades]))


@pytest.fixture(scope="module")
def collection(data_root, tmp_path_factory):
    return Collection(data_root, tmp_path_factory.mktemp("vaswani") / "index")


@pytest.mark.parametrize(
    ("kind", "stage", "steps", "batch", "rate"),
    [("monot5", MonoT5, 30, 16, 0.01), ("cross_encoder", CrossEncoder, 30, 16, 0.003)],
)
def test_a_model_trained_on_judgements_beats_bm25s_order_on_its_questions(
    kind, stage, steps, batch, rate, collection, tmp_path
):
    ranking, qrels = collection.ranking, collection.qrels
    units = collection.texts(ranking["docno"].tolist())
    learnt = [
        Example(Pair(query, unit.contents), qrels[qid].get(unit.unit_id, 0) > 0)
        for qid, query, unit in zip(ranking["qid"], ranking["query"], units, strict=True)
    ]
    small = {"monot5": checkpoints.small_t5, "cross_encoder": checkpoints.small_bert}
    network, tokenizer = small[kind]([text for example in learnt for text in example.pair])
    ndcg = {}
    for name in ("untrained", "trained"):
        if name == "trained":
            fit(kind, network, tokenizer, learnt, steps=steps, batch=batch, rate=rate)
        path = checkpoints.save_network(tmp_path / name, network, tokenizer)
        reranker = RerankTop(stage(path, device="cpu"), texts=collection.texts)
        ndcg[name] = collection.ndcg(reranker(collection.ranking))
    bm25, best = collection.ndcg(collection.ranking), collection.best_ndcg()
    assert best > bm25 + 0.2  # there is something to gain, and something to lose
    assert ndcg["trained"] > bm25 + 0.6 * (best - bm25)
    assert ndcg["untrained"] < bm25 + 0.2 * (best - bm25)
