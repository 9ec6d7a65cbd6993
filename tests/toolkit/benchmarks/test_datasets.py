"""BEIR folders, listed questions and the slices of Pi-Serini, and the datasets of ir_datasets."""

import gzip
import json
import os
import random
import subprocess
import sys
from collections import Counter
from typing import NamedTuple
from urllib.parse import unquote

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
from support.assertions import refused
from support.benchmarks import HARBOUR, SmallBenchmark, prepare_beir, prepare_vaswani, write_jsonl

from soundingline.experiments.build import make
from soundingline.experiments.config import Settings
from soundingline.toolkit.benchmarks.beir import BeirBenchmark
from soundingline.toolkit.benchmarks.benchmark import QID_LISTS, Benchmark, listed_topics
from soundingline.toolkit.benchmarks.fictional import FictionalWorld
from soundingline.toolkit.benchmarks.ir_datasets import IrDatasetsBenchmark
from soundingline.toolkit.benchmarks.slices import (
    STRATA,
    pi_serini_slices,
    stratum,
)
from soundingline.toolkit.corpus.store import SqliteStore
from soundingline.toolkit.data import Document, Link, Topic
from soundingline.toolkit.errors import InputError

CORPUS = [
    {"_id": "d1", "title": "One", "text": "first\u2028still 1", "metadata": {"url": "http://a"}},
    {"_id": "d2", "title": "", "text": "second", "url": "http://b"},
    {"_id": "d3", "text": "third"},
]
QUERIES = [
    {"_id": "q3", "text": "three?", "answers": ["3", "three"]},
    {"_id": "../../x", "text": "odd?"},
    {"_id": "q1", "text": "one?"},
]
SET_QUERIES = [
    {"_id": "q1", "text": "one?", "checklist": ["It is first.", "Это старо."]},
    {"_id": "q2", "text": "two?", "targets": ["d3", "d2", "d2"]},
    {"_id": "q3", "text": "three?"},
    {"_id": "q4", "text": "none?", "targets": []},
]
HEADER = "query-id\tcorpus-id\tscore\n"


def write(folder, corpus=CORPUS, queries=QUERIES, **qrels):
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    for name, rows in (("corpus", corpus), ("queries", queries)):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")
    for split, text in (qrels or {"test": HEADER + "q1\td1\t1\nq3\td2\t0\n"}).items():
        name = split.replace("_", ".")
        (folder / "qrels" / f"{name}.tsv").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def folder(tmp_path):
    return write(
        tmp_path / "mine",
        test=HEADER + "q1\td1\t1\nq3\td2\t0\nghost\td1\t1\n",
        dev="../../x 0 d3 2\n../../x 0 nowhere 1\n",
        dev_gold="../../x 0 d3 1\n",
    )


def test_a_share_of_the_corpus_has_judged_documents_and_part_of_the_others(folder):
    rows = [*CORPUS, *({"_id": f"x{number}", "text": "Filler."} for number in range(400))]
    write(folder, corpus=rows)
    docids, hashes = {}, set()
    for share in (0.1, 0.3, 1.0):
        benchmarks = [
            BeirBenchmark(folder, corpus_share=share, **settings)
            for settings in ({}, {"split": "dev"}, {"split": None, "limit": 1})
        ]
        ids = [[document.docid for document in each.documents()] for each in benchmarks]
        assert ids[0] == ids[1] == ids[2]
        (corpus_fingerprint,) = {each.corpus_fingerprint for each in benchmarks}
        hashes |= {corpus_fingerprint, benchmarks[0].fingerprint}
        assert set(ids[0]) >= {"d1", "d2", "d3"}
        docids[share] = ids[0]
    assert len(hashes) == 6 and BeirBenchmark(folder).fingerprint in hashes
    assert docids[1.0] == [row["_id"] for row in rows]
    assert set(docids[0.1]) < set(docids[0.3]) < set(docids[1.0])
    # Expected are 40 and 120 of the 400; five standard deviations are 30 and 46.
    assert abs(len(docids[0.1]) - 43) < 30 and abs(len(docids[0.3]) - 123) < 46
    half = BeirBenchmark(folder, corpus_share=0.5).corpus_fingerprint
    (folder / "qrels" / "test.tsv").write_text(HEADER + "q1\td1\t1\nq3\tx5\t1\n")
    assert BeirBenchmark(folder, corpus_share=0.5).corpus_fingerprint != half


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        *(({"corpus_share": share}, "corpus_share=") for share in (0, -0.1, 1.5, "half")),
        *(({"limit": limit}, "limit=.* 1 or more") for limit in (0, -1, True, "3")),
        ({"split": "train"}, r"no split 'train'\. valid: dev, test, or null"),
        ({"answers": "/absent"}, r"no file of answers .*absent.*benchmark.answers"),
    ],
)
def test_impossible_settings_are_refused(folder, settings, message):
    refused(message, BeirBenchmark, folder, **settings)


