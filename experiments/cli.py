"""The command line: `soundingline COMMAND [KEY=VALUE ...]`.

One parser, one help and one form of refusals and exit codes serve all commands. A command is a
function of the composed configuration. Its second argument, where it has one, takes paths, and its
keyword-only arguments are flags, which may be written as `--flag VALUE` or `flag=VALUE`.
"""

from __future__ import annotations

import argparse
import ast
import errno
import inspect
import json
import os
import re
import sys
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import fields, is_dataclass
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

import hydra
import yaml
from hydra.errors import ConfigCompositionException, HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from soundingline.experiments.config import (
    CONF,
    ROOT_CONFIG,
    ROOTS,
    CommandCells,
    Settings,
    check_choices,
    expand_home,
    key_of,
    no_such_key,
    register,
    search_path_to,
    unknown_key,
)
from soundingline.experiments.options import command_page, group_page, option_files, root_settings
from soundingline.experiments.refusals import refusal_line, refuse_secrets, shared_cause_of
from soundingline.experiments.slurm import check_submission
from soundingline.experiments.sweep import (
    CellFailed,
    CellStatus,
    CommandSweep,
    SweepRefused,
    SweepStart,
    check_name,
    is_first,
    optimized_value,
    recorded_cell,
)
from soundingline.toolkit.console import notify, print_traceback
from soundingline.toolkit.errors import InputError, did_you_mean, our_name
from soundingline.toolkit.json_text import has_surrogates
from soundingline.toolkit.llm.errors import ModelError
from soundingline.toolkit.runs.run_folder import SWEEP, VARIED

