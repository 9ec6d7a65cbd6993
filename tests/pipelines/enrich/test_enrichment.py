"""Phrases that enrich a query or documents: the stage, whose scores are worked out from formulas on
ten documents, indexes of enriched documents by brute force, the filter, and every source."""

import json
import math
import pickle
from collections import Counter
from itertools import compress

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.assertions import refused
from support.engines import brute_force
from support.llm_model import ScriptedPrompts
from support.needs import cases

from soundingline.pipelines.compose import compose
from soundingline.pipelines.enrich import enrichment as enrichment_module
from soundingline.pipelines.enrich.df_filter import KEPT, NO_TERMS, TOO_FREQUENT, UNKNOWN, DfFilter
from soundingline.pipelines.enrich.enrichment import (
    DECISIONS,
    EnrichedEngine,
    Enrichment,
    phrases_folder,
    phrases_manifest,
)
from soundingline.pipelines.enrich.feedback import FeedbackPhrases
from soundingline.pipelines.enrich.llm_phrases import TASKS, ModelPhrases, WeightedPhrases
from soundingline.pipelines.enrich.phrases import PhraseFile, PhraseSource, clean, read_phrases
from soundingline.pipelines.fusion import OracleRetriever, ReciprocalRankFusion
from soundingline.pipelines.lexical.analyzers import make_analyzer
from soundingline.pipelines.lexical.index import LexicalEngine, LexicalIndex
from soundingline.pipelines.lexical.rm3 import Feedback
from soundingline.pipelines.links import LinkExpansion
from soundingline.pipelines.retrieve import BM25, QueryLikelihood, Retriever
from soundingline.pipelines.rewrite import QueryContext
from soundingline.pipelines.stage import Collection
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.llm.errors import Refused, ServerGone

# Five words each. Ten documents, fifty tokens, average 5.
TEXTS = {
    "d0": "harbour tide tide quay rope",
    "d1": "harbour wall stone rope sand",
    **{f"d{n}": "meadow cow grass milk barn" for n in range(2, 8)},
    "d8": "pier lamp lamp glass oil",
    "d9": "pier boat net fish salt",
}
UNITS = [Unit(unit_id, "", text) for unit_id, text in TEXTS.items()]


ENGLISH = "english_unstemmed"


@pytest.fixture
def collection(tmp_path):
    index = LexicalIndex.build(
        UNITS, tmp_path / "index", analyzer=ENGLISH, corpus_fingerprint="ten"
    )

    def open_index(engine):
        path = tmp_path / f"{engine.name}-{engine.fingerprint}"
        if not path.exists():
            engine.build(UNITS, path, corpus_fingerprint="ten")
        return engine.open(path, corpus_fingerprint="ten")

    return Collection(
        "ten",
        index=index,
        engine=LexicalEngine(ENGLISH),
        open_index=open_index,
        texts=index.texts,
        caches=tmp_path / "caches",
    )


@pytest.fixture
def file(tmp_path):
    """Makes a source of phrases by id."""

    def make(phrases, name="phrases"):
        path = tmp_path / f"{name}.jsonl"
        lines = [json.dumps({"id": key, "phrases": value}) for key, value in phrases.items()]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return PhraseFile(path=str(path))

    return make


def rows(query="harbour"):
    return pd.DataFrame({"qid": ["q1"], "query": [query]})


def ranked(stage, collection, query="harbour"):
    enriched = stage.enriched(collection)
    pipeline = stage.bind(enriched) >> BM25(k1=1.2, b=0.75).bind(enriched)
    out = pipeline.transform(rows(query))
    return dict(zip(out["docno"], out["score"], strict=True))


def weights(stage, collection, query):
    out = stage.bind(stage.enriched(collection)).transform(rows(query))
    assert list(out.columns) == ["qid", "query", "query_toks"] and out["query"][0] == query
    return out["query_toks"][0]


def for_queries(source, collection, *texts):
    return source.for_queries([QueryContext(text) for text in texts], collection)


def test_scores_are_those_of_the_papers_formula(collection, file):
    """Worked out by hand: d8 gets "seamark" (1 token) and d9 "seamark harbour" (2 tokens).

    Then 53 tokens in ten documents, average 5.3, d8 has length 6, d9 length 7, the others 5.
    df(harbour) = 3 of 10 and df(seamark) = 2 of 10. Query: harbour; expansion: seamark, weight 0.5.
    """
    corpus = file({"d8": ["seamark"], "d9": ["seamark harbour"]})
    query = file({"q1": ["seamark"]}, "query")
    scores = ranked(Enrichment(query=query, corpus=corpus, weight=0.5), collection)

    def part(length):
        return 1 / (1 + 1.2 * (0.25 + 0.75 * length / 5.3))

    harbour, seamark = math.log(1 + 7.5 / 3.5), math.log(1 + 8.5 / 2.5)
    assert scores == pytest.approx(
        {
            "d9": harbour * part(7) + 0.5 * seamark * part(7),
            "d0": harbour * part(5),
            "d1": harbour * part(5),
            "d8": 0.5 * seamark * part(6),
        },
        rel=1e-5,
    )


