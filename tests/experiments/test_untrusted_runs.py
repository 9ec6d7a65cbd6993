"""A run folder is data: evaluating it makes nothing that its manifest names, and whatever happens
to its files, a command ends in a result or in one line."""

import json
import os
import random
import shutil
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from support.benchmarks import CORPUS, QRELS, QUERIES, TINY, write_beir
from support.commands import run_entry
from support.needs import cases

from soundingline.experiments.config import Settings
from soundingline.experiments.recorded import recorded_benchmark
from soundingline.toolkit.benchmarks.beir import BeirBenchmark
from soundingline.toolkit.benchmarks.fictional import FictionalWorld
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.runs import RunFolder

BEIR = "soundingline.toolkit.benchmarks.beir.BeirBenchmark"
CANARY = "canary_of_manifests"
SECRET = "what the environment holds"


def rewrite(run, change):
    path = Path(run, "manifest.json")
    manifest = json.loads(path.read_text(encoding="utf-8"))
    change(manifest)
    path.write_text(json.dumps(manifest), encoding="utf-8")


@pytest.fixture
def canary(tmp_path, monkeypatch):
    """A file that appears when the module `canary_of_manifests` is imported."""
    place = tmp_path / "canary"
    source = (
        f"from pathlib import Path\nPath({str(place)!r}).touch()\ndef write(*a, **k):\n    pass\n"
    )
    library = tmp_path / "library"
    library.mkdir()
    (library / f"{CANARY}.py").write_text(source)
    monkeypatch.syspath_prepend(str(library))
    monkeypatch.delitem(sys.modules, CANARY, raising=False)
    return place


