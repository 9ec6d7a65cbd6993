"""Runs of others are read or refused, and ours are read by others."""

import io
import json
import re
import zipfile
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.assertions import refused
from support.benchmarks import write_jsonl, write_parquet
from support.needs import cases
from support.runs import answer, browsecomp, call, pi_serini, said, search, thought, trajectory

from soundingline.toolkit.benchmarks.browsecomp_plus import TrecRag
from soundingline.toolkit.data import Document, Topic
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.exchange import browsecomp_plus as bcp
from soundingline.toolkit.exchange import inspect_ai
from soundingline.toolkit.exchange.transcript import (
    Transcript,
    docids_shown,
    output_text,
    run_files,
    run_paths,
    trajectory_of,
)
from soundingline.toolkit.exchange.trec_rag import rag_row, useful_documents
from soundingline.toolkit.obfuscation import Canary
from soundingline.toolkit.trajectory import (
    Answer,
    Trajectory,
    dump_trajectory,
    from_record,
    known_usage,
)

READERS = {"browsecomp_plus": bcp.read, "pi_serini": partial(bcp.read, pi_serini=True)}
FIELDS = [
    *("query_id", "status", "retrieved_docids", "tool_call_counts", "result", "metadata", "usage"),
    *("surfaced_docids", "previewed_docids", "opened_docids", "cited_docids", "stats"),
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
WHOLE = browsecomp("1", [thought("I"), search("q", ["12", "x"]), answer("a", citing="[12]")])


def readable(reader, content):
    """The trajectory of a file, which must be one that can be written and read; None if it was
    refused, in one line."""
    try:
        (recorded,) = reader([("file.json", content)])
    except InputError as error:
        assert "\n" not in str(error)
        return None
    assert isinstance(recorded, Transcript)
    trajectory = trajectory_of(recorded, "question")
    again = from_record(json.loads(dump_trajectory(trajectory)))
    assert again.calls == trajectory.calls
    return trajectory


def test_impossible_counts_of_a_foreign_run_are_unknown():
    usage = {"input_tokens": -5, "output_tokens": 7, "included_reasoning_tokens": True}
    trajectory = readable(bcp.read, {**WHOLE, "usage": usage})
    assert trajectory.usage == {"output_tokens": 7, "unreported": 1}
    assert known_usage(trajectory.usage, "input_tokens") is None


@pytest.mark.parametrize("form", READERS)
@settings(max_examples=cases(300), suppress_health_check=[HealthCheck.too_slow])
@given(
    field=st.sampled_from(FIELDS),
    place=st.integers(-3, 2),
    item=st.sampled_from(["type", "tool_name", "arguments", "output"]),
    value=JSON,
)
def test_a_field_or_item_of_any_content_is_read_or_refused(form, field, place, item, value):
    items = [dict(each) for each in WHOLE["result"]]
    change = {field: value}
    if place >= 0:
        items[place][item], change = value, {}
    whole = WHOLE | {"result": items} if form == "browsecomp_plus" else pi_serini("1", items)
    readable(READERS[form], {**whole, **change})


@pytest.mark.parametrize(
    ("status", "theirs"),
    [("steered", "completed"), ("timed_out", "timeout"), ("out_of_turns", "failed")],
)
def test_a_file_for_pi_serini_counts_as_its_runner_does(status, theirs):
    failed = call("read_document", {"docid": "x"}, '{"error": "unknown"}')
    items = [thought("I"), search("q", ["12"]), failed, answer("Ada", citing="[12]")]
    row = replace(trajectory(browsecomp("7", items)), status=status, seconds=1.23456, source={})
    content = json.loads(json.dumps(bcp.write_pi_serini(row, {"model": "m"})))
    kinds = [item["type"] for item in content["result"]]
    assert kinds == ["tool_call", "tool_call", *["output_text"] * (theirs == "completed")]
    assert content["result"][1]["arguments"] == {"docid": "x"}
    assert content["status"] == theirs and content["metadata"]["query"] == "question?"
    assert content["tool_call_counts"] == {"search": 1, "read_document": 1}
    assert content["opened_docids"] == [] and content["agent_docids"] == ["12"]
    assert content["stats"] == {
        "elapsed_seconds": 1.235,
        "assistant_turns": 3,
        "tool_calls_total": 2,
        "search_calls": 1,
        "read_search_results_calls": 0,
        "read_document_calls": 1,
        "timed_out": theirs == "timeout",
    }
    assert list(bcp.read([("f", content)], pi_serini=True)) == [row]
    content["opened_docids"] = ["12"]
    with pytest.raises(InputError, match="f was changed after it was exported"):
        list(bcp.read([("f", content)], pi_serini=True))


@settings(max_examples=cases(150))
@given(content=st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_random_bytes_are_refused_in_one_line(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("bytes")
    for name in ("run.json", "run.jsonl"):
        (folder / name).write_bytes(content)
        try:
            for _, row in run_files(run_paths(folder / name)):
                readable(bcp.read, row)
        except InputError as error:
            assert "\n" not in str(error)


@pytest.mark.parametrize("length", range(0, 690, 115))
def test_a_truncated_file_is_refused(tmp_path, length):
    path = tmp_path / "run.json"
    path.write_text(json.dumps(WHOLE)[:length], encoding="utf-8")
    refused(r"run\.json is damaged", lambda: list(run_files([path])))


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record.update(calls="none"),
        lambda record: record["calls"].append({"output_number": 99}),
        lambda record: record["calls"][0].update(output_number=-1),
        lambda record: record.pop("messages"),
        lambda record: record.update(status="fine"),
        lambda record: record.update(tiers={"seen": []}),
        lambda record: record.update(qid="2"),
    ],
)
def test_a_damaged_key_of_ours_is_refused(change):
    whole = trajectory(WHOLE)
    content = json.loads(json.dumps(bcp.write(whole, {})))
    (again,) = bcp.read([("f", content)])
    assert again == whole
    change(content["metadata"]["soundingline"])
    refused("f was ", lambda: list(bcp.read([("f", content)])))


@pytest.mark.parametrize(
    ("output", "docids"),
    [
        ('[{"docid": "a", "snippet": "..."}, {"docid": 7}]', ["a", "7"]),
        ('{"docid": "a", "snippet": "a bare object, as FastMCP unwraps a list of one"}', ["a"]),
        ([{"type": "text", "text": '[{"docid": "a"}]'}], ["a"]),
        ({"results": [{"docid": "a"}, {"docid": "a"}, {"docid": "b"}]}, ["a", "b"]),
        ('cut off [{"docid": "a", "snippet": "x"}, {"docid": 12, "snip', ["a", "12"]),
        ("1. docid=a score=2.0 title=T\n   docid=no\n2. docid=b%p3 score=1.0", ["a", "b%p3"]),
        ("docid=a score=2.0\nthe text of docid=b", ["a"]),
        ('Error executing search: {"x": 1}', []),
        (None, []),
        (True, []),
        (json.dumps([[[[[[{"docid": "deep"}]]]]]]), []),
    ],
)
def test_documents_are_read_from_every_shape_of_output(output, docids):
    assert docids_shown(output) == docids


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "a\nb"),
        ({"docid": 1}, '{"docid": 1}'),
        (None, ""),
    ],
)
def test_an_output_is_one_text(output, text):
    assert output_text(output) == text


