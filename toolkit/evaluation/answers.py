"""Judging a short answer against the accepted ones by rule, without a model.

The rule does not recognise an answer that negates the accepted one, paraphrases it, or lists
several candidates. Each verdict therefore also has `exact` and `f1`.
"""

from __future__ import annotations

import re
import unicodedata
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

from soundingline.toolkit.files import fingerprint
from soundingline.toolkit.tokens import without_format_characters
from soundingline.toolkit.trajectory import Answer

_VERSION = 2  # is raised with each change of a rule, so that older verdicts are recognised
_ARTICLES = {"a", "an", "the"}
# Normal forms sort each run of combining marks in quadratic time. The stream-safe format of UAX #15
# therefore inserts a joiner after so many marks, which starts a new run.
_LONGEST_RUN = 30
_JOINER = "\u034f"
# No character below U+0300 combines with one before it.
_MAYBE_COMBINING = re.compile(f"[\u0300-\U0010ffff]{{{_LONGEST_RUN + 1}}}")
# A sign belongs to a number only after a space or a bracket: `1990-1995` is a range of two.
_NUMBER = re.compile(
    r"(?<![\w.,])(?:(?<!\S)[-+−]|(?<=[(\[])[-+−])?"
    r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?(?!\w|[.,][0-9])"
)


class Verdict(NamedTuple):
    """A judge's verdict on an answer, to compare with verdicts of the same judge and `settings`.

    Example:
        >>> verdict = ExactAnswerJudge().verdict("q1", Answer(exact="In 1820."), ["1820"])
        >>> (verdict.correct, verdict.exact, verdict.contained)
        (True, False, True)
    """

    qid: str
    correct: bool
    exact: bool  # whether the answer equals an accepted one after normalisation
    contained: bool  # whether it contains an accepted one
    f1: float  # of its tokens, with the accepted answer that fits best
    answer: str
    accepted: str  # the accepted answer that fits best
    judge: str
    settings: str
    error: str = ""  # why the judge gave no verdict; the answer then counts as wrong


class Judge(ABC):
    """Decides whether an answer is correct. `fingerprint` is a hash of the judge's settings, and
    `label` what a report calls the judge.

    Example:
        >>> ExactAnswerJudge().label  # a judge by rule
        'the exact rule'
    """

    name: str
    label: str = ""
    fingerprint: str

    @abstractmethod
    def verdict(self, qid: str, answer: Answer, accepted: Sequence[str]) -> Verdict:
        """The verdict on an answer, against the accepted answers."""


class ExactAnswerJudge(Judge):
    """Judges the `Exact Answer` field by rule: it counts if it contains an accepted answer as whole
    tokens in their order.

    `yes` and `no` must be the whole answer. An accepted answer that is one number is contained only
    in an answer without another number (`10` is not contained in `10 May 1990`).

    Example:
        >>> ExactAnswerJudge().verdict("q1", Answer(exact="It was Ada."), ["Ada"]).correct
        True
    """

    name = "exact_answer"
    label = "the exact rule"

    fingerprint = fingerprint(name, _VERSION, "contained")

    def verdict(self, qid: str, answer: Answer, accepted: Sequence[str]) -> Verdict:
        """The verdict against the accepted answer that fits best; `ValueError` without any."""
        if not accepted:
            raise ValueError(f"question {qid!r} has no accepted answer to judge by")
        tokens = answer_tokens(answer.exact)
        fits = [(*_fit(tokens, answer_tokens(text)), text) for text in accepted]
        exact, contained, f1, best = max(fits, key=lambda fit: fit[:3])
        return Verdict(
            qid, contained, exact, contained, f1, answer.exact, best, self.name, self.fingerprint
        )


def answer_tokens(text: str) -> list[str]:
    """The tokens of an answer, normalised as by SQuAD's evaluation (Rajpurkar et al., 2016): lower
    case, no punctuation, no articles; these stay where nothing else is there.

    Three things differ from SQuAD's script, which is limited to ASCII. Text is first converted to
    Unicode's form NFKC (UAX #15) without format characters (category Cf), so that full-width
    letters, zero-width spaces, soft hyphens and direction marks do not make a correct answer wrong.
    Punctuation is every character of the categories P and S. Numbers compare as numbers, with one
    spelling (`1,000` and `1000.0` are `1000`); SQuAD's `3.14` also equals `314`.

    Example:
        >>> answer_tokens("The 1,000.0 ships!")
        ['1000', 'ships']
    """
    return _answer_tokens(_normal(text))


