"""The vocabulary of the filler: common English words at its head, invented ones in its long tail.

A word is a number: the lower, the commoner. Invented words are stem and ending, both
English-looking and scattered, so that neighbours in rank do not look alike.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from toolkit.benchmarks.fictional.data import word_lists
from toolkit.benchmarks.fictional.schema import LEXICONS

SCATTER = 14_369  # prime to the number of stems, and far from its divisors' multiples


class Vocabulary(NamedTuple):
    """All words in one list: each category's block starts where `starts` says."""

    words: list[str]
    starts: tuple[int, int, int]
    sizes: tuple[int, int, int]


@lru_cache(maxsize=1)
def vocabulary() -> Vocabulary:
    """Nouns, adjectives, verbs (in that order), each from common to rare. Built once a process."""
    lists = word_lists()
    stems = [
        onset + vowel + coda
        for onset in lists["stem_onsets"]
        for vowel in lists["stem_vowels"]
        for coda in lists["stem_codas"]
    ]
    common_nouns = _unique(lists["nouns"], _words_of_facts())
    nouns = common_nouns + _invented(stems, lists["noun_endings"], 1 << 19)
    adjectives = _unique(lists["adjectives"]) + _invented(
        stems, lists["adjective_endings"], 1 << 17
    )
    verbs = _unique(lists["verbs"]) + _invented(stems, lists["verb_endings"], 1 << 15)
    return Vocabulary(
        words=nouns + adjectives + [_past(verb) for verb in verbs],
        starts=(0, len(nouns), len(nouns) + len(adjectives)),
        sizes=(len(nouns), len(adjectives), len(verbs)),
    )


def _unique(*groups: list[str]) -> list[str]:
    return list(dict.fromkeys(word for group in groups for word in group))


def _words_of_facts() -> list[str]:
    """Words of the facts' values, then of their paraphrases: pages use them for other things too,
    so that none of them points to one page by itself."""
    lexicons = [LEXICONS[name] for name in sorted(LEXICONS)]
    values = [value for lexicon in lexicons for value in lexicon]
    paraphrases = [paraphrase for lexicon in lexicons for paraphrase in lexicon.values()]
    return [word for text in values + paraphrases for word in text.split() if len(word) > 3]


def _invented(stems: list[str], endings: list[str], most: int) -> list[str]:
    """Up to `most` invented words, in a scattered order. In each turn every stem gets one ending,
    and another one in the next."""
    words: list[str] = []
    for turn in range(min(len(endings), most // len(stems) + 1)):
        for position in range(len(stems)):
            number = (position * SCATTER + turn * 4001) % len(stems)
            words.append(stems[number] + endings[(number + turn) % len(endings)])
    return words[:most]


def _past(verb: str) -> str:
    if verb.endswith("e"):
        return verb + "d"
    if verb.endswith("y") and verb[-2] not in "aeiou":
        return verb[:-1] + "ied"
    return verb + "ed"
