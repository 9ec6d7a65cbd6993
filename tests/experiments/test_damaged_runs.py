"""Whatever happens to the files of a run, a command ends in a result or in one line."""

import json
import random
import shutil
from pathlib import Path

import pytest
from support.commands import run_entry
from support.needs import cases

pytestmark = pytest.mark.slow

WORLD = Path(__file__).resolve().parents[1] / "data" / "golden" / "world"
BENCHMARK = ("benchmark=beir", f"benchmark.path={WORLD}", "benchmark.split=null")
GRID = ("tuning.select=null", "grid.k1=[0.5,0.9]", "grid.b=[0.4]")
FROM_TUNING = ("retriever=bm25_from_tuning", "retriever.source=runs/tuned")
COMPARE = ("name=compared", "--measure=nDCG@10", "--measure=AP")
OTHERS = ("compared", "replayed", "again", "out")

# By run: what reads it.
COMMANDS = {
    "agent": [
        ("compare", "runs/agent", "runs/other", *COMPARE),
        ("evaluate", "runs/agent"),
        ("export", "runs/agent", "format=browsecomp_plus", "out=runs/out"),
        ("export", "runs/agent", "format=inspect_json", "out=runs/out"),
        ("export", "runs/agent", "format=leaderboard", "out=runs/out"),
        ("judge", "runs/agent"),
        ("lint", "runs/agent"),
        ("replay", "runs/agent", "name=replayed"),
        ("run", "name=agent", *BENCHMARK),
    ],
    "ranked": [
        ("compare", "runs/ranked", "runs/other", *COMPARE),
        ("evaluate", "runs/ranked"),
        ("export", "runs/ranked", "format=trec", "out=runs/out"),
        ("rank", "name=ranked", *BENCHMARK),
    ],
    "tuned": [
        ("compare", "runs/tuned", "runs/ranked", *COMPARE),
        ("tune", "name=tuned", *BENCHMARK, *GRID),
        ("rank", "name=again", *BENCHMARK, *FROM_TUNING),
    ],
}

