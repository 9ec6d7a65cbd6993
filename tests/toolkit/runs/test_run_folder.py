"""The run folder and its trajectories: one writer, resume, rounds, names, round trips."""

import errno
import fcntl
import json
import os
import platform
import random
import re
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.assertions import refused
from support.commands import forked
from support.needs import cases

from soundingline.toolkit.data import Topic
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.files import dump_json
from soundingline.toolkit.locks import writer_lock
from soundingline.toolkit.obfuscation import VARIABLE
from soundingline.toolkit.runs import manifest as manifests
from soundingline.toolkit.runs.manifest import make_manifest
from soundingline.toolkit.runs.run_folder import (
    CELLS,
    EVALUATION_LOCK,
    METRICS,
    RECORDED,
    REPLAYS,
    SINGLE_RUN,
    SWEEP_CELLS,
    RunFolder,
    check_kind,
    escape_qid,
    evaluated_runs,
    of_question,
    question_of,
    repeat_id,
    repeat_of,
    unescape_qid,
)
from soundingline.toolkit.trajectory import (
    RUN_OUT_OF_MONEY,
    STATUSES,
    TIERS,
    Answer,
    Exposure,
    RecordedCall,
    Trajectory,
    dump_trajectory,
    from_record,
    read_trajectory,
    surfaced,
    to_record,
)

MANIFEST = {"fingerprints": {"benchmark": "b1", "index": "i1"}, "versions": {}}
TOPICS = [Topic(qid, f"question {qid}") for qid in ("3", "1", "../../x", "2")]
MEMORY = Path("/proc/meminfo")
ROUND = {"row": {"checklist": ["a mill by the Wey"]}}


def trajectory(qid, status="completed", reason=""):
    return Trajectory(qid, f"question {qid}", status, tiers={"surfaced": ()}, reason=reason)


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path / "runs" / "a")


def write(folder, *trajectories):
    with folder.writing(MANIFEST):
        for each in trajectories:
            folder.write(each)


def test_trajectories_are_read_in_the_order_of_ids(folder, tmp_path):
    write(folder, *map(trajectory, ("2", "a", "B", "../../x", "3")))
    assert [t.qid for t in folder.trajectories()] == ["../../x", "2", "3", "B", "a"]
    assert folder.read("3") == trajectory("3") and folder.read("1") is None
    (hostile,) = tmp_path.rglob("*x.json")
    assert hostile.parent == folder.queries


def test_failed_questions_and_those_that_the_end_of_money_cut_short_are_pending(folder):
    with folder.writing(MANIFEST):
        assert folder.manifest() == MANIFEST
        assert folder.pending(TOPICS) == TOPICS
        folder.write(trajectory("3", "timed_out"))
        folder.write(trajectory("1", "failed"))
        folder.write(trajectory("../../x", "out_of_money", RUN_OUT_OF_MONEY))
        folder.write(trajectory("2", "out_of_money"))  # the cap of the question
        assert [topic.qid for topic in folder.pending(TOPICS)] == ["1", "../../x"]
        assert folder.done() == {"3", "2"}
        before = folder.state()
        for status in ("failed", "completed"):
            folder.write(trajectory("1", status))
        assert folder.state() != before
        with pytest.raises(RuntimeError, match="ended well"):
            folder.write(trajectory("1", "failed"))
    assert folder.statuses()["1"] == "completed"
    assert [folder.attempts(qid) for qid in ("1", "2", "9")] == [3, 1, 0]
    assert folder.failures() == {} and folder.stamp("9") is None
    assert folder.stamp("1") == ((folder.queries / "1.json").stat().st_size, 3)
    retried = [folder.path / "retried" / "1" / f"{number}.json" for number in (1, 2)]
    assert [read_trajectory(path) for path in retried] == [trajectory("1", "failed")] * 2


def test_another_configuration_is_refused_with_the_keys_that_differ(folder):
    write(folder, trajectory("1"))
    other = {**MANIFEST, "fingerprints": {"benchmark": "b1", "index": "i2", "tool": "t"}}
    line = refused("", folder.writing(other).__enter__)
    assert "index (was i1, now i2)" in line and "tool (was absent, now t)" in line
    assert "benchmark" not in line and "name=" in line
    assert folder.manifest() == MANIFEST


def test_a_start_with_other_versions_is_added_to_the_manifest(folder):
    newer = {**MANIFEST, "versions": {"numpy": "9"}, "created": "later"}
    for manifest in (MANIFEST, MANIFEST, newer, newer):
        with folder.writing(manifest):
            pass
    written = folder.manifest()
    assert written["versions"] == {}
    assert [session["versions"] for session in written["resumed"]] == [{"numpy": "9"}]


