"""Every command that writes outlives every disturbance: the same command then ends with what an
undisturbed one gives, loses nothing, and pays for nothing twice."""

import json
import os
import re
import shutil
import signal
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from experiment_samples import TINY
from support.commands import CommandProcess, run_command
from support.needs import SOAK

pytestmark = pytest.mark.slow

OPTIONS = Path(__file__).resolve().parent / "options"
SEARCHPATH = f"hydra.searchpath=[file://{OPTIONS}]"
FLIGHT = 2


def model(group="llm"):
    """A scripted model that logs what it answers, and is gone while the file `down` exists."""
    option = group if group == "llm" else f"llm@{group}"
    return SEARCHPATH, f"{option}=scripted", f"{group}.log=asked", f"{group}.down=down"


def corpus_model():
    says = json.dumps({"keywords": ["seamark", "tidal range"]})
    return (*model("enrichment_llm"), f"enrichment_llm.says='{says}'")


class Command(NamedTuple):
    """A command; how many requests of a kill may be repeated, because they were in flight (0: it
    asks no model); whether a second start waits for the first instead of being refused."""

    words: tuple[str, ...]
    repeated: int = 0
    waits: bool = False


RUN = ("name=r", "preflight=0", f"concurrency={FLIGHT}")
GRID = ("grid.k1=[0.5,1.5]", "grid.b=[0.4]", "tuning.folds=2", "tuning.select=null")
COMMANDS = {
    "index": Command(("index", *TINY, "unit=passage", "paths.indexes=new"), waits=True),
    "run": Command(("run", *TINY, *RUN)),
    # A question takes three requests, and is asked again as a whole.
    "run with a model": Command(
        ("run", *TINY, *RUN, *model(), "agent=pi_serini", "llm.wavering=true", "repeats=2"),
        repeated=4 * FLIGHT,
    ),
    "run of the navigator": Command(
        ("run", *TINY, *RUN, "benchmark.questions=sets:2", "agent=navigator", "agent.pool=4")
    ),
    "rank": Command(("rank", *TINY, *RUN, *model("rewriter_llm"), "rewriter=q2q"), repeated=64),
    "sweep": Command(
        ("rank", "-m", *TINY, *RUN, "unit=document,passage", "retriever.k1=1,2"), waits=True
    ),
    "tune": Command(("tune", *TINY, *RUN, *GRID, "unit=passage")),
    "enrich": Command(
        (
            *("enrich", *TINY, *RUN, *corpus_model()),
            *("enrichment=sira", "enrichment.sides=corpus"),
        ),
        repeated=64,
    ),
    "evaluate": Command(
        ("evaluate", *model("judge_llm"), "judge=llm", f"concurrency={FLIGHT}", "runs/made"),
        repeated=FLIGHT,
    ),
    "replay": Command(("replay", *RUN, "retriever.k1=3", "runs/made")),
}
ASKING = [name for name, command in COMMANDS.items() if command.repeated]
SIGNALS = {"SIGKILL": {-signal.SIGKILL}, "SIGTERM": {-signal.SIGTERM, 143}, "SIGINT": {130}}
_DECIDED = ("metrics.json", "questions.json", "funnel.json", "tuning.json", "replay.json")
# Times, what was spent, and that a question went on behind a round.
_TIMED = re.compile(r"seconds|created|started|dollars|usage|warnings|^crc$")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A folder with a run and the indexes that the commands need."""
    folder = tmp_path_factory.mktemp("world")
    sets = ("run", *TINY, "benchmark.questions=sets:2", "agent=navigator", "name=sets")
    for words in (("run", *TINY, "name=made"), ("index", *TINY, "unit=passage"), sets):
        assert run_command(*words, folder=folder).returncode == 0
    shutil.rmtree(folder / "runs/sets")
    return folder


@pytest.fixture(scope="module")
def undisturbed(world, tmp_path_factory):
    """What a command leaves that is not disturbed, by its name: outcome, requests, moments."""
    known = {}

    def of(name):
        if name not in known:
            folder = shutil.copytree(world, tmp_path_factory.mktemp("undisturbed") / "work")
            ended = run(name, folder, "count:0")
            assert ended.returncode == 0, ended.stderr
            moments = int((folder / "moments").read_text())
            known[name] = outcome(folder), asked(folder), moments
        return known[name]

    return of


def environment(disturbance):
    return {"SOUNDINGLINE_TEST_DISTURB": disturbance} if disturbance else {}


def run(name, folder, disturbance=""):
    words = COMMANDS[name].words
    return run_command(*words, folder=folder, environment=environment(disturbance))


def plain(value):
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items() if not _TIMED.search(key)}
    return [plain(item) for item in value] if isinstance(value, list) else value


def outcome(folder):
    """What the command has made, by file: indexes, trajectories, rankings, measures, verdicts."""
    made = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name, place = path.name, str(path.relative_to(folder))
        if name in _DECIDED or (path.parent.name == "queries" and name[0] != "."):
            made[place] = plain(json.loads(path.read_text()))
        elif name.startswith("verdicts-"):
            rows = [json.loads(line) for line in path.read_text().splitlines()[1:]]
            made[place] = {row["qid"]: row["correct"] for row in rows}  # the newest ones
        elif name.endswith((".trec", ".csv", ".npy")) or name == "chosen.yaml":
            made[place] = path.read_bytes()
        elif name in ("selecting.npz", "reported.npz"):
            with np.load(path) as arrays:
                made[place] = {key: arrays[key].tolist() for key in arrays}
    return made


def asked(folder):
    log = folder / "asked"
    return log.read_text().splitlines() if log.exists() else []


def paid(folder):
    """How many requests with tokens are on the ledgers."""
    ledgers = (folder / "runs").rglob("ledger.jsonl")
    lines = [json.loads(line) for path in ledgers for line in path.read_text().splitlines()]
    return sum(line.get("input_tokens", 0) > 0 for line in lines)


def check(name, folder, undisturbed, lost=0):
    """The same command again: the undisturbed outcome, each request answered and paid for once, but
    for `lost` ones that a kill found in flight."""
    expected, requests, _ = undisturbed(name)
    ended = run(name, folder)
    assert ended.returncode == 0, ended.stderr
    received = outcome(folder)
    assert sorted(received) == sorted(expected)
    assert [place for place in expected if expected[place] != received[place]] == []
    assert not list(folder.rglob("*.tmp"))
    answered = asked(folder)
    assert set(answered) == set(requests)
    assert len(answered) - len(requests) <= lost
    assert len(answered) - lost <= paid(folder) <= len(answered)


@pytest.mark.parametrize("share", [0.15, 0.3, 0.4, 0.5, 0.7, 0.9] if SOAK else [0.4])
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (name, kind)
        for name in COMMANDS
        for kind in (*SIGNALS, "full")
        # All commands end alike at this signal.
        if SOAK or kind != "SIGTERM" or name == "run with a model"
    ],
)
def test_a_command_that_was_ended_goes_on(name, kind, share, world, undisturbed, tmp_path):
    moment = max(1, round(undisturbed(name)[2] * share))
    folder = shutil.copytree(world, tmp_path / "work")
    ended = run(name, folder, f"{kind}:{moment}")
    if kind == "full":
        assert ended.returncode != 0 and "No space left on device" in ended.stderr, ended.stderr
    else:
        assert ended.returncode in SIGNALS[kind], ended.stderr
    check(name, folder, undisturbed, COMMANDS[name].repeated)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_second_start_waits_or_is_refused_and_harms_nothing(name, world, undisturbed, tmp_path):
    folder = shutil.copytree(world, tmp_path / "work")
    words, _, waits = COMMANDS[name]
    moment = round(undisturbed(name)[2] * 0.4)
    first = CommandProcess(*words, folder=folder, environment=environment(f"stop:{moment}"))
    until = time.monotonic() + 60
    while not (folder / "stopped").exists() and time.monotonic() < until:
        assert first.poll(0.01) is None, first.wait()
    second = CommandProcess(*words, folder=folder)
    if not waits:
        refused = second.wait()
        assert refused.returncode == 2, refused.stderr
        assert f"is being written by process {first.pid}" in " ".join(refused.stderr.split())
    os.kill(first.pid, signal.SIGCONT)
    for process in (first, second)[: 1 + waits]:
        ended = process.wait()
        assert ended.returncode == 0, ended.stderr
    check(name, folder, undisturbed)


@pytest.mark.parametrize("name", ASKING)
def test_a_model_that_goes_away_costs_nothing(name, world, undisturbed, tmp_path):
    folder = shutil.copytree(world, tmp_path / "work")
    words, half = COMMANDS[name].words, len(undisturbed(name)[1]) // 2
    process = CommandProcess(*words, folder=folder)
    while len(asked(folder)) < half and process.poll(0.001) is None:
        pass
    (folder / "down").touch()
    process.wait()
    (folder / "down").unlink()
    check(name, folder, undisturbed, COMMANDS[name].repeated)
