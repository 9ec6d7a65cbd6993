"""Judging a short answer against the accepted ones, by rule and without a model.

Normalisation follows SQuAD's evaluation (Rajpurkar et al., 2016): lower case, no punctuation, no
articles, single spaces. It departs from SQuAD's script, which knows ASCII alone, in three ways.

- Text is first put into Unicode's form NFKC (UAX #15) without format characters (category Cf), so
  that full-width letters, zero-width spaces, byte-order marks, soft hyphens and direction marks
  make no right answer wrong.
- Punctuation is every character of the categories P and S.
- Numbers compare as numbers. SQuAD deletes the comma and the point alike, which makes `1,000` equal
  `1000` but also `3.14` equal `314`.

Given and accepted answers are normalised alike. `accuracy`, `answer_f1`, `calibration_error` and
the published forms of these measures all rest on the same verdicts; a language model as the judge
sees the response as it was written (`judge_llm`).

What the rule cannot see: an answer that negates the accepted one, paraphrases it, or lists several
candidates. `exact` and `f1` stand beside every verdict so that a reader can tell.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol

from toolkit.contracts import Answer
from toolkit.errors import InputError
from toolkit.files import fingerprint
from toolkit.text import without_format_characters

RULES = ("exact", "contained")
_VERSION = 2  # raised when normalisation or a rule changes, so that older verdicts are recognised
_ARTICLES = {"a", "an", "the"}
# Normal forms sort each run of combining marks, which takes quadratic time. UAX #15 therefore has a
# stream-safe format: behind so many marks stands a joiner that starts a new run.
_LONGEST_RUN = 30
_JOINER = "\u034f"
# No character below U+0300 combines with one before it.
_MAYBE_COMBINING = re.compile(f"[\u0300-\U0010ffff]{{{_LONGEST_RUN + 1}}}")
# A sign belongs to a number only after a space or a bracket: `1990-1995` is a range of two.
_NUMBER = re.compile(
    r"(?<![\w.,])(?:(?<!\S)[-+−]|(?<=[(\[])[-+−])?"
    r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?(?!\w|[.,][0-9])"
)


class AnswerVerdict(NamedTuple):
    """A judge's word on one answer. `accepted` is the accepted answer that fits best; `judge` and
    `settings` name the judge and the hash of its settings, without which accuracies of two runs
    cannot be compared. `error` is not empty where the judge gave no verdict: wrong, and counted."""

    qid: str
    correct: bool
    exact: bool
    contained: bool
    f1: float
    answer: str
    accepted: str
    judge: str
    settings: str
    error: str = ""


class Judge(Protocol):
    """Decides whether an answer is right."""

    name: str

    @property
    def fingerprint(self) -> str: ...

    def verdict(self, qid: str, answer: Answer, accepted: Sequence[str]) -> AnswerVerdict: ...


class ExactAnswerJudge:
    """Right by rule, over the `Exact Answer` field alone.

    `rule`: `contained` (default) takes an accepted answer that stands in the given one as whole
    tokens in sequence, `exact` only equality after normalisation. Always: `yes` and `no` must be
    the whole answer, and an accepted answer that is one number is contained only where no other
    number stands beside it (`10` is not in `10 May 1990`).
    """

    name = "exact_answer"

    def __init__(self, rule: str = "contained") -> None:
        if rule not in RULES:
            raise InputError(f"the judge's rule is {rule!r}", valid=", ".join(RULES))
        self.rule = rule

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.name, _VERSION, self.rule)

    def verdict(self, qid: str, answer: Answer, accepted: Sequence[str]) -> AnswerVerdict:
        """The verdict against the accepted answer that fits best. `ValueError` without any."""
        if not accepted:
            raise ValueError(f"question {qid!r} has no accepted answer to judge by")
        tokens = answer_tokens(answer.exact)
        fits = [(*_fit(tokens, answer_tokens(text)), text) for text in accepted]
        exact, contained, f1, best = max(fits, key=lambda fit: fit[:3])
        correct = exact or (contained and self.rule == "contained")
        return AnswerVerdict(
            qid, correct, exact, contained, f1, answer.exact, best, self.name, self.fingerprint
        )


def answer_tokens(text: str) -> list[str]:
    """Normalised tokens of an answer; see the module. Numbers are written in one way (`1,000` and
    `1000.0` are `1000`); articles go, and punctuation too, unless nothing else is there."""
    visible = _stream_safe(without_format_characters(text))
    plain = unicodedata.normalize("NFKC", visible).lower()
    tokens = list(_tokens(plain))
    return [token for token in tokens if token not in _ARTICLES] or tokens or plain.split()


def holds_answer(text: str, accepted: Sequence[str]) -> bool:
    """Whether an accepted answer stands in a text, both normalised as for `contained`: whole tokens
    in their order. A `yes` or `no` stands in no text, because it would say nothing there."""
    phrases = findable(accepted)
    if not phrases:
        return False
    tokens = phrase_of(text)
    return any(phrase in tokens for phrase in phrases)


def findable(accepted: Sequence[str]) -> list[str]:
    """The accepted answers that can stand in a text, as `phrase_of` writes them: neither empty nor
    a `yes` or `no`."""
    return [phrase_of(text) for text in accepted if (t := answer_tokens(text)) and not _is_polar(t)]


def phrase_of(text: str) -> str:
    """The tokens of a text, each with a space on both sides, so that one phrase contains another
    exactly where its tokens do. Tokens hold no white space."""
    return f" {' '.join(answer_tokens(text))} "


def token_f1(tokens: Sequence[str], accepted: Sequence[str]) -> float:
    """SQuAD's F1 of two token bags; 0 where one is empty, and for `yes` and `no` 1 or 0 only, as
    in HotpotQA's evaluation (Yang et al., 2018)."""
    if _is_polar(accepted) or _is_polar(tokens):
        return float(list(tokens) == list(accepted))
    shared = sum((Counter(tokens) & Counter(accepted)).values())
    return 2 * shared / (len(tokens) + len(accepted)) if shared else 0.0


