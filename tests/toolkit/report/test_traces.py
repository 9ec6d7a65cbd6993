"""Traces: what their pages show, when they are written, and that foreign texts stay texts."""

import base64
import hashlib
import json
import re
import shutil
import time
from dataclasses import replace

import pytest
from report_runs import (
    BENCHMARK,
    CHECKLIST,
    AnyPassage,
    evaluated,
    searched,
    traced,
    two_calls,
    two_rounds,
    write_run,
)
from support.benchmarks import SmallBenchmark
from support.html_page import Page

from soundingline.toolkit.data import Topic
from soundingline.toolkit.evaluation.judge import ModelVerdict
from soundingline.toolkit.llm.prices import Price
from soundingline.toolkit.report.traces import (
    judged_documents,
    marked,
    matrix_values,
    trace_values,
    write_traces,
)
from soundingline.toolkit.trajectory import Answer, Trajectory

FAILED = Trajectory(
    "8", "Who burned it?", "failed", traceback="Traceback\nValueError: no", seconds=2
)
HOSTILE = (
    "</script><script>alert(1)</script><img src=x onerror=alert(2)>\u2028\u2029 ${1} `*/ \\ -->"
)


def names(folder):
    return {path.name for path in folder.iterdir() if not path.name.startswith(".")}


def versions(folder):
    """What changes when a file is written anew, even with the same content."""
    stats = {path.name: path.stat() for path in folder.glob("*.*")}
    return {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in stats.items()}


def test_each_question_has_a_page_and_the_index_has_a_row_for_it(tmp_path):
    folder = traced(tmp_path / "run", two_calls(), FAILED)
    assert names(folder) == {"index.html", "1-7.html", "1-8.html"}
    index = Page(folder / "index.html")
    assert [" ".join(row) for row in index.rows()[1:]] == [
        "7Who built the mill? completed correct 0.67 0.33 0.33 0.33 2 17 0.5000 1.5",
        "8Who burned it? failed — 0.00 0.00 0.00 0.00 0 0 — 2.0",
        "9Never asked? missing" + " —" * 9,
    ]
    links = index.attributes("href", tag="a")
    assert links == ["1-7.html", "1-8.html"]
    failed = Page(folder / "1-8.html")
    assert failed.raw("pre") == [FAILED.traceback]
    assert not {"Rounds", "Documents and requirements"} & set(failed.texts("h2"))


def test_a_page_has_each_call_with_its_evidence_and_the_usage_so_far(tmp_path):
    page = Page(traced(tmp_path / "run", two_calls()) / "1-7.html")
    assert page.texts("p", "exact") == ["Ada"] and page.texts("li", "exact") == ["Ada"]
    assert "d2 evidence 2, gold" in page.texts("li")
    first, second = page.texts("section", "call")
    assert first.startswith("Call 1: search querymill Ranked by who built the mill")
    assert "evidence d1, rank 1 of 4, shown, first time previewed" in first
    assert "evidence d3, rank 4 of 4, not shown" in first
    assert "evidence 2, gold d2, shown, first time opened" in second
    assert "8 tokens of tool output so far" in first and "17 tokens of tool output" in second
    # By the price: 100 * 10 + 10 * 100 = 2000, then 100 * 10 + 100 * 1 + 10 * 100 = 2100, then
    # 300 * 10 + 20 * 100 = 5000 millionths; 9100 of them are the half dollar on record.
    assert f"10 out · ≈ ${0.5 * 2000 / 9100:.4f} so far" in first
    assert f"300 tokens in (100 cached), 20 out · ≈ ${0.5 * 4100 / 9100:.4f} so far" in second
    assert page.texts("section")[-1].endswith("≈ $0.5000 so far")
    for call in two_calls().calls:
        assert call.output in page.raw("pre")
    # Marked in the result page: the id of a judged document, and no other one.
    assert page.texts("mark") == ["d1", "d2"]
    rows = {row[0]: row[1:] for row in page.rows()}
    assert rows["d1"] == ["evidence", "1 in call 1", "call 1", "call 1", "never", "never"]
    assert rows["d2"] == ["evidence 2, gold", "—", "never", "never", "call 2", "yes"]
    assert rows["d3"] == ["evidence", "4 in call 1", "call 1", "never", "never", "never"]


def test_links_within_a_page_have_their_targets(tmp_path):
    page = Page(traced(tmp_path / "run", two_rounds(), passages=AnyPassage()) / "1-7.html")
    targets, links = page.attributes("id"), page.attributes("href", tag="a")
    assert len(set(targets)) == len(targets) and len(links) > 10
    assert {link for link in links if link.startswith("#")} <= {f"#{name}" for name in targets}


