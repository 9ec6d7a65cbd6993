from __future__ import annotations

import random

import numpy as np
import pandas as pd
import pytest
from support import checkpoints

from soundingline.pipelines.rerank.monot5 import MonoT5, MonoT5Prompts
from soundingline.pipelines.rerank.reranker import Pair
from soundingline.toolkit.errors import InputError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

LENGTHS = (0, 1, 3, 8, 17, 40, 120, 470, 500, 501, 505, 900)


def text_of(length, seed=0):
    return " ".join(random.Random(f"{length} {seed}").choices(checkpoints.T5_WORDS, k=length))


PAIRS = [Pair(text_of(1 + length % 7, 1), text_of(length)) for length in LENGTHS]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return checkpoints.save_t5(tmp_path_factory.mktemp("monot5") / "model")


def scorer(model, **arguments):
    return MonoT5(str(model), **{"device": "cpu", "dtype": "float32", **arguments})


def direct_scores(folder, pairs, max_length=512, dtype="float32"):
    """transformers' whole model, one pair at a time, ids put together by hand."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder))
    kind = transformers.T5ForConditionalGeneration
    network = kind.from_pretrained(str(folder), dtype=dtype).eval()
    true, false = (tokenizer.convert_tokens_to_ids(f"▁{word}") for word in ("true", "false"))
    scores = []
    for pair in pairs:
        words = tokenizer.tokenize(f"Query: {pair.query} Document: {pair.text}")
        end = ["▁Relevant", ":", "</s>"]
        ids = tokenizer.convert_tokens_to_ids([*words[: max_length - len(end)], *end])
        with torch.no_grad():
            logits = network(
                input_ids=torch.tensor([ids]), decoder_input_ids=torch.tensor([[0]])
            ).logits[0, 0]
        scores.append(float(torch.log_softmax(logits[[true, false]].float(), dim=0)[0]))
    return scores


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
    expected = direct_scores(model, PAIRS)
    assert np.std(expected) > 0.001
    assert scorer(model).score(PAIRS) == pytest.approx(expected, abs=2e-5)


def test_scores_are_the_single_pair_scores_of_pyterrier_t5(model):
    reference = pytest.importorskip("pyterrier_t5").MonoT5ReRanker(
        tok_model=str(model), model=str(model), batch_size=1, device="cpu", verbose=False
    )
    # Names of special tokens and pieces of the prompt, which both read as they are read there.
    odd = [
        Pair("who </s> built it", "the <pad> mill </s> stands"),
        Pair("a Document: b", "Relevant:"),
    ]
    pairs = [*PAIRS, *odd]
    frame = pd.DataFrame(pairs, columns=["query", "text"])
    frame = frame.assign(qid=frame.index.astype(str), docno="d")
    expected = reference(frame).set_index("qid")["score"][frame["qid"]]
    it = scorer(model)
    assert it.score(pairs) == pytest.approx(expected.tolist(), abs=1e-4)
    # Prompts at, and just beyond, the 512 tokens that fit.
    assert 2 <= it.counts["truncated"] < len(pairs)


def test_bfloat16_is_about_as_far_off_as_transformers_own(model):
    exact = np.array(direct_scores(model, PAIRS))
    theirs = np.array(direct_scores(model, PAIRS, dtype="bfloat16"))
    alone = scorer(model, dtype="bfloat16", batch_tokens=1).score(PAIRS)
    assert alone == pytest.approx(theirs.tolist(), abs=1e-6)
    ours = np.array(scorer(model, dtype="bfloat16").score(PAIRS))
    assert 0 < np.abs(ours - exact).mean() < 1.25 * np.abs(theirs - exact).mean()


def test_the_document_is_cut_and_the_end_of_the_prompt_is_not(model):
    long, longer = Pair("mill", text_of(600)), Pair("mill", text_of(600) + " old river")
    it = scorer(model)
    scores = it.score([long, longer])
    assert scores[0] == pytest.approx(scores[1], abs=1e-6)
    assert it.counts["truncated"] == 2
    prompts = MonoT5Prompts(transformers.AutoTokenizer.from_pretrained(str(model)))
    ids = prompts.encode([long])[0].ids
    tokens = transformers.AutoTokenizer.from_pretrained(str(model)).convert_ids_to_tokens(ids)
    assert len(tokens) == 512
    assert tokens[-3:] == ["▁Relevant", ":", "</s>"]
    assert tokens[:5] == ["▁Query", ":", "▁mill", "▁Document", ":"]


def test_a_query_that_fills_the_prompt_leaves_the_document_unread_and_is_counted(
    model,
):
    pairs = [Pair(text_of(600), "the old mill"), Pair(text_of(600), "river")]
    it = scorer(model)
    scores = it.score([*pairs, Pair("mill", "river")])
    assert scores[0] == pytest.approx(scores[1], abs=1e-6)
    assert scores[:2] == pytest.approx(direct_scores(model, pairs), abs=1e-5)
    assert it.counts["queries_too_long"] == 2
    assert it.windows(pairs[0]) == [pairs[0].text]


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
def test_what_is_read_of_a_very_long_text_is_its_beginning(model, text):
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(model))
    whole = tokenizer(f"Query: mill Document: {text}", add_special_tokens=False).input_ids
    prompt = MonoT5Prompts(tokenizer).encode([Pair("mill", text)])[0]
    assert prompt.ids[:-3] == whole[:509]
    assert prompt.truncated


def test_models_of_the_hub_are_read_with_t5s_tokenizer_where_they_bring_none(
    tmp_path, model, monkeypatch
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
    assert found.score(PAIRS) == pytest.approx(scorer(model).score(PAIRS), abs=1e-6)


def test_another_tokenizer_changes_the_fingerprint_and_one_that_does_not_fit_is_refused(
    tmp_path, model
):
    words = checkpoints.T5_WORDS

    def with_tokenizer(pieces):
        checkpoints.t5_tokenizer(pieces).save_pretrained(tmp_path / str(len(pieces)))
        return scorer(model, tokenizer=str(tmp_path / str(len(pieces)))).fingerprint

    assert with_tokenizer([word for word in words if word != "mill"]) != scorer(model).fingerprint
    with pytest.raises(InputError, match=r"'true'.*T5's tokenizer.*tokenizer=t5-base"):
        with_tokenizer(["Query", "Document", "Relevant", "false"])
    with pytest.raises(InputError, match=r"has 123 tokens.*knows 114"):
        with_tokenizer([*words, *(f"word{n}" for n in range(9))])


def test_a_model_of_another_kind_and_an_encoder_alone_are_refused(tmp_path, model):
    bert = checkpoints.save_bert(tmp_path / "bert")
    with pytest.raises(InputError, match=r"monoT5 was given .* of the kind bert.*kind t5"):
        _ = scorer(bert).fingerprint
    encoder = tmp_path / "encoder"
    transformers.T5EncoderModel.from_pretrained(str(model)).save_pretrained(encoder)
    with pytest.raises(InputError, match=r"no weights for decoder"):
        scorer(encoder, tokenizer=str(model)).score(PAIRS[:1])


def test_a_batch_that_does_not_fit_is_told(model, monkeypatch):
    it = scorer(model)

    it.score([Pair("mill", "river")])

    def no_room(**inputs):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(it._network, "forward", no_room)
    with pytest.raises(InputError, match=r"batch of 11 tokens.*GB free.*fewer batch_tokens"):
        it.score([Pair("the mill", "old river")])
