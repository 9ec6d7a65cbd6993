from __future__ import annotations

import json

import pytest
from support import checkpoints

from soundingline.pipelines.rerank.rankllama import RankLLaMA, RankLlamaPrompts
from soundingline.pipelines.rerank.reranker import Pair
from soundingline.toolkit.errors import InputError

torch = pytest.importorskip("torch")

TEXTS = (
    "the old mill",
    "by the river the mill stands",
    "zebra über alles, 42 times " * 5,
    "the " * 60 + "river",
    "",
    "who built the old mill by the river",
)
PAIRS = [Pair(query, text) for query in ("who built the old mill", "river?") for text in TEXTS]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def retriever(tmp_path_factory):
    return checkpoints.save_rankllama(tmp_path_factory.mktemp("retriever") / "whole")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return checkpoints.save_base(tmp_path_factory.mktemp("base") / "llama")


def encoded(pair, **settings):
    return RankLlamaPrompts(checkpoints.llama_tokenizer(), **settings).encode([pair])[0]


def scorer(model, **arguments):
    return RankLLaMA(str(model), **{"device": "cpu", "dtype": "float32", **arguments})


def card_score(model, tokenizer, pair):
    """As the model card computes one pair: the tokenizer's own pair, the model's own pooling."""
    text = " ".join(pair.text.split())
    inputs = tokenizer(f"query: {pair.query}", f"document: {text}", return_tensors="pt")
    with torch.no_grad():
        return float(model(**inputs).logits[0][0])


def whole_model(folder):
    from transformers import AutoModelForSequenceClassification

    return AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1).eval()


def logit(model, ids):
    with torch.no_grad():
        return float(model(torch.tensor([ids])).logits[0][0])


def test_the_last_token_is_found_where_padding_and_text_share_a_token(tmp_path):
    # A model that calls `</s>` its padding: looking for the last token that is no padding would
    # find the one before the end of the sequence.
    folder = checkpoints.save_rankllama(tmp_path / "whole", pad_token_id=2)
    model = whole_model(folder)
    model.config.pad_token_id = None
    it = scorer(folder, end_of_sequence=True)
    expected = [logit(model, encoded(pair, end_of_sequence=True).ids) for pair in PAIRS]
    assert it.score(PAIRS) == pytest.approx(expected, abs=2e-5)
    without = scorer(folder).score(PAIRS)
    assert all(abs(one - other) > 1e-3 for one, other in zip(without, expected, strict=True))


def test_a_long_document_is_cut_and_the_end_of_sequence_stays(retriever):
    tokenizer = checkpoints.llama_tokenizer()
    pair = Pair("who built the mill", "by the river " * 200)
    card = tokenizer(f"query: {pair.query}", f"document: {pair.text.strip()}").input_ids
    plain = encoded(pair, max_length=64)
    ended = encoded(pair, max_length=64, end_of_sequence=True)
    assert plain.ids == card[:64]
    assert ended.ids == [*card[:63], tokenizer.eos_token_id]
    assert plain.truncated and not plain.queries_truncated
    it = scorer(retriever, max_length=64, end_of_sequence=True)
    assert it.score([pair]) == pytest.approx([logit(whole_model(retriever), ended.ids)], abs=2e-5)


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


def test_the_joined_layout_is_one_text_behind_one_beginning(retriever):
    tokenizer = checkpoints.llama_tokenizer()
    pair = Pair("who built the old mill", "title\nby  the river")
    joined = tokenizer("query: who built the old mill document: title by the river").input_ids
    assert joined[0] == tokenizer.bos_token_id
    assert encoded(pair, layout="joined").ids == joined
    it = scorer(retriever, layout="joined")
    assert it.score([pair]) == pytest.approx([logit(whole_model(retriever), joined)], abs=2e-5)


def test_the_layout_of_the_text_ranking_study_is_an_argument():
    tokenizer = checkpoints.llama_tokenizer()
    prefixes = {"query_prefix": "query:  ", "document_prefix": "document:   "}
    as_tevatron = tokenizer("query:  the mill document:   by the river").input_ids
    pair = Pair("the mill", "by the river")
    assert encoded(pair, layout="joined", **prefixes).ids == as_tevatron