def test_tools_of_other_clients_get_our_names_and_their_own_are_noted():
    hits = json.dumps([{"docid": "d"}])
    items = [
        call("local_knowledge_base_retrieval", {"user_query": "q"}, hits),
        call("search-server-search", {"query": "q"}, hits),
        call("search-server-get_document", {"docid": "d"}, "text"),
        said("Exact Answer: x"),
    ]
    trajectory = readable(bcp.read, browsecomp("1", items, retrieved_docids=["d"]))
    assert [row.name for row in trajectory.calls] == ["search", "search", "get_document"]
    assert trajectory.calls[0].notes == {"tool": "local_knowledge_base_retrieval"}
    assert trajectory.tiers["opened"] == ("d",)


def test_an_output_that_is_not_on_record_leaves_the_documents_that_the_file_lists():
    lost = {**search("q", ["a"]), "output": None}
    trajectory = readable(bcp.read, browsecomp("1", [lost, answer("x")], retrieved_docids=["a"]))
    assert trajectory.tiers["previewed"] == ("a",)
    assert trajectory.calls[0].error == "no_output"
    assert trajectory.exposures == ()


def test_an_id_with_an_underscore_is_a_passage_only_if_its_document_is_known():
    items = [search("q", ["a_1", "b_2"]), answer("x")]
    plain = readable(bcp.read, browsecomp("1", items))
    passages = readable(bcp.read, browsecomp("1", items, retrieved_docids=["a", "b"]))
    assert plain.calls[0].shown == ("a_1", "b_2")
    assert passages.calls[0].shown == ("a%p1", "b%p2")
    assert passages.tiers["previewed"] == ("a", "b")