def test_counts_of_all_starts_are_added_and_of_the_largest_the_maximum_stays(folder):
    first = {"reranker": {"cache_hits": 3, "cache_misses": 1, "largest_batch": 8}}
    second = {
        "reranker": {"cache_misses": 5, "largest_batch": 2},
        "retriever": {"searches": 4},
        "rewriter": {"cache_misses": 2},
    }
    for counts in (first, second):
        with folder.writing(MANIFEST):
            folder.add_counts(counts)
    reranker = {"cache_hits": 3, "cache_misses": 6, "largest_batch": 8, "cache_hit_rate": 0.3333}
    rewriter = {"cache_misses": 2, "cache_hit_rate": 0.0}
    expected = {"reranker": reranker, "retriever": {"searches": 4}, "rewriter": rewriter}
    assert folder.manifest() == {**MANIFEST, "stages": expected}


def test_a_period_has_a_start_and_an_end_after_an_error_too(folder):
    began = datetime.now(timezone.utc).replace(microsecond=0)
    with folder.writing(MANIFEST):
        with folder.timed():
            (period,) = folder.manifest()["periods"]
            assert list(period) == ["started"]
        with pytest.raises(ConnectionError), folder.timed():
            raise ConnectionError
    periods = folder.manifest()["periods"]
    assert [list(period) for period in periods] == [["started", "ended"]] * 2
    times = [datetime.fromisoformat(time) for period in periods for time in period.values()]
    assert [began, *times] == sorted([began, *times])
    assert times[-1] <= datetime.now(timezone.utc)


def test_a_later_start_changes_no_costs_and_no_server(folder):
    with folder.writing(MANIFEST):
        folder.note_servers({"llm": ""})
        folder.note("chosen_parameters", {})
        assert folder.manifest() == MANIFEST, "nothing is known"
        folder.note_costs({"once": {"seconds": 9.0}})
        folder.note_costs({"once": {"seconds": 0.1, "dollars": 2.0}, "query": {"seconds": 0.5}})
        folder.note_servers({"llm": "vLLM 1", "judge": ""})
        folder.note_servers({"llm": "vLLM 1", "judge": "vLLM 2"})
        line = refused("", folder.note_servers, {"llm": "vLLM 2"})
        folder.note("chosen_parameters", {"rm3": {"terms": 10}})
    assert "was made with vLLM 1 for llm, and the server is vLLM 2 now" in line
    assert folder.manifest() == {
        **MANIFEST,
        "costs": {"once": {"seconds": 9.0, "dollars": 2.0}, "query": {"seconds": 0.5}},
        "servers": {"llm": "vLLM 1", "judge": "vLLM 2"},
        "chosen_parameters": {"rm3": {"terms": 10}},
    }


@pytest.mark.parametrize(
    ("levels", "begun", "may_change"),
    [(("note", "fault"), False, True), (("note", "fault"), True, False), (("note",), False, False)],
)
def test_a_run_that_its_check_stopped_may_start_otherwise_unless_it_has_begun(
    folder, levels, begun, may_change
):
    other = {**MANIFEST, "fingerprints": {"benchmark": "b2"}}
    with folder.writing(MANIFEST):
        folder.note("preflight", {"findings": [{"level": level} for level in levels]})
        if begun:
            folder.rounds("1").append(ROUND)
    if may_change:
        with folder.writing(other):
            assert folder.manifest() == other
    else:
        refused("made with another benchmark", folder.writing(other).__enter__)


def test_a_run_is_locked_without_being_written_and_nothing_else_is(folder):
    refused("is not a run", folder.locked().__enter__)
    write(folder)
    with folder.locked():
        refused(f"process {os.getpid()} ", folder.writing(MANIFEST).__enter__)


def test_repeats_are_those_with_trajectories_and_change_the_state_of_their_run(folder):
    write(folder, trajectory("1"))
    states = [folder.state()]
    for number in (10, 2):
        with folder.writing(MANIFEST):
            for status in ("failed", "completed"):
                folder.repeat(number).write(trajectory("1", status))
                states.append(folder.state())
    assert len(set(states)) == 5
    for name in ("3", "1", "04", "x"):
        (folder.path / "repeats" / name / "queries").mkdir(parents=True)
    for name in ("1", "04"):
        (folder.path / "repeats" / name / "queries" / "1.json").touch()
    assert folder.repeat(1) is folder and folder.has_trajectories() is True
    assert folder.repeat(3).has_trajectories() is False
    assert [part.number for part in folder.repeats()] == [1, 2, 10]
    assert [part.name for part in folder.repeats()] == ["a", "2", "10"]