def test_money_is_left_out_where_a_price_or_a_count_is_unknown(tmp_path):
    folder = traced(tmp_path / "a", two_calls(usage={"agent_calls": 3}))
    assert "$" not in Page(folder / "1-7.html").texts("main")[0]
    assert "dollars" not in Page(folder / "index.html").rows()[0]
    uncounted = [dict(message) for message in two_calls().messages]
    uncounted[2]["usage"] = {"output": 10}
    folder = traced(tmp_path / "b", two_calls(messages=tuple(uncounted)))
    assert "≈ $" not in Page(folder / "1-7.html").texts("main")[0]


def test_calls_without_a_message_are_shown_and_so_are_replies_to_other_tools(tmp_path):
    page = Page(traced(tmp_path / "a", two_calls(messages=())) / "1-7.html")
    assert [text[:6] for text in page.texts("section")] == ["Call 1", "Call 2"]
    calls = two_calls().calls
    contents = ("from a tool of the harness", calls[0].output, calls[1].output)
    messages = tuple({"role": "tool", "content": content} for content in contents)
    page = Page(traced(tmp_path / "b", two_calls(messages=messages)) / "1-7.html")
    reply, *shown = page.texts("section")
    assert reply == "Reply to another tool from a tool of the harness"
    assert [text[:6] for text in shown] == ["Call 1", "Call 2"]


def test_a_page_has_the_verdict_with_the_reasons_of_a_judging_model(tmp_path):
    folder = write_run(tmp_path / "run", two_calls())
    reason = ModelVerdict("7", True, "Ada L.", "It names Ada.", 90.0)
    index = write_traces(folder, BENCHMARK, evaluated(folder), [{"7": reason}])
    page = Page(index.with_name("1-7.html"))
    text = page.texts("main")[0]
    assert "correct by exact_answer" in text and "The judge read the answer as: Ada L." in text
    assert "By rule: equal yes, contained yes, F1 1.00" in text
    assert "It names Ada." in page.raw("pre")


def test_evaluating_again_writes_only_pages_that_change(tmp_path):
    folder = write_run(tmp_path / "run", two_calls(), FAILED)
    traces = write_traces(folder, BENCHMARK, evaluated(folder)).parent
    before = versions(traces)
    write_traces(folder, BENCHMARK, evaluated(folder))
    assert versions(traces) == before
    reason = ModelVerdict("7", True, reasoning="It names Ada.")
    write_traces(folder, BENCHMARK, evaluated(folder), [{"7": reason}])
    changed = {name for name, version in versions(traces).items() if version != before[name]}
    assert changed == {"1-7.html"}


def test_a_page_of_an_earlier_attempt_or_a_damaged_one_is_written_anew(tmp_path):
    folder = write_run(tmp_path / "run", FAILED)
    traces = write_traces(folder, BENCHMARK, evaluated(folder)).parent
    # A second attempt whose file is as long as the first one's.
    with folder.writing(folder.manifest()):
        folder.write(replace(FAILED, traceback=FAILED.traceback.replace("no", "on")))
    write_traces(folder, BENCHMARK, evaluated(folder))
    written = (traces / "1-8.html").read_text()
    assert "ValueError: on" in written
    for damage in ("", "<!-- {", '<!-- {"key": 0} -->\n<p>', "<!-- [] -->\n", "<!-- 1 -->\n"):
        (traces / "1-8.html").write_text(damage)
        write_traces(folder, BENCHMARK, evaluated(folder))
        assert (traces / "1-8.html").read_text() == written
    for old, new in (('"failed"', '"<b>"'), ('"seconds": 2', '"seconds": "long"')):
        assert old in written
        (traces / "1-8.html").write_text(written.replace(old, new, 1))
        write_traces(folder, BENCHMARK, evaluated(folder))
        assert (traces / "1-8.html").read_text() == written


def test_pages_link_to_the_index_and_to_their_neighbours(tmp_path):
    last = replace(FAILED, qid="9")
    folder = traced(tmp_path / "run", two_calls(), FAILED, last, repeats=[[two_calls()]])

    def links(name):
        addresses = Page(folder / name).attributes("href", tag="a")
        return [address for address in addresses if not address.startswith("#")]

    assert links("1-7.html") == ["index.html", "1-8.html"]
    assert links("1-8.html") == ["index.html", "1-7.html", "1-9.html"]
    assert links("1-9.html") == ["index.html", "1-8.html"]
    assert links("2-7.html") == ["index.html"]