@pytest.mark.parametrize(
    ("settings", "qids", "evidence", "gold"),
    [
        ({"split": "test"}, ["q3", "q1"], {"q1": {"d1": 1}, "q3": {"d2": 0}}, None),
        (
            {"split": "dev"},
            ["../../x"],
            {"../../x": {"d3": 2, "nowhere": 1}},
            {"../../x": {"d3": 1}},
        ),
        (
            {"split": None},
            ["q3", "../../x", "q1"],
            {"q1": {"d1": 1}, "q3": {"d2": 0}, "../../x": {"d3": 2, "nowhere": 1}},
            {"../../x": {"d3": 1}},
        ),
        ({"split": None, "limit": 1}, ["q3"], {"q3": {"d2": 0}}, {}),
    ],
)
def test_a_split_and_a_limit_select_questions_with_their_judgements(
    folder, settings, qids, evidence, gold
):
    benchmark = BeirBenchmark(folder, **settings)
    assert isinstance(benchmark, Benchmark) and benchmark.name == "mine"
    assert [topic.qid for topic in benchmark.topics] == qids
    assert benchmark.qrels == {"evidence": evidence} | ({} if gold is None else {"gold": gold})
    assert benchmark.answers == ({"q3": ["3", "three"]} if "q3" in qids else {})
    other = BeirBenchmark(folder, split="test", limit=1, name="other")
    assert other.name == "other" and other.topics == [Topic("q3", "three?")]
    assert other.fingerprint != benchmark.fingerprint
    assert other.corpus_fingerprint == benchmark.corpus_fingerprint


def test_documents_are_streamed_with_text_title_and_url_and_looked_up(folder):
    benchmark = BeirBenchmark(folder, split=None)
    documents = [
        Document("d1", "One", "first\u2028still 1", "http://a"),
        Document("d2", "", "second", "http://b"),
        Document("d3", "", "third", ""),
    ]
    assert list(benchmark.documents()) == documents
    assert benchmark.unknown_judged({"d1", "d2", "d3"}) == [("../../x", "nowhere")]
    assert benchmark.missing_documents(["d1", "nowhere", "d3"]) == {"nowhere"}
    assert benchmark.missing_documents([]) == set()
    texts = list(benchmark.document_texts(["d2", "nowhere", "d1"]))
    assert texts == [("d1", "One\nfirst\u2028still 1"), ("d2", "\nsecond")]
    with (folder / "corpus.jsonl").open("a") as stream:
        stream.write("{broken\n")
    streamed = benchmark.documents()
    assert [next(streamed) for _ in range(3)] == documents
    refused(r"corpus\.jsonl:4 is not JSON", next, streamed)


def test_questions_without_judgements_stay(tmp_path):
    benchmark = BeirBenchmark(write(tmp_path), split=None)
    assert {topic.qid for topic in benchmark.topics} - set(benchmark.qrels["evidence"]) == {
        "../../x"
    }
    (tmp_path / "qrels" / "test.tsv").unlink()
    benchmark = BeirBenchmark(tmp_path, split=None)
    assert benchmark.qrels == {"evidence": {}} and len(benchmark.topics) == 3


def test_fingerprints_are_of_content_and_not_of_the_path(folder, tmp_path):
    def hashes():
        benchmark = BeirBenchmark(tmp_path / "moved")
        return benchmark.fingerprint, benchmark.corpus_fingerprint

    original = BeirBenchmark(folder)
    before = original.fingerprint, original.corpus_fingerprint
    corpus = folder.rename(tmp_path / "moved") / "corpus.jsonl"
    assert hashes() == before
    corpus.write_text(corpus.read_text().replace("third", "thirD"))
    os.utime(corpus, (1, 1))
    assert not set(hashes()) & set(before)
    corpus.write_text(corpus.read_text().replace("thirD", "third"))
    assert hashes() == before


