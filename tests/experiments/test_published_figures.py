"""`soundingline compare --published`: our figures next to a paper's."""

import json
from contextlib import closing

import pytest
from experiment_samples import TINY

from soundingline.toolkit.evaluation.evaluation import Evaluation, write_evaluation
from soundingline.toolkit.files import JsonLinesLog
from soundingline.toolkit.runs.manifest import make_manifest
from soundingline.toolkit.runs.run_folder import RunFolder
from soundingline.toolkit.trajectory import Answer, Trajectory

PUBLISHED = {
    "source": "a paper, Table 1",
    "questions": 8,
    "benchmark": "collection",
    "judge": "judge-model",
    "vllm": "0.15",
    "columns": ["llm", "reranker", "tool.depth", "accuracy", "run_dollars"],
    "rows": [
        ["vllm/one", "none", None, 0.5, 9.0],
        ["vllm/one", "monot5", 10, 0.99, None],
        ["vllm/two", "none", None, 0.7, None],
    ],
    "other_systems": [{"system": "another", "accuracy": 0.4}],
}


def cell(folder, *, right, questions=8, published=PUBLISHED, judge="judge-model", **changed):
    """A run of a sweep in which the first `right` answers are correct and each cost 1.1 dollars."""
    factors = {"llm": "vllm-one", "reranker": "none", "tool": "pages"} | changed
    run = RunFolder(folder / "-".join(factors.values()))
    config = {"published": published, "tool": {"depth": 10}}
    manifest = make_manifest(config, {"benchmark": "b"}, factors, {"option": "collection"})
    manifest["versions"]["vllm"] = "0.15.1"
    qids = [str(number) for number in range(questions)]
    with run.writing(manifest):
        for qid in qids:
            run.write(Trajectory(qid, "?", "completed", answer=Answer(exact="x", confidence=1.0)))
    per_question = {
        "accuracy": {qid: float(place < right) for place, qid in enumerate(qids)},
        "usage_dollars": {qid: 1.1 + 0.1 * (-1) ** place for place, qid in enumerate(qids)},
    }
    counts = {"questions": questions, "recorded": questions, "failed": 0}
    evaluation = Evaluation(counts=counts).with_values(per_question)
    write_evaluation(run.path, evaluation, state=run.state())
    verdict = {"judge": "llm", "settings": "f"}
    (run.path / "evaluation" / "verdicts.json").write_text(json.dumps([verdict]))
    path = run.path / "evaluation" / "verdicts-llm-f.jsonl"
    with closing(JsonLinesLog(path, head={"model": judge})) as log:
        log.append({"qid": "0"})
    return run.path


@pytest.fixture
def printed(entry, capsys, monkeypatch):
    """What the command prints about the sweep `runs/s`, as lines without runs of spaces."""
    monkeypatch.setenv("COLUMNS", "140")

    def compare(form="--published"):
        assert entry("compare", form, "runs/s") == 0
        return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]

    return compare


@pytest.mark.parametrize("form", ["--published", "published=true"])
def test_cells_are_matched_with_rows_by_their_factors(printed, tmp_path, form):
    cell(tmp_path / "runs" / "s", right=4)
    cell(tmp_path / "runs" / "s", right=4, reranker="monot5")
    lines = printed(form)
    # Wilson's interval of 4 in 8; a sum of 8 times 1.1 dollars.
    assert "none accuracy 0.500 0.500 [0.215, 0.785] within" in lines
    assert any("run_dollars 9.00 8.80 [" in line and line.endswith("within") for line in lines)
    assert "monot5 accuracy 0.990 0.500 [0.215, 0.785] outside" in lines
    assert "Not run: llm=vllm/two, reranker=none" in lines
    assert "Also published: system another, accuracy 0.4" in lines
    assert lines[-1] == (
        "2 of 3 published values are within our 95 % intervals: these are reproduced."
    )


def test_a_depth_of_a_row_is_compared_with_the_value_in_the_configuration(printed, tmp_path):
    cell(tmp_path / "runs" / "s", right=4, **{"reranker": "monot5", "tool.depth": "20"})
    assert "outside" not in " ".join(printed())


@pytest.mark.parametrize(
    ("changed", "cause"),
    [
        ({"questions": 7}, "7 questions were run, the paper has 8"),
        ({"judge": "other@0a1b"}, "the judge is other, the paper's is judge-model"),
        ({"published": PUBLISHED | {"vllm": "0.9"}}, "vLLM is 0.15.1, the paper ran 0.9"),
        (
            {"published": PUBLISHED | {"benchmark": "other"}},
            "the benchmark is collection, the paper's is other",
        ),
    ],
)
def test_known_causes_are_named_and_nothing_is_called_reproduced(printed, tmp_path, changed, cause):
    cell(tmp_path / "runs" / "s", right=4, **changed)
    lines = printed()
    assert f"Known cause of differences: {cause}" in lines
    assert "reproduced" not in " ".join(lines)


def test_a_laptop_sweep_of_a_paper_s_experiment(entry, capsys):
    sweep = ("experiment=text_ranking/table2", "scale=laptop", *TINY)
    assert entry("run", *sweep) == 0
    capsys.readouterr()
    assert entry("compare", "--published", "runs/text_ranking_table2-fictional") == 0
    text = capsys.readouterr().out
    assert "arXiv 2602.21456, Table 2" in text
    assert "Known cause of differences: a laptop run" in text
    assert "the judge is the exact rule, the paper's is Qwen/Qwen3-32B" in text
    assert "no evidence on the paper's result, which needs its 830 questions" in text


def test_runs_without_published_figures_are_refused(entry, capsys, tmp_path):
    cell(tmp_path / "runs" / "s", right=4, published=None)
    assert entry("compare", "--published", "runs/s") == 2
    assert "has no published figures" in capsys.readouterr().err
    assert entry("compare", "--published", "runs/absent") == 2
    assert "has no evaluated run" in capsys.readouterr().err
