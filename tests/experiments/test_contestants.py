"""PaSaMaster's experiments with a scripted model, small: who answers, and what each role costs."""

import json
from pathlib import Path

from experiment_samples import TINY

OPTIONS = Path(__file__).resolve().parent / "options"
MODEL = (
    f"hydra.searchpath=[file://{OPTIONS}]",
    *(f"{group}=scripted" for group in ("llm", "llm@librarian_llm", "llm@reranker_llm")),
    *(
        "benchmark=fictional",
        "benchmark.questions=sets:2",
        "retriever=bm25_default",
        "unit=document",
    ),
)


def test_with_a_model_every_contestant_has_the_same_money(entry):
    agents = "agent=one_shot,one_shot_pointwise,chat_list,navigator,closed_book_list"
    given = ("experiment=pasamaster/main", *TINY, *MODEL, "concurrency=1")
    assert entry("run", *given, agents, "scorer=chat", "budget.dollars=0.5") == 0
    sweep = Path("runs/pasamaster_main-fictional")
    manifests = {
        path.parent.name: json.loads(path.read_text()) for path in sweep.glob("*/manifest.json")
    }
    assert {cell["config"]["budget"]["dollars"] for cell in manifests.values()} == {0.5}
    rates = {
        cell["factors"]["agent"]: json.loads((sweep / name / "metrics.json").read_text())
        for name, cell in manifests.items()
    }
    assert len(rates) == 5
    assert rates["closed_book_list"]["hallucination_rate"] == 1.0
    assert rates["chat_list"]["hallucination_rate"] == 0.0
    assert rates["navigator"]["usage_librarian_calls"] > 0
    # One search is what the others are held against.
    rows = json.loads((sweep / "verdicts.json").read_text())
    assert {row["measure"] for row in rows} >= {"F1@20", "nDCG@20"}
    against = {manifests[row["b"]]["factors"]["agent"] for row in rows}
    assert against == {"one_shot"}


def test_the_report_has_the_cost_of_each_role(entry):
    given = ("experiment=pasamaster/librarians", *TINY, *MODEL, "agent=navigator", "scorer=chat")
    assert entry("run", *given, "agent.pool=4", "concurrency=1") == 0
    page = Path("runs/pasamaster_librarians-fictional/report.md").read_text()
    _, _, section = page.partition("## Cost by role")
    rows = [line for line in section.partition("\n## ")[0].splitlines() if line.startswith("| ")]
    assert [line.split("|")[2].strip() for line in rows[2:]] == ["navigator", "librarian", "all"]
