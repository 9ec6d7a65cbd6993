"""Files and folders appear complete, can be read by others, and leave nothing behind."""

import errno
import os
import random
import stat
import sys
import threading
import time
from itertools import count

import numpy as np
import pytest
from support.assertions import refused
from support.commands import forked
from support.needs import cases

from soundingline.pipelines.cache import ResultCache
from soundingline.toolkit import files, locks
from soundingline.toolkit.corpus import SqliteStore
from soundingline.toolkit.data import Document
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.evaluation.grid import _save
from soundingline.toolkit.files import (
    atomic_file,
    atomic_folder,
    cached_file_hash,
    file_hash,
    mark_obfuscated,
    remove_leftovers,
    write_text,
)
from soundingline.toolkit.json_lines import JsonLinesLog, read_json_lines, recover_json_lines
from soundingline.toolkit.locks import file_lock, file_system, is_local, open_own, writer_lock
from soundingline.toolkit.obfuscation import VARIABLE

# Lines as kernels print them; proc(5) describes the fields.
MOUNTS = r"""22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro
30 22 0:25 / /tmp rw,nosuid - tmpfs tmpfs rw,size=1024k
41 22 0:40 / /home rw,relatime shared:2 - nfs4 server:/home rw,vers=4.2,hard,local_lock=none
42 22 0:41 / /old rw - nfs server:/old rw,vers=3,nolock,local_lock=all
45 22 0:44 / /scratch rw - lustre 10.0.0.2@o2ib:/fs rw,flock,lazystatfs
47 22 0:46 / /my\040share\134x rw - cifs //server/share rw,vers=3.1.1
48 22 0:47 / /bees rw - beegfs beegfs_nodev rw
49 22 0:48 / /far rw - fuse.sshfs me@far: rw,user_id=1000
50 22 0:49 / /over rw - ext4 /dev/sdb1 rw
51 22 0:50 / /over rw - gpfs gpfs0 rw
52 22 0:51 / /disks rw - ocfs2 /dev/sdc1 rw
"""


@pytest.fixture(params=[0o077, 0o002, 0o022], ids=oct)
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def make(name, path):
    if name == "text":
        write_text(path, "é")
    elif name == "arrays":
        _save(path, ranks=np.zeros(3))
    elif name == "log":
        os.close(open_own(path, append=True))
    else:
        with {"file lock": file_lock, "run lock": writer_lock}[name](path):
            pass


@pytest.mark.parametrize("name", ["text", "arrays", "file lock", "run lock", "log"])
def test_files_and_their_folders_have_the_rights_that_the_umask_leaves(tmp_path, umask, name):
    path = tmp_path / "deep" / "file"
    make(name, path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o777 & ~umask
    assert [item.name for item in path.parent.iterdir()] == ["file"]


def test_databases_have_the_rights_that_the_umask_leaves(tmp_path, umask):
    cache = ResultCache(tmp_path / "caches" / "stage.sqlite")  # open, with its log next to it
    cache.put([(("key",), 1)])
    document = Document("d", "title", "text")
    SqliteStore.build(tmp_path / "store", [document], corpus_fingerprint="x").close()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"stage.sqlite", "data.sqlite"} <= {path.name for path in files}
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o666 & ~umask}
    assert {stat.S_IMODE(path.parent.stat().st_mode) for path in files} == {0o777 & ~umask}


def test_a_folder_appears_complete_or_not_at_all(tmp_path, umask):
    target = tmp_path / "index"
    # No process has this id: it is above the largest that Linux assigns.
    dead = tmp_path / ".index.4999999.x.partial"
    dead.mkdir()
    with atomic_folder(target) as folder:
        (folder / "a").write_text("1")
        assert not target.exists()
    assert stat.S_IMODE(target.stat().st_mode) == 0o777 & ~umask
    with pytest.raises(KeyboardInterrupt), atomic_folder(target, replace=True) as folder:
        (folder / "new").write_text("new")
        raise KeyboardInterrupt
    with pytest.raises(InputError, match="exists and would be replaced"), atomic_folder(target):
        pytest.fail("the work began")
    assert [path.name for path in tmp_path.iterdir()] == ["index"]
    assert [path.read_text() for path in target.iterdir()] == ["1"]


