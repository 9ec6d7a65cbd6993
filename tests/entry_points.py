"""`python -m experiments.<command> ...` in the test's own process, by the module's name alone."""

from __future__ import annotations

import runpy
import sys
import warnings

from hydra.core.global_hydra import GlobalHydra


def run_entry(command: str, *arguments: str) -> int:
    """Run an entry point with these arguments; its exit code. What it raises is raised."""
    before = sys.argv
    sys.argv = [command, *arguments]
    GlobalHydra.instance().clear()
    try:
        with warnings.catch_warnings():
            # One entry point imports another, which then runs as a second copy, as under -m.
            warnings.filterwarnings("ignore", ".*found in sys.modules", RuntimeWarning)
            runpy.run_module(f"experiments.{command}", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        sys.argv = before
    return 0
