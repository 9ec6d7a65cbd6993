"""Invented runs for the tests of reports and traces: plausible numbers, the same at every call."""

import io
import json

import numpy as np
from rich.console import Console
from support.benchmarks import SmallBenchmark

from soundingline.toolkit.data import Document, Topic, Unit, parent
from soundingline.toolkit.evaluation import ExactAnswerJudge, compare
from soundingline.toolkit.evaluation.agent_run import evaluate_run_folder
from soundingline.toolkit.evaluation.evaluation import EvaluatedRun
from soundingline.toolkit.report import comparison
from soundingline.toolkit.report.page import page
from soundingline.toolkit.report.traces import write_traces
from soundingline.toolkit.runs import RunFolder, make_manifest
from soundingline.toolkit.trajectory import TIERS, Answer, Exposure, RecordedCall, Trajectory

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
    shares = (min(0.98, level + 0.3), level + 0.1, level - 0.05, level - 0.2)
    share = dict(zip(TIERS, shares, strict=True))
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


def written(data, *sections):
    """A report of these sections, with the summary and the warnings of its runs."""
    return page("runs", "", comparison.summary(data), comparison.warnings(data), sections)


def texts(table):
    """The rows of a table of a report."""
    return [[entry.text for entry in row] for row in table.rows]


def printed(*tables, width=80):
    """Tables as a terminal shows them."""
    stream = io.StringIO()
    for table in tables:
        Console(file=stream, width=width).print(table)
    return stream.getvalue()


# Invented runs for the tests of traces.


PRICE = {"input": 10.0, "cached_input": 1.0, "output": 100.0}


def asked(query, number, usage, text=""):
    """An assistant's message that searches."""
    function = {"name": "search", "arguments": json.dumps({"query": query})}
    call = {"id": f"call_{number}", "type": "function", "function": function}
    return {"role": "assistant", "content": text, "tool_calls": [call], "usage": dict(usage)}


def result(number, text):
    return {"role": "tool", "tool_call_id": f"call_{number}", "content": text}


def searched(query, output, **fields):
    return RecordedCall("search", {"query": query}, output, **fields)


def two_calls(qid="7", **fields):
    """A search that shows d1 of the judged d1, d2 and d3, a reading of d2, and an answer."""
    first = "1. docid=d1%p0 score=2.0\n2. docid=x9 score=1.0"
    second = "[docid=d2 lines 1-1 of 1]\nAda built it."
    tiers = [("d1", "x9", "d3"), ("d1", "x9"), ("d2",), ("d2",)]
    values = {
        "qid": qid,
        "question": "Who built the mill?",
        "status": "completed",
        "answer": Answer("Ada built it [d2].", "Ada", 80.0, ("d2",)),
        "messages": (
            {"role": "system", "content": "Search, then answer."},
            {"role": "user", "content": "Who built the mill?"},
            {
                **asked("mill", 1, {"input": 100, "cached": 0, "output": 10}),
                "reasoning": "First the mill.",
            },
            result(1, first),
            asked("d2", 2, {"input": 200, "cached": 100, "output": 10}, text="d2 looks right."),
            result(2, second),
            {"role": "assistant", "content": "Ada.", "usage": {"input": 300, "output": 20}},
        ),
        "calls": (
            searched(
                "mill",
                first,
                tokens=8,
                seconds=0.25,
                ranking=("d1%p0", "x9", "d1%p4", "d3"),
                shown=("d1%p0", "x9"),
                notes={"rewrite": {"raw": "mill", "rewritten": "who built the mill"}},
            ),
            RecordedCall("read_document", {"docid": "d2"}, second, tokens=9, shown=("d2",)),
        ),
        "tiers": dict(zip(TIERS, tiers, strict=True)),
        "exposures": (
            Exposure(1, "previewed", "d1", 1, 8),
            Exposure(1, "previewed", "x9", 2, 8),
            Exposure(2, "opened", "d2", 3, 17),
            Exposure(2, "cited", "d2", 3, 17),
        ),
        "usage": {"dollars": 0.5, "agent_dollars": 0.5, "agent_calls": 3},
        "seconds": 1.5,
    }
    return Trajectory(**{**values, **fields})


