"""The other end of `anserini_worker`: starts it, asks it, stops it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import weakref
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import IO, Any, cast

from soundingline.pipelines.engines.java import INSTALL, find_jar, find_java, java_needed
from soundingline.toolkit.errors import InputError

_WORKER = Path(__file__).with_name("anserini_worker.py")
_LOG_SHOWN = 600


class AnseriniProcess:
    """One Java virtual machine with Anserini in it, started at the first `ask`.

    `first` is a request that every fresh machine gets before any other. Safe for threads (requests
    wait for each other) and for forks (a child starts its own). `InputError` where the jar, a new
    enough machine or `pyjnius` is missing.
    """

    def __init__(
        self,
        jar: str | Path | None = None,
        java_home: str | Path | None = None,
        heap: str | None = None,
        first: tuple[str, dict[str, Any]] | None = None,
    ) -> None:
        self.jar = find_jar(jar)
        self.java_home = find_java(java_needed(self.jar), java_home)
        if find_spec("jnius") is None:
            raise InputError("pyjnius, which carries calls to Java, is not installed", do=INSTALL)
        # -Xrs: Ctrl-C belongs to Python.
        self._options = ["-Xrs", *([f"-Xmx{heap}"] if heap else [])]
        self._first = first
        self._lock = Lock()
        self._started_by = 0

    def ask(self, what: str, **arguments: Any) -> Any:
        """The worker's answer. A request that fails raises `RuntimeError` with Java's words."""
        with self._lock:
            if self._started_by != os.getpid():
                self._start()
                if self._first is not None:
                    self._exchange(self._first[0], self._first[1])
            return self._exchange(what, arguments)

    def _exchange(self, what: str, arguments: dict[str, Any]) -> Any:
        try:
            self._requests.write(json.dumps({"do": what, "with": arguments}) + "\n")
            self._requests.flush()
            line = self._replies.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise RuntimeError(f"Anserini's process ended: {self._log_tail()}")
        reply = json.loads(line)
        if "error" in reply:
            raise RuntimeError(f"Anserini: {reply['error']}")
        return reply["value"]

    def close(self) -> None:
        """Stop the machine, if this process started one."""
        if self._started_by == os.getpid():
            self._stop()
            self._started_by = 0

    def _start(self) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  (lives as long as the machine)
        process = subprocess.Popen(
            [sys.executable, str(_WORKER), str(self.jar), *self._options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, "JAVA_HOME": str(self.java_home)},
            text=True,
            encoding="utf-8",
        )
        self._requests, self._replies = cast(IO[str], process.stdin), cast(IO[str], process.stdout)
        self._started_by = os.getpid()
        self._stop = weakref.finalize(self, _end, process, self._started_by)

    def _log_tail(self) -> str:
        self._log.seek(0)
        return self._log.read().decode("utf-8", "replace")[-_LOG_SHOWN:].strip()


def _end(process: subprocess.Popen[str], started_by: int) -> None:
    if os.getpid() != started_by:
        return
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