MALFORMED = {
    "qrels/test.tsv": [
        (HEADER + "q1\td1\n", r":2 has 2 fields\. valid: query-id"),
        (HEADER + "q1\td1\tmany\n", r":2 has the grade 'many'\. valid: an integer"),
        (HEADER + "q1\td1\t1.0\n", r":2 has the grade '1\.0'"),
        ("q1\td1\tmany\n", r":1 has the grade 'many'"),
        (HEADER + "q1\t\t1\n", r":2 has 3 fields, and one of them is empty"),
        ("\tq1\td1\t1\n", r":1 has 4 fields, and one of them is empty"),
        (HEADER + "q1\td1\t1000001\n", r":2 has the grade '1000001'.* at most 1,000,000"),
        ("q1 0 d1 10000000000\n", r":1 has the grade '10000000000'.* at most 1,000,000"),
        (HEADER + "q1\td1\t1\nq1\td1\t2\n", r":3 gives 'd1' the grade 2"),
        (HEADER + "ghost\td1\t1\n", " name no question of queries.jsonl"),
        ("", " name no question of queries.jsonl"),
    ],
    "queries.jsonl": [
        ('{"_id": "q1"}', r":1 has no field 'text'\. valid: its fields: _id"),
        ('{"_id": "q1", "text": "a"}\n' * 2, ":2 has the qid 'q1' a second time"),
        ('{"_id": "", "text": "a"}', ":1: _id is an empty string"),
        ('{"_id": "q1", "text": "a", "answers": "b"}', ":1: answers is .*list"),
        ('{"_id": "q1", "text": ["a"]}', ":1: text is a value of type list"),
        ('{"_id": "q1", "text": "a", "checklist": []}', ":1: checklist .*at least 1 item"),
        ('{"_id": "q1", "text": "a", "checklist": ["  "]}', ":1: checklist"),
        ('{"_id": "q1", "text": "a", "checklist": "one"}', ":1: checklist"),
        (
            json.dumps({"_id": "q1", "text": "a", "checklist": ["x"] * 200}),
            ":1: checklist .*at most 100 items.*not 200",
        ),
        ('{"_id": "q1", "text": "a", "targets": "d1"}', ":1: targets"),
        ('{"_id": "q1", "text": "a", "targets": [null]}', ":1: targets"),
        ('{"_id": "q1", "text": "a", "targets": ["d2"]}', "'d2' is a target of .* 'q1'"),
    ],
    "corpus.jsonl": [
        ("", " is absent or empty"),
        ('{"_id": "d1"}\n', ":1 has no field 'text'"),
        (
            '{"id": "d1", "contents": "a"}\n',
            ":1 .*rename id to _id, and contents to text",
        ),  # Pyserini's
        ('\n{"_id": "d1", "text"\n', ":2 is not JSON"),
        ('["d1"]\n', ":1 is a JSON list"),
        ('{"_id": "d1", "text": "\udcff"}\n', ":1 is not UTF-8"),
        ('{"_id": "d1", "text": "\\ud800"}\n', ":1: text: half a surrogate pair"),
    ],
    "links.tsv": [
        (f"docid\tlinked\na\tb\n{line}", ":3 is not a link")
        for line in ("a", "a\tb\tc", "\tb", "a\t")
    ],
    "own.jsonl": [('{"qid": "q1", "answers": "one"}', ":1: answers")],
}


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [(file, *row) for file, rows in MALFORMED.items() for row in rows],
)
def test_malformed_files_are_refused_with_file_and_line(tmp_path, file, content, message):
    write(tmp_path, test=HEADER + "q1\td1\t1\nq1\td2\t0\n")
    # A surrogate stands for a byte that is not UTF-8.
    (tmp_path / file).write_bytes(content.encode("utf-8", "surrogateescape"))
    place = "" if "name no question" in message or "is a target" in message else file
    answers = tmp_path / file if file == "own.jsonl" else None

    def read():
        benchmark = BeirBenchmark(tmp_path, answers=answers)
        list(benchmark.links() or benchmark.documents())

    refused(place.replace(".", r"\.") + message, read)


@pytest.mark.parametrize(
    "content",
    [
        "q1 d1 1\nq3 d2 -2\n",
        "q1\td1\t1\t\nq3\td2\t-2\t\t\n",
        "q1\tQ0\td1\t1\t \r\nq3\t0\td2\t-2\t\n",
        HEADER.replace("\n", "\t\n") + "q1\td1\t1 \nq3 0 d2 -2\t\n",
    ],
)
def test_qrels_are_read_with_and_without_a_header_and_tabs_at_the_end(tmp_path, content):
    benchmark = BeirBenchmark(write(tmp_path, test=content))
    assert benchmark.qrels["evidence"] == {"q1": {"d1": 1}, "q3": {"d2": -2}}


