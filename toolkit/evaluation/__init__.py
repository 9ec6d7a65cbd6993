"""Evaluation of runs, comparison of evaluated runs, and tuning. Reads run folders and never changes
a trajectory; no agent reads anything of an evaluation."""

from soundingline.toolkit.evaluation.agent_run import (
    evaluate_run,
    evaluate_run_folder,
    final_ranking,
)
from soundingline.toolkit.evaluation.answers import ExactAnswerJudge, Judge, Verdict
from soundingline.toolkit.evaluation.comparison import PairedComparison, compare
from soundingline.toolkit.evaluation.evaluation import (
    EvaluatedRun,
    Evaluation,
    evaluate_ranking,
    load_run,
    load_runs,
    write_evaluation,
)
from soundingline.toolkit.evaluation.retrieval import DEFAULT_MEASURES, parse_measures
from soundingline.toolkit.evaluation.statistics import Paired, holm, paired_test

__all__ = [
    "DEFAULT_MEASURES",
    "EvaluatedRun",
    "Evaluation",
    "ExactAnswerJudge",
    "Judge",
    "Paired",
    "PairedComparison",
    "Verdict",
    "compare",
    "evaluate_ranking",
    "evaluate_run",
    "evaluate_run_folder",
    "final_ranking",
    "holm",
    "load_run",
    "load_runs",
    "paired_test",
    "parse_measures",
    "write_evaluation",
]