READ = (".json", ".jsonl", ".npz", ".trec", ".yaml", ".js", ".html")
VALUES = (
    *(None, "x", -1, 0, 10**400, 2**70, 1e308, float("nan"), float("-inf"), True, "", "\ud800"),
    *([], {}, [[[]]], {"a": [1]}, [None]),
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Evaluated runs of each kind in the working folder, and their copies in `kept`."""
    folder = tmp_path_factory.mktemp("damaged")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert run_entry("run", "name=agent", *BENCHMARK) == 0
        assert run_entry("run", "name=other", *BENCHMARK, "agent.max_searches=2") == 0
        assert run_entry("rank", "name=ranked", *BENCHMARK) == 0
        assert run_entry("tune", "name=tuned", *BENCHMARK, *GRID) == 0
        shutil.copytree("runs", "kept")
        yield folder


def restored(run):
    """The run as it was made, and nothing that a command has left."""
    for name in (run, *OTHERS):
        shutil.rmtree(Path("runs") / name, ignore_errors=True)
    return Path(shutil.copytree(Path("kept") / run, Path("runs") / run))


def ended(command, capsys):
    """The exit code of a command, which has told bad input in one line."""
    capsys.readouterr()
    code = run_entry(*command)
    error = capsys.readouterr().err
    lines = [line for line in error.splitlines() if line.startswith("soundingline: ")]
    assert "Traceback" not in error
    assert code in ((0, 1, 2) if command[0] == "lint" else (0, 2))
    assert len(lines) == (code == 2)
    return code


def places(value, path=()):
    """The paths of all values inside a JSON value."""
    inner = value.items() if isinstance(value, dict) else ()
    for key, item in enumerate(value) if isinstance(value, list) else inner:
        yield (*path, key)
        yield from places(item, (*path, key))


def changed_json(content, draw):
    """One value of a JSON file replaced, removed or wrapped; shallow and deep ones alike."""
    value = json.loads(content)
    paths = list(places(value))
    if not paths:
        return b"[1]"
    depth = draw.choice(sorted({len(path) for path in paths}))
    *way, last = draw.choice([path for path in paths if len(path) == depth])
    parent = value
    for key in way:
        parent = parent[key]
    kind = draw.choice(("replace", "replace", "remove", "wrap"))
    if kind == "remove":
        del parent[last]
    else:
        parent[last] = draw.choice(VALUES) if kind == "replace" else [parent[last]]
    return json.dumps(value).encode()


def zeroed(content, draw):
    start = draw.randrange(len(content) + 1)
    return content[:start] + bytes(len(content[start : start + 512])) + content[start + 512 :]


def flipped(content, draw):
    place = draw.randrange(len(content) or 1)
    flip = [byte ^ 1 << draw.randrange(8) for byte in content[place : place + 1]]
    return content[:place] + bytes(flip) + content[place + 1 :]


OTHERS_CONTENT = (b"", b"[]", b"null", b'"x"', b"3", b"{}", b"NaN", b"\xff\xfe")
BYTES = (
    flipped,
    zeroed,
    lambda content, draw: content[: draw.randrange(len(content) + 1)],
    lambda content, draw: draw.choice((*OTHERS_CONTENT, b'{"a":' + b"[" * 200_000)),
)


def damage(run, draw):
    """Damage one file of a run; its path."""
    read = [path for path in run.rglob("*") if path.is_file() and path.suffix in READ]
    path = draw.choice(sorted(read))
    kind = draw.random()
    if kind < 0.1:
        path.unlink()
    elif kind < 0.15:
        path.unlink()
        path.mkdir()
    elif kind < 0.6 and path.suffix == ".json":
        path.write_bytes(changed_json(path.read_bytes(), draw))
    else:
        path.write_bytes(draw.choice(BYTES)(path.read_bytes(), draw))
    return path.relative_to(run)


@pytest.mark.parametrize("run", COMMANDS)
def test_every_command_ends_in_a_result_or_in_one_line(run, runs, capsys):
    draw = random.Random(f"damage {run}")
    for number in range(cases(400, 12)):
        damage(restored(run), draw)
        ended(COMMANDS[run][number % len(COMMANDS[run])], capsys)


@pytest.mark.parametrize("run", ["agent", "ranked"])
def test_a_comparison_is_never_of_damaged_numbers(run, runs, capsys):
    command = COMMANDS[run][0]
    restored(run)
    assert ended(command, capsys) == 0
    whole = Path("runs/compared/verdicts.json").read_bytes()
    draw, told = random.Random(f"numbers {run}"), 0
    for _ in range(cases(400, 16)):
        folder = restored(run)
        path = damage(folder, draw)
        if ended(command, capsys) == 0:
            assert Path("runs/compared/verdicts.json").read_bytes() == whole, path
        else:
            told += 1
    assert told


NUMBERS = ("metrics.json", *(f"evaluation/{n}.json" for n in ("questions", "funnel", "summary")))


@pytest.mark.parametrize("name", NUMBERS)
def test_a_changed_digit_is_told_and_evaluating_again_mends_it(name, runs, capsys):
    path = restored("agent") / name
    before = path.read_text(encoding="utf-8")
    changed = before.replace("1", "2", 1)
    assert changed != before and json.loads(changed)
    path.write_text(changed, encoding="utf-8")
    assert run_entry(*COMMANDS["agent"][0]) == 2
    told = capsys.readouterr().err
    assert path.name in told and "evaluate it again" in told
    assert ended(("evaluate", "runs/agent"), capsys) == 0
    assert path.read_text(encoding="utf-8") == before
    assert ended(COMMANDS["agent"][0], capsys) == 0


def test_evaluating_a_run_without_an_agent_leaves_its_numbers_alone(runs, capsys):
    metrics = restored("ranked") / "metrics.json"
    before = metrics.read_bytes()
    assert run_entry("evaluate", "runs/ranked") == 2
    assert "has no trajectories to evaluate" in capsys.readouterr().err
    assert metrics.read_bytes() == before
