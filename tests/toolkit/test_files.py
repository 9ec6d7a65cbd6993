"""Files and folders appear complete, can be read by others, and leave nothing behind."""

import os
import signal
import stat
import subprocess
import sys

import numpy as np
import pytest

from soundingline.pipelines.cache import ResultCache
from soundingline.toolkit import files
from soundingline.toolkit.corpus import SqliteStore
from soundingline.toolkit.data import Document
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.evaluation.grid import _save
from soundingline.toolkit.files import (
    atomic_file,
    atomic_folder,
    cached_file_hash,
    file_hash,
    file_lock,
    file_system,
    fingerprint,
    open_own,
    remove_leftovers,
    write_text,
)
from soundingline.toolkit.runs.run_folder import run_lock

# Lines as kernels print them; proc(5) describes the fields.
MOUNTS = r"""22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro
30 22 0:25 / /tmp rw,nosuid - tmpfs tmpfs rw,size=1024k
41 22 0:40 / /home rw,relatime shared:2 - nfs4 server:/home rw,vers=4.2,hard,local_lock=none
42 22 0:41 / /old rw - nfs server:/old rw,vers=3,nolock,local_lock=all
43 22 0:42 / /posix rw - nfs server:/posix rw,vers=3,local_lock=posix
44 22 0:43 / /flock rw - nfs server:/flock rw,vers=3,local_lock=flock
45 22 0:44 / /scratch rw - lustre 10.0.0.2@o2ib:/fs rw,flock,lazystatfs
46 22 0:45 / /scratch/alone rw - lustre 10.0.0.2@o2ib:/fs rw,localflock
47 22 0:46 / /my\040share\134x rw - cifs //server/share rw,vers=3.1.1
48 22 0:47 / /bees rw - beegfs beegfs_nodev rw
49 22 0:48 / /far rw - fuse.sshfs me@far: rw,user_id=1000
50 22 0:49 / /over rw - ext4 /dev/sdb1 rw
51 22 0:50 / /over rw - gpfs gpfs0 rw
52 22 0:51 / /nobrl rw - cifs //server/share rw,nobrl
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
        with {"file lock": file_lock, "run lock": run_lock}[name](path):
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
    with pytest.raises(KeyboardInterrupt), atomic_folder(target) as folder:
        (folder / "new").write_text("new")
        raise KeyboardInterrupt
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
    with pytest.raises(InputError, match="no regular file"):
        make(name, tmp_path / "pipe")
    target, link = tmp_path / "thesis.txt", tmp_path / ".lock"
    target.write_text("years of work")
    for destination in (target, tmp_path / "nothing"):
        link.symlink_to(destination)
        with pytest.raises(InputError, match=f"{link} is a symbolic link"):
            make(name, link)
        link.unlink()
    assert target.read_text() == "years of work" and not (tmp_path / "nothing").exists()
    make("file lock", target)
    assert target.read_text() == "years of work"


def test_texts_that_no_file_can_hold_have_fingerprints_too():
    assert fingerprint("\ud83d") == fingerprint("\ud83d") != fingerprint("\ud83e")


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


KILLED = """
import os, signal, sys
from pathlib import Path
from soundingline.toolkit.files import atomic_file
with atomic_file(Path(sys.argv[1], "page.html")) as stream:
    stream.write(b"half")
    stream.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_temporary_files_of_killed_processes_are_removed_and_those_of_others_stay(tmp_path):
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
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
    monkeypatch.setattr(files, "MOUNTS", tmp_path / "mountinfo")


@pytest.mark.usefixtures("mounts")
@pytest.mark.parametrize(
    ("path", "kind", "network", "shares_locks"),
    [
        ("/somewhere/deep", "ext4", False, False),
        ("/home/me/caches", "nfs4", True, True),
        ("/homes", "ext4", False, False),
        ("/old/caches", "nfs", True, False),
        ("/posix", "nfs", True, False),
        ("/flock", "nfs", True, True),
        ("/scratch/me", "lustre", True, True),
        ("/scratch/alone/me", "lustre", True, False),
        ("/my share\\x/caches", "cifs", True, True),
        ("/nobrl", "cifs", True, False),
        ("/bees/caches", "beegfs", True, False),
        ("/far/caches", "fuse.sshfs", True, False),
        ("/over/caches", "gpfs", True, True),
    ],
)
def test_the_deepest_and_newest_mount_counts(path, kind, network, shares_locks):
    system = file_system(path)
    assert (system.kind, system.network, system.shares_locks) == (kind, network, shares_locks)


@pytest.mark.usefixtures("mounts")
def test_links_are_followed_and_without_a_table_no_file_system_is_known(tmp_path, monkeypatch):
    (tmp_path / "link").symlink_to("/home/me")
    assert file_system(tmp_path / "link" / "caches").kind == "nfs4"
    monkeypatch.setattr(files, "MOUNTS", tmp_path / "absent")
    assert file_system("/home") is None


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc/self/mountinfo")
def test_this_machine_has_a_file_system_for_every_path(tmp_path):
    assert file_system("/proc/self").kind == "proc"
    assert file_system(tmp_path / "absent" / "file") is not None
