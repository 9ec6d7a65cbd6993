"""The vote: sentences of what was read vote for the candidates in them."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from soundingline.agents.keyword.answer_types import AnswerType, Candidate, candidates
from soundingline.agents.keyword.evidence import Sentence
from soundingline.agents.keyword.words import is_content, stem, words

_NEGATION = re.compile(r"\b(?:not|never|no longer|neither|without|none)\b|n't\b", re.IGNORECASE)
_TOPIC = 0.3  # of a clue word that the document's title holds: it is near everything there
_CLOSE = 40  # characters at which a clue word's pull on a candidate has halved


class Vote(NamedTuple):
    """A candidate after the vote: its text, its share of all votes (0 to 1), the documents that
    voted for it (strongest first), the sentence that spoke loudest for it and the share of the
    question that this sentence covers (0 to 1)."""

    text: str
    share: float
    docids: tuple[str, ...]
    sentence: str
    coverage: float


class _Ballot:
    """The votes for one answer. A document's voice is its strongest sentence plus a tenth of the
    others, so that a word repeated all over one document does not win by repetition."""

    def __init__(self) -> None:
        self.strongest: dict[str, float] = {}
        self.others: dict[str, float] = {}
        self.text, self.sentence, self.coverage, self._loudest = "", "", 0.0, 0.0

    def add(self, text: str, sentence: Sentence, weight: float) -> None:
        docid = sentence.docid
        low, high = sorted((weight, self.strongest.get(docid, 0.0)))
        self.strongest[docid] = high
        self.others[docid] = self.others.get(docid, 0.0) + low
        if weight > self._loudest:
            self.text, self._loudest = text, weight
            self.sentence, self.coverage = sentence.text, sentence.score

    @property
    def total(self) -> float:
        return sum(self.strongest.values()) + 0.1 * sum(self.others.values())

    def vote(self, of: float) -> Vote:
        docids = tuple(sorted(self.strongest, key=lambda docid: -self.strongest[docid]))
        return Vote(self.text, self.total / of, docids, self.sentence, self.coverage)


def count_votes(
    answer_type: AnswerType,
    sentences: Sequence[Sentence],
    weights: Mapping[str, float],
    trust: Mapping[str, float],
    *,
    limit: int = 10,
) -> list[Vote]:
    """At most `limit` answers, best first, their shares taken among these alone.

    A sentence's voice is its squared coverage, times its document's `trust` (0 to 1, from ranks),
    times the closeness of its clue words (`weights`) to the candidate. Words of the question
    itself are no answer, save the alternatives that it offers.
    """
    if answer_type.kind == "yes_no":
        return _polar(sentences, trust)
    ballots: dict[str, _Ballot] = {}
    for sentence in sentences:
        voice = sentence.score**2 * trust.get(sentence.docid, 0.0)
        positions = _places(sentence)
        for candidate in _candidates(answer_type, sentence, weights):
            key = " ".join(stem(word) for word in words(candidate.text) if is_content(word))
            pull = candidate.weight * _closeness(candidate, sentence, positions, weights)
            if key and voice * pull > 0:
                ballots.setdefault(key, _Ballot()).add(candidate.text, sentence, voice * pull)
    return _ranked(ballots, limit)


def _ranked(ballots: Mapping[str, _Ballot], limit: int) -> list[Vote]:
    best = sorted(ballots.values(), key=lambda ballot: -ballot.total)[:limit]
    of = sum(ballot.total for ballot in best)
    return [ballot.vote(of) for ballot in best]


def _candidates(
    answer_type: AnswerType, sentence: Sentence, weights: Mapping[str, float]
) -> list[Candidate]:
    if answer_type.kind == "choice":
        return _offered(answer_type.options, sentence.text)
    matching = []
    for candidate in candidates(answer_type.kind, sentence.text):
        stems = {stem(word) for word in words(candidate.text) if is_content(word)}
        if stems and not stems <= weights.keys() | answer_type.focus:
            bonus = 2.0 if stems & answer_type.focus else 1.0
            matching.append(candidate._replace(weight=candidate.weight * bonus))
    return matching


def _offered(options: Sequence[str], text: str) -> list[Candidate]:
    low = text.lower()
    positions = ((option, low.find(option.lower())) for option in options)
    return [Candidate(option, start) for option, start in positions if start >= 0]


def _places(sentence: Sentence) -> dict[str, list[int]]:
    """Clue stem -> its positions in the sentence, ascending."""
    positions: dict[str, list[int]] = {}
    for clue, position in sentence.matches:
        positions.setdefault(clue, []).append(position)
    return positions


def _closeness(
    candidate: Candidate,
    sentence: Sentence,
    clue_positions: Mapping[str, Sequence[int]],
    weights: Mapping[str, float],
) -> float:
    """Weighted mean of 1 / (1 + distance / 40 characters) over the clue words outside the candidate
    (a mean, because how many there are is in the sentence's coverage already). Of each clue word
    the nearest occurrence counts."""
    start, end = candidate.start, candidate.start + len(candidate.text)
    nearest: dict[str, float] = {}
    for clue, positions in clue_positions.items():
        before, after = bisect_left(positions, start), bisect_left(positions, end)
        distances = [start - position for position in positions[max(0, before - 1) : before]]
        distances += [position - end for position in positions[after : after + 1]]
        if distances:
            nearest[clue] = 1 / (1 + min(distances) / _CLOSE)
    pull = {f: weights[f] * (_TOPIC if f in sentence.topic else 1.0) for f in nearest}
    return sum(pull[f] * near for f, near in nearest.items()) / sum(pull.values()) if pull else 0.0


def _polar(sentences: Sequence[Sentence], trust: Mapping[str, float]) -> list[Vote]:
    """Yes or no: sentences that cover the question vote yes, or no where they hold a negation;
    what no sentence covers is silence, and silence votes no."""
    ballots = {"yes": _Ballot(), "no": _Ballot()}
    for sentence in sorted(sentences, key=lambda s: -s.score * trust.get(s.docid, 0.0))[:3]:
        says = "no" if _NEGATION.search(sentence.text) else "yes"
        voice = sentence.score * trust.get(sentence.docid, 0.0)
        ballots[says].add(says.capitalize(), sentence, voice**2)
    with_votes = {says: ballot for says, ballot in ballots.items() if ballot.total > 0}
    return _ranked(with_votes, 2)
