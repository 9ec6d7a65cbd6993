"""BEIR folders: what is read, what is selected, what is refused."""

from __future__ import annotations

import json
import os

import pytest

from soundingline.toolkit.benchmarks.beir import BeirBenchmark
from soundingline.toolkit.benchmarks.benchmark import Benchmark
from soundingline.toolkit.corpus.store import SqliteStore
from soundingline.toolkit.data import Document, Link, Topic
from soundingline.toolkit.errors import InputError

CORPUS = [
    {
        "_id": "d1",
        "title": "One",
        "text": "first\u2028still first",
        "metadata": {"url": "http://a"},
    },
    {"_id": "d2", "title": "", "text": "second", "url": "http://b"},
    {"_id": "d3", "text": "third"},
]
QUERIES = [
    {"_id": "q3", "text": "three?", "answers": ["3", "three"]},
    {"_id": "../../x", "text": "odd?"},
    {"_id": "q1", "text": "one?"},
]
HEADER = "query-id\tcorpus-id\tscore\n"


def write(
    folder,
    corpus=CORPUS,
    queries=QUERIES,
    **qrels,
):
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


SHARED = [{"_id": f"x{number}", "text": f"Filler {number}."} for number in range(400)]


def test_a_share_of_the_corpus_keeps_judged_documents_and_part_of_the_others(folder):
    write(folder, corpus=[*CORPUS, *SHARED])
    kept = {}
    for share in (0.1, 0.3, 1.0):
        benchmarks = [
            BeirBenchmark(folder, corpus_share=share, **settings)
            for settings in ({}, {"split": "dev"}, {"split": None, "limit": 1})
        ]
        ids = [[document.docid for document in each.documents()] for each in benchmarks]
        assert ids[0] == ids[1] == ids[2]
        assert len({each.corpus_fingerprint for each in benchmarks}) == 1
        assert set(ids[0]) >= {"d1", "d2", "d3"}
        kept[share] = ids[0]
    assert kept[1.0] == [row["_id"] for row in [*CORPUS, *SHARED]]
    assert set(kept[0.1]) < set(kept[0.3]) < set(kept[1.0])
    # Expected are 40 and 120 of the 400; five standard deviations are 30 and 46.
    assert abs(len(kept[0.1]) - 43) < 30 and abs(len(kept[0.3]) - 123) < 46


def test_shares_have_fingerprints_of_their_own(folder):
    plain = BeirBenchmark(folder)
    whole, half, third = (BeirBenchmark(folder, corpus_share=s) for s in (1.0, 0.5, 0.3))
    assert (whole.fingerprint, whole.corpus_fingerprint) == (
        plain.fingerprint,
        plain.corpus_fingerprint,
    )
    for name in ("fingerprint", "corpus_fingerprint"):
        assert len({getattr(each, name) for each in (whole, half, third)}) == 3
    first = half.corpus_fingerprint
    (folder / "qrels" / "test.tsv").write_text(HEADER + "q1\td1\t1\nq3\td3\t1\n")
    assert BeirBenchmark(folder, corpus_share=0.5).corpus_fingerprint != first


@pytest.mark.parametrize("share", [0, -0.1, 1.5, "half"])
def test_an_impossible_share_is_refused(folder, share):
    with pytest.raises(InputError, match="corpus_share"):
        BeirBenchmark(folder, corpus_share=share)


def test_it_is_a_benchmark_named_like_its_folder(folder):
    benchmark = BeirBenchmark(folder)
    assert isinstance(benchmark, Benchmark)
    assert benchmark.name == "mine"
    assert BeirBenchmark(folder, name="other").name == "other"


def test_a_named_split_selects_the_questions_its_qrels_name_in_file_order(folder):
    benchmark = BeirBenchmark(folder, split="test")
    assert benchmark.topics == [Topic("q3", "three?"), Topic("q1", "one?")]
    assert benchmark.qrels == {"evidence": {"q1": {"d1": 1}, "q3": {"d2": 0}}}
    assert benchmark.answers == {"q3": ["3", "three"]}


def test_trec_qrels_gold_tier_and_odd_qids_are_read(folder):
    benchmark = BeirBenchmark(folder, split="dev")
    assert [topic.qid for topic in benchmark.topics] == ["../../x"]
    assert benchmark.qrels["evidence"] == {"../../x": {"d3": 2, "nowhere": 1}}
    assert benchmark.qrels["gold"] == {"../../x": {"d3": 1}}


def test_no_split_selects_all_questions_and_the_union_of_qrels(folder):
    benchmark = BeirBenchmark(folder, split=None)
    assert [topic.qid for topic in benchmark.topics] == ["q3", "../../x", "q1"]
    assert set(benchmark.qrels["evidence"]) == {"q3", "../../x", "q1"}
    assert set(benchmark.qrels["gold"]) == {"../../x"}


