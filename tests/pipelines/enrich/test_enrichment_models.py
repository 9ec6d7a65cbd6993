"""Texts that models write: HyDE and chains of thought by a scripted language model, and Doc2Query
by a tiny random T5, against transformers run directly; and kills between the two writes of a reply,
the cache's and the ledger's."""

import json
import os
import shutil
from collections import Counter
from itertools import compress

import pandas as pd
import pytest
from support import checkpoints
from support.assertions import refused
from support.llm_model import ScriptedModel, ScriptedPrompts
from support.runs import starts

from soundingline.pipelines.cache import ResultCache
from soundingline.pipelines.enrich.df_filter import DfFilter
from soundingline.pipelines.enrich.doc2query import Doc2Query
from soundingline.pipelines.enrich.enrichment import Enrichment
from soundingline.pipelines.enrich.llm_phrases import METHODS, ModelPhrases, ModelText
from soundingline.pipelines.lexical.index import LexicalEngine, LexicalIndex
from soundingline.pipelines.retrieve import BM25
from soundingline.pipelines.rewrite import QueryContext
from soundingline.pipelines.stage import Collection, search_notes
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.files import fingerprint
from soundingline.toolkit.json_lines import JsonLinesLog
from soundingline.toolkit.llm import Turn
from soundingline.toolkit.llm.blocking import BlockingModel
from soundingline.toolkit.llm.errors import Refused, ServerGone
from soundingline.toolkit.llm.ledger import open_ledger

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TEXTS = {
    "d0": "harbour tide tide quay rope",
    "d1": "harbour wall stone rope sand",
    "d2": "meadow cow grass milk barn",
    "d3": "pier lamp lamp glass oil",
}
WRITTEN = "The lamp of the pier.\n\nAn oil lamp;\x00 the tide turns at the quay."
QUESTIONS = {"q1": "Which lamp burns at the harbour?"}


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    units = [Unit(unit_id, "", text) for unit_id, text in TEXTS.items()]
    return LexicalIndex.build(units, tmp_path_factory.mktemp("i") / "index")


@pytest.fixture
def asked(index, tmp_path):
    """Makes a collection with a model that replies by a text or a function, and the model."""

    def make(reply):
        model = ScriptedPrompts(reply if callable(reply) else lambda prompt: reply)
        caches = tmp_path / "caches"
        collection = Collection("c", index=index, caches=caches, model=model, questions=QUESTIONS)
        return collection, model

    return make


def ranked(stage, collection, query):
    pipeline = stage.bind(collection) >> BM25().bind(collection)
    out = pipeline.transform(pd.DataFrame({"qid": ["q1"], "query": [query]}))
    return dict(zip(out["docno"], out["score"], strict=True))


@pytest.mark.parametrize(
    ("method", "weight", "times"), [("hyde", 1.0, 1), ("chain_of_thought", 0.2, 5)]
)
def test_a_written_text_ranks_as_if_it_were_appended_to_the_repeated_query(
    asked, method, weight, times
):
    collection, model = asked(WRITTEN)
    stage = Enrichment(query=ModelText(method=method), weight=weight, form="joined")
    scores = ranked(stage, collection, "harbour lamp")
    appended = " ".join([*["harbour lamp"] * times, WRITTEN])
    expected = BM25().bind(collection).search(appended)
    joined = dict(zip(expected["docno"], expected["score"] / times, strict=True))
    assert list(scores) == list(joined) and scores == pytest.approx(joined, rel=1e-6)
    assert ranked(stage, collection, "harbour lamp") == scores
    [prompt] = model.prompts  # once, kept from then on
    assert "harbour lamp" in prompt


@pytest.mark.parametrize(
    ("method", "task"), [(method, task) for method, tasks in METHODS.items() for task in tasks]
)
def test_every_published_prompt_shows_the_query(asked, method, task):
    collection, model = asked("A passage.")
    ModelText(method=method, task=task).for_queries([QueryContext("tide {query}")], collection)
    assert "tide {query}" in model.prompts[0]


