"""What every entry point shares: composing the configuration and telling bad input in one line."""

from __future__ import annotations

import dataclasses
import difflib
import errno
import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from experiments.overrides import refuse_secrets
from experiments.schema import Root
from experiments.settings import CONF, Settings, register
from experiments.sweep import CellFailed, CellStatus, SweepStart, end_sweep, recorded_cell
from experiments.usage import FLAGS, usage
from toolkit.console import tell, tell_defect
from toolkit.errors import InputError
from toolkit.files import fingerprint
from toolkit.llm.errors import ModelError
from toolkit.runs.locks import SWEEP

BAD_INPUT = 2
DEFECT = 1
INTERRUPTED = 130
BAD_INPUTS = (InputError, ModelError, OmegaConfBaseException, OSError)
_OF_THE_DISK = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO),
    *(errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG),
}


def main(task: Callable[[Settings], Any], *, takes_runs: bool = False) -> None:
    """Run `task` with the configuration that the command line composes; where it `takes_runs`,
    plain paths among the arguments are run folders.

    Exit code 0 when it ended well, 2 for bad input (one line on standard error), 130 for Ctrl-C; a
    defect keeps its traceback and leaves with 1. In a sweep, a cell that fails is a failed job, the
    others go on, and the report tells of it; the exit code is then 2, or 1 where a defect or a kill
    ended a cell.
    """
    if FLAGS.intersection(sys.argv[1:]):
        print(usage(task, sys.argv[1:]))
        return
    # Hydra swallows tracebacks and leaves with 1 unless this is set; we sort the errors ourselves.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    sys.excepthook = tell_defect
    register()
    refused: list[str] = []

    def one_job(config: DictConfig) -> None:
        register()  # again, because a launcher may run this in a process of its own
        settings = Settings.of_job(config)
        with recorded_cell(settings) if settings.multirun else nullcontext():
            try:
                # Those of a sweep may come from a file of options.
                refuse_secrets(settings.overrides)
                task(settings)
            except BAD_INPUTS as error:
                if not is_bad_input(error):
                    raise
                refused.append(one_line(error))
                tell(refused[-1])
                if settings.multirun:
                    raise CellFailed(refused[-1]) from None

    decorated = hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")
    SweepStart.folder = None
    unfinished: list[CellStatus] = []
    try:
        arguments = with_runs(sys.argv[1:]) if takes_runs else sys.argv[1:]
        refuse_secrets(arguments)
        sys.argv[1:] = named_sweep(arguments)
        try:
            decorated(one_job)()
        finally:
            os.environ.pop(SWEEP, None)  # this process may go on, and belongs to no sweep then
            unfinished = end_sweep(SweepStart.folder) if SweepStart.folder else []
    except (InputError, HydraException, OmegaConfBaseException) as error:
        if not isinstance(error, CellFailed):
            tell(one_line(error))
        sys.exit(exit_code(unfinished))
    except KeyboardInterrupt:
        tell("interrupted; the same command goes on where this stopped.")
        sys.exit(INTERRUPTED)
    except Exception:
        if not unfinished:
            raise
        sys.exit(DEFECT)  # told, with its traceback, among the cells that did not finish
    if refused or unfinished:
        sys.exit(exit_code(unfinished))


def exit_code(unfinished: Sequence[CellStatus]) -> int:
    """That of a command that failed: of a defect where one, or a kill, ended any cell."""
    ended = any(status.defect or not status.reason for status in unfinished)
    return DEFECT if ended else BAD_INPUT


def is_bad_input(error: BaseException) -> bool:
    """Whether an error is the user's to mend. Of the operating system's, that is a disk or a right;
    a file that is missing because of a defect keeps its traceback."""
    return not isinstance(error, OSError) or error.errno in _OF_THE_DISK


def with_runs(arguments: Sequence[str]) -> list[str]:
    """Plain paths on the command line as one `runs=[...]` override."""
    paths = [item for item in arguments if _is_path(item)]
    if not paths:
        return list(arguments)
    quoted = ",".join('"' + path.replace("\\", "\\\\").replace('"', '\\"') + '"' for path in paths)
    return [item for item in arguments if item not in paths] + [f"runs=[{quoted}]"]


def _is_path(argument: str) -> bool:
    """Whether an argument is a path and no override; names of cells hold equals signs too."""
    if argument.startswith(("-", "+", "~")):
        return False
    return "=" not in argument or Path(argument).exists()


def named_sweep(arguments: Sequence[str]) -> list[str]:
    """Give a sweep that has no `name=` one made of its overrides, so that the same command
    resumes the same sweep and a different one gets its own folder."""
    sweep = {"-m", "--multirun"}
    if not sweep & set(arguments):
        return list(arguments)
    # In front, because argparse refuses overrides on both sides of a flag.
    arguments = ["-m", *(item for item in arguments if item not in sweep)]
    if any(item.startswith(("name=", "experiment=")) for item in arguments):
        return arguments
    overrides = sorted(item for item in arguments if not item.startswith("-"))
    chosen = dict(item.split("=", 1) for item in overrides if "=" in item)
    benchmark = chosen.get("benchmark", "sweep").replace(",", "+")
    return [*arguments, f"name={benchmark}-{fingerprint(overrides)[:6]}"]


def one_line(error: BaseException) -> str:
    """The innermost `InputError`'s words; what a language model's server, Hydra and OmegaConf say,
    with the valid set."""
    if isinstance(error, ModelError):
        return str(InputError(str(error), do="mend it and run the same command"))
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, InputError):
            return str(cause)
        cause = cause.__cause__ or cause.__context__
    # A missing option of Hydra's is an OSError too, and says all that there is to say.
    if isinstance(error, OSError) and not isinstance(error, HydraException):
        do = "free or change the disk, or name another folder, then run the same command"
        return str(InputError(f"{error.strerror or error}: {error.filename or 'no file'}", do=do))
    text = " ".join(str(error).split())
    if unknown := re.search(r"Could not override '([^']+)'|Key '([^']+)' is not in struct", text):
        return unknown_key(unknown[1] or str(getattr(error, "full_key", None) or unknown[2]))
    if isinstance(error, MissingMandatoryValue):
        key = getattr(error, "full_key", None) or "a value"
        return str(InputError(f"{key} has no value", do=f"give it: {key}=VALUE"))
    return text.split(" Config search path:")[0]


def unknown_key(key: str) -> str:
    """A mistyped group or key, with the valid ones at its place."""
    group = key.rpartition(".")[0]
    known = sorted({field.name for field in dataclasses.fields(Root)})
    if group:
        do = f"see conf/{group.replace('.', '/')}/ for the arguments of each option"
        return str(InputError(f"{key!r} is no argument of the chosen {group}", do=do))
    close = difflib.get_close_matches(key, known, n=1)
    do = f"did you mean {close[0]}?" if close else ""
    return str(InputError(f"there is no group or key {key!r}", valid=", ".join(known), do=do))
