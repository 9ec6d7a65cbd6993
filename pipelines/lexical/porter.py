"""Porter's stemmer as in his own Java version, which Lucene's `PorterStemFilter` carries.

M. F. Porter, "An algorithm for suffix stripping", Program 14(3), 1980, with the departures that
the author published later: `bli` for `abli`, and the ending `logi`. Words of one or two letters
stay. Anything but a, e, i, o, u and some y is a consonant, digits and other scripts included.
"""

from __future__ import annotations

import re

_STEP2 = {
    "a": (("ational", "ate"), ("tional", "tion")),
    "c": (("enci", "ence"), ("anci", "ance")),
    "e": (("izer", "ize"),),
    "l": (("bli", "ble"), ("alli", "al"), ("entli", "ent"), ("eli", "e"), ("ousli", "ous")),
    "o": (("ization", "ize"), ("ation", "ate"), ("ator", "ate")),
    "s": (("alism", "al"), ("iveness", "ive"), ("fulness", "ful"), ("ousness", "ous")),
    "t": (("aliti", "al"), ("iviti", "ive"), ("biliti", "ble")),
    "g": (("logi", "log"),),
}
_STEP3 = {
    "e": (("icate", "ic"), ("ative", ""), ("alize", "al")),
    "i": (("iciti", "ic"),),
    "l": (("ical", "ic"), ("ful", "")),
    "s": (("ness", ""),),
}
_STEP4 = {
    "a": ("al",),
    "c": ("ance", "ence"),
    "e": ("er",),
    "i": ("ic",),
    "l": ("able", "ible"),
    "n": ("ant", "ement", "ment", "ent"),
    "o": ("sion", "tion", "ou"),
    "s": ("ism",),
    "t": ("ate", "iti"),
    "u": ("ous",),
    "v": ("ive",),
    "z": ("ize",),
}
_ASTRAL = re.compile("[\U00010000-\U0010ffff]")


def stem(word: str) -> str:
    """The stem of a lower-case word. Lengths count UTF-16 units, as Java's do."""
    if not word.isascii() and _ASTRAL.search(word):
        units = word.encode("utf-16", "surrogatepass")
        pairs = "".join(map(chr, memoryview(units)[2:].cast("H")))
        return _stem(pairs).encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    return _stem(word)


def _stem(word: str) -> str:
    # A step is called only where the word has a letter of its endings: most words skip most steps.
    if len(word) <= 2:
        return word
    if word[-1] == "s":
        word = _plural(word)
    if word[-1] in "dg":
        word = _past_and_gerund(word)
    if word[-1] == "y" and "v" in _shape(word[:-1]):
        word = word[:-1] + "i"
    if endings := _STEP2.get(word[-2:-1]):
        word = _replace(word, endings)
    if endings := _STEP3.get(word[-1]):
        word = _replace(word, endings)
    if word[-2:-1] in _STEP4:
        word = _strip(word)
    return _final(word) if word[-1] in "el" else word


def _shape(text: str) -> str:
    """`c` for each consonant and `v` for each vowel; y is a vowel after a consonant."""
    shape = ""
    for letter in text:
        if letter in "aeiou" or (letter == "y" and shape[-1:] == "c"):
            shape += "v"
        else:
            shape += "c"
    return shape


def _measure(text: str) -> int:
    return _shape(text).count("vc")


def _ends_short(text: str) -> bool:
    """Consonant, vowel, consonant that is not w, x or y: an `e` was dropped here (hop, not how)."""
    return len(text) > 2 and _shape(text)[-3:] == "cvc" and text[-1] not in "wxy"


def _ends_double(text: str) -> bool:
    return len(text) > 1 and text[-1] == text[-2] and _shape(text)[-1] == "c"


def _plural(word: str) -> str:
    if word.endswith(("sses", "ies")):
        return word[:-2]
    return word if word[-2] == "s" else word[:-1]


def _past_and_gerund(word: str) -> str:
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    head = ""
    if word.endswith("ed"):
        head = word[:-2]
    elif word.endswith("ing"):
        head = word[:-3]
    if "v" not in _shape(head):
        return word
    if head.endswith(("at", "bl", "iz")):
        return head + "e"
    if _ends_double(head):
        return head if head[-1] in "lsz" else head[:-1]
    return head + "e" if _measure(head) == 1 and _ends_short(head) else head


def _replace(word: str, endings: tuple[tuple[str, str], ...]) -> str:
    for ending, other in endings:
        if word.endswith(ending):
            head = word[: -len(ending)]
            return head + other if _measure(head) > 0 else word
    return word


def _strip(word: str) -> str:
    for ending in _STEP4[word[-2:-1]]:
        if word.endswith(ending):
            head = word[: -len(ending)] + (ending[0] if ending in ("sion", "tion") else "")
            return head if _measure(head) > 1 else word
    return word


def _final(word: str) -> str:
    if word[-1] == "e":
        head = word[:-1]
        measure = _measure(head)
        if measure > 1 or (measure == 1 and not _ends_short(head)):
            word = head
    if word[-1] == "l" and _ends_double(word) and _measure(word) > 1:
        word = word[:-1]
    return word