def test_each_side_works_alone(collection, file):
    corpus, query = file({"d8": ["harbour"]}), file({"harbour": ["pier"]}, "query")
    assert set(ranked(Enrichment(corpus=corpus), collection)) == {"d0", "d1", "d8"}
    assert set(ranked(Enrichment(query=query), collection)) == {"d0", "d1", "d8", "d9"}
    assert Enrichment(corpus=corpus).bind(collection).transform(rows()).equals(rows())
    assert Enrichment(query=query).enriched(collection) is collection
    plain = Enrichment(query=query, weight=0.0)
    assert weights(plain, collection, "harbour") == {"harbour": 1.0}


def test_the_published_form_counts_once_and_lets_pairs_span_phrases(tmp_path, file):
    index = LexicalIndex.build(UNITS, tmp_path / "pairs", analyzer=f"{ENGLISH}:2")
    pairs = Collection("pairs", index=index, texts=index.texts)
    source = file({"q1": ["pier lamp", "boat pier"]})
    repaired = {"tide": 2.0, "tide tide": 1.0, "pier": 1.0}
    assert weights(Enrichment(query=source, form="repaired"), pairs, "tide tide") == {
        **repaired,
        **dict.fromkeys(["lamp", "boat", "pier lamp", "boat pier"], 0.5),
    }
    assert weights(Enrichment(query=source, form="published"), pairs, "tide tide") == {
        **{"tide": 1.0, "tide tide": 1.0},
        **dict.fromkeys(["pier", "lamp", "boat", "pier lamp", "lamp boat", "boat pier"], 0.5),
    }


def test_the_filter_of_the_query_side_reads_the_enriched_index_and_is_counted(collection, file):
    query = file({"q1": ["seamark", "tide", "lighthouse", "meadow", "the"]}, "query")
    stage = Enrichment(query=query, corpus=file({"d8": ["seamark"]}), query_filter=DfFilter(0.5))
    assert weights(stage, collection, "rope") == {"rope": 1.0, "seamark": 0.5, "tide": 0.5}
    counts = {name: count for name, count in stage.counts.items() if name.startswith("phrases_")}
    assert counts == {
        **{"phrases_kept": 2, "phrases_too_frequent": 1},
        **{"phrases_not_in_the_index": 1, "phrases_no_index_term": 1},
    }


def test_decisions_on_the_corpus_are_on_disk_as_a_readable_table(collection, file):
    corpus = file({"d0": ["meadow", "seamark", "the"]})
    stage = Enrichment(corpus=corpus, corpus_filter=DfFilter(0.5))
    folder = phrases_folder(stage.enriched(collection).index)
    assert folder is not None and phrases_folder(collection.index) is None
    [line] = (folder / DECISIONS).read_text("utf-8").splitlines()
    assert json.loads(line) == {
        "id": "d0",
        "phrases": [
            {"phrase": "meadow", "kept": False, "reason": "too frequent", "df": 6},
            {"phrase": "seamark", "kept": True, "reason": "kept", "df": 0},
            {"phrase": "the", "kept": False, "reason": "no index term", "df": 0},
        ],
    }
    reasons = json.loads((folder / "reasons.json").read_text())
    assert reasons == {"too frequent": 1, "kept": 1, "no index term": 1}


def test_an_enriched_index_appears_with_its_table_or_not_at_all(
    collection, file, tmp_path, monkeypatch
):
    stage = Enrichment(corpus=file({"d0": ["seamark"], "d1": [], "d2": ["the"]}))
    write = enrichment_module.write_json

    def full_disk(path, value):
        if path.name == enrichment_module.REASONS_FILE:
            raise OSError("no space left on device")
        write(path, value)

    monkeypatch.setattr(enrichment_module, "write_json", full_disk)
    with pytest.raises(OSError, match="no space left"):
        stage.enriched(collection)
    assert not list(tmp_path.glob("enriched-*"))
    monkeypatch.setattr(enrichment_module, "write_json", write)
    folder = phrases_folder(stage.enriched(collection).index)
    manifest = phrases_manifest(folder)
    assert {"decisions.jsonl", "reasons.json", "seconds.json"} == set(manifest["files"])
    # Of the three documents of the file, one keeps a phrase.
    assert manifest["counts"] == {"enriched": 1, "phrases": 1}


def test_feedback_proposes_words_of_the_documents_that_a_search_finds(collection):
    source = FeedbackPhrases(phrases=3, fb_docs=1)
    # d0 is found for tide alone; its other words weigh the same and are in order.
    assert for_queries(source, collection, "tide") == [["harbour", "quay", "rope"]]
    assert for_queries(source, collection, "unknown") == [[]]
    refused("for queries, and not for documents", lambda: source.for_documents(UNITS, collection))


