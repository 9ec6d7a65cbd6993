"""Whatever a file contains, a reader gives a transcript or one line that says what is wrong."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.runs import answer, browsecomp, call, pi_serini, said, search, thought, trajectory

from soundingline.toolkit.errors import InputError
from soundingline.toolkit.exchange import browsecomp_plus as bcp
from soundingline.toolkit.exchange.transcript import (
    Transcript,
    docids_shown,
    output_text,
    run_files,
    run_paths,
    trajectory_of,
)
from soundingline.toolkit.obfuscation import Canary
from soundingline.toolkit.trajectory import dump_trajectory, from_record, known_usage

READERS = {"browsecomp_plus": bcp.read, "pi_serini": bcp.read_pi_serini}
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
    assert trajectory.usage == {"output_tokens": 7, "unmetered": 1}
    assert known_usage(trajectory.usage, "input_tokens") is None


@pytest.mark.parametrize("form", READERS)
@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
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


@settings(max_examples=150)
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
    with pytest.raises(InputError, match=r"run\.json is damaged"):
        list(run_files([path]))


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
    with pytest.raises(InputError, match="f was "):
        list(bcp.read([("f", content)]))


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
    first = (
        "1. docid=a score=9.0 title=A\n   of a\n2. docid=b score=8.0\n3. docid=c score=7.0\n   of c"
    )
    # The rank alone says that there is no excerpt where the line below belongs to the page.
    second = (
        "50. docid=d score=3.0\n   of d\n51. docid=e score=2.0\n52. docid=f score=1.0\nNext: 53"
    )
    items = [
        call("search", {"query": "q"}, [{"type": "text", "text": first}]),
        call("read_search_results", {"search_id": "s1", "offset": 50}, second),
        answer("x"),
    ]
    (transcript,) = bcp.read_pi_serini([("f", pi_serini("1", items))])
    tiers = trajectory_of(transcript, "question?").tiers
    assert tiers["surfaced"] == ("a", "b", "c", "d", "e", "f")
    assert tiers["previewed"] == ("a", "c", "d")
