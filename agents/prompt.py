"""Prompts of agents: files in sections, whose hash is recorded in the run's manifest."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from soundingline.toolkit.errors import InputError
from soundingline.toolkit.files import fingerprint
from soundingline.toolkit.llm.messages import system, user
from soundingline.toolkit.search.answers import exact_part, list_part

FOLDER = Path(__file__).resolve().parent / "prompts"
SECTIONS = ("system", "question", "steer", "blocked", "final", "empty", "truncated")
_LABEL = re.compile(r"^(Explanation|Exact Answer|Confidence|Documents):", re.MULTILINE)
_HEADING = re.compile(r"^=== (\w+) ===$", re.MULTILINE)
_QUESTION, _TOOLS, _QUERIES = "{question}", "{tools}", "{queries}"
MATCHED = "matched"
# What `{queries}` says, by `ChatAgent.queries`.
QUERIES = {
    "neutral": "",
    "words": (
        "Queries are matched by words: use a few terms that tell most, rather than a long sentence."
    ),
    "meaning": (
        "Queries are matched by meaning: describe what a document says in a sentence, rather than "
        "by single terms."
    ),
}
# What it says where that is `MATCHED`, by how the retriever matches queries; else nothing.
_MATCHED = {"lexical": QUERIES["words"], "learned": QUERIES["meaning"]}
_CALL = re.compile(r"(\w+)(?:\(([\w, ]*)\))?")
_NAME = re.compile(r"\b[a-z]+(?:_[a-z]+)+\b")
# Sections for closed tools that a prompt may leave out, and the section of the same prompt that
# takes their place. The format of a prompt's `reminder` is its own, so it precedes our words.
_WHERE_CLOSED = {
    "reminder_closed": "reminder",
    "empty_closed": "blocked",
    "truncated_closed": "blocked",
}
_WITH_READER = "question_with_reader"
_NAMED = "tools"


def read_sections(path: Path) -> dict[str, str]:
    """The sections of a file by name, each below a line `=== name ===`."""
    parts = _HEADING.split(path.read_text(encoding="utf-8"))
    return {head: body.strip() for head, body in zip(parts[1::2], parts[2::2], strict=True)}


# Sections that a prompt may leave out, with our words. `first_call` says what the argument is,
# because small models repeat a demand in words as the call's reason, and leave the query out.
_OPTIONAL = read_sections(FOLDER / "defaults.sections")
_KNOWN = {*SECTIONS, *_OPTIONAL, *_WHERE_CLOSED, _WITH_READER, _NAMED}


@dataclass(frozen=True)
class AgentPrompt:
    """The sections of a prompt by name.

    - `system` opens the transcript (left out if empty) and `question` follows, in which
      `{question}` is replaced by the question. `question_with_reader` takes the place of
      `question` where the agent has the tool `get_document`.
    - `steer` is said when time is nearly over; `blocked` is the result of tool calls from then on;
      `final` demands the answer when another budget is used up.
    - `empty` and `truncated` follow replies without content and replies that the output limit cut
      (`empty_closed` and `truncated_closed` once tools are closed; without these, `blocked`).
    - `reminder`, if the agent reminds, demands the answer's format (`reminder_closed` if no tool
      can be called; without it the prompt's own `reminder`).
    - `first_call`, if the agent demands a first call, demands a search before the first answer.
      `{call}` is replaced by that call and `{argument}` by its argument for the query. A prompt
      without `reminder` or `first_call` has our words.
    - `tools` is not sent. It lists the tools and arguments that the text names, a line for each
      tool: `read_document(docid, offset)`. Without it, they are the words of the text with an
      underscore, such as `read_document`.

    In `system` and `question`, `{tools}` is replaced by what the session says about its tools, so
    that a prompt fits any tool, and the line `{queries}` by a sentence of `QUERIES`.
    """

    name: str
    sections: Mapping[str, str]

    @property
    def fingerprint(self) -> str:
        """A hash of all sections that are sent."""
        return fingerprint({name: text for name, text in self.sections.items() if name != _NAMED})

    @property
    def composes_tools(self) -> bool:
        """Whether the text about the tools comes from the session."""
        return any(_TOOLS in self.sections[name] for name in ("system", "question"))

    @property
    def composes_queries(self) -> bool:
        """Whether the prompt has a place for a sentence about queries."""
        return any(_QUERIES in self.sections[name] for name in ("system", "question"))

    def missing_names(self, specs: Sequence[Mapping[str, Any]]) -> list[str]:
        """The tools and arguments that the prompt names and that none of the tools with these
        `specs` has."""
        if self.composes_tools and not specs:
            return [_TOOLS]
        arguments = {spec["name"]: set(spec["parameters"]["properties"]) for spec in specs}
        if _NAMED in self.sections:
            missing = []
            for tool, listed in _CALL.findall(self.sections[_NAMED]):
                names = re.findall(r"\w+", listed)
                if tool not in arguments:
                    missing.append(tool)
                else:
                    missing += [f"{tool}({name})" for name in names if name not in arguments[tool]]
            return missing
        unused = {_WITH_READER, "question"} - {self._question_section(specs)}
        texts = "\n".join(text for name, text in self.sections.items() if name not in unused)
        names_of_tools = set(arguments).union(*arguments.values())
        return [name for name in dict.fromkeys(_NAME.findall(texts)) if name not in names_of_tools]

    def words(self, section: str) -> str:
        """The text of a section, also of one that the prompt leaves out."""
        text = self.sections.get(section) or self.sections.get(_WHERE_CLOSED.get(section, ""))
        return text or _OPTIONAL.get(section, "")

    @property
    def placeholders(self) -> frozenset[str]:
        """The placeholders for the answer in the prompt's descriptions of the format, which small
        models repeat."""
        texts = (*self.sections.values(), *_OPTIONAL.values())
        parts = {*map(exact_part, texts), *(list_part(text) or "" for text in texts)}
        return frozenset(parts - {""})

    @property
    def asks_for_list(self) -> bool:
        """Whether the answer format of the prompt ends in a list of documents."""
        return any(list_part(text) is not None for text in self.sections.values())

    @property
    def answer_labels(self) -> tuple[str, ...]:
        """The labels of the lines of the prompt's answer format, in their order; empty for another
        format."""
        text = "\n".join(self.sections[name] for name in ("system", "question"))
        return tuple(dict.fromkeys(_LABEL.findall(text)))

    def opening(
        self,
        question: str,
        *,
        specs: Sequence[Mapping[str, Any]] = (),
        tools: str = "",
        queries: str = "",
    ) -> list[dict[str, str]]:
        """The messages at the start of a transcript, for tools with these `specs`; `tools` and
        `queries` are what is said about them and about queries."""
        parts = {_TOOLS: tools, _QUERIES if queries else f"{_QUERIES}\n": queries}
        instructions = self.sections["system"]
        text = self.sections[self._question_section(specs)]
        for place, words in parts.items():
            instructions, text = instructions.replace(place, words), text.replace(place, words)
        question_message = user(text.replace(_QUESTION, question))
        return [system(instructions), question_message] if instructions else [question_message]

    def _question_section(self, specs: Sequence[Mapping[str, Any]]) -> str:
        """`question_with_reader` where the prompt has it and a tool is `get_document`."""
        reader = any(spec["name"] == "get_document" for spec in specs)
        return _WITH_READER if reader and _WITH_READER in self.sections else "question"


def about_queries(queries: str, matching: str) -> str:
    """What `{queries}` says for this `ChatAgent.queries`, over a retriever that matches queries in
    this way (`SearchTool.matching`)."""
    return _MATCHED.get(matching, "") if queries == MATCHED else QUERIES[queries]


def prompt_sections(name: str, folder: Path) -> tuple[Path, dict[str, str]]:
    """The path of a prompt and its sections by name.

    `name` is that of a prompt in `folder`, or the path of a file that ends in `.txt`. `InputError`
    with the prompts in `folder` if the file cannot be read.
    """
    path = Path(name) if name.endswith(".txt") else folder / f"{name}.txt"
    try:
        return path, read_sections(path)
    except (OSError, UnicodeDecodeError) as error:
        known = ", ".join(sorted(other.stem for other in folder.glob("*.txt")))
        raise InputError(
            f"there is no prompt {path.stem!r}", valid=f"{known}, or the path of a .txt file"
        ) from error


def load_prompt(name: str) -> AgentPrompt:
    """The prompt of this name in the package, or of a file (a path that ends in `.txt`).
    `InputError` if there is none, or if a section is missing."""
    path, sections = prompt_sections(name, FOLDER)
    complete = set(SECTIONS) <= set(sections) <= _KNOWN
    asking = [sections.get(name, _QUESTION) for name in ("question", _WITH_READER)]
    if not complete or not all(_QUESTION in text for text in asking):
        raise InputError(
            f"the prompt {path} has the sections {', '.join(sections) or 'none'}",
            valid=f"=== name === lines for each of {', '.join(SECTIONS)}, if need be for "
            f"{', '.join(sorted(_KNOWN - set(SECTIONS)))}, and {_QUESTION} in the section question",
        )
    return AgentPrompt(path.stem, sections)
