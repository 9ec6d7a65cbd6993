"""What every re-ranker by a checkpoint must do; cross-encoders against sentence-transformers."""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pandas as pd
import pytest
from support import checkpoints

from soundingline.pipelines import models
from soundingline.pipelines.rerank.cross_encoder import CrossEncoder
from soundingline.pipelines.rerank.monot5 import MonoT5
from soundingline.pipelines.rerank.rankllama import RankLLaMA
from soundingline.pipelines.rerank.reranker import Pair
from soundingline.pipelines.stage import Collection
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

WORDS = ("the", "old", "mill", "stands", "by", "river", "who", "built")
LENGTH = 96
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "initializer_range": 0.3,
}
ROBERTA = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}


def text_of(length, seed=0):
    return " ".join(random.Random(f"{length} {seed}").choices(WORDS, k=length))


PAIRS = [
    Pair(text_of(1 + length % 7, 1), text_of(length)) for length in (0, 1, 3, 8, 17, 17, 40, 60)
]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    torch.set_num_threads(1)


class Case(NamedTuple):
    """A re-ranker: how a checkpoint of it is made, and a pair's score by its library alone."""

    kind: Any
    save: Callable
    reference: Callable
    automatic: str  # the class of transformers that loads the weights
    changes: tuple[Mapping[str, Any], ...]  # arguments that change scores
    wrong: Mapping[str, Mapping[str, Any]]  # arguments by their message


def of_t5(folder):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    network = transformers.T5ForConditionalGeneration.from_pretrained(folder).eval()
    true, false = (tokenizer.convert_tokens_to_ids(f"▁{word}") for word in ("true", "false"))

    def score(pair):
        prompt = f"Query: {pair.query} Document: {pair.text} Relevant:"
        inputs = tokenizer([prompt], return_tensors="pt")
        logits = network(**inputs, decoder_input_ids=torch.tensor([[0]])).logits[0, 0]
        return torch.log_softmax(logits[[true, false]], dim=0)[0]

    return score


def of_classifier(folder):
    tokens = transformers.AutoTokenizer.from_pretrained(folder)
    automatic = transformers.AutoModelForSequenceClassification
    network = automatic.from_pretrained(folder, dtype=torch.float32).eval()

    def score(pair):
        # In lists: an empty text by itself would be taken for none.
        inputs = tokens(
            [pair.query], [pair.text], truncation=True, max_length=64, return_tensors="pt"
        )
        logits = network(**inputs).logits[0]
        return logits[-1] - (logits[0] if len(logits) > 1 else 0)

    return score


def of_model_card(folder):
    automatic = transformers.AutoModelForSequenceClassification
    network, tokenizer = automatic.from_pretrained(folder).eval(), checkpoints.llama_tokenizer()

    def score(pair):
        texts = f"query: {pair.query}", f"document: {pair.text}"
        return network(**tokenizer(*texts, return_tensors="pt")).logits[0][0]

    return score


def alone(reference, folder, pairs):
    with torch.no_grad():
        return [float(score) for score in map(reference(str(folder)), pairs)]


def save(folder, network, tokenizer, seed=0):
    """A checkpoint with weights, biases and norms that are all random: scores are far apart."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in network.parameters():
            weight += 0.1 * torch.randn(weight.shape, generator=draw)
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_bert(folder, seed=0, words=64, **changed):
    """With BERT's tokenizer, of `words` tokens a pair."""
    _, tokenizer = checkpoints.small_bert(WORDS)
    tokenizer.model_max_length = words
    config = transformers.BertConfig(
        vocab_size=len(tokenizer), **{**SIZES, "num_labels": 1, **changed}
    )
    return save(folder, transformers.BertForSequenceClassification(config), tokenizer, seed)


CPU = {"device": "cpu", "dtype": "float32"}
WRONG = {
    "batch_tokens=0": {"batch_tokens": 0},
    "device='tpu'": {"device": "tpu"},
    "bfloat16, float32": {"dtype": "float16"},
}
CASES = {
    "monot5": Case(
        MonoT5,
        checkpoints.save_t5,
        of_t5,
        "T5ForConditionalGeneration",
        (),
        {
            **WRONG,
            r"max_length=0.*1 to 4096": {"max_length": 0},
            r"max_length=3.*more than the 3 tokens": {"max_length": 3},
            "1 to 4096": {"max_length": 10**6},
        },
    ),
    "cross_encoder": Case(
        CrossEncoder,
        lambda folder, seed=0: save_bert(folder, seed, LENGTH + 32),
        of_classifier,
        "AutoModelForSequenceClassification",
        (),
        {
            **WRONG,
            "8 or more": {"max_length": 4},
            "at most 512, the positions of this model": {"max_length": 513},
        },
    ),
    "rankllama": Case(
        RankLLaMA,
        checkpoints.save_rankllama,
        of_model_card,
        "AutoModelForSequenceClassification",
        ({"layout": "joined"}, {"end_of_sequence": True}, {"query_prefix": "query:  "}),
        {**WRONG, "pair, joined": {"layout": "sandwich"}, "32 or more": {"max_length": 4}},
    ),
}