def test_the_store_refuses_a_docid_that_comes_twice_and_an_empty_corpus(tmp_path):
    rows = [f'{{"_id": "d{n}", "text": "a"}}\n' for n in range(700)]
    corpus = write(tmp_path) / "corpus.jsonl"
    wrong = {
        "".join([*rows, "\n", rows[5]]): r"docid 'd5' comes twice \(again as document 701\)",
        "\n\n": "the corpus holds no document",
    }
    for content, message in wrong.items():
        corpus.write_text(content)
        benchmark = BeirBenchmark(tmp_path)
        with pytest.raises(InputError, match=message):
            SqliteStore.build(tmp_path / "store", benchmark.documents(), corpus_fingerprint="x")
        assert not (tmp_path / "store").exists()


def test_a_byte_order_mark_and_windows_line_ends_are_accepted(tmp_path):
    (write(tmp_path) / "corpus.jsonl").write_bytes(b'\xef\xbb\xbf{"_id": "d1", "text": "a"}\r\n')
    assert list(BeirBenchmark(tmp_path).documents()) == [Document("d1", "", "a")]


@pytest.mark.parametrize("suffix", [".json", ".jsonl.gz", ".json.gz"])
def test_json_lines_have_any_usual_name_and_may_be_compressed(tmp_path, suffix):
    plain, folder = write(tmp_path / "plain"), write(tmp_path / "mine")
    satisfaction = [{"query-id": "q1", "corpus-id": "d2", "satisfied": [True, False]}]
    for name, rows in (
        ("corpus", CORPUS),
        ("queries", SET_QUERIES),
        ("satisfaction", satisfaction),
    ):
        write_jsonl(plain / f"{name}.jsonl", rows)
        (folder / f"{name}.jsonl").unlink(missing_ok=True)
        write_jsonl(folder / f"{name}{suffix}", rows)
    expected, benchmark = BeirBenchmark(plain), BeirBenchmark(folder)
    assert list(benchmark.documents()) == list(expected.documents())
    assert (benchmark.topics, benchmark.targets) == (expected.topics, expected.targets)
    assert benchmark.satisfaction == {"q1": {"d2": (True, False)}}


def test_the_content_and_not_the_name_says_whether_a_file_is_compressed(tmp_path):
    folder = write(tmp_path)
    content = (folder / "corpus.jsonl").read_bytes()
    compressed = gzip.compress(content)
    documents = list(BeirBenchmark(folder).documents())
    (folder / "corpus.jsonl").write_bytes(compressed)
    qrels = folder / "qrels" / "test.tsv"
    qrels.write_bytes(gzip.compress(qrels.read_bytes()))
    benchmark = BeirBenchmark(folder)
    assert list(benchmark.documents()) == documents
    assert benchmark.qrels["evidence"] == {"q1": {"d1": 1}, "q3": {"d2": 0}}
    damaged = [compressed[:-9], compressed[:40] + b"\0\0\0" + compressed[43:]]
    for wrong in (*damaged, compressed[:-8] + bytes(8)):
        (folder / "corpus.jsonl").write_bytes(wrong)
        with pytest.raises(InputError, match=r"corpus\.jsonl cannot be decompressed after line \d"):
            list(BeirBenchmark(folder).documents())


def test_missing_folders_and_files_say_what_is_valid(folder):
    with pytest.raises(InputError, match=r"no folder .*absent\. It should hold a collection"):
        BeirBenchmark(folder.parent / "absent")
    (folder / "queries.jsonl").unlink()
    refused(r"queries\.jsonl is absent .*holds: corpus\.jsonl, qrels", BeirBenchmark, folder)


@pytest.mark.parametrize(
    ("name", "split", "documents", "questions", "rows"),
    [
        ("cmuqa", "dev", 115, 219, 219),
        ("cmuqa", "test", 115, 658, 658),
        ("musique100", "test", 1890, 100, 237),
        ("wikimix", None, 2005, 977, 877 + 237),
        ("vaswani", "test", 11429, 93, 2083),
        ("cacm", "test", 3204, 52, 796),
    ],
)
def test_real_collections_have_their_published_sizes(
    data_root, name, split, documents, questions, rows
):
    benchmark = BeirBenchmark(data_root / name, split=split)
    docids = {document.docid for document in benchmark.documents()}
    assert len(docids) == documents and len(benchmark.topics) == questions
    assert sum(map(len, benchmark.qrels["evidence"].values())) == rows


