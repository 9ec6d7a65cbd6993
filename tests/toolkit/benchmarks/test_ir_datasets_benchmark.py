"""Datasets of ir_datasets: what is read, how splits are found, what is refused."""

import json
import os
import subprocess
import sys
from typing import NamedTuple

import ir_datasets
import pytest
from ir_datasets.formats import (
    BaseDocs,
    BaseQrels,
    BaseQueries,
    GenericDoc,
    GenericQuery,
    TrecQrel,
    TrecSubQrel,
    TsvDocs,
)
from ir_datasets.util import LocalDownload, RequestsDownload
from support.benchmarks import HARBOUR, prepare_beir, prepare_vaswani

from soundingline.toolkit.benchmarks.benchmark import Benchmark
from soundingline.toolkit.benchmarks.ir_datasets import IrDatasetsBenchmark
from soundingline.toolkit.data import Document, Topic
from soundingline.toolkit.errors import InputError

TOP = "soundingline-tests"


class TitledDoc(NamedTuple):
    doc_id: str
    url: str
    title: str
    body: str

    def default_text(self):
        return f"{self.title} {self.body}"


class AnsweredQuery(NamedTuple):
    query_id: str
    text: str
    answers: tuple[str, ...]

    def default_text(self):
        return self.text


class OddDoc(NamedTuple):
    doc_id: str
    pixels: str


class Docs(BaseDocs):
    def __init__(self, rows):
        self.rows = rows
        self.passes = 0

    def docs_iter(self):
        self.passes += 1
        return iter(self.rows)


class Queries(BaseQueries):
    def __init__(self, *rows):
        self.rows = rows

    def queries_iter(self):
        return iter(self.rows)


class Qrels(BaseQrels):
    def __init__(self, *rows):
        self.rows = rows

    def qrels_iter(self):
        return iter(self.rows)


DOCS = [GenericDoc("d1", "first"), GenericDoc("d2", "second")]
QUERIES = Queries(GenericQuery("q2", "two?"), GenericQuery("q1", "one?"))
QRELS = Qrels(TrecQrel("q1", "d1", 2, "0"), TrecQrel("q2", "gone", 0, "0"))


