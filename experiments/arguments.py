"""Command lines with paths and words of their own beside overrides of the configuration."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.errors import HydraException

from experiments.entry import BAD_INPUT, BAD_INPUTS, INTERRUPTED, is_bad_input, one_line
from experiments.overrides import refuse_secrets
from experiments.settings import Settings
from toolkit.console import tell, tell_defect
from toolkit.errors import InputError


@dataclass(frozen=True)
class Arguments:
    """`paths` and `words` (as in `format=trec`) of a command, and the overrides that are left."""

    paths: Sequence[Path]
    words: Mapping[str, str]
    overrides: Sequence[str]
    config_dir: Path | None = None

    def settings(self) -> Settings:
        """The composed configuration of the overrides."""
        refuse_secrets(self.overrides)
        search = [f"file://{self.config_dir.resolve()}"] if self.config_dir else []
        return Settings.compose(self.overrides, search)

    def word(self, name: str, valid: Sequence[str] = ()) -> str:
        """A word that must be there; `InputError` where it is absent, or none of `valid`."""
        value = self.words.get(name, "")
        if not value or (valid and value not in valid):
            raise InputError(
                f"{name}={value}" if value else f"{name}= is not given",
                valid=", ".join(valid) or f"{name}=VALUE",
            )
        return value

    def one_path(self, what: str) -> Path:
        """The only path; `InputError` where there are none or several."""
        if len(self.paths) != 1:
            raise InputError(f"{len(self.paths)} paths were named", valid=f"one: {what}")
        return self.paths[0]


def command(
    task: Callable[[Arguments], int | None], description: str | None, words: Mapping[str, str]
) -> None:
    """Run `task` with the process's arguments. `words` tells, for `--help`, what each word means.

    Exit codes are those of `entry.main`, or what the task gives.
    """
    sys.excepthook = tell_defect
    try:
        code = task(parsed(sys.argv[1:], description or "", words)) or 0
    except (*BAD_INPUTS, HydraException) as error:
        if not is_bad_input(error):
            raise
        tell(one_line(error))
        sys.exit(BAD_INPUT)
    except KeyboardInterrupt:
        tell("interrupted")
        sys.exit(INTERRUPTED)
    if code:
        sys.exit(code)


def parsed(arguments: Sequence[str], description: str, words: Mapping[str, str]) -> Arguments:
    """The arguments, sorted. A path is what has no `=`, or what exists."""
    parser = argparse.ArgumentParser(
        description=description,
        epilog="\n".join(f"{name}=...  {meaning}" for name, meaning in words.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("items", nargs="*", metavar="PATH | WORD=VALUE | OVERRIDE")
    parser.add_argument("--config-dir", type=Path, help="a folder with options of your own")
    given: Any = parser.parse_args(list(arguments))
    paths = [Path(item) for item in given.items if is_path(item, words)]
    others = [item for item in given.items if not is_path(item, words)]
    named = dict(item.split("=", 1) for item in others if item.split("=", 1)[0] in words)
    overrides = [item for item in others if item.split("=", 1)[0] not in words]
    return Arguments(paths, named, overrides, given.config_dir)


def is_path(item: str, words: Collection[str]) -> bool:
    """Whether an argument is a path: names of cells hold equals signs too."""
    key, mark, _ = item.partition("=")
    return not mark or (key not in words and Path(item).exists())
