"""Turns a run into numbers, and runs into verdicts. Reads run folders; never touches a trajectory,
and nothing of it is ever read by an agent."""

from toolkit.evaluation.agent_run import evaluate_run, final_ranking
from toolkit.evaluation.answers import AnswerVerdict, ExactAnswerJudge, Judge
from toolkit.evaluation.cells import Cell
from toolkit.evaluation.compare import Verdict, compare
from toolkit.evaluation.evaluations import Evaluation, evaluate_ranking
from toolkit.evaluation.retrieval import DEFAULT_MEASURES, RunRow, parse_measures
from toolkit.evaluation.statistics import Paired, holm, paired
from toolkit.evaluation.store import evaluate_folder, load_cell, load_cells, write_evaluation

__all__ = [
    "DEFAULT_MEASURES",
    "AnswerVerdict",
    "Cell",
    "Evaluation",
    "ExactAnswerJudge",
    "Judge",
    "Paired",
    "RunRow",
    "Verdict",
    "compare",
    "evaluate_folder",
    "evaluate_ranking",
    "evaluate_run",
    "final_ranking",
    "holm",
    "load_cell",
    "load_cells",
    "paired",
    "parse_measures",
    "write_evaluation",
]
