"""Reading a verdict off the tokens of a reasoning re-ranker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipelines.rerank.answer_tokens import SPACES, Relevance, share, word
from toolkit.llm.protocol import Token

CLOSE = "</think>"
_SIDES = ("true", "false")
# Tokens that `</think>` and the white space after it may take.
_CLOSING_TOKENS = 8


def closing_token(tokens: Sequence[Token], behind: str = CLOSE) -> Token | None:
    """The last token that says true or false right behind `</think>`, or whatever the text `behind`
    is; None where there is none."""
    for position in range(len(tokens) - 1, -1, -1):
        before = tokens[max(0, position - _CLOSING_TOKENS) : position]
        if word(tokens[position].text) in _SIDES and _ends(before, behind):
            return tokens[position]
    return None


def verdict(top: Mapping[str, float]) -> Relevance | None:
    """The share of true in true and false, from the likeliest tokens at the verdict's place and
    their log-probabilities; None where neither is among them (see `share`)."""
    return share(top, *_SIDES)


def _ends(tokens: Sequence[Token], closing: str) -> bool:
    return "".join(token.text for token in tokens).rstrip(SPACES).endswith(closing)
