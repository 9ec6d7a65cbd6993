"""What the agent has seen of one question, and the answer that it supports.

Sentences are scored by how much of the question they cover, and documents are ranked by the queries
that returned them. The answer is that candidate of the expected type which most of this evidence
votes for. Types are names, places, numbers, measures, dates, years, reasons and phrases, yes/no,
and a choice among what the question offers. Spelling alone decides.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from itertools import dropwhile, islice, takewhile
from typing import NamedTuple

from soundingline.agents.keyword.clues import STOP_WORDS, WORD, crude_stem, is_content, words
from soundingline.toolkit.corpus.segmentation import rule_spans
from soundingline.toolkit.data import parent
from soundingline.toolkit.search.tool import Continuation

_DAMPING = 10  # of reciprocal rank fusion; small, since few queries are fused and the top matters
_FUSED_DEPTH = 50
_CONTEXT = 0.5  # share of the weight of a clue in the sentence before


class Sentence(NamedTuple):
    """A sentence with clue words. `score` is its coverage of the question (0 to 1), `matches` are
    the stems of its clue words with their character positions, and `topic` the stems of those in
    the title of its document."""

    docid: str
    text: str
    score: float
    matches: tuple[tuple[str, int], ...]
    topic: frozenset[str] = frozenset()


class Reader:
    """Finds sentences with clue words. One regular expression finds these words, so that a long
    document costs one scan, and only sentences with a clue word cost more.

    A clue (`weights` has the weight of each stem) in the title of a document counts in all its
    sentences, because articles call their topic `he` or `it`. One in the sentence before counts
    half.
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights
        self._total = sum(weights.values())
        stems = sorted((re.escape(s.removesuffix("y")) for s in weights), key=len, reverse=True)
        self._pattern = re.compile(rf"\b(?:{'|'.join(stems)})", re.IGNORECASE) if stems else None

    def sentences(self, docid: str, title: str, text: str) -> list[Sentence]:
        """The sentences of `text` with at least one clue word, in order."""
        if self._pattern is None or not self._total:
            return []
        topic = frozenset(clue for clue, _ in self._matches(title))
        before: set[str] = set()
        result = []
        for part in (text[start:end] for start, end in rule_spans(text)):
            matches = self._matches(part) if self._pattern.search(part) else ()
            clues = {clue for clue, _ in matches}
            if clues:
                score = self._coverage(clues | topic, before)
                result.append(Sentence(docid, part, score, matches, topic))
            before = clues
        return result

    def _matches(self, text: str) -> tuple[tuple[str, int], ...]:
        return tuple(
            (clue, match.start())
            for match in WORD.finditer(text)
            if (clue := crude_stem(match.group())) in self._weights
        )

    def _coverage(self, clues: Set[str], around: Set[str]) -> float:
        # Exact sums: the order of a set differs from process to process.
        inside = math.fsum(self._weights[clue] for clue in clues)
        outside = math.fsum(self._weights[clue] for clue in around - clues)
        return (inside + _CONTEXT * outside) / self._total


class ReadingPosition(NamedTuple):
    """Somewhere to read: a unit, or (`continuation`) where the reading of its document goes on."""

    unit_id: str
    continuation: Continuation | None = None


