"""Whole runs on a sealed benchmark: nothing of its texts on disk, and everything readable again."""

import json
import shutil
from pathlib import Path

import pytest
from support.benchmarks import (
    ANSWERS,
    CANARY,
    QUESTIONS,
    SENTENCES,
    VARIABLE,
    leaks,
    write_benchmark,
)
from support.checkpoints import write_tokenizer

from soundingline.toolkit import tokens
from soundingline.toolkit.evaluation.judge import verdicts_in
from soundingline.toolkit.obfuscation import read_text
from soundingline.toolkit.runs import RunFolder, make_manifest

OPTIONS = Path(__file__).resolve().parent / "options"
SCRIPTED = (
    f"hydra.searchpath=[file://{OPTIONS}]",
    "agent=pi_serini",
    "llm=scripted",
    "rewriter=q2q",
    "llm@rewriter_llm=scripted",
    "judge=llm",
    "llm@judge_llm=scripted",
)


@pytest.fixture
def benchmark(entry, tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, CANARY)
    return write_benchmark(tmp_path / "published")


def one_line(capsys):
    (line,) = [each for each in capsys.readouterr().err.splitlines() if "soundingline: " in each]
    return line


def test_no_text_of_a_sealed_benchmark_is_on_disk(entry, benchmark, monkeypatch):
    assert entry("run", *benchmark, "name=rules", "tool=top_k", "unit=passage") == 0
    assert entry("run", *benchmark, *SCRIPTED, "name=chat") == 0
    assert entry("rank", *benchmark, "name=ranked") == 0
    assert entry("compare", "runs/rules", "runs/chat", "name=both") == 0
    assert not list(leaks("runs", "caches"))
    # What was to be hidden is there, and is read back.
    for name in ("rules", "chat"):
        recorded = {t.qid: t for t in RunFolder(f"runs/{name}").trajectories()}
        assert {qid: t.question for qid, t in recorded.items()} == QUESTIONS
        shown = " ".join(call.output for t in recorded.values() for call in t.calls)
        assert any(sentence in shown for sentence in SENTENCES)
    (verdicts,) = Path("runs/chat/evaluation").glob("verdicts-llm-*.jsonl")
    assert set(verdicts_in(verdicts)) == set(QUESTIONS)
    assert ANSWERS["11"] in read_text(Path("runs/rules/evaluation/verdicts.json"))
    assert list(Path("caches/sealed").glob("*.sqlite")) and not list(Path("caches").glob("*.sql*"))


def test_a_sealed_run_is_resumed_evaluated_and_compared_with_the_canary(entry, benchmark, capsys):
    cells = (*benchmark, "name=s", "retriever=bm25_default,bm25_tuned")
    assert entry("run", "-m", *cells) == 0
    cell = next(Path("runs/s").glob("*/metrics.json")).parent
    before = (cell / "metrics.json").read_text()
    removed = next((cell / "queries").glob("*.json"))
    removed.unlink()
    assert entry("run", "-m", *cells) == 0
    assert removed.exists()
    assert entry("evaluate", str(cell)) == 0
    assert json.loads((cell / "metrics.json").read_text()).keys() == json.loads(before).keys()
    moved = shutil.copytree(cell, "elsewhere")
    assert entry("evaluate", str(moved)) == 0
    assert entry("judge", str(moved)) == 2  # one judge alone has judged it
    assert "only exact_answer has judged" in capsys.readouterr().err
    assert not list(leaks("runs", "elsewhere"))


@pytest.mark.parametrize("value", ["", "another canary"])
def test_without_the_canary_every_command_ends_in_one_line(
    entry,
    benchmark,
    monkeypatch,
    capsys,
    value,
):
    assert entry("run", *benchmark, "name=s") == 0
    capsys.readouterr()
    monkeypatch.setenv(VARIABLE, value)
    for command in (("run", *benchmark, "name=s"), ("evaluate", "runs/s")):
        assert entry(*command) == 2
        line = one_line(capsys)
        assert VARIABLE in line and CANARY not in line and "another" not in line
    assert entry("run", *benchmark, "name=new") == 2
    assert not Path("runs/new").exists()