@pytest.mark.parametrize("parts", [True, False])
def test_obfuscated_traces_are_decrypted_and_queries_in_the_clear_remain(parts):
    """As they are published: outputs, in one case text parts, in the other JSON if they were no
    text, and then arguments too; passages as `browsecomp_plus_<docid>_<n>`."""
    canary = Canary("canary of a test")
    hits = [{"docid": "browsecomp_plus_12_3", "snippet": "long enough to be told from text"}]
    output = canary.encrypt(json.dumps(hits))
    arguments = json.dumps({"query": "the words of the query"})
    items = [
        {**thought("I"), "output": canary.encrypt(json.dumps(["I think"]))},
        call(
            "search",
            arguments if parts else canary.encrypt(arguments),
            [{"type": "text", "text": output}] if parts else output,
        ),
        said(canary.encrypt("Explanation: it is so [12]\nExact Answer: x\nConfidence: 5%")),
    ]
    (recorded,) = bcp.read([("f", browsecomp("1", items, retrieved_docids=["12"]))], canary)
    trajectory = trajectory_of(recorded, "q")
    assert trajectory.calls[0].arguments == {"query": "the words of the query"}
    assert trajectory.calls[0].shown == ("12%p3",)
    assert trajectory.tiers["previewed"] == trajectory.answer.citations == ("12",)
    assert trajectory.answer.confidence == 5
    assert trajectory.messages[1]["reasoning"] == "I think"


def test_a_hit_without_an_excerpt_is_listed_and_not_previewed():
    first = ["1. docid=a score=9.0 title=A", "   of a", "2. docid=b score=8.0"]
    first += ["3. docid=c score=7.0", "   of c"]
    # The rank alone says that there is no excerpt where the line below belongs to the page.
    second = ["50. docid=d score=3.0", "   of d", "51. docid=e score=2.0", "52. docid=f score=1.0"]
    page = {"search_id": "s1", "offset": 50}
    items = [
        call("search", {"query": "q"}, [{"type": "text", "text": "\n".join(first)}]),
        call("read_search_results", page, "\n".join([*second, "Next: 53"])),
        answer("x"),
    ]
    (transcript,) = bcp.read([("f", pi_serini("1", items))], pi_serini=True)
    tiers = trajectory_of(transcript, "question?").tiers
    assert tiers["surfaced"] == ("a", "b", "c", "d", "e", "f")
    assert tiers["previewed"] == ("a", "c", "d")


# Logs of Inspect AI: what we write reads back, what others write becomes a run.


HEAD = inspect_ai.header(
    "bm25_tuned/passage",
    created="2026-01-01T00:00:00+00:00",
    identity="abc",
    benchmark="b",
    model="m",
    factors={"unit": "passage"},
    versions={},
    means={"accuracy": 0.5},
    sample_ids=["q/0", "q/1", "q/2"],
)


