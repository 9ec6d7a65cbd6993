"""A command in a killable process, forked from a warm server (`warm.py`), or in the test's own; and
a function in a process that is forked from that of the test."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

_TESTS = Path(__file__).resolve().parents[1]
_ADDRESS = "SOUNDINGLINE_TEST_PROCESSES"


class Request(NamedTuple):
    """The command that a child of the server becomes. `files` is the folder of what it reads and
    writes: `in`, `out` and `err`."""

    command: str
    arguments: tuple[str, ...]
    folder: str
    variables: dict[str, str]
    files: str


class Server:
    """The server of this process and of all that it starts. It imports nothing before the first
    request, and ends with this process, in whatever way that ends."""

    def __init__(self, address: Path) -> None:
        os.environ[_ADDRESS] = str(address)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(address))
            listener.listen()
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    f"from support import warm; warm.serve({listener.fileno()})",
                ],
                stdin=subprocess.PIPE,
                pass_fds=[listener.fileno()],
                env={**os.environ, "PYTHONPATH": str(_TESTS)},
            )

    def close(self):
        self._process.communicate()


class Ended(NamedTuple):
    """What a process that ended has left. `returncode` is minus the signal's number after one."""

    returncode: int
    stdout: str
    stderr: str


class CommandProcess:
    """A command, or a program after `-c`, that runs in `folder`, in a session of its own, with
    `environment` beside that of the test, and reads `stdin`. The names are those of
    `subprocess.Popen`."""

    def __init__(
        self,
        command: str,
        *arguments: str,
        folder: Path | str = ".",
        environment: Mapping[str, str] | None = None,
        stdin: bytes = b"",
    ) -> None:
        self._files = Path(tempfile.mkdtemp(prefix="process-"))
        (self._files / "in").write_bytes(stdin)
        for name in ("out", "err"):
            (self._files / name).touch()
        variables = {**os.environ, **(environment or {})}
        request = Request(
            command, arguments, str(Path(folder).resolve()), variables, str(self._files)
        )
        client = socket.socket(socket.AF_UNIX)
        client.connect(os.environ[_ADDRESS])
        self._server = Connection(client.detach())
        self._server.send(request)
        self.pid = self._server.recv()
        self._returncode = None

    @property
    def errors(self):
        """What it has written on standard error so far."""
        return (self._files / "err").read_text(errors="replace")

    @property
    def output(self):
        """What it has written on standard output so far."""
        return (self._files / "out").read_text(errors="replace")

    def poll(self, timeout=0):
        """The exit code; None while the process runs."""
        if self._returncode is None and self._server.poll(timeout):
            self._returncode = self._server.recv()
            self._server.close()
        return self._returncode

    def send_signal(self, number):
        os.kill(self.pid, number)

    def kill(self):
        """Kill -9 of the process, if it has not ended, and of those that it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def wait(self, timeout=300):
        """What it leaves when it ends; `TimeoutError` where it does not."""
        code = self.poll(timeout)
        if code is None:
            self.kill()
            raise TimeoutError(f"the process has not ended in {timeout} s")
        read = [(self._files / name).read_text(errors="replace") for name in ("out", "err")]
        return Ended(code, *read)


def run_command(command, *arguments, folder=".", environment=None, stdin=b""):
    """The command, run to its end."""
    process = CommandProcess(
        command, *arguments, folder=folder, environment=environment, stdin=stdin
    )
    return process.wait()


def run_entry(command, *arguments):
    """Run a command with these arguments; its exit code. What it raises is raised."""
    from hydra.core.global_hydra import GlobalHydra

    from soundingline.experiments.cli import main

    GlobalHydra.instance().clear()
    try:
        main([command, *arguments])
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


_FORK = multiprocessing.get_context("fork")


def forked(work, *arguments):
    """The process that calls `work(ready, *arguments)`, once it has called `ready`. It has imported
    what the test has, which a new interpreter would do for a second."""
    ready = _FORK.Event()
    process = _FORK.Process(target=work, args=(ready.set, *arguments), daemon=True)
    process.start()
    assert ready.wait(60), "the process did not get ready"
    return process
