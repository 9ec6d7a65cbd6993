"""Locks on files, who holds them, and which file systems pass them to other hosts."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from soundingline.toolkit.console import notify
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.json_text import try_json

# The rights of new files, from which the kernel removes what the umask or the default ACL of the
# folder forbids. The functions of `tempfile` ask for fewer and would need a chmod that knows
# neither.
_RIGHTS = 0o666
_NAMING_SECONDS = 5.0  # the longest wait for the text of the process that holds a lock


def open_own(path: Path, *, append: bool = False) -> int:
    """Open a file that is written in place, such as a lock or a log, for reading and writing, and
    create it with its folders if it is missing. `InputError` if `path` is a symbolic link, which
    could lead to any file of the user in a folder that somebody sent, or not a regular file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | (os.O_APPEND if append else 0)
    wrong = "no regular file"
    try:
        handle = os.open(path, flags, _RIGHTS)
        if stat.S_ISREG(os.fstat(handle).st_mode):
            return handle
        os.close(handle)
    except OSError:
        if not path.is_symlink():
            raise
        wrong = "a symbolic link"
    raise InputError(f"{path} is {wrong}", valid="a regular file", do="remove it")


@contextmanager
def file_lock(path: Path, *, reading: bool = False) -> Iterator[None]:
    """Hold an advisory lock on the file `path`, after waiting for its holder. The kernel frees it
    when the process dies. Holders that are `reading` share the lock, create no file, and wait for
    nothing where the file cannot be locked."""
    with ExitStack() as stack:
        with suppress(*([OSError] if reading else [])):
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
            handle = os.open(path, flags) if reading else open_own(path)
            stack.callback(os.close, handle)
            fcntl.flock(handle, fcntl.LOCK_SH if reading else fcntl.LOCK_EX)
        yield


def lock_now(handle: int) -> bool:
    """Whether an open file, which nobody else has locked, is locked from now on until it is closed.
    `OSError` if the file system has no locks."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def building_lock(path: Path, missing: str) -> Iterator[None]:
    """Hold a `file_lock` to build what is `missing` in the folder of `path`; `InputError` if this
    process may not write there."""
    try:
        os.close(open_own(path))
    except OSError as error:
        if not read_only(error):
            raise
        raise InputError(
            f"{missing} is not there, and '{path.parent}' cannot be written ({error.strerror})",
            do="build it where that folder can be written, or name another folder",
        ) from error
    with file_lock(path):
        yield


def read_only(error: OSError) -> bool:
    """Whether an error means that this process may not write there."""
    return error.errno in (errno.EROFS, errno.EACCES, errno.EPERM)


class _Holder(NamedTuple):
    """The text of a lock file: a process id (0: unknown), its host, and its sweep (empty:
    unknown)."""

    pid: int = 0
    host: str = ""
    sweep: str = ""

    @classmethod
    def read(cls, handle: int) -> _Holder:
        """Invalid parts are unknown: a process may be killed while it writes them, and the file may
        come from anywhere."""
        values = try_json(os.pread(handle, 4096, 0))
        values = values if isinstance(values, dict) else {}
        pid, *names = (values.get(name) for name in cls._fields)
        pid = pid if isinstance(pid, int) and 0 < pid < 1 << 31 else 0
        return cls(pid, *(name if isinstance(name, str) else "" for name in names))

    @property
    def is_elsewhere(self) -> bool:
        return self.host not in ("", socket.gethostname())


@contextmanager
def writer_lock(path: Path, sweep: str = "") -> Iterator[None]:
    """Hold the lock file `path` of the only writer of a run. `sweep` is the start of a sweep that
    this process belongs to, if any. Its cell waits for an equal one, also of another start of the
    sweep, and then finds the work done. The file stays, because removing it would let two processes
    lock two files of the same name. `InputError` with the process id and the host of any other
    holder, and if `path` is a symbolic link or the file system has no locks.

    On one host, the lock of the kernel decides. The text of the file is for the message, and for
    file systems on which other hosts do not see the lock, such as some NFS mounts: a text of
    another host is never overridden, because only a person can know whether that process still
    runs."""
    try:
        handle = open_own(path)
    except OSError as error:
        raise InputError(
            f"cannot write {path.parent}: {error.strerror}", do="choose a folder that you may write"
        ) from error
    try:
        _take(handle, path, sweep)
        try:
            yield
        finally:
            os.ftruncate(handle, 0)
    finally:
        os.close(handle)


def _take(handle: int, path: Path, sweep: str) -> None:
    try:
        if holder := _other_holder(handle):
            if not (sweep and holder.sweep):
                raise _held(path, holder)
            notify(f"process {holder.pid} on host {holder.host} writes {path.parent}: waiting")
            fcntl.flock(handle, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
            raise
        raise InputError(
            f"the file system of {path.parent} offers no locks ({error.strerror})",
            do="put the runs folder on a local disk",
        ) from error
    if (holder := _Holder.read(handle)).is_elsewhere:
        raise _held(path, holder)
    this_process = _Holder(os.getpid(), socket.gethostname(), sweep)
    os.ftruncate(handle, 0)
    os.pwrite(handle, json.dumps(this_process._asdict()).encode(), 0)
    os.fsync(handle)


def _other_holder(handle: int) -> _Holder | None:
    """The holder of the lock; None once this process has it. A holder writes its text after it has
    obtained the lock and empties it before the release. In between the text names nobody or a dead
    process, and this waits a moment."""
    deadline = time.monotonic() + _NAMING_SECONDS
    while not lock_now(handle):
        holder = _Holder.read(handle)
        named = holder.is_elsewhere or (holder.pid and process_alive(holder.pid))
        if named or time.monotonic() > deadline:
            return holder
        time.sleep(0.01)
    return None


def _held(path: Path, holder: _Holder) -> InputError:
    pid, host = holder.pid or "unknown", holder.host or "unknown"
    do = "wait for it or stop it, then run the same command; or give this run another name="
    if holder.is_elsewhere:
        do = f"if that process is gone, delete {path} and run the same command"
    return InputError(
        f"the run {path.parent} is being written by process {pid} on host {host}", do=do
    )


def process_alive(pid: int) -> bool:
    """Whether a process with this id runs on this machine."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


# The file system of a path, by `/proc/self/mountinfo` of Linux (proc(5)).

MOUNTS = Path("/proc/self/mountinfo")
# File systems of one host: its processes share memory, and locks reach all who have a file open.
_LOCAL = {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "ramfs"}
_LOCAL |= {"reiserfs", "tmpfs", "xfs", "zfs"}
_ESCAPED = re.compile(r"\\([0-7]{3})")


def file_system(path: Path | str) -> str:
    """The kernel's name of the type of file system of a path or of its nearest existing parent;
    `unknown` on other systems than Linux."""
    kinds: dict[Path, str] = {}
    with suppress(OSError):
        for line in os.fsdecode(MOUNTS.read_bytes()).splitlines():
            # 36 35 98:0 /root /point options [fields ...] - type source super-options
            head, _, tail = line.partition(" - ")
            point = _ESCAPED.sub(lambda match: chr(int(match[1], 8)), head.split(" ")[4])
            kinds[Path(point)] = tail.split(" ")[0]  # A later mount hides an earlier one.
    resolved = Path(path).resolve()
    return next(
        (kinds[folder] for folder in (resolved, *resolved.parents) if folder in kinds), "unknown"
    )


def is_local(path: Path | str) -> bool:
    """Whether the file system of a path is known to belong to this host alone."""
    return file_system(path) in _LOCAL