def test_a_folder_holds_results_of_one_kind(tmp_path):
    run, sweep, begun, replays = (tmp_path / name for name in ("run", "sweep", "begun", "replays"))
    for cell in (run, sweep / "b", sweep / "a", replays / RECORDED):
        write(RunFolder(cell))
    (begun / CELLS).mkdir(parents=True)
    present = {run: SINGLE_RUN, sweep: SWEEP_CELLS, begun: SWEEP_CELLS, replays: REPLAYS}
    for kind in (SINGLE_RUN, SWEEP_CELLS, REPLAYS):
        check_kind(tmp_path / "new", kind)
        for folder, held in present.items():
            if held == kind:
                check_kind(folder, kind)
            else:
                line = refused("name=", check_kind, folder, kind)
                assert f"{folder} holds {held}, not {kind}." in line
    refused(f"name one of its cells, such as {sweep / 'a'}", RunFolder(sweep).manifest)


def test_a_run_is_evaluated_when_its_measures_are_written(tmp_path):
    runs = [RunFolder(tmp_path / name) for name in ("c", "a", "b")]
    for run in runs:
        write(run)
    for run in runs[:2]:
        (run.path / EVALUATION_LOCK).parent.mkdir()
        (run.path / METRICS).touch()
    assert [run.is_evaluated() for run in runs] == [True, True, False]
    assert evaluated_runs(tmp_path) == [runs[1].path, runs[0].path]
    assert not (runs[2].path / EVALUATION_LOCK).exists(), "reading writes nothing"


def test_leftovers_of_killed_writers_are_removed_and_no_trajectories_are_adopted(folder):
    folder.queries.mkdir(parents=True)
    leftover = folder.queries / f".1.json.{'0a' * 8}.tmp"
    leftover.write_text("half")
    with folder.writing(MANIFEST):
        folder.write(trajectory("1"))
        assert not leftover.exists()
    folder.manifest_path.unlink()
    refused(r"no manifest\.json", folder.writing(MANIFEST).__enter__)


def test_misnamed_and_truncated_trajectories_are_refused_and_layout_does_not_matter(folder):
    write(folder, trajectory("1", "steered"))
    path = folder.queries / "1.json"
    path.write_text(json.dumps(json.loads(path.read_text()), indent=4))
    assert folder.statuses() == {"1": "steered"}
    path.rename(folder.queries / "2.json")
    refused(r"2\.json holds the trajectory of question '1'", folder.done)
    path = (folder.queries / "2.json").rename(path)
    path.write_bytes(path.read_bytes()[:-10])
    refused(r"1\.json is damaged", folder.pending, TOPICS)


