"""`soundingline judge_agreement runs/<name>`: the agreement of the judges of a run.

Compares the exact rule and every model whose verdicts are in the run folder, pairwise, and writes
`evaluation/agreement.json`. No model is called.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import combinations

from rich.table import Table

from soundingline.experiments.cli import CommandParser, run_command
from soundingline.experiments.config import Settings
from soundingline.experiments.recorded import Options, recorded_benchmark
from soundingline.toolkit.benchmarks.benchmark import Benchmark
from soundingline.toolkit.console import Console
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.evaluation import ExactAnswerJudge
from soundingline.toolkit.evaluation.judge import FAILED, verdicts_in
from soundingline.toolkit.evaluation.statistics import Agreement, agreement
from soundingline.toolkit.files import write_json
from soundingline.toolkit.runs import RunFolder
from soundingline.toolkit.runs.run_folder import repeat_id

_SHOWN = 8

Verdicts = Mapping[str, bool]


def agree(settings: Settings, paths: Sequence[str]) -> None:
    """Print and write the agreement of the judges of each run folder."""
    if not paths:
        raise InputError("no run was named", do="soundingline judge_agreement runs/<name>")
    options = Options(settings)
    for path in paths:
        folder = RunFolder(path)
        judges = judges_of(folder, recorded_benchmark(folder, settings, options))
        if len(judges) < 2:
            raise InputError(
                f"only {', '.join(judges)} has judged {folder.path}",
                do=f"soundingline evaluate judge=llm llm@judge_llm=... {folder.path}",
            )
        questions = questions_of(folder)
        pairs = {
            (a, b): agreement(judges[a], judges[b], questions)
            for a, b in combinations(sorted(judges), 2)
        }
        rows = [{"a": a, "b": b, **row._asdict()} for (a, b), row in pairs.items()]
        write_json(folder.path / "evaluation" / "agreement.json", rows)
        Console().print(table(folder.name, pairs))


def judges_of(folder: RunFolder, benchmark: Benchmark) -> Mapping[str, Verdicts]:
    """Judge -> answer -> whether it is correct. Answers are named by `repeat_id`. A failed request
    is no verdict; an unreadable reply is a wrong answer."""
    judges: dict[str, dict[str, bool]] = {"exact_answer": {}}
    for part in folder.repeats():
        judges["exact_answer"] |= exact(part, benchmark)
        for path in sorted((part.path / "evaluation").glob("verdicts-*.jsonl")):
            verdicts = judges.setdefault(path.stem.removeprefix("verdicts-"), {})
            for qid, verdict in verdicts_in(path).items():
                if verdict.error != FAILED:
                    verdicts[repeat_id(qid, part.number)] = verdict.correct
    return judges


def exact(part: RunFolder, benchmark: Benchmark) -> dict[str, bool]:
    """The verdicts of the exact rule on the answers of one repeat."""
    judge = ExactAnswerJudge()
    verdicts = {}
    for trajectory in part.trajectories():
        accepted = benchmark.answers.get(trajectory.qid)
        if trajectory.status != "failed" and accepted:
            verdict = judge.verdict(trajectory.qid, trajectory.answer, accepted)
            verdicts[repeat_id(trajectory.qid, part.number)] = verdict.correct
    return verdicts


def questions_of(folder: RunFolder) -> dict[str, str]:
    """Answer (`repeat_id`) -> its question."""
    return {
        repeat_id(qid, part.number): qid for part in folder.repeats() for qid in part.statuses()
    }


def table(title: str, pairs: Mapping[tuple[str, str], Agreement]) -> Table:
    """A table with a row for each pair of judges."""
    judges = Table("judges", "n", "raw", "kappa (95 %)", "correct", "they differ on", title=title)
    for (a, b), row in pairs.items():
        kappa = "undefined" if row.kappa is None else f"{row.kappa:.3f}"
        if row.low is not None:
            kappa += f" ({row.low:.3f} to {row.high:.3f})"
        differing = [*row.only_a, *row.only_b]
        more = f" and {len(differing) - _SHOWN} more" if len(differing) > _SHOWN else ""
        judges.add_row(
            f"{a}\n{b}",
            str(row.n),
            f"{row.raw:.3f}",
            kappa,
            f"{row.correct_a:.3f}\n{row.correct_b:.3f}",
            ", ".join(differing[:_SHOWN]) + more,
        )
    return judges


PARSER = CommandParser(__doc__, "RUN")

start = partial(run_command, agree, PARSER)
