"""Doc2Query with a tiny random T5, against transformers run directly."""

from __future__ import annotations

import os
import shutil

import pandas as pd
import pytest
import tiny_t5

from soundingline.pipelines.enrich.doc2query import Doc2Query
from soundingline.pipelines.enrich.enrichment import Enrichment
from soundingline.pipelines.enrich.phrases import QueryContext
from soundingline.pipelines.lexical.index import LexicalEngine, LexicalIndex
from soundingline.pipelines.retrieve import BM25
from soundingline.pipelines.stage import Collection
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.files import fingerprint

UNITS = [
    Unit("d0", "", "the old mill stands by the river"),
    Unit("d1", "", "who built the stone bridge"),
    Unit("d2", "", ""),
]
SMALL = {"phrases": 4, "question_length": 8, "device": "cpu", "dtype": "float32"}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    import torch

    torch.set_num_threads(1)
    os.environ["HF_HUB_OFFLINE"] = "1"
    # As many layers on both sides: transformers counts the encoder's where it caches the decoder's.
    return tiny_t5.save_t5(tmp_path_factory.mktemp("models") / "t5", num_decoder_layers=2)


@pytest.fixture
def collection(tmp_path):
    index = LexicalIndex.build(UNITS, tmp_path / "index", corpus_fingerprint="c")

    def open_index(engine):
        path = tmp_path / f"{engine.name}-{engine.fingerprint}"
        engine.build(UNITS, path, corpus_fingerprint="c")
        return engine.open(path, corpus_fingerprint="c")

    caches = tmp_path / "caches"
    return Collection(
        "c",
        index=index,
        engine=LexicalEngine(),
        open_index=open_index,
        texts=index.texts,
        caches=caches,
    )


def written(source, collection, units=UNITS):
    return dict(source.for_documents(units, collection))


def test_questions_are_sampled_as_published(checkpoint, collection):
    """Top-k sampling by transformers itself, from the text alone."""
    import torch
    from transformers import AutoTokenizer, T5ForConditionalGeneration

    questions = written(Doc2Query(model=str(checkpoint), **SMALL), collection)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    network = T5ForConditionalGeneration.from_pretrained(checkpoint).eval()
    torch.manual_seed(int(fingerprint(42, UNITS[0].contents), 16))
    ids = tokenizer(UNITS[0].contents, return_tensors="pt").input_ids
    sampled = network.generate(
        ids, do_sample=True, top_k=10, num_return_sequences=4, max_new_tokens=8
    )
    decoded = tokenizer.batch_decode(sampled, skip_special_tokens=True)
    expected = [" ".join(text.split()) for text in decoded]
    assert list(questions["d0"]) == [text for text in expected if text] != []
    assert questions["d2"] == ()


def test_a_documents_questions_depend_on_its_text_and_the_seed_alone(checkpoint, collection):
    import torch

    nowhere = Collection("c", index=collection.index)
    first = written(Doc2Query(model=str(checkpoint), **SMALL), nowhere)
    torch.manual_seed(0)
    state = torch.random.get_rng_state()
    again = written(Doc2Query(model=str(checkpoint), **SMALL), nowhere, UNITS[::-1])
    assert again == first
    assert torch.equal(torch.random.get_rng_state(), state)  # nobody else's numbers change
    other = Doc2Query(model=str(checkpoint), seed=7, **SMALL)
    assert written(other, nowhere)["d0"] != first["d0"]
    assert other.fingerprint != Doc2Query(model=str(checkpoint), **SMALL).fingerprint


def test_questions_are_written_once_and_kept_by_text(checkpoint, collection, monkeypatch):
    source = Doc2Query(model=str(checkpoint), **SMALL)
    first = written(source, collection)
    again = Doc2Query(model=str(checkpoint), **SMALL)

    def never(text):
        raise AssertionError(f"asked again for {text}")

    monkeypatch.setattr(again, "_questions", never)
    assert written(again, collection) == first
    assert again.counts["cache_hits"] == 2 and again.counts["empty"] == 1
    with pytest.raises(AssertionError, match="a new text"):
        written(again, collection, [Unit("d9", "", "a new text")])


def test_a_document_is_found_by_the_words_of_its_questions(checkpoint, collection):
    source = Doc2Query(model=str(checkpoint), **SMALL)
    stage = Enrichment(corpus=source)
    enriched = stage.enriched(collection)
    assert enriched.index.base is collection.index
    added = [
        term
        for question in written(source, collection)["d0"]
        for term in collection.index.analyzer.terms(question)
        if not collection.index.document_frequency(term)
    ]
    assert added
    frame = pd.DataFrame({"qid": ["q"], "query": [""], "query_toks": [{added[0]: 1.0}]})
    found = BM25().bind(enriched).transform(frame)["docno"].tolist()
    assert "d0" in found


def test_what_cannot_write_questions_is_refused(checkpoint, collection, tmp_path):
    with pytest.raises(InputError, match="not for queries"):
        Doc2Query(model=str(checkpoint)).for_queries([QueryContext("mill")], collection)
    with pytest.raises(InputError, match="top_k=0"):
        Doc2Query(top_k=0)
    with pytest.raises(InputError, match="there is no folder"):
        _ = Doc2Query(model=str(tmp_path / "nothing")).fingerprint
    shutil.copytree(checkpoint, tmp_path / "bare")
    (tmp_path / "bare" / "tokenizer.json").unlink()
    with pytest.raises(InputError, match=r"brings no tokenizer.json"):
        _ = Doc2Query(model=str(tmp_path / "bare")).fingerprint
