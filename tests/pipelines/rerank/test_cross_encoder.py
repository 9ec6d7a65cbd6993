"""Cross-encoders against sentence-transformers, and what is refused of a checkpoint."""

from __future__ import annotations

import json
import random

import pandas as pd
import pytest

from soundingline.experiments.train_reranker import CrossEncoderLearner, small_bert
from soundingline.pipelines.rerank.cross_encoder import CrossEncoder
from soundingline.pipelines.rerank.reranker import Pair
from soundingline.pipelines.stage import Collection
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

WORDS = ("the", "old", "mill", "stands", "by", "a", "river", "who", "built", "town", "bridge")
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
    *(Pair(text_of(1 + length % 7, 1), text_of(length)) for length in (0, 1, 5, 16, 17, 40, 90)),
    Pair(text_of(90, 2), text_of(80)),  # both are cut
    Pair(text_of(70, 3), "mill"),  # of which the query is
    Pair("", "the river"),
]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def tokenizer():
    """BERT's, of 64 tokens a pair."""
    _, made = small_bert(WORDS)
    made.model_max_length = 64
    return made


def save(folder, network, tokenizer, seed=0):
    """A checkpoint with weights, biases and norms that are all random: scores are far apart."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in network.parameters():
            weight += 0.1 * torch.randn(weight.shape, generator=draw)
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def bert(folder, tokenizer, seed=0, **changed):
    config = transformers.BertConfig(
        vocab_size=len(tokenizer), **{**SIZES, "num_labels": 1, **changed}
    )
    return save(folder, transformers.BertForSequenceClassification(config), tokenizer, seed)


@pytest.fixture(scope="module")
def model(tmp_path_factory, tokenizer):
    return bert(tmp_path_factory.mktemp("bert") / "one", tokenizer)


@pytest.fixture(scope="module")
def two_labels(tmp_path_factory, tokenizer):
    return bert(tmp_path_factory.mktemp("bert") / "two", tokenizer, num_labels=2)


def scorer(model, **arguments):
    settings = {"device": "cpu", "dtype": "float32", "max_length": 64}
    return CrossEncoder(str(model), **{**settings, **arguments})


def alone(folder, pairs):
    """The logit of each pair by transformers, which is given nothing else."""
    tokens = transformers.AutoTokenizer.from_pretrained(folder)
    automatic = transformers.AutoModelForSequenceClassification
    network = automatic.from_pretrained(folder, dtype=torch.float32).eval()
    logits = []
    for pair in pairs:
        # In lists: an empty text by itself would be taken for none.
        inputs = tokens(
            [pair.query], [pair.text], truncation=True, max_length=64, return_tensors="pt"
        )
        with torch.no_grad():
            logits.append(network(**inputs).logits[0].tolist())
    return [row[-1] - (row[0] if len(row) > 1 else 0) for row in logits]


def test_scores_are_the_logits_of_sentence_transformers(model, two_labels, tmp_path):
    library = pytest.importorskip("sentence_transformers")
    own = CrossEncoderLearner.from_nothing(WORDS, seed=0)
    own.tokenizer.model_max_length = 64
    for folder in (model, two_labels, save(tmp_path, own.network, own.tokenizer)):
        reference = library.CrossEncoder(str(folder), device="cpu")
        expected = reference.predict(PAIRS, activation_fn=torch.nn.Identity())
        if expected.ndim == 2:
            expected = expected[:, 1] - expected[:, 0]
        assert expected.max() - expected.min() > 0.5
        assert scorer(folder).score(PAIRS) == pytest.approx(expected.tolist(), abs=1e-5)
        shown = reference.predict(PAIRS)
        if shown.ndim == 1:  # the sigmoid, which orders texts alike
            assert shown.argsort().tolist() == expected.argsort().tolist()


@pytest.mark.parametrize("batch_tokens", [1, 200, 100_000])
def test_neighbours_in_a_batch_do_not_change_a_score(model, batch_tokens):
    it = scorer(model, batch_tokens=batch_tokens)
    expected = dict(zip(PAIRS, alone(model, PAIRS), strict=True))
    assert max(expected.values()) - min(expected.values()) > 0.5
    shuffled = random.Random(3).sample(PAIRS, len(PAIRS))
    for pair, score in zip(shuffled, it.score(shuffled), strict=True):
        assert score == pytest.approx(expected[pair], abs=1e-5)
    assert it.score([]) == []


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
    pairs = [pair for pair in PAIRS if pair.text]
    expected = alone(tmp_path / "reference", pairs)
    assert max(expected) - min(expected) > 0.1
    assert scorer(folder).score(pairs) == pytest.approx(expected, abs=1e-5)
    if network is roberta:  # positions begin behind that of padding
        with pytest.raises(InputError, match="at most 64, the positions of this model"):
            _ = scorer(folder, max_length=65).fingerprint


def test_names_of_special_tokens_in_a_text_are_text(model, tokenizer):
    hostile = Pair("mill", "the [SEP] river")
    row = scorer(model)._inputs.encode([hostile])[0].row
    assert row["input_ids"].count(tokenizer.sep_token_id) == 2
    assert scorer(model).score([hostile]) != alone(model, [hostile])
    assert scorer(model).score([Pair("mill", "x\ud800")])  # no text of a tokenizer


def test_counts_tell_which_pairs_were_cut(model):
    it = scorer(model)
    exact = Pair("the mill", text_of(64 - 5))  # and [CLS], two [SEP]
    it.score([exact, Pair(exact.query, f"{exact.text} river"), Pair(text_of(70), "mill")])
    assert it.count() == {"truncated": 2}


def test_windows_hold_every_word_once_and_fit_whole(model):
    words = random.Random(5).choices([*WORDS, "Zürich", "x" * 9], k=400)
    pair = Pair("who built the old mill", "\n".join(words))
    it = scorer(model)
    texts = it.windows(pair)
    assert len(texts) > 3
    assert "".join(texts).split() == words
    windows = [Pair(pair.query, text) for text in texts]
    it.score(windows)
    assert it.counts["truncated"] == 0
    sizes = [len(one.row["input_ids"]) for one in it._inputs.encode(windows[:-1])]
    assert min(sizes) > 64 - 12  # the longest word
    # One that fits, and one whose query leaves less than an eighth.
    for whole in (Pair("mill", "the river"), Pair(text_of(54), text_of(99)), Pair("mill", "")):
        assert it.windows(whole) == [whole.text]


def test_bfloat16_keeps_the_scores_apart(model, tmp_path):
    tokens = plain_tokenizer("<s> $A </s> </s> $B </s>", pad_token="<pad>")
    for folder in (model, save(tmp_path, modernbert(len(tokens)), tokens)):
        exact, rounded = scorer(folder).score(PAIRS), scorer(folder, dtype="bfloat16").score(PAIRS)
        assert rounded == pytest.approx(exact, abs=0.3)
        assert rounded != exact
        assert any(score != float(torch.tensor(score).bfloat16()) for score in rounded)


def test_the_fingerprint_follows_what_changes_scores(model, tmp_path, tokenizer):
    other = bert(tmp_path / "other", tokenizer, seed=1)
    changed = [scorer(other), scorer(model, dtype="bfloat16"), scorer(model, max_length=48)]
    prints = {one.fingerprint for one in (scorer(model), *changed)}
    assert len(prints) == 4
    assert scorer(model, batch_tokens=7).fingerprint == scorer(model).fingerprint


def config_of(folder, **changed):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))


def test_what_cannot_score_pairs_is_refused_in_one_line(tmp_path, tokenizer):
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
        (tmp_path / "nowhere", "there is no folder"),
    ):
        with pytest.raises(InputError, match=message) as refused:
            _ = scorer(folder).fingerprint
        assert "\n" not in str(refused.value)
    # One that claims to be a classifier, and has no such weights.
    config_of(encoder, architectures=["BertForSequenceClassification"])
    with pytest.raises(InputError, match=r"no weights for classifier\.bias, classifier\.weight"):
        scorer(encoder).score(PAIRS[:1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_length": 4}, "8 or more"),
        ({"max_length": 513}, "at most 512, the positions of this model"),
        ({"batch_tokens": 0}, "1 or more"),
        ({"dtype": "float16"}, "bfloat16, float32"),
    ],
)
def test_wrong_arguments_are_told(model, arguments, message):
    with pytest.raises(InputError, match=message):
        _ = scorer(model, **arguments).fingerprint


def test_a_document_scores_as_its_best_window_and_the_tail_stays(model):
    texts = {"long": text_of(300), "short": "the river", "tail": "by the mill"}
    ranking = pd.DataFrame(
        {"qid": "1", "query": "old mill", "docno": list(texts), "score": [3.0, 2.0, 1.0]}
    )
    collection = Collection(
        "documents",
        texts=lambda docnos: [Unit(docno, "", texts[docno]) for docno in docnos],
        whole_documents=True,
    )
    stage = CrossEncoder(str(model), depth=2, max_length=64, device="cpu", dtype="float32")
    ranked = stage.bind(collection)(ranking).set_index("docno")
    parts = scorer(model).windows(Pair("old mill", texts["long"]))
    windows = [Pair("old mill", part) for part in parts]
    assert len(windows) > 4
    assert ranked["score"]["long"] == pytest.approx(max(alone(model, windows)), abs=1e-5)
    short = alone(model, [Pair("old mill", texts["short"])])
    assert ranked["score"]["short"] == pytest.approx(short[0], abs=1e-5)
    assert ranked["rank"]["tail"] == 2