def trajectories():
    """With reasoning, a failed call, malformed arguments, and usage."""
    rows = []
    for number in range(3):
        items = [
            thought(f"I think {number}"),
            search("query", ["a", "b"]),
            call("search", '{"query": cut', "Error executing search: no JSON"),
            search("again", ["c"]),
            answer("x", citing="[a]"),
        ]
        usage = {"input_tokens": 100, "input_tokens_cached": 40, "output_tokens": 7}
        rows.append(trajectory(browsecomp(f"q/{number}", items, usage=usage)))
    failed = replace(rows[-1], status="failed", traceback="Traceback\nValueError: no", source={})
    return [*rows[:-1], failed]


def samples(rows):
    return [
        inspect_ai.sample(row, model="m", target=["x"], scores={"accuracy": 1.0}) for row in rows
    ]


@pytest.mark.parametrize("name", ["log.eval", "log.json"])
def test_what_we_write_reads_back_as_it_was(tmp_path, name):
    rows = trajectories()
    assert inspect_ai.write(tmp_path / name, HEAD, samples(rows)) == 3
    assert list(inspect_ai.read(tmp_path / name)) == rows


def test_a_log_has_what_inspect_needs_to_list_and_load_it(tmp_path):
    """A name of its pattern, a model with a provider, and the ids of the samples."""
    name = inspect_ai.log_name(HEAD, "json")
    assert name == "2026-01-01T00-00-00-00-00_bm25-tuned-passage_abc.json"
    # The pattern of `inspect_ai.log._file.is_log_file`, version 0.3.285.
    assert re.match(r"^\d{4}-\d{2}-\d{2}T\d{2}[:-]\d{2}[:-]\d{2}.*$", name)
    inspect_ai.write(tmp_path / "log.json", HEAD, samples(trajectories()))
    log = json.loads((tmp_path / "log.json").read_text(encoding="utf-8"))
    assert log["eval"]["dataset"]["sample_ids"] == [row["id"] for row in log["samples"]]
    assert log["eval"]["model"] == "none/m"
    for row in log["samples"]:
        replies = [event for event in row["events"] if event["event"] == "model"]
        models = [row["output"]["model"], *row["model_usage"]]
        models += [name for event in replies for name in (event["model"], event["output"]["model"])]
        assert replies and set(models) == {"none/m"}


def test_a_log_without_our_key_gives_calls_answer_and_usage():
    row = json.loads(json.dumps(samples(trajectories())[0] | {"store": {}}))
    again = trajectory_of(inspect_ai.transcript("log, sample 1", row), "question?")
    first = trajectories()[0]
    parts = [[(c.name, c.output, c.shown) for c in each.calls] for each in (again, first)]
    assert parts[0] == parts[1]
    assert again.calls[1].error == "tool_error"
    assert (again.answer, again.tiers) == (first.answer, first.tiers)
    assert (again.usage["input_tokens"], again.usage["cached_tokens"]) == (100, 40)


def foreign(**changed):
    """A sample as Inspect's own basic agent leaves it, its texts as attachments."""
    hits = json.dumps([{"docid": "12", "snippet": "text"}])
    parts = [{"type": "reasoning", "reasoning": "hm"}, {"type": "text", "text": "I look"}]
    search = {"id": "1", "function": "search", "arguments": {"query": "q"}, "type": "function"}
    answer = {"answer": "Explanation: [12]\nExact Answer: Ada"}
    submit = {"id": "2", "function": "submit", "arguments": answer}
    return {
        "id": 7,
        "epoch": 1,
        "input": "?",
        "target": "Ada",
        "messages": [
            {"role": "system", "content": "be good"},
            {"role": "user", "content": "?"},
            {"role": "assistant", "content": parts, "tool_calls": [search]},
            {"role": "tool", "tool_call_id": "1", "content": "attachment://" + "0" * 32},
            {"role": "assistant", "content": "", "tool_calls": [submit]},
            {"role": "tool", "tool_call_id": "2", "content": "ok"},
        ],
        "attachments": {"0" * 32: hits},
        "model_usage": {"openai/gpt-5": {"input_tokens": 5, "output_tokens": 2}},
        "total_time": 3,
        **changed,
    }


