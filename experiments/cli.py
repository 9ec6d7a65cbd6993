"""The command line: composing the configuration, help, bad input in one line, and exit codes."""

from __future__ import annotations

import argparse
import errno
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from itertools import takewhile
from pathlib import Path
from typing import Any, NoReturn

from hydra._internal.utils import _run_hydra, get_args_parser
from hydra.errors import HydraException
from hydra.version import setbase
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from soundingline.experiments.config import CONF, Settings, check_choices, register
from soundingline.experiments.refusals import one_line, refuse_secrets
from soundingline.experiments.sweep import (
    CellFailed,
    CellStatus,
    SweepRefused,
    SweepStart,
    check_name,
    end_sweep,
    recorded_cell,
    wait_for_jobs,
)
from soundingline.toolkit.console import escape_control, notify, print_traceback
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.llm.errors import ModelError
from soundingline.toolkit.runs.run_folder import SWEEP

FLAGS = frozenset({"-h", "--help"})
_FOLDER = "--config-dir"
_SENTENCE_END = re.compile(r"(?<=[.:])\n|(?<=\.) (?=[A-Z])")
_END = """\
An option's arguments are changed by GROUP.ARGUMENT=VALUE. -m sweeps over values with commas between
them; --config-dir FOLDER adds options of your own; --cfg job prints the configuration that the
command line composes; --hydra-help lists Hydra's own flags.
"""


def usage(task: Callable[..., Any], arguments: Sequence[str]) -> str:
    """The help of the entry point that `task` belongs to, with the options of `conf/` and of the
    folders that `arguments` add. An asterisk marks the option that is chosen by default."""
    about = (sys.modules[task.__module__].__doc__ or "").strip()
    chosen = _defaults()
    options: dict[str, dict[str, str]] = {}
    for folder in (CONF, *_folders(arguments)):
        for path in sorted(folder.rglob("*.yaml")):
            group = path.parent.relative_to(folder).as_posix()
            if group != ".":
                options.setdefault(group, {})[path.stem] = _comment(path)
    width = max(len(name) for names in options.values() for name in names)
    blocks = [about]
    for group, names in sorted(options.items()):
        lines = [
            f"  {'*' if chosen.get(group) == name else ' '} {name:{width}}  {comment}".rstrip()
            for name, comment in sorted(names.items())
        ]
        blocks.append("\n".join([f"{group}=", *lines]))
    return "\n\n".join([*blocks, _END])


def _defaults() -> dict[str, str]:
    entries: Any = OmegaConf.to_container(OmegaConf.load(CONF / "config.yaml"), resolve=False)
    return {
        group: option
        for entry in entries["defaults"]
        if isinstance(entry, dict)
        for group, option in entry.items()
    }


def _folders(arguments: Sequence[str]) -> Iterator[Path]:
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
        name, _, value = argument.partition("=")
        if name == _FOLDER:
            yield Path(value or following)


def _comment(path: Path) -> str:
    """The first sentence of the comment at the head of an option's file; empty where there is
    none."""
    with path.open(encoding="utf-8") as lines:
        head = takewhile(lambda line: line.startswith("#"), lines)
        text = "\n".join(line.lstrip("# ").strip() for line in head if "@package" not in line)
    return escape_control(_SENTENCE_END.split(text, maxsplit=1)[0].replace("\n", " "))


BAD_INPUT = 2
DEFECT = 1
INTERRUPTED = 130
BAD_INPUTS = (InputError, ModelError, OmegaConfBaseException, OSError)
REFUSED = (InputError, HydraException, OmegaConfBaseException, KeyboardInterrupt)
_COMMANDS = ("run", "multirun", "cfg", "info", "shell_completion")
_OF_THE_DISK = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO),
    *(errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG),
}


def main(task: Callable[[Settings], Any], arguments: Sequence[str] | None = None) -> None:
    """Run `task` with the configuration that Hydra composes from `arguments` (None: those of the
    process).

    Exit code 0 when it ended well, 2 for bad input (one line on standard error), 130 for Ctrl-C; a
    defect keeps its traceback and leaves with 1. In a sweep, a cell that fails is a failed job, the
    others go on, and the report tells of it; the exit code is then 2, or 1 where a defect or a kill
    ended a cell.
    """
    words = _given(arguments)
    if FLAGS.intersection(words):
        print(usage(task, words))
        return
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
                notify(refused[-1])
                if settings.multirun:
                    raise CellFailed(refused[-1]) from None

    sys.excepthook = print_traceback
    SweepStart.folder = None
    unfinished: list[CellStatus] = []
    interrupted = False
    try:
        refuse_secrets(words)
        check_choices(words)
        check_name(words)
        try:
            _compose_and_run(one_job, words)
        except SweepRefused as refusal:
            raise refusal.error from None
        except KeyboardInterrupt:
            interrupted = True
            raise
        except Exception:
            if SweepStart.folder:
                wait_for_jobs(SweepStart.folder)
            raise
        finally:
            os.environ.pop(SWEEP, None)  # this process may go on, and belongs to no sweep then
            if SweepStart.folder:
                unfinished = _ended_sweep(SweepStart.folder, interrupted)
    except REFUSED as error:
        sys.exit(ending(error, unfinished))
    except Exception:
        if not unfinished:
            raise
        sys.exit(DEFECT)  # told, with its traceback, among the cells that did not finish
    if refused or unfinished:
        sys.exit(exit_code(unfinished))