def test_a_file_for_other_documents_is_refused_and_strange_ids_are_reported(
    collection, file, tmp_path, capsys
):
    other = file({"x1": ["quay"], "x2": ["pier"]}, "other")
    with pytest.raises(InputError, match=r"other.jsonl' has phrases for none of the documents"):
        Enrichment(corpus=other).enriched(collection)
    assert not list(tmp_path.glob("enriched-*"))
    some = file({"x1": ["quay"], "d1": ["pier", "PIER", ""]})
    Enrichment(corpus=some).enriched(collection)
    assert "1 of 2 ids of" in capsys.readouterr().err
    counts = {name: count for name, count in some.counts.items() if count}
    assert counts == {"texts": 10, "no_phrase": 9, "repeated": 1, "empty": 1}
    with (tmp_path / "phrases.jsonl").open("a") as stream:
        stream.write('{"id": "d1"}\n')
    with pytest.raises(InputError, match=r"phrases.jsonl:3 has no field 'phrases'"):
        for_queries(PhraseFile(path=str(tmp_path / "phrases.jsonl")), collection, "quay")
    refused("there is no file", lambda: PhraseFile(path=str(tmp_path / "nothing")).fingerprint)


# Phrases of a language model.


def keywords(*phrases):
    return json.dumps({"keywords": phrases})


def asked(collection, choose, **settings):
    model = ScriptedPrompts(choose, **settings)
    return collection.with_model(model), model


def missing(source, collection, units=UNITS):
    flags = source.missing_flags(units, len(units), collection)
    return [unit.unit_id for unit in compress(units, flags)]


def test_a_model_is_asked_for_queries_once_and_not_to_guess(collection):
    with_model, model = asked(collection, lambda prompt: keywords("sea wall", "quay"))
    source = ModelPhrases()
    for _ in range(2):
        assert for_queries(source, with_model, "harbour") == [("sea wall", "quay")]
    [prompt] = model.prompts
    assert "harbour" in prompt and "do not guess its answer" in prompt and "10 phrases" in prompt
    stage = Enrichment(query=source, query_filter=DfFilter(0.5))
    assert weights(stage, with_model, "harbour") == {"harbour": 1.0, "quay": 0.5}


def test_documents_are_asked_for_once_and_failures_again(collection):
    fails = {"d3"}
    meadow = 0

    def choose(prompt):
        nonlocal meadow
        if "meadow" in prompt:
            meadow += 1
            return Refused("no") if fails else keywords("pasture")
        return keywords("seamark") if "pier" in prompt else "no list at all"

    with_model, model = asked(collection, choose)
    source = ModelPhrases(words=2)
    first = {
        unit.unit_id: (phrases, error)
        for unit, phrases, error in source.ask_documents(UNITS, with_model)
    }
    assert first["d8"] == (("seamark",), "") and first["d0"] == ((), "")
    assert first["d3"] == ((), "refused")
    # Equal texts are one prompt; d0 and d1 gave no list, and were asked for twice.
    assert (meadow, len(model.prompts)) == (1, 1 + 2 + 2 * 2)
    assert missing(source, with_model) == [f"d{n}" for n in range(2, 8)]
    with pytest.raises(
        InputError, match=r"6 of 10 documents have no phrases yet.*soundingline enrich"
    ):
        list(source.for_documents(UNITS, with_model))
    allowed = ModelPhrases(words=2, allow_missing=True)
    assert dict(allowed.for_documents(UNITS, with_model))["d3"] == ()
    fails.clear()
    list(source.ask_documents(UNITS[2:8], with_model))
    assert meadow == 2
    assert dict(source.for_documents(UNITS, with_model))["d3"] == ("pasture",)


def test_what_is_paid_for_is_kept_where_the_server_ends(collection):
    calls = 0

    def choose(prompt):
        nonlocal calls
        calls += 1
        return ServerGone("gone") if "pier boat" in prompt and calls < 8 else keywords("x")

    with_model, _ = asked(collection, choose)
    source = ModelPhrases()
    with pytest.raises(ServerGone):
        list(source.ask_documents(UNITS, with_model))
    assert missing(source, with_model) == ["d9"]


def test_a_changed_text_asks_for_that_text_alone(collection):
    with_model, _ = asked(collection, lambda prompt: keywords("quay"))
    source = ModelPhrases()
    list(source.ask_documents(UNITS, with_model))
    changed = [
        unit._replace(text="harbour changed") if unit.unit_id == "d1" else unit for unit in UNITS
    ]
    assert missing(source, with_model, changed) == ["d1"]
    assert len(missing(ModelPhrases(task="finance"), with_model)) == len(UNITS)


