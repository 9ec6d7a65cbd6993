"""Checksums of files that are written once, which find damage before the bytes are used: the CRC-32
of each 64 MiB of a file, in hexadecimal, one after the other. It is the fastest checksum of the
standard library, finds every damage of up to 32 consecutive bits, misses another one with a
probability of 2.3e-10, and does not protect against forgery.

Comparing reads every byte, so intact files are remembered by size, inode and times of change: in
`.verified.json` next to them; where that cannot be written, in the user's cache folder; and in this
process. A change that leaves size and times as they were, as a failing disk may make, is found
after that file was deleted.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from soundingline.toolkit.console import track
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.files import file_state, fingerprint, read_record, write_json

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
    states = {name: file_state(folder / name) for name in names}
    sums = _checksums(folder, states)
    _remember(folder, {name: [sums[name], *states[name]] for name in names}, began)
    return {name: {"bytes": states[name][0], "crc32": sums[name]} for name in names}


def verify_checksums(
    folder: Path,
    files: Mapping[str, Mapping[str, Any]],
    *,
    what: str,
    do: str,
) -> None:
    """Compare the files of a folder with the `checksums` of the time when they were written. Files
    that were compared in their present state are not read again. `InputError` with the first
    damaged file; `what` the folder holds and what the user can `do` are for its message."""
    began = time.time_ns()
    states = {}
    try:
        for name, written in files.items():
            states[name] = file_state(folder / name)
            if states[name][0] != written["bytes"]:
                sizes = f"{states[name][0]:,} bytes, and was written with {written['bytes']:,}"
                raise ValueError(f"{name} has {sizes}")
        rows = {name: [files[name]["crc32"], *states[name]] for name in files}
        verified = dict(_verified.get(str(folder.resolve()), {}))
        for record in _records(folder):
            verified |= read_record(record)
        unread = {name: state for name, state in states.items() if verified.get(name) != rows[name]}
        if not unread:
            return
        for name, checksum in _checksums(folder, unread).items():
            if checksum != files[name]["crc32"]:
                raise ValueError(f"{name} does not hold what was written to it")
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
    content = read_record(folder / CHECKSUM_LIST)
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
    for record in _records(folder):
        with suppress(OSError):
            write_json(record, settled)
            return
    _verified[str(folder.resolve())] = settled


def _records(folder: Path) -> Iterator[Path]:
    """The possible records of intact files: next to them, and in the user's cache folder."""
    yield folder / VERIFIED
    with suppress(RuntimeError):  # a user without a home
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        name = fingerprint(str(folder.resolve()))
        yield cache / "soundingline" / f"verified-{name}.json"