@pytest.fixture(scope="module", params=CASES)
def case(request):
    return CASES[request.param]


@pytest.fixture(scope="module")
def folder(case, tmp_path_factory):
    return case.save(tmp_path_factory.mktemp("checkpoint") / "model")


@pytest.fixture(scope="module")
def make(case, folder):
    return lambda **arguments: case.kind(str(folder), **{**CPU, **arguments})


@pytest.mark.parametrize("batch_tokens", [1, 200, 100_000])
def test_scores_are_those_of_each_pair_alone_by_the_library(case, folder, make, batch_tokens):
    pairs = [pair for pair in PAIRS if case.kind is not CrossEncoder or len(pair.text) < 200]
    expected = dict(zip(pairs, alone(case.reference, folder, pairs), strict=True))
    assert max(expected.values()) - min(expected.values()) > 0.1
    it = make(batch_tokens=batch_tokens)
    shuffled = random.Random(3).sample(pairs, len(pairs))
    for pair, score in zip(shuffled, it.score(shuffled), strict=True):
        assert score == pytest.approx(expected[pair], abs=2e-5)
    assert it.score([]) == []


def test_bfloat16_keeps_the_scores_apart(make):
    exact, rounded = make().score(PAIRS), make(dtype="bfloat16").score(PAIRS)
    assert rounded == pytest.approx(exact, abs=0.5)
    assert rounded != exact
    # The output itself is not rounded to eight bits.
    assert any(score != float(torch.tensor(score).bfloat16()) for score in rounded)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_a_gpu_gives_the_scores_of_the_cpu(make):
    on_cpu = make().score(PAIRS)
    assert make(device="cuda").score(PAIRS) == pytest.approx(on_cpu, abs=1e-4)
    assert make(device="cuda", dtype="bfloat16").score(PAIRS) == pytest.approx(on_cpu, abs=0.5)


@pytest.mark.parametrize("layout", ["pair", "joined"])
def test_windows_hold_every_word_once_and_fit(case, make, layout):
    own = case.kind is RankLLaMA
    if layout == "joined" and not own:
        pytest.skip("a layout of RankLLaMA")
    words = random.Random(5).choices([*WORDS, "Zürich", "x" * 9, "9" * 7], k=400)
    pair = Pair("who built the old mill", "\n".join(words))
    it = make(max_length=LENGTH, **({"layout": layout, "end_of_sequence": True} if own else {}))
    texts = it.windows(pair)
    assert len(texts) > 3
    assert " ".join(texts).split() == words
    windows = [Pair(pair.query, text) for text in texts]
    it.score(windows)
    assert it.counts["truncated"] == 0
    # No window but the last one has room for another word.
    more = [Pair(pair.query, f"{text} {'x' * 9} {'x' * 9}") for text in texts[:-1]]
    it.score(more)
    assert it.counts["truncated"] >= len(more) - 1


@pytest.mark.parametrize("text", ["x" * 900, "x" * 300 + " " + "☃" * 900 + " mill", " " * 2000])
def test_a_text_without_white_space_is_cut_anyway(make, text):
    it = make(max_length=LENGTH)
    windows = it.windows(Pair("mill", text))
    assert "".join("".join(windows).split()) == "".join(text.split())
    it.score([Pair("mill", window) for window in windows])
    assert it.counts["truncated"] == 0


@pytest.mark.parametrize("text", ["", "the river", "the old mill stands"])
def test_a_text_that_fits_is_its_own_window(make, text):
    assert make().windows(Pair("mill", text)) == [text]


def test_weights_are_loaded_once_by_many_threads(case, make, monkeypatch):
    automatic = getattr(transformers, case.automatic)
    loads, load = [], automatic.from_pretrained
    monkeypatch.setattr(
        automatic, "from_pretrained", lambda *a, **k: loads.append(1) or load(*a, **k)
    )
    it = make()
    _ = it.fingerprint
    assert not loads
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda number: it.score_pairs(PAIRS[number:]), range(8)))
    assert len(loads) == 1
    for number, scores in enumerate(found):
        assert scores == pytest.approx(found[0][number:], abs=2e-5)