def test_another_model_or_way_of_sampling_has_an_index_of_its_own(collection):
    source = ModelPhrases()
    paths = []
    for phrase, sampling in (("quay", {}), ("mole", {}), ("mole", {"temperature": 0.4})):
        model = ScriptedPrompts(lambda prompt, phrase=phrase: keywords(phrase), **sampling)
        model.name = f"model of {phrase}"
        with_model = collection.with_model(model)
        list(source.ask_documents(UNITS, with_model))
        index = Enrichment(corpus=source).enriched(with_model).index
        folder = phrases_folder(index)
        paths.append(folder)
        assert index.document_frequency(phrase) == len(UNITS)
        source_of = phrases_manifest(folder)["source"]
        assert source_of["model"] == model.name
        assert source_of["settings"].get("temperature") == sampling.get("temperature")
    assert len(set(paths)) == 3


def test_an_index_with_missing_documents_is_not_taken_for_a_whole_one(collection):
    with_model, _ = asked(collection, lambda prompt: keywords("quay"))
    allowed = Enrichment(corpus=ModelPhrases(allow_missing=True))
    list(allowed.corpus.ask_documents(UNITS[:3], with_model))
    part = allowed.enriched(with_model).index
    list(allowed.corpus.ask_documents(UNITS, with_model))
    every = allowed.enriched(with_model).index
    assert part.statistics.postings < every.statistics.postings


class OtherRetriever(Retriever):
    """As a dense one, it has an index of its own."""

    supports = frozenset()


@pytest.mark.parametrize(
    "around", [lambda r: r, OracleRetriever, lambda r: LinkExpansion(retriever=r)]
)
def test_a_retriever_that_an_enrichment_does_not_reach_is_refused(around):
    query, corpus = Enrichment(query=FeedbackPhrases()), Enrichment(corpus=FeedbackPhrases())
    likelihood = around(QueryLikelihood())
    compose(likelihood, enrichment=query)
    for retriever, enrichment, message in (
        (likelihood, corpus, "needs enriched documents, which .* valid: weighted queries"),
        (around(OtherRetriever()), corpus, "needs enriched documents"),
        (around(OtherRetriever()), query, "needs weighted queries.* valid: nothing"),
    ):
        refused(message, compose, retriever, enrichment=enrichment)
    compose(around(BM25()), enrichment=corpus)


def test_a_fusion_searches_enriched_documents_where_one_of_its_retrievers_does(collection, file):
    query, corpus = Enrichment(query=FeedbackPhrases()), Enrichment(corpus=file({"d0": ["quay"]}))
    fusion = ReciprocalRankFusion(BM25(), OtherRetriever())
    compose(fusion, enrichment=corpus)
    refused(
        "Enrichment needs weighted queries, which ReciprocalRankFusion does not",
        lambda: compose(fusion, enrichment=query),
    )
    with_likelihood = ReciprocalRankFusion(BM25(), QueryLikelihood())
    with pytest.raises(InputError, match=r"QueryLikelihood needs ql, which .*over.* does"):
        with_likelihood.bind(corpus.enriched(collection))


def test_a_limit_below_one_document_is_said(collection, capsys):
    Enrichment(query=FeedbackPhrases(), query_filter=DfFilter(0.05)).bind(collection)
    assert "query side" in capsys.readouterr().err
    Enrichment(query=FeedbackPhrases(), query_filter=DfFilter(0.1)).bind(collection)
    assert capsys.readouterr().err == ""


def test_answers_without_phrases_are_counted_by_kind(collection):
    answers = {"tide": "Certainly: seas!", "quay": '{"keywords": []}', "rope": keywords("quay")}
    with_model, _ = asked(
        collection, lambda prompt: next(a for word, a in answers.items() if word in prompt)
    )
    source = ModelPhrases()
    assert for_queries(source, with_model, *answers) == [(), (), ("quay",)]
    counts = source.counts
    assert (counts["unreadable"], counts["no_phrase"], counts["retried"]) == (1, 1, 1)


def test_a_structured_answer_is_asked_for_in_the_body_and_kept_apart(collection):
    bodies = []

    class Model(ScriptedPrompts):
        def respond_many(self, requests, qids, settings=None, *more, **named):
            bodies.append(settings.extra)
            return super().respond_many(requests, qids, settings, *more, **named)

    model = Model(lambda prompt: keywords("quay"), extra={"top_k": 5})
    with_model = collection.with_model(model)
    for structured in (False, True, True):
        source = ModelPhrases(structured=structured)
        assert for_queries(source, with_model, "tide") == [("quay",)]
    plain, strict = bodies  # the third finds the second's reply
    assert plain == {"top_k": 5} and strict["top_k"] == 5
    described = strict["response_format"]["json_schema"]
    assert described["strict"] is True
    assert described["schema"]["required"] == ["keywords"]
    assert described["schema"]["additionalProperties"] is False


