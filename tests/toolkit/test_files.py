"""Files and folders appear whole, can be read by others, and leave nothing behind."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.caching import ResultCache
from toolkit import files
from toolkit.contracts import Document
from toolkit.corpus import SqliteStore
from toolkit.errors import InputError
from toolkit.evaluation.tuning.ranks import save_arrays
from toolkit.files import (
    file_fingerprint,
    fingerprint,
    folder_made_whole,
    open_own,
    recorded_fingerprint,
    waiting_lock,
    write_atomic,
)
from toolkit.runs.locks import locked


@pytest.fixture(params=[0o077, 0o002, 0o022], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def make_lock(path: Path) -> None:
    with waiting_lock(path):
        pass


def make_run_lock(path: Path) -> None:
    with locked(path):
        pass


def make_log(path: Path) -> None:
    os.close(open_own(path, append=True))


FILES: dict[str, Callable[[Path], Any]] = {
    "text": lambda path: write_atomic(path, "é"),
    "arrays": lambda path: save_arrays(path, ranks=np.zeros(3)),
    "waiting lock": make_lock,
    "run lock": make_run_lock,
    "log": make_log,
}


@pytest.mark.parametrize("make", FILES.values(), ids=FILES.keys())
def test_files_and_their_folders_have_the_rights_that_the_umask_leaves(
    tmp_path: Path, umask: int, make: Callable[[Path], Any]
) -> None:
    path = tmp_path / "deep" / "file"
    make(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o777 & ~umask
    assert [item.name for item in path.parent.iterdir()] == ["file"]


def test_a_folder_has_the_rights_that_the_umask_leaves(tmp_path: Path, umask: int) -> None:
    with folder_made_whole(tmp_path / "index") as folder:
        (folder / "a").write_text("1")
    assert stat.S_IMODE((tmp_path / "index").stat().st_mode) == 0o777 & ~umask


def test_databases_have_the_rights_that_the_umask_leaves(tmp_path: Path, umask: int) -> None:
    cache = ResultCache(tmp_path / "caches" / "stage.sqlite")  # open, with its log beside it
    cache.put([(("key",), 1)])
    document = Document("d", "title", "text")
    SqliteStore.build(tmp_path / "store", [document], corpus_fingerprint="x").close()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"stage.sqlite", "data.sqlite"} <= {path.name for path in files}
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o666 & ~umask}
    assert {stat.S_IMODE(path.parent.stat().st_mode) for path in files} == {0o777 & ~umask}


def test_a_folder_appears_whole(tmp_path: Path) -> None:
    target = tmp_path / "index"
    with folder_made_whole(target) as folder:
        (folder / "a").write_text("1")
        assert not target.exists()
    assert (target / "a").read_text() == "1"


def test_an_error_leaves_what_stood_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "index"
    target.mkdir()
    (target / "old").write_text("old")
    with pytest.raises(KeyboardInterrupt), folder_made_whole(target) as folder:
        (folder / "new").write_text("new")
        raise KeyboardInterrupt
    assert [path.name for path in tmp_path.iterdir()] == ["index"]
    assert (target / "old").read_text() == "old"


def test_leftovers_of_a_dead_process_are_swept(tmp_path: Path) -> None:
    # No process has this id: it is above the largest that Linux gives.
    dead = tmp_path / ".index.4999999.x.partial"
    dead.mkdir()
    with folder_made_whole(tmp_path / "index"):
        pass
    assert not dead.exists()


def test_a_file_appears_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_atomic(path, "é")
    with pytest.raises(UnicodeEncodeError):
        write_atomic(path, "half of a pair: \ud83d")
    assert path.read_text(encoding="utf-8") == "é"
    assert [item.name for item in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize("make", [make_lock, make_log])
def test_what_is_written_in_place_follows_no_symbolic_link(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    target, link = tmp_path / "thesis.txt", tmp_path / ".lock"
    target.write_text("years of work")
    link.symlink_to(target)
    with pytest.raises(InputError, match="symbolic link") as error:
        make(link)
    assert str(link) in str(error.value)
    assert target.read_text() == "years of work"
    link.unlink()
    link.symlink_to(tmp_path / "nothing")
    with pytest.raises(InputError, match="symbolic link"):
        make(link)
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize("make", [make_lock, make_log])
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path, make: Callable[[Path], None]) -> None:
    os.mkfifo(tmp_path / ".lock")
    with pytest.raises(InputError, match="no regular file"):
        make(tmp_path / ".lock")


def test_a_lock_keeps_the_text_of_its_file(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not mine")
    make_lock(path)
    assert path.read_text() == "not mine"


def test_texts_that_no_file_can_hold_have_fingerprints_too() -> None:
    assert fingerprint("\ud83d") == fingerprint("\ud83d") != fingerprint("\ud83e")


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files whose content was read for a hash."""
    read: list[Path] = []

    def noting(path: Path) -> str:
        read.append(path)
        return file_fingerprint(path)

    monkeypatch.setattr(files, "file_fingerprint", noting)
    return read


def test_a_large_file_is_hashed_once_until_it_changes(tmp_path: Path, hashed: list[Path]) -> None:
    record, large = tmp_path / "caches" / "weights.json", tmp_path / "a.gguf"
    large.write_bytes(b"first")
    one = recorded_fingerprint(large, record)
    assert one == file_fingerprint(large) == recorded_fingerprint(large, record)
    assert hashed == [large]
    # Another content of the same size and time, as a copy with its times kept has.
    status = large.stat()
    large.write_bytes(b"other")
    os.utime(large, ns=(status.st_atime_ns, status.st_mtime_ns))
    other = recorded_fingerprint(large, record)
    assert other == file_fingerprint(large) != one
    assert len(hashed) == 2
    second = tmp_path / "b.gguf"
    second.write_bytes(b"first")
    assert recorded_fingerprint(second, record) == one
    assert recorded_fingerprint(large, record) == other
    assert hashed == [large, large, second]


@pytest.mark.parametrize("damage", ["{", "[]", '{"%s": 1}', '{"%s": {"state": []}}'])
def test_a_record_of_hashes_that_cannot_be_read_is_begun_again(
    damage: str, tmp_path: Path, hashed: list[Path]
) -> None:
    record, large = tmp_path / "weights.json", tmp_path / "a.gguf"
    large.write_bytes(b"first")
    record.write_text(damage.replace("%s", str(large)))
    assert recorded_fingerprint(large, record) == file_fingerprint(large)
    assert recorded_fingerprint(large, record) == file_fingerprint(large)
    assert hashed == [large]


def test_without_a_record_a_hash_is_made_each_time(tmp_path: Path, hashed: list[Path]) -> None:
    large = tmp_path / "a.gguf"
    large.write_bytes(b"first")
    assert recorded_fingerprint(large, None) == recorded_fingerprint(large, None)
    assert hashed == [large, large]