def test_limit_keeps_the_first_questions_and_their_judgements(folder):
    benchmark = BeirBenchmark(folder, split=None, limit=1)
    assert [topic.qid for topic in benchmark.topics] == ["q3"]
    assert benchmark.qrels["evidence"] == {"q3": {"d2": 0}}


def test_documents_keep_text_title_and_url(folder):
    assert list(BeirBenchmark(folder).documents()) == [
        Document("d1", "One", "first\u2028still first", "http://a"),
        Document("d2", "", "second", "http://b"),
        Document("d3", "", "third", ""),
    ]


def test_documents_are_streamed(folder):
    with (folder / "corpus.jsonl").open("a") as stream:
        stream.write("{broken\n")
    documents = BeirBenchmark(folder).documents()
    assert [next(documents).docid for _ in range(3)] == ["d1", "d2", "d3"]
    with pytest.raises(InputError, match=r"corpus\.jsonl:4 is not JSON"):
        next(documents)


def test_judgements_of_documents_that_the_corpus_lacks_are_listed(folder):
    benchmark = BeirBenchmark(folder, split=None)
    docids = {document.docid for document in benchmark.documents()}
    assert benchmark.unknown_judged(docids) == [("../../x", "nowhere")]
    assert benchmark.unjudged == []


def test_documents_are_looked_up_in_the_corpus(folder):
    benchmark = BeirBenchmark(folder)
    assert benchmark.missing_documents(["d1", "nowhere", "d3"]) == {"nowhere"}
    assert benchmark.missing_documents([]) == set()
    assert list(benchmark.document_texts(["d2", "nowhere", "d1"])) == [
        ("d1", "One\nfirst\u2028still first"),
        ("d2", "\nsecond"),
    ]


def test_questions_without_judgements_are_counted(tmp_path):
    benchmark = BeirBenchmark(write(tmp_path), split=None)
    assert benchmark.unjudged == ["../../x"]


def test_a_folder_without_qrels_serves_all_questions(tmp_path):
    (write(tmp_path) / "qrels" / "test.tsv").unlink()
    benchmark = BeirBenchmark(tmp_path, split=None)
    assert benchmark.qrels == {"evidence": {}}
    assert len(benchmark.unjudged) == 3


def test_split_and_limit_change_the_fingerprint_and_not_the_corpus_one(folder):
    choices = [
        BeirBenchmark(folder, split=split, limit=limit)
        for split, limit in (("test", None), ("dev", None), (None, None), ("test", 1))
    ]
    assert len({benchmark.fingerprint for benchmark in choices}) == 4
    assert len({benchmark.corpus_fingerprint for benchmark in choices}) == 1


def test_fingerprints_are_of_content_and_not_of_place(folder, tmp_path):
    moved = folder.rename(tmp_path / "moved")
    first = BeirBenchmark(moved)
    before = (first.fingerprint, first.corpus_fingerprint)
    corpus = moved / "corpus.jsonl"
    corpus.write_text(corpus.read_text().replace("third", "thirD"))
    os.utime(corpus, (1, 1))
    second = BeirBenchmark(moved)
    assert second.corpus_fingerprint != before[1]
    assert second.fingerprint != before[0]
    corpus.write_text(corpus.read_text().replace("thirD", "third"))
    assert (second.fingerprint, second.corpus_fingerprint) == before


@pytest.mark.parametrize(
    ("qrels", "message"),
    [
        (HEADER + "q1\td1\n", r"test\.tsv:2 has 2 fields\. valid: query-id"),
        (HEADER + "q1\td1\tmany\n", r"test\.tsv:2 has the grade 'many'\. valid: an integer"),
        (HEADER + "q1\td1\t1.0\n", r"test\.tsv:2 has the grade '1\.0'"),
        ("q1\td1\tmany\n", r"test\.tsv:1 has the grade 'many'"),
        (HEADER + "q1\t\t1\n", r"test\.tsv:2 has 2 fields"),
        (HEADER + "q1\td1\t1\nq1\td1\t2\n", r"test\.tsv:3 gives 'd1' the grade 2"),
        (HEADER + "ghost\td1\t1\n", "name no question of queries.jsonl"),
        ("", "name no question of queries.jsonl"),
    ],
)
def test_malformed_qrels_are_refused_with_file_and_line(tmp_path, qrels, message):
    with pytest.raises(InputError, match=message):
        BeirBenchmark(write(tmp_path, test=qrels))


