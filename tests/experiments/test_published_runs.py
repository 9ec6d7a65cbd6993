"""The authors' released runs, as files in their formats: their tables are recomputed from them and
compared with the papers', their queries are sent to another pipeline, and nothing is readable."""

import json
from pathlib import Path

import pytest
from support.benchmarks import (
    ANSWERS,
    CANARY,
    EVIDENCE,
    QUESTIONS,
    leaks,
    obfuscated,
    write_beir,
    write_benchmark,
    write_jsonl,
)
from support.runs import answer, browsecomp, call, search, write_files

from soundingline.toolkit.evaluation.published_tables import read_published
from soundingline.toolkit.runs import RunFolder

PI_CANARY, STUDY_CANARY = "the-canary-of-pi-serini", "the-canary-of-the-study"
PI_SERINI = (  # of the eight data sets in the README of justram/pi-serini at bbab25d
    *("deepseekv4_flash", "deepseekv4_pro", "gpt5", "gpt52", "gpt54", "gpt55", "opus47", "haiku"),
)


@pytest.fixture
def canaries(monkeypatch):
    monkeypatch.setenv("SOUNDINGLINE_CANARY", CANARY)
    monkeypatch.setenv("PI_SERINI_CANARY", PI_CANARY)
    monkeypatch.setenv("TEXT_RANKING_CANARY", STUDY_CANARY)


def released(row, canary, *, arguments=True):
    """A run file as it is published: outputs and, in two of three releases, arguments obfuscated.
    The study obfuscates an output that is a list as its JSON, BrowseComp-Plus each of its texts."""

    def turned(item):
        output = item["output"]
        if isinstance(output, list) and not arguments:
            output = [{**part, "text": obfuscated(part["text"], canary)} for part in output]
        else:
            text = output if isinstance(output, str) else json.dumps(output)
            output = obfuscated(text, canary)
        written = item["arguments"]
        if arguments and written is not None:
            written = obfuscated(written, canary)
        return {**item, "arguments": written, "output": output}

    return {**row, "result": [turned(item) for item in row["result"]]}


def page(docids):
    hits = (f"{n}. docid={d} score=2.0000\n   an excerpt" for n, d in enumerate(docids, start=1))
    return "[ranks 1-5 of 1000 for s1]\n" + "\n".join(hits)


def pi_serini(qid, model, found, right):
    """A row of a data set: what the viewer of ricky42613/piserini_bcp_haiku shows as columns."""
    arguments = json.dumps({"reason": "begin", "query": QUESTIONS[qid]})
    text = answer(ANSWERS[qid] if right else "another", citing=f"[{found[0]}]")
    return {
        "model": model,
        "query_id": qid,
        "tool_call_counts": {"search": 1},
        "status": "completed",
        "completion_source": "assistant_text",
        "surfaced_docids": found,
        "previewed_docids": found,
        "agent_docids": found[:1],
        "opened_docids": [],
        "cited_docids": found[:1],
        "stats": {"elapsed_seconds": 173.3, "assistant_turns": 2, "tool_calls_total": 1},
        "result": [call("search", arguments, page(found)), text],
    }


def metrics(run):
    return json.loads((Path(run) / "metrics.json").read_text(encoding="utf-8"))


def printed_lines(capsys):
    printed = capsys.readouterr()
    return [" ".join(line.split()) for line in printed.out.splitlines()], printed.err