def test_without_a_split_a_real_collection_has_its_questions_without_judgements(data_root):
    every = BeirBenchmark(data_root / "cacm", split=None)
    assert (len(every.topics), len(every.qrels["evidence"])) == (64, 52)
    docids = {document.docid for document in every.documents()}
    assert len(every.unknown_judged(docids)) == 55


@pytest.mark.parametrize(("split", "questions"), [("dev", 92), ("test", 320), ("null", 412)])
def test_the_shipped_collection_is_complete(split, questions):
    """55 of the articles of Question-Answer Dataset 1.2, and MuSiQue's paragraphs as in KAG."""
    settings = Settings.compose(["benchmark=wikidemo", f"benchmark.split={split}"])
    benchmark = make(settings.config.benchmark)
    lengths = {each.docid: len(each.text.split()) for each in benchmark.documents()}
    assert len(lengths) == 55 + 1890 and sum(words > 500 for words in lengths.values()) == 55
    assert len(benchmark.topics) == questions and not benchmark.unknown_judged(lengths)
    assert all(benchmark.answers.values())


def test_the_shipped_collection_names_authors_licence_and_address_of_each_text():
    benchmark = make(Settings.compose(["benchmark=wikidemo"]).config.benchmark)
    attribution = (benchmark.path / "ATTRIBUTION.txt").read_text(encoding="utf-8")
    head, first, rest = attribution.partition("Alessandro_Volta\t")
    named = [row.split("\t") for row in (first + rest).splitlines()]
    texts = [(each.docid, each.title) for each in benchmark.documents()]
    assert [(docid, title) for docid, title, *_ in named] == texts
    assert Counter(source for _, _, source, _ in named) == {"cmu": 55, "musique": 1890}
    for _, title, _, address in named:
        assert unquote(address) == f"https://en.wikipedia.org/wiki/{title.replace(' ', '_')}"
    assert '"Wikipedia contributors"' in head and "What was changed" in head
    for licence in ("CC-BY-SA-3.0", "CC-BY-4.0"):
        assert f"LICENSE.{licence}.txt" in head
    # The length in words of the licences' texts, as SPDX has them.
    lengths = {
        path.name: len(path.read_text("utf-8").split()) for path in benchmark.path.glob("LICENSE*")
    }
    assert lengths == {"LICENSE.CC-BY-SA-3.0.txt": 3384, "LICENSE.CC-BY-4.0.txt": 2550}
    assert len((benchmark.path / "DATASHEET.md").read_text(encoding="utf-8").splitlines()) < 40


def test_questions_with_a_checklist_or_targets_ask_for_documents(tmp_path):
    folder = write(tmp_path, queries=SET_QUERIES, test=HEADER + "q1\td1\t2\nq1\td2\t0\nq3\td3\t1\n")
    satisfaction = folder / "satisfaction.jsonl"
    row = '{"query-id": "q1", "corpus-id": "d2", "satisfied": [true, false]}\n'
    satisfaction.write_text(row, encoding="utf-8")
    every = BeirBenchmark(folder, split=None)
    assert every.targets == {"q1": {"d1"}, "q2": {"d2", "d3"}, "q4": set()}
    assert every.checklists == {"q1": ["It is first.", "Это старо."]}
    assert every.satisfaction == {"q1": {"d2": (True, False)}}
    test = BeirBenchmark(folder)
    assert [topic.qid for topic in test.topics] == ["q1", "q3"]
    assert test.targets == {"q1": {"d1"}}
    satisfaction.write_text(row.replace(", false", ""))
    refused("a list of 2 values", BeirBenchmark, folder)


def test_a_list_of_targets_needs_no_qrels(tmp_path):
    """Queries with lists of ids, the shape of LitSearch and SAGE."""
    folder = write(tmp_path, queries=SET_QUERIES[1:2], test=HEADER)
    (folder / "qrels" / "test.tsv").unlink()
    benchmark = BeirBenchmark(folder, split=None)
    assert benchmark.qrels["evidence"] == {"q2": {"d3": 1, "d2": 1}}
    assert benchmark.targets == {"q2": {"d2", "d3"}}