WEIGHTED = json.dumps(
    {
        "keywords": [{"term": "pier", "weight": 2}, {"term": "quay", "weight": 0.5}],
        "exclude": ["lamp glass"],
    }
)
HARBOUR, QUAY = math.log(1 + 8.5 / 2.5), math.log(1 + 9.5 / 1.5)  # idf of a df of 2 and of 1
ONCE, TWICE = 1 / 2.2, 2 / 3.2  # k1 1.2, a text of average length


def by_weights(collection, answer, bm25=None, **arguments):
    bm25 = bm25 or BM25(k1=1.2, b=0.75)
    with_model, _ = asked(collection, lambda prompt: answer)
    stage = Enrichment(query=WeightedPhrases(**arguments), weight=0.5).bind(with_model)
    pipeline = compose(bm25.bind(with_model), enrichment=stage)
    out = pipeline.transform(rows())
    assert list(out["rank"]) == list(range(len(out)))
    assert out["score"].is_monotonic_decreasing and "query_excluded" not in out
    return dict(zip(out["docno"], out["score"], strict=True)), stage.counts


@pytest.mark.parametrize("exclusions", ["none", "filter", "negative"])
@pytest.mark.parametrize("weights", [True, False])
def test_weights_multiply_the_expansion_and_exclusions_filter_or_subtract(
    collection, weights, exclusions
):
    """Worked out by hand: df(harbour) = df(pier) = 2 of 10; df(quay) = df(lamp) = df(glass) = 1."""
    scores, _ = by_weights(collection, WEIGHTED, weights=weights, exclusions=exclusions)
    pier, quay = (2, 0.5) if weights else (1, 1)
    expected = {
        "d0": HARBOUR * ONCE + 0.5 * quay * QUAY * ONCE,
        "d1": HARBOUR * ONCE,
        "d8": 0.5 * pier * HARBOUR * ONCE,
        "d9": 0.5 * pier * HARBOUR * ONCE,
    }
    if exclusions == "filter":
        del expected["d8"]  # "pier lamp lamp glass oil"
    elif exclusions == "negative":
        expected["d8"] -= 0.5 * (QUAY * TWICE + QUAY * ONCE)
    assert scores == pytest.approx(expected, rel=1e-5)
    assert list(scores)[-1] == ("d8" if exclusions == "negative" else list(expected)[-1])


def test_exclusions_subtract_scores_by_the_parameters_of_the_questions_fold(collection):
    fold = {"k1": 1.2, "b": 0.75, "questions": rows()["qid"].tolist()}
    of_fold = BM25(k1=9, b=0, fold_parameters=[fold])
    expected, _ = by_weights(collection, WEIGHTED, exclusions="negative")
    assert by_weights(collection, WEIGHTED, of_fold, exclusions="negative")[0] == expected


def test_an_excluded_phrase_is_the_phrase_and_not_its_words(collection):
    answer = json.dumps({"keywords": ["pier"], "exclude": ["glass lamp", "salt", "unknown", "oil"]})
    scores, counts = by_weights(collection, answer)
    assert set(scores) == {"d0", "d1", "d8"}  # "lamp glass" is another phrase; "oil" is the fourth
    assert (counts["query_exclusions"], counts["query_beyond"]) == (3, 1)


@pytest.mark.parametrize(
    ("answer", "found", "counted"),
    [
        ("Certainly: piers!", {}, "query_unreadable"),
        ('{"keywords": "pier", "exclude": ["harbour"]}', {}, "query_unreadable"),
        ('{"keywords": [{"term": "pier", "weight": 2.5}]}', {}, "query_bad_weight"),
        ('{"keywords": [{"term": "pier", "weight": 0}]}', {}, "query_bad_weight"),
        ('{"keywords": [{"term": "pier", "weight": NaN}]}', {}, "query_bad_weight"),
        ('{"keywords": [{"term": "pier", "weight": "1"}]}', {}, "query_bad_weight"),
        ('{"keywords": [{"weight": 1}], "exclude": "wall"}', {}, "query_empty"),
        ('{"keywords": [{"term": "pier"}]}', {"d8", "d9"}, "query_texts"),
        ('["pier"]', {"d8", "d9"}, "query_texts"),
    ],
)
def test_what_cannot_be_read_of_a_weighted_answer_is_left_out_and_counted(
    collection, answer, found, counted
):
    scores, counts = by_weights(collection, answer)
    assert set(scores) == {"d0", "d1", *found} and counts[counted] == 1
    assert counts["query_retried"] == (counted == "query_unreadable")