def test_a_full_disk_is_one_line_and_other_errors_pass(folder, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(ConnectionError), folder.writing(MANIFEST):
        raise ConnectionError("refused")
    with folder.writing(MANIFEST):
        monkeypatch.setattr("soundingline.toolkit.files.os.fsync", full)
        refused("No space left", lambda: folder.write(trajectory("1")))
    assert list(folder.queries.iterdir()) == []


@pytest.mark.parametrize("text", [None, '{"a":', '{"a":' + "[" * 500_000])
def test_a_folder_without_a_sound_manifest_is_refused(folder, text):
    folder.path.mkdir(parents=True)
    if text:
        folder.manifest_path.write_text(text + "]" * text.count("[") + "}" * (len(text) > 9))
    refused(r"manifest\.json", folder.manifest)


@pytest.mark.parametrize("name", ["../x", "", ".", "..", "a/b", ".a", "a b", "x" * 201])
def test_a_run_name_that_is_no_folder_name_is_refused(tmp_path, name):
    refused("name=", RunFolder.named, tmp_path, name)
    assert RunFolder.named(tmp_path, "bm25,unit=maxp").path == tmp_path / "bm25,unit=maxp"


def write_all(ready, folder, session, total):
    topics = [Topic(f"Q{number}", "?") for number in range(total)]
    with folder.writing({"fingerprints": {"benchmark": "b"}}):
        ready()
        for number, topic in enumerate(folder.pending(topics)):
            status = "failed" if number % 7 == 3 and session == 0 else "completed"
            message = {"role": "user", "content": f"{session} " + "x" * 20000}
            folder.write(Trajectory(topic.qid, "?", status, messages=(message,)))


def test_kill_9_at_any_moment_loses_doubles_and_halves_nothing(tmp_path):
    total, sessions = 250, 8
    folder = RunFolder(tmp_path / "run")
    moments = random.Random(7)
    seen = {}
    killed_midway = 0
    for session in range(sessions + 1):
        writer = forked(write_all, folder, session, total)
        if session < sessions:
            wanted = len(list(folder.queries.glob("*.json"))) + 3 * session + 2
            while writer.is_alive() and len(list(folder.queries.glob("*.json"))) < wanted:
                time.sleep(0.001)
            time.sleep(moments.uniform(0, 0.005))
            writer.kill()
        writer.join(60)
        assert writer.exitcode == (-9 if session < sessions else 0)
        ended = {t.qid for t in folder.trajectories() if t.status == "completed"}
        files = {path.stem: path.read_bytes() for path in folder.queries.glob("[!.]*.json")}
        assert all(files[name] == content for name, content in seen.items())
        seen = {name: content for name, content in files.items() if f"Q{name[2:]}" in ended}
        killed_midway += 0 < len(ended) < total
    assert killed_midway == sessions
    assert ended == {f"Q{number}" for number in range(total)}
    assert len(files) == total
    assert not list(folder.queries.glob(".*"))
    assert json.loads(folder.manifest_path.read_text())["fingerprints"] == {"benchmark": "b"}


@pytest.mark.parametrize(
    "name", ["queries", "retried", "evaluation", "ranks", "retried/1", "manifest.json"]
)
def test_a_part_of_a_run_that_leads_elsewhere_is_refused(name, folder, tmp_path):
    write(folder, trajectory("3"))
    (tmp_path / "link").symlink_to(folder.path)
    assert RunFolder(tmp_path / "link").manifest() == MANIFEST, "a link to a run is a run"
    elsewhere, part = tmp_path / "elsewhere", folder.path / name
    elsewhere.mkdir()
    (elsewhere / ".left.tmp").touch()
    if part.exists():
        part.rename(tmp_path / "away")
    part.parent.mkdir(exist_ok=True)
    part.symlink_to(tmp_path / "away" if part.suffix else elsewhere)
    refused("symbolic link", folder.writing(MANIFEST).__enter__)
    refused("symbolic link", folder.manifest)
    assert [path.name for path in elsewhere.iterdir()] == [".left.tmp"]


@pytest.mark.parametrize(
    ("obfuscated", "status", "reason", "stays"),
    [
        (False, "completed", "", False),
        (False, "out_of_money", "dollars", False),
        (False, "failed", "", True),
        (True, "out_of_money", RUN_OUT_OF_MONEY, True),
    ],
)
def test_rounds_stay_until_the_question_is_finished(
    obfuscated, status, reason, stays, folder, monkeypatch
):
    monkeypatch.setenv(VARIABLE, "a canary")
    with folder.writing({**MANIFEST, "sealed": obfuscated}):
        for part in (folder, folder, folder.repeat(2)):
            part.rounds("Q/1").append(ROUND)
        content = folder.rounds("Q/1").path.read_bytes()
        assert (b"a mill by the Wey" in content) is not obfuscated
        assert folder.rounds("Q/1").read() == [ROUND, ROUND]
        assert folder.rounds("q/1").read() == [], "another question"
        assert not list(folder.trajectories()) and not folder.done()
        folder.write(trajectory("Q/1", status, reason))
    assert folder.rounds("Q/1").path.exists() is stays
    assert folder.repeat(2).rounds("Q/1").path.exists(), "another repeat of the question"


def test_a_question_continues_from_the_rounds_before_a_damaged_one(folder, capsys):
    rounds = folder.rounds("q")
    numbered = [{"row": {"round": number}} for number in range(1, 5)]
    with folder.writing(MANIFEST):
        for record in numbered:
            rounds.append(record)
        for times, number in enumerate((3, 1), start=1):
            damaged = rounds.path.read_bytes().replace(b'"round":%d' % number, b'"round"')
            rounds.path.write_bytes(damaged)
            assert rounds.read() == numbered[: number - 1]
            line, aside = capsys.readouterr().err, f"q.rounds.jsonl.damaged-{times}"
            assert f"line {number} is not a JSON object; it was copied to {aside}" in line
            assert line.count("\n") == 1
            assert (rounds.path.parent / aside).read_bytes() == damaged
        rounds.append(numbered[0])
        folder.write(trajectory("q"))
    names = sorted(path.name for path in folder.queries.iterdir())
    assert names == ["q.json", "q.rounds.jsonl.damaged-1", "q.rounds.jsonl.damaged-2"]
    assert folder.done() == {"q"} and len(list(folder.trajectories())) == 1


# Question ids become file names without loss and without collision.

HOSTILE = ["", ".", "..", "../../x", "a/b", "a\\b", "A1", "a1", "%", "%2e", "+a", "q 1", "CON", "é"]
HOSTILE += ["e\u0301", "\0", "x.json", ".hidden", "=", "a=b", "-rf", "~", "\n", "😀" * 9]


def test_hostile_ids_come_back_and_stay_distinct_where_case_is_folded():
    names = [escape_qid(qid) for qid in HOSTILE]
    assert [unescape_qid(name) for name in names] == HOSTILE
    for name in names:
        assert name and "/" not in name and not name.startswith(".") and name.isascii()
    assert len({name.casefold() for name in names}) == len(HOSTILE)


@given(st.text(max_size=40), st.text(max_size=40))
def test_different_ids_have_different_names_and_short_ones_come_back(one, other):
    assert (escape_qid(one).casefold() == escape_qid(other).casefold()) == (one == other)
    assert unescape_qid(escape_qid(one)) in ((one,) if len(one) <= 15 else (one, None))
    for repeat in (1, 2, 12):
        assert question_of(repeat_id(one, repeat), repeat) == one


def test_an_id_of_a_repeat_leads_to_its_question():
    assert [repeat_id("q", repeat) for repeat in (1, 2)] == ["q", "q#repeat2"]
    assert [repeat_of(name) for name in ("q", "q#repeat2", "q#repeat02")] == [1, 2, 1]
    named = {"q": "q", "q#repeat12": "q", "q#repeat2x": "q#repeat2x", "q#repeat02": "q#repeat02"}
    assert {name: question_of(name) for name in named} == named
    assert question_of("q#repeat2", 1) == "q#repeat2", "a question that is called so"
    values = {"q": 1, "p#repeat2": 2}
    names = ("q", "q#repeat3", "p#repeat2", "p", "p#repeat3")
    assert [of_question(values, name) for name in names] == [1, 1, 2, None, None]


def test_long_ids_fit_a_file_name_and_ordinary_ones_stay_readable():
    names = {escape_qid("x" * 5000 + end) for end in ("1", "2", "")}
    assert len(names) == 3
    assert all(len(name) <= 180 and unescape_qid(name) is None for name in names)
    assert [escape_qid(qid) for qid in ("1042", "dev-3_2", "Q12")] == ["1042", "dev-3_2", "+q12"]
    assert escape_qid("x" * 180) == "x" * 180
    digest = sha256(b"x" * 181).hexdigest()
    assert escape_qid("x" * 181) == f"{'x' * 140}={digest[:32]}"


def test_a_manifest_has_configuration_fingerprints_factors_versions_and_machine():
    config = {"retriever": {"k1": 0.9}, "seed": 0}
    manifest = make_manifest(config, {"benchmark": "abc"}, {"unit": "passage"})
    assert manifest["config"] == config
    assert manifest["fingerprints"] == {"benchmark": "abc"}
    assert manifest["factors"] == {"unit": "passage"}
    assert manifest["versions"]["numpy"] == version("numpy")
    assert manifest["machine"]["python"] == platform.python_version()
    assert json.loads(dump_json(manifest)) == manifest


@pytest.mark.skipif(not MEMORY.exists(), reason="the memory is stated so by Linux alone")
def test_a_manifest_has_the_memory_of_the_machine():
    total = re.search(r"MemTotal: +(\d+) kB", MEMORY.read_text())
    memory = make_manifest({}, {})["machine"]["memory_bytes"]
    assert total and memory == pytest.approx(1024 * int(total[1]), rel=0.01)


def test_secrets_are_redacted_in_every_part_of_a_manifest():
    config = {
        "llm": {"api_key": "sk-1", "auth_token": "t", "max_tokens": 9, "password": None},
        "list": [{"secret": "s", "extra_headers": {"Authorization": "Bearer sk-2"}}],
        "key_env": "OPENAI_API_KEY",
        "batch_tokens": 4096,
    }
    factors = {"llm": "gpt-5.5", "llm.settings.extra.api_key": "sk-3", "llm.batch_tokens": "4096"}
    benchmark = {"option": "beir", "arguments": {"path": "/data/x", "password": "p"}}
    manifest = make_manifest(config, {"llm": "0123456789ab"}, factors, benchmark)
    assert manifest["config"] == {
        **config,
        "llm": {"api_key": "***", "auth_token": "***", "max_tokens": 9, "password": None},
        "list": [{"secret": "***", "extra_headers": {"Authorization": "***"}}],
    }
    assert manifest["factors"] == {**factors, "llm.settings.extra.api_key": "***"}
    assert manifest["benchmark"]["arguments"] == {"path": "/data/x", "password": "***"}
    assert manifest["fingerprints"] == {"llm": "0123456789ab"}


def test_a_manifest_of_an_obfuscated_run_says_so_and_no_benchmark_is_left_out():
    assert make_manifest({}, {"sealed": "yes"})["sealed"] is True
    plain = make_manifest({}, {"sealed": "no"})
    assert plain["format"] == 1 and not {"sealed", "benchmark"} & set(plain)


def test_the_commit_is_read_once_and_is_absent_outside_a_checkout(monkeypatch, tmp_path):
    tree = Path(manifests.__file__).resolve().parent
    monkeypatch.setenv("GIT_DIR", str(tmp_path / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(tree))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "a")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "a@example.org")

    def git(*arguments):
        command = ["git", *arguments]
        return subprocess.run(command, cwd=tree, check=True, capture_output=True, text=True).stdout

    def read():
        manifests._git.cache_clear()
        return make_manifest({}, {})["git"]

    try:
        assert read() == {}, "no checkout"
        git("init", "-q")
        assert read() == {}, "the checkout of other files"
        git("add", "manifest.py")
        git("commit", "-q", "-m", "one file")
        commit = {"commit": git("rev-parse", "HEAD").strip(), "dirty": False}
        assert read() == commit
        git("add", "run_folder.py")
        assert make_manifest({}, {})["git"] == commit, "read once"
        assert read() == {**commit, "dirty": True}
    finally:
        manifests._git.cache_clear()


