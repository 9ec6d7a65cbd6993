"""The threats to validity: each kind with a seeded fault and with near misses of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from soundingline.toolkit.errors import InputError
from soundingline.toolkit.evaluation import EvaluatedRun
from soundingline.toolkit.evaluation.threats import THREATS, ComposedCell, find_threats

BM25 = {"_target_": "soundingline.pipelines.retrieve.BM25", "k1": 0.9, "b": 0.4}
DENSE = {"_target_": "soundingline.pipelines.learned.dense.dense_retriever", "model": "e5"}
MONOT5 = {"_target_": "soundingline.pipelines.rerank.monot5.MonoT5", "model": "monot5"}
FUSED = {
    "_target_": "soundingline.pipelines.fusion.interpolation",
    "first": BM25,
    "second": {**BM25, "k1": 3.8},
}
BROWSING = {"_target_": "soundingline.toolkit.search.RankedBrowsing"}
TOP_K = {"_target_": "soundingline.toolkit.search.TopK"}
LOCAL = {
    "_target_": "soundingline.toolkit.llm.openai.OpenAIChat",
    "model": "openai/gpt-oss-20b",
    "base_url": "http://127.0.0.1:8000/v1",
    "settings": {"temperature": 1.0},
}
API = {**LOCAL, "model": "gpt-5.5", "base_url": None}
# A sound cell: another judge, three repeats, a budget in turns, a composed prompt.
SOUND: Mapping[str, Any] = {
    "benchmark": {"_target_": "soundingline.toolkit.benchmarks.BrowseCompPlus", "limit": None},
    "unit": {"_target_": "soundingline.toolkit.corpus.Documents"},
    "retriever": BM25,
    "reranker": {"_target_": "soundingline.pipelines.rerank.none"},
    "tool": BROWSING,
    "agent": {"prompt": "neutral", "queries": "neutral"},
    "llm": LOCAL,
    "judge": {"_target_": "soundingline.toolkit.evaluation.judge.LlmJudge"},
    "judge_llm": {**LOCAL, "model": "Qwen/Qwen3-32B"},
    "budget": {"turns": 50, "seconds": None, "clock": "wall"},
    "repeats": 3,
}
SECONDS = {"turns": None, "seconds": 300, "clock": "wall"}
PI_SERINI = {"prompt": "pi_serini", "queries": "neutral"}


def cell(label: str = "a", **changes: Any) -> ComposedCell:
    """A sound cell with some groups replaced; `run`, `questions` and the like are the cell's."""
    own = {k: changes.pop(k) for k in ("run", "questions", "tuned_on_reported") if k in changes}
    return ComposedCell(label, {**SOUND, **changes}, sampling=True, **own)


def run(
    *,
    metrics: Mapping[str, float] | None = None,
    accuracy: Sequence[float] = (),
    judge: str = "Qwen/Qwen3-32B",
    **manifest: Any,
) -> EvaluatedRun:
    """A run with these metrics, a question's accuracy each, and parts of a manifest."""
    values = {f"q{number}": value for number, value in enumerate(accuracy)}
    return EvaluatedRun(
        name="run",
        metrics=metrics or {},
        per_question={"accuracy": values},
        judge=judge,
        manifest=manifest,
    )


def ran(label: str = "a", *, of: Mapping[str, Any] | None = None, **facts: Any) -> ComposedCell:
    return cell(label, run=run(**facts), **(of or {}))


def fast_and_slow(first: float, second: float) -> list[ComposedCell]:
    """Cells with a budget of the wall clock, ten calls a question, and these seconds a call."""
    rates = {"a": first, "b": second}
    return [
        ran(label, of={"budget": SECONDS}, metrics={"seconds": 10 * rate, "tool_calls": 10})
        for label, rate in rates.items()
    ]


BASE = cell("base")
FACTORIAL = [
    cell(f"{one}{two}", retriever=retriever, reranker=reranker)
    for one, retriever in {"b": BM25, "d": DENSE}.items()
    for two, reranker in {"n": SOUND["reranker"], "m": MONOT5}.items()
]
# 100 questions, of which 40 change between the cells and cancel out, and 2.
NOISY = ([1.0] * 20 + [0.0] * 80, [0.0] * 20 + [1.0] * 20 + [0.0] * 60)
STEADY = ([1.0] * 20 + [0.0] * 80, [0.0] + [1.0] * 20 + [0.0] * 79)