JUDGEMENTS = {
    "evidence": {"7": {"d1": 1, "d2": 2, "d3": 1, "x9": 0}, "8": {"d1": 1}},
    "gold": {"7": {"d2": 1}},
}
ASKED = (
    [Topic("7", "Who built the mill?"), Topic("8", "Who burned it?"), Topic("9", "Never asked?")],
    JUDGEMENTS,
    {"7": ["Ada"], "8": ["Bob", "Robert"]},
)
BENCHMARK = SmallBenchmark(*ASKED)


class WithTexts(SmallBenchmark):
    """The same, with texts in which the answers to 7 and 8 stand, so that questions have labels."""

    def read_documents(self):
        yield Document("d1", "The mill", "Bob burned it down.")
        yield Document("d2", "Ada", "Ada built the mill.")


def write_run(path, *trajectories, repeats=()):
    """A run folder; `repeats` are the trajectories of the second time and so on."""
    folder = RunFolder(path)
    config = {"llm": {"price": PRICE}}
    with folder.writing(make_manifest(config, {"benchmark": BENCHMARK.fingerprint})):
        for number, rows in enumerate((trajectories, *repeats), start=1):
            for row in rows:
                folder.repeat(number).write(row)
    return folder


def evaluated(folder, benchmark=BENCHMARK):
    judges = [ExactAnswerJudge()] * len(folder.repeats())
    return evaluate_run_folder(folder, benchmark, judges, ["AP"], state=folder.state())


def traced(path, *trajectories, benchmark=BENCHMARK, repeats=(), passages=None):
    """The folder of the traces of a new run."""
    folder = write_run(path, *trajectories, repeats=repeats)
    run = evaluated(folder, benchmark)
    return write_traces(folder, benchmark, run, passages=passages).parent


CHECKLIST = ("is a mill", "was built by Ada in the years between 1700 and 1750", "not burnt down")


def scored(docid, *cells, **facts):
    """A document of a round, with a verdict and a score for each requirement that has one."""
    requirements = {
        CHECKLIST[number]: {
            "verdict": cell[0],
            "score": cell[1],
            "rationale": f"because of {docid}",
            "passage": f"{docid}%p{number}" if cell[0] != "unknown" else "",
        }
        for number, cell in enumerate(cells)
        if cell is not None
    }
    return {"retrieval": 0.1, "requirements": requirements, **facts}


class AnyPassage:
    """A store in which every passage says the same, but for those of d1, which are missing."""

    def __init__(self, text="The mill grinds barley."):
        self.text = text

    def texts(self, unit_ids):
        if any(unit_id.startswith("d1%") for unit_id in unit_ids):
            raise KeyError("d1")
        return [Unit(unit_id, f"Of {parent(unit_id)}", self.text) for unit_id in unit_ids]


def two_rounds(qid="7"):
    """`two_calls` of a navigator: a first round with two requirements, and a second one that adds
    the third and scores d1 again; the answer lists d2, d1 and an id of no document."""
    met, missed, unknown = ("satisfied", 0.95), ("not", 0.1), ("unknown", 0.0)
    first = {
        "round": 1,
        "planned_by": "model",
        "reason": "Begin with the rarest.",
        "librarians": [
            {"operator": "search", "text": "mill", "candidates": 3, "new": 3, "error": ""},
            {"operator": "expand", "docids": ["d1", "d2"], "direction": "in", "error": "timed_out"},
        ],
        "checklist": list(CHECKLIST[:2]),
        "documents": {
            "d1": scored("d1", met, missed, score=0.6, probability=0.7),
            "x9": scored("x9", missed, unknown, score=0.05),
        },
    }
    second = {
        "round": 2,
        "checklist": list(CHECKLIST),
        "documents": {
            "d1": scored("d1", None, met, unknown, score=0.9),
            "d2": scored("d2", met, met, met, score=0.97, probability=0.99),
        },
        "unscored": {"timed_out": 3},
    }
    answer = Answer("Both are mills.", documents=("d2", "d1", "gone"))
    return two_calls(qid, answer=answer, rounds=(first, second))