def _ended_sweep(folder: Path, interrupted: bool) -> list[CellStatus]:
    from soundingline.experiments.build import end_servers  # models, which not every command needs

    end_servers()
    return end_sweep(folder, interrupted=interrupted)


def _compose_and_run(job: Callable[[DictConfig], None], arguments: Sequence[str]) -> None:
    """Hydra's own command line, in any order. `hydra.main` reads `sys.argv` alone, and refuses
    overrides on both sides of a flag."""
    # Hydra swallows tracebacks and leaves with 1 unless this is set; we sort the errors ourselves.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    setbase("1.3")
    register()
    parser = get_args_parser()
    flags = parser.parse_intermixed_args(arguments)
    _check_flags(flags)
    _run_hydra(
        args=flags,
        args_parser=parser,
        task_function=job,
        config_path=str(CONF),
        config_name="config",
    )


def _check_flags(flags: argparse.Namespace) -> None:
    """`InputError` for flags that Hydra takes one at a time, which it tells with a traceback."""
    names = [name for name in _COMMANDS if getattr(flags, name)]
    if len(names) > 1:
        flags_given = " and ".join(f"--{name.replace('_', '-')}" for name in names)
        raise InputError(f"{flags_given} exclude each other", valid="one of them")
    if flags.resolve and not flags.cfg:
        raise InputError("--resolve goes with --cfg only", do="add --cfg job, or leave it out")


class CommandParser(argparse.ArgumentParser):
    """The arguments of a command over recorded folders: its own flags, paths, and overrides of the
    configuration, in any order. A flag may be written as an override is: `format=trec`."""

    def __init__(self, description: str | None, paths: str) -> None:
        more = "KEY=VALUE changes the configuration, as in soundingline run, whose --help lists it."
        super().__init__(description=description, epilog=more, allow_abbrev=False)
        self.add_argument("arguments", nargs="*", metavar=f"{paths} | KEY=VALUE")
        self.add_argument("--config-dir", metavar="FOLDER", help="options of your own")
        self.add_argument("--cfg", choices=["job"], help="print the configuration; do nothing")

    def parse_arguments(self, arguments: Sequence[str]) -> dict[str, Any]:
        """The flags by name, `arguments` and `config_dir` among them."""
        return vars(self.parse_intermixed_args([self._flag(item) for item in arguments]))

    def _flag(self, argument: str) -> str:
        name, mark, value = argument.partition("=")
        flag = f"--{name.replace('_', '-')}"
        return f"{flag}={value}" if mark and flag in self._option_string_actions else argument

    def error(self, message: str) -> NoReturn:
        raise InputError(message, do="--help lists what this command takes")


def run_command(
    task: Callable[..., Any], parser: CommandParser, arguments: Sequence[str] | None = None
) -> None:
    """Run `task(settings, paths, **flags)` with what `arguments` (None: those of the process) hold;
    `paths` are those that are no overrides. Exit codes as in `main`."""
    sys.excepthook = print_traceback
    parser.prog = f"soundingline {task.__module__.rpartition('.')[2]}"
    try:
        flags = parser.parse_arguments(_given(arguments))
        items, config_dir = flags.pop("arguments"), flags.pop("config_dir")
        overrides = [item for item in items if not _is_path(item)]
        refuse_secrets(overrides)
        search = [f"file://{Path(config_dir).resolve()}"] if config_dir else []
        settings = Settings.compose(overrides, search)
        if flags.pop("cfg"):
            print(OmegaConf.to_yaml(settings.config), end="")
        else:
            task(settings, [item for item in items if _is_path(item)], **flags)
    except (*REFUSED, *BAD_INPUTS) as error:
        if not is_bad_input(error):
            raise
        sys.exit(ending(error))


def one_path(paths: Sequence[str], what: str) -> Path:
    """The only path; `InputError` where there is none, or another."""
    if len(paths) != 1:
        raise InputError(f"{len(paths)} paths were named", valid=f"one: {what}")
    return Path(paths[0])


def _given(arguments: Sequence[str] | None) -> list[str]:
    return list(sys.argv[1:] if arguments is None else arguments)


def ending(error: BaseException, unfinished: Sequence[CellStatus] = ()) -> int:
    """Tell what ended a command: Ctrl-C, or bad input in one line. Its exit code."""
    if isinstance(error, KeyboardInterrupt):
        notify("interrupted; the same command goes on where this stopped.")
        return INTERRUPTED
    if not isinstance(error, CellFailed):
        notify(one_line(error))
    return exit_code(unfinished)


def exit_code(unfinished: Sequence[CellStatus]) -> int:
    """That of a command that failed: of a defect where one, or a kill, ended any cell."""
    ended = any(status.defect or not status.reason for status in unfinished)
    return DEFECT if ended else BAD_INPUT


def is_bad_input(error: BaseException) -> bool:
    """Whether an error is the user's to mend. Of the operating system's, that is a disk or a right;
    a file that is missing because of a defect keeps its traceback."""
    return not isinstance(error, OSError) or error.errno in _OF_THE_DISK


def _is_path(argument: str) -> bool:
    """Whether an argument is a path and no override; names of cells hold equals signs too."""
    if argument.startswith(("-", "+", "~")):
        return False
    return "=" not in argument or Path(argument).exists()
