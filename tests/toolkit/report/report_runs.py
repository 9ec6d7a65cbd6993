"""Invented runs for the tests of the report: plausible numbers, the same at every call."""

import io

import numpy as np
from rich.console import Console

from soundingline.toolkit.evaluation import compare
from soundingline.toolkit.evaluation.evaluation import EvaluatedRun
from soundingline.toolkit.trajectory import TIERS

UNITS = ("document", "passage", "maxp")
RETRIEVERS = ("bm25_default", "bm25_tuned")


def manifest(**factors):
    return {
        "config": {"agent": {"name": "keyword", "turns": 12}, "unit": {"name": factors["unit"]}},
        "fingerprints": {"benchmark": "0f1e2d3c4b5a", "index": f"abc{len(factors['unit'])}"},
        "versions": {"python": "3.11.8", "pyterrier": "1.1.0"},
        "git": {"commit": "1234567", "dirty": False},
        "created": "2026-01-02T03:04:05",
    }


def fake_run(name, level, *, questions=100, **factors):
    """An agent's run whose accuracy is near `level`."""
    random = np.random.default_rng(len(name) * 1000 + int(level * 1e6))
    qids = [f"q{i}" for i in range(questions)]
    share = dict(
        zip(TIERS, (min(0.98, level + 0.3), level + 0.1, level - 0.05, level - 0.2), strict=True)
    )
    shown = dict(zip(TIERS, (1840.3, 31.2, 6.4, 2.1), strict=True))
    per = {
        "accuracy": {q: float(random.random() < level) for q in qids},
        "nDCG@10": {q: float(random.beta(2 * level, 2 * (1 - level))) for q in qids},
        "AP": {q: float(random.beta(level, 1.5)) for q in qids},
        "search_calls": {q: float(random.poisson(9)) for q in qids},
        "browse_calls": {q: float(random.poisson(2.5)) for q in qids},
        "read_calls": {q: float(random.poisson(6 * level)) for q in qids},
    }
    for tier in TIERS:
        per[f"recall_{tier}"] = {
            q: float(random.binomial(4, max(0.02, share[tier])) / 4) for q in qids
        }
    metrics = {measure: float(np.mean(list(values.values()))) for measure, values in per.items()}
    failed, steered = int(6 * (1 - level)), 7
    metrics["completion"] = (questions - failed - steered) / questions
    exposed = np.unique(np.geomspace(5, 4000, 200).astype(int))
    rise = metrics["recall_surfaced"] * (1 - np.exp(-exposed / (60 / level)))
    tokens = np.geomspace(300, 60000, 150)
    return EvaluatedRun(
        name=name,
        factors=factors,
        metrics=metrics,
        per_question=per,
        funnel={
            judged: {
                tier: {
                    "macro": metrics[f"recall_{tier}"] * weight,
                    "micro": metrics[f"recall_{tier}"] * weight * 0.97,
                    "documents": shown[tier],
                }
                for tier in TIERS
            }
            for judged, weight in (("evidence", 1.0), ("gold", 0.9))
        },
        curves={
            "documents": [(float(x), float(y)) for x, y in zip(exposed, rise, strict=True)],
            "tokens": [(float(x), 0.8 * level * (1 - np.exp(-x / 9000))) for x in tokens],
        },
        counts={
            "questions": questions,
            "answered": questions - failed,
            "failed": failed,
            "unjudged": 1 if level > 0.6 else 0,
            "completed": questions - failed - steered,
            "steered": steered,
        },
        manifest=manifest(**factors),
    )


def six_runs():
    levels = (0.34, 0.45, 0.5, 0.56, 0.55, 0.66)
    options = [(unit, retriever) for unit in UNITS for retriever in RETRIEVERS]
    return [
        fake_run(f"demo-{unit}-{retriever}", level, unit=unit, retriever=retriever)
        for (unit, retriever), level in zip(options, levels, strict=True)
    ]


def paired(runs, *measures):
    """Every pair, by evaluation's own comparison, with few resamples."""
    return compare(runs, measures, test="t", resamples=199)


def printed(*tables, width=80):
    """Tables as a terminal shows them."""
    stream = io.StringIO()
    for table in tables:
        Console(file=stream, width=width).print(table)
    return stream.getvalue()