def test_an_adapter_scores_as_the_model_that_it_is_merged_into(tmp_path, base):
    adapted = checkpoints.save_rankllama_adapter(tmp_path / "adapter", base)
    tokenizer = checkpoints.llama_tokenizer()
    expected = [card_score(adapted, tokenizer, pair) for pair in PAIRS]
    adapted.merge_and_unload().save_pretrained(tmp_path / "merged")
    tokenizer.save_pretrained(tmp_path / "merged")
    from_adapter, from_merged = scorer(tmp_path / "adapter"), scorer(tmp_path / "merged")
    assert from_adapter.score(PAIRS) == pytest.approx(expected, abs=1e-4)
    assert from_merged.score(PAIRS) == pytest.approx(expected, abs=1e-4)


def test_another_base_than_the_named_one_can_be_given(tmp_path, base):
    checkpoints.save_rankllama_adapter(tmp_path / "adapter", base)
    config = tmp_path / "adapter" / "adapter_config.json"
    named = json.loads(config.read_text())
    expected = scorer(tmp_path / "adapter").score(PAIRS)
    config.write_text(json.dumps({**named, "base_model_name_or_path": str(tmp_path / "gone")}))
    with pytest.raises(InputError, match=r"gone"):
        _ = scorer(tmp_path / "adapter").fingerprint
    assert scorer(tmp_path / "adapter", base=str(base)).score(PAIRS) == expected


def test_an_adapter_without_an_output_is_refused(tmp_path, base):
    checkpoints.save_rankllama_adapter(tmp_path / "adapter", base, head=False)
    with pytest.raises(InputError, match="no output that was trained"):
        scorer(tmp_path / "adapter").score(PAIRS[:1])


def test_a_language_model_is_refused(base):
    with pytest.raises(InputError, match="no output that was trained"):
        _ = scorer(base).fingerprint


def test_a_checkpoint_that_claims_an_output_and_lacks_it_is_refused(tmp_path, base):
    config = json.loads((base / "config.json").read_text())
    for path in base.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config["id2label"] = {"0": "LABEL_0"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="no output that was trained"):
        scorer(tmp_path).score(PAIRS[:1])


def test_counts_tell_what_was_cut(retriever):
    it = scorer(retriever, max_length=64)
    assert it.score([]) == []
    it.score([Pair("mill", "river"), Pair("mill", "river " * 99), Pair("mill " * 99, "river")])
    assert it.count() == {"truncated": 1, "queries_truncated": 1}


def test_the_fingerprint_of_an_adapter_follows_adapter_and_base(tmp_path):
    one, two = (checkpoints.save_base(tmp_path / f"base{seed}", seed) for seed in (0, 1))
    checkpoints.save_rankllama_adapter(tmp_path / "a", one)
    checkpoints.save_rankllama_adapter(tmp_path / "b", one, seed=2)
    found = [
        scorer(tmp_path / "a"),
        scorer(tmp_path / "a", base=str(two)),
        scorer(tmp_path / "b"),
        scorer(tmp_path / "b", base=str(two)),
    ]
    assert len({each.fingerprint for each in found}) == 4


def test_a_model_of_another_kind_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(InputError, match=r"kind bert.*kind llama"):
        _ = scorer(tmp_path).fingerprint


def test_special_tokens_in_a_text_are_text():
    tokenizer = checkpoints.llama_tokenizer()
    for layout, begins in (("pair", 2), ("joined", 1)):
        prompt = RankLlamaPrompts(tokenizer, layout=layout, end_of_sequence=True)
        ids = prompt.encode([Pair("who </s> built", "<s> the old </s> mill </s>")])[0].ids
        assert ids.count(tokenizer.bos_token_id) == begins
        assert ids.count(tokenizer.eos_token_id) == 1 and ids[-1] == tokenizer.eos_token_id
    assert "</s>" in prompt.windows(Pair("who", "the </s> mill"))[0]