# A run folder has one writer; a dead writer's lock is taken over.


def hold(ready, lock):
    with writer_lock(lock):
        ready()
        time.sleep(60)


@pytest.fixture
def lock(tmp_path):
    return tmp_path / "run" / ".lock"


def leave(lock, **text):
    lock.parent.mkdir(parents=True, exist_ok=True)
    lock.write_text(json.dumps(text))


@contextmanager
def nameless(lock, **text):
    """The lock held by somebody who has not written a text: there is an earlier one."""
    leave(lock, **text)
    with lock.open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def test_a_second_process_is_refused_with_pid_and_host_until_the_first_is_killed(lock):
    holder = forked(hold, lock)
    line = refused("", writer_lock(lock).__enter__)
    assert f"process {holder.pid} on host {socket.gethostname()}" in line
    holder.kill()
    holder.join(30)
    assert json.loads(lock.read_text())["pid"] == holder.pid
    with writer_lock(lock):
        assert json.loads(lock.read_text())["pid"] == os.getpid()


def test_a_process_takes_it_once_and_again_after_release_or_an_error(lock):
    with writer_lock(lock), pytest.raises(InputError, match=str(os.getpid())), writer_lock(lock):
        pytest.fail("must not be taken")
    with pytest.raises(ValueError, match="inside"), writer_lock(lock):
        raise ValueError("inside")
    with writer_lock(lock):
        pass
    assert lock.read_text() == ""


