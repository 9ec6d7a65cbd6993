"""A local model server: started on a free port, waited for, and ended whatever happens."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO

from soundingline.toolkit.console import progress_bar
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.locks import open_own
from soundingline.toolkit.obfuscation import encrypt_lines, is_obfuscated, read_text

HOST = "127.0.0.1"
_GUARD = Path(__file__).with_name("process_guard.py")
_TAIL = 15
_SETTLE = 0.2  # seconds until the last lines of an obfuscated log are there to be quoted
_DRAIN = 5.0  # seconds for what an ended server has written last


@contextmanager
def serving(
    command: Callable[[int], Sequence[str]],
    *,
    log: Path,
    health: str = "/health",
    start_seconds: float = 1800.0,
    grace: float = 20.0,
    environment: Mapping[str, str] | None = None,
    advice: str = "",
    name: str = "",
) -> Iterator[str]:
    """Run a server while the block runs. It also ends when this process is killed.

    Args:
        command: Returns the command line for a port.
        log: The file to whose end the output goes, obfuscated in an obfuscated folder
            (`soundingline.toolkit.obfuscation`).
        health: The path that answers 200 when the server is ready.
        start_seconds: How long starting may take.
        grace: Seconds between the request to end and the kill of the server's process group.
        environment: Variables that are added to ours.
        advice: How the program is installed.
        name: What messages call the server. Empty: its program.

    Yields:
        The address, `http://127.0.0.1:<port>`.

    Raises:
        InputError: If the program is not installed, or the server is not ready in time. The message
            then has the last lines of the log.
    """
    with socket.socket() as probe:  # for a free port
        probe.bind((HOST, 0))
        port = int(probe.getsockname()[1])
    words = [str(word) for word in command(port)]
    if shutil.which(words[0]) is None:
        how = f" ({advice})" if advice else ""
        raise InputError(
            f"the program {words[0]!r} is not installed here",
            do=f"install it{how}, or set llm.base_url to a server that runs already",
        )
    address = f"http://{HOST}:{port}"
    with os.fdopen(open_own(log, append=True), "ab", buffering=0) as output:
        guard = subprocess.Popen(
            [sys.executable, "-I", str(_GUARD), str(grace), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if is_obfuscated(log) else output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
        with guard.stdout or nullcontext(), _sealing(guard.stdout, output):
            try:
                _wait(guard, address + health, name or words[0], log, start_seconds)
                yield address
            finally:
                _end(guard, grace)


class _Shared:
    """A server that several models may use, and how many use it now."""

    def __init__(self, block: AbstractContextManager[str]) -> None:
        self.users = 0
        self.stack = ExitStack()
        self.address = self.stack.enter_context(block)


class Servers:
    """Servers that this process has started, by what they were started with.

    A server is started when it is first needed and shared by all models that need the same. It runs
    until `close`, until the end of the block, or until another one has to be started while this one
    is unused, because a machine may have room for only one.
    """

    def __init__(self) -> None:
        self._running: dict[str, _Shared] = {}

    def __enter__(self) -> Servers:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @contextmanager
    def using(self, key: str, start: Callable[[], AbstractContextManager[str]]) -> Iterator[str]:
        """The address of the server `key`, for the block. `start` (such as `serving`) starts it if
        it does not run or does not answer; errors are those of `start`."""
        server = self._running.get(key)
        if server is None or not is_healthy(f"{server.address}/health"):
            self._end(name for name, other in self._running.items() if not other.users)
            server = self._running[key] = _Shared(start())
        server.users += 1
        try:
            yield server.address
        finally:
            server.users -= 1

    def close(self) -> None:
        """End all servers."""
        self._end(self._running)

    def _end(self, keys: Iterable[str]) -> None:
        for key in list(keys):
            self._running.pop(key).stack.close()


@contextmanager
def _sealing(source: IO[bytes] | None, output: IO[bytes]) -> Iterator[None]:
    """Copy the lines of `source`, if there is one, obfuscated to `output`, until it ends."""
    if source is None:
        yield
        return

    def copy() -> None:
        for line in source:
            output.write(encrypt_lines(line))

    thread = threading.Thread(target=copy, name="obfuscation", daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join(_DRAIN)


def _wait(guard: subprocess.Popen[bytes], url: str, name: str, log: Path, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    pause = 0.02
    with progress_bar(transient=True) as progress:
        task = progress.add_task(f"starting {name}", total=None, note="")
        while not is_healthy(url):
            fault = ""
            if guard.poll() is not None:
                time.sleep(_SETTLE)
                fault = "ended before it was ready"
            elif time.monotonic() > deadline:
                fault = f"was not ready within {seconds:g} s"
            if fault:
                raise InputError(f"{name} {fault}. Its log ends: {tail(log)}", do=f"see {log}")
            progress.update(task, note=tail(log, 1)[:60])
            time.sleep(pause)
            pause = min(1.0, pause * 1.5)


def is_healthy(url: str) -> bool:
    """Whether an address answers with status 200."""
    # No proxies: the environment's are not for this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=5) as answer:
            return int(answer.status) == 200
    except (urllib.error.URLError, OSError, ValueError):
        return False


def _end(guard: subprocess.Popen[bytes], grace: float) -> None:
    """Closing its standard input ends the guard and its group; killing is for a guard that hangs.

    Waits even if Ctrl-C comes again, because the child is in another group and does not get it.
    """
    assert guard.stdin is not None
    with suppress(OSError):
        guard.stdin.close()
    try:
        guard.wait(grace + 5)
    finally:
        if guard.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(guard.pid, signal.SIGKILL)
            guard.wait()


def tail(log: Path, lines: int = _TAIL) -> str:
    """The last lines of a log, joined by ` | `."""
    text = read_text(log, errors="replace")
    last_lines = deque((line.strip() for line in text.splitlines() if line.strip()), maxlen=lines)
    return " | ".join(last_lines)
