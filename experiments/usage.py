"""What `--help` prints: the options of every group, each with the comment at the head of its file.

Hydra's own help composes the configuration once for each group, which takes a second.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from experiments.settings import CONF
from toolkit.console import visible

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
    return visible(_SENTENCE_END.split(text, maxsplit=1)[0].replace("\n", " "))
