"""The run folder: who may write it, what is done, what is left.

This class owns every file name of a run except what evaluation derives (`evaluation/`,
`metrics.json`, `run.trec`), the report and the traces. Nothing here reads judgements.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any

from toolkit.contracts import Topic, Trajectory
from toolkit.errors import InputError
from toolkit.files import fingerprint, write_atomic, write_json
from toolkit.runs.locks import locked
from toolkit.runs.manifest import check_same, provenance
from toolkit.runs.names import escape_qid, unescape_qid
from toolkit.runs.records import Outcome, dump_trajectory, read_outcome, read_trajectory
from toolkit.runs.rounds import RoundsFile
from toolkit.sealing import mark_sealed

_NAME = re.compile(r"[\w=,+-][\w=,.+-]*", re.ASCII)
_DEEPEST = 100  # nested lists and objects of a manifest; ours have five
_DERIVED = ("evaluation", "ranks", "traces")  # folders that others derive
_REPEATS = "repeats"
_PROVENANCE = ("versions", "git", "machine")


class RunFolder:
    """One run on disk. Reading needs no lock; writing happens inside `with folder.writing(...)`.

    - `manifest.json`: written first; see `toolkit.runs.manifest`. Where it says `sealed`, whatever
      holds texts of the benchmark is sealed (`toolkit.sealing`).
    - `queries/<escaped qid>.json`: one trajectory each, whole or absent.
    - `queries/<escaped qid>.rounds.jsonl`: whole rounds of a question that is under way, until its
      trajectory is written; see `rounds`.
    - `retried/<escaped qid>/<n>.json`: failed attempts that a later one took the place of.
    - `repeats/<n>/`: trajectories of the second, third, ... time that the questions were asked, in
      folders of the same names; `repeat` gives each as a `RunFolder`.
    - `ledger.json`, `ledger.jsonl`: what each start of a run with a language model has spent; see
      `toolkit.llm.ledger_file`.
    """

    def __init__(self, path: Path | str, *, first: RunFolder | None = None) -> None:
        """`first` is the run that this is a repeat of (None: it is a run itself)."""
        self.path = Path(path)
        self.number = int(self.path.name) if first else 1
        self._first = first
        self.queries = self.path / "queries"
        self.manifest_path = self.path / "manifest.json"
        self.ledger_path = self.path / "ledger.json"
        self._writing = False

    @classmethod
    def named(cls, root: Path | str, name: str) -> RunFolder:
        """The run `name` below the folder of runs; `InputError` for a name that is no plain
        folder name."""
        if not _NAME.fullmatch(name) or len(name) > 200:
            raise InputError(
                f"the run name {name!r} cannot be a folder name",
                valid="up to 200 letters, digits and _ - . , = +, not starting with a dot",
                do="choose another name=",
            )
        return cls(Path(root) / name)

    @property
    def name(self) -> str:
        return self.path.resolve().name

    def repeat(self, number: int) -> RunFolder:
        """The trajectories of the `number`-th time that the questions are asked, counted from 1,
        which is this folder. Written while this run is written; its locks, manifest and ledger are
        this run's."""
        if number == 1:
            return self
        return RunFolder(self.path / _REPEATS / str(number), first=self)

    def repeats(self) -> list[RunFolder]:
        """All repeats that have a trajectory, in order; this folder first."""
        folders = [
            queries for queries in (self.path / _REPEATS).glob("*/queries") if any(_json(queries))
        ]
        names = [queries.parent.name for queries in folders]
        numbers = sorted(int(name) for name in names if re.fullmatch(r"[1-9]\d{0,5}", name))
        return [self, *(self.repeat(number) for number in numbers if number > 1)]

    def manifest(self) -> dict[str, Any]:
        """The manifest; `InputError` where this is no run folder, or one with links in it."""
        self._check_links()
        try:
            manifest = json.loads(self.manifest_path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise InputError(
                f"{self.path} is no run: it has no manifest.json", do="name a folder below runs/"
            ) from None
        except (OSError, ValueError, RecursionError) as error:
            raise InputError(f"cannot read {self.manifest_path}: {error}") from error
        if not isinstance(manifest, dict) or _deeper(manifest, _DEEPEST):
            raise InputError(f"{self.manifest_path} is not a manifest")
        return manifest

    @contextmanager
    def writing(self, manifest: Mapping[str, Any]) -> Iterator[RunFolder]:
        """Start or resume this run as its only writer.

        `InputError` where another process writes it, or where it was started with other
        fingerprints. Temporary files of killed processes are removed.
        """
        with locked(self.path / ".lock"):
            self._check_links()
            with _told(self.path):
                if manifest.get("sealed"):
                    mark_sealed(self.path)
                self._sweep()
                self._start(dict(manifest))
            self._writing = True
            try:
                yield self
            finally:
                self._writing = False

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other writers away from a run that is not answered further, such as one that is
        judged. `InputError` where another process writes it, or where this is no run."""
        self.manifest()
        with locked(self.path / ".lock"):
            yield

    def write(self, trajectory: Trajectory) -> None:
        """Write one trajectory, whole or not at all. It may take the place of a failed attempt,
        which is kept under `retried/`, never of one that ended well."""
        if not (self._first or self)._writing:
            raise RuntimeError("RunFolder.write needs `with folder.writing(manifest)` around it")
        path = self._file(trajectory.qid)
        if path.exists():
            self._keep_attempt(path)
        with _told(path):
            write_atomic(path, dump_trajectory(trajectory))
        if Outcome(trajectory.qid, trajectory.status, trajectory.reason).well:
            self._rounds_path(trajectory.qid).unlink(missing_ok=True)

    def rounds(self, qid: str) -> RoundsFile:
        """The whole rounds of a question that is under way. They stay as long as it has no
        trajectory that ended well, so that it goes on where it was killed or has failed."""
        return RoundsFile(self._rounds_path(qid))

    def add_counts(self, counts: Mapping[str, Mapping[str, float]]) -> None:
        """Add what the stages of the pipeline counted since the run was started or resumed to the
        manifest's `stages`: sums over all sessions, but the largest of what is called `largest_*`.
        """
        if not self._writing:
            raise RuntimeError("RunFolder.add_counts needs `with folder.writing(...)` around it")
        if not counts:
            return
        written = self.manifest()
        stages = written.setdefault("stages", {})
        for stage, numbers in counts.items():
            known = stages.setdefault(stage, {})
            for name, number in numbers.items():
                before = known.get(name, 0)
                largest = name.startswith("largest_")
                known[name] = max(before, number) if largest else before + number
            if looked_up := known.get("cache_hits", 0) + known.get("cache_misses", 0):
                known["cache_hit_rate"] = round(known.get("cache_hits", 0) / looked_up, 4)
        with _told(self.manifest_path):
            write_json(self.manifest_path, written, clear=True)

    def note_costs(self, costs: Mapping[str, Mapping[str, float]]) -> None:
        """Keep what a ranking costs in the manifest's `costs`: `once`, before the first query, and
        `query`, the mean of a query. What is known stays, because a later start finds more in
        caches; a manifest that learns nothing is not written."""
        if not self._writing:
            raise RuntimeError("RunFolder.note_costs needs `with folder.writing(...)` around it")
        written = self.manifest()
        known = written.get("costs", {})
        merged = {when: {**numbers, **known.get(when, {})} for when, numbers in costs.items()}
        if merged == known:
            return
        written["costs"] = {**known, **merged}
        with _told(self.manifest_path):
            write_json(self.manifest_path, written, clear=True)

    def read(self, qid: str) -> Trajectory | None:
        """The trajectory of a question, or None if it has none yet."""
        path = self._file(qid)
        return _read(path) if path.exists() else None

    def trajectories(self, topics: Iterable[Topic] | None = None) -> Iterator[Trajectory]:
        """The recorded trajectories: in the order of `topics`, leaving out questions without one,
        or all of them in the order of their ids."""
        if topics is not None:
            trajectories = (self.read(topic.qid) for topic in topics)
            yield from (trajectory for trajectory in trajectories if trajectory is not None)
            return
        for path in sorted(self._files(), key=lambda path: unescape_qid(path.stem) or path.stem):
            yield _read(path)

    def statuses(self) -> dict[str, str]:
        """Exit status by question id, of all recorded trajectories."""
        return {outcome.qid: outcome.status for outcome in sorted(self._outcomes())}

    def failures(self) -> Counter[str]:
        """How many questions failed, by reason."""
        return Counter(outcome.reason for outcome in self._outcomes() if outcome.status == "failed")

    def done(self) -> frozenset[str]:
        """Questions that ended well: with any status but `failed`, and not because the run's money
        was gone."""
        return frozenset(outcome.qid for outcome in self._outcomes() if outcome.well)

    def pending(self, topics: Iterable[Topic]) -> list[Topic]:
        """The questions left to ask, in the order given: those that did not end well yet."""
        done = self.done()
        return [topic for topic in topics if topic.qid not in done]

    def attempts(self, qid: str) -> int:
        """How often a question was asked, failed attempts included."""
        earlier = self.path / "retried" / escape_qid(qid)
        return len(list(earlier.glob("*.json"))) + self._file(qid).exists()

    def stamp(self, qid: str) -> tuple[int, int] | None:
        """What tells the trajectory of a question from those that it takes the place of: its bytes
        on disk, and how often the question was asked. None where it has none."""
        try:
            size = self._file(qid).stat().st_size
        except FileNotFoundError:
            return None
        return size, self.attempts(qid)

    def state(self) -> str:
        """A fingerprint of the recorded trajectories, which tells whether an evaluation is of them.

        Every write changes it, because a trajectory is new or takes the place of an attempt that
        moves to `retried/`. Times of files do not count: a copied run is the same run.
        """
        retried: list[Iterable[Path]] = [(self.path / "retried").glob("*/*.json")]
        for part in self.repeats()[1:]:
            retried += [part._files(), (part.path / "retried").glob("*/*.json")]
        others = _sizes(self.path, chain.from_iterable(retried))
        return fingerprint(_sizes(self.queries, self._files()) + others)

    def _outcomes(self) -> Iterator[Outcome]:
        return (_checked(path, read_outcome(path)) for path in self._files())

    def _rounds_path(self, qid: str) -> Path:
        return self.queries / f"{escape_qid(qid)}.rounds.jsonl"

    def _file(self, qid: str) -> Path:
        return self.queries / f"{escape_qid(qid)}.json"

    def _files(self) -> Iterator[Path]:
        return _json(self.queries)

    def _check_links(self) -> None:
        # Somebody may have sent this folder, and what is written below a link lands elsewhere.
        repeats = self.path / _REPEATS
        roots = [self.path, *repeats.glob("*")]
        below = [root / name for root in roots for name in ("queries", "retried", *_DERIVED)]
        attempts = [path for root in roots for path in (root / "retried").glob("*")]
        paths = [repeats, *roots[1:], *below, *attempts]
        if links := [path for path in paths if path.is_symlink()]:
            raise InputError(
                f"{links[0]} is a symbolic link",
                valid="a run whose files lie in its own folder",
                do="put the files in the place of the link; the run folder itself may be one",
            )

    def _start(self, manifest: dict[str, Any]) -> None:
        if not self.manifest_path.exists():
            if any(self._files()):
                raise InputError(
                    f"{self.path} holds trajectories but no manifest.json",
                    do="choose another name=, or delete that folder",
                )
            write_json(self.manifest_path, manifest, clear=True)
            return
        written = self.manifest()
        check_same(self.path, written, manifest)
        sessions = [written, *written.get("resumed", [])]
        if any(sessions[-1].get(key) != manifest.get(key) for key in _PROVENANCE):
            # A run that two versions of the code made must say so.
            written["resumed"] = [*written.get("resumed", []), provenance(manifest)]
            write_json(self.manifest_path, written, clear=True)

    def _keep_attempt(self, path: Path) -> None:
        outcome = read_outcome(path)
        if outcome.well:
            raise RuntimeError(f"question {outcome.qid!r} has ended well; it is not asked again")
        folder = self.path / "retried" / path.stem
        folder.mkdir(parents=True, exist_ok=True)
        path.replace(folder / f"{len(list(folder.glob('*.json'))) + 1}.json")

    def _sweep(self) -> None:
        names = (".manifest.json.*.tmp", ".ledger.json.*.tmp")
        leftovers = [path for name in names for path in self.path.glob(name)]
        repeated = self.path.glob(f"{_REPEATS}/*/queries/.*.tmp")
        for leftover in (*self.queries.glob(".*.tmp"), *repeated, *leftovers):
            leftover.unlink(missing_ok=True)


def _json(folder: Path) -> Iterator[Path]:
    return (path for path in folder.glob("*.json") if not path.name.startswith("."))


def _sizes(folder: Path, paths: Iterable[Path]) -> list[tuple[str, int]]:
    """Names below `folder` and sizes in bytes, sorted, of the files that are still there."""
    sizes = []
    for path in paths:
        with suppress(FileNotFoundError):  # A live run has moved it.
            sizes.append((str(path.relative_to(folder)), path.stat().st_size))
    return sorted(sizes)


def _deeper(value: Any, most: int) -> bool:
    level = [value]
    for _ in range(most):
        inner = [item.values() if isinstance(item, dict) else item for item in level]
        level = [item for items in inner for item in items if isinstance(item, (dict, list))]
    return bool(level)


def _read(path: Path) -> Trajectory:
    trajectory = read_trajectory(path)
    _checked(path, Outcome(trajectory.qid, trajectory.status, trajectory.reason))
    return trajectory


def _checked(path: Path, outcome: Outcome) -> Outcome:
    qid = outcome.qid
    if escape_qid(qid) != path.stem:
        raise InputError(
            f"{path} holds the trajectory of question {qid!r}",
            valid=f"{escape_qid(qid)}.json for that question",
            do="rename or delete the file",
        )
    return outcome


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """A full disk or a folder without permission, told as bad input."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"cannot write {path}: {error.strerror or error}",
            do="free or change the disk, then run the same command; finished questions are kept",
        ) from error