def _stream_safe(text: str) -> str:
    """`text` in UAX #15's stream-safe format."""
    if not _MAYBE_COMBINING.search(text):
        return text
    pieces: list[str] = []
    run = 0
    for character in text:
        run = run + 1 if _is_combining(character) else 0
        if run > _LONGEST_RUN:
            pieces.append(_JOINER)
            run = 1
        pieces.append(character)
    return "".join(pieces)


@lru_cache(maxsize=4096)
def _is_combining(character: str) -> bool:
    return unicodedata.combining(unicodedata.normalize("NFKD", character)[0]) > 0


def _fit(tokens: list[str], accepted: list[str]) -> tuple[bool, bool, float]:
    exact = bool(tokens) and tokens == accepted
    return exact, exact or _contains(tokens, accepted), token_f1(tokens, accepted)


def _contains(tokens: list[str], accepted: list[str]) -> bool:
    if not accepted or _is_polar(accepted):
        return False
    if len(accepted) == 1 and _is_number(accepted[0]):
        return set(filter(_is_number, tokens)) == set(accepted)
    width = len(accepted)
    return any(tokens[at : at + width] == accepted for at in range(len(tokens) - width + 1))


def _tokens(text: str) -> Iterator[str]:
    end = 0
    for match in _NUMBER.finditer(text):
        yield from _words(text[end : match.start()])
        yield _number(match[0])
        end = match.end()
    yield from _words(text[end:])


def _words(text: str) -> list[str]:
    return text.translate(_PUNCTUATION).split()


class _Punctuation(dict[int, int | None]):
    """For `str.translate`: leaves punctuation (categories P and S) out. Filled as it is asked."""

    def __missing__(self, code: int) -> int | None:
        self[code] = None if unicodedata.category(chr(code))[0] in "PS" else code
        return self[code]


_PUNCTUATION = _Punctuation()


def _number(text: str) -> str:
    integer, _, fraction = text.replace(",", "").lstrip("+-−").partition(".")
    fraction = fraction.rstrip("0")
    value = (integer.lstrip("0") or "0") + (f".{fraction}" if fraction else "")
    return f"-{value}" if text[0] in "-−" and value != "0" else value


def _is_number(token: str) -> bool:
    return token.lstrip("-").replace(".", "", 1).isdecimal()


def _is_polar(tokens: Sequence[str]) -> bool:
    return list(tokens) in (["yes"], ["no"])
