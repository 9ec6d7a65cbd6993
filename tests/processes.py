"""`python -m experiments.<command>` in a process of its own that need not import anything first.

The process is forked from a server that has imported the commands already and compiled our kernels;
each worker of the suite has one. So a test that kills, interrupts or stops a command does not wait
for imports. Signals, exit codes and memory are those of any process.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import signal
import sys
import tempfile
import threading
from collections.abc import Mapping
from multiprocessing import forkserver
from pathlib import Path
from typing import Any, NamedTuple

import pytest

_TESTS = Path(__file__).resolve().parent
_SERVER: Any = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["warm"])


def _start_server() -> None:
    """Start the server where it is not running. It must find `warm` by itself: Python 3.11 does not
    hand it our `sys.path`, and says nothing of a module that it cannot import."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(_TESTS.parent), str(_TESTS)]))
        forkserver.ensure_running()


class Ended(NamedTuple):
    """What a process that ended has left. `returncode` is minus the signal's number after one."""

    returncode: int
    stdout: str
    stderr: str


class CommandProcess:
    """A command that runs in `folder`, in a session of its own, with `environment` beside that of
    the test, and reads `stdin`. The names are those of `subprocess.Popen`."""

    def __init__(
        self,
        command: str,
        *arguments: str,
        folder: Path | str = ".",
        environment: Mapping[str, str] | None = None,
        stdin: bytes = b"",
    ) -> None:
        self._output = Path(tempfile.mkdtemp(prefix="process-"))
        (self._output / "in").write_bytes(stdin)
        variables = {**os.environ, **(environment or {})}
        given = (command, arguments, str(Path(folder).resolve()), variables, str(self._output))
        _start_server()
        self._process = _SERVER.Process(target=_run, args=given)
        self._process.start()

    @property
    def pid(self) -> int:
        return int(self._process.pid)

    @property
    def errors(self) -> str:
        """What it has written on standard error so far."""
        path = self._output / "err"
        return path.read_text(errors="replace") if path.exists() else ""

    def poll(self) -> int | None:
        """The exit code; None while the process runs."""
        code: int | None = self._process.exitcode
        return code

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill -9 of the process and of those that it has started."""
        os.killpg(self.pid, signal.SIGKILL)

    def wait(self, timeout: float = 300) -> Ended:
        """What it leaves when it ends; `TimeoutError` where it does not."""
        self._process.join(timeout)
        if self._process.is_alive():
            self.kill()
            raise TimeoutError(f"the process has not ended in {timeout} s")
        read = [(self._output / name).read_text(errors="replace") for name in ("out", "err")]
        return Ended(self._process.exitcode, *read)


def run_command(
    command: str,
    *arguments: str,
    folder: Path | str = ".",
    environment: Mapping[str, str] | None = None,
    stdin: bytes = b"",
) -> Ended:
    """The command, run to its end."""
    process = CommandProcess(
        command, *arguments, folder=folder, environment=environment, stdin=stdin
    )
    return process.wait()


def _run(
    command: str, arguments: tuple[str, ...], folder: str, variables: dict[str, str], output: str
) -> None:
    """In the child: become what `python -m` would have started."""
    assert "warm" in sys.modules, "the server has imported nothing"
    sys.stdin = (Path(output) / "in").open()
    for descriptor, name in ((1, "out"), (2, "err")):
        target = os.open(Path(output) / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(target, descriptor)
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    sys.path[:0] = variables.get("PYTHONPATH", "").split(os.pathsep)
    sys.argv = [command, *arguments]
    sys.modules.pop(f"experiments.{command}", None)  # runs as `__main__` now
    # A job that a shell started in the background inherits that Ctrl-C is ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    code = 1
    try:
        runpy.run_module(f"experiments.{command}", run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        # As the interpreter ends; `multiprocessing` would skip what was registered for the exit.
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
