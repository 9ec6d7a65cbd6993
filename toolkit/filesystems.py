"""Which file system a path lies on, because locks and shared memory do not reach other hosts
everywhere.

Linux tells in `/proc/self/mountinfo` (proc(5)). Elsewhere the file system is unknown.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

MOUNTS = Path("/proc/self/mountinfo")

# The locks of one host hold on the others, unless an option of the mount says otherwise.
_LOCKED_TOGETHER = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "gpfs", "panfs", "wekafs"}
_LOCKED_TOGETHER |= {"ceph", "fuse.ceph", "fuse.ceph-fuse", "fuse.glusterfs", "ocfs2", "gfs2"}
_LOCKED_TOGETHER |= {"fuse.juicefs", "fuse.mfs"}
# Locks hold among the processes of one host at most: never passed on, or only where the file
# system's own configuration says so (BeeGFS: tuneUseGlobalFileLocks, off by default).
_LOCKED_ALONE = {"beegfs", "afs", "orangefs", "pvfs2", "fuse.sshfs", "fuse.rclone", "fuse.dfuse"}
_LOCKED_ALONE |= {"fuse.s3fs", "fuse.gcsfuse", "fuse.goofys", "fuse.mount-s3", "fuse.davfs2"}
_LOCKED_ALONE |= {"fuse.blobfuse", "fuse.blobfuse2"}
# What a virtual machine or a container sees of its host.
_LOCKED_ALONE |= {"9p", "virtiofs", "vboxsf", "drvfs", "fuse.vmhgfs-fuse", "fuse.grpcfuse"}
# nfs(5): local_lock and nolock; mount.lustre(8): localflock; mount.cifs(8): nobrl.
_KEEPS_LOCKS = frozenset({"local_lock=all", "local_lock=posix", "nolock", "localflock", "nobrl"})
_ESCAPED = re.compile(r"\\([0-7]{3})")


class FileSystem(NamedTuple):
    """A mounted file system: its type as the kernel names it, and all options of the mount."""

    kind: str
    options: frozenset[str]

    @property
    def network(self) -> bool:
        """Whether other hosts may have it mounted too."""
        return self.kind in _LOCKED_TOGETHER or self.kind in _LOCKED_ALONE

    @property
    def shares_locks(self) -> bool:
        """Whether a POSIX lock that one host holds is known to hold on every other host."""
        return self.kind in _LOCKED_TOGETHER and not self.options & _KEEPS_LOCKS


def file_system(path: Path | str) -> FileSystem | None:
    """The file system of `path`, or of its nearest parent that exists; None where the system does
    not tell."""
    try:
        lines = MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    resolved = Path(path).resolve()
    parents = {resolved, *resolved.parents}
    best: tuple[int, FileSystem | None] = -1, None
    for line in lines:
        point, mounted = _mount(line)
        depth = len(point.parts)
        # A later mount at the same place hides the earlier one.
        if point in parents and depth >= best[0]:
            best = depth, mounted
    return best[1]


def _mount(line: str) -> tuple[Path, FileSystem]:
    """`36 35 98:0 /root /point options [fields ...] - type source super-options`."""
    head, _, tail = line.partition(" - ")
    fields, rest = head.split(" "), tail.split(" ")
    point = _ESCAPED.sub(lambda match: chr(int(match[1], 8)), fields[4])
    options = ",".join([fields[5], *rest[2:3]])
    return Path(point), FileSystem(rest[0], frozenset(options.split(",")))