def imported(**changed):
    return trajectory_of(inspect_ai.transcript("f", foreign(**changed)), "?")


@pytest.mark.parametrize("count", [-5, float("nan"), 10**400, True, "5"])
def test_an_impossible_count_of_a_foreign_log_is_unknown(count):
    models = {
        "openai/gpt-5": {"input_tokens": 5, "output_tokens": 2},
        "openai/gpt-5-mini": {"input_tokens": 5, "output_tokens": count, "total_cost": 0.5},
    }
    usage = imported(model_usage=models).usage
    assert "output_tokens" not in usage and usage["unreported"] == 1
    assert (usage["input_tokens"], usage["dollars"]) == (10, 0.5)


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({}, "completed"),
        ({"error": {"message": "boom"}}, "failed"),
        ({"limit": {"type": "time", "limit": 60}}, "timed_out"),
        ({"limit": {"type": "message", "limit": 10}}, "out_of_turns"),
        ({"limit": {"type": "cost", "limit": 1}}, "out_of_money"),
    ],
)
def test_a_foreign_sample_becomes_a_trajectory_with_the_answer_that_its_agent_submits(
    change, status
):
    trajectory = imported(**change)
    assert (trajectory.qid, trajectory.status, trajectory.seconds) == ("7", status, 3)
    assert trajectory.answer.exact == "Ada"
    assert trajectory.tiers["cited"] == ("12",)
    assert [row.name for row in trajectory.calls] == ["search"]


def test_epochs_are_repeats_and_the_input_is_the_question(tmp_path):
    path = tmp_path / "log.json"
    parts = [{"type": "text", "text": "Where is"}, {"type": "image", "image": "x"}]
    chat = [{"role": "system", "content": "be good"}, {"role": "user", "content": parts[:1]}]
    rows = [foreign(), foreign(epoch=2, input=chat), foreign(epoch=3, input=None)]
    path.write_text(json.dumps({"samples": rows}), encoding="utf-8")
    recorded = list(inspect_ai.read(path))
    assert [row.repeat for row in recorded] == [1, 2, 3]
    assert [row.question for row in recorded] == ["?", "be good\nWhere is", ""]
    for epoch in (0, "2", True, 10**6):
        path.write_text(json.dumps({"samples": [foreign(epoch=epoch)]}), encoding="utf-8")
        refused("epoch", lambda: list(inspect_ai.read(path)))


def test_a_log_as_inspect_compresses_it_is_read(tmp_path):
    """Members compressed by Zstandard, which Python's zipfile cannot read before 3.14."""
    zstandard = pytest.importorskip("zstandard")
    content = json.dumps(foreign()).encode()
    packed = zstandard.ZstdCompressor().compress(content)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("samples/7_epoch_1.json", packed)
    raw = bytearray(buffer.getvalue())
    local, central = raw.find(b"PK\x03\x04"), raw.find(b"PK\x01\x02")
    for start, method, size in ((local, 8, 22), (central, 10, 24)):
        raw[start + method : start + method + 2] = (93).to_bytes(2, "little")
        raw[start + size : start + size + 4] = len(content).to_bytes(4, "little")
    path = tmp_path / "log.eval"
    path.write_bytes(raw)
    (recorded,) = inspect_ai.read(path)
    assert isinstance(recorded, Transcript) and recorded.qid == "7"
    path.write_bytes(raw.replace(packed[-8:], bytes(8)))
    refused(r"damaged|not a complete|not complete", lambda: list(inspect_ai.read(path)))


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    paths = [tmp_path_factory.mktemp("logs") / f"log.{form}" for form in ("eval", "json")]
    for path in paths:
        inspect_ai.write(path, HEAD, samples(trajectories()))
    return {path: path.read_bytes() for path in paths}


