"""Each fault of a set of run files is listed, counted, and reported with what it changes."""

import re

import pytest
from experiment_samples import folder
from support.commands import run_entry
from support.runs import answer, browsecomp, call, pi_serini, said, search, write_files

IDS = ("12", "34", "56")
CORPUS = "".join(f'{{"_id": "{docid}", "text": "text of {docid}"}}\n' for docid in IDS)
QUERIES = "".join(f'{{"_id": "{qid}", "text": "q", "answers": ["Ada"]}}\n' for qid in "1234")
QRELS = "query-id\tcorpus-id\tscore\n" + "".join(f"{qid}\t12\t1\n" for qid in "1234")
WRONG = [search("q", ["34"]), answer("Grace")]
FAILED = call("search", {"query": "x"}, "Error executing search: the server is gone")
PAGE = call("search", {"query": "q"}, "1. docid=12 score=1.0000\n   Excerpt: words")
PI_ITEMS = [PAGE, answer("Ada", citing="[12]")]
PI_TIERS = {"surfaced_docids": ["12"], "previewed_docids": ["12"]}


def good(qid, before=(), after=(), **changed):
    """A file without faults but for what is `changed`, and items at its beginning and end."""
    items = [search("q", ["12", "34"]), answer("Ada", citing="[12]")]
    content = browsecomp(qid, items, **changed)
    content["result"] = [*before, *content["result"], *after]
    return content


def verdict(judge):
    return {"query_id": "1", "judge_result": {}, "model_info": {"judge_model": judge}}


def listed(qid, docids, retrieved):
    items = [search("q", docids), answer("Ada")]
    return browsecomp(qid, items, **({"retrieved_docids": retrieved} if retrieved else {}))


# Files, and by fault what its line begins with or contains, and the figures that change.
CASES = {
    "clean files": ([good(qid) for qid in "1234"], {}),
    "pi-serini's files, known by their tiers": (
        [pi_serini(qid, PI_ITEMS, **PI_TIERS) for qid in "1234"],
        {},
    ),
    "a harness may count failed calls or leave them out": (
        [
            good("1", [FAILED], tool_call_counts={"search": 1}),
            good("2", [FAILED], tool_call_counts={"search": 2}),
            *map(good, "34"),
        ],
        {},
    ),
    # 2 of 3 files are right; 1 of 2 without the second file of question 1, and 2 of 5 with the two
    # that are missing.
    "duplicate and missing questions": (
        [good("1"), good("1"), browsecomp("2", WRONG)],
        {
            "duplicate_qids": ("1 (", {"accuracy_published": (0.6667, 0.5)}),
            "missing_qids": ("2 (3, 4)", {"accuracy_published": (0.6667, 0.4)}),
        },
    ),
    "an incomplete file": (
        [*map(good, "123"), good("4", status="incomplete")],
        {"incomplete_taken_for_done": ("by up to 0.250", {})},
    ),
    "several models": (
        [*map(good, "123"), browsecomp("4", WRONG, metadata={"model": "gpt-5"})],
        {"several_models_or_settings": ("gpt-oss-20b", {"accuracy_published": (0.75, 1.0)})},
    ),
    "an answer that is not last": (
        [*map(good, "123"), good("4", after=[{"type": "reasoning", "output": ["on"]}])],
        {"answers_without_a_last_output_text": ("1 (", {"accuracy_published": (0.75, 1.0)})},
    ),
    "lost outputs and foreign JSON, which change no figure": (
        [
            *map(good, "134"),
            good("2", [call("search", {"query": "gone"}, None)], tool_call_counts={"search": 1}),
            {"a": 1},
        ],
        {"tool_outputs_not_on_record": ("1 (", {}), "foreign_or_damaged_json": ("1 (", {})},
    ),
    "an empty answer that is called completed": (
        [*map(good, "123"), browsecomp("4", [search("q", ["12"]), said("")])],
        {"completed_without_an_answer": ("1 (", {})},
    ),
    # Question 1 lists no evidence, question 2 passages of it: 2 of 4 are retrieved as published.
    "retrieved ids that contradict the outputs and the corpus": (
        [
            good("1", retrieved_docids=["34"]),
            listed("2", ["12_3", "34_0"], ["12_3", "34_0"]),
            listed("3", ["12", "99"], None),
            good("4"),
        ],
        {
            "retrieved_docids_that_contradict_the_calls": ("", {"recall_published": (0.5, 1.0)}),
            "documents_that_the_corpus_lacks": ("2 (", {"recall_published": (0.5, 0.75)}),
        },
    ),
    # The evaluator reads 56, 12 and 3 in the first answer, of which 12 is right: a third, and a
    # half without 56. The other three answers cite what is right.
    "citations that were never shown": (
        [
            browsecomp("1", [search("q", ["12"]), answer("Ada", citing="[56] and [12_3]")]),
            *map(good, "234"),
        ],
        {"citations_never_shown": ("1 (", {"citation_precision_published": (0.8333, 0.875)})},
    ),
    "verdicts of different judges": (
        [*map(good, "1234"), verdict("Qwen/Qwen3-32B"), verdict("gpt-4.1")],
        {"verdicts_of_different_judges": ("Qwen/Qwen3-32B: 1, gpt-4.1: 1", {})},
    ),
    "counts that contradict the calls, without a benchmark": (
        [good("1"), good("2", tool_call_counts={"search": 9})],
        {"counts_that_contradict_the_calls": ("", {"search_calls_published": (5.0, 1.0)})},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_faults_are_listed_with_what_they_change(case, tmp_path, monkeypatch, capsys):
    files, expected = CASES[case]
    monkeypatch.chdir(tmp_path)
    plain = case.endswith("without a benchmark")
    world = folder(tmp_path / "world", corpus=CORPUS, queries=QUERIES, qrels=QRELS)
    benchmark = [] if plain else ["benchmark=beir", f"benchmark.path={world}"]
    code = run_entry("lint", str(write_files(tmp_path / "files", files)), *benchmark)
    output = capsys.readouterr()
    (hint,) = output.err.splitlines()
    assert hint.startswith("Next: soundingline lint" if plain else "Next: soundingline import")
    rows = [line.partition(": ") for line in output.out.splitlines()]
    lines = {name: text for name, _, text in rows if text}
    changed = {
        name: {n: (float(a), float(b)) for n, a, b in re.findall(r"(\w+) ([\d.]+) -> ([\d.]+)", s)}
        for name, s in lines.items()
    }
    assert code == any(changes or "by up to" in lines[name] for name, changes in changed.items())
    assert expected.keys() <= lines.keys() and (expected or not lines)
    for name, (text, changes) in expected.items():
        assert text in lines[name]
        assert changes.items() <= changed[name].items() and bool(changes) == bool(changed[name])
