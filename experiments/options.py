"""What `conf/` and folders of one's own offer: options with their comments, and pages of help.

Option files are read as text here, without composing them.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from soundingline.experiments.config import CONF
from soundingline.toolkit.console import escape_control
from soundingline.toolkit.errors import InputError, did_you_mean

_SENTENCE_END = re.compile(r"(?<=[.:])\n|(?<=\.) (?=[A-Z])")
_INDENT = 24
_HANGING: Any = {"initial_indent": " " * _INDENT, "subsequent_indent": " " * _INDENT}
_ABOUT: Any = {"initial_indent": "    ", "subsequent_indent": "    "}
_HELP_END = """\
--help GROUP describes the options of a group. GROUP.ARGUMENT=VALUE changes an argument of one. -m
sweeps over values with commas between them; --config-dir FOLDER adds options of your own; --cfg job
prints the configuration that the command line composes.
"""


def option_files(folders: Iterable[Path] = ()) -> dict[str, dict[str, Path]]:
    """The file of each option of `conf/` and of `folders`, by group and name, such as `llm` and
    `vllm/qwen3_8b`, those in folders last. What options share, in `base`, is none."""
    files: dict[str, dict[str, Path]] = {}
    for folder in (CONF, *folders):
        for path in folder.glob("*/**/*.yaml"):
            group, *below = path.relative_to(folder).with_suffix("").parts
            if group == "hydra" and len(below) > 1:
                group = f"hydra/{below.pop(0)}"
            if below[0] != "base":
                files.setdefault(group, {})["/".join(below)] = path
    return {
        group: dict(sorted(files[group].items(), key=lambda item: (item[0].count("/"), item[0])))
        for group in sorted(files)
    }


def options_in(group: str, folders: Iterable[Path] = ()) -> dict[str, Path]:
    """The file of each option of a group, such as `llm`, or of a folder below it, such as
    `llm/vllm`, by its name there. `InputError` if there is none."""
    groups = option_files(folders)
    files = {f"{top}/{name}": path for top in groups for name, path in groups[top].items()}
    within = {
        name.removeprefix(f"{group}/"): path
        for name, path in files.items()
        if name.startswith(f"{group}/")
    }
    if not within:
        do = did_you_mean(group, groups)
        raise InputError(f"there is no group {group!r}", valid=", ".join(groups), do=do)
    return within


def first_sentence(path: Path) -> str:
    """The first sentence of the comment at the head of an option's file, without a colon at its
    end; empty without one."""
    return _SENTENCE_END.split(_comment(path), maxsplit=1)[0].replace("\n", " ").removesuffix(":")


def _comment(path: Path) -> str:
    with path.open(encoding="utf-8") as lines:
        head = takewhile(lambda line: line.startswith("#"), lines)
        text = "\n".join(line.lstrip("# ").strip() for line in head if "@package" not in line)
    return escape_control(text)


def root_settings() -> Iterator[tuple[str, str, str]]:
    """Key, default and comment of the plain settings of `config.yaml`."""
    comment: list[str] = []
    for line in (CONF / "config.yaml").read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            comment.append(line.lstrip("# "))
            continue
        if setting := re.match(r"(\w+): (\S.*?)(?:  # (.*))?$", line):
            key, value, remark = setting.groups()
            yield key, value.replace(", ", ","), " ".join(filter(None, [*comment, remark]))
        comment = []


def command_page(about: str, folders: Sequence[Path] = ()) -> str:
    """`about` a command, the settings of the root, and the options of each group."""
    chosen = _defaults()
    settings = [_entry(f"{key}={value}", text) for key, value, text in root_settings()]
    groups = []
    for group, names in option_files(folders).items():
        marked = (f"*{name}" if name == chosen.get(group) else name for name in names)
        groups.append(_entry(group, ", ".join(marked)))
    return "\n".join(
        [
            about,
            "\nSettings, KEY=VALUE, with their defaults:",
            *settings,
            "\nGroups, GROUP=OPTION; an asterisk marks the default:",
            *groups,
            "",
            _HELP_END,
        ]
    )


def group_page(group: str, folders: Sequence[Path] = ()) -> str:
    """Every option of a group, with its comment and its arguments."""
    default, pages = _defaults().get(group), []
    for name, path in options_in(group, folders).items():
        mark = "  (default)" if name == default else ""
        text = path.read_text(encoding="utf-8").partition("hydra:")[0]
        arguments = re.findall(r"(?m)^[a-z]\w*:.*", escape_control(text))
        lines = [line for line in arguments if not line.startswith("defaults:")]
        page = [f"{group}={name}{mark}"]
        page += textwrap.wrap(_comment(path).replace("\n", " "), 96, **_ABOUT)
        pages.append("\n".join([*page, *(f"      {group}.{line}" for line in lines)]))
    return "\n\n".join([*pages, _HELP_END])


def _defaults() -> Mapping[str, Any]:
    """The option of each group that `config.yaml` chooses."""
    root: Any = OmegaConf.load(CONF / "config.yaml")
    groups = [entry for entry in root["defaults"] if not isinstance(entry, str)]
    return {str(group): option for entry in groups for group, option in entry.items()}


def _entry(name: str, about: str) -> str:
    """One setting or group with its text, in lines of at most 100 columns."""
    first = f"  {name:{_INDENT - 3}} "
    if len(first) > _INDENT:
        return "\n".join([first.rstrip(), *textwrap.wrap(about, 100, **_HANGING)])
    return textwrap.fill(about, 100, initial_indent=first, subsequent_indent=" " * _INDENT)
