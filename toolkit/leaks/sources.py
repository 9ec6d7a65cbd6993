"""What lies at a path, piece by piece: files, members of archives, and a repository's history."""

from __future__ import annotations

import gzip
import subprocess
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from toolkit.errors import InputError

_LARGEST = 2 << 30  # bytes of a content; what is larger is told and not read


def contents(
    paths: Iterable[str], *, skip: Sequence[str] = (), history: bool = True
) -> Iterator[tuple[str, bytes | None]]:
    """The contents at the paths, each with the name to tell it by; None instead of a content that
    cannot be read whole.

    - Files below a folder, at any depth; symbolic links are not followed. A folder that holds a
      file of a name in `skip` comes as one None, and so do `.git` folders, without being told.
    - Members of `.gz` and ZIP files, beside the file itself.
    - With `history`, of each path that is a git repository every blob, commit and tag that it
      stores, also those that no branch reaches any more.

    `InputError` for a path that does not exist.
    """
    for text in paths:
        path = Path(text)
        if not path.exists():
            raise InputError(f"there is no file or folder {path}", do="check the path")
        yield from _files(path, skip)
        if history and path.is_dir() and _is_repository(path):
            yield from _history(path)


def _files(path: Path, skip: Sequence[str]) -> Iterator[tuple[str, bytes | None]]:
    if path.is_symlink():
        return
    if path.is_file():
        yield from _file(path)
    elif path.is_dir() and path.name != ".git":
        if any((path / name).is_file() for name in skip):
            yield str(path), None
            return
        for inner in sorted(path.iterdir()):
            yield from _files(inner, skip)


def _file(path: Path) -> Iterator[tuple[str, bytes | None]]:
    try:
        content = path.read_bytes() if path.stat().st_size <= _LARGEST else None
    except OSError:
        content = None
    yield str(path), content
    if content is not None:
        yield from _members(path, content)


def _members(path: Path, content: bytes) -> Iterator[tuple[str, bytes | None]]:
    try:
        if content.startswith(b"\x1f\x8b"):
            with gzip.open(path) as stream:
                inner = stream.read(_LARGEST + 1)
            yield f"{path} (unpacked)", inner if len(inner) <= _LARGEST else None
        elif content.startswith(b"PK\x03\x04"):
            with zipfile.ZipFile(path) as archive:
                for member in archive.infolist():
                    small_enough = member.file_size <= _LARGEST
                    yield (
                        f"{path}:{member.filename}",
                        archive.read(member) if small_enough else None,
                    )
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile, RuntimeError, NotImplementedError):
        yield f"{path} (unpacked)", None


def _is_repository(path: Path) -> bool:
    return (path / ".git").exists() or ((path / "objects").is_dir() and (path / "HEAD").is_file())


def _history(path: Path) -> Iterator[tuple[str, bytes | None]]:
    """Every object but trees, through one process that packs are read by once."""
    names = dict(
        line.split(" ", 1) for line in _git(path, "rev-list", "--objects", "--all") if " " in line
    )
    form = "--batch-check=%(objectname) %(objecttype) %(objectsize)"
    wanted = []
    for line in _git(path, "cat-file", "--batch-all-objects", form):
        digest, kind, size = line.split()
        if kind != "tree":
            name = f"{path}@{digest[:12]} {names.get(digest, kind)}"
            if int(size) > _LARGEST:
                yield name, None
            else:
                wanted.append((digest, name))
    command = ["git", "-C", str(path), "cat-file", "--batch"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("git was started without pipes")
        for digest, name in wanted:
            process.stdin.write(f"{digest}\n".encode())
            process.stdin.flush()
            length = int(process.stdout.readline().split()[-1])
            yield name, process.stdout.read(length + 1)[:-1]
        process.stdin.close()


def _git(path: Path, *arguments: str) -> list[str]:
    try:
        done = subprocess.run(["git", "-C", str(path), *arguments], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        message = getattr(error, "stderr", b"") or str(error).encode()
        raise InputError(
            f"the history of {path} cannot be read: {message.decode(errors='replace')}",
            do="install git, or scan the files alone: --no-history",
        ) from error
    return done.stdout.decode(errors="replace").splitlines()
