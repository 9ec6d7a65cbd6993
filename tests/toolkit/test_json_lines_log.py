"""Append-only logs: every complete line is read again, whatever ended the writer."""

import errno
import os
import random
import signal
import subprocess
import sys
import threading
import time

import pytest
from support.needs import cases

from soundingline.toolkit.errors import InputError
from soundingline.toolkit.files import JsonLinesLog, read_json_lines, recover_json_lines
from soundingline.toolkit.obfuscation import VARIABLE, mark_obfuscated

WRITER = """
import sys
from pathlib import Path
from soundingline.toolkit.files import JsonLinesLog

log = JsonLinesLog(Path(sys.argv[1]), head={"head": 1})
number = 0
while True:
    number += 1
    log.append({"number": number, "text": "x" * 5000})
    print(number, flush=True)
"""
ROWS = [{"round": 1, "text": "barley"}, {"round": 2, "cost": 0.25}, {}, {"round": 4}]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "log.jsonl"


def write(path, rows=ROWS, head=None):
    log = JsonLinesLog(path, head=head)
    for row in rows:
        log.append(row)
    log.close()
    return path


def asides(path):
    copies = path.parent.glob(f"{path.name}.damaged-*")
    return [it.read_bytes() for it in sorted(copies, key=lambda it: int(it.name.split("-")[-1]))]


