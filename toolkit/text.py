"""Counting and cutting text by tokens, the same way everywhere (segmentation, budgets, exposure).

A token is a run of word characters or one other visible character, which is close to what spaCy's
English tokenizer counts; it needs no model. Not the index's analyzer: see `pipelines.lexical`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_TOKEN = re.compile(r"\w+|[^\w\s]")


def token_spans(text: str) -> Iterator[tuple[int, int]]:
    """Half-open character spans of the tokens of `text`, in order."""
    return (match.span() for match in _TOKEN.finditer(text))


def count_tokens(text: str) -> int:
    """Number of tokens of `text`."""
    return len(_TOKEN.findall(text))


def head(text: str, limit: int) -> str:
    """The shortest prefix of `text` with its first `limit` tokens; all of it if it has fewer."""
    if limit <= 0:
        return ""
    for index, (_, end) in enumerate(token_spans(text), start=1):
        if index == limit:
            return text[:end]
    return text
