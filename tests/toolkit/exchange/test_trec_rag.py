"""TREC RAG: its files as a benchmark, and answers in its format."""

import json

import pytest
from support.benchmarks import write_parquet

from soundingline.toolkit.benchmarks.browsecomp_plus import TrecRag
from soundingline.toolkit.data import Document, Topic
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.exchange.trec_rag import rag_row, useful_documents
from soundingline.toolkit.trajectory import Answer, Trajectory

NARRATIVE = 'I work for a "council"; is the toll fair?\tAnd who pays?'


def lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def topics(tmp_path):
    path = tmp_path / "trec_rag_2026_queries.tsv"
    path.write_text(f"rag2026-0\t{NARRATIVE}\nrag2026-1\tWhy do tides rise?\n")
    return str(path)


def test_rows_of_climbmix_have_the_organizers_ids(topics, tmp_path):
    for shard in (7, 8):
        rows = [{"text": f"Text {number} of {shard}."} for number in range(130)]
        write_parquet(tmp_path / "shards" / f"shard_0000{shard}.parquet", rows)
    qrels = tmp_path / "dev.qrels"
    qrels.write_text("rag2026-1 0 shard_00007_129 4\n")
    benchmark = TrecRag(topics, str(tmp_path / "shards"), str(qrels))
    assert benchmark.topics == [
        Topic("rag2026-0", NARRATIVE),
        Topic("rag2026-1", "Why do tides rise?"),
    ]
    documents = list(benchmark.documents())
    assert documents[0] == Document("shard_00007_0", "", "Text 0 of 7.")
    assert documents[-1] == Document("shard_00008_129", "", "Text 129 of 8.")
    assert len(documents) == 260 and benchmark.unjudged == ["rag2026-0"]
    assert benchmark.qrels == {"evidence": {"rag2026-1": {"shard_00007_129": 4}}}
    part = TrecRag(topics, str(tmp_path / "shards"), str(qrels), corpus_share=0.1)
    assert "shard_00007_129" in {document.docid for document in part.documents()}
    assert len(list(part.documents())) < 100
    before = benchmark.corpus_fingerprint
    shard = tmp_path / "shards" / "shard_00008.parquet"
    shard.rename(shard.with_name("shard_00009.parquet"))
    renamed = TrecRag(topics, str(tmp_path / "shards"), str(qrels))
    assert renamed.corpus_fingerprint != before


def test_json_lines_have_ids_of_their_own(topics, tmp_path):
    made = {"id": "shard_1_2", "docid": "shard_1_2", "contents": "One.", "row_number": 2}
    segment = {"docid": "msmarco_v2.1_doc_00_0#0_0", "url": "http://a", "title": "Tides"}
    segment |= {"headings": "Tides", "segment": "They rise.", "start_char": 0, "end_char": 9}
    corpus = lines(tmp_path / "corpus.jsonl", [made, segment])
    rows = [{"id": "1", "narrative": "N."}, {"id": "2", "title": "T."}]
    queries = lines(tmp_path / "q.jsonl", rows)
    benchmark = TrecRag(queries, corpus)
    assert list(benchmark.documents()) == [
        Document("shard_1_2", "", "One."),
        Document("msmarco_v2.1_doc_00_0#0_0", "Tides", "They rise.", "http://a"),
    ]
    assert benchmark.topics == [Topic("1", "N."), Topic("2", "T.")]
    bare = TrecRag(topics, lines(tmp_path / "bare.jsonl", [{"docid": "d"}]))
    with pytest.raises(InputError, match=r"bare.jsonl:1 has no text"):
        list(bare.documents())
    with pytest.raises(InputError, match="no file of judgements"):
        TrecRag(topics, corpus, str(tmp_path / "missing"))


def row_of(explanation, exact="", **tiers):
    tiers = {"previewed": ["d1", "d2", "d3", "d4"], **tiers}
    trajectory = Trajectory("q", "Why?", "completed", Answer(explanation, exact), tiers=tiers)
    return rag_row(trajectory, team="t", run="r", description="d")


def test_sentences_cite_positions_among_the_references():
    row = row_of(
        "Tides rise twice [d2][d1]. The moon pulls. [d3, d4] They fall [see below].",
        "the moon",
        opened=["d4"],
    )
    assert row["references"] == ["d2", "d1", "d3", "d4"]
    assert row["answer"] == [
        {"text": "Tides rise twice.", "citations": [0, 1]},
        {"text": "The moon pulls.", "citations": [2, 3]},
        {"text": "They fall [see below].", "citations": []},
    ]
    metadata = {"team_id": "t", "narrative_id": "q", "narrative": "Why?", "run_id": "r"}
    assert row["metadata"] == {**metadata, "run_desc": "d"}


def test_an_answer_keeps_to_the_limits():
    row = row_of("A claim [d1] [d2] [d3] [d4]. " + "Word " * 1020 + "end. Left out [d4].", "Brel")
    assert [len(item["text"].split()) for item in row["answer"]] == [1, 2, 1021]
    assert row["answer"][0] == {"text": "Brel", "citations": []}
    assert row["answer"][1]["citations"] == [0, 1, 2]
    (cut,) = row_of("Word " * 2000)["answer"]
    assert len(cut["text"].split()) == 1024
    assert row_of("")["answer"] == []


def test_the_documents_of_the_retrieval_task_are_those_that_the_agent_took_for_useful():
    tiers = {"surfaced": ["d9"], "previewed": ["d1", "d2%p1"]}
    assert useful_documents(Trajectory("q", "", "completed", tiers=tiers)) == ["d1", "d2"]
    read = {**tiers, "opened": ["d1", "d3"], "cited": ["d3"]}
    assert useful_documents(Trajectory("q", "", "completed", tiers=read)) == ["d3", "d1"]
    listed = Answer(documents=["d7"])
    assert useful_documents(Trajectory("q", "", "completed", listed, tiers=read)) == ["d7"]
