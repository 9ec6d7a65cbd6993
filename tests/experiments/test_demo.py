"""The demo, the recorded run of a small model, and the notice on the texts that both quote."""

import re
from pathlib import Path

import pytest
from support import demo_recorded
from support.benchmarks import TINY

from soundingline.experiments.config import CommandCells, Settings
from soundingline.toolkit.evaluation import load_run
from soundingline.toolkit.runs import RunFolder

NOTICE = Settings.compose(["benchmark=wikidemo"]).config.benchmark.notice


def test_the_demo_changes_one_part_of_default_bm25_at_a_time():
    cells = [" ".join(cell) for cell in CommandCells.of(["experiment=demo"]).added]
    assert cells == [
        "",
        "retriever=bm25_crossfit",
        "retriever=bm25_tuned",
        "unit=passage",
        "unit=maxp",
        "tool=top_k",
        "agent=rag_simulated",
        "retriever=oracle retriever@retriever.base=bm25_default tool=whole_documents",
    ]
    config = Settings.compose(["experiment=demo"]).config
    assert (config.retriever.k1, config.retriever.b) == (0.9, 0.4)  # Anserini's defaults
    tuned = Settings.compose(["experiment=demo", "retriever=bm25_tuned"]).config.retriever
    assert (tuned.k1, tuned.b) == (25.0, 1.0)  # Pi-Serini, arXiv 2605.10848
    assert config.llm is None and config.agent._target_.endswith(".KeywordAgent")
    assert config.comparison.primary == "accuracy"


@pytest.mark.slow
def test_the_table_of_the_demo_has_one_line_a_run(entry, capsys):
    few = ("benchmark.limit=8", "traces=false", "hydra.sweeper.changes=['agent=rag_simulated']")
    assert entry("run", "experiment=demo", *few) == 0
    table = capsys.readouterr().out
    head, first, second = re.search(
        r"^(run +.*)\n─+\n(baseline .*)\n(agent=rag_simulated .*)$", table, re.MULTILINE
    ).groups()
    assert head.split()[:4] == ["run", "accuracy", "nDCG@10", "exposed"]
    for line, name in ((first, "document-bm25_default-*"), (second, "rag_simulated-*")):
        (cell,) = Path("runs/demo").glob(name)
        measured = load_run(cell).metrics
        assert line.split()[1].strip("▲▼≈") == f"{measured['accuracy']:.3f}"
        assert f"{measured['tokens_exposed']:,.0f}" in line


@pytest.mark.slow
def test_what_quotes_the_texts_of_wikidemo_names_their_authors_and_licences(entry):
    assert "Wikipedia contributors (CC BY-SA 3.0)" in NOTICE and "(CC BY 4.0)" in NOTICE
    assert entry("run", "-m", "benchmark.limit=2", "name=s", "tool=top_k,ranked_browsing") == 0
    cells = [path.parent for path in Path("runs/s").glob("*/metrics.json")]
    pages = [page for cell in cells for page in cell.glob("traces/*.html")]
    assert len(cells) == 2 and len(pages) == 6
    for page in (*pages, Path("runs/s/report.html")):
        assert f'<p class="note">{NOTICE}</p>' in page.read_text(encoding="utf-8"), page
    text = Path("runs/s/report.md").read_text(encoding="utf-8").replace("\\", "")
    assert text.endswith(f"\n{NOTICE}\n")
    for cell in cells:
        assert RunFolder(cell).manifest()["benchmark"]["arguments"]["notice"] == NOTICE

    assert entry("run", "-m", *TINY, "name=t", "tool=top_k,ranked_browsing") == 0
    assert "CC BY" not in Path("runs/t/report.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_recorded_run_of_a_small_model_is_shown_without_a_model(entry, tmp_path, capsys):
    assert demo_recorded.ARCHIVE.stat().st_size < 300_000
    files = dict(demo_recorded.recorded_files())
    assert NOTICE in files["NOTICE.txt"].decode()
    for name, content in files.items():
        folders = b"|".join((b"home", b"root", b"work", b"tmp"))  # of a machine, at the top
        assert not re.search(rb'"[^"\n]*/(' + folders + rb")/", content), name
    demo_recorded.show(tmp_path / "shown")
    out = " ".join(capsys.readouterr().out.split())
    report = (tmp_path / "shown" / "report.md").read_text(encoding="utf-8").replace("\\", "")
    for text in (out, report):
        assert "make demo-agent GGUF=FILE with Qwen2.5-Coder-0.5B-Instruct (Q4_K_M)" in text
    assert NOTICE in report
    cells = sorted(path.parent for path in (tmp_path / "shown").glob("*/metrics.json"))
    agents = [load_run(cell).factors["agent"] for cell in cells]
    assert sorted(agents) == ["closed_book", "neutral", "rag"]
    for cell in cells:
        pages = list(cell.glob("traces/*.html"))
        trajectories = list(RunFolder(cell).trajectories())
        assert len(pages) == len(trajectories) + 1 == 21
        assert all(f">{NOTICE}</p>" in page.read_text(encoding="utf-8") for page in pages)
        assert all(each.usage["input_tokens"] > 0 for each in trajectories)
