"""`soundingline calibrate runs/<name> --out FILE`: what a scorer's probability is worth.

Fits, on what a run of `agent=navigator` has scored, how often a document with such a probability is
one of its question's targets. The run should be one on questions that nothing is reported of (a dev
split); another run takes the file by `agent.calibration=FILE`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from soundingline.agents.literature.scores import METHODS, Calibration, logit
from soundingline.experiments.cli import CommandParser, one_path, run_command
from soundingline.experiments.config import Settings
from soundingline.experiments.recorded import Options, recorded_benchmark
from soundingline.toolkit.console import Console
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.files import write_json
from soundingline.toolkit.optional import import_optional
from soundingline.toolkit.runs import RunFolder
from soundingline.toolkit.trajectory import Trajectory, scored_documents

Pairs = tuple[list[float], list[bool]]


def calibrate(settings: Settings, paths: Sequence[str], method: str, out: str) -> None:
    """Fit on the run in the folder `paths[0]` and write the file `out`."""
    folder = RunFolder(one_path(paths, "a run folder"))
    benchmark = recorded_benchmark(folder, settings, Options(settings))
    targets = benchmark.targets
    probabilities, met = pairs_of(
        (trajectory for part in folder.repeats() for trajectory in part.trajectories()), targets
    )
    if len(set(met)) < 2:
        raise InputError(
            f"{folder.path} has {len(met)} documents with a probability, of which {sum(met)} are "
            "targets",
            valid="some of both kinds",
            do="take a run of agent=navigator on questions with targets, with a scorer that tells "
            "an overall probability",
        )
    manifest = folder.manifest()
    fitted = {
        **fit(probabilities, met, method),
        "pairs": len(met),
        "targets": sum(met),
        "run": folder.name,
        "scorer": manifest.get("fingerprints", {}).get("scorer.content", ""),
        "benchmark": manifest.get("benchmark"),
    }
    write_json(Path(out), fitted, clear=True)
    mapped = list(map(Calibration(out), probabilities))
    Console(soft_wrap=True).print(
        f"{len(met):,} documents, {sum(met):,} of them targets; on these the Brier score is "
        f"{_brier(mapped, met):.4f}, without calibration {_brier(probabilities, met):.4f}",
        highlight=False,
    )
    Console(soft_wrap=True).print(out, highlight=False)


def pairs_of(trajectories: Iterable[Trajectory], targets: Any) -> Pairs:
    """The probability of each document that was scored, and whether it is a target of its question;
    questions of unknown targets are left out."""
    probabilities: list[float] = []
    met: list[bool] = []
    for trajectory in trajectories:
        if trajectory.qid not in targets:
            continue
        newest = {
            docid: document.probability
            for docid, document in scored_documents(trajectory.rounds).items()
            if document.probability is not None
        }
        probabilities += newest.values()
        met += [docid in targets[trajectory.qid] for docid in newest]
    return probabilities, met


def fit(probabilities: Sequence[float], met: Sequence[bool], method: str) -> dict[str, Any]:
    """The parameters of `soundingline.agents.literature.scores.Calibration`: isotonic
    regression (Zadrozny and Elkan, KDD 2002), or Platt's logistic regression (1999) over the
    log-odds, both by scikit-learn."""
    labels = np.array(met, dtype=float)
    if method == "isotonic":
        model = import_optional("sklearn.isotonic").IsotonicRegression(
            y_min=0.0, y_max=1.0, out_of_bounds="clip"
        )
        model.fit(np.array(probabilities), labels)
        steps = {"x": model.X_thresholds_.tolist(), "y": model.y_thresholds_.tolist()}
        return {"method": method, **steps}
    odds: NDArray[np.float64] = np.array([[logit(value)] for value in probabilities])
    model = import_optional("sklearn.linear_model").LogisticRegression(C=1e6)
    model.fit(odds, labels)
    return {
        "method": method,
        "slope": float(model.coef_[0, 0]),
        "intercept": float(model.intercept_[0]),
    }


def _brier(probabilities: Sequence[float], met: Sequence[bool]) -> float:
    pairs = zip(probabilities, met, strict=True)
    return sum((value - label) ** 2 for value, label in pairs) / len(met)


PARSER = CommandParser(__doc__, "RUN")
PARSER.add_argument("--method", choices=METHODS, default="isotonic", help="isotonic unless given")
PARSER.add_argument("--out", required=True, metavar="FILE", help="the file that is written")

start = partial(run_command, calibrate, PARSER)
