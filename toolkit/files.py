"""Files that are written whole or not at all, hashes and checksums of files, locks, JSON-lines logs
that survive a kill, and what is known of a path's file system."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import socket
import stat
import threading
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from soundingline.toolkit.console import notify, track
from soundingline.toolkit.errors import InputError, parse
from soundingline.toolkit.obfuscation import (
    MARKER,
    canary_decrypts,
    decrypt_line,
    encrypt_lines,
    is_obfuscated,
    marker_text,
    read_text,
)

# The rights of new files, from which the kernel removes what the umask or the default ACL of the
# folder forbids. The functions of `tempfile` ask for fewer and would need a chmod that knows
# neither.
_RIGHTS = 0o666
_SURROGATE = re.compile("[\ud800-\udfff]")
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{16}\.tmp")
_SYNC_SECONDS = 1.0
_NAMING_SECONDS = 5.0  # the longest wait for the text of the process that holds a lock
_swept: set[Path] = set()  # folders from which this process has removed leftovers


# Files and folders that appear whole or not at all.


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Write the file `path` whole or not at all. The block receives the stream of a temporary file
    `.<name>.<random>.tmp` in the same folder, which is locked (see `remove_leftovers`) and replaces
    `path` when the block ends without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.parent not in _swept:
        _swept.add(path.parent)
        remove_leftovers(path.parent)
    temporary, stream = _temporary(path)
    try:
        with stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
            temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _temporary(path: Path) -> tuple[Path, BinaryIO]:
    while True:
        temporary = path.with_name(f".{path.name[:40]}.{secrets.token_hex(8)}.tmp")
        stream = temporary.open("xb")
        locked = True
        with suppress(OSError):  # a file system without locks
            locked = lock_now(stream.fileno())
        # Before the lock, another process may have removed the file as a leftover.
        if locked and os.fstat(stream.fileno()).st_nlink:
            return temporary, stream
        stream.close()
        temporary.unlink(missing_ok=True)


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files of `atomic_file` that killed processes have left in `folder`.
    Files that are being written are locked and stay. All files stay where the file system is not
    known to be local, because their writers may run on other hosts."""
    files = [path for path in folder.glob(".*.tmp") if _TEMPORARY.fullmatch(path.name)]
    if files and not is_local(folder):
        return
    for path in files:
        with suppress(OSError):  # Its writer may just have renamed it.
            handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
            try:
                if lock_now(handle):
                    path.unlink()
            finally:
                os.close(handle)


def is_free(path: Path) -> bool:
    """Whether there is nothing at a path, or an empty folder."""
    return not path.exists() or (path.is_dir() and not any(path.iterdir()))