def test_numbers_of_a_sealed_run_need_no_canary(entry, benchmark, monkeypatch):
    assert entry("run", *benchmark, "name=a") == 0
    assert entry("run", *benchmark, "name=b", "retriever=bm25_tuned") == 0
    monkeypatch.delenv(VARIABLE)
    assert entry("compare", "runs/a", "runs/b", "name=both") == 0
    assert Path("runs/both/report.html").exists()


def test_sealed_false_leaves_texts_as_they_are_and_is_another_run(entry, benchmark, capsys):
    assert entry("run", *benchmark, "name=s", "sealed=false") == 0
    assert {text for _, text in leaks("runs")} >= {*QUESTIONS.values(), *ANSWERS.values()}
    capsys.readouterr()
    assert entry("run", *benchmark, "name=s") == 2
    assert "another sealed (was no, now yes)" in one_line(capsys)


def test_indexes_are_in_the_clear_and_say_so(entry, benchmark):
    assert entry("index", *benchmark) == 0
    folder = Path("indexes/browsecomp_plus")
    assert "Do not publish" in (folder / "NOT-SEALED.txt").read_text()
    assert (folder / ".gitignore").read_text() == "*\n"


def test_a_failed_cell_is_told_on_the_terminal_and_quotes_nothing_on_disk(
    entry, benchmark, capsys, tmp_path
):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "failing_judge.py").write_text(
        "from soundingline.toolkit.evaluation import ExactAnswerJudge\n"
        "class FailingJudge(ExactAnswerJudge):\n"
        "    def verdict(self, qid, answer, accepted):\n"
        "        raise RuntimeError('cannot judge ' + accepted[0])\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(tmp_path / "own"))
        target = "judge._target_=failing_judge.FailingJudge"
        code = entry("run", "-m", *benchmark, "name=s", target, "retriever=bm25_default,ql")
    assert code == 1
    assert ANSWERS["11"] in capsys.readouterr().err
    assert not list(leaks("runs"))


def test_the_manifest_names_the_tokenizer_and_another_one_is_another_run(
    entry,
    benchmark,
    tmp_path,
    capsys,
):
    path = write_tokenizer(tmp_path / "tiny.json")
    command = ("run", *benchmark, "name=t", "tool=top_k", f"tool.tokenizer={path}")
    assert entry(*command) == 0
    manifest = json.loads(Path("runs/t/manifest.json").read_text())
    assert manifest["config"]["tool"]["tokenizer"] == str(path)
    assert manifest["fingerprints"]["tool.tokenizer"].startswith("tiny.json@")
    capsys.readouterr()
    path.write_text(path.read_text() + "\n")
    tokens._loaded.cache_clear()
    assert entry(*command) == 2
    assert "another tool.tokenizer" in one_line(capsys)
    assert entry("run", *benchmark, "name=u", "tool=top_k", "tool.tokenizer=nowhere.json") == 2
    assert "no tokenizer at nowhere.json" in one_line(capsys)
    assert not Path("runs/u").exists()


def test_phrases_of_a_sealed_corpus_are_sealed(entry, benchmark):
    phrases = json.dumps({"keywords": [SENTENCES[0].rstrip(".")]})
    model = ("llm@enrichment_llm=scripted", f"enrichment_llm.says='{phrases}'")
    enrichment = (SCRIPTED[0], *model, "enrichment=sira", "enrichment.sides=corpus")
    assert entry("enrich", *benchmark, *enrichment) == 0
    assert list(Path("caches/sealed").glob("*.sqlite"))
    assert not list(leaks("caches"))  # the run's manifest has what the test tells its model


def test_any_run_that_says_so_in_its_fingerprints_is_sealed():
    assert make_manifest({}, {"sealed": "yes"})["sealed"] is True
    assert "sealed" not in make_manifest({}, {"sealed": "no"})
