"""What every entry point shares: composing the configuration and telling bad input in one line."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from experiments.schema import register
from toolkit.errors import InputError
from toolkit.files import fingerprint

CONF = Path(__file__).resolve().parents[1] / "conf"
BAD_INPUT = 2
INTERRUPTED = 130


def main(task: Callable[[DictConfig], Any], config_name: str = "config") -> None:
    """Run `task` with the configuration that the command line composes.

    Exit code 0 when it ended well, 2 for bad input (one line on standard error), 130 for Ctrl-C;
    a defect keeps its traceback and leaves with 1.
    """
    # Hydra swallows tracebacks and leaves with 1 unless this is set; we sort the errors ourselves.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    register()
    sys.argv[1:] = named_sweep(sys.argv[1:])
    decorated = hydra.main(version_base="1.3", config_path=str(CONF), config_name=config_name)
    try:
        decorated(task)()
    except (InputError, HydraException, OmegaConfBaseException) as error:
        sys.stderr.write(f"soundingline: {one_line(error)}\n")
        sys.exit(BAD_INPUT)
    except KeyboardInterrupt:
        sys.stderr.write(
            "soundingline: interrupted; the same command goes on where this stopped.\n"
        )
        sys.exit(INTERRUPTED)


def named_sweep(arguments: Sequence[str]) -> list[str]:
    """Give a sweep that has no `name=` one made of its overrides, so that the same command
    resumes the same sweep and a different one gets its own folder."""
    arguments = list(arguments)
    sweeps = {"-m", "--multirun"} & set(arguments)
    if not sweeps or any(item.startswith(("name=", "experiment=")) for item in arguments):
        return arguments
    overrides = sorted(item for item in arguments if not item.startswith("-"))
    chosen = dict(item.split("=", 1) for item in overrides if "=" in item)
    benchmark = chosen.get("benchmark", "sweep").replace(",", "+")
    return [*arguments, f"name={benchmark}-{fingerprint(overrides)[:6]}"]


def one_line(error: BaseException) -> str:
    """The innermost `InputError`'s words, or the error's own, on one line."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, InputError):
            return str(cause)
        cause = cause.__cause__ or cause.__context__
    return " ".join(str(error).split())
