"""Files that are written whole or not at all, their text and JSON, and hashes."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO

from soundingline.toolkit.errors import InputError, parse
from soundingline.toolkit.json_text import decode_json, replace_surrogates
from soundingline.toolkit.locks import is_local, lock_now, process_alive
from soundingline.toolkit.obfuscation import (
    MARKER,
    encrypt_lines,
    is_obfuscated,
    marker_text,
    read_text,
)

_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{16}\.tmp")
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


def give_usual_rights(folder: Path) -> None:
    """Give the files in `folder` the rights of other new files there. A library that writes through
    `tempfile` creates files that only their owner can read."""
    probe = folder / f".{secrets.token_hex(8)}.tmp"
    probe.touch()
    mode = stat.S_IMODE(probe.stat().st_mode)
    probe.unlink()
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.chmod(mode)


def backup_path(path: Path) -> Path:
    """The first free name `<name>.damaged-<n>` next to `path`, for damaged content. The caller is
    the only writer of `path`."""
    names = (path.with_name(f"{path.name}.damaged-{number}") for number in count(1))
    return next(name for name in names if not os.path.lexists(name))


def set_aside(path: Path, content: bytes) -> Path:
    """Write damaged `content` of the file `path` to a new file next to it, whose path is
    returned."""
    aside = backup_path(path)
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


def dump_json(
    value: Any, *, indent: int | None = 1, separators: tuple[str, str] | None = None
) -> str:
    """The JSON text of a value, with keys in their order, and Unicode characters as they are, but
    for lone surrogates, which become U+FFFD. Equal values have equal texts. Values of NumPy become
    plain numbers, and paths become strings."""
    text = json.dumps(
        value, ensure_ascii=False, indent=indent, separators=separators, default=_plain
    )
    return replace_surrogates(text) + "\n"


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
        value = decode_json(read_text(path))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}", do=do) from error
    except ValueError as error:
        raise InputError(f"{path} is damaged: {str(error)[:200]}", do=do) from error
    if kind is not Any:
        parse(kind, value, where=path, do=do, strict=True)
    return value


# Hashes.


def fingerprint(*parts: Any) -> str:
    """The first twelve hexadecimal digits of the SHA-256 of the parts' JSON, which are equal for
    equal settings."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


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
    key, state = str(path.resolve()), file_state(path)
    hashes = read_record(record)
    row = hashes.get(key)
    if isinstance(row, dict) and row.get("state") == state:
        return str(row.get("hash"))
    digest = file_hash(path)
    with suppress(OSError):
        write_json(record, {**hashes, key: {"state": state, "hash": digest}})
    return digest


def file_state(path: Path) -> list[int]:
    """What changes with a file's content. A copy may have size and time of the content, but neither
    the inode nor the time of its own change."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def read_record(path: Path) -> dict[str, Any]:
    """The object of a JSON file that can be made again; empty if it cannot be read."""
    with suppress(OSError, ValueError):
        record = decode_json(path.read_text("utf-8"))
        if isinstance(record, dict):
            return record
    return {}
