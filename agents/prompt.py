"""Prompts of agents: files in sections, whose hash is recorded in the run's manifest."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from soundingline.toolkit.errors import InputError
from soundingline.toolkit.files import fingerprint
from soundingline.toolkit.llm.messages import system, user
from soundingline.toolkit.search.answers import exact_part, list_part

FOLDER = Path(__file__).resolve().parent / "prompts"
SECTIONS = ("system", "question", "steer", "blocked", "final", "empty", "truncated")
_HEADING = re.compile(r"^=== (\w+) ===$", re.MULTILINE)
_QUESTION = "{question}"
_THREE_LINES = (
    "Explanation: reasoning in brief, with docids in square brackets\n"
    "Exact Answer: the answer alone\n"
    "Confidence: 0% to 100%"
)
# Sections that a prompt may leave out, with our words.
_OPTIONAL = {
    "reminder": (
        'Your last reply is no answer yet: no answer stands behind "Exact Answer:". If you '
        "meant to call a tool, call it now. Otherwise reply with the final answer in these three "
        f"lines:\n{_THREE_LINES}"
    ),
    "reminder_closed": (
        'Your last reply is no answer yet: no answer stands behind "Exact Answer:". There are no '
        "tools to call now. Reply with the final answer in these three lines:\n"
        f"{_THREE_LINES}"
    ),
    # Small models repeat a demand in words as the call's reason, and leave the query out.
    "first_call": (
        "You have not searched yet, and what you believe you know does not count here. Call "
        "{call} now: the {argument} is the words of the question that tell most."
    ),
}
# Sections for closed tools that a prompt may leave out, and the section of the same prompt that
# takes their place. The format of a prompt's `reminder` is its own, so it precedes our words.
_WHERE_CLOSED = {
    "reminder_closed": "reminder",
    "empty_closed": "blocked",
    "truncated_closed": "blocked",
}
_WITH_READER = "question_with_reader"
_KNOWN = {*SECTIONS, *_OPTIONAL, *_WHERE_CLOSED, _WITH_READER}


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
    """

    name: str
    sections: Mapping[str, str]

    @property
    def fingerprint(self) -> str:
        """A hash of all sections."""
        return fingerprint(dict(self.sections))

    def words(self, section: str) -> str:
        """The text of a section, also of one that the prompt leaves out."""
        own = self.sections.get(section) or self.sections.get(_WHERE_CLOSED.get(section, ""))
        return own or _OPTIONAL.get(section, "")

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

    def opening(self, question: str, *, reader: bool = False) -> list[dict[str, str]]:
        """The messages at the start of a transcript; `reader` is whether the agent has the tool
        `get_document`."""
        text = self.sections["question"]
        if reader:
            text = self.sections.get(_WITH_READER, text)
        question_message = user(text.replace(_QUESTION, question))
        instructions = self.sections["system"]
        return [system(instructions), question_message] if instructions else [question_message]


def read_prompt(name: str, folder: Path) -> tuple[Path, dict[str, str]]:
    """The path of a prompt and its sections by name.

    `name` is that of a prompt in `folder`, or the path of a file that ends in `.txt`. `InputError`
    with the prompts in `folder` if the file cannot be read.
    """
    path = Path(name) if name.endswith(".txt") else folder / f"{name}.txt"
    try:
        parts = _HEADING.split(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        known = ", ".join(sorted(other.stem for other in folder.glob("*.txt")))
        raise InputError(
            f"there is no prompt {path.stem!r}", valid=f"{known}, or the path of a .txt file"
        ) from error
    return path, {head: body.strip() for head, body in zip(parts[1::2], parts[2::2], strict=True)}


def load_prompt(name: str) -> AgentPrompt:
    """The prompt of this name in the package, or of a file (a path that ends in `.txt`).
    `InputError` if there is none, or if a section is missing."""
    path, sections = read_prompt(name, FOLDER)
    complete = set(SECTIONS) <= set(sections) <= _KNOWN
    asking = [sections.get(name, _QUESTION) for name in ("question", _WITH_READER)]
    if not complete or not all(_QUESTION in text for text in asking):
        raise InputError(
            f"the prompt {path} has the sections {', '.join(sections) or 'none'}",
            valid=f"=== name === lines for each of {', '.join(SECTIONS)}, if need be for "
            f"{', '.join(sorted(_KNOWN - set(SECTIONS)))}, and {_QUESTION} in the section question",
        )
    return AgentPrompt(path.stem, sections)
