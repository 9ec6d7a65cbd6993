"""The run folder: trajectory records, manifest, lock, resume. Numbers are made in `evaluation`."""

from toolkit.runs.folder import RunFolder
from toolkit.runs.manifest import make_manifest
from toolkit.runs.records import dump_trajectory, read_trajectory

__all__ = ["RunFolder", "dump_trajectory", "make_manifest", "read_trajectory"]