def test_cells_of_the_weighted_ablation_share_one_reply(collection):
    with_model, model = asked(collection, lambda prompt: WEIGHTED)
    for weights in (True, False):
        for exclusions in ("none", "filter", "negative"):
            source = WeightedPhrases(weights=weights, exclusions=exclusions)
            [phrases] = for_queries(source, with_model, "harbour")
            assert phrases == ("pier", "quay", "lamp glass")[: 2 if exclusions == "none" else 3]
    [prompt] = model.prompts
    assert '"weight": 1.5' in prompt and "do not guess its answer" in prompt
    with pytest.raises(InputError, match="for queries, and not for documents"):
        list(WeightedPhrases().for_documents(UNITS, with_model))
    structured = WeightedPhrases(structured=True).settings()["extra"]["response_format"]
    assert structured["json_schema"]["schema"]["required"] == ["keywords", "exclude"]


@pytest.mark.parametrize("task", TASKS)
def test_every_task_has_a_prompt_for_each_side(task):
    source = ModelPhrases(task=task, phrases=7, words=3)
    long = Unit("d", "Title", "a" * 3990 + "bcdefghijkl")
    query, document = source.query_prompt("which harbour"), source.document_prompt(long)
    assert "which harbour" in query and "guess" in query
    assert "no word or phrase of the text" in document
    # Of title and text together, the first 4,000 characters.
    assert long.contents[:4000] in document and long.contents[:4001] not in document
    for prompt in (query, document):
        assert "At most 7 phrases, each of 1 to 3 words" in prompt
        assert "Be diverse" in prompt
        assert "in at most ten sentences. Then write one JSON object and nothing after" in prompt
        assert prompt.endswith('{"keywords": ["first phrase", "second phrase"]}')
    prompt = ModelPhrases(max_characters=12).document_prompt(UNITS[0])
    assert "harbour tide" in prompt and "quay" not in prompt
    for prompt_of, text in (("query_prompt", "harbour"), ("document_prompt", long)):
        texts = {getattr(ModelPhrases(task=each), prompt_of)(text) for each in TASKS}
        assert len(texts) == len(TASKS)


def test_a_prompt_of_ones_own_is_for_one_side(tmp_path):
    path = tmp_path / "own.txt"
    path.write_text("{query} {phrases} {words}")
    source = ModelPhrases(prompt=str(path))
    assert source.query_prompt("quay") == "quay 10 4"
    refused(r"has no place \{text\} for a document", lambda: source.document_prompt(UNITS[0]))
    path.write_text("no place")
    refused("has the places none", lambda: ModelPhrases(prompt=str(path)))


def test_the_fingerprint_changes_with_phrases_and_filter(collection, file):
    first, second = file({"d0": ["quay"]}, "first"), file({"d0": ["pier"]}, "second")
    pairs = [(first, None), (second, None), (FeedbackPhrases(), None)]
    pairs += [(first, DfFilter(0.1)), (first, DfFilter(0.2))]
    engines = [EnrichedEngine(LexicalEngine(), *pair, collection) for pair in pairs]
    assert len({engine.fingerprint for engine in engines}) == len(pairs)


try:
    from sklearn.utils import murmurhash3_32 as murmur
except ImportError:  # extra `enrich`
    murmur = None

WORDS = ["brel", "harbour", "tide", "the", "lamp", "stone", "keeper"]
NGRAMS = ["brel tide", "lamp lamp", "tide lamp stone", "brel brel brel brel"]
texts = st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join)
phrases = st.lists(
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=3).map(" ".join), max_size=4
)


class GivenPhrases(PhraseSource):
    """The phrases of a dictionary, as they are."""

    def __init__(self, phrases):
        self.phrases = phrases

    @property
    def fingerprint(self):
        return str(self.phrases)

    def for_documents(self, units, collection):
        return ((unit.unit_id, self.phrases.get(unit.unit_id, ())) for unit in units)

    def for_queries(self, queries, collection):
        raise AssertionError


def enriched(base, units, source):
    engine = EnrichedEngine(
        LexicalEngine(base.analyzer.name), source, None, Collection("c", index=base)
    )
    path = base.path.with_name("enriched")
    engine.build(units, path, corpus_fingerprint="c")
    return engine.open(path, corpus_fingerprint="c")


def terms_of(text, longest):
    """Terms of a text of WORDS, n-grams joined by a space, written down apart from the analyzer."""
    single = [word for word in text.split() if word != "the"]
    grams = [
        " ".join(single[start : start + size])
        for size in range(2, longest + 1)
        for start in range(len(single) - size + 1)
    ]
    return single + grams


def slot(term):
    """An n-gram as the number of its slot, as SIRA's released code has it; a word as it is."""
    return f" {murmur(term.encode(), positive=True) % 2**23}" if " " in term else term


