"""Commands and overrides that the documents mention: found in their text, placeholders filled in.

Read are README.md, AGENTS.md, CONTRIBUTING.md, skills/ and docs/*.md (fenced and indented code,
code spans), and the comments of conf/**.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
CONF = ROOT / "conf"
FILES = {path.relative_to(CONF) for path in CONF.glob("*/**/*.yaml")}
# Launchers stand below `hydra/`, which is no group of ours.
GROUPS = sorted({path.parts[0] for path in FILES} - {"hydra"})

# Options that stand for `group=...`; a language model may also be one of a stage or a judge.
ANY_OPTION = {
    "benchmark": "fictional",
    "unit": "passage",
    "retriever": "bm25_default",
    "agent": "keyword",
    "llm": "openai_compatible",
}
SHELLS = ("", "bash", "sh", "console")  # languages of blocks for a shell
ANY_VARIABLE = "API_KEY"
ANY_VALUE = "x"  # stands for `group.key=...`
# Commands with flags of their own, which take folders as plain arguments and do not sweep.
TAKES_PATHS = {
    *("evaluate", "compare", "judge", "caches", "calibrate"),
    *("export", "import", "distill", "list", "replay", "slices"),
}
FLAGS = {"-m", "--multirun", "--help"}

_COMMAND = re.compile(r"(?:^|[\s/])soundingline (\w+)(?=\s|$)")
_FENCE = re.compile(r"^(```+)(\w*)\n(.*?)^\1$", re.DOTALL | re.MULTILINE)
_SPAN = re.compile(r"`([^`]+)`")
_OVERRIDE = r"""[+~\w][\w@./]*=(?:"[^"]*"|'[^']*'|[^\s"'`]*)"""
_OVERRIDES = re.compile(rf"(?<![\w@./+=\"'(\[]){_OVERRIDE}(?:\s+{_OVERRIDE})*")
_PYTHON_CALL = re.compile(r"[\w.]+\(")
# A line for Hydra, `# @package ...`, may come before the name of the file.
_NAMED_FILE = re.compile(r"(?:# @package \w+\n)?#\s*(\S+\.(?:yaml|py))\b")


class Mention(NamedTuple):
    """A command with its arguments, or overrides that stand alone (`command` is empty).

    `option` is the option in whose file a comment stands, as an override.
    """

    source: str
    command: str
    arguments: tuple[str, ...]
    option: str = ""

    @property
    def overrides(self):
        return [item for item in self.arguments if "=" in item]


class Text(NamedTuple):
    """A piece of a document, and the number of its first line. `code` is a line for a shell."""

    line: int
    content: str
    code: bool


def documents():
    return [
        ROOT / "README.md",
        *(ROOT / name for name in ("AGENTS.md", "CONTRIBUTING.md")),
        *sorted((ROOT / "skills").rglob("*.md")),
        *sorted((ROOT / "docs").glob("*.md")),
        *sorted(CONF.rglob("*.yaml")),
    ]


def mentions(path, content=None):
    """All that a document mentions, in its order; `content` instead of the file's own."""
    content = path.read_text(encoding="utf-8") if content is None else content
    name = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name
    is_option = path.suffix == ".yaml"
    option = ""
    if is_option and path.parent != CONF:
        group, _, name = str(path.relative_to(CONF).with_suffix("")).partition("/")
        option = f"{group}={name}".replace("hydra=launcher/", "hydra/launcher=")
    results = []
    for text in comments(content) if is_option else markdown(content):
        source = f"{name}:{text.line}"
        if command := parsed_command(text.content):
            results.append(Mention(source, *command, option))
        elif not text.code and not _PYTHON_CALL.match(text.content):
            runs = runs_of_overrides(text.content)
            results += [Mention(source, "", tokens, option) for tokens in runs]
    return results


def markdown(content):
    """Code lines of shell blocks, and code spans."""
    for fence in _FENCE.finditer(content):
        if fence[2] in SHELLS:
            yield from code_lines(fence[3], line_of(content, fence.start()) + 1)
    prose = _FENCE.sub(lambda fence: "\n" * fence[0].count("\n"), content)
    for number, line in enumerate(prose.splitlines(), start=1):
        if line.startswith("    "):
            yield Text(number, line.strip(), True)
    for span in _SPAN.finditer(prose):
        yield Text(line_of(prose, span.start()), " ".join(span[1].split()), False)


def comments(content):
    """Comments of a YAML file: commands and code spans by themselves, everything else as one."""
    prose = []
    lines = [line.partition("#")[2].strip() for line in content.splitlines()]
    for text in code_lines("\n".join(lines), 1):
        for span in _SPAN.findall(text.content):
            yield Text(text.line, span, False)
        rest = _SPAN.sub("", text.content)
        if _COMMAND.search(rest):
            yield Text(text.line, rest, True)
        else:
            prose.append(rest)
    yield Text(1, " ".join(prose), False)


def code_lines(block, first):
    """Lines of a shell, those that end in a backslash joined with the next."""
    number, command = first, ""
    for offset, line in enumerate(block.splitlines()):
        number = number if command else first + offset
        command += line
        if command.endswith("\\"):
            command = f"{command[:-1]} "
            continue
        yield Text(number, command, True)
        command = ""


def line_of(content, position):
    return content.count("\n", 0, position) + 1


def parsed_command(line):
    """A command of ours and its arguments; None where the line holds none."""
    command = _COMMAND.search(line)
    if not command:
        return None
    rest = re.split(r"\s(?:&&|[|;>])\s", line[command.end() :])[0]
    return command[1], filled(shlex.split(rest, comments=True))


def runs_of_overrides(text):
    """Overrides of known groups and keys that stand next to each other."""
    for match in _OVERRIDES.finditer(text):
        tokens = re.findall(_OVERRIDE, match[0])
        yield filled([token if "=..." in token else token.rstrip(".,;:)") for token in tokens])


def filled(tokens):
    """Placeholders replaced: `...` alone means more of the same, `key=...` and `key=` any value,
    `<name>` a name, `<variable>` one of the environment."""
    given = [token.replace("<variable>", ANY_VARIABLE) for token in tokens if token != "..."]
    names = [re.sub(r"<(\w+)>", r"\1", token) for token in given]
    return tuple(any_value(token) for token in names)


def any_value(token):
    key, equals, value = token.partition("=")
    if not equals or value.rstrip(".,;:)"):
        return token
    if key.endswith("key_env"):
        return f"{key}={ANY_VARIABLE}"
    group = key.partition("@")[0].lstrip("+")
    return f"{key}={ANY_OPTION[group] if group in GROUPS else ANY_VALUE}"


class Block(NamedTuple):
    """A fenced block: its language (empty for a shell), its text, and the file that its first line
    names in a comment (empty where it names none)."""

    line: int
    language: str
    content: str
    file: str


def code_blocks(content):
    """The fenced blocks of a Markdown page, in its order."""
    results = []
    for fence in _FENCE.finditer(content):
        name = _NAMED_FILE.match(fence[3])
        start = line_of(content, fence.start()) + 1
        results.append(Block(start, fence[2], fence[3], name[1] if name else ""))
    return results


def named_files(content):
    """YAML blocks that begin with a comment naming their file: name -> content."""
    blocks = [block for block in code_blocks(content) if block.file.endswith(".yaml")]
    return {block.file: block.content for block in blocks}


def block_commands(block):
    """The commands of ours in a block for a shell: entry point and arguments."""
    if block.language not in SHELLS:
        return []
    lines = [text.content for text in code_lines(block.content, block.line)]
    return [command for line in lines if (command := parsed_command(line))]
