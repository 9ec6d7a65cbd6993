"""`soundingline COMMAND ...` in the test's own process."""

from __future__ import annotations

from hydra.core.global_hydra import GlobalHydra

from soundingline.experiments.cli import main


def run_entry(command, *arguments):
    """Run a command with these arguments; its exit code. What it raises is raised."""
    GlobalHydra.instance().clear()
    try:
        main([command, *arguments])
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0
