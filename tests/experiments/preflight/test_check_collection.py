"""Collections with one fault each, and collections without any."""

import json
import os
from dataclasses import replace
from pathlib import Path
from random import Random

import pandas as pd
import pyterrier as pt
import pytest
from support.benchmarks import TINY, write_beir
from support.checkpoints import EMBEDDER_WORDS, save_sentence_model

from soundingline.experiments.build import make
from soundingline.experiments.config import Settings
from soundingline.experiments.pipeline import build_pipeline
from soundingline.experiments.preflight.collection import check_collection, openings
from soundingline.pipelines.grep import GrepRag
from soundingline.toolkit.corpus import SqliteStore
from soundingline.toolkit.data import Document

ROOT = Path(__file__).resolve().parents[3]
WORDS = [f"{first}{last}" for first in "bdfgklmnprstv" for last in ("ando", "erin", "ilos", "urak")]


def sentence(random, words=12):
    return f"{' '.join(random.choices(WORDS, k=words)).capitalize()}."


def texts(count=60, seed=1, sentences=4):
    random = Random(seed)
    return [" ".join(sentence(random) for _ in range(sentences)) for _ in range(count)]


def built(folder, contents, *overrides, judged=("d1", "d2"), questions=6):
    """The pipeline over texts with the ids d0, d1, ..., whose questions are made of their words."""
    random = Random(2)
    rows = [{"_id": f"d{n}", "title": "", "text": text} for n, text in enumerate(contents)]
    queries = [{"_id": f"q{n}", "text": sentence(random, 6)} for n in range(questions)]
    path = write_beir(
        folder / "beir",
        corpus="".join(f"{json.dumps(row)}\n" for row in rows),
        queries="".join(f"{json.dumps(row)}\n" for row in queries),
        qrels="query-id\tcorpus-id\tscore\n" + "".join(f"q0\t{docid}\t1\n" for docid in judged),
    )
    words = ("benchmark=beir", f"benchmark.path={path}", "benchmark.split=null")
    return opened(folder, *words, *overrides)


def opened(folder, *words):
    places = (f"paths.indexes={folder}/indexes", f"paths.caches={folder}/caches")
    config = Settings.compose([*words, *places]).config
    return build_pipeline(config, make(config.budget))


class Fixed(pt.Transformer):
    """Finds the same units for every query."""

    def __init__(self, *docnos):
        self.docnos = docnos

    def transform(self, inp):
        rows = [
            (qid, docno, -place) for qid in inp["qid"] for place, docno in enumerate(self.docnos)
        ]
        return pd.DataFrame(rows, columns=["qid", "docno", "score"])


class Forgetful(pt.Transformer):
    """The ranking of another retriever without the documents of some numbers."""

    def __init__(self, retriever, forgotten):
        self.retriever, self.forgotten = retriever, forgotten

    def transform(self, inp):
        ranking = self.retriever.transform(inp)
        return ranking[~ranking["docno"].str[1:].astype(int).isin(self.forgotten)]


def with_retriever(pipeline, retriever):
    return replace(pipeline, parts={"retriever": retriever})


def with_store(pipeline, contents, *, renamed=()):
    store = SqliteStore.in_memory(
        Document(f"{'y' if number in renamed else 'd'}{number}", "", text)
        for number, text in enumerate(contents)
    )
    return replace(pipeline, collection=replace(pipeline.collection, store=store))


def other_index(folder):
    other = built(folder / "other", texts(seed=9))
    return with_retriever(built(folder, texts()), other.parts["retriever"])


def with_units(folder, count):
    """A pipeline over 60 documents with the index of the first so many."""
    whole = built(folder, texts())
    whole.collection.index = built(folder / "small", texts(count)).collection.index
    return whole


def of_another_count(folder):
    pipeline = built(folder, texts())
    pipeline.benchmark.document_count = 61
    return pipeline


def drawn(pipeline):
    return [int(each.docid[1:]) for each in openings(pipeline.collection.store)]


