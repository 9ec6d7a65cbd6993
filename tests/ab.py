"""Compares this working tree with an older one: rankings, trajectories, measures and times.

    python tests/ab.py REVISION                     a revision of this repository
    python tests/ab.py /path/to/checkout            another checkout
    OLD=/path/to/venv python tests/ab.py            an environment with an installed wheel

CACM and wikimix are run where `SOUNDINGLINE_DATA` (default ../shared/data) has them, and a
generated world of 10,000 documents, which the older tree writes, so that the generator may change.
Both trees run the same commands, each with indexes of its own: first once to compare what they
leave, then in turns to compare their times. Both must have the options that this file names.

Scores agree to 1e-5 of their size; hits whose scores are closer than that may change places. The
exit code is 1 where anything differs.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("toolkit", "pipelines", "agents", "experiments", "conf")
SETTINGS = ("bm25_default", "bm25_text_ranking", "bm25_sira", "ql", "bm25_rm3")
TOLERANCE = 1e-5
POINTS = "points.csv"
SHOWN = 8  # differences of each comparison
_TIMED = re.compile(r"seconds|created|started|_ms$")
# Of 363 settings, those that both trees need no long time for.
GRID = "grid.k1=0:8:1 grid.b=0:1:0.25"
COLLECTIONS = {
    "cacm": "benchmark=cacm benchmark.split=test",
    "wikimix": "benchmark=wikimix benchmark.split=test benchmark.limit=100",
    "fictional": "benchmark=beir benchmark.path={fictional} benchmark.split=test",
}
TUNINGS = {"cacm": "tuning.select=null", "wikimix": "tuning.select=dev tuning.report=test"}


class Tree(NamedTuple):
    """One of both versions, and how Python finds it."""

    name: str
    python: str
    path: str  # of modules; empty where they are installed

    def environment(self):
        variables = {**os.environ, "PYTHONPATH": self.path, "OMP_NUM_THREADS": "1"}
        return variables if self.path else {k: v for k, v in variables.items() if k != "PYTHONPATH"}

    def run(self, arguments, folder):
        """Run Python with these arguments; the processor seconds that it took."""
        before = _processor_seconds()
        ended = subprocess.run(
            [self.python, *arguments],
            cwd=folder,
            env=self.environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        if ended.returncode:
            sys.exit(f"{self.name}: {' '.join(arguments)}\n{ended.stderr}")
        return _processor_seconds() - before


def _processor_seconds():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@contextmanager
def older(source, folder):
    """The older tree: of an environment, a folder, or a revision in a temporary worktree."""
    if environment := os.environ.get("OLD"):
        python = Path(environment)
        python = python / "bin" / "python" if python.is_dir() else python
        yield Tree("old", str(python), "")
    elif Path(source).is_dir():
        yield of_checkout("old", Path(source).resolve(), folder)
    else:
        place = folder / "worktree"
        add = ["git", "worktree", "add", "--detach", str(place), source]
        subprocess.run(add, cwd=ROOT, check=True, capture_output=True)
        try:
            yield of_checkout("old", place, folder)
        finally:
            remove = ["git", "worktree", "remove", "--force", str(place)]
            subprocess.run(remove, cwd=ROOT, check=True, capture_output=True)


def of_checkout(name, place, folder):
    """The tree in a folder. A folder `soundingline` with links to its packages stands for an
    installation."""
    links = folder / f"{name}-modules" / "soundingline"
    links.mkdir(parents=True)
    for package in PACKAGES:
        (links / package).symlink_to(place / package)
    return Tree(name, sys.executable, str(links.parent))


class Side(NamedTuple):
    """A tree and the folder that it works in."""

    tree: Tree
    folder: Path

    def start(self, command, text):
        words = ["-m", "soundingline.experiments", command, *text.split()]
        return self.tree.run(words, self.folder)

    def probe(self, task, *arguments):
        """Run this file inside the tree."""
        return self.tree.run(
            [str(Path(__file__).resolve()), "--inside", task, *arguments], self.folder
        )


# What runs inside one of the trees.


def inside(task, *arguments):
    if task == "world":
        from soundingline.toolkit.benchmarks.fictional import FictionalWorld

        folder, documents = arguments
        world = FictionalWorld(documents=int(documents), questions=50, seed=11)
        return write_world(Path(folder), world)
    import pandas as pd

    from soundingline.experiments import Experiment

    out, questions, *overrides = arguments
    lines = Path(questions).read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    topics = pd.DataFrame([{"qid": row["_id"], "query": row["text"]} for row in rows])
    frame = Experiment.compose(*overrides).pipeline().transform(topics)
    frame = frame.sort_values(["qid", "rank"])[["qid", "docno", "score"]]
    frame.to_csv(out, sep="\t", header=False, index=False, float_format="%.9g")


def write_world(folder, world):
    """Write a generated world as a BEIR folder."""
    (folder / "qrels").mkdir(parents=True)
    documents = (
        {"_id": each.docid, "title": each.title, "text": each.text} for each in world.documents()
    )
    questions = (
        {"_id": topic.qid, "text": topic.text, "answers": list(world.answers[topic.qid])}
        for topic in world.topics
    )
    for name, rows in (("corpus", documents), ("queries", questions)):
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    judged = [
        f"{qid}\t{docid}\t{grade}\n"
        for qid, grades in world.qrels["evidence"].items()
        for docid, grade in grades.items()
    ]
    text = "".join(["query-id\tcorpus-id\tscore\n", *judged])
    (folder / "qrels" / "test.tsv").write_text(text, encoding="utf-8")


# Comparisons: each gives one line a difference.


def rankings(old, new):
    before, after = _hits(old), _hits(new)
    for qid in dict.fromkeys([*before, *after]):
        rows, others = before.get(qid, []), after.get(qid, [])
        if len(rows) != len(others):
            yield f"{qid}: {len(rows)} hits, now {len(others)}"
        scores = dict(others)
        for rank, ((docid, score), (other, _)) in enumerate(zip(rows, others, strict=False), 1):
            now = scores.get(docid)
            if now is None:
                yield f"{qid}: {docid} at rank {rank} is gone"
            elif not _near(score, now):
                yield f"{qid}: {docid} at rank {rank} has {score}, now {now}"
            elif docid != other and not _near(score, scores[other]):
                yield f"{qid}: {docid} at rank {rank}, now {other}"


def _hits(path):
    hits = {}
    with path.open(encoding="utf-8", newline="") as stream:
        for qid, docid, score in csv.reader(stream, delimiter="\t"):
            hits.setdefault(qid, []).append((docid, float(score)))
    return hits


def _near(one, other):
    return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)


def values(old, new, path=""):
    """Every value of two JSON documents that differs, but for times."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in dict.fromkeys([*old, *new]):
            if not _TIMED.search(str(key)):
                yield from values(old.get(key), new.get(key), f"{path}/{key}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for place, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from values(one, other, f"{path}/{place}")
    elif isinstance(old, float) and isinstance(new, float):
        if not _near(old, new):
            yield f"{path}: {old}, now {new}"
    elif old != new:
        yield f"{path}: {str(old)[:120]}, now {str(new)[:120]}"


def runs(old, new):
    """Measures and trajectories of two run folders."""
    for name in ("metrics.json", "tuning.json"):
        if (old / name).exists():
            yield from values(_read(old / name), _read(new / name), name)
    for path in sorted((old / "queries").glob("[!.]*.json")):
        other = new / "queries" / path.name
        if not other.exists():
            yield f"{path.name} is missing"
            continue
        yield from values(_read(path), _read(other), path.stem)


def cells(old, new):
    """The cells of two sweeps, which are told apart by their retrievers."""
    before, after = ({_retriever(path): path for path in _cells(each)} for each in (old, new))
    for name in dict.fromkeys([*before, *after]):
        if name not in before or name not in after:
            yield f"{name} is only in one sweep"
            continue
        yield from (f"{name} {line}" for line in runs(before[name], after[name]))


def _cells(folder):
    return sorted(path.parent for path in folder.glob("*/manifest.json"))


def _retriever(cell):
    return str(_read(cell / "manifest.json")["factors"]["retriever"])


def tables(old, new):
    """The points of two tunings."""
    yield from runs(old, new)
    before, after = ((each / POINTS).read_text().splitlines() for each in (old, new))
    for number, (one, other) in enumerate(zip(before, after, strict=False), 1):
        yield from values(_numbers(one), _numbers(other), f"{POINTS}:{number}")
    if len(before) != len(after):
        yield f"{POINTS}: {len(before)} lines, now {len(after)}"


def _numbers(line):
    return [float(each) if re.fullmatch(r"-?[\d.e+-]+", each) else each for each in line.split(",")]


def _read(path):
    return json.loads(path.read_text(encoding="utf-8"))


# The comparison as a whole.


class Report:
    """Lines of differences, and processor seconds of both sides by task."""

    def __init__(self) -> None:
        self.differing = 0
        self.seconds = {}

    def compared(self, task, lines):
        found = list(lines)
        self.differing += bool(found)
        say(f"{task}: {f'{len(found)} differences' if found else 'equal'}")
        for line in found[:SHOWN]:
            say(f"    {line}")

    def took(self, task, side, seconds):
        self.seconds.setdefault(task, {}).setdefault(side, []).append(seconds)

    def times(self):
        say(f"\n{'processor seconds (median)':42}{'old':>8}{'new':>8}{'new / old':>11}")
        for task, sides in self.seconds.items():
            old, new = (median(sides[side]) for side in ("old", "new"))
            say(f"{task:42}{old:8.2f}{new:8.2f}{new / old:11.2f}")


def compare(sides, collections, rounds):
    report = Report()
    for name, text in collections.items():
        for side in sides:
            for task, words in _tasks(name, text, "0").items():
                side.start(task, words)
            for setting in SETTINGS:
                overrides = f"{text} retriever={setting} paths.indexes=indexes-0".split()
                side.probe("ranked", f"{name}-{setting}.tsv", f"{name}.jsonl", *overrides)
        old, new = (side.folder for side in sides)
        for setting in SETTINGS:
            file = f"{name}-{setting}.tsv"
            report.compared(f"{name}: ranking {setting}", rankings(old / file, new / file))
        ranked, answered, tuned = (f"runs/{name}-{task}-0" for task in ("rank", "run", "tune"))
        report.compared(f"{name}: rank, measures", cells(old / ranked, new / ranked))
        report.compared(f"{name}: run, trajectories", runs(old / answered, new / answered))
        report.compared(f"{name}: tune", tables(old / tuned, new / tuned))
        # What was run once has compiled its kernels.
        for round_ in range(1, rounds + 1):
            for task, words in _tasks(name, text, str(round_)).items():
                # Each of both is first in every other round.
                for side in sides if round_ % 2 else reversed(sides):
                    report.took(f"{name}: {task}", side.tree.name, side.start(task, words))
    if rounds:
        report.times()
    say(f"\n{report.differing} comparisons differ" if report.differing else "\nno difference")
    return int(bool(report.differing))


def _tasks(name, text, round_):
    """The overrides of each command on one collection. The first one builds the index."""
    places = f"paths.indexes=indexes-{round_} paths.caches=caches-{round_} traces=false"
    tasks = {
        "index": text,
        "rank": f"-m {text} retriever={','.join(SETTINGS)}",
        "run": f"{text} retriever=bm25_tuned benchmark.limit=10",
        "tune": f"{text} {GRID} {TUNINGS.get(name, 'tuning.select=null')}",
    }
    return {task: f"{words} name={name}-{task}-{round_} {places}" for task, words in tasks.items()}


def say(text):
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("old", nargs="?", default="HEAD", help="a revision or a folder")
    parser.add_argument("--documents", type=int, default=10_000, help="of the generated world")
    parser.add_argument("--rounds", type=int, default=3, help="how often commands are timed, or 0")
    parser.add_argument("--only", default="", help="collections, separated by commas")
    given = parser.parse_args()
    data = Path(os.environ.get("SOUNDINGLINE_DATA", ROOT.parent / "shared" / "data")).resolve()
    os.environ["SOUNDINGLINE_DATA"] = str(data)
    folder = Path(tempfile.mkdtemp(prefix="ab-"))
    try:
        with older(given.old, folder) as old:
            trees = (old, of_checkout("new", ROOT, folder))
            sides = []
            for tree in trees:
                place = folder / tree.name
                place.mkdir()
                sides.append(Side(tree, place))
            world = folder / "fictional"
            chosen = given.only.split(",") if given.only else list(COLLECTIONS)
            if "fictional" in chosen:
                sides[0].probe("world", str(world), str(given.documents))
            collections = {}
            for name in chosen:
                source = world if name == "fictional" else data / name
                if not source.is_dir():
                    say(f"{name}: left out, there is no folder {source}")
                    continue
                collections[name] = COLLECTIONS[name].format(fictional=world)
                lines = (source / "queries.jsonl").read_text(encoding="utf-8").splitlines()
                for side in sides:
                    questions = "".join(f"{line}\n" for line in lines[:100])
                    (side.folder / f"{name}.jsonl").write_text(questions, encoding="utf-8")
            return compare(sides, collections, given.rounds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inside"]:
        inside(*sys.argv[2:])
    else:
        began = time.monotonic()
        code = main()
        say(f"{time.monotonic() - began:.0f} s")
        sys.exit(code)
