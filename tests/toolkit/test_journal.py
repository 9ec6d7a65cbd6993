"""Append-only files: what was written whole is there, whatever ended the writer."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from toolkit.errors import InputError
from toolkit.journal import Journal, read_journal

WRITER = """
import sys
from pathlib import Path
from toolkit.journal import Journal

journal = Journal(Path(sys.argv[1]), head={"head": 1})
number = 0
while True:
    number += 1
    journal.append({"number": number, "text": "x" * 5000})
    print(number, flush=True)
"""


def test_kill_9_loses_no_line_that_append_has_returned_for(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for _ in range(200):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        told = 200 + len(process.stdout.readlines())
    rows = read_journal(path)
    assert rows[0] == {"head": 1}
    assert [row["number"] for row in rows[1:]][:told] == list(range(1, told + 1))


@pytest.mark.parametrize("cut", range(1, 20))
def test_an_unfinished_last_line_is_left_out_and_cut_off_before_the_next(
    tmp_path: Path, cut: int
) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path, head={"head": 1})
    journal.append({"number": 1})
    journal.append({"number": 2, "text": "é"})
    journal.close()
    content = path.read_bytes()
    path.write_bytes(content[:-cut])
    assert read_journal(path) == [{"head": 1}, {"number": 1}]
    journal = Journal(path, head={"head": 2})
    journal.append({"number": 3})
    journal.close()
    assert read_journal(path) == [{"head": 1}, {"number": 1}, {"number": 3}]


def test_a_file_that_holds_nothing_whole_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text('{"head"')
    assert read_journal(path) == []
    Journal(path, head={"head": 2}).append({"number": 1})
    assert read_journal(path) == [{"head": 2}, {"number": 1}]


@pytest.mark.parametrize("line", ["", "{", "3", "[]", "\x00\x00", "[" * 100_000])
def test_a_damaged_line_is_told_by_its_number(tmp_path: Path, line: str) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text(f'{{"number":1}}\n{line}\n{{"number":3}}\n')
    with pytest.raises(ValueError, match="line 2"):
        read_journal(path)


def test_lines_of_many_threads_stay_whole(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path, head={})

    def work(writer: int) -> None:
        for number in range(100):
            journal.append({"writer": writer, "number": number, "text": "y" * 999})

    threads = [threading.Thread(target=work, args=(writer,)) for writer in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows = read_journal(path)
    assert rows[0] == {} and len(rows) == 801
    for writer in range(8):
        numbers = [row["number"] for row in rows[1:] if row["writer"] == writer]
        assert numbers == list(range(100))


def test_a_line_that_the_disk_has_no_room_for_leaves_no_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    journal.append({"number": 1})
    write, room = os.write, [3]

    def full(handle: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        size, room[0] = room[0], 0
        return write(handle, data[:size])

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space"):
            journal.append({"number": 2})
    journal.append({"number": 3})
    assert path.read_text() == '{"number":1}\n{"number":3}\n'


def test_the_disk_is_waited_for_once_in_a_while_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, synced = [0.0], list[float]()
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(now[0]))
    journal = Journal(tmp_path / "journal.jsonl", sync_seconds=1.0, clock=lambda: now[0])
    for tenth in range(25):
        now[0] = tenth / 10
        journal.append({})
    journal.close()
    assert synced == [0.0, 1.0, 2.0, 2.4]


def test_a_link_in_the_place_of_the_file_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("precious")
    path = tmp_path / "journal.jsonl"
    path.symlink_to(target)
    with pytest.raises(InputError, match="symbolic link"):
        Journal(path).append({})
    assert target.read_text() == "precious"


def test_texts_that_no_file_can_hold_come_back_as_they_were(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    rows = [{"text": "\ud83d"}, {"text": "line\u2028break\nand \r\x85"}, {"text": "語"}]
    for row in rows:
        journal.append(row)
    assert read_journal(journal.path) == rows