def test_qrels_without_a_header_lose_no_row(tmp_path):
    benchmark = BeirBenchmark(write(tmp_path, test="q1 d1 1\nq3 d2 1\n"))
    assert benchmark.qrels["evidence"] == {"q1": {"d1": 1}, "q3": {"d2": 1}}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"_id": "q1"}], r"queries\.jsonl:1 has no field 'text'\. valid: its fields: _id"),
        ([{"_id": "q1", "text": "a"}] * 2, r"queries\.jsonl:2 has the qid 'q1' a second time"),
        ([{"_id": "", "text": "a"}], r"queries\.jsonl:1: _id is an empty string"),
        ([{"_id": "q1", "text": "a", "answers": "b"}], r"queries\.jsonl:1: answers is .*list"),
        (
            [{"_id": "q1", "text": ["a"]}],
            r"queries\.jsonl:1: text is a value of type list\. valid: a valid string",
        ),
    ],
)
def test_malformed_questions_are_refused(tmp_path, rows, message):
    with pytest.raises(InputError, match=message):
        BeirBenchmark(write(tmp_path, queries=rows))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"_id": "d1"}\n', r"corpus\.jsonl:1 has no field 'text'"),
        (b'\n{"_id": "d1", "text"\n', r"corpus\.jsonl:2 is not JSON"),
        (b'["d1"]\n', r"corpus\.jsonl:1 is a JSON list"),
        (b'{"_id": "d1", "text": "\xff"}\n', r"corpus\.jsonl:1 is not UTF-8"),
        (b'{"_id": "d1", "text": "\\ud800"}\n', r"corpus\.jsonl:1: text: half a surrogate pair"),
    ],
)
def test_malformed_documents_are_refused(tmp_path, content, message):
    (write(tmp_path) / "corpus.jsonl").write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        list(BeirBenchmark(tmp_path).documents())
    assert "\n" not in str(caught.value)


def test_the_store_refuses_a_docid_that_comes_twice_and_an_empty_corpus(tmp_path):
    rows = [f'{{"_id": "d{n}", "text": "a"}}\n' for n in range(70_000)]
    corpus = write(tmp_path) / "corpus.jsonl"
    wrong = {
        "".join([*rows, "\n", rows[5]]): r"docid 'd5' comes twice \(again as document 70001\)",
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
    assert [document.docid for document in BeirBenchmark(tmp_path).documents()] == ["d1"]


def test_an_empty_corpus_is_refused_at_once(tmp_path):
    (write(tmp_path) / "corpus.jsonl").write_text("")
    with pytest.raises(InputError, match=r"corpus\.jsonl is empty"):
        BeirBenchmark(tmp_path)


def test_missing_folders_and_files_say_what_is_there(folder):
    with pytest.raises(InputError, match=r"no folder .*beside it: mine"):
        BeirBenchmark(folder.parent / "absent")
    (folder / "queries.jsonl").unlink()
    with pytest.raises(
        InputError, match=r"has no queries\.jsonl.*corpus\.jsonl.*splits: dev, test"
    ):
        BeirBenchmark(folder)


def test_an_unknown_split_lists_the_splits(folder):
    with pytest.raises(InputError, match=r"no split 'train'\. valid: dev, test, or null"):
        BeirBenchmark(folder, split="train")


@pytest.mark.parametrize("limit", [0, -1, True, "3"])
def test_a_limit_must_be_a_positive_integer(folder, limit):
    with pytest.raises(InputError, match="valid: a whole number, 1 or more"):
        BeirBenchmark(folder, limit=limit)


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
    assert sum(1 for _ in benchmark.documents()) == documents
    assert len(benchmark.topics) == questions
    assert sum(map(len, benchmark.qrels["evidence"].values())) == rows


def test_cacm_keeps_its_judgements_of_absent_documents(data_root):
    benchmark = BeirBenchmark(data_root / "cacm", split=None)
    assert (len(benchmark.topics), len(benchmark.unjudged)) == (64, 64 - 52)
    docids = {document.docid for document in benchmark.documents()}
    assert len(benchmark.unknown_judged(docids)) == 55


SET_QUERIES = [
    {"_id": "q1", "text": "one?", "checklist": ["It is first.", "It is old."]},
    {"_id": "q2", "text": "two?", "targets": ["d3", "d2", "d2"]},
    {"_id": "q3", "text": "three?"},
    {"_id": "q4", "text": "none?", "targets": []},
]


def test_questions_with_a_checklist_or_targets_ask_for_documents(tmp_path):
    folder = write(tmp_path, queries=SET_QUERIES, test=HEADER + "q1\td1\t2\nq1\td2\t0\nq3\td3\t1\n")
    (folder / "satisfaction.jsonl").write_text(
        '{"query-id": "q1", "corpus-id": "d2", "satisfied": [true, false]}\n', encoding="utf-8"
    )
    asked = BeirBenchmark(folder, split=None)
    assert asked.targets == {"q1": {"d1"}, "q2": {"d2", "d3"}, "q4": set()}
    assert asked.checklists == {"q1": ["It is first.", "It is old."]}
    assert asked.satisfaction == {"q1": {"d2": (True, False)}}
    test = BeirBenchmark(folder)
    assert [topic.qid for topic in test.topics] == ["q1", "q3"]
    assert test.targets == {"q1": {"d1"}}


def test_a_list_of_targets_needs_no_qrels(tmp_path):
    """Queries with lists of ids, the shape of LitSearch and SAGE."""
    folder = write(tmp_path, queries=SET_QUERIES[1:2], test=HEADER)
    (folder / "qrels" / "test.tsv").unlink()
    benchmark = BeirBenchmark(folder, split=None)
    assert benchmark.qrels["evidence"] == {"q2": {"d3": 1, "d2": 1}}
    assert benchmark.targets == {"q2": {"d2", "d3"}}


def test_a_folder_of_judgements_alone_asks_for_documents_where_it_is_told_to(folder):
    assert not BeirBenchmark(folder).targets
    benchmark = BeirBenchmark(folder, sets=True)
    assert benchmark.targets == {"q1": {"d1"}, "q3": set()}
    assert benchmark.fingerprint != BeirBenchmark(folder).fingerprint
    assert benchmark.corpus_fingerprint == BeirBenchmark(folder).corpus_fingerprint


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("checklist", [], "checklist is an empty list.*at least 1 item"),
        ("checklist", ["x"] * 200, "checklist .*at most 100 items.*not 200"),
        ("checklist", ["  "], "checklist"),
        ("checklist", "one", "checklist"),
        ("targets", "d1", "targets"),
        ("targets", [None], "targets"),
    ],
)
def test_a_checklist_or_targets_of_another_shape_are_refused(tmp_path, field, value, message):
    folder = write(tmp_path, queries=[{"_id": "q1", "text": "one?", field: value}])
    with pytest.raises(InputError, match=rf"queries\.jsonl:1.*{message}"):
        BeirBenchmark(folder)