def test_a_file_appears_complete_or_not_at_all(tmp_path):
    path = tmp_path / "a.json"
    write_text(path, "é")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "half of a pair: \ud83d")
    assert path.read_text(encoding="utf-8") == "é"
    assert [item.name for item in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize("name", ["file lock", "run lock", "log"])
def test_files_that_are_written_in_place_follow_no_link_and_wait_for_no_pipe(tmp_path, name):
    os.mkfifo(tmp_path / "pipe")
    refused("no regular file", make, name, tmp_path / "pipe")
    target, link = tmp_path / "thesis.txt", tmp_path / ".lock"
    target.write_text("years of work")
    for destination in (target, tmp_path / "nothing"):
        link.symlink_to(destination)
        refused(f"{link} is a symbolic link", make, name, link)
        link.unlink()
    assert target.read_text() == "years of work" and not (tmp_path / "nothing").exists()
    make("file lock", target)
    assert target.read_text() == "years of work"


@pytest.fixture
def hashed(monkeypatch):
    """The files whose content was read for a hash."""
    read = []
    monkeypatch.setattr(files, "file_hash", lambda path: read.append(path) or file_hash(path))
    return read


def test_a_large_file_is_hashed_once_until_it_changes(tmp_path, hashed):
    record, large = tmp_path / "caches" / "weights.json", tmp_path / "a.gguf"
    large.write_bytes(b"first")
    first = cached_file_hash(large, record)
    assert first == file_hash(large) == cached_file_hash(large, record)
    assert hashed == [large]
    # Another content of the same size and time, as a copy that preserves times has.
    status = large.stat()
    large.write_bytes(b"other")
    os.utime(large, ns=(status.st_atime_ns, status.st_mtime_ns))
    other = cached_file_hash(large, record)
    assert other == file_hash(large) != first
    second = tmp_path / "b.gguf"
    second.write_bytes(b"first")
    assert cached_file_hash(second, record) == first
    assert cached_file_hash(large, record) == other
    assert hashed == [large, large, second]
    assert cached_file_hash(second, None) == cached_file_hash(second, None) == first
    assert hashed == [large, large, second, second, second]


@pytest.mark.parametrize("damage", ["{", "[]", '{"%s": 1}', '{"%s": {"state": []}}'])
def test_a_record_of_hashes_that_cannot_be_read_is_replaced(damage, tmp_path, hashed):
    record, large = tmp_path / "weights.json", tmp_path / "a.gguf"
    large.write_bytes(b"first")
    record.write_text(damage.replace("%s", str(large)))
    assert cached_file_hash(large, record) == file_hash(large) == cached_file_hash(large, record)
    assert hashed == [large]


def write_half(ready, path):
    with atomic_file(path) as stream:
        stream.write(b"half")
        stream.flush()
        ready()
        time.sleep(60)


def test_temporary_files_of_killed_processes_are_removed_and_those_of_others_stay(tmp_path):
    writer = forked(write_half, tmp_path / "page.html")
    writer.kill()
    writer.join(30)
    (left,) = tmp_path.iterdir()
    (tmp_path / ".notes.tmp").write_text("of the user's")
    with atomic_file(tmp_path / "other.html") as stream:
        stream.write(b"whole")
        (under_way,) = set(tmp_path.iterdir()) - {left, tmp_path / ".notes.tmp"}
        remove_leftovers(tmp_path)
        assert under_way.exists() and not left.exists()
    assert {path.name for path in tmp_path.iterdir()} == {"other.html", ".notes.tmp"}


@pytest.fixture
def mounts(tmp_path, monkeypatch):
    (tmp_path / "mountinfo").write_text(MOUNTS)
    monkeypatch.setattr(locks, "MOUNTS", tmp_path / "mountinfo")


@pytest.mark.usefixtures("mounts")
@pytest.mark.parametrize(
    ("path", "kind", "local"),
    [
        ("/somewhere/deep", "ext4", True),
        ("/tmp/caches", "tmpfs", True),
        ("/home/me/caches", "nfs4", False),
        ("/homes", "ext4", True),
        ("/old/caches", "nfs", False),
        ("/scratch/me", "lustre", False),
        ("/my share\\x/caches", "cifs", False),
        ("/bees/caches", "beegfs", False),
        ("/far/caches", "fuse.sshfs", False),
        ("/over/caches", "gpfs", False),
        ("/disks/caches", "ocfs2", False),
    ],
)
def test_the_deepest_and_newest_mount_counts(path, kind, local):
    assert (file_system(path), is_local(path)) == (kind, local)


@pytest.mark.usefixtures("mounts")
def test_links_are_followed_and_without_a_table_no_file_system_is_local(tmp_path, monkeypatch):
    (tmp_path / "link").symlink_to("/home/me")
    assert file_system(tmp_path / "link" / "caches") == "nfs4"
    monkeypatch.setattr(locks, "MOUNTS", tmp_path / "absent")
    assert (file_system("/home"), is_local("/home")) == ("unknown", False)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc/self/mountinfo")
def test_this_machine_has_a_file_system_for_every_path(tmp_path):
    assert file_system("/proc/self") == "proc"
    assert file_system(tmp_path / "absent" / "file") != "unknown"


# Append-only logs: every complete line is read again, whatever ended the writer.


def append_until_killed(ready, path, told):
    log = JsonLinesLog(path, head={"head": 1})
    for number in count(1):
        log.append({"number": number, "text": "x" * 5000})
        os.write(told, b".")
        if number == 200:
            ready()


ROWS = [{"round": 1, "text": "barley"}, {"round": 2, "cost": 0.25}, {}, {"round": 4}]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "log.jsonl"


def write(path, rows=ROWS, head=None):
    log = JsonLinesLog(path, head=head, quoting=True)
    for row in rows:
        log.append(row)
    log.close()
    return path


def asides(path):
    copies = path.parent.glob(f"{path.name}.damaged-*")
    return [it.read_bytes() for it in sorted(copies, key=lambda it: int(it.name.split("-")[-1]))]


def test_kill_9_loses_no_line_that_append_has_returned_for(path):
    told, telling = os.pipe()
    writer = forked(append_until_killed, path, telling)
    os.close(telling)
    writer.kill()
    writer.join(30)
    with os.fdopen(told, "rb") as stream:
        appended = len(stream.read())
    rows = read_json_lines(path)
    assert rows[0] == {"head": 1} and appended >= 200
    assert [row["number"] for row in rows[1:]][:appended] == list(range(1, appended + 1))


@pytest.mark.parametrize("cut", range(1, 14))
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


@pytest.mark.parametrize("line", ["", "{", "3", "[]", '{"a":1', "\x00\x00"])
def test_a_damaged_line_is_reported_by_its_number(path, line):
    first, _, *rest = write(path).read_text().split("\n")
    path.write_text("\n".join([first, line, *rest]))
    with pytest.raises(ValueError, match="line 2 is not a JSON object"):
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


def test_texts_of_any_script_and_line_end_come_back_as_they_were(path):
    rows = [{"text": "line\u2028break\nand \r\x85"}, {"text": "語"}]
    assert read_json_lines(write(path, rows)) == rows


@pytest.mark.parametrize("sealed", [False, True])
def test_zeros_in_the_place_of_a_sector_are_noticed_and_the_lines_before_them_stay(
    tmp_path, path, monkeypatch, capsys, sealed
):
    if sealed:
        monkeypatch.setenv(VARIABLE, "a canary")
        mark_obfuscated(tmp_path)
    content = write(path).read_bytes()
    starts = range(len(content) - 8)
    for number, start in enumerate(random.Random(7).sample(starts, cases(len(starts), 40))):
        path = tmp_path / f"{number}.jsonl"
        damaged = content[:start] + bytes(8) + content[start + 8 :]
        path.write_bytes(damaged)
        before = content[:start].count(b"\n")
        assert recover_json_lines(path) == ROWS[:before]
        write(path, ROWS[before:])
        assert read_json_lines(path) == ROWS
        assert b"".join(asides(path)) in (damaged, damaged[-len(asides(path)[0]) :])
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
    assert "line 2 is not a JSON object" in capsys.readouterr().err
    path.write_bytes(b"\n".join([b"?", *lines[1:]]))
    assert recover_json_lines(path, head={"head": 1}) == [{"head": 1}, *ROWS]
    assert "line 1 is not a JSON object" in capsys.readouterr().err
    assert recover_json_lines(path, head={"head": 1}) == [{"head": 1}, *ROWS]
    assert not capsys.readouterr().err and len(asides(path)) == 2


def test_another_canary_is_no_damage(tmp_path, path, monkeypatch):
    monkeypatch.setenv(VARIABLE, "a canary")
    mark_obfuscated(tmp_path)
    content = write(path).read_bytes()
    for canary in ("another canary", ""):
        monkeypatch.setenv(VARIABLE, canary)
        refused(VARIABLE, recover_json_lines, path)
    assert path.read_bytes() == content and not asides(path)
