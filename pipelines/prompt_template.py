"""Prompts of stages: text files with places for the query and whatever else a model is told."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from soundingline.toolkit.errors import InputError

PROMPTS = Path(__file__).resolve().parent / "prompts"
_PLACE = re.compile(r"\{(\w+)\}")


class PromptTemplate:
    """A text with `{query}` and other placeholders, each of `places` at least once and no others.

    Args:
        path: A prompt file; None selects `default`.
        default: A file of the package, relative to `pipelines/prompts`.
        places: The names of the placeholders.

    Raises:
        InputError: For a file that cannot be read, and for other placeholders.
    """

    def __init__(self, path: str | None, default: str, places: tuple[str, ...]) -> None:
        file = Path(path) if path else PROMPTS / default
        try:
            self.text = file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(
                f"cannot read the prompt {file}: {error}",
                valid="a text file, or null for our own prompt",
            ) from error
        present = set(_PLACE.findall(self.text))
        if present != set(places):
            raise InputError(
                f"the prompt {file} has the places "
                f"{', '.join(f'{{{name}}}' for name in sorted(present)) or 'none'}",
                valid=" and ".join(f"{{{name}}}" for name in places),
                do="write each of them once, and no other word in braces",
            )

    def filled(self, parts: Mapping[str, str]) -> str:
        """The text with its places filled. What is put in may hold anything, also the marks of
        places, so all are filled in one pass."""
        return _PLACE.sub(lambda match: parts[match[1]], self.text)


def last_words(text: str, limit: int) -> str:
    """The last `limit` words of a text, with `...` where it was longer: what an agent concludes
    from stands at the end of its thoughts."""
    starts = [match.start() for match in re.finditer(r"\S+", text)]
    if len(starts) <= limit:
        return text.strip()
    return f"... {text[starts[-limit] :].strip()}"