SEEDED: dict[str, dict[str, list[ComposedCell]]] = {
    "prompt": {
        "a paper's rule on words for a dense retriever": [
            cell(agent=PI_SERINI),
            cell("b", agent=PI_SERINI, retriever=DENSE),
        ],
        "queries by words for a dense retriever": [
            cell(agent={"prompt": "neutral", "queries": "words"}, retriever=DENSE)
        ],
        "queries by words for BM25 with a dense retriever": [
            cell(
                agent={"prompt": "neutral", "queries": "words"},
                retriever={**FUSED, "second": DENSE},
            )
        ],
        "queries by meaning for BM25": [cell(agent={"prompt": "neutral", "queries": "meaning"})],
        "a paper's prompt with two tools": [
            cell(agent=PI_SERINI),
            cell("b", agent=PI_SERINI, tool=TOP_K),
        ],
    },
    "several_changes": {
        "a retriever and a re-ranker at once": [BASE, cell("b", retriever=DENSE, reranker=MONOT5)]
    },
    "wall_clock": {
        "a re-ranker in one cell": [
            cell(budget=SECONDS),
            cell("b", budget=SECONDS, reranker=MONOT5),
        ],
        "a call that takes twice as long": fast_and_slow(1.0, 2.0),
    },
    "tuned_on_reported": {"parameters of the test questions": [cell(tuned_on_reported=True)]},
    "judge_is_agent": {"one model for both": [cell(judge_llm=LOCAL)]},
    "one_repeat": {"a temperature of 1": [cell(repeats=1)]},
    "cached_samples": {
        "samples of another run": [ran(stages={"rewriter": {"samples_of_other_runs": 3}})]
    },
    "power": {
        "50 questions": [cell(questions=50), cell("b", questions=50)],
        "two questions": [cell(questions=2), cell("b", questions=2)],
        "50 questions of which one cell was run": [
            cell(questions=50, run=run(accuracy=STEADY[0][:50])),
            cell("b", questions=50),
        ],
        "answers that change much": [
            cell("a", questions=100, run=run(accuracy=NOISY[0])),
            cell("b", questions=100, run=run(accuracy=NOISY[1])),
        ],
    },
    "unequal_judging": {
        "two judges": [cell(), cell("b", judge_llm={**LOCAL, "model": "another"})],
        "two judges in the runs": [ran(), ran("b", judge="another")],
        "other questions": [cell(), cell("b", benchmark={**SOUND["benchmark"], "limit": 10})],
        "a question less": [ran(accuracy=[1, 1]), ran("b", accuracy=[1])],
    },
    "model_drift": {
        "an alias": [cell(llm=API)],
        "two versions of a server": [
            ran(servers={"llm": "0.11.0"}),
            ran("b", servers={"llm": "0.11.1"}),
        ],
        "a dated model of a provider, three days apart": [
            ran(
                of={"llm": {**API, "model": "gpt-5-2025-08-07"}},
                created="2026-11-20T10:00:00+00:00",
            ),
            ran(
                "b",
                of={"llm": {**API, "model": "gpt-5-2025-08-07"}},
                created="2026-11-23T10:00:00+00:00",
            ),
        ],
    },
    "unequal_completion": {
        "a tenth of the questions": [
            ran(metrics={"completion": 0.9, "accuracy": 0.4}),
            ran("b", metrics={"completion": 1.0}),
        ]
    },
    "unjudged": {
        "a tenth of the documents": [
            ran(metrics={"Judged@10": 0.8}),
            ran("b", metrics={"Judged@10": 0.9}),
        ]
    },
}
NEAR_MISSES: dict[str, dict[str, list[ComposedCell]]] = {
    "prompt": {
        "a paper's prompt with its own retriever and tool": [cell(agent=PI_SERINI)],
        "words for BM25": [cell(agent={"prompt": "neutral", "queries": "words"})],
        "words for BM25 twice": [
            cell(agent={"prompt": "neutral", "queries": "words"}, retriever=FUSED)
        ],
        "what fits each retriever": [
            cell(agent={"prompt": "neutral", "queries": "matched"}),
            cell("b", agent={"prompt": "neutral", "queries": "matched"}, retriever=DENSE),
        ],
        "a composed prompt with two tools": [cell(), cell("b", tool=TOP_K)],
    },
    "several_changes": {
        "a complete factorial": FACTORIAL,
        "one change each": [BASE, cell("b", retriever=DENSE), cell("c", reranker=MONOT5)],
        "a re-ranker with its language model": [
            BASE,
            cell("b", reranker=MONOT5, reranker_llm={"model": "m"}),
        ],
        "parameters that a tuning chose for each unit": [
            cell(retriever={**BM25, "source": "runs/tuning"}),
            cell(
                "b",
                unit={"_target_": "Passages"},
                retriever={**BM25, "k1": 3, "source": "runs/tuning"},
            ),
        ],
    },
    "wall_clock": {
        "cells of equal latency": [
            cell(budget=SECONDS),
            cell("b", budget=SECONDS, retriever={**BM25, "k1": 25.0}),
        ],
        "calls that take nearly as long": fast_and_slow(1.0, 1.1),
        "a virtual clock": [
            cell(budget={**SECONDS, "clock": "virtual"}),
            cell("b", budget={**SECONDS, "clock": "virtual"}, reranker=MONOT5),
        ],
        "turns": [BASE, cell("b", reranker=MONOT5)],
    },
    "tuned_on_reported": {"parameters of other questions": [cell()]},
    "judge_is_agent": {
        "another model of the family": [cell(judge_llm={**LOCAL, "model": "openai/gpt-oss-120b"})],
        "an exact judge": [cell(judge_llm=None)],
    },
    "one_repeat": {
        "greedy replies": [cell(repeats=1, llm={**LOCAL, "settings": {"temperature": 0}})],
        "three repeats": [cell()],
    },
    "cached_samples": {"a run of its own": [ran(stages={"rewriter": {"cache_hits": 3}})]},
    "power": {
        "830 questions": [cell(questions=830), cell("b", questions=830)],
        "answers that change little": [
            cell("a", questions=100, run=run(accuracy=STEADY[0])),
            cell("b", questions=100, run=run(accuracy=STEADY[1])),
        ],
    },
    "unequal_judging": {
        "one judge and the same questions": [ran(accuracy=[1, 0]), ran("b", accuracy=[0, 0])]
    },
    "model_drift": {
        "a dated snapshot": [cell(llm={**API, "model": "gpt-5-2025-08-07"})],
        "a server here, three days apart": [
            ran(created="2026-11-20T10:00:00+00:00", servers={"llm": "0.11.0"}),
            ran("b", created="2026-11-23T10:00:00+00:00", servers={"llm": "0.11.0"}),
        ],
        "an alias of a stage alone": [cell(rewriter_llm=API)],
    },
    "unequal_completion": {
        "a hundredth": [ran(metrics={"completion": 0.99}), ran("b", metrics={"completion": 1.0})]
    },
    "unjudged": {
        "less than .05": [ran(metrics={"Judged@10": 0.86}), ran("b", metrics={"Judged@10": 0.9})]
    },
}
MARGIN = 0.06