def test_the_fingerprint_follows_what_changes_scores(case, make, tmp_path):
    other = case.kind(str(case.save(tmp_path / "other", seed=1)), **CPU)
    always = ({"dtype": "bfloat16"}, {"max_length": 48})
    changed = [other, *(make(**arguments) for arguments in (*always, *case.changes))]
    assert len({each.fingerprint for each in (make(), *changed)}) == 1 + len(changed)
    assert make(batch_tokens=7).fingerprint == make().fingerprint
    assert make(batch_tokens=7) == make() != other


def test_a_pickled_one_is_equal_and_loads_its_model_again(make):
    it = make(depth=7).bind(Collection("c"))
    scores = it.score(PAIRS[:2])
    copy = pickle.loads(pickle.dumps(it))
    assert copy == it and copy.collection == it.collection
    assert copy.score(PAIRS[:2]) == scores


def test_wrong_arguments_are_refused(case, make):
    for message, arguments in case.wrong.items():
        with pytest.raises(InputError, match=message):
            _ = make(**arguments).fingerprint


def test_a_checkpoint_that_is_missing_is_refused_in_one_line(case, tmp_path, monkeypatch):
    monkeypatch.setattr(pytest.importorskip("huggingface_hub.constants"), "HF_HUB_OFFLINE", True)
    default = case.kind().model
    for it, message in (
        (case.kind(), f"hf download {default}"),
        (case.kind(str(tmp_path / "nowhere")), "there is no folder"),
    ):
        with pytest.raises(InputError, match=message) as refused:
            _ = it.fingerprint
        assert "\n" not in str(refused.value)


def test_weights_that_do_not_fit_are_refused_with_the_sizes(case, folder, make, monkeypatch):
    weights = sum(
        each.numel()
        for each in getattr(transformers, case.automatic).from_pretrained(folder).parameters()
    )
    monkeypatch.setattr(models, "free_bytes", lambda device: 3 * weights)
    make(dtype="bfloat16").score(PAIRS[:1])
    with pytest.raises(InputError, match=r"needs 0\.0 GB and cpu has 0\.0 GB free"):
        make().score(PAIRS[:1])


@pytest.mark.parametrize(
    ("whole", "argument", "by_windows"),
    [(True, None, True), (False, None, False), (True, "truncate", False)],
)
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
    plain = make(depth=2, max_length=64, long_documents=argument)
    stage = plain.bind(collection)
    assert plain.collection is None and plain.long_documents == argument
    assert ("windows" in stage.counts) == by_windows
    frame = pd.DataFrame(
        {"qid": "1", "query": "who", "docno": list(texts), "score": [3.0, 2.0, 1.0]}
    )
    ranked = stage(frame).set_index("docno")
    for docno in ("bridge", "river"):
        pair = Pair("who", f"the mill\n{texts[docno]}")
        parts = [Pair("who", text) for text in plain.windows(pair)] if by_windows else [pair]
        assert (len(parts) > 3) == (by_windows and docno == "bridge")
        assert ranked["score"][docno] == pytest.approx(
            max(make(max_length=64).score(parts)), abs=1e-4
        )
    assert ranked["rank"]["zebra"] == 2


# Cross-encoders.