def test_the_main_table_of_pi_serini_is_recomputed_from_the_released_runs(
    entry, capsys, canaries, monkeypatch, tmp_path
):
    monkeypatch.setenv("COLUMNS", "160")
    chosen = write_benchmark(tmp_path / "benchmark")
    qids = list(QUESTIONS)
    for name in PI_SERINI[:-1]:  # the eighth was not downloaded
        rows = [  # the first question finds all of its evidence, the others one document each
            pi_serini(qid, name, EVIDENCE[qid][: None if qid == qids[0] else 1], qid != qids[-1])
            for qid in qids
        ]
        folder = tmp_path / "released" / f"piserini_bcp_{name}"
        write_jsonl(folder / "runs.jsonl", [released(row, PI_CANARY) for row in rows])
    experiment = ("experiment=pi_serini/published_runs", *chosen)
    words = (*experiment, "released", "format=pi_serini", "name=pi")
    assert entry("import", *words) == 2
    assert "the canary does not decrypt" in capsys.readouterr().err
    words += ("canary_env=PI_SERINI_CANARY",)
    assert entry("import", *words) == 0
    lines, told = printed_lines(capsys)
    assert "released has no piserini_bcp_haiku\n" in told
    assert "arXiv 2605.10848, main table and Figure 1" in " ".join(lines)
    models = {path.name for path in Path("runs/pi").iterdir()}
    assert models == {row["llm"] for row in read_published("pi_serini/main").released.values()} - {
        "claude-haiku-4.5"
    }
    recalls = [1.0, *(1 / len(EVIDENCE[qid]) for qid in qids[1:])]
    for model in models:
        found = metrics(f"runs/pi/{model}")
        assert found["recall_surfaced"] == found["recall_published"]
        assert found["recall_surfaced"] == pytest.approx(sum(recalls) / len(qids), abs=1e-12)
        assert found["accuracy"] == (len(qids) - 1) / len(qids)
        assert found["tool_calls"] == 1
    manifest = json.loads(Path("runs/pi/gpt-5.5/manifest.json").read_text())
    assert manifest["imported"]["model"] == "gpt55"  # as the files name it
    ours = f"{metrics('runs/pi/gpt-5.5')['accuracy']:.3f}"
    (row,) = (line for line in lines if line.startswith("gpt-5.5 accuracy"))
    assert row.split()[2:4] == ["0.831", ours] and row.endswith("differs")
    assert lines[-1] == "0 of 5 published values are those of the released runs."
    assert any("the judge is the exact rule, the paper's is gpt-5.3-codex" in one for one in lines)
    assert not any("vLLM" in line for line in lines)
    for row in RunFolder(Path("runs/pi/gpt-5.5")).trajectories():
        assert row.calls[0].arguments == {"reason": "begin", "query": QUESTIONS[row.qid]}
    # Their queries are sent to another pipeline, which finds what it finds.
    assert entry("replay", "runs/pi/gpt-5.5", *chosen, "retriever=bm25_default") == 0
    assert "recall" in capsys.readouterr().out
    assert not list(leaks(Path("runs")))
    assert entry("import", *experiment, "runs", "format=pi_serini", "name=pi") == 2
    assert "runs has no released run of pi_serini/main" in capsys.readouterr().err


def test_runs_of_the_study_are_the_cells_of_a_table(entry, capsys, canaries, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "160")
    chosen = write_benchmark(tmp_path / "benchmark")
    names = {
        "bm25-k1-0.9-b-0.4-k5.passage": "bm25_default-none",
        "splade-v3-d50-rank1-7b-k5.passage": "splade-rank1-50",
    }
    for name in names:
        rows = []
        for qid in QUESTIONS:
            passages = [f"browsecomp_plus_{docid}_1" for docid in EVIDENCE[qid]]
            result = [search(QUESTIONS[qid], passages), answer(ANSWERS[qid])]
            # psg2doc.py of the authors turns passages into documents here, and here alone.
            changed = {"retrieved_docids": EVIDENCE[qid], "tool_call_counts": {"search": 3}}
            rows.append(released(browsecomp(qid, result, **changed), STUDY_CANARY))
        write_files(tmp_path / "encrypted_runs/gpt-oss-20b-high" / f"queries-all.{name}", rows)
    words = (
        "experiment=text_ranking/published_runs",
        "comparison.published=text_ranking/table8",
        "name=t8",
    )
    words += (*chosen, "encrypted_runs", "format=browsecomp_plus")
    assert entry("import", *words, "canary_env=TEXT_RANKING_CANARY") == 0
    lines, _ = printed_lines(capsys)
    assert {path.name for path in Path("runs/t8").iterdir()} == {*names.values()}
    for cell in names.values():
        found = metrics(f"runs/t8/{cell}")
        assert found["recall_published"] == found["accuracy_published"] == 1.0
        assert found["recall_previewed"] == 1.0 and found["search_calls_published"] == 3.0
    rows = [line for line in lines if line.startswith("recall_published")]
    assert [row.split()[1:4] for row in rows] == [
        ["0.616", "1.000", "+0.384"],  # of the table's rows, those of the two runs
        ["0.702", "1.000", "+0.298"],
    ]
    assert not list(leaks(Path("runs")))