CALL = {"_target_": f"{CANARY}.write"}
CRAFTED = {
    "a target alone": lambda m: (m.pop("benchmark"), m["config"].update(benchmark=CALL)),
    "a target inside an argument": lambda m: m["benchmark"]["arguments"].update(name=CALL),
    "a target inside a list": lambda m: m["benchmark"]["arguments"].update(limit=[CALL]),
    "a target beside the arguments": lambda m: m["benchmark"]["arguments"].update(CALL),
    "a target deep in the arguments": lambda m: m["benchmark"]["arguments"].update(
        name={"a": [{"b": CALL}]}
    ),
    "positional arguments": lambda m: m["benchmark"]["arguments"].update(_args_=[CALL]),
    "a partial": lambda m: m["benchmark"]["arguments"].update(_partial_=True),
    "a target for an option": lambda m: m["benchmark"].update(option=f"{CANARY}.write"),
    "an option of another group": lambda m: m["benchmark"].update(option="../judge/exact"),
    "an override in the option": lambda m: m["benchmark"].update(option="beir,+x=1"),
    "no option": lambda m: m.update(benchmark=[CALL]),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a small benchmark and its run `runs/x`, which tests copy."""
    place = tmp_path_factory.mktemp("made")
    benchmark = write_beir(place / "beir", corpus=CORPUS, queries=QUERIES, qrels=QRELS)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        assert run_entry("run", "benchmark=beir", f"benchmark.path={benchmark}", "name=x") == 0
    return place


@pytest.fixture
def copied(made, entry, tmp_path):
    """`entry` in a folder with the copy of a run."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return entry


# Only a model that judges needs the benchmark for this command.
JUDGING = ("judge=llm", "llm@judge_llm=openai_compatible", "judge_llm.model=m")


@pytest.mark.parametrize("command", ["evaluate", "judge"])
@pytest.mark.parametrize("case", CRAFTED)
def test_what_a_manifest_names_is_not_called(case, command, copied, canary, capsys):
    before = Path("runs/x/metrics.json").read_bytes()
    rewrite("runs/x", CRAFTED[case])
    capsys.readouterr()
    model = (*JUDGING, "judge_llm.base_url=http://127.0.0.1:9/v1") if command == "judge" else ()
    assert copied(command, *model, "runs/x") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("soundingline: ") and "benchmark=" in line
    assert not canary.exists() and CANARY not in sys.modules
    assert Path("runs/x/metrics.json").read_bytes() == before


def test_interpolations_in_a_manifest_are_not_resolved_and_a_changed_benchmark_is_refused(
    copied, monkeypatch, capsys
):
    monkeypatch.setenv("SOUNDINGLINE_CANARY", SECRET)
    reference = "${oc.env:SOUNDINGLINE_CANARY}"
    for change, said in (({"limit": 1}, "has changed"), ({"path": reference}, reference)):
        rewrite(
            "runs/x", lambda manifest, new=change: manifest["benchmark"]["arguments"].update(new)
        )
        capsys.readouterr()
        assert copied("evaluate", "runs/x") == 2
        told = capsys.readouterr().err
        assert said in told and SECRET not in told


def test_arguments_of_a_preset_and_of_the_command_line_are_recorded(entry):
    assert entry("run", *TINY, "name=x") == 0
    described = json.loads(Path("runs/x/manifest.json").read_text())["benchmark"]
    assert described["option"] == "fictional"
    assert described["arguments"]["questions"] == 6 and described["arguments"]["seed"] == 7
    assert not [key for key in described["arguments"] if key.startswith("_")]
    assert entry("evaluate", "runs/x") == 0


OWN = f"_target_: {BEIR}\nname: mine\npath: ${{paths.data}}/mine\n"


@pytest.fixture
def own_option(tmp_path, beir, monkeypatch):
    """`--config-dir` with an option `benchmark=own/mine`, whose data lie below `paths.data`."""
    group = tmp_path / "options" / "benchmark" / "own"
    group.mkdir(parents=True)
    (group / "mine.yaml").write_text(OWN)
    shutil.copytree(beir, tmp_path / "here" / "mine")
    monkeypatch.setenv("SOUNDINGLINE_DATA", str(tmp_path / "here"))
    return f"--config-dir={tmp_path / 'options'}"


def test_a_run_is_evaluated_with_the_data_of_this_machine(entry, own_option, tmp_path, monkeypatch):
    assert entry("run", own_option, "benchmark=own/mine", "name=x") == 0
    (tmp_path / "here").rename(tmp_path / "elsewhere")
    assert entry("evaluate", own_option, "runs/x") == 2
    monkeypatch.setenv("SOUNDINGLINE_DATA", str(tmp_path / "elsewhere"))
    assert entry("evaluate", own_option, "runs/x") == 0
    monkeypatch.delenv("SOUNDINGLINE_DATA")
    assert entry("evaluate", own_option, f"paths.data={tmp_path / 'elsewhere'}", "runs/x") == 0


def test_a_place_that_the_command_line_gave_is_found_again_without_it(
    entry, own_option, tmp_path, monkeypatch
):
    monkeypatch.delenv("SOUNDINGLINE_DATA")
    given = (own_option, "benchmark=own/mine", f"paths.data={tmp_path / 'here'}")
    assert entry("run", *given, "name=x") == 0
    assert entry("evaluate", own_option, "runs/x") == 0


def test_an_option_that_is_not_here_is_told_and_may_be_given(entry, own_option, tmp_path, capsys):
    assert entry("run", own_option, "benchmark=own/mine", "name=x") == 0
    capsys.readouterr()
    assert entry("evaluate", "runs/x") == 2
    told = capsys.readouterr().err
    assert "own/mine" in told and "--config-dir" in told
    elsewhere = ("benchmark=beir", f"benchmark.path={tmp_path / 'here' / 'mine'}")
    assert entry("evaluate", *elsewhere, "benchmark.name=mine", "runs/x") == 0
    # What is given is held against the run as what is recorded is.
    capsys.readouterr()
    assert entry("evaluate", *elsewhere, "benchmark.limit=1", "runs/x") == 2
    assert "has changed" in capsys.readouterr().err


# Random manifests, in one process, watched by an audit hook.

WATCHED = {"import", "subprocess.Popen", "shutil.rmtree", "socket.connect", "ctypes.dlopen"}
WATCHED |= {f"os.{name}" for name in ("system", "exec", "posix_spawn", "remove", "rename", "mkdir")}
WATCHED.add("pickle.find_class")
_seen = None


def _audit(event, arguments):
    if _seen is None:
        return
    writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & os.O_ACCMODE
    if event in WATCHED or writes:
        _seen.append((event, repr(arguments[:2])))


sys.addaudithook(_audit)


@contextmanager
def watched():
    """What the block imports, runs, writes and removes."""
    global _seen
    _seen = []
    try:
        yield _seen
    finally:
        _seen = None


@pytest.fixture
def context(tmp_path, beir, monkeypatch):
    """As an evaluation's own: a composed configuration, and the options beside it."""
    monkeypatch.chdir(tmp_path)  # the path `beir` leads to a benchmark
    monkeypatch.setenv("SOUNDINGLINE_CANARY", SECRET)
    monkeypatch.setenv("SOUNDINGLINE_DATA", str(tmp_path / "absent"))
    composed = Settings.compose()
    for name in composed.option_names("benchmark"):
        # What an ordinary manifest makes is loaded before anything is watched.
        place = tmp_path / f"run of {name}"
        place.mkdir()
        for arguments in ({}, {"path": str(beir)}):
            recorded = {"benchmark": {"option": name, "arguments": arguments}}
            (place / "manifest.json").write_text(json.dumps(recorded))
            with suppress(InputError):
                recorded_benchmark(RunFolder(place), composed)
    return composed


TARGETS = [f"{CANARY}.write", CANARY, BEIR, "", ".."]
TARGETS += ["os.system", "subprocess.run", "pathlib.Path.touch", "builtins.exec", "toolkit"]
TARGETS += ["hydra.utils.instantiate", "antigravity.geohash"]
TARGETS += ["soundingline.toolkit.benchmarks.fictional.FictionalWorld"]
TARGETS += ["soundingline.toolkit.llm.local_servers.serving"]
KEYS = ["_target_", "_args_", "_partial_", "_convert_", "_recursive_", "_x", "path", "name"]
KEYS += ["split", "limit", "documents", "questions", "seed", "args", "a", "", "."]
TEXTS = ["${oc.env:SOUNDINGLINE_CANARY}", "${paths.data}", "${chosen:/etc,k1}", "???", "test", "."]
TEXTS += ["${oc.decode:${oc.env:SOUNDINGLINE_CANARY}}", "\x1b[31m", "\0", "\udc80", "../..", "***"]
TEXTS += ["beir"]
scalars = st.none() | st.booleans() | st.integers(-3, 300) | st.floats() | st.sampled_from(TEXTS)
scalars |= st.sampled_from(TARGETS) | st.text(max_size=8)


values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4)
    ),
    max_leaves=12,
)
arguments = st.dictionaries(st.sampled_from(KEYS), values, max_size=5)
described = st.fixed_dictionaries({}, optional={"_target_": st.sampled_from(TARGETS)}).flatmap(
    lambda head: arguments.map(lambda rest: {**rest, **head})
)
names = st.sampled_from(["beir", "fictional", "cacm", "../judge/exact", "beir,x=1", *TARGETS])
likely = st.fixed_dictionaries(
    {"path": st.just("beir")},
    optional={"limit": st.integers(1, 2) | values, "name": st.just("x") | values, "split": values},
)
manifests = st.fixed_dictionaries(
    {},
    optional={
        "benchmark": st.fixed_dictionaries({"option": st.just("beir"), "arguments": likely})
        | st.fixed_dictionaries({"option": names, "arguments": arguments})
        | values,
        "config": st.fixed_dictionaries({"benchmark": described | values}) | values,
        "factors": st.fixed_dictionaries({"benchmark": names}) | values,
        "fingerprints": st.fixed_dictionaries({"benchmark": st.text(max_size=12)}) | values,
    },
)