def holds_answer(text: str, accepted: Sequence[str]) -> bool:
    """Whether a text contains an accepted answer, both normalised as for `contained`. `yes` and
    `no` are never found, because they say nothing in a longer text."""
    return bool(found_in(text, findable(accepted)))


def findable(accepted: Sequence[str]) -> list[str]:
    """The accepted answers that `found_in` can search for: neither empty nor `yes` or `no`."""
    every = map(answer_tokens, accepted)
    return [_phrase(tokens) for tokens in every if tokens and not _is_polar(tokens)]


def found_in(text: str, phrases: Iterable[str]) -> set[str]:
    """Those of the phrases (see `findable`) whose tokens the text contains, in their order."""
    normal = _normal(text)
    # It contains each token of the text, of numbers the digits. Most texts have few of the phrases,
    # which this tells without splitting them.
    flat = normal.translate(_PUNCTUATION)
    possible = [
        phrase
        for phrase in phrases
        if all(token.translate(_PUNCTUATION) in flat for token in phrase.split())
    ]
    if not possible:
        return set()
    content = _phrase(_answer_tokens(normal))
    return {phrase for phrase in possible if phrase in content}


def needs_sentence(phrase: str) -> bool:
    """Whether a phrase (see `findable`) says too little to be recognised in a text without the
    sentence around it: it is numbers alone, or has fewer than three characters."""
    tokens = phrase.split()
    return all(map(_is_number, tokens)) or len("".join(tokens)) < 3


def polar_answer(accepted: Sequence[str]) -> str:
    """`yes` or `no` if that is what each accepted answer says; else an empty string."""
    answers = {" ".join(answer_tokens(text)) for text in accepted}
    return answers.pop() if answers in ({"yes"}, {"no"}) else ""


def _phrase(tokens: Sequence[str]) -> str:
    """The tokens with spaces around each: one phrase contains another if its tokens do."""
    return f" {' '.join(tokens)} "


def _normal(text: str) -> str:
    visible = _stream_safe(without_format_characters(text))
    return unicodedata.normalize("NFKC", visible).lower()


def _answer_tokens(normal: str) -> list[str]:
    tokens: list[str] = []
    end = 0
    for match in _NUMBER.finditer(normal):
        tokens += normal[end : match.start()].translate(_PUNCTUATION).split()
        tokens.append(_number(match[0]))
        end = match.end()
    tokens += normal[end:].translate(_PUNCTUATION).split()
    return [token for token in tokens if token not in _ARTICLES] or tokens or normal.split()


def token_f1(tokens: Sequence[str], accepted: Sequence[str]) -> float:
    """SQuAD's F1 of two bags of tokens: 0 if one is empty; for `yes` and `no` only 0 or 1, as in
    HotpotQA's evaluation (Yang et al., 2018)."""
    if _is_polar(accepted) or _is_polar(tokens):
        return float(list(tokens) == list(accepted))
    shared = sum((Counter(tokens) & Counter(accepted)).values())
    return 2 * shared / (len(tokens) + len(accepted)) if shared else 0.0


def _stream_safe(text: str) -> str:
    """`text` in UAX #15's stream-safe format."""
    if not _MAYBE_COMBINING.search(text):
        return text
    pieces = []
    for combining, characters in groupby(text, _is_combining):
        run = "".join(characters)
        parts = [run[at : at + _LONGEST_RUN] for at in range(0, len(run), _LONGEST_RUN)]
        pieces.append(_JOINER.join(parts) if combining else run)
    return "".join(pieces)


@lru_cache(maxsize=4096)
def _is_combining(character: str) -> bool:
    return unicodedata.combining(unicodedata.normalize("NFKD", character)[0]) > 0


def _fit(tokens: list[str], accepted: list[str]) -> tuple[bool, bool, float]:
    exact = bool(tokens) and tokens == accepted
    if not accepted or _is_polar(accepted):
        contained = False
    elif len(accepted) == 1 and _is_number(accepted[0]):
        contained = set(filter(_is_number, tokens)) == set(accepted)
    else:
        contained = _phrase(accepted) in _phrase(tokens)
    return exact, exact or contained, token_f1(tokens, accepted)


class _Punctuation(dict[int, int | None]):
    """A table for `str.translate` that removes punctuation (categories P and S)."""

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
