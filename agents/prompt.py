"""Prompts: files of their own, in sections, whose hash belongs into a run's manifest."""

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
# What a prompt may say in its own words, and what is said where it does not.
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
# What may have words of its own where no tool can be called, and the section whose words stand
# there otherwise. Those of `reminder` are not ours: its format is the prompt's own.
_WHERE_CLOSED = {
    "reminder_closed": "reminder",
    "empty_closed": "blocked",
    "truncated_closed": "blocked",
}
_KNOWN = {*SECTIONS, *_OPTIONAL, *_WHERE_CLOSED}


@dataclass(frozen=True)
class AgentPrompt:
    """What an agent tells its model: `sections` by name.

    `system` opens the transcript (left out where empty) and `question` follows, with `{question}`
    in the place of the question. `steer` is said when time is nearly gone; `blocked` answers tool
    calls from then on; `final` asks for the answer when another budget is used up; `empty` and
    `truncated` answer replies without content and replies that the output limit cut
    (`empty_closed` and `truncated_closed` once tools are closed; without them `blocked`). Where the
    agent is set so, `reminder` asks once for the answer's format (`reminder_closed` where no tool
    can be called; without it a prompt's own `reminder`), and `first_call` for a search before the
    first answer, where `{call}` stands for that call and `{argument}` for its argument that takes
    the query; a prompt without these two has our words.
    """

    name: str
    sections: Mapping[str, str]

    @property
    def fingerprint(self) -> str:
        """A hash of every word of it."""
        return fingerprint(dict(self.sections))

    def words(self, section: str) -> str:
        """What a section says."""
        own = self.sections.get(section) or self.sections.get(_WHERE_CLOSED.get(section, ""))
        return own or _OPTIONAL.get(section, "")

    @property
    def placeholders(self) -> frozenset[str]:
        """What stands in the place of the answer wherever the prompt tells the format, which small
        models repeat."""
        texts = (*self.sections.values(), *_OPTIONAL.values())
        parts = {*map(exact_part, texts), *(list_part(text) or "" for text in texts)}
        return frozenset(parts - {""})

    @property
    def asks_for_list(self) -> bool:
        """Whether the format that the prompt asks for ends in a list of documents."""
        return any(list_part(text) is not None for text in self.sections.values())

    def opening(self, question: str) -> list[dict[str, str]]:
        """The messages that begin a transcript."""
        question_message = user(self.sections["question"].replace(_QUESTION, question))
        instructions = self.sections["system"]
        return [system(instructions), question_message] if instructions else [question_message]


def read_sections(path: Path, ours: Path) -> dict[str, str]:
    """The texts of a prompt file by the names in its headings. `InputError`, which names the
    prompts in the folder `ours`, where it cannot be read."""
    try:
        parts = _HEADING.split(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        known = ", ".join(sorted(other.stem for other in ours.glob("*.txt")))
        raise InputError(
            f"there is no prompt {path.stem!r}", valid=f"{known}, or the path of a .txt file"
        ) from error
    return {head: body.strip() for head, body in zip(parts[1::2], parts[2::2], strict=True)}


def load_prompt(name: str) -> AgentPrompt:
    """The prompt of this name that comes with the package, or that of the user's own file (a path
    that ends in `.txt`). `InputError` where there is none, or where a section is missing."""
    path = Path(name) if name.endswith(".txt") else FOLDER / f"{name}.txt"
    sections = read_sections(path, FOLDER)
    complete = set(SECTIONS) <= set(sections) <= _KNOWN
    if not complete or _QUESTION not in sections["question"]:
        raise InputError(
            f"the prompt {path} has the sections {', '.join(sections) or 'none'}",
            valid=f"=== name === lines for each of {', '.join(SECTIONS)}, if need be for "
            f"{', '.join(sorted(_KNOWN - set(SECTIONS)))}, and {_QUESTION} in the section question",
        )
    return AgentPrompt(path.stem, sections)