@settings(max_examples=cases(60), deadline=None)
@given(
    documents=st.lists(texts, min_size=1, max_size=6),
    added=st.dictionaries(st.integers(0, 5), phrases, max_size=6),
    query=st.dictionaries(
        st.sampled_from([*(w for w in WORDS if w != "the"), *NGRAMS]), st.floats(0.1, 3), min_size=1
    ),
    k1=st.sampled_from([0.0, 0.9, 1.5, 25.0]),
    b=st.sampled_from([0.0, 0.4, 1.0]),
    shape=st.sampled_from(["", ":2", ":4", ":3:hashed"] if murmur else ["", ":2", ":4"]),
)
def test_scores_of_enriched_documents_equal_brute_force(
    tmp_path_factory, documents, added, query, k1, b, shape
):
    """A document has the terms of its text and of each phrase; no n-gram spans two of them."""
    longest = int(shape[1]) if shape else 1
    units = [Unit(f"d{number}", "", text) for number, text in enumerate(documents)]
    path = tmp_path_factory.mktemp("enriched") / "base"
    base = LexicalIndex.build(units, path, analyzer=f"english_unstemmed{shape}")
    source = GivenPhrases({f"d{number}": of for number, of in added.items()})
    index = enriched(base, units, source)
    assert index.base is base
    terms = [
        Counter(term for part in [text, *added.get(number, [])] for term in terms_of(part, longest))
        for number, text in enumerate(documents)
    ]
    weights = {slot(term) if "hashed" in shape else term: weight for term, weight in query.items()}
    numbers, scores = index.search(weights, k1=k1, b=b, depth=10)
    score_of = dict(zip(numbers.tolist(), scores.tolist(), strict=True))
    assert score_of == pytest.approx(brute_force(terms, query, k1, b), rel=1e-5)


@pytest.fixture
def units():
    chance = np.random.default_rng(3)
    return [
        Unit(f"d{number}", "Tides", " ".join([*chance.choice(WORDS, 20), f"berth{number}"]))
        for number in range(40)
    ]


@pytest.fixture
def base(tmp_path, units):
    return LexicalIndex.build(units, tmp_path / "base", corpus_fingerprint="c")


def test_feedback_and_texts_are_those_of_the_plain_documents(base, units):
    source = GivenPhrases({unit.unit_id: ["quay lighthouse"] for unit in units[::3]})
    index = enriched(base, units, source)
    query = pd.DataFrame({"qid": ["q"], "query": ["quay"]})
    ranking = index.bm25().transform(query)
    assert set(ranking["docno"]) == {unit.unit_id for unit in units[::3]}
    [weights] = (index.bm25() >> Feedback(index)).transform(query)["query_toks"]
    assert "lighthous" not in weights and len(weights) > 1
    assert index.texts(["d3"]) == [units[3]]
    loaded = (index.bm25() >> index.text_loader()).transform(query)
    assert loaded["text"].tolist() == [units[int(docno[1:])].text for docno in loaded["docno"]]
    copied = pickle.loads(pickle.dumps(index))
    assert copied == index != base and copied.base == base
    refused("QueryLikelihood needs ql, which .*over.* does not support", index.ql)


class OutOfOrder(GivenPhrases):
    def for_documents(self, units, collection):
        return iter(reversed(list(super().for_documents(units, collection))))


def test_phrases_in_another_order_are_refused_and_leave_nothing(base, units):
    source = OutOfOrder({"d1": ["quay"], "d2": ["quay"]})
    refused(r"phrases for the unit 'd1'.*in their order", lambda: enriched(base, units, source))
    assert [path.name for path in base.path.parent.iterdir()] == ["base"]
    with pytest.raises(InputError, match="base' exists and would be replaced"):
        EnrichedEngine(LexicalEngine(), source, None, Collection("c", index=base)).build(
            units, base.path, corpus_fingerprint="c"
        )


def test_kept_phrases_are_part_of_the_indexed_text_alone(base, units, tmp_path):
    row = {"id": "d5", "phrases": ["quay", "QUAY", "mole wall"]}
    (tmp_path / "phrases.jsonl").write_text(json.dumps(row) + "\n")
    index = enriched(base, units, PhraseFile(path=str(tmp_path / "phrases.jsonl")))
    more = index._arrays.lengths - base._arrays.lengths
    assert (int(more[5]), int(more.sum())) == (3, 3)
    assert index.postings("quai")[0].tolist() == [5]


# Of 100 documents: `common` is in 40, `rare` in 3, `common rare` in 2; the rest are in none.
FREQUENCIES = {"common": 40, "rare": 3, "common rare": 2, "both": 40, "common both": 30}


class Frequencies:
    def __init__(self, analyzer="english_unstemmed:2"):
        self.analyzer = make_analyzer(analyzer)

    def document_frequency(self, term):
        return FREQUENCIES.get(term, 0)

    def __len__(self):
        return 100


