"""Pseudo-relevance feedback: terms worth asking for, learnt from the sentences that were read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from agents.candidates import candidates
from agents.sentences import Sentence
from agents.words import is_content, stem, words


def feedback_terms(
    sentences: Sequence[Sentence],
    known: Collection[str],
    rarity: Callable[[str], float],
    *,
    limit: int,
    best: int = 20,
) -> list[str]:
    """At most `limit` terms (names or single words) that the `best` sentences hold and that are
    not `known` (stems asked before), the most telling first.

    A term's weight is the squared coverage of its best sentence (not a sum, which favours what is
    common to many weak sentences) times its rarity; a name is as rare as its rarest word, and takes
    the place of the words in it.
    """
    if limit < 1:
        return []
    scores: dict[str, float] = {}
    as_written: dict[str, str] = {}
    for sentence in sorted(sentences, key=lambda s: -s.score)[:best]:
        for term in _terms(sentence.text):
            key = " ".join(stem(word) for word in words(term))
            as_written.setdefault(key, term)
            score = sentence.score**2 * max(map(rarity, words(term)))
            scores[key] = max(scores.get(key, 0.0), score)
    chosen: list[str] = []
    known_stems = set(known)
    for key in sorted(scores, key=lambda key: (-scores[key], key)):
        if scores[key] > 0 and not known_stems.issuperset(key.split()):
            chosen.append(as_written[key])
            known_stems.update(key.split())
        if len(chosen) == limit:
            break
    return chosen


def _terms(text: str) -> set[str]:
    """Names, and content words outside them."""
    names = {name.text for name in candidates("name", text)}
    inside = {word for name in names for word in words(name)}
    return names | {word for word in words(text) if is_content(word) and word not in inside}