def test_all_questions_ask_for_documents_by_an_option(folder):
    plain, sets = BeirBenchmark(folder), BeirBenchmark(folder, sets=True)
    assert not plain.targets and sets.targets == {"q1": {"d1"}, "q3": set()}
    assert sets.fingerprint != plain.fingerprint
    assert sets.corpus_fingerprint == plain.corpus_fingerprint


def test_links_are_an_optional_file(folder):
    before = BeirBenchmark(folder)
    assert before.links() is None and before.links_fingerprint is None
    (folder / "links.tsv").write_text("docid\tlinked\nd1\td2\n", encoding="utf-8")
    benchmark = BeirBenchmark(folder)
    assert list(benchmark.links()) == [Link("d1", "d2")] and benchmark.links_fingerprint
    assert benchmark.fingerprint == before.fingerprint


def test_a_file_of_answers_replaces_those_of_the_questions_that_it_names(folder, tmp_path):
    path = tmp_path / "answers.jsonl"
    path.write_text('{"qid": "q1", "answers": ["one", "1"]}\n{"qid": "other", "answers": []}\n')
    benchmark = BeirBenchmark(folder, answers=path)
    assert benchmark.answers == {"q1": ["one", "1"], "q3": ["3", "three"]}
    assert benchmark.fingerprint != BeirBenchmark(folder).fingerprint


@pytest.mark.parametrize(
    ("name", "chosen", "expected"),
    [
        ("beir-arguana", None, True),
        ("quora", None, True),
        ("mine", None, False),
        ("mine", True, True),
        ("arguana", False, False),
    ],
)
def test_own_documents_are_left_out_of_rankings_where_questions_are_documents(
    folder, name, chosen, expected
):
    benchmark = BeirBenchmark(folder, name=name, exclude_own=chosen)
    assert benchmark.exclude_own is expected
    same = benchmark.fingerprint == BeirBenchmark(folder, exclude_own=False).fingerprint
    assert same is not expected


# Lists of questions by id, and the strata of Pi-Serini's slices by hand-made numbers.


TOPICS = [Topic(qid, f"question {qid}") for qid in ("q1", "q2", "q3", "q4")]


def listing(folder, *rows):
    path = folder / "ids.txt"
    path.write_text("".join(f"{row}\n" for row in rows))
    return str(path)


def test_listed_questions_stay_in_the_order_of_the_benchmark(tmp_path):
    path = listing(tmp_path, "q4", " q1 ", "", "q3\tthe text of a topic file")
    assert [topic.qid for topic in listed_topics(TOPICS, path)] == ["q1", "q3", "q4"]
    assert listed_topics(TOPICS, None) == TOPICS
    for rows, message in (("q1", "q9", "x"), "2 ids of no question, such as 'q9'"), ((), "no id"):
        refused(message, listed_topics, TOPICS, listing(tmp_path, *rows))
    refused("pi_serini_q9, wikidemo_8, or a file of ids", listed_topics, TOPICS, "pi_serini_q10")


def test_the_slice_of_nine_questions_has_the_published_ids():
    published = ["25", "30", "244", "549", "655", "1019", "1032", "1127", "1219"]
    topics = [Topic(str(number), "?") for number in range(1, 1267)]
    assert [topic.qid for topic in listed_topics(topics, "pi_serini_q9")] == published
    assert (QID_LISTS / "pi_serini_q9.txt").read_text().split() == published


def test_a_benchmark_selects_its_questions_and_then_applies_the_limit(tmp_path):
    qids = listing(tmp_path, "q4", "q2", "q3")
    qrels = {"evidence": {topic.qid: {"d": 1} for topic in TOPICS}}
    benchmark = SmallBenchmark(TOPICS, qrels, qids=qids, limit=2)
    assert [topic.qid for topic in benchmark.topics] == ["q2", "q3"]
    assert set(benchmark.qrels["evidence"]) == {"q2", "q3"}


def test_the_fingerprint_of_a_folder_follows_the_listed_questions(tmp_path):
    folder = write(tmp_path / "mine", test=HEADER + "q1\td1\t1\nq3\td2\t1\n")
    one, both = listing(tmp_path, "q1"), tmp_path / "both.txt"
    both.write_text("q1\nq3\n")
    every, first, all_listed = (BeirBenchmark(folder, qids=qids) for qids in (None, one, str(both)))
    assert [topic.qid for topic in first.topics] == ["q1"]
    assert all_listed.topics == every.topics
    assert first.fingerprint not in (every.fingerprint, all_listed.fingerprint)
    assert first.corpus_fingerprint == every.corpus_fingerprint
    refused("of no question, such as", BeirBenchmark, folder, qids=listing(tmp_path, "../../x"))


