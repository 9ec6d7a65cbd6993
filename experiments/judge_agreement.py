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
        pairs = {
            (a, b): agreement(judges[a], judges[b]) for a, b in combinations(sorted(judges), 2)
        }
        rows = [{"a": a, "b": b, **found._asdict()} for (a, b), found in pairs.items()]
        write_json(folder.path / "evaluation" / "agreement.json", rows)
        Console().print(table(folder.name, pairs))


def judges_of(folder: RunFolder, benchmark: Benchmark) -> dict[str, Verdicts]:
    """Verdicts by judge, on the first repeat of each question. A failed request is no verdict; an
    unreadable reply is a wrong one."""
    judges: dict[str, Verdicts] = {"exact_answer": exact(folder, benchmark)}
    for path in sorted((folder.path / "evaluation").glob("verdicts-*.json*")):
        judges[path.stem.removeprefix("verdicts-")] = {
            qid: verdict.correct
            for qid, verdict in verdicts_in(path).items()
            if verdict.error != FAILED
        }
    return judges


def exact(folder: RunFolder, benchmark: Benchmark) -> Verdicts:
    """The exact rule's verdicts on the recorded answers."""
    judge = ExactAnswerJudge()
    return {
        trajectory.qid: judge.verdict(trajectory.qid, trajectory.answer, accepted).correct
        for trajectory in folder.trajectories()
        if trajectory.status != "failed" and (accepted := benchmark.answers.get(trajectory.qid))
    }


def table(title: str, pairs: Mapping[tuple[str, str], Agreement]) -> Table:
    """A row a pair of judges."""
    made = Table("judges", "n", "raw", "kappa (95 %)", "correct", "they differ on", title=title)
    for (a, b), found in pairs.items():
        kappa = "undefined"
        if found.kappa is not None:
            kappa = f"{found.kappa:.3f} ({found.low:.3f} to {found.high:.3f})"
        differing = [*found.only_a, *found.only_b]
        more = f" and {len(differing) - _SHOWN} more" if len(differing) > _SHOWN else ""
        made.add_row(
            f"{a}\n{b}",
            str(found.n),
            f"{found.raw:.3f}",
            kappa,
            f"{found.correct_a:.3f}\n{found.correct_b:.3f}",
            ", ".join(differing[:_SHOWN]) + more,
        )
    return made


PARSER = CommandParser(__doc__, "RUN")

if __name__ == "__main__":
    run_command(agree, PARSER)
