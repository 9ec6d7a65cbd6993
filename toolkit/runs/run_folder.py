"""The folder of a run: its files, its lock, what is finished and what is pending.

`RunFolder` owns every file name of a run except those that others derive: `run.trec`, those in
`evaluation/`, the report and the traces. It reads no qrels.
"""

from __future__ import annotations

import copy
import hashlib
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from datetime import datetime, timezone
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, unquote

from soundingline.toolkit.data import Topic
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.files import (
    fingerprint,
    mark_obfuscated,
    read_json,
    write_json,
    write_quoting,
)
from soundingline.toolkit.json_lines import JsonLinesLog, recover_json_lines
from soundingline.toolkit.locks import file_lock, writer_lock
from soundingline.toolkit.runs.manifest import PROVENANCE, Manifest, check_same
from soundingline.toolkit.trajectory import (
    Outcome,
    Trajectory,
    dump_trajectory,
    read_outcome,
    read_trajectory,
)

# The environment variables with an id of the sweep that this process belongs to, and with the keys
# in which its cells differ.
SWEEP, VARIED = "SOUNDINGLINE_SWEEP", "SOUNDINGLINE_VARIED"
# The kinds of results that a folder may hold.
SINGLE_RUN = "a single run"
SWEEP_CELLS = "the cells of a sweep (-m)"
REPLAYS = "replays of a run"
CELLS = ".cells"  # in a sweep's folder: what became of each cell
METRICS = "metrics.json"  # is removed before an evaluation and written last
EVALUATION_LOCK = "evaluation/.lock"
RECORDED = "recorded"  # in a folder of replays: the cell of the run itself

_NAME = re.compile(r"[\w=,+-][\w=,.+-]*", re.ASCII)
_REPEATS = "repeats"
# The folders of a run in which files are written.
_FOLDERS = ("*", "retried/*", "repeats/*", "repeats/*/*", "repeats/*/retried/*")
# File systems allow 255 bytes a name, which include `.json` and the affixes of a temporary file.
_LONGEST = 180
_UNSHORTENED = 140


