"""The folder of a run and its manifest."""

from soundingline.toolkit.runs.manifest import make_manifest
from soundingline.toolkit.runs.run_folder import RunFolder
from soundingline.toolkit.trajectory import dump_trajectory, read_trajectory

__all__ = ["RunFolder", "dump_trajectory", "make_manifest", "read_trajectory"]