@settings(max_examples=cases(400), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(manifest=manifests | values)
def test_whatever_a_manifest_holds_nothing_is_imported_run_or_written(
    manifest, context, canary, tmp_path
):
    run = RunFolder(tmp_path / "run")
    run.path.mkdir(exist_ok=True)
    run.manifest_path.write_text(json.dumps(manifest), encoding="utf-8")
    modules = set(sys.modules)
    told = ""
    with watched() as events:
        try:
            benchmark = recorded_benchmark(run, context)
        except InputError as error:
            told, benchmark = str(error), None
    event(told.partition("again: ")[2][:32] or "made")
    assert isinstance(benchmark, (BeirBenchmark, FictionalWorld, type(None)))
    assert events == [] and set(sys.modules) == modules
    assert not canary.exists() and SECRET not in told


def test_the_watch_sees_imports_processes_and_writes(canary, tmp_path):
    with watched() as events:
        __import__(CANARY)
        os.system("true")
        (tmp_path / "written").touch()
    assert canary.exists()
    assert {"import", "os.system", "open"} <= {event for event, _ in events}


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


def make_runs(folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert run_entry("run", "name=agent", *BENCHMARK) == 0
        assert run_entry("run", "name=other", *BENCHMARK, "agent.max_searches=2") == 0
        assert run_entry("rank", "name=ranked", *BENCHMARK) == 0
        assert run_entry("tune", "name=tuned", *BENCHMARK, *GRID) == 0
        shutil.copytree("runs", "kept")


@pytest.fixture(scope="module")
def runs(once, tmp_path_factory):
    """Evaluated runs of each kind in the working folder, and their copies in `kept`."""
    place = tmp_path_factory.mktemp("damaged")
    shutil.copytree(once("runs-of-each-kind", make_runs), place, dirs_exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        yield place


def restored(run):
    """The run as it was made, and nothing that a command has left."""
    for name in (run, *OTHERS):
        shutil.rmtree(Path("runs") / name, ignore_errors=True)
    return Path(shutil.copytree(Path("kept") / run, Path("runs") / run))


def ended(command, capsys):
    """The exit code of a command, which has told bad input in one line. Questions in no fold of a
    damaged tuning are a notice."""
    capsys.readouterr()
    code = run_entry(*command)
    error = capsys.readouterr().err
    lines = [line for line in error.splitlines() if line.startswith("soundingline: ")]
    assert "Traceback" not in error
    assert code in (0, 2)
    assert len(lines) == 1 if code == 2 else all("in no fold" in line for line in lines), lines
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


@pytest.mark.slow
@pytest.mark.parametrize("run", COMMANDS)
def test_every_command_ends_in_a_result_or_in_one_line(run, runs, capsys):
    draw = random.Random(f"damage {run}")
    for number in range(cases(400, 12)):
        damage(restored(run), draw)
        ended(COMMANDS[run][number % len(COMMANDS[run])], capsys)


@pytest.mark.slow
@pytest.mark.parametrize("run", ["agent", "ranked"])
def test_a_comparison_is_never_of_damaged_numbers(run, runs, capsys):
    command = COMMANDS[run][0]
    restored(run)
    assert ended(command, capsys) == 0
    whole = Path("runs/compared/verdicts.json").read_bytes()
    draw, told = random.Random(f"numbers {run}"), 0
    for _ in range(cases(400, 16)):
        path = damage(restored(run), draw)
        if ended(command, capsys) == 0:
            assert Path("runs/compared/verdicts.json").read_bytes() == whole, path
        else:
            told += 1
    assert told


NUMBERS = ("metrics.json", *(f"evaluation/{n}.json" for n in ("questions", "funnel", "summary")))


@pytest.mark.slow
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


@pytest.mark.slow
def test_evaluating_a_run_without_an_agent_leaves_its_numbers_alone(runs, capsys):
    metrics = restored("ranked") / "metrics.json"
    before = metrics.read_bytes()
    assert run_entry("evaluate", "runs/ranked") == 2
    assert "has no trajectories to evaluate" in capsys.readouterr().err
    assert metrics.read_bytes() == before
