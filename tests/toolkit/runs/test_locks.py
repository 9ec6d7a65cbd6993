"""A run folder has one writer; a dead writer's lock is taken over."""

import fcntl
import json
import os
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from soundingline.toolkit.errors import InputError
from soundingline.toolkit.runs.run_folder import SWEEP, process_started, run_lock

HOLDER = """
import sys
from pathlib import Path
from soundingline.toolkit.runs.run_folder import run_lock
with run_lock(Path(sys.argv[1])):
    print("locked", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def lock(tmp_path):
    return tmp_path / "run" / ".lock"


def hold(lock):
    root = Path(__file__).resolve().parents[3]
    command, pipe = [sys.executable, "-c", HOLDER, str(lock)], subprocess.PIPE
    holder = subprocess.Popen(command, cwd=root, stdin=pipe, stdout=pipe, text=True)
    assert holder.stdout is not None and holder.stdout.readline() == "locked\n"
    return holder


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


def named(pid, sweep):
    started = process_started(pid)
    return {"pid": pid, "host": socket.gethostname(), "started": started, "sweep": sweep}


def test_a_second_process_is_refused_with_pid_and_host_until_the_first_is_killed(lock):
    with hold(lock) as holder:
        with pytest.raises(InputError) as error, run_lock(lock):
            pytest.fail("must not be taken")
        assert f"process {holder.pid} on host {socket.gethostname()}" in str(error.value)
        holder.kill()
        holder.wait(30)
    assert json.loads(lock.read_text())["pid"] == holder.pid
    with run_lock(lock):
        assert json.loads(lock.read_text())["pid"] == os.getpid()


def test_a_process_takes_it_once_and_again_after_release_or_an_error(lock):
    with run_lock(lock), pytest.raises(InputError, match=str(os.getpid())), run_lock(lock):
        pytest.fail("must not be taken")
    with pytest.raises(ValueError, match="inside"), run_lock(lock):
        raise ValueError("inside")
    with run_lock(lock):
        pass
    assert lock.read_text() == ""


@pytest.mark.parametrize("earlier", [{}, {"pid": 7, "host": socket.gethostname(), "sweep": "old"}])
def test_a_cell_waits_for_its_twin_that_has_not_named_itself_yet(lock, monkeypatch, earlier):
    monkeypatch.setenv(SWEEP, "this one")
    steps = []

    def twin():
        with run_lock(lock):
            steps.append("the second has it")

    waiting = threading.Thread(target=twin)
    with nameless(lock, **earlier):
        waiting.start()
        waiting.join(0.1)
        leave(lock, **named(os.getpid(), "this one"))
        waiting.join(0.1)
        steps.append("the first lets go")
        leave(lock)
    waiting.join(30)
    assert steps == ["the first lets go", "the second has it"]


def test_who_never_names_itself_is_refused_after_a_moment(lock, monkeypatch):
    monkeypatch.setattr("soundingline.toolkit.runs.run_folder._NAMING_SECONDS", 0.05)
    with (
        nameless(lock),
        pytest.raises(InputError, match="process unknown on host unknown"),
        run_lock(lock),
    ):
        pytest.fail("must not be taken")


OF_ANOTHER = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "started": "1"})


@pytest.mark.parametrize(
    "text", ['{"pid": 1', "[" * 4096, OF_ANOTHER], ids=["half", "deep", "other"]
)
def test_the_lock_of_a_killed_process_is_taken_over_whatever_its_text(lock, text):
    lock.parent.mkdir(parents=True)
    lock.write_text(text)
    with run_lock(lock):
        holder = json.loads(lock.read_text())
        assert (holder["pid"], holder["started"]) == (os.getpid(), process_started(os.getpid()))


def test_without_proc_a_lock_that_was_obtained_is_held(lock, monkeypatch):
    monkeypatch.setattr("soundingline.toolkit.runs.run_folder.process_started", lambda pid: "")
    # The holder was killed and this process has its id now.
    leave(lock, pid=os.getpid(), host=socket.gethostname(), started="")
    with run_lock(lock):
        assert json.loads(lock.read_text())["pid"] == os.getpid()


def test_a_living_process_holds_it_where_the_file_system_forgot_its_lock(lock):
    pid = os.getpid()
    leave(lock, pid=pid, host=socket.gethostname(), started=process_started(pid))
    with pytest.raises(InputError, match=f"process {pid} "), run_lock(lock):
        pytest.fail("must not be taken")


@given(
    st.dictionaries(
        st.sampled_from(["pid", "host", "started", "other"]),
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
@example({"pid": 7, "host": "elsewhere", "started": "1"})
@example({"pid": None, "host": socket.gethostname(), "started": "1"})
@example({"pid": -1, "host": socket.gethostname(), "started": None})
@example({"pid": 2**70, "host": socket.gethostname(), "started": ""})
def test_whatever_a_lock_file_says_it_is_taken_or_refused_in_one_line(tmp_path_factory, text):
    lock = tmp_path_factory.getbasetemp() / "any-text" / ".lock"
    lock.parent.mkdir(exist_ok=True)
    lock.write_text(json.dumps(text))
    host = text.get("host") if isinstance(text, dict) else None
    elsewhere = isinstance(host, str) and host not in ("", socket.gethostname())
    if elsewhere:
        with pytest.raises(InputError, match=f"on host .* delete {lock}"), run_lock(lock):
            pytest.fail("must not be taken")
        assert lock.read_text() == json.dumps(text)
    else:
        with run_lock(lock):
            assert json.loads(lock.read_text())["pid"] == os.getpid()


def test_a_start_time_names_this_process_and_no_dead_one():
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait(30)
    if Path("/proc/self/stat").exists():
        assert process_started(os.getpid()).isdecimal()
    assert process_started(child.pid) == ""