def test_kill_9_loses_no_line_that_append_has_returned_for(path):
    command = [sys.executable, "-c", WRITER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for _ in range(200):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        printed = 200 + len(process.stdout.readlines())
    rows = read_json_lines(path)
    assert rows[0] == {"head": 1}
    assert [row["number"] for row in rows[1:]][:printed] == list(range(1, printed + 1))


@pytest.mark.parametrize("cut", range(1, 20))
def test_an_unfinished_last_line_is_left_out_and_set_aside_before_the_next(path, capsys, cut):
    content = write(path, [{"head": 1}, {"number": 1}, {"text": "é"}]).read_bytes()
    path.write_bytes(content[:-cut])
    assert read_json_lines(path) == [{"head": 1}, {"number": 1}]
    rest = path.read_bytes().rpartition(b"\n")[2]
    write(path, [{"number": 3}], head={"head": 2})
    assert read_json_lines(path) == [{"head": 1}, {"number": 1}, {"number": 3}]
    assert asides(path) == [rest]
    assert capsys.readouterr().err.count("\n") == 1
    path.write_text('{"head"')
    assert read_json_lines(path) == []
    write(path, [{"number": 1}], head={"head": 2})
    assert read_json_lines(path) == [{"head": 2}, {"number": 1}]


@pytest.mark.parametrize("line", ["", "{", "3", "[]", '{"a":1}', "\x00\x00", "[" * 100_000])
def test_a_damaged_line_is_reported_by_its_number(path, line):
    first, _, *rest = write(path).read_text().split("\n")
    path.write_text("\n".join([first, line, *rest]))
    with pytest.raises(ValueError, match="line 2 does not match its checksum"):
        read_json_lines(path)


def test_lines_of_many_threads_stay_complete(path):
    log = JsonLinesLog(path, head={})

    def work(writer):
        for number in range(100):
            log.append({"writer": writer, "number": number, "text": "y" * 999})

    threads = [threading.Thread(target=work, args=(writer,)) for writer in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows = read_json_lines(path)
    assert rows[0] == {} and len(rows) == 801
    for writer in range(8):
        numbers = [row["number"] for row in rows[1:] if row["writer"] == writer]
        assert numbers == list(range(100))


def test_a_line_that_does_not_fit_on_the_disk_leaves_no_half(path, monkeypatch):
    log = JsonLinesLog(path)
    log.append({"number": 1})
    write, left = os.write, [3]

    def full(handle, data):
        if not left[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        size, left[0] = left[0], 0
        return write(handle, data[:size])

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space"):
            log.append({"number": 2})
    log.append({"number": 3})
    assert path.read_bytes().count(b"\n") == 2 and path.read_bytes().endswith(b"}\n")
    assert read_json_lines(path) == [{"number": 1}, {"number": 3}]


def test_the_file_is_synced_once_a_second_and_at_the_end(path, monkeypatch):
    now, synced = [0.0], []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(now[0]))
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    log = JsonLinesLog(path)
    for tenth in range(25):
        now[0] = tenth / 10
        log.append({})
    log.close()
    assert synced == [0.0, 1.0, 2.0, 2.4]


def test_texts_that_utf8_cannot_represent_come_back_as_they_were(path):
    rows = [{"text": "\ud83d"}, {"text": "line\u2028break\nand \r\x85"}, {"text": "語"}]
    assert read_json_lines(write(path, rows)) == rows


@pytest.mark.parametrize("sealed", [False, True])
def test_every_changed_bit_is_noticed_and_the_lines_before_it_stay(
    tmp_path, path, monkeypatch, capsys, sealed
):
    if sealed:
        monkeypatch.setenv(VARIABLE, "a canary")
        mark_obfuscated(tmp_path)
    content = write(path).read_bytes()
    bits = range(8 * len(content))
    for number, bit in enumerate(random.Random(7).sample(bits, cases(len(bits), 60))):
        path = tmp_path / f"{number}.jsonl"
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        # The rows in front of the changed byte; a changed line end belongs to the line before it.
        before = content[: bit // 8].count(b"\n")
        rows = recover_json_lines(path)
        if len(rows) == len(ROWS):
            # The bit means nothing: it fills up the base64 of an obfuscated line.
            assert sealed and rows == ROWS
            continue
        assert rows == ROWS[:before]
        write(path, ROWS[before:])
        assert read_json_lines(path) == ROWS
        assert b"".join(asides(path)) in (bytes(damaged), bytes(damaged)[-len(asides(path)[0]) :])
        assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("zeros", [1, 40, 4096])
def test_zeros_that_a_power_failure_leaves_are_set_aside(path, zeros):
    content = write(path).read_bytes()
    path.write_bytes(content + bytes(zeros))
    assert recover_json_lines(path) == ROWS, "they are an unfinished line"
    write(path, [{"round": 5}])
    assert recover_json_lines(path) == [*ROWS, {"round": 5}]
    assert asides(path) == [bytes(zeros)]
    first, *_ = content.splitlines(keepends=True)
    path.write_bytes(first + bytes(zeros) + content[len(first) + zeros :] + b"\n")
    assert recover_json_lines(path) == ROWS[:1]
    assert len(asides(path)) == 2, "an earlier one is never overwritten"


def test_lines_that_do_not_depend_on_each_other_all_stay(path, capsys):
    lines = write(path, [{"head": 1}, *ROWS]).read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([lines[0], b"?", *lines[2:]]))
    assert recover_json_lines(path, head={"head": 1}) == [{"head": 1}, *ROWS[1:]]
    assert "line 2 does not match its checksum" in capsys.readouterr().err
    path.write_bytes(b"\n".join([b"?", *lines[1:]]))
    assert recover_json_lines(path, head={"head": 1}) == [{"head": 1}, *ROWS]
    assert "line 1 does not match its checksum" in capsys.readouterr().err
    assert recover_json_lines(path, head={"head": 1}) == [{"head": 1}, *ROWS]
    assert not capsys.readouterr().err and len(asides(path)) == 2


def test_another_canary_is_no_damage(tmp_path, path, monkeypatch):
    monkeypatch.setenv(VARIABLE, "a canary")
    mark_obfuscated(tmp_path)
    content = write(path).read_bytes()
    for canary in ("another canary", ""):
        monkeypatch.setenv(VARIABLE, canary)
        with pytest.raises(InputError, match=VARIABLE):
            recover_json_lines(path)
    assert path.read_bytes() == content and not asides(path)
