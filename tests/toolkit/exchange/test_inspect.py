"""Logs of Inspect AI: what we write reads back, what others write becomes a run."""

import io
import json
import re
import zipfile
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.runs import answer, browsecomp, call, search, thought, trajectory

from soundingline.toolkit.errors import InputError
from soundingline.toolkit.exchange import inspect_ai
from soundingline.toolkit.exchange.transcript import Transcript, trajectory_of

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
    """With reasoning, a failed call, malformed arguments, half a surrogate pair, and usage."""
    rows = []
    for number in range(3):
        items = [
            thought(f"I think {number}"),
            search("query", ["a", "b"]),
            call("search", '{"query": cut', "Error executing search: no JSON"),
            search("again \ud83d", ["c"]),
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
    assert [(c.name, c.output, c.shown) for c in again.calls] == [
        (c.name, c.output, c.shown) for c in first.calls
    ]
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
    assert "output_tokens" not in usage and usage["unmetered"] == 1
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


def test_several_epochs_are_refused(tmp_path):
    path = tmp_path / "log.json"
    path.write_text(json.dumps({"samples": [foreign(), foreign(epoch=2)]}), encoding="utf-8")
    with pytest.raises(InputError, match="epoch 2"):
        list(inspect_ai.read(path))


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
    with pytest.raises(InputError, match=r"damaged|not whole"):
        list(inspect_ai.read(path))


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cut=st.integers(0, 20_000), form=st.sampled_from(["eval", "json"]), noise=st.binary(max_size=4)
)
def test_a_truncated_or_damaged_log_ends_in_one_line(tmp_path, cut, form, noise):
    path = tmp_path / f"log.{form}"
    inspect_ai.write(path, HEAD, samples(trajectories()))
    whole = path.read_bytes()
    path.write_bytes(whole[: cut % len(whole)] + noise)
    try:
        for recorded in inspect_ai.read(path):
            assert recorded.qid.startswith("q/")
    except InputError as error:
        assert "\n" not in str(error)


@settings(max_examples=200)
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


def test_items_are_read_across_the_chunks_of_a_stream(tmp_path, monkeypatch):
    monkeypatch.setattr("soundingline.toolkit.exchange.inspect_ai._CHUNK", 3)
    value = {"a": [1, {"b": "]}"}], "samples": [12345, 'x\\"y', {"c": [None, 1.5e10]}, -7], "z": 1}
    path = tmp_path / "x.json"
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")
    assert list(inspect_ai.list_items(path, "samples")) == value["samples"]
    assert list(inspect_ai.list_items(path, "none")) == []