PHRASES = ("common", "rare", "common rare", "common both", "common new", "new", "the of")
CORPUS, QUERY = True, False
# Of "common new" the released code sees the part that is in 40 documents, and the paper the phrase,
# which is in none.
OFTEN, NEW = TOO_FREQUENT, UNKNOWN
RULES = {
    ("paper", CORPUS): (OFTEN, KEPT, KEPT, OFTEN, KEPT, KEPT, NO_TERMS),
    ("paper", QUERY): (OFTEN, KEPT, KEPT, OFTEN, NEW, NEW, NO_TERMS),
    ("released", CORPUS): (OFTEN, KEPT, KEPT, OFTEN, OFTEN, KEPT, NO_TERMS),
    ("released", QUERY): (OFTEN, KEPT, KEPT, OFTEN, OFTEN, NEW, NO_TERMS),
    ("none", CORPUS): (*[KEPT] * 6, NO_TERMS),
    ("none", QUERY): (*[KEPT] * 6, NO_TERMS),
}  # fmt: skip


@pytest.mark.parametrize(("rule", "side"), RULES)
def test_each_rule_decides_as_the_paper_or_the_released_code(rule, side):
    decided = DfFilter(0.05, rule).decide(PHRASES, Frequencies(), corpus_side=side)
    assert tuple(decision.reason for decision in decided) == RULES[rule, side]
    assert all(decision.kept == (decision.reason == KEPT) for decision in decided)


def test_with_n_grams_a_phrase_of_a_query_passes_only_if_it_occurs_itself():
    # "rare" (3 documents) and "both" (40) are in the index, and their pair is not.
    pairs, words = Frequencies(), Frequencies("english_unstemmed")
    (decision,) = DfFilter(0.05).decide(["rare both"], pairs, corpus_side=False)
    assert (decision.kept, decision.reason) == (False, UNKNOWN)
    assert decision.frequencies == (3, 40, 0)
    # Words alone cannot show that, and the released code's rule accepts any part.
    (of_words,) = DfFilter(0.05).decide(["rare both"], words, corpus_side=False)
    (released,) = DfFilter(0.05, "released").decide(["rare both"], pairs, corpus_side=False)
    assert of_words.kept and released.kept


def test_the_limit_is_tau_times_the_documents_rounded_down_and_may_be_below_one():
    for tau, documents, limit in (
        *((0.05, 100, 5), (0.05, 119, 5), (0.05, 19, 0), (0.29, 100, 29), (1.0, 7, 7)),
    ):
        assert DfFilter(tau).limit(documents) == limit
    strict = DfFilter(0.005)
    assert "below one document" in strict.note(100) and strict.note(200) == ""
    assert DfFilter(0.001, "none").note(100) == ""
    for side, kept in ((CORPUS, ["new"]), (QUERY, [])):
        decided = strict.decide(["rare", "new"], Frequencies(), corpus_side=side)
        assert [decision.phrase for decision in decided if decision.kept] == kept


@pytest.mark.parametrize(
    ("answer", "phrases"),
    [
        ('{"keywords": ["tidal range", "quay"]}', ["tidal range", "quay"]),
        ('Sure! {"keywords": ["quay"]} Hope this helps {smile}.', ["quay"]),
        ('{"keywords": ["draft"]} then better: {"keywords": ["final"]}', ["final"]),
        ('```json\n{"keywords": []}\n```', []),
        ('["quay", "pier"]', ["quay", "pier"]),
        ('{"keywords": ["quay"]} and [1]', ["quay"]),
        ('{"words": ["quay"]}', None),
        ("quay, pier and jetty", None),
        ("", None),
        ('{"keywords": ["cut', None),
    ],
)
def test_the_last_list_of_keywords_is_read(answer, phrases):
    assert read_phrases(answer) == phrases


@given(st.text())
def test_any_answer_is_read_or_is_none(answer):
    assert read_phrases(answer) is None or isinstance(read_phrases(answer), list)


def test_phrases_are_cleaned_and_what_is_left_out_is_counted():
    proposed = [
        *("  tidal\u00a0 range ", "Tidal Range", "qu\u200bay\x00", "one two three four five"),
        *("", "\x1b", None, 7, ["quay"], "x" * 10_000, "pier", "jetty"),
    ]
    phrases, left_out = clean(proposed, 3, 4)
    assert phrases == ("tidal range", "quay", "pier")
    assert left_out == {"repeated": 1, "too_long": 2, "beyond": 1, "empty": 5}
    phrases, left_out = clean([f"phrase {number}" for number in range(500)], 10, 4)
    assert len(phrases) == 10 and left_out["beyond"] == 490


@given(st.lists(st.text()))
def test_cleaned_phrases_are_usable_whatever_came(proposed):
    phrases, _ = clean(proposed, 10, 4)
    assert clean(phrases, 10, 4)[0] == phrases
    assert all(phrase.isprintable() and phrase == " ".join(phrase.split()) for phrase in phrases)
    assert json.loads(json.dumps(phrases)) == list(phrases)