@pytest.fixture
def register(monkeypatch, tmp_path):
    """`register("a/b", docs, queries, qrels)` gives the id, which is forgotten after the test. The
    folder of ir_datasets is an empty one."""
    monkeypatch.setattr(ir_datasets.registry, "_registered", dict(ir_datasets.registry._registered))
    monkeypatch.setenv("IR_DATASETS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("IR_DATASETS_DL_TRIES", "1")

    def put(name, *parts):
        dataset = f"{TOP}/{name}"
        ir_datasets.registry.register(dataset, ir_datasets.Dataset(*parts))
        return dataset

    return put


def message(call):
    with pytest.raises(InputError) as caught:
        call()
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_a_dataset_is_a_benchmark_of_its_documents_queries_and_judgements(register):
    dataset = register("plain", Docs(DOCS), QUERIES, QRELS)
    benchmark = IrDatasetsBenchmark(dataset)
    assert isinstance(benchmark, Benchmark)
    assert benchmark.name == f"{TOP}-plain"
    assert benchmark.topics == [Topic("q2", "two?"), Topic("q1", "one?")]
    assert benchmark.qrels == {"evidence": {"q1": {"d1": 2}, "q2": {"gone": 0}}}
    assert [*benchmark.documents()] == [Document("d1", "", "first"), Document("d2", "", "second")]
    assert not benchmark.targets
    sets, part = IrDatasetsBenchmark(dataset, sets=True), IrDatasetsBenchmark(dataset, limit=1)
    assert sets.targets == {"q1": {"d1"}, "q2": set()}
    assert part.topics == benchmark.topics[:1] and part.qrels == {"evidence": {"q2": {"gone": 0}}}
    assert len({each.fingerprint for each in (benchmark, sets, part)}) == 3
    assert len({each.corpus_fingerprint for each in (benchmark, sets, part)}) == 1


def test_titles_urls_answers_and_subtopics_are_read_where_a_dataset_has_them(register):
    documents = Docs([TitledDoc("d1", "http://a", "Brel", "a  town"), TitledDoc("d2", "", "", "b")])
    queries = Queries(AnsweredQuery("q1", "where?", ("Brel", "brel")))
    qrels = Qrels(*(TrecSubQrel("q1", "d1", grade, str(grade)) for grade in (0, 2, 1)))
    benchmark = IrDatasetsBenchmark(register("titled", documents, queries, qrels), name="mine")
    assert benchmark.name == "mine"
    assert benchmark.answers == {"q1": ["Brel", "brel"]}
    titled = Document("d1", "Brel", "a  town", "http://a")
    assert list(benchmark.documents()) == [titled, Document("d2", "", "b")]
    assert benchmark.qrels == {"evidence": {"q1": {"d1": 2}}}, "the highest grade of a pair"


def test_a_split_is_below_or_beside_a_dataset_and_shares_its_corpus(register):
    documents = Docs(DOCS)
    base = register("base", documents, QUERIES)
    train = register("base/train", documents, QUERIES, Qrels(TrecQrel("q1", "d1", 1, "0")))
    test = register("base/test", documents, QUERIES, QRELS)
    below = IrDatasetsBenchmark(base, split="train")
    beside = IrDatasetsBenchmark(test, split="train")
    named = IrDatasetsBenchmark(train)
    assert below.fingerprint == beside.fingerprint == named.fingerprint
    assert IrDatasetsBenchmark(train, split="train").topics == named.topics
    other = IrDatasetsBenchmark(test)
    assert other.fingerprint != named.fingerprint
    assert other.corpus_fingerprint == named.corpus_fingerprint
    assert other.name == named.name == below.name == f"{TOP}-base"


def test_unknown_foreign_and_ambiguous_splits_are_refused_in_one_line(register):
    documents = Docs(DOCS)
    test = register("base/test", documents, QUERIES, QRELS)
    register("base/dev", documents, QUERIES, QRELS)
    register("base/other", Docs(DOCS), QUERIES, QRELS)
    for split in ("tets", "other"):  # The other one has documents of its own.
        line = message(lambda split=split: IrDatasetsBenchmark(test, split=split))
        assert f"has no split '{split}'. valid: null, or the last part of another dataset" in line
        assert f"{TOP}/base/dev" in line and f"{TOP}/base/other" not in line
    register("base/test/dev", documents, QUERIES, QRELS)
    ambiguous = message(lambda: IrDatasetsBenchmark(test, split="dev"))
    assert f"{TOP}/base/test/dev or {TOP}/base/dev" in ambiguous
    assert "split=null" in ambiguous


def test_a_dataset_that_does_not_exist_or_lacks_a_part_is_refused(register):
    unknown = message(lambda: IrDatasetsBenchmark("vaswanni"))
    assert "has no dataset 'vaswanni'" in unknown and "https://ir-datasets.com" in unknown
    assert message(lambda: IrDatasetsBenchmark("vaswanni", split="dev")) == unknown
    parts = {"docs": Docs(DOCS), "queries": QUERIES, "qrels": QRELS}
    for missing in parts:
        others = [part for name, part in parts.items() if name != missing]
        dataset = register(f"without-{missing}", *others)
        assert f"has no {missing}" in message(lambda dataset=dataset: IrDatasetsBenchmark(dataset))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"queries": [GenericQuery("q1", "a")] * 2}, "query 2 of .* has the qid 'q1' a second"),
        ({"queries": [GenericQuery("", "a")]}, "query 1 of .*: query_id is an empty string"),
        ({"queries": []}, "holds no question"),
        ({"qrels": [TrecQrel("q1", "d1", g, "0") for g in (0, 1)]}, "judgement 2 of .* grade"),
        ({"qrels": [TrecQrel("q1", "d1", "1", "0")]}, "judgement 1 of .*: relevance .*integer"),
        ({"docs": [GenericDoc("d1", None)]}, "document 1 of .*: text is null"),
        ({"docs": [GenericDoc("d1", "\ud800")]}, "document 1 of .*: text: half a surrogate pair"),
        ({"docs": [OddDoc("d1", "...")]}, "no field 'text'.*doc_id, pixels"),
    ],
)
def test_malformed_rows_are_refused_with_their_place(register, rows, message):
    rows = {"docs": DOCS, "queries": QUERIES.rows, "qrels": QRELS.rows, **rows}
    parts = Docs(rows["docs"]), Queries(*rows["queries"]), Qrels(*rows["qrels"])
    with pytest.raises(InputError, match=message):
        list(IrDatasetsBenchmark(register("bad", *parts)).documents())


def test_a_corpus_that_is_not_there_is_reported_with_its_address_and_what_to_do(register, tmp_path):
    address = "http://127.0.0.1:9/corpus.tsv"
    download = ir_datasets.util.Download([RequestsDownload(address)], tmp_path / "corpus.tsv")
    dataset = register("remote", TsvDocs(download), QUERIES, QRELS)
    line = message(lambda: list(IrDatasetsBenchmark(dataset).documents()))
    assert f"could not get the docs of {dataset} from {address}: ConnectionError" in line
    assert f"https://ir-datasets.com/{TOP}.html" in line
    assert f"{tmp_path / 'home'} (IR_DATASETS_HOME" in line
    path = tmp_path / "licensed.tsv"
    dataset = register("licensed", TsvDocs(LocalDownload(path)), QUERIES, QRELS)
    line = message(lambda: IrDatasetsBenchmark(dataset).corpus_fingerprint)
    assert f"FileNotFoundError: {path}" in line and "says where the files come from" in line