def test_requirements_in_any_script_are_read(tmp_path):
    texts = ["実験は三回行われた。", "Исследование проведено до 1990 года."]
    folder = write(tmp_path, queries=[{"_id": "q1", "text": "one?", "checklist": texts}])
    assert BeirBenchmark(folder).checklists == {"q1": texts}


def test_satisfaction_must_fit_the_checklist(tmp_path):
    folder = write(tmp_path, queries=SET_QUERIES)
    (folder / "satisfaction.jsonl").write_text(
        '{"query-id": "q1", "corpus-id": "d2", "satisfied": [true]}\n', encoding="utf-8"
    )
    with pytest.raises(InputError, match="a list of 2 values"):
        BeirBenchmark(folder)


def test_a_target_that_the_qrels_grade_irrelevant_is_refused(tmp_path):
    folder = write(tmp_path, queries=SET_QUERIES, test=HEADER + "q2\td2\t0\n")
    with pytest.raises(InputError, match="'d2' is a target of question 'q2'"):
        BeirBenchmark(folder)


def test_links_are_an_optional_file(folder):
    assert BeirBenchmark(folder).links() is None
    before = BeirBenchmark(folder).fingerprint
    (folder / "links.tsv").write_text("docid\tlinked\nd1\td2\n", encoding="utf-8")
    assert list(BeirBenchmark(folder).links() or ()) == [Link("d1", "d2")]
    assert BeirBenchmark(folder).fingerprint == before


@pytest.mark.parametrize("line", ["a", "a\tb\tc", "\tb", "a\t"])
def test_a_line_that_is_no_link_is_refused_with_its_place(folder, line):
    text = f"docid\tlinked\na\tb\n{line}\n"
    (folder / "links.tsv").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"links\.tsv:3 is no link"):
        list(BeirBenchmark(folder).links() or ())


def test_a_file_of_answers_replaces_those_of_the_questions_that_it_names(folder, tmp_path):
    path = tmp_path / "answers.jsonl"
    path.write_text('{"qid": "q1", "answers": ["one", "1"]}\n{"qid": "other", "answers": []}\n')
    benchmark = BeirBenchmark(folder, answers=path)
    assert benchmark.answers == {"q1": ["one", "1"], "q3": ["3", "three"]}
    assert benchmark.fingerprint != BeirBenchmark(folder).fingerprint
    with pytest.raises(InputError, match=r"no file of answers .*absent.*benchmark.answers"):
        BeirBenchmark(folder, answers=tmp_path / "absent")
    path.write_text('{"qid": "q1", "answers": "one"}\n')
    with pytest.raises(InputError, match=r"answers.jsonl:1"):
        BeirBenchmark(folder, answers=path)


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