def test_without_a_text_the_query_is_searched_as_it_is(asked):
    answers = {"tide": " \n", "rope": Refused("no"), "quay": WRITTEN}
    collection, _ = asked(lambda prompt: next(a for word, a in answers.items() if word in prompt))
    source = ModelText(max_words=7)
    texts = source.for_queries([QueryContext(word) for word in answers], collection)
    # All of a text that is read is one phrase.
    assert texts == [(), (), ("The lamp of the pier. An oil",)]
    counts = source.counts
    assert (counts["empty"], counts["refused"], counts["retried"]) == (1, 1, 1)
    plain = BM25().bind(collection).search("tide")
    scores = dict(zip(plain["docno"], plain["score"], strict=True))
    assert ranked(Enrichment(query=source), collection, "tide") == scores
    with pytest.raises(ServerGone):
        source.for_queries([QueryContext("pier")], asked(lambda prompt: ServerGone("gone"))[0])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Doc2Query().for_queries([QueryContext("mill")], None),
            "for documents, and not for queries",
        ),
        (lambda: Doc2Query(top_k=0), "top_k=0"),
        (lambda: Doc2Query(model="/nothing").fingerprint, "there is no folder"),
    ],
)
def test_what_cannot_write_a_text_is_refused(make, message):
    refused(message, make)


@pytest.mark.parametrize(
    ("apply_to", "read"),
    [("query", "tide"), ("reasoning", "I should look at lamps."), ("question", "Which lamp")],
)
def test_phrases_are_proposed_for_the_query_the_reasoning_or_the_question(asked, apply_to, read):
    collection, model = asked("glass")
    stage = Enrichment(query=ModelText(), query_filter=DfFilter(1.0), apply_to=apply_to)
    frame = pd.DataFrame({"qid": ["q1"], "query": ["tide"]})
    with search_notes() as notes:
        out = stage.bind(collection).transform(frame.assign(reasoning="I should look at lamps."))
    [prompt] = model.prompts
    assert read in prompt
    # The query stays the agent's, whatever the phrases were proposed for.
    assert out["query"].tolist() == ["tide"]
    assert out["query_toks"][0] == {"tide": 1.0, "glass": 0.5}
    applied = notes["enrichment"][0].get("applied_to")
    assert applied == (None if apply_to == "query" else apply_to)
    # Without a reasoning or a question, phrases are proposed for the query.
    stage.bind(collection).transform(frame.assign(qid="q7"))
    assert "tide" in model.prompts[-1] and stage.counts["queries"] == 2
    without = {name: n for name, n in stage.counts.items() if name.startswith("without_") and n}
    assert without == ({} if apply_to == "query" else {f"without_{apply_to}": 1})


UNITS = [
    Unit("d0", "", "the old mill stands by the river"),
    Unit("d1", "", "who built the stone bridge"),
    Unit("d2", "", ""),
]
SMALL = {"phrases": 4, "question_length": 8, "device": "cpu", "dtype": "float32"}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    torch.set_num_threads(1)
    # As many layers on both sides: transformers counts the encoder's where it caches the decoder's.
    return checkpoints.save_t5(tmp_path_factory.mktemp("models") / "t5", num_decoder_layers=2)


@pytest.fixture
def collection(tmp_path):
    index = LexicalIndex.build(UNITS, tmp_path / "index", corpus_fingerprint="c")

    def open_index(engine):
        path = tmp_path / f"{engine.name}-{engine.fingerprint}"
        engine.build(UNITS, path, corpus_fingerprint="c")
        return engine.open(path, corpus_fingerprint="c")

    opened = {"index": index, "engine": LexicalEngine(), "open_index": open_index}
    return Collection("c", texts=index.texts, caches=tmp_path / "caches", **opened)


def written(source, collection, units=UNITS):
    return dict(source.for_documents(units, collection))