class SeenEvidence:
    """The documents of one question, ranked by reciprocal rank fusion over its queries and by what
    their texts showed."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._reader = Reader(weights)
        self._fused: dict[str, float] = {}
        self._units: dict[str, str] = {}
        self._best: dict[str, float] = {}
        self._shown: dict[str, dict[str, Sentence]] = {}
        self._opened: dict[str, dict[str, Sentence]] = {}
        self._following: dict[str, Continuation | None] = {}

    def rank(self, ranking: Sequence[str]) -> None:
        """Add a ranking of unit ids. A document counts once, at its best rank."""
        seen: set[str] = set()
        for rank, unit_id in enumerate(ranking[:_FUSED_DEPTH], start=1):
            docid = parent(unit_id)
            if docid not in seen:
                seen.add(docid)
                self._fused[docid] = self._fused.get(docid, 0.0) + 1 / (_DAMPING + rank)
                self._units.setdefault(docid, unit_id)

    def add(self, unit_id: str, title: str, text: str, *, opened: bool = False) -> None:
        """Add text of a unit: an excerpt from a page of results, which counts until the document
        itself is opened, or text of the document."""
        docid = parent(unit_id)
        noted = (self._opened if opened else self._shown).setdefault(docid, {})
        for sentence in self._reader.sentences(docid, title[:200], text):
            noted.setdefault(sentence.text, sentence)
            self._best[docid] = max(self._best.get(docid, 0.0), sentence.score)

    def visited(self, position: ReadingPosition, following: Continuation | None) -> None:
        """Note that a place was read. `following` opens what follows it in its document (None: no
        more)."""
        self._following[parent(position.unit_id)] = following

    def next_unread(self) -> ReadingPosition | None:
        """The most promising unread place; the rest of a read document counts half."""
        promises: dict[str, float] = {}
        for docid, score in self.trust().items():
            begun = docid in self._following
            if begun and self._following[docid] is None:
                continue
            promise = score * (0.5 + self._best.get(docid, 0.0))
            promises[docid] = promise * (0.5 if begun else 1.0)
        if not promises:
            return None
        best = max(promises, key=lambda docid: promises[docid])
        return ReadingPosition(self._units[best], self._following.get(best))

    def trust(self) -> dict[str, float]:
        """Docid -> fused rank score, 1 for the best, in the order of first appearance."""
        best = max(self._fused.values(), default=1.0)
        return {docid: score / best for docid, score in self._fused.items()}

    @property
    def sentences(self) -> list[Sentence]:
        """All sentences so far, each once per document."""
        noted = {**self._shown, **self._opened}
        return [sentence for of_document in noted.values() for sentence in of_document.values()]


class AnswerType(NamedTuple):
    """The kind: a `choice` among the `options` that the question offers, `yes_no`, or a key of
    `FINDERS`."""

    kind: str
    options: tuple[str, ...] = ()


_AUXILIARIES = (
    "is are was were am do does did has have had can could will would should may might must"
)
_QUESTION = re.compile(
    r"\b(?:(?P<year>(?:what|which)\s+(?:year|decade|century))"
    r"|(?P<date>when|(?:what|which)\s+(?:date|day|month))"
    r"|(?P<measure>how\s+(?:long|old|far|tall|high|heavy|deep|wide|large|big|fast|often|hot|cold))"
    r"|(?P<number>how\s+(?:many|much)|what\s+(?:number|percentage|population|fraction))"
    r"|(?P<place>where)"
    r"|(?P<name>who|whom|whose)"
    r"|(?P<reason>why)"
    r"|(?P<phrase>what|which|how|name|give))\b",
    re.IGNORECASE,
)
_POLAR = re.compile(rf"\s*(?:{_AUXILIARIES.replace(' ', '|')})(?:n't)?\b", re.IGNORECASE)
# From the beginning of a word only: from inside it, the rest of the match would be the same.
_OPTIONS = re.compile(
    r"(?<![\w'’\-])([\w'’\-]+)(?:,\s*([\w'’\-]+))?,?\s+or\s+(?:an?\s+|the\s+)?([\w'’\-]+)"
)
_NAMED_NOUNS = """
    actor actress album artist author band book capital character city club college company
    country county director district film game group island king lake language leader man
    mountain movie nation novel organization party people person place planet player president
    province queen religion river school sea show singer song state street team town university
    village woman writer
