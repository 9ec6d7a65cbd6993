"""One writer for a run folder.

`flock` decides on one machine: the kernel drops it when its holder dies, by kill -9 too, so there
is nothing to clean and no race in taking over. The file's text (process, host, start time) is for
the message, and for file systems whose `flock` other hosts do not see (some NFS mounts): a text
that another host left there is never overridden, because only a person can know whether that
process still runs.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from toolkit.errors import InputError
from toolkit.files import open_own

# The environment variable with the identity of the sweep that this process is a part of.
SWEEP = "SOUNDINGLINE_SWEEP"
_NAMING_SECONDS = 5.0  # to wait for the text of a holder at most


class _Holder(NamedTuple):
    """What a lock file's text names: a process id (0: none), its host, when the process started,
    and the sweep that it is a part of (the latter three empty where unknown)."""

    pid: int
    host: str
    started: str
    sweep: str


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file `path` during the block, waiting for a holder of the same sweep.
    `InputError` with the holder's process id and host if any other one holds it, or if `path` is a
    symbolic link. The file stays when the block ends: removing it would let two processes lock two
    files of one name."""
    handle = _open(path)
    try:
        _take(handle, path)
        try:
            yield
        finally:
            os.ftruncate(handle, 0)
    finally:
        os.close(handle)


def process_started(pid: int) -> str:
    """When a process started, in the kernel's own clock ticks; empty where /proc does not tell.
    Together with the id it names a process for good, because ids are used again."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[19]


def _open(path: Path) -> int:
    try:
        return open_own(path)
    except OSError as error:
        raise InputError(
            f"cannot write {path.parent}: {error.strerror}", do="choose a folder that you may write"
        ) from error


def _take(handle: int, path: Path) -> None:
    try:
        holder = _obtain(handle)
        if holder is not None:
            if not holder.sweep or holder.sweep != os.environ.get(SWEEP):
                raise _refusal(path, holder)
            # Two cells of one sweep that mean the same: this one waits, and finds the work done.
            fcntl.flock(handle, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
            raise
        raise InputError(
            f"the file system of {path.parent} offers no locks ({error.strerror})",
            do="put the runs folder on a local disk",
        ) from error
    holder = _read(handle)
    if _holds(holder):
        raise _refusal(path, holder)
    _write(handle)


def _obtain(handle: int) -> _Holder | None:
    """None with the lock obtained; else who holds it. A holder writes its text after it has
    obtained the lock, and empties it before it lets go: in between the text names nobody, or a dead
    process, and who comes then waits for a moment."""
    deadline = time.monotonic() + _NAMING_SECONDS
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _read(handle)
        else:
            return None
        if _holds(holder) or time.monotonic() > deadline:
            return holder
        time.sleep(0.01)


def _holds(holder: _Holder) -> bool:
    """Whether the holder that a text names must be believed although `flock` was obtained."""
    if holder.host not in ("", socket.gethostname()):
        return True
    # An id alone names no process, because ids are used again: where the system does not tell when
    # processes started, `flock` has decided.
    return bool(holder.started) and process_started(holder.pid) == holder.started


def _refusal(path: Path, holder: _Holder) -> InputError:
    pid, host = holder.pid or "unknown", holder.host or "unknown"
    if holder.host in ("", socket.gethostname()):
        advice = "wait for it or stop it, then run the same command; or give this run another name="
    else:
        advice = f"if that process is gone, delete {path} and run the same command"
    return InputError(
        f"the run {path.parent} is being written by process {pid} on host {host}", do=advice
    )


def _read(handle: int) -> _Holder:
    """The holder that the file names, as far as it does: a process may be killed while it writes
    its own text, and the file may come from anywhere."""
    try:
        text = json.loads(os.pread(handle, 4096, 0))
    except (ValueError, RecursionError):
        text = None
    values = text if isinstance(text, dict) else {}
    pid, host, started, sweep = (values.get(name) for name in _Holder._fields)
    return _Holder(
        pid if isinstance(pid, int) and pid > 0 else 0,
        host if isinstance(host, str) else "",
        started if isinstance(started, str) else "",
        sweep if isinstance(sweep, str) else "",
    )


def _write(handle: int) -> None:
    pid = os.getpid()
    holder = _Holder(pid, socket.gethostname(), process_started(pid), os.environ.get(SWEEP, ""))
    os.ftruncate(handle, 0)
    os.pwrite(handle, json.dumps(holder._asdict()).encode(), 0)
    os.fsync(handle)