def test_questions_are_sampled_as_published(checkpoint, collection):
    """Top-k sampling by transformers itself, from the text alone."""
    questions = written(Doc2Query(model=str(checkpoint), **SMALL), collection)
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    network = transformers.T5ForConditionalGeneration.from_pretrained(checkpoint).eval()
    torch.manual_seed(int(fingerprint(42, UNITS[0].contents), 16))
    ids = tokenizer(UNITS[0].contents, return_tensors="pt").input_ids
    settings = {"top_k": 10, "num_return_sequences": 4, "max_new_tokens": 8}
    sampled = network.generate(ids, do_sample=True, **settings)
    decoded = tokenizer.batch_decode(sampled, skip_special_tokens=True)
    expected = [" ".join(text.split()) for text in decoded]
    assert list(questions["d0"]) == [text for text in expected if text] != []
    assert questions["d2"] == ()


def test_a_documents_questions_depend_on_its_text_and_the_seed_alone(checkpoint, collection):
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


def test_a_checkpoint_without_a_tokenizer_is_refused(checkpoint, tmp_path):
    shutil.copytree(checkpoint, tmp_path / "bare")
    (tmp_path / "bare" / "tokenizer.json").unlink()
    with pytest.raises(InputError, match=r"brings no tokenizer.json"):
        _ = Doc2Query(model=str(tmp_path / "bare")).fingerprint


NUMBERED = [Unit(f"d{number}", "", f"Text number {number}.") for number in range(12)]
ANSWER = json.dumps({"keywords": ["seamark"]})


def ask(folder):
    """Ask for all phrases that are missing; each reply that is paid for leaves a line."""
    paid = (folder / "paid").open("a")

    def reply(messages, settings):
        print(messages[0]["content"].split("number ")[1].split(".")[0], file=paid, flush=True)
        return Turn(text=ANSWER)

    source, blocking = ModelPhrases(), BlockingModel("m", role="enrichment")
    collection = Collection("c", caches=folder / "caches", model=blocking)
    with (
        open_ledger(folder / "ledger.jsonl") as ledger,
        blocking.started(ScriptedModel(choose=reply), ledger),
    ):
        flags = source.missing_flags(NUMBERED, len(NUMBERED), collection)
        missing = compress(NUMBERED, flags)
        for _, phrases, error in source.ask_documents(missing, collection):
            assert list(phrases) == ["seamark"] and not error


def killed(folder, owner, method, call):
    """Ask in a process that dies without a word before it makes this call, counted from 1."""
    process = os.fork()
    if process:
        assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 9
        return
    try:
        original = getattr(owner, method)
        calls = iter(range(1, 1000))

        def dying(*arguments, **options):
            if next(calls) == call:
                os._exit(9)
            return original(*arguments, **options)

        setattr(owner, method, dying)
        ask(folder)
    finally:
        os._exit(1)


@pytest.mark.parametrize("kills", [1, 3])
def test_a_reply_that_is_kept_and_not_yet_on_the_ledger_is_paid_for_once(tmp_path, kills):
    for _ in range(kills):
        killed(tmp_path, JsonLinesLog, "append", 3)
    ask(tmp_path)
    paid = Counter((tmp_path / "paid").read_text().split())
    assert len(paid) == len(NUMBERED) and set(paid.values()) == {1}
    # Each kill leaves off the ledger the one reply that it fell on.
    assert sum(start["calls"] for start in starts(tmp_path)) == len(NUMBERED) - kills


def test_a_reply_that_is_neither_kept_nor_entered_is_asked_for_again(tmp_path):
    killed(tmp_path, ResultCache, "put", 5)
    ask(tmp_path)
    paid = Counter((tmp_path / "paid").read_text().split())
    assert len(paid) == len(NUMBERED) and sorted(paid.values())[-2:] == [1, 2]
    assert sum(start["calls"] for start in starts(tmp_path)) == len(NUMBERED)


def test_an_empty_cache_is_known_to_lack_everything_without_a_look_at_the_units(tmp_path):
    class Units:
        reads = 0

        def __iter__(self):
            Units.reads += 1
            return iter(NUMBERED)

    source, blocking = ModelPhrases(), BlockingModel("m", role="enrichment")
    collection = Collection("c", caches=tmp_path / "caches", model=blocking)
    assert source.missing_flags(Units(), 12, collection) == bytes([1] * 12)
    assert Units.reads == 0
    killed(tmp_path, ResultCache, "put", 5)
    flags = source.missing_flags(Units(), 12, collection)
    assert sum(flags) == 8 and Units.reads == 1