EDGES = [
    *(Pair(text_of(1 + length % 7, 1), text_of(length)) for length in (0, 1, 5, 16, 17, 40, 90)),
    Pair(text_of(90, 2), text_of(80)),  # both are cut
    Pair(text_of(70, 3), "mill"),  # of which the query is
    Pair("", "the river"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_bert(tmp_path_factory.mktemp("bert") / "one")


def scorer(model, **arguments):
    return CrossEncoder(str(model), **{**CPU, "max_length": 64, **arguments})


def test_scores_are_the_logits_of_sentence_transformers(model, tmp_path):
    library = pytest.importorskip("sentence_transformers")
    network, own_tokenizer = checkpoints.small_bert(WORDS)
    own_tokenizer.model_max_length = 64
    trained = save(tmp_path / "trained", network, own_tokenizer)
    for folder in (model, save_bert(tmp_path / "two", num_labels=2), trained):
        reference = library.CrossEncoder(str(folder), device="cpu")
        expected = reference.predict(EDGES, activation_fn=torch.nn.Identity())
        if expected.ndim == 2:
            expected = expected[:, 1] - expected[:, 0]
        assert expected.max() - expected.min() > 0.5
        assert scorer(folder).score(EDGES) == pytest.approx(expected.tolist(), abs=1e-5)
        shown = reference.predict(EDGES)
        if shown.ndim == 1:  # the sigmoid, which orders texts alike
            assert shown.argsort().tolist() == expected.argsort().tolist()


def distilbert(vocabulary):
    config = transformers.DistilBertConfig(
        vocab_size=vocabulary,
        dim=32,
        hidden_dim=48,
        n_layers=2,
        n_heads=4,
        initializer_range=0.3,
        num_labels=1,
    )
    return transformers.DistilBertForSequenceClassification(config)


def roberta(vocabulary):
    config = transformers.XLMRobertaConfig(
        vocab_size=vocabulary,
        type_vocab_size=1,
        max_position_embeddings=66,
        num_labels=1,
        **ROBERTA,
        **SIZES,
    )
    return transformers.XLMRobertaForSequenceClassification(config)


def modernbert(vocabulary):
    config = transformers.ModernBertConfig(
        vocab_size=vocabulary, num_labels=1, pad_token_id=0, **SIZES
    )
    return transformers.ModernBertForSequenceClassification(config)


def llama(vocabulary):
    config = transformers.LlamaConfig(vocab_size=vocabulary, num_labels=1, **SIZES)
    return transformers.LlamaForSequenceClassification(config)


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


@pytest.mark.parametrize("network", [distilbert, roberta, modernbert, llama])
def test_other_architectures_score_as_transformers_has_them(network, tmp_path):
    # The texts are of a second kind, which none of these networks has.
    tokens = plain_tokenizer("<s> $A </s> </s> $B:1 </s>:1", pad_token="<pad>")
    folder = save(tmp_path / "model", network(len(tokens)), tokens)
    tokens.model_input_names = ["input_ids", "attention_mask"]
    tokens.save_pretrained(tmp_path / "reference")
    for path in folder.glob("*.*"):
        if "tokenizer" not in path.name:
            (tmp_path / "reference" / path.name).write_bytes(path.read_bytes())
    pairs = [pair for pair in EDGES if pair.text]
    expected = alone(of_classifier, tmp_path / "reference", pairs)
    assert max(expected) - min(expected) > 0.1
    assert scorer(folder).score(pairs) == pytest.approx(expected, abs=1e-5)
    if network is roberta:  # positions begin behind that of padding
        with pytest.raises(InputError, match="at most 64, the positions of this model"):
            _ = scorer(folder, max_length=65).fingerprint


def test_names_of_special_tokens_in_a_text_are_text(model):
    hostile = Pair("mill", "the [SEP] river")
    row = scorer(model)._inputs.encode([hostile])[0].row
    assert row["input_ids"].count(checkpoints.small_bert(WORDS)[1].sep_token_id) == 2
    assert scorer(model).score([hostile]) != alone(of_classifier, model, [hostile])
    assert scorer(model).score([Pair("mill", "x\ud800")])  # no text of a tokenizer


def test_counts_tell_which_pairs_were_cut(model):
    it = scorer(model)
    exact = Pair("the mill", text_of(64 - 5))  # and [CLS], two [SEP]
    it.score([exact, Pair(exact.query, f"{exact.text} river"), Pair(text_of(70), "mill")])
    assert it.count() == {"truncated": 2}


def test_a_query_that_leaves_little_room_has_one_window(model):
    whole = Pair(text_of(54), text_of(99))
    assert scorer(model).windows(whole) == [whole.text]


def config_of(folder, **changed):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))


def test_what_cannot_score_pairs_is_refused_in_one_line(tmp_path):
    _, tokenizer = checkpoints.small_bert(WORDS)
    sizes = {"vocab_size": len(tokenizer), **SIZES}
    encoder, three = tmp_path / "encoder", tmp_path / "three"
    save(encoder, transformers.BertModel(transformers.BertConfig(**sizes)), tokenizer)
    three.mkdir()
    transformers.BertConfig(num_labels=3, **sizes).save_pretrained(three)
    unpadded = plain_tokenizer("<s> $A </s> $B </s>", eos_token="</s>")
    endless = save(tmp_path / "endless", llama(len(unpadded)), unpadded)
    for folder, message in (
        (encoder, r"has no output that was trained to score pairs \(BertModel\)"),
        (three, "is a classifier with 3 labels"),
        (endless, "has no token to pad with"),
    ):
        with pytest.raises(InputError, match=message) as refused:
            _ = scorer(folder).fingerprint
        assert "\n" not in str(refused.value)
    # One that claims to be a classifier, and has no such weights.
    config_of(encoder, architectures=["BertForSequenceClassification"])
    with pytest.raises(InputError, match=r"no weights for classifier\.bias, classifier\.weight"):
        scorer(encoder).score(EDGES[:1])