# No process has this id: it is above the largest that Linux assigns.
DEAD = {"pid": 4_999_999, "host": socket.gethostname(), "sweep": "old"}


@pytest.mark.parametrize("earlier", [{}, DEAD])
@pytest.mark.parametrize("start", ["this one", "another"])
def test_a_cell_waits_for_its_twin_that_has_not_named_itself_yet(lock, earlier, start):
    """Also for one of another start of the sweep: else the start that comes second to each cell
    would report it as failed."""
    steps = []

    def twin():
        with writer_lock(lock, "this one"):
            steps.append("the second has it")

    waiting = threading.Thread(target=twin)
    with nameless(lock, **earlier):
        waiting.start()
        waiting.join(0.1)
        leave(lock, pid=os.getpid(), host=socket.gethostname(), sweep=start)
        waiting.join(0.1)
        steps.append("the first lets go")
        leave(lock)
    waiting.join(30)
    assert steps == ["the first lets go", "the second has it"]


def test_a_lock_that_is_being_released_is_taken_and_a_nameless_holder_refused(lock, monkeypatch):
    steps = []

    def take():
        with writer_lock(lock):
            steps.append("taken")

    taking = threading.Thread(target=take)
    with nameless(lock):
        taking.start()
        taking.join(0.1)
        assert not steps
    taking.join(30)
    assert steps == ["taken"]
    monkeypatch.setattr("soundingline.toolkit.locks._NAMING_SECONDS", 0.05)
    for text in ({}, {"pid": -1}, {"pid": 2**70}):
        with nameless(lock, **text):
            refused("process unknown on host unknown", writer_lock(lock).__enter__)


@pytest.mark.parametrize(("held", "mine"), [("", "this one"), ("another", "")])
def test_a_cell_and_a_run_without_a_sweep_refuse_each_other(lock, held, mine):
    other = {"pid": os.getpid(), "host": socket.gethostname(), "sweep": held}
    with ThreadPoolExecutor(1) as pool, nameless(lock, **other):
        taking = pool.submit(writer_lock(lock, mine).__enter__)
        refused(f"process {os.getpid()} ", taking.result, 10)


OF_THIS_ID = json.dumps({"pid": os.getpid(), "host": socket.gethostname()})


@pytest.mark.parametrize(
    "text", ['{"pid": 1', "[" * 4096, OF_THIS_ID], ids=["half", "deep", "reused id"]
)
def test_the_lock_of_a_killed_process_is_taken_over_whatever_its_text(lock, text):
    lock.parent.mkdir(parents=True)
    lock.write_text(text)
    with writer_lock(lock):
        holder = json.loads(lock.read_text())
        assert holder == {"pid": os.getpid(), "host": socket.gethostname(), "sweep": ""}