def cases(table: Mapping[str, Mapping[str, list[ComposedCell]]]) -> list[Any]:
    return [
        pytest.param(name, cells, id=f"{name}-{about}")
        for name, rows in table.items()
        for about, cells in rows.items()
    ]


@pytest.mark.parametrize(("name", "cells"), cases(SEEDED))
def test_a_seeded_fault_is_found_and_nothing_else(name: str, cells: list[ComposedCell]) -> None:
    found = {threat.name for threat in find_threats(cells, baseline=None, margin=MARGIN)}
    assert found == {name}


@pytest.mark.parametrize(("name", "cells"), cases(NEAR_MISSES))
def test_a_near_miss_is_no_threat(name: str, cells: list[ComposedCell]) -> None:
    assert find_threats(cells, margin=MARGIN) == []


def test_each_kind_has_a_fault_and_a_near_miss() -> None:
    assert list(SEEDED) == list(NEAR_MISSES) == list(THREATS)


def test_with_a_baseline_a_chain_of_single_changes_is_a_threat() -> None:
    chain = [BASE, cell("b", retriever=DENSE), cell("c", retriever=DENSE, reranker=MONOT5)]
    assert find_threats(chain) == []
    (threat,) = find_threats(chain, baseline=BASE)
    assert threat.text.startswith("c differs from the baseline in reranker and retriever")


def test_cells_that_measure_a_bound_are_no_threats_unless_they_are_compared() -> None:
    oracle = {"_target_": "soundingline.pipelines.fusion.OracleRetriever", "base": BM25}
    bound = ran("oracle", of={"retriever": oracle, "tool": TOP_K}, metrics={"Judged@10": 1.0})
    system = ran("b", of={"retriever": DENSE}, metrics={"Judged@10": 0.6})
    assert find_threats([BASE, system, bound]) == []
    changed = find_threats([BASE, system, bound], baseline=bound)
    assert {threat.name for threat in changed} == {"several_changes", "unjudged"}


def test_bounds_of_accuracy_are_those_of_unfinished_questions() -> None:
    """With 40 % right and 10 % unfinished, between 40 % and 50 % are right."""
    (threat,) = find_threats(SEEDED["unequal_completion"]["a tenth of the questions"])
    assert "the accuracy of a lies between 0.400 and 0.500" in threat.text


@pytest.mark.parametrize(
    ("labels", "named"), [("a", "a"), ("abc", "a, b, c"), ("abcde", "a, b, c and 2 more")]
)
def test_a_threat_names_three_cells_and_how_many_others_it_concerns(
    labels: str, named: str
) -> None:
    (threat,) = find_threats([cell(label, tuned_on_reported=True) for label in labels])
    assert f"the parameters of {named} were chosen" in threat.text


@pytest.mark.parametrize(("number", "named"), [(2, "1 comparison,"), (3, "2 comparisons,")])
def test_a_threat_of_too_few_questions_says_how_many_comparisons_they_serve(
    number: int, named: str
) -> None:
    (threat,) = find_threats([cell(str(n), questions=50) for n in range(number)], margin=MARGIN)
    assert f"with 50 questions and {named} the smallest difference in " in threat.text


def test_an_accepted_threat_is_marked_and_an_unknown_name_is_refused() -> None:
    own = [cell(judge_llm=LOCAL, repeats=1)]
    marked = {t.name: t.accepted for t in find_threats(own, accept=["one_repeat"])}
    assert marked == {"judge_is_agent": False, "one_repeat": True}
    with pytest.raises(InputError, match=r"accept names repeat\. valid: prompt, several_changes"):
        find_threats(own, accept=["repeat"])