@given(cut=st.integers(0, 20_000), form=st.integers(0, 1), noise=st.binary(max_size=4))
def test_a_truncated_or_damaged_log_ends_in_one_line(logs, cut, form, noise):
    path, whole = list(logs.items())[form]
    path.write_bytes(whole[: cut % len(whole)] + noise)
    try:
        for recorded in inspect_ai.read(path):
            assert recorded.qid.startswith("q/")
    except InputError as error:
        assert "\n" not in str(error)


@settings(max_examples=cases(200))
@given(
    place=st.integers(2, 4),
    field=st.sampled_from(["role", "content", "tool_calls", "tool_call_id"]),
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    ),
)
def test_messages_of_any_content_are_read_or_refused(place, field, value):
    messages = foreign()["messages"]
    messages[place] = {**messages[place], field: value}
    try:
        imported(messages=messages)
    except InputError as error:
        assert "\n" not in str(error)


# TREC RAG: its files as a benchmark, and answers in its format.


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
    other = Topic("rag2026-1", "Why do tides rise?")
    assert benchmark.topics == [Topic("rag2026-0", NARRATIVE), other]
    documents = list(benchmark.documents())
    assert documents[0] == Document("shard_00007_0", "", "Text 0 of 7.")
    assert documents[-1] == Document("shard_00008_129", "", "Text 129 of 8.")
    assert len(documents) == 260
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
    refused(r"bare.jsonl:1 has no text", lambda: list(bare.documents()))
    refused("no file .*path of the qrels", TrecRag, topics, corpus, str(tmp_path / "missing"))


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".jsonl.gz", ".json.gz"])
def test_shards_of_ms_marco_are_read_as_they_are_published(tmp_path, suffix):
    """`msmarco_v2.1_doc_00.json.gz` and the shards of segments, unpacked or not, and questions in
    JSON lines, whatever the names."""
    fields = {"url": "http://a", "title": "Tides", "headings": "Tides"}
    for shard in ("00", "01"):
        rows = [{"docid": f"d_{shard}_{number}", **fields, "body": "Moon."} for number in (0, 1)]
        write_jsonl(tmp_path / "docs" / "part" / f"msmarco_v2.1_doc_{shard}{suffix}", rows)
    segment = {"docid": "d_00_0#0_0", **fields, "segment": "They rise.", "start_char": 0}
    segments = write_jsonl(tmp_path / f"segments{suffix}", [segment, {"segment": "No id."}])
    topics = write_jsonl(tmp_path / f"topics{suffix}", [{"id": "1", "title": "Why?"}])
    benchmark = TrecRag(str(topics), str(tmp_path / "docs"))
    assert benchmark.topics == [Topic("1", "Why?")]
    assert list(benchmark.documents()) == [
        Document(docid, "Tides", "Moon.", "http://a")
        for docid in ("d_00_0", "d_00_1", "d_01_0", "d_01_1")
    ]
    assert list(TrecRag(str(topics), str(segments)).documents()) == [
        Document("d_00_0#0_0", "Tides", "They rise.", "http://a"),
        Document("segments_1", "", "No id."),
    ]


def test_files_of_a_corpus_are_of_one_kind_and_those_about_it_are_left_out(topics, tmp_path):
    folder = tmp_path / "shards"
    rows = [{"text": "One."}]
    write_parquet(folder / "data" / "shard_0.parquet", rows)
    (folder / "dataset_infos.json").write_text("{}")
    expected = [Document("shard_0_0", "", "One.")]
    assert list(TrecRag(topics, str(folder)).documents()) == expected
    named = (folder / "data" / "shard_0.parquet").rename(tmp_path / "shard_0.pq")
    assert list(TrecRag(topics, str(named)).documents()) == expected
    with pytest.raises(InputError, match=r"dataset_infos\.json:1 has no text"):
        list(TrecRag(topics, str(folder)).documents())
    write_jsonl(folder / "shard_1.json.gz", rows)
    refused(r"files of 2 kinds \(\.json, \.json\.gz\)", lambda: TrecRag(topics, str(folder)))
    for file in folder.glob("*.json*"):
        file.unlink()
    refused("there are no rows at", lambda: TrecRag(topics, str(folder)))


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