@pytest.mark.parametrize("questions", [20, "sets:20"])
def test_a_generated_world_selects_listed_questions(tmp_path, questions):
    settings = {"documents": 400, "questions": questions, "median_words": 40, "p90_words": 60}
    every = FictionalWorld(**settings)
    chosen = [every.topics[3], every.topics[11]]
    part = FictionalWorld(**settings, qids=listing(tmp_path, *(topic.qid for topic in chosen)))
    assert part.topics == chosen and set(part.qrels["evidence"]) == {t.qid for t in chosen}
    assert part.fingerprint != every.fingerprint


@pytest.mark.parametrize(
    ("recall", "relevant", "name"),
    [
        (0.0, 5, "zero_small"),
        (0.0, 6, "zero_large"),
        (0.01, 5, "tiny_small"),
        (0.1, 10, "tiny_large"),
        (0.11, 9, "low_large"),
        (0.25, 4, "low_small"),
        (0.26, 5, "medium_small"),
        (0.5, 6, "medium_large"),
        (0.51, 6, "high_large"),
        (1.0, 1, "high_small"),
    ],
)
def test_strata_by_recall_and_by_evidence_documents(recall, relevant, name):
    assert stratum(recall, relevant) == name


def test_questions_are_drawn_by_one_generator_over_the_strata_by_name():
    strata = {str(number): "b" if number % 2 else "a" for number in range(1, 21)}
    first, second = pi_serini_slices(strata, {"b": 3, "a": 2}, total=5)
    generator = random.Random(42)
    even = generator.sample([str(number) for number in range(2, 21, 2)], 2)
    odd = generator.sample([str(number) for number in range(1, 21, 2)], 3)
    assert first == second == sorted(even + odd, key=int)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        # 4 more by 1:2 are 1.33 and 2.67: one and two, and the largest remainder gets the last.
        ({"a": 10, "b": 10}, {"a": 1 + 1, "b": 2 + 3}),
        # b has two more questions, so that a gets the rest.
        ({"a": 10, "b": 4}, {"a": 1 + 2, "b": 2 + 2}),
    ],
)
def test_the_larger_slice_keeps_the_proportions_as_far_as_strata_have_questions(sizes, expected):
    names = [name for name, size in sizes.items() for _ in range(size)]
    strata = {str(number): name for number, name in enumerate(names, start=1)}
    first, second = pi_serini_slices(strata, {"a": 1, "b": 2}, total=7)
    assert set(first) < set(second)
    assert Counter(strata[qid] for qid in first) == {"a": 1, "b": 2}
    assert Counter(strata[qid] for qid in second) == expected


def test_the_strata_of_the_paper():
    strata = {}
    for name in [*STRATA, "tiny_small"]:
        strata |= {str(len(strata) + number): name for number in range(90)}
    first, second = pi_serini_slices(strata)
    assert (len(first), len(second)) == (100, 300)
    assert first == sorted(first, key=int) and set(first) < set(second)
    counts = Counter(strata[qid] for qid in first)
    assert counts == STRATA and sum(STRATA.values()) == 100
    assert Counter(strata[qid] for qid in second) == {name: 3 * n for name, n in STRATA.items()}


def test_too_few_questions_and_other_ids_are_refused():
    refused("the stratum a has 1 of 2 questions", pi_serini_slices, {"1": "a"}, {"a": 2})
    refused("1 questions too few", pi_serini_slices, {"1": "a", "2": "a"}, {"a": 1}, total=3)
    refused("not a number", pi_serini_slices, {"q1": "a"}, {"a": 1})


# Datasets of ir_datasets: what is read, how splits are found, what is refused.


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
TWO_QUERIES = Queries(GenericQuery("q2", "two?"), GenericQuery("q1", "one?"))
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