"""
_NAMED = frozenset(map(crude_stem, _NAMED_NOUNS.split()))


def answer_type(question: str) -> AnswerType:
    """The type of answer that a question expects, by its last sentence. Without any question word
    the type is `phrase`."""
    sentences = [part for part in re.split(r"(?<=[.?!])\s+", question.strip()) if part]
    questions = [part for part in sentences if part.endswith("?")] or sentences or [""]
    text = questions[-1]
    if _POLAR.match(text):
        choice = _OPTIONS.search(text)
        options = tuple(filter(None, choice.groups())) if choice else ()
        return AnswerType("choice" if options else "yes_no", options)
    match = _QUESTION.search(text)
    if match is None:
        return AnswerType("phrase")
    kind = match.lastgroup or "phrase"
    if kind == "phrase":
        # The first content words after the question word: `which county was` asks for a name.
        rest = dropwhile(lambda word: not is_content(word), words(text[match.end() :]))
        nouns = set(map(crude_stem, islice(takewhile(is_content, rest), 3)))
        kind = "name" if nouns & _NAMED else kind
    return AnswerType(kind)


_MONTH = (
    r"(?:January|February|March|April|May|June|July|August|September|October|November|December)"
)
_YEAR = r"(?:1\d{3}|20\d{2})(?:\s?(?:BC|AD|BCE|CE))?"
_DATE = re.compile(
    rf"\b(?:{_MONTH}\s+\d{{1,2}}(?:,?\s+{_YEAR})?|\d{{1,2}}\s+{_MONTH}(?:,?\s+{_YEAR})?"
    rf"|{_MONTH},?\s+{_YEAR}|{_YEAR}|\d{{1,3}}\s(?:BC|AD|BCE|CE))\b"
)
_YEARS = re.compile(rf"\b{_YEAR}\b|\b\d{{1,2}}(?:st|nd|rd|th)\s+century\b")
_SPELLED = (
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety "
    "hundred thousand million billion dozen"
).replace(" ", "|")
_FIGURE = (
    rf"(?:[$€£]\s?)?(?:\d+(?:[.,]\d+)*|\b(?:{_SPELLED})(?:[\s-](?:{_SPELLED}))*\b)"
    r"(?:\s(?:hundred|thousand|million|billion|trillion)\b)?(?:\s?(?:%|percent\b|per cent\b))?"
)
_NUMBER = re.compile(rf"(?<![\w.,]){_FIGURE}(?!\w)", re.IGNORECASE)
_MEASURE = re.compile(rf"(?<![\w.,]){_FIGURE}(?!\w)(?:\s(?-i:[a-z])[\w²³/]*)?", re.IGNORECASE)
_CAPITAL = r"[^\W\d_a-zß-ÿ][\w'’.\-]*\w|[A-Z]\."
_INSIDE = r"(?:(?:of the|of|de la|de|la|du|von|van der|van|del|di|al|&)\s)?"
_NAME = re.compile(rf"(?:{_CAPITAL})(?:\s{_INSIDE}(?:{_CAPITAL}))*")
_CHUNK = re.compile(r"[^\W_][\w'’\-]*(?:\s[^\W_][\w'’\-]*)*")
_REASON = re.compile(
    r"\b(?:because(?:\sof)?|due\sto|in\sorder\sto|so\sthat)\s+([^.;:()]{3,120})", re.I
)
_DATE_WORDS = re.compile(rf"^(?:{_MONTH}|(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day)$")
_PLACE_BEFORE = re.compile(
    r"\b(?:in|at|from|near|to|of|outside|around)\s(?:the\s)?$", re.IGNORECASE
)


_UNCERTAIN = 0.5


class AnswerCandidate(NamedTuple):
    """A possible answer, its character position in the sentence, and how well its surroundings
    fit the kind (1: neutral)."""

    text: str
    start: int
    weight: float = 1.0


def _matches(pattern: re.Pattern[str]) -> Callable[[str], Iterator[AnswerCandidate]]:
    def find(text: str) -> Iterator[AnswerCandidate]:
        for match in pattern.finditer(text):
            yield AnswerCandidate(match.group().strip(), match.start())

    return find


def _names(text: str) -> Iterator[AnswerCandidate]:
    for match in _NAME.finditer(text):
        parts = match.group().split(" ")
        name = " ".join(dropwhile(lambda word: word.lower() in STOP_WORDS, parts))
        start = match.end() - len(name)
        if len(name) > 1 and not _DATE_WORDS.match(name):
            # A capital at the start of a sentence may be no name.
            certain = start > 0 or " " in name
            yield AnswerCandidate(name, start, 1.0 if certain else _UNCERTAIN)


def _place_names(text: str) -> Iterator[AnswerCandidate]:
    for name in _names(text):
        after_preposition = _PLACE_BEFORE.search(text[max(0, name.start - 16) : name.start])
        yield name._replace(weight=1.5 if after_preposition else 0.5)


def _reasons(text: str) -> Iterator[AnswerCandidate]:
    for match in _REASON.finditer(text):
        yield AnswerCandidate(match.group(1).strip(" ,"), match.start())


def _phrases(text: str) -> Iterator[AnswerCandidate]:
    """Names, and runs of at most four words between stop words or punctuation."""
    yield from _names(text)
    for match in _CHUNK.finditer(text):
        start = match.start()
        run: list[str] = []
        for word in [*match.group().split(" "), ""]:
            if word and word.lower() not in STOP_WORDS:
                run.append(word)
            else:
                if run and len(run) <= 4:
                    yield AnswerCandidate(" ".join(run), start - len(" ".join(run)) - 1)
                run = []
            start += len(word) + 1


# The candidates of a kind in a sentence.
FINDERS: Mapping[str, Callable[[str], Iterator[AnswerCandidate]]] = {
    "name": _names,
    "place": _place_names,
    "date": _matches(_DATE),
    "year": _matches(_YEARS),
    "number": _matches(_NUMBER),
    "measure": _matches(_MEASURE),
    "reason": _reasons,
    "phrase": _phrases,
}


_NEGATION = re.compile(r"\b(?:not|never|no longer|neither|without|none)\b|n't\b", re.IGNORECASE)
_TOPIC = 0.3  # of a clue word that the document's title holds: it is near everything there
_CLOSE = 40  # characters at which a clue word's proximity to a candidate has halved


class Vote(NamedTuple):
    """A candidate after the vote: its text, its share of all votes (0 to 1), the documents that
    voted for it (strongest first), the sentence with the strongest vote and the share of the
    question that this sentence covers (0 to 1)."""

    text: str
    share: float
    docids: tuple[str, ...]
    sentence: str
    coverage: float


class _AnswerVotes:
    """The votes for one answer. A document contributes its strongest vote plus a tenth of the
    others, so that a word does not win because one document repeats it."""

    def __init__(self) -> None:
        self.strongest: dict[str, float] = {}
        self.others: dict[str, float] = {}
        self.text, self.sentence, self.coverage, self._heaviest = "", "", 0.0, 0.0

    def add(self, text: str, sentence: Sentence, weight: float) -> None:
        docid = sentence.docid
        low, high = sorted((weight, self.strongest.get(docid, 0.0)))
        self.strongest[docid] = high
        self.others[docid] = self.others.get(docid, 0.0) + low
        if weight > self._heaviest:
            self.text, self._heaviest = text, weight
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
    """The best answers, best first. Words of the question are not an answer, except the
    alternatives that it offers.

    The vote of a sentence is its squared coverage, times the trust in its document (0 to 1, by
    rank), times the closeness of its clue words, each with the weight of its stem, to the
    candidate. Shares are relative to the votes of the first `limit` answers.
    """
    if answer_type.kind == "yes_no":
        return _polar_votes(sentences, trust)
    votes: dict[str, _AnswerVotes] = {}
    for sentence in sentences:
        sentence_weight = sentence.score**2 * trust.get(sentence.docid, 0.0)
        positions: dict[str, list[int]] = {}  # of each clue stem, ascending
        for clue, position in sentence.matches:
            positions.setdefault(clue, []).append(position)
        for candidate in _candidates(answer_type, sentence, weights):
            key = " ".join(crude_stem(word) for word in words(candidate.text) if is_content(word))
            proximity = candidate.weight * _closeness(candidate, sentence, positions, weights)
            if key and sentence_weight * proximity > 0:
                of_answer = votes.setdefault(key, _AnswerVotes())
                of_answer.add(candidate.text, sentence, sentence_weight * proximity)
    return _ranked(votes, limit)


def _ranked(votes: Mapping[str, _AnswerVotes], limit: int) -> list[Vote]:
    best = sorted(votes.values(), key=lambda answer: -answer.total)[:limit]
    of = sum(answer.total for answer in best)
    return [answer.vote(of) for answer in best]


def _candidates(
    answer_type: AnswerType, sentence: Sentence, weights: Mapping[str, float]
) -> list[AnswerCandidate]:
    if answer_type.kind == "choice":
        lower = sentence.text.lower()
        starts = ((option, lower.find(option.lower())) for option in answer_type.options)
        return [AnswerCandidate(option, start) for option, start in starts if start >= 0]
    matching = []
    for candidate in FINDERS[answer_type.kind](sentence.text):
        stems = {crude_stem(word) for word in words(candidate.text) if is_content(word)}
        if stems and not stems <= weights.keys():
            matching.append(candidate)
    return matching


def _closeness(
    candidate: AnswerCandidate,
    sentence: Sentence,
    clue_positions: Mapping[str, Sequence[int]],
    weights: Mapping[str, float],
) -> float:
    """Weighted mean of 1 / (1 + distance / 40 characters) over the clue words outside of the
    candidate, each at its nearest occurrence. A mean, because the coverage of the sentence already
    counts the words."""
    start, end = candidate.start, candidate.start + len(candidate.text)
    nearest: dict[str, float] = {}
    for clue, positions in clue_positions.items():
        before, after = bisect_left(positions, start), bisect_left(positions, end)
        distances = [start - position for position in positions[max(0, before - 1) : before]]
        distances += [position - end for position in positions[after : after + 1]]
        if distances:
            nearest[clue] = 1 / (1 + min(distances) / _CLOSE)
    of_clue = {f: weights[f] * (_TOPIC if f in sentence.topic else 1.0) for f in nearest}
    total = sum(of_clue[f] * near for f, near in nearest.items())
    return total / sum(of_clue.values()) if of_clue else 0.0


def _polar_votes(sentences: Sequence[Sentence], trust: Mapping[str, float]) -> list[Vote]:
    """The three best sentences vote yes, or no if they contain a negation."""
    votes = {"yes": _AnswerVotes(), "no": _AnswerVotes()}
    for sentence in sorted(sentences, key=lambda s: -s.score * trust.get(s.docid, 0.0))[:3]:
        says = "no" if _NEGATION.search(sentence.text) else "yes"
        sentence_weight = sentence.score * trust.get(sentence.docid, 0.0)
        votes[says].add(says.capitalize(), sentence, sentence_weight**2)
    with_some = {says: answer for says, answer in votes.items() if answer.total > 0}
    return _ranked(with_some, 2)