def test_the_lock_of_a_process_on_another_host_is_never_taken_over(lock):
    leave(lock, pid=7, host="elsewhere", sweep="")
    refused(f"by process 7 on host elsewhere.* delete {lock}", writer_lock(lock).__enter__)
    assert json.loads(lock.read_text())["host"] == "elsewhere"


@given(
    st.dictionaries(
        st.sampled_from(["pid", "host", "sweep", "other"]),
        st.one_of(
            st.none(),
            st.booleans(),
            st.integers(),
            st.floats(),
            st.text(max_size=5),
            st.just(socket.gethostname()),
            st.lists(st.integers(), max_size=2),
        ),
    )
    | st.lists(st.integers(), max_size=3)
    | st.none()
)
@example({"pid": None})
@example({"pid": 7, "host": "elsewhere"})
@example({"pid": None, "host": socket.gethostname()})
@example({"pid": -1, "host": socket.gethostname()})
@example({"pid": 2**70, "host": socket.gethostname()})
def test_whatever_a_lock_file_says_it_is_taken_or_refused_in_one_line(tmp_path_factory, text):
    lock = tmp_path_factory.getbasetemp() / "any-text" / ".lock"
    lock.parent.mkdir(exist_ok=True)
    lock.write_text(json.dumps(text))
    host = text.get("host") if isinstance(text, dict) else None
    elsewhere = isinstance(host, str) and host not in ("", socket.gethostname())
    if elsewhere:
        refused(f"on host .* delete {lock}", writer_lock(lock).__enter__)
        assert lock.read_text() == json.dumps(text)
    else:
        with writer_lock(lock):
            assert json.loads(lock.read_text())["pid"] == os.getpid()


# Trajectories survive the way to JSON and back.


CALLS = (
    RecordedCall(
        "search",
        {"reason": "start", "query": "naïve Bayes"},
        "1. d1 ...",
        seconds=0.01,
        tokens=12,
        ranking=("d1%p2", "d2%p0", "d1%p0", "d3"),
        shown=("d1%p2", "d2%p0"),
        notes={"query": "What is naïve Bayes?", "query_0": "naïve Bayes", "rewrite": {"n": 1}},
    ),
    RecordedCall("read_document", {"docid": "d9"}, "unknown", error="no document d9", tokens=3),
    RecordedCall("search", {"query": "more"}, "...", ranking=("d4%p1", "d2%p7"), shown=("d4%p1",)),
)
SURFACED = {"surfaced": ("d1", "d2", "d3", "d4")}
EXAMPLE = Trajectory(
    qid="q/1",
    question="Who?",
    status="steered",
    answer=Answer("Because [d1].", "Ada", 80.0, ("d1",)),
    messages=({"role": "user", "content": "Who?"}, {"role": "tool", "content": [{"a": None}]}),
    calls=CALLS,
    tiers={**SURFACED, "previewed": ("d1", "d2", "d4"), "opened": (), "cited": ("d1",)},
    exposures=(Exposure(1, "previewed", "d1", 1, 12), Exposure(1, "previewed", "d2", 2, 12)),
    usage={"input_tokens": 10, "dollars": 0.25},
    started="2026-01-01T00:00:00+00:00",
    seconds=1.5,
)
LISTED = replace(EXAMPLE, answer=Answer("e", "x", None, ("d1",), ("d2", "d1")))
LAYERS = (Exposure(1, "opened", "d1", 1, 5, "abstract"), Exposure(1, "opened", "d2", 2, 5))


def test_what_is_derived_or_empty_is_not_written_and_each_part_has_a_line():
    record = to_record(EXAMPLE)
    assert from_record(json.loads(dump_trajectory(EXAMPLE).encode())) == EXAMPLE
    assert surfaced(EXAMPLE.calls) == ("d1", "d2", "d3", "d4")
    assert "surfaced" not in record["tiers"]
    assert record["calls"][0]["notes"]["query_0"] == "naïve Bayes"
    assert not any("notes" in call for call in record["calls"][1:])
    assert "documents" not in record["answer"]
    assert to_record(LISTED)["answer"]["documents"] == ("d2", "d1")
    rows = to_record(replace(EXAMPLE, exposures=LAYERS))["exposures"]
    assert rows == [[1, "opened", "d1", 1, 5, "abstract"], [1, "opened", "d2", 2, 5]]
    lines = dump_trajectory(EXAMPLE).splitlines()
    assert sum('"arguments"' in line for line in lines) == 3
    assert sum('"role"' in line for line in lines) == 2