def judged(row, right, confidence, model="Qwen/Qwen3-32B"):
    """What scripts_evaluation/evaluate_run.py of BrowseComp-Plus writes for a run file."""
    result = {"extracted_final_answer": "x", "reasoning": "y", "parse_error": right is None}
    return {
        "json_path": "x",
        "query_id": row["query_id"],
        "response": row["result"][-1]["output"],
        "judge_result": {**result, "correct": right, "confidence": confidence},
        "model_info": {"judge_model": model, "max_output_tokens": 4096},
    }


def test_a_table_is_recomputed_to_the_last_digit_of_the_authors_evaluator(
    entry, capsys, canaries, monkeypatch, tmp_path
):
    """230 questions with two evidence documents each, judged by a model whose verdicts and
    confidences are in the folder. By hand, as evaluate_run.py computes them:

    - Accuracy: the 20 + 60 of the correct verdicts over 230 files.
    - Recall: half of the evidence for 150 questions, all for 80.
    - Calibration: of 227 readable verdicts, the first bin is the 100 least confident ones, and the
      second one, the last, is left out: 20 of the first 100 are right at a confidence of 30 %.
    """
    monkeypatch.setenv("COLUMNS", "160")
    qids = [f"q{number:03}" for number in range(230)]
    docids = {qid: [f"{qid}a", f"{qid}b"] for qid in qids}
    path = write_beir(
        tmp_path / "collection",
        corpus="".join(
            json.dumps({"_id": docid, "title": "", "text": f"text of {docid}"}) + "\n"
            for pair in docids.values()
            for docid in pair
        ),
        queries="".join(json.dumps({"_id": qid, "text": f"What is {qid}?"}) + "\n" for qid in qids),
        qrels="query-id\tcorpus-id\tscore\n"
        + "".join(f"{qid}\t{docid}\t1\n" for qid in qids for docid in docids[qid]),
    )
    answers = "".join(json.dumps({"qid": qid, "answers": ["x"]}) + "\n" for qid in qids)
    (tmp_path / "answers.jsonl").write_text(answers)
    rows = []
    for number, qid in enumerate(qids):
        found = docids[qid][: 1 if number < 150 else 2]
        thoughts = [{"type": "summary_text", "text": "One search may be enough for this question."}]
        thought = {"type": "reasoning", "tool_name": None, "arguments": None, "output": thoughts}
        result = [thought, search("text", found), answer("something else", confidence="99%")]
        row = browsecomp(qid, result, metadata={"model": "openai/gpt-5"})
        rows.append(released(row, CANARY, arguments=False))
    folder = tmp_path / "released" / "bm25"
    write_jsonl(folder / "gpt5.jsonl" / "run.jsonl", rows)
    for number, row in enumerate(rows):
        first = number < 100
        right = number < 20 if first else number < 160
        verdict = judged(row, None if number > 226 else right, 30.0 if first else 90.0)
        (folder / "gpt5.jsonl" / f"{row['query_id']}_eval.json").write_text(json.dumps(verdict))
    words = (
        "experiment=browsecomp_plus/published_runs",
        "benchmark=beir",
        f"benchmark.path={path}",
    )
    words += ("benchmark.answers=answers.jsonl", "released", "format=browsecomp_plus", "name=b")
    assert entry("import", *words) == 0
    found = metrics("runs/b/gpt-5-bm25_default")
    assert found["accuracy_published"] == 80 / 230
    assert found["recall_published"] == pytest.approx((150 * 0.5 + 80) / 230, abs=1e-12)
    assert found["search_calls_published"] == 1.0
    assert found["calibration_error_published"] == pytest.approx(
        100 * (100 / 227 * (0.3 - 0.2) ** 2) ** 0.5, abs=1e-12
    )
    (first, *_) = RunFolder(Path("runs/b/gpt-5-bm25_default")).trajectories()
    assert first.messages[1]["reasoning"].startswith("One search may")
    lines, told = printed_lines(capsys)
    assert "with 230 verdicts of Qwen/Qwen3-32B" in told
    assert any("the judge is Qwen/Qwen3-32B, the paper's is gpt-4.1" in line for line in lines)
    kept = "".join(file.read_text("utf-8") for file in Path("runs/b").rglob("verdicts-*"))
    assert "something else" not in kept
    assert not any(line.startswith("Not run") for line in lines)
    # Evaluated again, the imported verdicts still count.
    assert entry("evaluate", "runs/b/gpt-5-bm25_default") == 0
    assert metrics("runs/b/gpt-5-bm25_default")["accuracy_published"] == 80 / 230
