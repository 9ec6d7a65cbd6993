import sys
from pathlib import Path

import pytest

from toolkit import filesystems
from toolkit.filesystems import file_system

# Lines as kernels print them; fields are told in proc(5).
TABLE = r"""22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro
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


@pytest.fixture(autouse=True)
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mountinfo").write_text(TABLE)
    monkeypatch.setattr(filesystems, "MOUNTS", tmp_path / "mountinfo")


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
def test_the_deepest_and_newest_mount_tells_the_file_system(
    path: str, kind: str, network: bool, shares_locks: bool
) -> None:
    system = file_system(path)
    assert system is not None
    assert (system.kind, system.network, system.shares_locks) == (kind, network, shares_locks)


def test_links_are_followed_to_where_they_lead(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/home/me")
    system = file_system(tmp_path / "link" / "caches")
    assert system is not None
    assert system.kind == "nfs4"


def test_a_system_that_does_not_tell_has_no_known_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filesystems, "MOUNTS", tmp_path / "absent")
    assert file_system("/home") is None


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc/self/mountinfo")
def test_this_machine_tells_the_file_system_of_every_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    proc, here = file_system("/proc/self"), file_system(tmp_path / "absent" / "file")
    assert proc is not None
    assert here is not None
    assert proc.kind == "proc"
