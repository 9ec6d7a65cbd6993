"""Runs a command and ends it, with all it started, when this process's standard input closes.

Started as a script, `python process_guard.py <grace seconds> <command...>`, in a new process group.
The parent holds the other end of the pipe, which the kernel closes however the
parent ends: by leaving the block, an exception, Ctrl-C, or kill -9. Imports nothing of ours."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time

_TICK = 0.05


def main(grace: float, command: list[str]) -> None:
    """Run the command until it ends or standard input closes; then end the process group."""
    # Signals are for the group's other members; this process goes last.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, restore_signals=True, preexec_fn=_default_signals
        )
    except OSError as error:
        sys.stderr.write(f"cannot start {command[0]}: {error.strerror}\n")
        return
    while child.poll() is None and not _parent_left():
        pass
    if child.poll() is None:
        os.killpg(0, signal.SIGTERM)
        deadline = time.monotonic() + grace
        while child.poll() is None and time.monotonic() < deadline:
            time.sleep(_TICK)
    try:
        sys.stderr.write(f"the server ended with code {child.poll()}\n")
        sys.stderr.flush()
    except OSError:
        pass  # The parent, which is gone, held the other end of the pipe.
    finally:
        os.killpg(0, signal.SIGKILL)


def _default_signals() -> None:
    # Ignored signals stay ignored across exec.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def _parent_left() -> bool:
    readable, _, _ = select.select([0], [], [], _TICK)
    return bool(readable) and not os.read(0, 1024)


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2:])