@pytest.fixture
def on_disk(register, tmp_path):
    """A dataset whose documents are a file, and how often they have been read from it."""
    path, passes = tmp_path / "corpus.tsv", [0]
    path.write_text("d1\tfirst\nd2\tsecond\n")

    class Counted(TsvDocs):
        def docs_iter(self):
            passes[0] += 1
            return super().docs_iter()

    return register("file", Counted(LocalDownload(path)), QUERIES, QRELS), path, passes


def test_the_corpus_fingerprint_is_read_once_until_its_files_change(on_disk):
    dataset, path, passes = on_disk
    first = IrDatasetsBenchmark(dataset).corpus_fingerprint
    assert passes == [1]
    assert IrDatasetsBenchmark(dataset).corpus_fingerprint == first
    assert passes == [1]
    path.write_text("d1\tfirst\nd2\tSECOND\n")
    os.utime(path, (1, 1))
    changed = IrDatasetsBenchmark(dataset).corpus_fingerprint
    assert changed != first and passes == [2]
    path.write_text("d1\tfirst\nd2\tsecond\n")
    assert IrDatasetsBenchmark(dataset).corpus_fingerprint == first


def test_a_damaged_or_forbidden_stamp_costs_a_pass_and_nothing_else(on_disk, tmp_path):
    dataset, _, passes = on_disk
    first = IrDatasetsBenchmark(dataset).corpus_fingerprint
    (stamp,) = (tmp_path / "home" / "soundingline").iterdir()
    for content in ("", "[]", json.dumps({**json.loads(stamp.read_text()), "corpus": 3})):
        stamp.write_text(content)
        assert IrDatasetsBenchmark(dataset).corpus_fingerprint == first
    assert passes == [4]
    stamp.unlink()
    stamp.parent.rmdir()
    stamp.parent.write_text("no folder")
    assert IrDatasetsBenchmark(dataset).corpus_fingerprint == first
    assert passes == [5]


def test_documents_in_memory_are_never_taken_for_known(register):
    documents = Docs(DOCS)
    dataset = register("memory", documents, QUERIES, QRELS)
    first = IrDatasetsBenchmark(dataset).corpus_fingerprint
    documents.rows = DOCS[:1]
    assert IrDatasetsBenchmark(dataset).corpus_fingerprint != first


READ = """
import json, sys
from soundingline.toolkit.benchmarks.ir_datasets import IrDatasetsBenchmark
rows = []
for arguments in ({"dataset": "vaswani"}, {"dataset": "beir/scifact/test"},
                  {"dataset": "beir/scifact/test", "split": "train"}):
    b = IrDatasetsBenchmark(**arguments)
    rows.append([b.name, b.topics, b.qrels["evidence"], list(b.documents()),
                 b.corpus_fingerprint, "ir_datasets" in sys.modules])
print(json.dumps(rows))
"""


def test_downloads_of_real_datasets_are_read_in_their_own_formats(tmp_path):
    """ir_datasets takes the folder of its downloads when it is imported: a process of its own."""
    home = prepare_beir(prepare_vaswani(tmp_path), "scifact", ("train", "test"))
    variables = {**os.environ, "IR_DATASETS_HOME": str(home)}
    printed = subprocess.check_output([sys.executable, "-c", READ], env=variables, text=True)
    vaswani, test, train = json.loads(printed.splitlines()[-1])
    rows = list(enumerate(HARBOUR, start=1))
    assert vaswani[0] == "vaswani"
    assert [text for _, text in vaswani[1]] == [text.upper() for text in HARBOUR]
    assert vaswani[2] == {str(n): {str(n): 1} for n, _ in rows}
    assert [row[2].strip() for row in vaswani[3]] == HARBOUR
    assert test[0] == train[0] == "beir-scifact"
    assert test[2] == {"2": {"d2": 1}} and train[2] == {"1": {"d1": 1}, "3": {"d3": 1}}
    assert [qid for qid, _ in train[1]] == ["1", "3"]
    assert test[3] == train[3] == [[f"d{n}", f"T{n}", text, ""] for n, text in rows]
    assert test[4] == train[4] != vaswani[4]