def test_repeats_have_pages_and_rows_of_their_own(tmp_path):
    wrong = two_calls(answer=Answer(exact="Eve"), tiers={"opened": ("d1", "d2")})
    folder = traced(tmp_path / "run", two_calls(), FAILED, repeats=[[wrong]])
    _, *rows = Page(folder / "index.html").rows()
    assert [row[0][:11] for row in rows] == [
        f"{qid}, repeat {repeat}" for qid in ("7", "8", "9") for repeat in (1, 2)
    ]
    assert [row[2] for row in rows[:2]] == ["correct", "wrong"]
    assert [row[5] for row in rows[:2]] == ["0.33", "0.67"]
    assert [row[1] for row in rows[2:4]] == ["failed", "missing"]
    assert Page(folder / "2-7.html").texts("p", "exact") == ["Eve"]


# Texts of others.


def hostile_run(path):
    """The traces of a run in which every foreign text contains markup."""
    qid = f"q/../{HOSTILE}"
    judged = {"evidence": {qid: {HOSTILE: 1}}}
    benchmark = SmallBenchmark([Topic(qid, HOSTILE)], judged, {qid: [HOSTILE]})
    call = searched(
        HOSTILE,
        f"docid={HOSTILE}\n" + "a" * 20_000 + "\u202e backwards \ud800",
        tokens=3,
        ranking=(HOSTILE,),
        shown=(HOSTILE,),
        notes={HOSTILE: {"__proto__": HOSTILE}, "rewrite": {"rewritten": HOSTILE}},
    )
    requirement = dict.fromkeys(("verdict", "score", "rationale"), HOSTILE)
    requirement["passage"] = f"{HOSTILE}%p0"
    trajectory = two_calls(
        qid,
        question=HOSTILE,
        answer=Answer(HOSTILE, HOSTILE, 50.0, (HOSTILE,), (HOSTILE,)),
        calls=(
            replace(call, arguments={"query": HOSTILE, HOSTILE: [HOSTILE]}),
            replace(call, name=HOSTILE, error=HOSTILE),
        ),
        messages=({"role": HOSTILE, "content": HOSTILE, "reasoning": HOSTILE},),
        tiers={"surfaced": (HOSTILE,), "opened": (HOSTILE,)},
        exposures=(),
        usage={HOSTILE: 1.0},
        reason=HOSTILE,
        warnings=(HOSTILE,),
        traceback=HOSTILE,
        source={"__proto__": HOSTILE},
        rounds=(
            {
                "reason": HOSTILE,
                "librarians": [{"text": HOSTILE, "operator": HOSTILE, "reason": HOSTILE}],
                "checklist": [HOSTILE],
                "planned_by": HOSTILE,
                "documents": {HOSTILE: {"score": 1, "requirements": {HOSTILE: requirement}}},
            },
        ),
    )
    folder = write_run(path, trajectory)
    reason = ModelVerdict(qid, False, HOSTILE, HOSTILE)
    passages = AnyPassage(HOSTILE)
    write_traces(folder, benchmark, evaluated(folder, benchmark), [{qid: reason}], passages)
    return folder.path / "traces"


def test_foreign_texts_become_no_markup_leave_no_folder_and_load_nothing(tmp_path):
    folder = hostile_run(tmp_path / "run")
    assert {path.parent for path in tmp_path.rglob("*.html")} == {folder}
    for path in folder.glob("*.html"):
        page, is_index = Page(path), path.name == "index.html"
        assert not set(page.tags) & {"img", "iframe", "object", "embed", "form", "link", "base"}
        names = {name for element in page.elements for name in element.attrs}
        assert not any(name.startswith("on") for name in names)
        links = page.attributes("href", tag="a")
        assert all(re.fullmatch(r"#[\w-]+|index\.html|1-[\w%.-]+\.html", link) for link in links)
        assert len(page.comments) == (not is_index)
        assert not re.search(r"https?://|url\(|@import", page.source)
        policy = page.soup.find("meta", {"http-equiv": "Content-Security-Policy"})["content"]
        directives = dict(part.split(" ", 1) for part in policy.split("; "))
        assert directives["default-src"] == "'none'"
        scripts = page.raw("script")
        digests = [hashlib.sha256(script.encode()).digest() for script in scripts]
        allowed = [f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests]
        assert allowed == ([directives["script-src"]] if is_index else [])
        assert is_index or "script-src" not in directives
    (path,) = folder.glob("1-*.html")
    page, shown = Page(path), " ".join(HOSTILE.split())
    assert page.source.count("<script") == 0
    assert shown in page.texts("p", "asked") and shown in page.texts("p", "exact")
    assert shown in page.texts("mark") or shown in page.texts("bdi")
    assert page.raw("pre").count(HOSTILE) >= 4
    assert json.dumps([HOSTILE], ensure_ascii=False) in page.raw("dd")


