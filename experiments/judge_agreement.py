"""`python -m experiments.judge_agreement runs/<name>`: how far the judges of a run agree.

Compares the exact rule and every judge with a model whose verdicts the run folder holds, each with
each, and writes `evaluation/agreement.json`. Nothing is judged here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

from rich.table import Table

from experiments.entry import CommandParser, run_command
from experiments.recorded import Options, recorded_benchmark
from experiments.settings import Settings
from toolkit.console import Console
from toolkit.contracts import Benchmark
from toolkit.errors import InputError
from toolkit.evaluation import ExactAnswerJudge
from toolkit.evaluation.agreement import Agreement, agreement
from toolkit.evaluation.judge_llm import FAILED
from toolkit.evaluation.verdict_files import verdicts_in
from toolkit.files import write_json
from toolkit.runs import RunFolder
from toolkit.runs.names import repeat_id

_SHOWN = 8

Verdicts = Mapping[str, bool]


def agree(settings: Settings, paths: Sequence[str]) -> None:
    """Print and write the agreement of the judges of each run in the folders `paths`."""
    if not paths:
        raise InputError("no run was named", do="python -m experiments.judge_agreement runs/<name>")
    options = Options(settings)
    for path in paths:
        folder = RunFolder(path)
        judges = judges_of(folder, recorded_benchmark(folder, settings, options))
        if len(judges) < 2:
            raise InputError(
                f"only {', '.join(judges)} has judged {folder.path}",
                do=f"python -m experiments.evaluate judge=llm llm@judge_llm=... {folder.path}",
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
    """Verdicts by judge, on each repeat of each question under its own name (`repeat_id`). A failed
    request is no verdict; an unreadable reply is a wrong one."""
    judges: dict[str, dict[str, bool]] = {"exact_answer": {}}
    for part in folder.repeats():
        judges["exact_answer"] |= exact(part, benchmark)
        for path in sorted((part.path / "evaluation").glob("verdicts-*.json*")):
            verdicts = judges.setdefault(path.stem.removeprefix("verdicts-"), {})
            for qid, verdict in verdicts_in(path).items():
                if verdict.error != FAILED:
                    verdicts[repeat_id(qid, part.number)] = verdict.correct
    return judges


def exact(part: RunFolder, benchmark: Benchmark) -> dict[str, bool]:
    """The exact rule's verdicts on the recorded answers of one repeat."""
    judge = ExactAnswerJudge()
    verdicts = {}
    for trajectory in part.trajectories():
        accepted = benchmark.answers.get(trajectory.qid)
        if trajectory.status != "failed" and accepted:
            verdict = judge.verdict(trajectory.qid, trajectory.answer, accepted)
            verdicts[repeat_id(trajectory.qid, part.number)] = verdict.correct
    return verdicts


def questions_of(folder: RunFolder) -> dict[str, str]:
    """The question of each repeat, by the name of the repeat."""
    return {
        repeat_id(qid, part.number): qid for part in folder.repeats() for qid in part.statuses()
    }


def table(title: str, pairs: Mapping[tuple[str, str], Agreement]) -> Table:
    """A row a pair of judges."""
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

if __name__ == "__main__":
    run_command(agree, PARSER)