@contextmanager
def atomic_folder(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """Write the folder `path` whole or not at all. The block receives a temporary folder
    `.<name>.<process>.<random>.partial` next to `path`, which takes the place of `path` when the
    block ends without an error, and is removed otherwise. The next call for the same `path` removes
    leftovers of killed processes. `InputError` before the block for a `path` that holds anything,
    unless it may be replaced."""
    if not replace and not is_free(path):
        raise InputError(
            f"'{path}' exists and would be replaced", do="name another folder, or remove this one"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    for leftover in path.parent.glob(f".{path.name}.*.partial"):
        owner = leftover.name[len(path.name) + 2 :].split(".")[0]
        if owner.isdecimal() and not process_alive(int(owner)):
            shutil.rmtree(leftover, ignore_errors=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.partial")
    temporary.mkdir()
    try:
        yield temporary
        if path.exists():
            shutil.rmtree(path)
        temporary.rename(path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def process_alive(pid: int) -> bool:
    """Whether a process with this id runs on this machine."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def give_usual_rights(folder: Path) -> None:
    """Give the files in `folder` the rights of other new files there. A library that writes through
    `tempfile` creates files that only their owner can read."""
    probe = folder / f".{secrets.token_hex(8)}.tmp"
    probe.touch(_RIGHTS)
    mode = stat.S_IMODE(probe.stat().st_mode)
    probe.unlink()
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.chmod(mode)


def free_aside(path: Path) -> Path:
    """The first free name `<name>.damaged-<n>` next to `path`, for damaged content. The caller is
    the only writer of `path`."""
    names = (path.with_name(f"{path.name}.damaged-{number}") for number in count(1))
    return next(name for name in names if not os.path.lexists(name))


def set_aside(path: Path, content: bytes) -> Path:
    """Write damaged `content` of the file `path` to a new file next to it, whose path is
    returned."""
    aside = free_aside(path)
    with atomic_file(aside) as stream:
        stream.write(content)
    return aside


# Text and JSON.


def write_text(path: Path, text: str) -> None:
    """Write a text (UTF-8) to a file, whole or not at all."""
    content = text.encode()
    with atomic_file(path) as stream:
        stream.write(content)


def form_at_rest(path: Path) -> Callable[[bytes], bytes]:
    """What lines (UTF-8) that quote a benchmark are passed through before they are written to the
    file `path`. It obfuscates them in an obfuscated folder (`soundingline.toolkit.obfuscation`)."""
    return encrypt_lines if is_obfuscated(path) else bytes


def write_quoting(path: Path, text: str) -> None:
    """`write_text` of a text that quotes a benchmark, in its `form_at_rest`."""
    write_text(path, form_at_rest(path)(text.encode()).decode())


def mark_obfuscated(folder: Path) -> None:
    """Mark `folder`, so that what quotes a benchmark is obfuscated from now on, in it and below.
    `InputError` if no canary is set, or if the folder is marked with another one."""
    marker = folder / MARKER
    if marker.is_file():
        read_text(marker)
    else:
        write_text(marker, marker_text())


def dump_json(value: Any, *, indent: int | None = 1) -> str:
    """The JSON text of a value, with keys in their order and Unicode characters as they are. Equal
    values have equal texts. Values of NumPy become plain numbers, and paths become strings."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, default=_plain) + "\n"
    # Models write halves of surrogate pairs, which UTF-8 cannot represent but a \u escape can.
    return _SURROGATE.sub(lambda match: f"\\u{ord(match.group()):04x}", text)


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if not hasattr(value, "item"):
        raise TypeError(f"cannot write {type(value).__name__} as JSON")
    return value.item()


def write_json(path: Path, value: Any) -> None:
    """Write the JSON text of a value; see `dump_json` and `write_text`."""
    write_text(path, dump_json(value))


def read_json(path: Path, kind: Any = Any, *, do: str = "") -> Any:
    """The value of a JSON file, which may be obfuscated. `InputError` if the file cannot be read or
    its value is not of the type `kind`; `do` says what the user can do about it. The value is
    checked by `parse` and returned as it is: a `NamedTuple`, for example, stays a dictionary."""
    try:
        value = json.loads(read_text(path).removeprefix("\ufeff"))  # a byte order mark
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}", do=do) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is damaged: {str(error)[:200]}", do=do) from error
    if kind is not Any:
        parse(kind, value, where=path, do=do, strict=True)
    return value


# Hashes.


def fingerprint(*parts: Any) -> str:
    """The first twelve hexadecimal digits of the SHA-256 of the parts' JSON, which are equal for
    equal settings."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:12]


def file_hash(*paths: Path) -> str:
    """The first twelve hexadecimal digits of the SHA-256 of the files' bytes, in this order."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as stream:
            while chunk := stream.read(1 << 20):
                digest.update(chunk)
        digest.update(b"\0")
    return digest.hexdigest()[:12]


def cached_file_hash(path: Path, record: Path | None) -> str:
    """The `file_hash` of one large file, which is read again only if its path, size or times have
    changed since its hash was written to the JSON file `record`. Without a record it is always
    read. A record that cannot be read is replaced, and one that cannot be written is not updated.
    """
    if record is None:
        return file_hash(path)
    key, state = str(path.resolve()), _state(path)
    hashes = _read_record(record)
    row = hashes.get(key)
    if isinstance(row, dict) and row.get("state") == state:
        return str(row.get("hash"))
    digest = file_hash(path)
    with suppress(OSError):
        write_json(record, {**hashes, key: {"state": state, "hash": digest}})
    return digest


def _state(path: Path) -> list[int]:
    """What changes with a file's content. A copy may have size and time of the content, but neither
    the inode nor the time of its own change."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def _read_record(path: Path) -> dict[str, Any]:
    """The object of a JSON file that can be made again; empty if it cannot be read."""
    with suppress(OSError, ValueError, RecursionError):
        record = json.loads(path.read_text("utf-8"))
        if isinstance(record, dict):
            return record
    return {}


# Locks.


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
        values = None
        with suppress(ValueError, RecursionError):
            values = json.loads(os.pread(handle, 4096, 0))
        values = values if isinstance(values, dict) else {}
        pid, *names = (values.get(name) for name in cls._fields)
        pid = pid if isinstance(pid, int) and 0 < pid < 1 << 31 else 0
        return cls(pid, *(name if isinstance(name, str) else "" for name in names))

    @property
    def is_elsewhere(self) -> bool:
        return self.host not in ("", socket.gethostname())


@contextmanager
def writer_lock(path: Path, sweep: str = "") -> Iterator[None]:
    """Hold the lock file `path` of the only writer of a run, after waiting for a holder of the same
    `sweep`. The file stays, because removing it would let two processes lock two files of the same
    name. `InputError` with the process id and the host of any other holder, and if `path` is a
    symbolic link or the file system has no locks.

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
            if not sweep or holder.sweep != sweep:
                raise _held(path, holder)
            # An equal cell of the same sweep. This one waits, and then finds the work done.
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
    own = _Holder(os.getpid(), socket.gethostname(), sweep)
    os.ftruncate(handle, 0)
    os.pwrite(handle, json.dumps(own._asdict()).encode(), 0)
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


# Logs.


class JsonLinesLog:
    """A log of JSON objects, one a line, that one process appends to from any number of threads.
    The caller holds a lock, because two processes must not append to one file.

    A line is passed to the kernel before `append` returns, so that kill -9 loses at most the line
    that is being written, and a power failure the lines of the last second. An unfinished last line
    is set aside before the first append (`set_aside_unfinished`). `append` and `close` raise
    `OSError` if the file cannot be written, and a line that could not be written whole is removed.
    `append` raises what `open_own` raises.

    Args:
        path: the file, which is created with its first line.
        head: the first line of a new file.
        quoting: the lines quote a benchmark, and are written in their `form_at_rest`.
    """

    def __init__(
        self, path: Path, *, head: Mapping[str, Any] | None = None, quoting: bool = False
    ) -> None:
        self.path = path
        self._head, self._quoting = head, quoting
        self._form: Callable[[bytes], bytes] = bytes
        self._handle: int | None = None
        self._length = 0  # of the finished lines, in bytes
        self._synced = float("-inf")
        self._lock = threading.Lock()

    def append(self, value: Mapping[str, Any]) -> None:
        """Write one line."""
        line = _line(value)
        with self._lock:
            if self._handle is None:
                self._form = form_at_rest(self.path) if self._quoting else bytes
                self._handle = open_own(self.path, append=True)
                self._length = set_aside_unfinished(self.path)
                if self._head is not None and not self._length:
                    self._write(self._handle, _line(self._head))
            self._write(self._handle, line)
            if time.monotonic() - self._synced >= _SYNC_SECONDS:
                self._sync(self._handle)

    def close(self) -> None:
        """Sync and close the file; a later `append` opens it again."""
        with self._lock:
            if self._handle is None:
                return
            try:
                self._sync(self._handle)
            finally:
                os.close(self._handle)
                self._handle = None

    def _write(self, handle: int, line: bytes) -> None:
        line = self._form(line)
        written = 0
        try:
            while written < len(line):
                written += os.write(handle, line[written:])
        except OSError:
            os.ftruncate(handle, self._length)
            raise
        self._length += written

    def _sync(self, handle: int) -> None:
        os.fsync(handle)
        self._synced = time.monotonic()


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a log in their order; none if there is no file. An unfinished last line is
    left out, because it may be being written. `ValueError` with the number of the first damaged
    line, from 1, and `InputError` if the lines are obfuscated and cannot be decrypted."""
    values = []
    for number, (_, value) in enumerate(_rows(_content(path), path), start=1):
        if isinstance(value, str):
            raise ValueError(f"line {number} {value}")
        values.append(value)
    return values


def recover_json_lines(
    path: Path, *, head: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """The objects of a log that may be damaged, for its only writer. `InputError` if another canary
    obfuscated the file.

    If a line is damaged, the file is copied to `<name>.damaged-<n>`, only good lines stay in the
    file, and a line on standard error says so. These are the lines before the first damaged one, or
    all others if the lines do not depend on each other: such a log has a `head`, its first line,
    which is written again if it is damaged.
    """
    content = _content(path)
    rows = list(_rows(content, path, recovering=True))
    damages = [number for number, (_, value) in enumerate(rows) if isinstance(value, str)]
    if damages:
        first, damage = damages[0], rows[damages[0]][1]
        good = [row for row in (rows if head else rows[:first]) if not isinstance(row[1], str)]
        if head and first == 0:
            line = form_at_rest(path)(_line(head))
            good.insert(0, (line.rstrip(b"\n"), dict(head)))
        copy = set_aside(path, content)
        with atomic_file(path) as stream:
            stream.write(b"".join(line + b"\n" for line, _ in good))
        notify(
            f"{path} is damaged: line {first + 1} {damage}; it was copied to {copy.name}, "
            f"and {len(good)} of its {len(rows)} lines are used"
        )
        rows = good
    return [value for _, value in rows if not isinstance(value, str)]


def set_aside_unfinished(path: Path) -> int:
    """Move an unfinished last line of a file to `<name>.damaged-<n>` and report it in one line, for
    the only writer of the file. Returns the size in bytes of the finished lines."""
    content = _content(path)
    length = content.rfind(b"\n") + 1
    if length < len(content):
        aside = set_aside(path, content[length:])
        os.truncate(path, length)
        notify(f"the last line of {path} was never finished; it is moved to {aside.name}")
    return length


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _rows(
    content: bytes, path: Path, *, recovering: bool = False
) -> Iterator[tuple[bytes, dict[str, Any] | str]]:
    """The finished lines, without their ends, each with its object or with its damage in words."""
    for line in content.split(b"\n")[:-1]:
        try:
            text = decrypt_line(line, path)
        except InputError:
            if not recovering or not canary_decrypts(path):
                raise
            yield line, "cannot be decrypted"
            continue
        value = None
        with suppress(ValueError, RecursionError):
            value = json.loads(text.decode())
        yield line, value if isinstance(value, dict) else "is not a JSON object"


def _line(value: Mapping[str, Any]) -> bytes:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode() + b"\n"
    except UnicodeEncodeError:  # half a surrogate pair
        return json.dumps(value, separators=(",", ":")).encode() + b"\n"


# Checksums of files that are written once, which find damage before the bytes are used: the CRC-32
# of each 64 MiB of a file, in hexadecimal, one after the other. It is the fastest checksum of the
# standard library, finds every damage of up to 32 consecutive bits, misses another one with a
# probability of 2.3e-10, and is no protection against forgery.
#
# Comparing reads every byte, so sound files are remembered by size, inode and times of change: in
# `.verified.json` next to them; where that cannot be written, in the user's cache folder; and in
# this process. A change that leaves size and times as they were, as a failing disk may make, is
# found after that file was deleted.

VERIFIED = ".verified.json"
CHECKSUM_LIST = "checksums.json"
_PIECE = 1 << 26  # bytes of one CRC-32, which a thread computes
_READ = 1 << 20
_LONG = 1 << 32  # bytes, from which on a bar is shown
# A file that changed so shortly ago may change again without a change of its times.
_SETTLED_NS = 50_000_000

_verified: dict[str, dict[str, list[Any]]] = {}  # by folder, where no record can be written


def checksums(folder: Path, leave_out: Collection[str] = ()) -> dict[str, dict[str, Any]]:
    """Size and checksum of every file below `folder` except those whose name is in `leave_out`, by
    path in the folder. The files count as verified, so that the first opening does not read them.
    """
    began = time.time_ns()
    names = [
        path.relative_to(folder).as_posix()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in (VERIFIED, *leave_out)
    ]
    states = {name: _state(folder / name) for name in names}
    sums = _checksums(folder, states)
    _remember(folder, {name: [sums[name], *states[name]] for name in names}, began)
    return {name: {"bytes": states[name][0], "crc32": sums[name]} for name in names}


def verify_checksums(
    folder: Path,
    files: Mapping[str, Mapping[str, Any]],
    *,
    what: str,
    do: str,
    check: Callable[[], None] | None = None,
) -> None:
    """Compare the files of a folder with the `checksums` of the time when they were written. Files
    that were compared in their present state are not read again. `InputError` with the first
    damaged file; `what` the folder holds and what the user can `do` are for its message. `check`
    looks at the content of files after they were read and before they are remembered, and raises
    `ValueError` for impossible content."""
    began = time.time_ns()
    states = {}
    try:
        for name, written in files.items():
            states[name] = _state(folder / name)
            if states[name][0] != written["bytes"]:
                sizes = f"{states[name][0]:,} bytes, and was written with {written['bytes']:,}"
                raise ValueError(f"{name} has {sizes}")
        rows = {name: [files[name]["crc32"], *states[name]] for name in files}
        known = dict(_verified.get(str(folder.resolve()), {}))
        for place in _records(folder):
            known |= _read_record(place)
        unread = {name: state for name, state in states.items() if known.get(name) != rows[name]}
        if not unread:
            return
        for name, checksum in _checksums(folder, unread).items():
            if checksum != files[name]["crc32"]:
                raise ValueError(f"{name} does not hold what was written to it")
        if check is not None:
            check()
    except (OSError, ValueError) as error:
        damage = str(error)
        if isinstance(error, OSError):
            damage = f"{Path(str(error.filename)).name} cannot be read ({error.strerror})"
        raise InputError(f"{what} is damaged: {damage}", do=do) from error
    _remember(folder, rows, began)


def write_checksum_list(folder: Path) -> None:
    """Write the checksums of a folder's files to its `checksums.json`."""
    files = checksums(folder)
    write_json(folder / CHECKSUM_LIST, {"files": files, "checksum": fingerprint(files)})


def verify_checksum_list(folder: Path, *, what: str, do: str) -> None:
    """`verify_checksums` of a folder with a `checksums.json`; `InputError` also if that is missing
    or damaged."""
    content = _read_record(folder / CHECKSUM_LIST)
    files = content.get("files")
    if not isinstance(files, dict) or content.get("checksum") != fingerprint(files):
        raise InputError(f"{what} is damaged: {CHECKSUM_LIST} is not as it was written", do=do)
    verify_checksums(folder, files, what=what, do=do)


def _checksums(folder: Path, states: Mapping[str, list[int]]) -> dict[str, str]:
    """The checksum of each file, computed by as many threads as there are cores."""
    pieces = [
        (name, start)
        for name, (size, *_) in states.items()
        for start in range(0, max(size, 1), _PIECE)
    ]
    sums = dict.fromkeys(states, "")
    with ThreadPoolExecutor() as pool:
        results: Iterable[str] = pool.map(lambda piece: _crc32(folder / piece[0], piece[1]), pieces)
        if sum(size for size, *_ in states.values()) >= _LONG:
            results = track(results, f"checking {folder.name}", len(pieces))
        for (name, _), result in zip(pieces, results, strict=True):
            sums[name] += result
    return sums


def _crc32(path: Path, start: int) -> str:
    value, left, buffer = 0, _PIECE, memoryview(bytearray(_READ))
    try:
        with path.open("rb", buffering=0) as stream:
            stream.seek(start)
            while left and (count := stream.readinto(buffer[: min(left, _READ)])):
                value, left = zlib.crc32(buffer[:count], value), left - count
    except OSError as error:
        error.filename = str(path)  # an error of reading does not name it
        raise
    return f"{value:08x}"


def _remember(folder: Path, rows: Mapping[str, list[Any]], began: int) -> None:
    settled = {name: row for name, row in rows.items() if began - max(row[2:4]) > _SETTLED_NS}
    if not settled:
        return
    for place in _records(folder):
        with suppress(OSError):
            write_json(place, settled)
            return
    _verified[str(folder.resolve())] = settled


def _records(folder: Path) -> Iterator[Path]:
    """The possible records of sound files: next to them, and in the user's cache folder."""
    yield folder / VERIFIED
    with suppress(RuntimeError):  # a user without a home
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        name = fingerprint(str(folder.resolve()))
        yield cache / "soundingline" / f"verified-{name}.json"


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
        for line in MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
            # 36 35 98:0 /root /point options [fields ...] - type source super-options
            head, _, tail = line.partition(" - ")
            point = _ESCAPED.sub(lambda match: chr(int(match[1], 8)), head.split(" ")[4])
            kinds[Path(point)] = tail.split(" ")[0]  # A later mount hides an earlier one.
    resolved = Path(path).resolve()
    return next((kinds[each] for each in (resolved, *resolved.parents) if each in kinds), "unknown")


def is_local(path: Path | str) -> bool:
    """Whether the file system of a path is known to belong to this host alone."""
    return file_system(path) in _LOCAL
