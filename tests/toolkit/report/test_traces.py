"""Traces: what their files hold, when they are written, and what texts of others can do there."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from trace_samples import (
    BENCHMARK,
    SmallBenchmark,
    evaluated,
    handed_over,
    searched,
    table,
    traced,
    two_calls,
    write_run,
)

from toolkit.contracts import Answer, Topic, Trajectory
from toolkit.errors import InputError
from toolkit.evaluation.judge_llm import LlmVerdict
from toolkit.report.traces import write_traces
from toolkit.runs import RunFolder
from toolkit.sealing import MARKER, VARIABLE, mark_sealed

FAILED = Trajectory(
    "8", "Who burned it?", "failed", traceback="Traceback\nValueError: no", seconds=2
)
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\u2028\u2029 ${1} `*/ \\"


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if not path.name.startswith(".")}


def versions(folder: Path) -> dict[str, tuple[int, int]]:
    """What changes when a file is written anew, even with the same content."""
    stats = {path.name: path.stat() for path in folder.glob("*.*")}
    return {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in stats.items()}


def test_each_question_has_a_script_and_the_table_has_a_row_for_it(tmp_path: Path) -> None:
    folder = traced(tmp_path / "run", two_calls(), FAILED)
    assert names(folder) == {"index.html", "index.js", "verdicts.js", "1-7.js", "1-8.js"}
    right, failed, missing = table(folder)
    assert (right["qid"], right["status"], right["verdict"]) == ("7", "completed", "right")
    recalls = [right[f"recall_{tier}"] for tier in ("surfaced", "previewed", "opened", "cited")]
    assert recalls == [0.6667, 0.3333, 0.3333, 0.3333]
    assert (right["calls"], right["tokens"], right["dollars"], right["seconds"]) == (
        2,
        17,
        0.5,
        1.5,
    )
    assert (failed["status"], failed["verdict"], failed["recall_opened"]) == ("failed", "", 0)
    assert (missing["status"], missing["calls"], missing["recall_opened"]) == (
        "missing",
        None,
        None,
    )
    assert handed_over(folder / "1-8.js")["traceback"] == FAILED.traceback


def test_a_trace_tells_each_call_with_its_evidence_and_what_was_spent(tmp_path: Path) -> None:
    trace = handed_over(traced(tmp_path / "run", two_calls()) / "1-7.js")
    assert trace["accepted"] == ["Ada"] and trace["answer"]["exact"] == "Ada"
    assert trace["answer"]["citations"] == [["d2", ["evidence 2", "gold"]]]
    kinds = [step.get("role") or f"call {step['call']}" for step in trace["steps"]]
    assert kinds == ["system", "user", "assistant", "call 1", "assistant", "call 2", "assistant"]
    first, second = (step for step in trace["steps"] if "call" in step)
    assert first["arguments"] == [["query", "mill"]]
    assert first["rewritten"] == ["who built the mill"]
    assert first["output"] == two_calls().calls[0].output
    assert [(d["docid"], d["rank"], d["shown"], d["first"]) for d in first["judged"]] == [
        ("d1", 1, True, ["previewed"]),
        ("d3", 4, False, []),
    ]
    assert [(d["docid"], d["rank"], d["first"]) for d in second["judged"]] == [
        ("d2", None, ["opened"])
    ]
    assert (first["tokens_so_far"], second["tokens_so_far"]) == (8, 17)
    # By the price: 100 * 10 + 10 * 100 = 2000, then 100 * 10 + 100 * 1 + 10 * 100 = 2100, then
    # 300 * 10 + 20 * 100 = 5000 millionths; 9100 of them are the half dollar on record.
    assert first["dollars"] == pytest.approx(0.5 * 2000 / 9100)
    assert second["dollars"] == pytest.approx(0.5 * 4100 / 9100)
    assert second["model"] == [300, 100, 20]
    assert trace["steps"][-1]["dollars"] == pytest.approx(0.5)
    by_docid = {row.pop("docid"): row for row in trace["evidence"]}
    assert by_docid == {
        "d1": {"judged": ["evidence"], "rank": [1, 1], "surfaced": 1, "previewed": 1}
        | {"opened": None, "cited": None},
        "d2": {"judged": ["evidence 2", "gold"], "rank": None, "surfaced": None, "previewed": None}
        | {"opened": 2, "cited": 2},
        "d3": {"judged": ["evidence"], "rank": [4, 1], "surfaced": 1, "previewed": None}
        | {"opened": None, "cited": None},
    }


def test_money_is_left_out_where_a_price_or_a_count_is_unknown(tmp_path: Path) -> None:
    unpriced = two_calls(usage={"agent_calls": 3})
    trace = handed_over(traced(tmp_path / "a", unpriced) / "1-7.js")
    assert not any("dollars" in step for step in trace["steps"])
    assert table(tmp_path / "a" / "traces")[0]["dollars"] is None
    uncounted = [dict(message) for message in two_calls().messages]
    uncounted[2]["usage"] = {"output": 10}
    trace = handed_over(traced(tmp_path / "b", two_calls(messages=tuple(uncounted))) / "1-7.js")
    assert not any("dollars" in step for step in trace["steps"])


def test_calls_that_no_message_answers_are_shown_and_so_are_replies_that_are_no_calls(
    tmp_path: Path,
) -> None:
    bare = two_calls(messages=())
    trace = handed_over(traced(tmp_path / "a", bare) / "1-7.js")
    assert [step["call"] for step in trace["steps"]] == [1, 2]
    calls = two_calls().calls
    messages = (
        {"role": "tool", "content": "from a tool of the harness"},
        {"role": "tool", "content": calls[0].output},
        {"role": "tool", "content": calls[1].output},
    )
    trace = handed_over(traced(tmp_path / "b", two_calls(messages=messages)) / "1-7.js")
    assert [step.get("call", step.get("text")) for step in trace["steps"]] == [
        "from a tool of the harness",
        1,
        2,
    ]


def test_verdicts_stand_apart_with_the_reasons_of_a_judging_model(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", two_calls())
    reason = LlmVerdict("7", True, "Ada L.", "It names Ada.", 90.0)
    page = write_traces(folder, BENCHMARK, evaluated(folder), [{"7": reason}])
    verdict = handed_over(page.parent / "verdicts.js")["1-7"]
    assert (verdict["extracted"], verdict["reasoning"]) == ("Ada L.", "It names Ada.")
    assert (verdict["exact"], verdict["judge"], verdict["answer"]) == (True, "exact_answer", "Ada")


def test_evaluating_again_writes_nothing_that_has_not_changed(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", two_calls(), FAILED)
    traces = write_traces(folder, BENCHMARK, evaluated(folder)).parent
    before = versions(traces)
    write_traces(folder, BENCHMARK, evaluated(folder))
    assert versions(traces) == before
    reason = LlmVerdict("7", True, reasoning="It names Ada.")
    write_traces(folder, BENCHMARK, evaluated(folder), [{"7": reason}])
    changed = {name for name, version in versions(traces).items() if version != before[name]}
    assert changed == {"verdicts.js"}


def test_a_trace_of_an_earlier_attempt_or_another_layout_is_written_anew(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", FAILED)
    traces = write_traces(folder, BENCHMARK, evaluated(folder)).parent
    # A second attempt whose file is as long as the first one's.
    with folder.writing(folder.manifest()):
        folder.write(replace(FAILED, traceback=FAILED.traceback.replace("no", "on")))
    write_traces(folder, BENCHMARK, evaluated(folder))
    assert handed_over(traces / "1-8.js")["traceback"].endswith("ValueError: on")
    for damage in ("", "// {", '// {"trace": 0}\nsoundingline("1-8", {});\n', "// []\n", "// 1\n"):
        (traces / "1-8.js").write_text(damage)
        write_traces(folder, BENCHMARK, evaluated(folder))
        assert handed_over(traces / "1-8.js")["qid"] == "8"


def test_repeats_have_scripts_and_rows_of_their_own(tmp_path: Path) -> None:
    wrong = two_calls(answer=Answer(exact="Eve"), tiers={"opened": ("d1", "d2")})
    folder = traced(tmp_path / "run", two_calls(), FAILED, repeats=[[wrong]])
    rows = table(folder)
    assert [(row["qid"], row["repeat"]) for row in rows] == [
        (qid, repeat) for qid in ("7", "8", "9") for repeat in (1, 2)
    ]
    assert [row["verdict"] for row in rows[:2]] == ["right", "wrong"]
    assert [row["recall_opened"] for row in rows[:2]] == [0.3333, 0.6667]
    assert [row["status"] for row in rows[2:4]] == ["failed", "missing"]
    assert handed_over(folder / "2-7.js")["answer"]["exact"] == "Eve"
    assert handed_over(folder / "verdicts.js").keys() == {"1-7", "2-7"}


def hostile_run(path: Path) -> Path:
    """A run in which every text that others write tries to be more than a text."""
    qid = f"q/../{HOSTILE}"
    benchmark = SmallBenchmark(
        [Topic(qid, HOSTILE)], {"evidence": {qid: {HOSTILE: 1}}}, {qid: [HOSTILE]}
    )
    call = searched(
        HOSTILE,
        f"docid={HOSTILE}\n" + "a" * 20_000 + "\u202e backwards \ud800",
        tokens=3,
        ranking=(HOSTILE,),
        shown=(HOSTILE,),
        notes={HOSTILE: {"__proto__": HOSTILE}, "rewrite": {"rewritten": HOSTILE}},
    )
    hostile_arguments = {"query": HOSTILE, "__proto__": HOSTILE, HOSTILE: [HOSTILE]}
    trajectory = two_calls(
        qid,
        question=HOSTILE,
        answer=Answer(HOSTILE, HOSTILE, 50.0, (HOSTILE,)),
        calls=(replace(call, arguments=hostile_arguments), replace(call, error=HOSTILE)),
        messages=({"role": HOSTILE, "content": HOSTILE, "reasoning": HOSTILE},),
        tiers={"surfaced": (HOSTILE,), "opened": (HOSTILE,)},
        exposures=(),
        usage={HOSTILE: 1.0},
        reason=HOSTILE,
        warnings=(HOSTILE,),
        traceback=HOSTILE,
        source={"__proto__": HOSTILE},
    )
    folder = write_run(path, trajectory)
    reason = LlmVerdict(qid, False, HOSTILE, HOSTILE)
    write_traces(folder, benchmark, evaluated(folder, benchmark), [{qid: reason}])
    return folder.path / "traces"


def test_texts_of_others_end_no_script_and_leave_no_folder(tmp_path: Path) -> None:
    folder = hostile_run(tmp_path / "run")
    (script,) = (path for path in folder.glob("1-*.js"))
    assert {path.parent for path in tmp_path.rglob("*.js")} == {folder}
    for path in folder.glob("*.js"):
        content = path.read_text(encoding="utf-8")
        assert "<" not in content and "\u2028" not in content and "\u2029" not in content
        assert len(content.splitlines()) == (2 if path == script else 1)
    trace = handed_over(script)
    assert trace["question"] == HOSTILE and trace["steps"][1]["rewritten"] == [HOSTILE]
    assert trace["steps"][1]["arguments"] == [
        ["query", HOSTILE],
        ["__proto__", HOSTILE],
        [HOSTILE, json.dumps([HOSTILE], ensure_ascii=False)],
    ]


def test_the_page_is_the_same_for_every_run_and_allows_its_own_script_alone(
    tmp_path: Path,
) -> None:
    page = (hostile_run(tmp_path / "hostile") / "index.html").read_text(encoding="utf-8")
    assert page == (traced(tmp_path / "run", two_calls()) / "index.html").read_text("utf-8")
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    directives = dict(part.split(" ", 1) for part in html.unescape(policy).split("; "))
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    (style,) = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    hashes = {
        name: "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"
        for name, text in (("script", script), ("style", style))
    }
    assert directives["default-src"] == "'none'"
    assert directives["script-src"] == f"{hashes['script']} 'strict-dynamic'"
    assert directives["style-src"] == hashes["style"]
    assert not re.search(
        r"https?://|innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", page
    )


def test_a_sealed_run_has_no_text_in_its_traces_and_opens_with_the_canary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "a canary")
    mark_sealed(tmp_path / "run")
    folder = traced(tmp_path / "run", two_calls(), FAILED)
    assert (tmp_path / "run" / MARKER).exists()
    for path in folder.glob("*.*"):
        content = path.read_text(encoding="utf-8")
        assert not any(text in content for text in ("Who b", "Ada b", "Traceback", "docid="))
    assert handed_over(folder / "1-7.js", "a canary")["question"] == "Who built the mill?"
    assert table(folder, "a canary")[0]["verdict"] == "right"
    assert handed_over(folder / "verdicts.js", "a canary")["1-7"]["answer"] == "Ada"
    before = versions(folder)
    run = RunFolder(tmp_path / "run")
    write_traces(run, BENCHMARK, evaluated(run))
    assert versions(folder) == before


def test_traces_behind_a_link_are_refused(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", two_calls())
    (tmp_path / "elsewhere").mkdir()
    (folder.path / "traces").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="traces is a symbolic link"):
        evaluated(folder)


def test_a_damaged_price_in_a_manifest_costs_the_money_alone(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", two_calls())
    cell = evaluated(folder)
    for price in ("dear", {"input": -1}, {"unknown": 1}, {"long_context": {"above": 1}}, None):
        damaged = replace(cell, manifest={"config": {"llm": {"price": price}}})
        shutil.rmtree(folder.path / "traces", ignore_errors=True)
        page = write_traces(folder, BENCHMARK, damaged)
        steps = handed_over(page.parent / "1-7.js")["steps"]
        assert len(steps) == 7 and not any("dollars" in step for step in steps)