def test_a_dataset_is_a_benchmark_of_its_documents_queries_and_judgements(register):
    dataset = register("plain", Docs(DOCS), TWO_QUERIES, QRELS)
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
    base = register("base", documents, TWO_QUERIES)
    train = register("base/train", documents, TWO_QUERIES, Qrels(TrecQrel("q1", "d1", 1, "0")))
    test = register("base/test", documents, TWO_QUERIES, QRELS)
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
    test = register("base/test", documents, TWO_QUERIES, QRELS)
    register("base/dev", documents, TWO_QUERIES, QRELS)
    register("base/other", Docs(DOCS), TWO_QUERIES, QRELS)
    for split in ("tets", "other"):  # The other one has documents of its own.
        line = refused("", lambda split=split: IrDatasetsBenchmark(test, split=split))
        assert f"has no split '{split}'. valid: null, or the last part of another dataset" in line
        assert f"{TOP}/base/dev" in line and f"{TOP}/base/other" not in line
    register("base/test/dev", documents, TWO_QUERIES, QRELS)
    ambiguous = refused("", lambda: IrDatasetsBenchmark(test, split="dev"))
    assert f"{TOP}/base/test/dev or {TOP}/base/dev" in ambiguous
    assert "split=null" in ambiguous


def test_a_dataset_that_does_not_exist_or_lacks_a_part_is_refused(register):
    unknown = refused("", lambda: IrDatasetsBenchmark("vaswanni"))
    assert "has no dataset 'vaswanni'" in unknown and "https://ir-datasets.com" in unknown
    assert refused("", lambda: IrDatasetsBenchmark("vaswanni", split="dev")) == unknown
    parts = {"docs": Docs(DOCS), "queries": TWO_QUERIES, "qrels": QRELS}
    for missing in parts:
        others = [part for name, part in parts.items() if name != missing]
        dataset = register(f"without-{missing}", *others)
        assert f"has no {missing}" in refused(
            "", lambda dataset=dataset: IrDatasetsBenchmark(dataset)
        )


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
    rows = {"docs": DOCS, "queries": TWO_QUERIES.rows, "qrels": QRELS.rows, **rows}
    parts = Docs(rows["docs"]), Queries(*rows["queries"]), Qrels(*rows["qrels"])
    refused(message, lambda: list(IrDatasetsBenchmark(register("bad", *parts)).documents()))


def test_a_corpus_that_is_not_there_is_reported_with_its_address_and_what_to_do(register, tmp_path):
    address = "http://127.0.0.1:9/corpus.tsv"
    download = ir_datasets.util.Download([RequestsDownload(address)], tmp_path / "corpus.tsv")
    dataset = register("remote", TsvDocs(download), TWO_QUERIES, QRELS)
    line = refused("", lambda: list(IrDatasetsBenchmark(dataset).documents()))
    assert f"could not get the docs of {dataset} from {address}: ConnectionError" in line
    assert f"https://ir-datasets.com/{TOP}.html" in line
    assert f"{tmp_path / 'home'} (IR_DATASETS_HOME" in line
    path = tmp_path / "licensed.tsv"
    dataset = register("licensed", TsvDocs(LocalDownload(path)), TWO_QUERIES, QRELS)
    line = refused("", lambda: IrDatasetsBenchmark(dataset).corpus_fingerprint)
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

    return register("file", Counted(LocalDownload(path)), TWO_QUERIES, QRELS), path, passes


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
    for content in ("", "[]"):
        stamp.write_text(content)
        assert IrDatasetsBenchmark(dataset).corpus_fingerprint == first
    assert passes == [3]
    stamp.unlink()
    stamp.parent.rmdir()
    stamp.parent.write_text("no folder")
    assert IrDatasetsBenchmark(dataset).corpus_fingerprint == first
    assert passes == [4]


def test_documents_in_memory_are_never_taken_for_known(register):
    documents = Docs(DOCS)
    dataset = register("memory", documents, TWO_QUERIES, QRELS)
    first = IrDatasetsBenchmark(dataset).corpus_fingerprint
    documents.rows = DOCS[:1]
    assert IrDatasetsBenchmark(dataset).corpus_fingerprint != first


READ = """
import json
from soundingline.toolkit.benchmarks.ir_datasets import IrDatasetsBenchmark
rows = []
for arguments in ({"dataset": "vaswani"}, {"dataset": "beir/scifact/test"},
                  {"dataset": "beir/scifact/test", "split": "train"}):
    b = IrDatasetsBenchmark(**arguments)
    rows.append([b.name, b.topics, b.qrels["evidence"], list(b.documents()),
                 b.corpus_fingerprint, b.document_count])
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
    # The catalogue's numbers: ir-datasets.com/vaswani.html and beir.html, "docs".
    assert [rows[5] for rows in (vaswani, test, train)] == [11_429, 5183, 5183]