def test_marks_are_of_judged_documents_alone_and_take_linear_time():
    labels = {"d1": ["gold"], "<b>": ["evidence"]}
    shown = str(marked('docid="d1" docid=d12 d1 docid: <b>', labels))
    assert shown == (
        'docid=&#34;<mark title="judged: gold">d1</mark>&#34; docid=d12 d1 docid: '
        '<mark title="judged: evidence">&lt;b&gt;</mark>'
    )
    start = time.perf_counter()
    marked("docid=" * 200_000 + "docid" + " " * 200_000, labels)
    assert time.perf_counter() - start < 5


def test_without_a_readable_price_in_the_manifest_dollars_are_left_out(tmp_path):
    folder = write_run(tmp_path / "run", two_calls())
    run = evaluated(folder)
    for price in ("dear", {"input": -1}, {"unknown": 1}, {"long_context": {"above": 1}}, None):
        damaged = replace(run, manifest={"config": {"llm": {"price": price}}})
        shutil.rmtree(folder.path / "traces", ignore_errors=True)
        page = Page(write_traces(folder, BENCHMARK, damaged).parent / "1-7.html")
        assert len(page.texts("section", "step")) == 7
        assert "≈ $" not in page.texts("main")[0]


# A navigator's rounds.


def values(trajectory):
    labels = judged_documents(BENCHMARK.qrels, trajectory.qid)
    return trace_values(trajectory, labels, Price(), AnyPassage())


def test_rounds_have_their_queries_and_checklist():
    first, second = values(two_rounds())["rounds"]
    assert (first["number"], first["note"]) == (1, "Begin with the rarest.")
    search, expand = first["queries"]
    assert search["text"] == "mill" and search["call"] == 1
    assert search["facts"] == "search, 3 candidates, 3 new"
    assert (expand["text"], expand["call"]) == ("d1 d2", None)
    assert expand["facts"] == "expand, in, failed: timed_out"
    listed = replace(two_rounds().calls[1], arguments={"docids": '["d1", "d2"]'})
    called = replace(two_rounds(), calls=(*two_rounds().calls, listed))
    assert values(called)["rounds"][0]["queries"][1]["call"] == 3
    assert first["checklist"] == list(CHECKLIST[:2])
    assert second["checklist"] == list(CHECKLIST)
    assert first["facts"] == {"planned by": "model"}
    plan = {"strategy": "Follow links.", "missing": ["mills", "kilns"], "stopped": "coverage"}
    planned = replace(two_rounds(), rounds=({**two_rounds().rounds[0], **plan},))
    assert values(planned)["rounds"][0]["facts"] == {
        **{"strategy": "Follow links.", "missing": "mills; kilns"},
        **{"planned by": "model", "stopped": "coverage"},
    }
    assert second["facts"] == {"unscored": '{"timed_out": 3}'}


def test_documents_are_in_the_order_of_the_answer_with_the_newest_scores():
    labels = judged_documents(BENCHMARK.qrels, "7")
    matrix = matrix_values(two_rounds(), labels, AnyPassage())
    assert [row["docid"] for row in matrix["documents"]] == ["d2", "d1", "x9"]
    second, first, other = matrix["documents"]
    assert (second["listed"], first["listed"], other["listed"]) == (1, 2, None)

    def cells(row):
        return [cell and (cell["verdict"], cell["score"]) for cell in row["cells"]]

    assert cells(first) == [("satisfied", "0.95"), ("satisfied", "0.95"), ("unknown", "0.00")]
    assert cells(other) == [("not", "0.10"), ("unknown", "0.00"), None]
    assert (first["score"], second["overall"]) == ("0.90", 0.99)
    assert second["judged"] == ["evidence 2", "gold"] and second["title"] == "Of d2"
    evidence = second["cells"][1]
    assert (evidence["passage"], evidence["rationale"]) == ("d2%p1", "because of d2")
    assert (first["cells"][1]["passage"], first["cells"][2]["passage"]) == ("d1%p1", "")
    texts = {name: passage["text"] for name, passage in matrix["passages"].items()}
    assert texts["d2%p1"] == "The mill grinds barley."
    assert texts["d1%p0"] == "", "the store does not have those of d1"
    answer = values(two_rounds())["documents"]
    assert answer == [("d2", ["evidence 2", "gold"]), ("d1", ["evidence"]), ("gone", ())]


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"librarians": [1, None], "checklist": "x", "documents": {"d1": 3}},
        {"documents": {"d1": {"requirements": {"r": {"verdict": "perhaps", "score": "high"}}}}},
        {"checklist": [3], "documents": {"d1": {"score": True, "requirements": {"r": 1}}}},
        {"round": "one", "checklist": ["r"], "documents": []},
    ],
)
def test_rounds_of_another_kind_are_shown_as_far_as_they_can_be_read(tmp_path, row):
    page = Page(traced(tmp_path / "run", two_calls(rounds=(row,))) / "1-7.html")
    assert page.texts("section", "step")[0].startswith("Round 1")
