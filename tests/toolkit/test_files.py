"""Files and folders appear whole, can be read by others, and leave nothing behind."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from toolkit.files import folder_made_whole, write_atomic


def test_a_folder_appears_whole_and_readable(tmp_path: Path) -> None:
    target = tmp_path / "index"
    with folder_made_whole(target) as folder:
        (folder / "a").write_text("1")
        assert not target.exists()
    assert (target / "a").read_text() == "1"
    assert stat.S_IMODE(target.stat().st_mode) == 0o755


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


def test_a_file_is_readable_by_others(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.json"
    write_atomic(path, "é")
    assert path.read_text(encoding="utf-8") == "é"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert [item.name for item in path.parent.iterdir()] == ["a.json"]
