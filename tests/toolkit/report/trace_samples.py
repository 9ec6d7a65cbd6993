"""Invented runs for the tests of traces."""

import json

from support.benchmarks import SmallBenchmark

from soundingline.toolkit.data import Topic, Unit, parent
from soundingline.toolkit.evaluation import ExactAnswerJudge
from soundingline.toolkit.evaluation.agent_run import evaluate_run_folder
from soundingline.toolkit.report.traces import write_traces
from soundingline.toolkit.runs import RunFolder, make_manifest
from soundingline.toolkit.trajectory import TIERS, Answer, Exposure, ToolCall, Trajectory

PRICE = {"input": 10.0, "cached_input": 1.0, "output": 100.0}


def asked(query, number, usage, text=""):
    """An assistant's message that searches."""
    function = {"name": "search", "arguments": json.dumps({"query": query})}
    call = {"id": f"call_{number}", "type": "function", "function": function}
    return {"role": "assistant", "content": text, "tool_calls": [call], "usage": dict(usage)}


def result(number, text):
    return {"role": "tool", "tool_call_id": f"call_{number}", "content": text}


def searched(query, output, **fields):
    return ToolCall("search", {"query": query}, output, **fields)


def two_calls(qid="7", **fields):
    """A search that shows d1 of the judged d1, d2 and d3, a reading of d2, and an answer."""
    first = "1. docid=d1%p0 score=2.0\n2. docid=x9 score=1.0"
    second = "[docid=d2 lines 1-1 of 1]\nAda built it."
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
            ToolCall("read_document", {"docid": "d2"}, second, tokens=9, shown=("d2",)),
        ),
        "tiers": dict(
            zip(TIERS, [("d1", "x9", "d3"), ("d1", "x9"), ("d2",), ("d2",)], strict=True)
        ),
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
BENCHMARK = SmallBenchmark(
    [Topic("7", "Who built the mill?"), Topic("8", "Who burned it?"), Topic("9", "Never asked?")],
    JUDGEMENTS,
    {"7": ["Ada"], "8": ["Bob", "Robert"]},
)


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
    """A store in which every passage says the same, but for those of d1, which it lacks."""

    def __init__(self, text="The mill grinds barley."):
        self.text = text

    def texts(self, unit_ids):
        if any(unit_id.startswith("d1%") for unit_id in unit_ids):
            raise KeyError("d1")
        return [Unit(unit_id, f"Of {parent(unit_id)}", self.text) for unit_id in unit_ids]


def two_rounds(qid="7"):
    """`two_calls` of a navigator: a first round with two requirements, and a second one that adds
    the third and scores d1 again; the answer lists d2, d1 and an id that the corpus lacks."""
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
