"""Writing files and folders so that nothing is ever half-made, and hashing what they hold."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from toolkit.errors import InputError
from toolkit.sealing import close_lines, is_sealed

# What a process asks for; the kernel takes off what the umask or a folder's default ACL forbids.
# The functions of `tempfile` ask for less and would need a chmod that knows neither.
_ANYONE = 0o666
_SURROGATE = re.compile("[\ud800-\udfff]")


@contextmanager
def file_made_whole(path: Path) -> Iterator[BinaryIO]:
    """A stream whose bytes become the file `path` when the block ends well; on any error `path`
    stays as it was. The temporary file beside it is named `.<name>.<random>.tmp`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name[:40]}.{secrets.token_hex(8)}.tmp")
    stream = temporary.open("xb")
    try:
        with stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_atomic(path: Path, text: str, *, clear: bool = False) -> None:
    """Write `text` (UTF-8) to `path`, whole or not at all; in a sealed folder sealed
    (`toolkit.sealing`), unless it is `clear`: then it holds no text of a benchmark."""
    content = text.encode()
    if not clear and is_sealed(path):
        content = close_lines(content)
    with file_made_whole(path) as stream:
        stream.write(content)


def dump_json(value: Any, *, indent: int | None = 1) -> str:
    """JSON with sorted keys off, Unicode kept: equal values give equal text."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, default=_plain) + "\n"
    # A model may emit half of a surrogate pair, which UTF-8 cannot hold; JSON's \\u escape can.
    return _SURROGATE.sub(lambda match: f"\\u{ord(match.group()):04x}", text)


def _plain(value: Any) -> Any:
    if hasattr(value, "item"):
        return value.item()
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"cannot write {type(value).__name__} as JSON")


def write_json(path: Path, value: Any, *, clear: bool = False) -> None:
    """`write_atomic` of `dump_json(value)`."""
    write_atomic(path, dump_json(value), clear=clear)


@contextmanager
def folder_made_whole(path: Path) -> Iterator[Path]:
    """A temporary folder beside `path` that becomes `path` when the block ends well.

    On any error, Ctrl-C included, the temporary folder is removed and `path` stays as it was.
    Leftovers of killed processes are named `.<name>.<random>.partial` and are swept by the next
    call for the same `path` when their process is gone.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _sweep(path)
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


def give_usual_rights(folder: Path) -> None:
    """Give the files in `folder` the rights of any file that this process makes there: a library
    that writes through `tempfile` leaves its files to their owner alone."""
    probe = folder / f".{secrets.token_hex(8)}.tmp"
    probe.touch(_ANYONE)
    mode = stat.S_IMODE(probe.stat().st_mode)
    probe.unlink()
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.chmod(mode)


def _sweep(path: Path) -> None:
    for leftover in path.parent.glob(f".{path.name}.*.partial"):
        owner = leftover.name[len(path.name) + 2 :].split(".")[0]
        if owner.isdecimal() and not process_alive(int(owner)):
            shutil.rmtree(leftover, ignore_errors=True)


@contextmanager
def waiting_lock(path: Path) -> Iterator[None]:
    """Hold an advisory lock on `path`, waiting for whoever holds it; freed by the kernel when its
    holder dies. For work that several processes would otherwise do twice, such as one index."""
    handle = open_own(path)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def open_own(path: Path, *, append: bool = False) -> int:
    """A descriptor of the file `path` for reading and writing, at its end if `append`. The file is
    made with its folders where it is missing, and is otherwise opened as it is. For files that
    stay and are written in place, such as locks and logs.

    `InputError` where a symbolic link or anything but a regular file stands there: in a folder that
    somebody sent, it could lead to any file of the user's. Other trouble is an `OSError`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | (os.O_APPEND if append else 0)
    try:
        handle = os.open(path, flags, _ANYONE)
    except OSError:
        if path.is_symlink():
            raise _not_own(path, "a symbolic link") from None
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise _not_own(path, "no regular file")
    return handle


def _not_own(path: Path, what: str) -> InputError:
    return InputError(f"{path} is {what}", valid="a regular file", do="remove it")


def process_alive(pid: int) -> bool:
    """Whether a process of that id runs on this machine."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def fingerprint(*parts: Any) -> str:
    """Twelve hexadecimal digits of the SHA-256 of the parts' JSON. Equal settings, equal digits."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False, default=str)
    # Models write halves of surrogate pairs.
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:12]


def recorded_fingerprint(path: Path, record: Path | None) -> str:
    """`file_fingerprint` of one large file, read again only where its place, size or times have
    changed since the hash went into `record`, a JSON file of such hashes (None: it is kept
    nowhere). A record that cannot be read is begun again."""
    key, status = str(path.resolve()), path.stat()
    # A copy may keep size and time of the content, but not the time of its own change.
    state = [status.st_size, status.st_mtime_ns, status.st_ctime_ns]
    known: Any = None
    if record is not None:
        with suppress(OSError, ValueError):
            known = json.loads(record.read_text(encoding="utf-8"))
    hashes: dict[str, Any] = known if isinstance(known, dict) else {}
    row = hashes.get(key)
    if isinstance(row, dict) and row.get("state") == state:
        return str(row.get("hash"))
    digest = file_fingerprint(path)
    if record is not None:
        write_json(record, {**hashes, key: {"state": state, "hash": digest}}, clear=True)
    return digest


def file_fingerprint(*paths: Path) -> str:
    """Twelve hexadecimal digits of the SHA-256 of the files' bytes, in the order given."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as stream:
            while chunk := stream.read(1 << 20):
                digest.update(chunk)
        digest.update(b"\0")
    return digest.hexdigest()[:12]
