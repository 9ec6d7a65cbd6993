"""Questions in words. An entity is named nowhere; each clue is worded as its article would, or, at
the rate `obfuscation`, in other words: once for the phrase and once for the value.
"""

from __future__ import annotations

from collections.abc import Callable

from toolkit.benchmarks.fictional.articles import capitalised
from toolkit.benchmarks.fictional.data import load
from toolkit.benchmarks.fictional.hashing import Draws
from toolkit.benchmarks.fictional.questions import Question, holds
from toolkit.benchmarks.fictional.schema import (
    BY_NAME,
    LEXICONS,
    Choice,
    Clueable,
    Number,
    Quantity,
    Relation,
    Year,
    attribute_of,
)
from toolkit.benchmarks.fictional.solving import Clue, Link
from toolkit.benchmarks.fictional.world import World

ASKED_FIRST = 0.3  # share of questions that begin with what is asked
PHRASES = load("phrases")


def answers(world: World, question: Question) -> list[str]:
    """Accepted answers, the fullest first."""
    entity = question.path[-1]
    attribute = attribute_of(entity.kind, question.relation)
    if isinstance(attribute, Relation):
        return [world.name(world.target(entity, attribute))]
    value = world.number(entity, attribute_of(entity.kind, question.relation, Quantity))
    if question.kind == "yes/no":
        return ["yes" if holds(question, value) else "no"]
    if isinstance(attribute, Year):
        return [str(value)]
    return list(dict.fromkeys([f"{value:,}", str(value)]))


def clue_phrase(kind: str, clue: Clue, one_of: Callable[[tuple[str, str]], str]) -> str:
    """What a clue says of an entity of the type `kind`, from its verb on. `one_of` chooses between
    the pages' own words and a paraphrase: for the phrase, then for the value."""
    attribute = attribute_of(kind, clue.relation, Clueable)
    phrase = one_of(attribute.clues)
    if isinstance(attribute, Choice):
        paraphrase = LEXICONS[attribute.lexicon][clue.value]
        return phrase.format(v=one_of((clue.value, paraphrase)))
    if isinstance(attribute, Number):
        frames = PHRASES["numbers"]
    else:
        decade = clue.low % 10 == 0 and clue.high == clue.low + 9
        frames = PHRASES["decade" if decade else "years"]
    return phrase.format(r=one_of(frames).format(low=clue.low, high=clue.high))


class Wording:
    """The wording of one question."""

    def __init__(self, question: Question, obfuscation: float, draws: Draws) -> None:
        self.question = question
        self.obfuscation = obfuscation
        self.draws = draws
        self._nouns = [self._noun(position) for position in range(len(question.path))]

    def text(self) -> str:
        """The whole question."""
        last = len(self.question.path) - 1
        openers = PHRASES["openers"]
        if not self.draws.chance(ASKED_FIRST):
            description = self._description(self.draws.choice(openers))
            return f"{description} {self._inquiry(self._that(last))}"
        inquiry = self._inquiry(f"a certain {BY_NAME[self.question.kinds[-1]].nouns[0]}")
        description = self._description(openers[0])
        that = self._that(last)
        return f"{inquiry} This is what is known: {description} The question is about {that}."

    def _description(self, opener: str) -> str:
        """The clues and links, from the first entity to the last."""
        sentences = [opener.format(x=self._new(0))] if self._clues(0) else []
        for link in self.question.links:
            sentences.append(self._linked(link, introduced=bool(sentences)))
        return " ".join(sentences)

    def _one_of(self, pair: tuple[str, str]) -> str:
        return pair[self.draws.chance(self.obfuscation)]

    def _repeated(self, position: int) -> int:
        """How many of the path's earlier entities are of the same type."""
        kinds = self.question.kinds
        return kinds[:position].count(kinds[position])

    def _noun(self, position: int) -> str:
        kinds = self.question.kinds
        nouns = BY_NAME[kinds[position]].nouns
        return nouns[0] if kinds.count(kinds[position]) > 1 else self._one_of(nouns)

    def _that(self, position: int) -> str:
        """An entity that has been introduced."""
        kinds = self.question.kinds
        if kinds.count(kinds[position]) > 1:
            return f"the {PHRASES['ordinals'][self._repeated(position)]} {self._nouns[position]}"
        return f"this {self._nouns[position]}"

    def _clues(self, position: int) -> list[Clue]:
        return [clue for clue in self.question.clues if clue.position == position]

    def _new(self, position: int) -> str:
        """An entity on its first mention, with its clues."""
        noun = self._nouns[position]
        article = "an" if noun[0] in "aeiou" else "a"
        if self._repeated(position):
            article = "another"
        clues = [self._clue(clue) for clue in self._clues(position)]
        if not clues:
            return f"{article} {noun}"
        pronoun = "who" if self.question.kinds[position] == "person" else "that"
        return f"{article} {noun} {pronoun} {enumerated(clues)}"

    def _linked(self, link: Link, introduced: bool) -> str:
        old, new = sorted((link.subject, link.object))
        attribute = attribute_of(self.question.kinds[link.subject], link.relation, Relation)
        old_phrase = self._that(old) if introduced else self._new(old)
        names = {old: old_phrase, new: self._new(new)}
        phrase = self._one_of(attribute.links)
        return capitalised(phrase.format(a=names[link.subject], b=names[link.object])) + "."

    def _clue(self, clue: Clue) -> str:
        return clue_phrase(self.question.kinds[clue.position], clue, self._one_of)

    def _inquiry(self, subject: str) -> str:
        question = self.question
        attribute = attribute_of(question.kinds[-1], question.relation)
        if isinstance(attribute, Quantity) and question.kind == "yes/no":
            year = isinstance(attribute, Year)
            threshold = str(question.threshold) if year else f"{question.threshold:,}"
            return attribute.polar.format(s=subject, t=threshold)
        assert isinstance(attribute, (Quantity, Relation))
        return attribute.ask.format(s=subject)


def enumerated(parts: list[str]) -> str:
    """`a, b and c`."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
