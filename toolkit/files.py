"""Writing files and folders so that nothing is ever half-made, and hashing what they hold."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_READABLE = 0o644
_READABLE_FOLDER = 0o755


def write_atomic(path: Path, text: str) -> None:
    """Write `text` (UTF-8) to `path` through a temporary file and `os.replace`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(
        prefix=f".{path.name[:40]}.", suffix=".tmp", dir=path.parent
    )
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        Path(temporary).chmod(_READABLE)  # mkstemp lets only its owner read
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def dump_json(value: Any, *, indent: int | None = 1) -> str:
    """JSON with sorted keys off, Unicode kept: equal values give equal text."""
    return json.dumps(value, ensure_ascii=False, indent=indent, default=_plain) + "\n"


def _plain(value: Any) -> Any:
    if hasattr(value, "item"):
        return value.item()
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"cannot write {type(value).__name__} as JSON")


def write_json(path: Path, value: Any) -> None:
    """`write_atomic` of `dump_json(value)`."""
    write_atomic(path, dump_json(value))


@contextmanager
def folder_made_whole(path: Path) -> Iterator[Path]:
    """A temporary folder beside `path` that becomes `path` when the block ends well.

    On any error, Ctrl-C included, the temporary folder is removed and `path` stays as it was.
    Leftovers of killed processes are named `.<name>.<random>.partial` and are swept by the next
    call for the same `path` when their process is gone.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _sweep(path)
    temporary = Path(
        tempfile.mkdtemp(prefix=f".{path.name}.{os.getpid()}.", suffix=".partial", dir=path.parent)
    )
    try:
        yield temporary
        temporary.chmod(_READABLE_FOLDER)  # mkdtemp lets only its owner in
        if path.exists():
            shutil.rmtree(path)
        temporary.rename(path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _sweep(path: Path) -> None:
    for leftover in path.parent.glob(f".{path.name}.*.partial"):
        owner = leftover.name[len(path.name) + 2 :].split(".")[0]
        if owner.isdecimal() and not process_alive(int(owner)):
            shutil.rmtree(leftover, ignore_errors=True)


@contextmanager
def waiting_lock(path: Path) -> Iterator[None]:
    """Hold an advisory lock on `path`, waiting for whoever holds it; freed by the kernel when its
    holder dies. For work that several processes would otherwise do twice, such as one index."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


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
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def file_fingerprint(*paths: Path) -> str:
    """Twelve hexadecimal digits of the SHA-256 of the files' bytes, in the order given."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as stream:
            while chunk := stream.read(1 << 20):
                digest.update(chunk)
        digest.update(b"\0")
    return digest.hexdigest()[:12]