class RunFolder:
    """One run on disk. Reading needs no lock. Writing needs `with folder.writing(manifest)`.

    - `manifest.json`: written first; see `soundingline.toolkit.runs.manifest`. If its `sealed` is
      true, every file that quotes the benchmark is obfuscated (`soundingline.toolkit.obfuscation`).
    - `queries/<escaped qid>.json`: the trajectory of a question, complete or absent.
    - `queries/<escaped qid>.rounds.jsonl`: the finished rounds of a question that has no trajectory
      yet; see `rounds`.
    - `retried/<escaped qid>/<n>.json`: failed attempts that a later attempt replaced.
    - `repeats/<n>/`: the same folders for the n-th repeat of the questions (n = 2, 3, ...).
    - `ledger.jsonl`: the attempts of each start of a run with a language model, and their costs;
      see `soundingline.toolkit.llm.ledger`.

    Args:
        path: the folder. It need not exist.
        number: the number of this repeat of the questions; 1 is the run itself.

    Example:
        >>> folder = RunFolder("runs/first")
        >>> folder.statuses()  # doctest: +SKIP
    """

    def __init__(self, path: Path | str, *, number: int = 1) -> None:
        self.path = Path(path)
        self.number = number
        self.queries = self.path / "queries"
        self.manifest_path = self.path / "manifest.json"
        self.ledger_path = self.path / "ledger.jsonl"

    @classmethod
    def named(cls, root: Path | str, name: str) -> RunFolder:
        """The run `name` in the folder `root`; `InputError` if the name is not a folder name."""
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
        """The folder of a repeat of the questions. Repeat 1 is this folder. The others are written
        while this run is being written, and share its lock, manifest and ledger."""
        if number == 1:
            return self
        return RunFolder(self.path / _REPEATS / str(number), number=number)

    def repeats(self) -> list[RunFolder]:
        """This folder, and the repeats that have a trajectory, in order."""
        names = [folder.name for folder in (self.path / _REPEATS).glob("*")]
        numbers = sorted(int(name) for name in names if re.fullmatch(r"[1-9]\d{0,5}", name))
        others = [self.repeat(number) for number in numbers if number > 1]
        return [self, *(other for other in others if other.has_trajectories())]

    def is_evaluated(self) -> bool:
        """Whether there is an evaluation, after waiting for one that is being written."""
        with file_lock(self.path / EVALUATION_LOCK, reading=True):
            return (self.path / METRICS).is_file()

    def manifest(self) -> dict[str, Any]:
        """The manifest, whose values have the types of `Manifest`. `InputError` if this is not a
        run folder, if the manifest is damaged, or if the folder contains symbolic links."""
        if not self.manifest_path.exists():
            cells = sorted(path.parent for path in self.path.glob("*/manifest.json"))
            do = f"name one of its cells, such as {cells[0]}" if cells else "name a run's folder"
            raise InputError(f"{self.path} is not a run: it has no manifest.json", do=do)
        self._check_links()
        do = "restore it from a copy, or move the folder away and run again"
        manifest: dict[str, Any] = read_json(self.manifest_path, Manifest, do=do)
        return manifest

    @contextmanager
    def writing(self, manifest: Mapping[str, Any]) -> Iterator[RunFolder]:
        """Start or resume this run as its only writer, with the manifest of this start
        (`make_manifest`). `InputError` if another process writes the run, or if the run was started
        with other fingerprints."""
        with self._lock():
            self._check_links()
            with disk_errors(self.path):
                if manifest.get("sealed"):
                    mark_obfuscated(self.path)
                self._start(dict(manifest))
            yield self

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other writers away from a run to which no trajectories are added, such as one that
        is being judged. `InputError` if another process writes it, or if this is not a run."""
        self.manifest()
        with self._lock():
            yield

    def _lock(self) -> AbstractContextManager[None]:
        return writer_lock(self.path / ".lock", os.environ.get(SWEEP, ""))

    def write(self, trajectory: Trajectory) -> None:
        """Write a trajectory, whole or not at all, inside `with folder.writing(manifest)`. It may
        replace a failed attempt, which moves to `retried/`, but never a finished one."""
        path = self.trajectory_path(trajectory.qid)
        if path.exists():
            outcome = read_outcome(path)
            if outcome.finished:
                raise RuntimeError(f"question {outcome.qid!r} has ended well and is not repeated")
            folder = self.path / "retried" / path.stem
            folder.mkdir(parents=True, exist_ok=True)
            path.replace(folder / f"{len(list(folder.glob('*.json'))) + 1}.json")
        with disk_errors(path):
            write_quoting(path, dump_trajectory(trajectory))
        if Outcome.of(trajectory).finished:
            self.rounds(trajectory.qid).path.unlink(missing_ok=True)

    def rounds(self, qid: str) -> RoundsFile:
        """The finished rounds of a question. The file stays until a trajectory ends well, so that a
        question continues where it was killed or failed."""
        return RoundsFile(self.queries / f"{escape_qid(qid)}.rounds.jsonl")

    def add_counts(self, counts: Mapping[str, Mapping[str, float]]) -> None:
        """Add counts of pipeline stages since this start, by stage and name, to the manifest's
        `stages`. These are the sums of all starts, and the maximum for names that begin with
        `largest_`."""
        with self._changing_manifest() as manifest:
            for stage, numbers in counts.items():
                sums = manifest.setdefault("stages", {}).setdefault(stage, {})
                for name, number in numbers.items():
                    before = sums.get(name, 0)
                    largest = name.startswith("largest_")
                    sums[name] = max(before, number) if largest else before + number
                if lookups := sums.get("cache_hits", 0) + sums.get("cache_misses", 0):
                    sums["cache_hit_rate"] = round(sums.get("cache_hits", 0) / lookups, 4)

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Add the block to the manifest's `periods`, the times at which the run was under way, with
        when it `started` and `ended` (ISO 8601, UTC; no end where the process was killed)."""
        with self._changing_manifest() as manifest:
            manifest.setdefault("periods", []).append({"started": _now()})
        try:
            yield
        finally:
            with self._changing_manifest() as manifest:
                manifest["periods"][-1]["ended"] = _now()

    def note_costs(self, costs: Mapping[str, Mapping[str, float]]) -> None:
        """Add costs to the manifest's `costs`: seconds and other numbers by name, of enriching the
        corpus (`once`), of a `query` (mean), and `index_seconds`. Numbers that the manifest has
        already do not change, because a later start finds more in caches."""
        with self._changing_manifest() as manifest:
            noted = manifest.setdefault("costs", {})
            for when, numbers in costs.items():
                noted[when] = {**numbers, **noted.get(when, {})}

    def note(self, part: str, value: Mapping[str, Any]) -> None:
        """Set a part of the manifest, unless the value is empty: `chosen_parameters`, which
        pipeline stages chose by judgements, by stage; or `preflight`, the `findings` of the check
        before this start and what it took. A run that the check stopped before the first question
        may be started again with other fingerprints."""
        if value:
            with self._changing_manifest() as manifest:
                manifest[part] = dict(value)

    def note_servers(self, versions: Mapping[str, str]) -> None:
        """Add the versions of the servers of language models, by the group of the model, to the
        manifest's `servers`; those that are empty are left out. `InputError` if the run has been
        made with another version, whose replies may differ."""
        with self._changing_manifest() as manifest:
            noted = manifest.setdefault("servers", {}) if any(versions.values()) else {}
            for group, version in versions.items():
                if version and noted.setdefault(group, version) != version:
                    raise InputError(
                        f"the run {self.path} was made with {noted[group]} for {group}, and the "
                        f"server is {version} now",
                        valid="the version that it was started with",
                        do="install that version, or choose another name=",
                    )

    def read(self, qid: str) -> Trajectory | None:
        """The trajectory of a question; None if it has none yet."""
        path = self.trajectory_path(qid)
        return _checked(path, read_trajectory) if path.exists() else None

    def trajectories(self) -> Iterator[Trajectory]:
        """The recorded trajectories in the order of their ids."""
        paths = sorted(self._files(), key=lambda path: unescape_qid(path.stem) or path.stem)
        return (_checked(path, read_trajectory) for path in paths)

    def has_trajectories(self) -> bool:
        """Whether any question has a trajectory. Rankings without an agent have none."""
        return any(self._files())

    def statuses(self) -> dict[str, str]:
        """The exit status of each recorded trajectory by question id."""
        return {outcome.qid: outcome.status for outcome in sorted(self._outcomes())}

    def failures(self) -> Counter[str]:
        """The number of failed questions by reason."""
        return Counter(outcome.reason for outcome in self._outcomes() if outcome.status == "failed")

    def done(self) -> frozenset[str]:
        """The ids of finished questions (`Outcome.finished`)."""
        return frozenset(outcome.qid for outcome in self._outcomes() if outcome.finished)

    def pending(self, topics: Iterable[Topic]) -> list[Topic]:
        """The topics that are not finished, in their order."""
        done = self.done()
        return [topic for topic in topics if topic.qid not in done]

    def attempts(self, qid: str) -> int:
        """The number of recorded attempts at a question, failed ones included."""
        earlier = self.path / "retried" / escape_qid(qid)
        return len(list(earlier.glob("*.json"))) + self.trajectory_path(qid).exists()

    def stamp(self, qid: str) -> tuple[int, int] | None:
        """The size in bytes of a question's trajectory and the number of its attempts, which
        differ from those of the attempts before; None without a trajectory."""
        try:
            size = self.trajectory_path(qid).stat().st_size
        except FileNotFoundError:
            return None
        return size, self.attempts(qid)

    def state(self) -> str:
        """A hash of the names and sizes of the recorded trajectories, by which an evaluation is
        recognized as one of this run. Every write changes it, because a trajectory is new or
        replaces an attempt that moves to `retried/`. A copy of a run has the same state."""
        retried: list[Iterable[Path]] = [(self.path / "retried").glob("*/*.json")]
        for repeat in self.repeats()[1:]:
            retried += [repeat._files(), (repeat.path / "retried").glob("*/*.json")]
        others = _sizes(self.path, chain.from_iterable(retried))
        return fingerprint(_sizes(self.queries, self._files()) + others)

    def trajectory_path(self, qid: str) -> Path:
        """The file of a question's trajectory, which need not exist."""
        return self.queries / f"{escape_qid(qid)}.json"

    def _outcomes(self) -> Iterator[Outcome]:
        return (_checked(path, read_outcome) for path in self._files())

    def _files(self) -> Iterator[Path]:
        return (path for path in self.queries.glob("*.json") if not path.name.startswith("."))

    @contextmanager
    def _changing_manifest(self) -> Iterator[dict[str, Any]]:
        manifest = self.manifest()
        before = copy.deepcopy(manifest)
        yield manifest
        if manifest != before:
            with disk_errors(self.manifest_path):
                write_json(self.manifest_path, manifest)

    def _check_links(self) -> None:
        # The folder may come from somebody else, and a link could lead writes out of it.
        paths = chain.from_iterable(self.path.glob(pattern) for pattern in _FOLDERS)
        if link := next((path for path in paths if path.is_symlink()), None):
            raise InputError(
                f"{link} is a symbolic link",
                valid="a run whose files are in its own folder",
                do="replace the link by the files; the run folder itself may be a link",
            )

    def _start(self, manifest: dict[str, Any]) -> None:
        if not self.manifest_path.exists():
            if any(self._files()):
                raise InputError(
                    f"{self.path} holds trajectories but no manifest.json",
                    do="choose another name=, or delete that folder",
                )
            write_json(self.manifest_path, manifest)
            return
        written = self.manifest()
        findings = written.get("preflight", {}).get("findings", ())
        stopped = any(finding.get("level") == "fault" for finding in findings)
        if stopped and not any(chain(self._files(), self.queries.glob("*.rounds.jsonl"))):
            write_json(self.manifest_path, manifest)
            return
        check_same(self.path, written, manifest)
        resumed = written.get("resumed", [])
        before = resumed[-1] if resumed else written
        if any(before.get(key) != manifest.get(key) for key in PROVENANCE):
            now = {key: manifest.get(key) for key in ("created", *PROVENANCE)}
            written["resumed"] = [*resumed, now]
            write_json(self.manifest_path, written)


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