def forgetting(count):
    def pipeline(folder):
        whole = built(folder, texts())
        retriever = whole.parts["retriever"]
        return with_retriever(whole, Forgetful(retriever, drawn(whole)[:count]))

    return pipeline


SAME = Fixed(*(f"d{number}" for number in range(12)))
FAULTS = {
    "the index of another corpus": (
        other_index,
        "of 20 documents are among the first 10 units for their own first sentences: the index",
    ),
    "the same hits for every question": (
        lambda folder: with_retriever(built(folder, texts()), SAME),
        "the retriever ranks the same units for each of 26 different queries",
    ),
    "no hits": (
        lambda folder: with_retriever(built(folder, texts()), Fixed()),
        "the retriever finds nothing for any of 26 queries",
    ),
    "most documents are not found": (forgetting(11), "only 9 of 20 documents are among the first"),
    "a store without texts": (
        lambda folder: with_store(built(folder, texts()), texts(), renamed=(58, 59)),
        "units that the index finds, such as d",
    ),
    "no judged document": (
        lambda folder: built(folder, texts(), judged=("x1", "x2", "x3")),
        "3 of 3 judged documents of beir are not in its corpus, such as x1",
    ),
    "another number of documents": (
        of_another_count,
        "the corpus has 60 documents, and that of beir is published with 61",
    ),
    "too few units in the index": (
        lambda folder: with_units(folder, 20),
        "has 20 units, and the store 60",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_fault_of_a_collection_is_one_line_that_says_what_to_do(fault, tmp_path):
    make, message = FAULTS[fault]
    (finding,) = check_collection(make(tmp_path))
    assert message in finding.message
    assert (finding.check, finding.level) == ("collection", "fault")
    assert finding.do
    assert "\n" not in finding.message + finding.do


def test_some_documents_that_are_not_found_are_a_note(tmp_path):
    assert check_collection(forgetting(2)(tmp_path)) == []
    (finding,) = check_collection(forgetting(3)(tmp_path / "3"))
    assert finding.level == "note"
    assert finding.message.startswith("17 of 20 documents are among the first 10 units")
    levels = [each.level for each in check_collection(forgetting(10)(tmp_path / "10"))]
    assert levels == ["note"]


def test_some_judged_documents_that_are_missing_are_a_note(tmp_path):
    (finding,) = check_collection(built(tmp_path, texts(), judged=("d1", "x1", "d2")))
    assert finding.level == "note"
    assert finding.message.startswith("1 of 3 judged documents of beir are not in its corpus")


def test_an_index_without_the_empty_units_is_a_note(tmp_path):
    assert [each.level for each in check_collection(with_units(tmp_path, 55))] == ["note"]


def test_searches_that_take_too_long_are_ended_with_a_note(tmp_path):
    (finding,) = check_collection(built(tmp_path, texts()), seconds=0.0)
    assert (finding.level, finding.message[:20]) == ("note", "0 of 26 searches too")


class Silent(GrepRag):
    def transform(self, inp):
        raise AssertionError("a stage was called that costs money")


def test_no_paid_stage_is_called(tmp_path):
    whole = built(tmp_path, texts())
    (finding,) = check_collection(with_retriever(whole, Silent()))
    assert (finding.level, "asks a language model" in finding.message) == ("note", True)
    reranked = replace(whole, parts={**whole.parts, "reranker": Silent(), "rewriter": Silent()})
    assert check_collection(reranked) == []


def test_a_collection_that_no_agent_searches_is_checked_without_its_index(tmp_path):
    whole = built(tmp_path, texts(), judged=("x1",))
    whole.collection.index = None
    (finding,) = check_collection(replace(whole, parts={}))
    assert "judged documents" in finding.message


def test_the_judgements_of_an_oracle_do_not_find_documents(tmp_path):
    alone = built(tmp_path, texts(), "retriever=oracle")
    assert check_collection(alone) == []
    words = ("retriever=oracle", "retriever@retriever.base=bm25_default")
    assert check_collection(built(tmp_path / "based", texts(), *words)) == []


def alike(count=60):
    """Ten texts, each several times, of which some differ in their last words."""
    return [f"{texts(10)[n % 10]} Number {n if n % 3 else 0}." for n in range(count)]


HEALTHY = {
    "many duplicates": lambda: alike(),
    "all alike": lambda: [*texts(1) * 30],
    "empty documents": lambda: [text if n % 3 else "" for n, text in enumerate(texts(90))],
    "one sentence each": lambda: texts(60, sentences=1),
    "one word each": lambda: [f"{word} {n}" for n, word in enumerate(WORDS)],
    "one document": lambda: texts(1),
    "two documents": lambda: texts(2),
    "five documents": lambda: texts(5),
    "the same opening": lambda: [f"Skip to the content of this page, please. {t}" for t in texts()],
    "operators": lambda: [f'- "not" -{t[:20]}" OR ( {t}' for t in texts()],
    "without spaces": lambda: [
        f"{'海' * (n % 7 + 1)}港{chr(0x4E00 + n)}町。" * 5 for n in range(40)
    ],
}


@pytest.mark.parametrize("unit", ["document", "passage"])
@pytest.mark.parametrize("collection", HEALTHY)
def test_a_healthy_collection_has_no_fault(collection, unit, tmp_path):
    pipeline = built(tmp_path, HEALTHY[collection](), f"unit={unit}", judged=("d0",))
    findings = check_collection(pipeline)
    assert [each for each in findings if each.level == "fault"] == []


def test_signs_in_a_text_are_not_operators_of_its_query(tmp_path):
    contents = [f"-{text}" for text in texts()]
    assert check_collection(built(tmp_path, contents, "retriever=bm25_phrases")) == []


def test_one_ranking_for_documents_that_are_all_alike_is_right(tmp_path):
    assert check_collection(with_retriever(built(tmp_path, texts(1) * 30), SAME)) == []


@pytest.mark.parametrize("overrides", [(), ("unit=passage",), ("retriever=bm25_tuned",)])
def test_the_shipped_collection_and_a_fictional_world_have_no_fault(overrides, tmp_path):
    for words in (("benchmark=wikidemo",), ("benchmark=fictional", *TINY)):
        assert check_collection(opened(tmp_path, *words, *overrides)) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cacm", "vaswani", "musique100", "cmuqa", "wikimix"])
def test_a_real_collection_has_no_fault(name, tmp_path):
    data = Path(os.environ.get("SOUNDINGLINE_DATA") or ROOT.parent / "shared" / "data")
    if not (data / name).is_dir():
        pytest.skip(f"there is no {data / name}")
    words = ("benchmark=beir", f"benchmark.path={data / name}", "benchmark.split=null")
    findings = check_collection(opened(tmp_path, *words))
    # CACM's judgements name records that its published files do not have.
    assert [each.level for each in findings] == (["note"] if name == "cacm" else [])


def test_the_sample_of_a_store_depends_on_the_seed_alone():
    store = SqliteStore.in_memory({f"d{number}": "text" for number in range(50)})
    sample = store.sample(5, 1)
    assert sample == store.sample(5, 1) != store.sample(5, 2)
    assert len({document.docid for document in sample}) == 5
    assert sorted(sample, key=lambda each: int(each.docid[1:])) == sample
    assert len(store.sample(60)) == 50


def test_a_dense_retriever_finds_documents_by_their_first_sentences(tmp_path):
    """Of random weights, which tell texts of known words apart."""
    random = Random(3)
    known = [word for word in EMBEDDER_WORDS if word.isalpha()]
    contents = [f"{' '.join(random.choices(known, k=12))}." for _ in range(60)]
    model = save_sentence_model(tmp_path / "model")
    dense = ("retriever=minilm", f"retriever.model={model}")
    assert check_collection(built(tmp_path, contents, *dense)) == []
