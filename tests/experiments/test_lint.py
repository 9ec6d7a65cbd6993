"""Each fault of a set of run files is found, counted, and told with what it changes."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from experiment_samples import folder
from support.commands import run_entry
from support.runs import answer, browsecomp, call, pi_serini, said, search, write_files

Lint = Callable[..., tuple[int, dict[str, str]]]
IDS = ("12", "34", "56")
CORPUS = "".join(f'{{"_id": "{docid}", "text": "text of {docid}"}}\n' for docid in IDS)
QUERIES = "".join(f'{{"_id": "{qid}", "text": "q", "answers": ["Ada"]}}\n' for qid in "1234")
QRELS = "query-id\tcorpus-id\tscore\n" + "".join(f"{qid}\t12\t1\n" for qid in "1234")


def good(qid, **changed):
    items = [search("q", ["12", "34"]), answer("Ada", citing="[12]")]
    return browsecomp(qid, items, **changed)


@pytest.fixture
def lint(tmp_path, monkeypatch, capsys):
    """`lint(files, ...)` -> exit code, and lines by code."""
    monkeypatch.chdir(tmp_path)
    world = folder(tmp_path / "world", corpus=CORPUS, queries=QUERIES, qrels=QRELS)

    def call_it(files, *words, plain=False):
        place = write_files(tmp_path / f"files{len(list(tmp_path.iterdir()))}", files)
        benchmark = [] if plain else ["benchmark=beir", f"benchmark.path={world}"]
        code = run_entry("lint", str(place), *benchmark, *words)
        output = capsys.readouterr()
        (hint,) = output.err.splitlines()
        assert hint.startswith("Next: soundingline lint" if plain else "Next: soundingline import")
        rows = [line.partition(": ") for line in output.out.splitlines()]
        return code, {code_: rest for code_, _, rest in rows if rest}

    return call_it


def changes(line):
    found = re.findall(r"(\w+) ([\d.]+) -> ([\d.]+)", line)
    return {name: (float(a), float(b)) for name, a, b in found}


def test_clean_files_have_no_finding_and_leave_with_zero(lint):
    assert lint([good(qid) for qid in "1234"]) == (0, {})


def test_duplicate_and_missing_questions_change_the_published_accuracy(lint):
    wrong = browsecomp("2", [search("q", ["34"]), answer("Grace")])
    code, lines = lint([good("1"), good("1"), wrong])
    assert code == 1
    assert lines["duplicate_qids"].startswith("1 (")
    # 2 of 3 files right; 1 of 2 without the second file of question 1.
    assert changes(lines["duplicate_qids"])["accuracy_published"] == (0.6667, 0.5)
    assert lines["missing_qids"].startswith("2 (3, 4)")
    # 2 right of 3 files, and of 5 with the two that are missing.
    assert changes(lines["missing_qids"])["accuracy_published"] == (0.6667, 0.4)


def test_without_a_benchmark_what_the_files_tell_is_checked(lint):
    counted = good("2", tool_call_counts={"search": 9})
    code, lines = lint([good("1"), counted], plain=True)
    assert code == 1
    assert set(lines) == {"counts_that_contradict_the_calls"}
    assert changes(lines["counts_that_contradict_the_calls"]) == {
        "search_calls_published": (5.0, 1.0)
    }


def test_a_harness_may_count_failed_calls_or_leave_them_out(lint):
    failed = call("search", {"query": "x"}, "Error executing search: the server is gone")
    files = [good(str(number)) for number in range(1, 5)]
    for file, count in zip(files[:2], (1, 2), strict=True):
        file["result"].insert(0, failed)
        file["tool_call_counts"] = {"search": count}
    code, lines = lint(files)
    assert (code, lines) == (0, {})


def test_incomplete_files_are_told_with_the_most_that_they_can_change(lint):
    code, lines = lint([good("1"), good("2"), good("3"), good("4", status="incomplete")])
    assert code == 1
    assert "by up to 0.250" in lines["incomplete_taken_for_done"]


def test_lost_outputs_and_foreign_json_are_told_and_change_no_figure(lint):
    lost = good("2")
    lost["result"].insert(0, call("search", {"query": "gone"}, None))
    lost["tool_call_counts"] = {"search": 1}
    code, lines = lint([good("1"), lost, {"a": 1}, good("3"), good("4")])
    assert code == 0
    assert set(lines) == {"tool_outputs_not_on_record", "foreign_or_damaged_json"}


def test_several_models_are_told_with_their_numbers_of_files(lint):
    other = browsecomp(
        "4", [search("q", ["34"]), answer("Grace")], metadata={"model": "gpt-5", "reasoning": None}
    )
    code, lines = lint([good("1"), good("2"), good("3"), other])
    assert code == 1
    line = lines["several_models_or_settings"]
    assert "gpt-oss-20b" in line and "gpt-5" in line
    assert changes(line)["accuracy_published"] == (0.75, 1.0)


def test_an_answer_that_is_not_last_is_published_as_wrong(lint):
    cut = good("4")
    cut["result"].append({"type": "reasoning", "tool_name": None, "output": ["on"]})
    code, lines = lint([good("1"), good("2"), good("3"), cut])
    assert code == 1
    line = lines["answers_without_a_last_output_text"]
    assert changes(line)["accuracy_published"] == (0.75, 1.0)


def test_an_empty_answer_that_is_called_completed_is_told(lint):
    code, lines = lint(
        [good("1"), good("2"), good("3"), browsecomp("4", [search("q", ["12"]), said("")])]
    )
    assert code == 0
    assert lines["completed_without_an_answer"].startswith("1 (")


def test_retrieved_ids_are_held_against_the_outputs_and_the_corpus(lint):
    listed = good("1", retrieved_docids=["34"])
    passages = good("2", retrieved_docids=["12_3", "34_0"])
    items = [search("q", ["12_3", "34_0"]), answer("Ada")]
    passages["result"] = items
    unknown = browsecomp("3", [search("q", ["12", "99"]), answer("Ada")])
    code, lines = lint([listed, passages, unknown, good("4")])
    assert code == 1
    # Question 1 lists no evidence, question 2 passages of it: 2 of 4 are found as published.
    line = lines["retrieved_docids_that_contradict_the_calls"]
    assert changes(line)["recall_published"] == (0.5, 1.0)
    line = lines["documents_that_the_corpus_lacks"]
    assert line.startswith("2 (")
    assert changes(line)["recall_published"] == (0.5, 0.75)


def test_citations_that_were_never_shown_are_told(lint):
    invented = browsecomp("1", [search("q", ["12"]), answer("Ada", citing="[56] and [12_3]")])
    code, lines = lint([invented, *map(good, "234")])
    assert code == 1
    line = lines["citations_never_shown"]
    assert line.startswith("1 (")
    # The evaluator reads 56, 12 and 3 in the first answer, of which 12 is right: a third, and a
    # half without 56. The other three answers cite what is right.
    assert changes(line)["citation_precision_published"] == (0.8333, 0.875)


def test_verdicts_of_different_judges_are_told(lint):
    def verdict(judge):
        return {"query_id": "1", "judge_result": {}, "model_info": {"judge_model": judge}}

    code, lines = lint([*map(good, "1234"), verdict("Qwen/Qwen3-32B"), verdict("gpt-4.1")])
    assert code == 1
    line = lines["verdicts_of_different_judges"]
    assert "Qwen/Qwen3-32B: 1" in line and "gpt-4.1: 1" in line


def test_files_of_pi_serini_are_known_by_their_tiers(lint):
    tiers = {"surfaced_docids": ["12"], "previewed_docids": ["12"]}
    page = "1. docid=12 score=1.0000\n   Excerpt: words"
    calls = [call("search", {"query": "q"}, page)]
    files = [pi_serini(qid, [*calls, answer("Ada", citing="[12]")], **tiers) for qid in "1234"]
    assert lint(files) == (0, {})