class RoundsFile:
    """The finished rounds of a question as JSON lines, obfuscated in an obfuscated run. Only the
    process that answers the question reads and writes it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> list[dict[str, Any]]:
        """The rounds in their order, up to the first damaged one; see `recover_json_lines`."""
        return recover_json_lines(self.path)

    def append(self, record: Mapping[str, Any]) -> None:
        """Add a round. It is on disk when this returns."""
        with closing(JsonLinesLog(self.path, quoting=True)) as log:
            log.append(record)


def _sizes(folder: Path, paths: Iterable[Path]) -> list[tuple[str, int]]:
    """The sorted names below `folder` and sizes in bytes of the files."""
    sizes = []
    for path in paths:
        with suppress(FileNotFoundError):  # A live run has moved it.
            sizes.append((str(path.relative_to(folder)), path.stat().st_size))
    return sorted(sizes)


_R = TypeVar("_R", Trajectory, Outcome)
_Value = TypeVar("_Value")


def _checked(path: Path, read: Callable[[Path], _R]) -> _R:
    """What `read` returns for a file, whose name must be that of the question."""
    record = read(path)
    if (name := escape_qid(record.qid)) != path.stem:
        raise InputError(
            f"{path} holds the trajectory of question {record.qid!r}",
            valid=f"{name}.json for that question",
            do="rename the file or move it away",
        )
    return record


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn an `OSError`, such as that of a full disk, into an `InputError`."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"cannot write {path}: {error.strerror or error}",
            do="free or change the disk, then run the same command, which continues the run",
        ) from error


# Question ids as file names.


def escape_qid(qid: str) -> str:
    """The file name (without suffix) of a question. Different ids have different names, on
    case-insensitive file systems too.

    Characters outside `A-Za-z0-9_.-~` become `%xx` for each byte of their UTF-8, an upper-case
    letter becomes `+` and the lower-case letter, a leading dot is escaped, and the empty id is `%`.
    Of a name with more than 180 characters, the first 140 stay, followed by `=` and 32 hexadecimal
    digits of the id's SHA-256.

    Example:
        >>> escape_qid("Q/1")
        '+q%2f1'
    """
    name = re.sub(
        r"%[0-9A-F]{2}|[A-Z]",
        lambda match: match[0].lower() if match[0][0] == "%" else f"+{match[0].lower()}",
        quote(qid, safe=""),
    )
    if name.startswith("."):
        name = "%2e" + name[1:]
    if len(name) > _LONGEST:
        digest = hashlib.sha256(qid.encode()).hexdigest()[:32]
        name = f"{name[:_UNSHORTENED]}={digest}"
    return name or "%"


def unescape_qid(name: str) -> str | None:
    """The id of an escaped name; None for a shortened name."""
    if "=" in name:
        return None
    if name == "%":
        return ""
    upper = re.sub(r"\+([a-z])", lambda match: match[1].upper(), name)
    return unquote(upper)


def repeat_id(qid: str, repeat: int) -> str:
    """The id of a repeat of a question where all repeats are mixed, such as on a ledger. Repeat 1
    has the id of the question."""
    return qid if repeat == 1 else f"{qid}#repeat{repeat}"


def repeat_of(name: str) -> int:
    """The repeat of a `repeat_id`."""
    found = re.search(r"#repeat([1-9]\d{0,5})$", name)
    return int(found[1]) if found else 1


def question_of(name: str, repeat: int | None = None) -> str:
    """The question id of the `repeat_id` of a repeat; None for the repeat that the id names."""
    repeat = repeat_of(name) if repeat is None else repeat
    return name if repeat == 1 else name.removesuffix(f"#repeat{repeat}")


def of_question(values: Mapping[str, _Value], name: str) -> _Value | None:
    """The value of a question id, or of the question that a `repeat_id` repeats; None without
    one."""
    return values[name] if name in values else values.get(question_of(name))


def evaluated_runs(folder: Path) -> list[Path]:
    """The run folders in `folder` that have an evaluation, by name, after waiting for those that
    are being written."""
    runs = sorted(path.parent for path in folder.glob("*/manifest.json"))
    return [run for run in runs if RunFolder(run).is_evaluated()]


def check_kind(folder: Path, kind: str) -> None:
    """`InputError` if `folder` holds results of another kind than `kind`."""
    present = ""
    if (folder / "manifest.json").exists():
        present = SINGLE_RUN
    elif (folder / RECORDED).exists():
        present = REPLAYS
    elif (folder / CELLS).exists() or any(folder.glob("*/manifest.json")):
        present = SWEEP_CELLS
    if present not in ("", kind):
        raise InputError(f"{folder} holds {present}, not {kind}", do="choose another name=")