# By command: the module and the function in it, which are imported when the command is run, and
# what the command does.
COMMANDS = {
    "run": (
        "run:run",
        "Answer the questions of a benchmark with an agent that searches through a pipeline.",
    ),
    "preflight": (
        "run:preflight",
        "Check servers, prompt, judge, collection and machine of a run before it spends money.",
    ),
    "rank": ("rank:rank", "Rank the questions of a benchmark with a pipeline, without an agent."),
    "tune": ("tune:tune", "Choose k1 and b of BM25 on one split and report them on another."),
    "enrich": (
        "enrich:enrich",
        "Ask a language model for phrases that enrich the documents of a corpus.",
    ),
    "index": ("maintenance:index", "Build the text store and the indexes of a benchmark."),
    "replay": (
        "replay:replay_run",
        "Send the recorded searches of a run through another pipeline.",
    ),
    "evaluate": ("evaluate:evaluate", "Compute the measures of recorded runs again."),
    "compare": ("evaluate:compare", "Compare runs with paired tests and write a report."),
    "judge": ("evaluate:judge", "Measure how far the judges of a run agree."),
    "calibrate": (
        "fitting:calibrate",
        "Fit the probabilities of a requirement scorer to judgements.",
    ),
    "distill": (
        "distillation:distill",
        "Distil a small scorer of requirements from a large one, and calibrate it.",
    ),
    "export": ("exchange:export", "Write a run in the format of another project."),
    "import": ("exchange:import_run", "Read a run of another project."),
    "serve": ("serve.server:serve", "Serve a pipeline to agents over MCP and HTTP."),
    "model": (
        "maintenance:serve_model",
        "Run the server of a local language model for the runs of other machines.",
    ),
    "slices": (
        "evaluate:slices",
        "Draw the slices of Pi-Serini from a ranking of BrowseComp-Plus by default BM25.",
    ),
    "caches": ("maintenance:caches", "Show what the caches hold, and prune them."),
    "list": (
        "maintenance:list_options",
        "List the options of a group, such as retriever or experiment.",
    ),
    "describe": ("maintenance:describe", "Show which options and values a command line chooses."),
}
COMPLETION = "completion"  # prints a script, and has no configuration
# These take no paths and may be swept with -m.
SWEPT = ("run", "rank", "tune", "enrich", "index")
CHECKS = ("preflight",)  # takes the arguments of run, also of a sweep
SHARDED = ("index", "enrich")
RESUMED = ("run", "tune", "enrich", "judge")  # keep what a start has done that was interrupted
HELP = frozenset({"-h", "--help"})
VERSION = "--version"
DEFECT, BAD_INPUT, INTERRUPTED = 1, 2, 130
BAD_INPUTS = (InputError, ModelError, OmegaConfBaseException, OSError)
REFUSED = (InputError, HydraException, OmegaConfBaseException, KeyboardInterrupt)
_CONFIG_DIR = ("--config-dir", "-cd")
_DISK_ERRORS = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO),
    *(errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command that `arguments` (None: those of the process) name first.

    The process exits with the code 0 if the command ended well, 2 for bad input (with one line on
    standard error), 130 for Ctrl-C, and 1 for a defect, whose traceback is printed. In a sweep, a
    cell that fails is a failed job, the other cells are run, and the report lists it; the exit code
    is then 2, or 1 if a defect or a kill ended a cell. The code is also 1 if the reader of standard
    output has gone (`| head`).
    """
    sys.excepthook = print_traceback
    words = [expand_home(word) for word in (sys.argv[1:] if arguments is None else arguments)]
    code = 0
    try:
        if not words or words[0] in HELP:
            print(_overview())
        elif VERSION in words:
            print(f"soundingline {version('soundingline')}")
        elif words[0] == COMPLETION:
            _print_completion(words[1:])
        else:
            name, *others = words
            if invalid := list(filter(has_surrogates, words)):
                raise InputError(
                    f"{invalid[0]!r} is not UTF-8", do="write it in UTF-8, or rename the file"
                )
            parser = CommandParser(name)
            if HELP.intersection(others):
                print(parser.help_page(others))
            elif name in SWEPT:
                code = _run_or_sweep(name, parser.read(others), parser)
            else:
                code = _run_over_paths(name, parser.read(others), parser)
        sys.stdout.flush()
    except BrokenPipeError:
        # What is left cannot be flushed at the end of the process.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = DEFECT
    except (*REFUSED, *BAD_INPUTS) as error:
        if not is_bad_input(error):
            raise
        code = print_end(error, next(iter(words), ""))
    sys.exit(code)


def _overview() -> str:
    lines = [f"  {name:10} {about}" for name, (_, about) in COMMANDS.items()]
    lines.append(f"  {COMPLETION:10} Print a script by which a shell completes what you type.")
    end = "soundingline COMMAND --help describes a command."
    return "\n".join(["usage: soundingline COMMAND [KEY=VALUE ...]", "", *lines, "", end])


def _print_completion(arguments: Sequence[str]) -> None:
    """Print a shell's script: commands, their flags, and the options of each group."""
    shells = yaml.safe_load(Path(__file__).with_name("completion.yaml").read_text("utf-8"))
    if len(arguments) != 1 or arguments[0] not in shells:
        raise InputError(
            f"completion {' '.join(arguments) or 'without a shell'}",
            valid=", ".join(shells),
            do=f"run {'; '.join(shell['install'] for shell in shells.values())}",
        )
    shell = shells[arguments[0]]
    parsers = {name: CommandParser(name) for name in COMMANDS}
    groups = option_files()

    def cases(words: Mapping[str, Iterable[str]]) -> str:
        names: dict[str, list[str]] = {}
        for name, each in words.items():
            names.setdefault(" ".join(each), []).append(name)
        return "\n".join(
            shell["case"].format(shell["or"].join(own), each) for each, own in names.items()
        )

    parts = {
        "COMMANDS": " ".join((*COMMANDS, COMPLETION)),
        "PATHS": shell["or"].join(name for name, parser in parsers.items() if parser.takes_paths),
        "KEYS": " ".join(f"{key}=" for key in (*groups, *(key for key, *_ in root_settings()))),
        "FLAGS": cases({name: parser.flags() for name, parser in parsers.items()}),
        "GROUPS": cases(groups),
        "SHELLS": " ".join(shells),
    }
    print(re.sub("|".join(parts), lambda match: parts[match[0]], shell["script"]), end="")


def _task(name: str) -> Callable[..., Any]:
    module, _, function = COMMANDS[name][0].partition(":")
    task: Callable[..., Any] = getattr(
        import_module(f"soundingline.experiments.{module}"), function
    )
    return task


class CommandParser(argparse.ArgumentParser):
    """The arguments of a command: overrides, paths and flags, in any order.

    A command that may be swept has the flags of Hydra and no others.

    Raises:
        InputError: If there is no command of this name.
    """

    def __init__(self, name: str) -> None:
        if name not in COMMANDS:
            raise InputError(
                f"there is no command {name!r}",
                valid=", ".join(COMMANDS),
                do=did_you_mean(name, COMMANDS),
            )
        self._name, self._swept = name, name in SWEPT
        super().__init__(f"soundingline {name}", add_help=False, allow_abbrev=False)
        self._path: inspect.Parameter | None = None
        self._switches: set[str] = set()
        self._records: dict[str, Any] = {}  # arguments whose fields are flags
        self.own_flags: list[str] = []
        # Help and a wrong flag of a swept command need not wait until its module is imported.
        if self._swept:
            self._add_hydra_flags()
        else:
            self._add_arguments(_task(name))

    def _add_hydra_flags(self) -> None:
        """Add those flags of Hydra that change what a command does or prints."""
        self.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
        do = self.add_mutually_exclusive_group()
        do.add_argument("--multirun", "-m", action="store_true", help="sweep over cells")
        parts, about = ["job", "hydra", "all"], "print the configuration; do nothing"
        do.add_argument("--cfg", "-c", choices=parts, help=about)
        parts = ["all", "config", "defaults", "defaults-tree", "plugins", "searchpath"]
        about = "print what Hydra knows"
        do.add_argument("--info", "-i", nargs="?", const="all", choices=parts, help=about)
        self.add_argument("--resolve", action="store_true", help="with --cfg: print values")
        self.add_argument("--package", "-p", help="with --cfg: the part to print")
        self.add_argument(*_CONFIG_DIR, metavar="FOLDER", help="options of your own")
        self._hydra_flags = [each.dest for each in self._actions if each.option_strings]

    def hydra_flags(self, flags: argparse.Namespace) -> list[str]:
        """The flags of Hydra that were given, as words."""
        values = {name: getattr(flags, name) for name in self._hydra_flags}
        by_flag = {f"--{name.replace('_', '-')}": value for name, value in values.items() if value}
        return [flag if value is True else f"{flag}={value}" for flag, value in by_flag.items()]

    def _add_arguments(self, task: Callable[..., Any]) -> None:
        """Add the path and the flags that the function of a command takes."""
        self._hints = typing.get_type_hints(task, include_extras=True)
        parameters = list(inspect.signature(task).parameters.values())
        flags = [each for each in parameters if each.kind is each.KEYWORD_ONLY]
        positional = [each for each in parameters if each not in flags]
        self._path = positional[1] if len(positional) > 1 else None
        metavar = f"{self._path.name.upper()} | KEY=VALUE" if self._path else "KEY=VALUE"
        self.add_argument("overrides", nargs="*", metavar=metavar)
        self.add_argument(*_CONFIG_DIR, metavar="FOLDER", help="options of your own")
        self.add_argument(
            "--cfg", "-c", choices=["job"], help="print the configuration; do nothing"
        )
        if self._name in CHECKS:
            self.add_argument("--multirun", "-m", action="store_true", help="check each cell")
        for parameter in flags:
            hint = self._hints[parameter.name]
            if not is_dataclass(hint):
                self._add_flag(parameter.name, hint, parameter.default)
                continue
            self._records[parameter.name] = hint
            hints = typing.get_type_hints(hint, include_extras=True)
            for each in fields(hint):
                if typing.get_origin(hints[each.name]) is typing.Annotated:
                    self._add_flag(each.name, hints[each.name], each.default)

    def _add_flag(self, name: str, annotation: Any, default: Any) -> None:
        """Add the flag that a keyword-only argument is, or a field of one that is a dataclass. Its
        annotation is `Annotated[type, help]`; a `Literal` states the choices, and a `Sequence` may
        be given several times."""
        kind, about = typing.get_args(annotation)
        required = default is inspect.Parameter.empty
        options: dict[str, Any] = {"help": about, "required": required, "dest": name}
        if not required:
            options["default"] = default
        inner = typing.get_args(kind)
        flag = f"--{name.replace('_', '-')}"
        if kind is bool:
            options["action"] = "store_true"
            self._switches.add(flag)
            del options["required"]
        elif typing.get_origin(kind) is typing.Literal:
            options["choices"] = inner
        elif _is_sequence(kind):
            options |= {"action": "append", "default": [], "metavar": "NAME"}
        else:
            options["type"] = next((each for each in inner if each is not type(None)), kind)
            options["metavar"] = name.rpartition("_")[2].upper()
            if not required and default is not None:
                options["help"] += " (default: %(default)s)"
        self.own_flags.append(name)
        self.add_argument(flag, **options)

    def read(self, arguments: Sequence[str]) -> argparse.Namespace:
        """The flags; `InputError` for wrong ones, and for a secret among the overrides."""
        flags = self.parse_intermixed_args([self._spelled(item) for item in arguments])
        overrides = self.overrides(flags.overrides)
        refuse_secrets(overrides)
        known = (*ROOTS, *self.own_flags)
        for key in map(key_of, overrides):
            root = re.split("[./@]", key)[0]
            # Without a dot, it may be a group of the user's own.
            of_option = "." in key.partition("@")[0]
            meant = of_option or our_name(root) or did_you_mean(root, self.own_flags)
            if root not in known and meant:
                raise no_such_key(root, known)
        return flags

    def arguments(self, flags: argparse.Namespace) -> dict[str, Any]:
        """The keyword-only arguments of the command's function."""
        values = {name: getattr(flags, name) for name in self.own_flags}
        for name, record in self._records.items():
            names = [each.name for each in fields(record) if each.name in values]
            values[name] = record(**{each: values.pop(each) for each in names})
        return values

    def flags(self) -> list[str]:
        """Every flag, in its long form."""
        longest = (max(action.option_strings, key=len, default="") for action in self._actions)
        return list(dict.fromkeys([*filter(None, longest), "--help"]))

    @property
    def takes_paths(self) -> bool:
        """Whether the command takes paths besides overrides."""
        return self._path is not None

    def paths(self, items: Sequence[str]) -> list[Any]:
        """What the second argument of the command's function receives: one path, several, or None
        if it may be left out. `InputError` for another number of paths."""
        paths = [Path(item) for item in items if self._is_path(item)]
        if self._path is None:
            if paths:
                raise InputError(f"{paths[0]} is not an override", valid="KEY=VALUE")
            return []
        name, kind = self._path.name.upper(), self._hints[self._path.name]
        if _is_sequence(kind):
            return [paths]
        optional = self._path.default is not self._path.empty
        if len(paths) > 1 or (not paths and not optional):
            raise InputError(
                f"{len(paths)} paths were named", valid=f"one: {name}", do="name one of them"
            )
        return [str(path) if kind is str else path for path in paths]

    def overrides(self, items: Sequence[str]) -> list[str]:
        """The arguments that are not paths."""
        return [item for item in items if not self._is_path(item)]

    def _is_path(self, argument: str) -> bool:
        # Names of cells hold equals signs too.
        if self._swept or argument.startswith(("-", "+", "~")):
            return False
        return "=" not in argument or (self._path is not None and Path(argument).exists())

    def _spelled(self, argument: str) -> str:
        name, mark, value = argument.partition("=")
        flag = f"--{name.replace('_', '-')}"
        if not mark or name.replace("-", "_") not in self.own_flags:
            return argument
        # A switch takes no value.
        switch = flag in self._switches and value.lower() == "true"
        return flag if switch else f"{flag}={value}"

    def error(self, message: str) -> NoReturn:
        flags = [flag for action in self._actions for flag in action.option_strings]
        unknown = message.rpartition(": ")[2].partition("=")[0]
        meant = did_you_mean(unknown, [*flags, "--help"]) if "unrecognized" in message else ""
        raise InputError(message, do=f"{meant} --help lists what this command takes")

    def help_page(self, arguments: Sequence[str]) -> str:
        """What the command does, its flags, and for a command that may be swept the options of
        `conf/` and of the folder that `arguments` add; if these name a group, what its options
        are."""
        if self._swept:
            flags = self.parse_intermixed_args([word for word in arguments if word not in HELP])
            folders = [Path(flags.config_dir)] if flags.config_dir else []
            groups = [word for word in flags.overrides if "=" not in word]
            if groups:
                return group_page(groups[0], folders)
            return command_page(_docstring(self._name), folders)
        about = inspect.getdoc(_task(self._name)) or ""
        more = "KEY=VALUE changes the configuration; soundingline list lists its groups."
        return f"{about}\n\n{self.format_help()}\n{more}"


def _docstring(name: str) -> str:
    """What a command does, by its source: to import it takes three times as long as the help."""
    module, _, function = COMMANDS[name][0].partition(":")
    tree = ast.parse(Path(__file__).with_name(f"{module}.py").read_text(encoding="utf-8"))
    nodes = (node for node in tree.body if isinstance(node, ast.FunctionDef))
    return next(ast.get_docstring(node) or "" for node in nodes if node.name == function)


def _is_sequence(kind: Any) -> bool:
    return typing.get_origin(kind) not in (None, typing.Union, type(int | None))


def _run_over_paths(name: str, flags: argparse.Namespace, parser: CommandParser) -> int:
    search = search_path_to(flags.config_dir)
    words = parser.overrides(flags.overrides)
    if name in CHECKS and not flags.cfg:
        check_choices(words)
        cells = CommandCells.of(words, search, multirun=flags.multirun).cells
        _task(name)([Settings.compose(cell, search) for cell in cells])
        return 0
    settings = Settings.compose(words, search)
    if flags.cfg:
        print(OmegaConf.to_yaml(settings.config), end="")
        return 0
    code = _task(name)(settings, *parser.paths(flags.overrides), **parser.arguments(flags))
    return code if isinstance(code, int) else 0


class _Job:
    """What Hydra runs with the configuration of a command, or of each cell of its sweep.

    Launchers run a copy of it in other processes, so that `refused`, the reasons of bad input, has
    those of this process alone.
    """

    def __init__(self, name: str, prog: str) -> None:
        self.name, self.prog = name, prog
        self.refused: list[str] = []

    def __call__(self, config: DictConfig) -> float | None:
        register()  # again, because a launcher may run this in a process of its own
        settings = Settings.of_job(config)
        try:
            with recorded_cell(settings) if settings.multirun else nullcontext():
                try:
                    self._check(settings)
                    ran = _task(self.name)(settings)
                    return None if ran is None else optimized_value(ran, settings.config, self.name)
                except BAD_INPUTS as error:
                    self._refuse(settings, error)
        except OSError as error:  # the status of the cell could not be written
            self._refuse(settings, error)
        return None

    def _check(self, settings: Settings) -> None:
        # Those of a sweep, and other values, may come from a file of options.
        refuse_secrets(settings.overrides, settings.config)
        if self.name not in SHARDED and settings.config.indexing.shards != 1:
            raise InputError(
                f"indexing.shards={settings.config.indexing.shards} for {self.prog}",
                valid="soundingline index and soundingline enrich",
                do="leave it out: this command reads what those have made of all shards",
            )

    def _refuse(self, settings: Settings, error: Exception) -> None:
        if not is_bad_input(error):
            raise error
        self.refused.append(refusal_line(error))
        if is_first(settings, shared_cause_of(error) or self.refused[-1]):
            notify(self.refused[-1])
        if settings.multirun:
            failed = CellFailed(self.refused[-1])
            failed.shared_cause = shared_cause_of(error)
            raise failed from None


def _run_or_sweep(name: str, flags: argparse.Namespace, parser: CommandParser) -> int:
    """Run a command with the configuration that Hydra composes, or sweep over cells.

    Returns the exit code.
    """
    check_choices(flags.overrides)
    check_name(flags.overrides)
    _check_hydra_flags(flags)
    job, hydra_flags = _Job(name, parser.prog), parser.hydra_flags(flags)
    # Hydra prints errors and exits with 1 unless this is set.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    register()
    start = hydra.main(config_path=str(CONF), config_name=ROOT_CONFIG, version_base="1.3")(job)
    sweep = SweepStart.sweep = CommandSweep(name)
    try:
        with _ending_sweep(sweep):
            try:
                with _process_arguments([*flags.overrides, *hydra_flags]):
                    start()
            except ConfigCompositionException as error:
                with _process_arguments([*_overrides_of_start(flags, error), *hydra_flags]):
                    start()
    except REFUSED as error:
        if sweep.interrupted and sweep.start:  # It has reported how many cells are left.
            return INTERRUPTED
        return print_end(error, name, sweep.unfinished)
    except Exception:
        if not sweep.unfinished:
            raise
        return DEFECT  # its traceback was printed with the cells that did not finish
    return exit_code(sweep.unfinished) if job.refused or sweep.unfinished else 0


@contextmanager
def _ending_sweep(sweep: CommandSweep) -> Iterator[None]:
    """After the block, in whichever way it ends, end the sweep if it has started."""
    try:
        yield
    except SweepRefused as refusal:
        raise refusal.error from None
    except KeyboardInterrupt:
        sweep.interrupted = True
        raise
    except Exception as error:
        if sweep.start:
            sweep.wait_for_jobs()
            check_submission(error)
        raise
    finally:
        for variable in (SWEEP, VARIED):  # this process may go on, and belongs to no sweep then
            os.environ.pop(variable, None)
        if sweep.start:
            from soundingline.experiments.run_context import end_servers

            end_servers()
            sweep.end()


@contextmanager
def _process_arguments(words: Sequence[str]) -> Iterator[None]:
    """A block in which the arguments of the process are `words`, which Hydra reads there."""
    before = sys.argv
    sys.argv = [before[0], *words]
    try:
        yield
    finally:
        sys.argv = before


def _overrides_of_start(
    flags: argparse.Namespace, error: ConfigCompositionException
) -> Iterator[str]:
    """The overrides that the start of a sweep can be composed with, and one that hands the others
    to its cells. Raises `error` if it is not about those."""
    if SweepStart.sweep.start or not unknown_key(error):
        raise error
    search = search_path_to(flags.config_dir)
    late = CommandCells.of(flags.overrides, search, multirun=flags.multirun).late
    yield from (word for word in flags.overrides if word not in late)
    yield f"hydra.sweeper.late={json.dumps(late)}"


def _check_hydra_flags(flags: argparse.Namespace) -> None:
    """`InputError` for what Hydra reports with a traceback or by its own names."""
    if flags.config_dir and not Path(flags.config_dir).is_dir():
        raise InputError(f"--config-dir: there is no folder {flags.config_dir}")
    if flags.resolve and not flags.cfg:
        raise InputError("--resolve goes with --cfg only", do="add --cfg job, or leave it out")


def print_end(error: BaseException, name: str, unfinished: Sequence[CellStatus] = ()) -> int:
    """Print what ended the command `name`, Ctrl-C or bad input, in one line. Its exit code."""
    if isinstance(error, KeyboardInterrupt):
        done = f" ({error})" if str(error) else ""
        notify(f"interrupted{done}{'; the same command continues' if name in RESUMED else ''}")
        return INTERRUPTED
    if not isinstance(error, CellFailed):
        notify(refusal_line(error))
    return exit_code(unfinished)


def exit_code(unfinished: Sequence[CellStatus]) -> int:
    """The exit code of a command that failed: that of a defect if one, or a kill, ended a cell."""
    ended = any(status.defect or not status.reason for status in unfinished)
    return DEFECT if ended else BAD_INPUT


def is_bad_input(error: BaseException) -> bool:
    """Whether the user can correct an error. Of the operating system's errors, that is one of a
    disk or a right; a file that is missing because of a defect keeps its traceback."""
    if isinstance(error, HydraException):  # An option that is missing is an OSError too.
        return True
    return not isinstance(error, OSError) or error.errno in _DISK_ERRORS
