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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from toolkit.errors import InputError
from toolkit.files import process_alive


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file `path` during the block. `InputError` with the holder's process id and
    host if another one holds it. The file stays when the block ends: removing it would let two
    processes lock two files of one name."""
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
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise InputError(
            f"cannot write {path.parent}: {error.strerror}", do="choose a folder that you may write"
        ) from error


def _take(handle: int, path: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _refusal(path, _read(handle)) from None
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
            raise
        raise InputError(
            f"the file system of {path.parent} offers no locks ({error.strerror})",
            do="put the runs folder on a local disk",
        ) from error
    holder = _read(handle)
    if holder and not _gone(holder):
        raise _refusal(path, holder)
    _write(handle)


def _gone(holder: dict[str, Any]) -> bool:
    if holder.get("host") != socket.gethostname():
        return False
    pid = int(holder.get("pid", 0))
    return not process_alive(pid) or process_started(pid) != holder.get("started", "")


def _refusal(path: Path, holder: dict[str, Any]) -> InputError:
    pid, host = holder.get("pid", "unknown"), holder.get("host", "unknown")
    if host in (socket.gethostname(), "unknown"):
        advice = "wait for it or stop it, then run the same command; or give this run another name="
    else:
        advice = f"if that process is gone, delete {path} and run the same command"
    return InputError(
        f"the run {path.parent} is being written by process {pid} on host {host}", do=advice
    )


def _read(handle: int) -> dict[str, Any]:
    try:
        holder = json.loads(os.pread(handle, 4096, 0) or b"{}")
        return holder if isinstance(holder, dict) else {}
    except ValueError:
        # Killed while writing its own text: flock has already told that it is gone.
        return {}


def _write(handle: int) -> None:
    pid = os.getpid()
    text = {"pid": pid, "host": socket.gethostname(), "started": process_started(pid)}
    os.ftruncate(handle, 0)
    os.pwrite(handle, json.dumps(text).encode(), 0)
    os.fsync(handle)