text = st.text(max_size=8)
ids = st.lists(text, max_size=4).map(tuple)
numbers = st.floats(allow_nan=False, allow_infinity=False) | st.integers(0, 10**9)
amounts = st.floats(0, allow_infinity=False) | st.integers(0, 10**9)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
calls = st.builds(
    RecordedCall,
    name=text,
    arguments=st.dictionaries(text, json_values, max_size=3),
    output=text,
    error=text,
    seconds=numbers,
    tokens=st.integers(0, 99),
    ranking=ids,
    shown=ids,
    notes=st.dictionaries(text, json_values, max_size=2),
)
small = st.integers(1, 99)
layers = st.sampled_from(["", "abstract"])
exposures = st.builds(Exposure, small, st.sampled_from(TIERS), text, small, small, layers)


def test_an_impossible_usage_in_a_file_is_unknown():
    record = json.loads(dump_trajectory(EXAMPLE))
    record["usage"] = {"calls": 4, "agent_dollars": -3.2, "input_tokens": 10**400}
    assert from_record(record).usage == {"calls": 4, "agent_unreported": 1, "unreported": 1}


@pytest.mark.parametrize("count", [2**63, 10**400])
def test_a_count_that_other_programs_cannot_hold_is_refused(count):
    for part, place in (("calls", "tokens"), ("exposures", 3)):
        record = json.loads(dump_trajectory(EXAMPLE))
        record[part][0][place] = count
        refused(rf"{part}.0.{place} is \d+. valid: less than", from_record, record)
    record["exposures"][0][3], record["messages"][0]["n"] = 1, count
    assert from_record(record).messages[0]["n"] == count


@settings(max_examples=cases(60), deadline=None)
@given(
    st.builds(
        Trajectory,
        qid=text,
        question=text,
        status=st.sampled_from(STATUSES),
        answer=st.builds(Answer, text, text, st.none() | st.floats(0, 100), ids, ids),
        messages=st.lists(st.dictionaries(text, json_values, max_size=3), max_size=3).map(tuple),
        calls=st.lists(calls, max_size=3).map(tuple),
        tiers=st.fixed_dictionaries({}, optional=dict.fromkeys(TIERS, ids)),
        exposures=st.lists(exposures, max_size=3).map(tuple),
        usage=st.dictionaries(text, amounts, max_size=2),
        started=text,
        seconds=numbers,
        traceback=text,
        reason=text,
        warnings=st.lists(text, max_size=2).map(tuple),
    )
)
def test_any_trajectory_round_trips_through_utf8(trajectory):
    stored = dump_trajectory(trajectory).encode("utf-8")
    assert from_record(json.loads(stored)) == trajectory


@pytest.mark.parametrize(
    ("good", "bad", "message"),
    [
        ('"qid"', "", "is damaged"),
        ('"citations": ["d1"]', '"citations": [], "documents": "d1"', "answer.documents is a"),
        ('"status": "steered"', '"status": "fine"', "'fine'"),
        ('"question"', '"kwestion"', "'question'"),
        ('"tokens": 12', '"token": 12', "no field 'calls.0.tokens'"),
        ('"notes": {', '"notes": 1, "of": {', "calls.0.notes is 1"),
        ('"format": 1', '"format": 7', "format"),
        ('[1, "previewed", "d1"', '[1, "dreamt", "d1"', "dreamt"),
        (None, "", "is damaged"),
        (None, "[]", "valid: a valid dictionary"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, good, bad, message):
    path, text = tmp_path / "q1.json", dump_trajectory(EXAMPLE)
    assert good is None or good in text
    text = text.replace(good, bad) if good else bad
    path.write_bytes(text.encode())
    line = refused("", read_trajectory, path)
    assert str(path) in line and message in line


def places(value, *path):
    """The paths of keys and positions to all values within a JSON value."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in pairs:
        yield (*path, key)
        if isinstance(inner, dict | list):
            yield from places(inner, *path, key)


ODD = [None, True, -1, 1.5, "x", [], {}, ["a"], [1], {"a": 1}, 10**400, 2**70, float("nan")]


def test_whatever_takes_the_place_of_a_value_is_read_or_refused_in_one_line():
    whole = json.loads(dump_trajectory(replace(EXAMPLE, source={"tool_call_counts": {"a": 1}})))
    refused = 0
    for path in places(whole):
        for odd in ODD:
            record = json.loads(json.dumps(whole))
            inner = record
            for key in path[:-1]:
                inner = inner[key]
            inner[path[-1]] = odd
            try:
                dump_trajectory(from_record(record, where="q.json"))
            except InputError as error:
                refused += 1
                assert str(error).startswith("q.json") and "\n" not in str(error)
    assert refused > 300


def test_an_absent_file_is_named(tmp_path):
    refused(r"gone\.json", read_trajectory, tmp_path / "gone.json")
