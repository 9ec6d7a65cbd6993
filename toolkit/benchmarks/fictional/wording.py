"""Questions in words. An entity is named nowhere; each clue is worded as its article would, or, at
the rate `obfuscation`, in other words: once for the phrase and once for the value.
"""

from __future__ import annotations

from toolkit.benchmarks.fictional.articles import capitalised
from toolkit.benchmarks.fictional.hashing import Draws
from toolkit.benchmarks.fictional.lexicon import LEXICONS
from toolkit.benchmarks.fictional.questions import Question, holds
from toolkit.benchmarks.fictional.schema import Choice, Number, Relation, Year
from toolkit.benchmarks.fictional.solving import Clue, Link, asked_number, attribute_of
from toolkit.benchmarks.fictional.world import BY_NAME, World

OPENERS = ("There is {x}.", "Consider {x}.", "Think of {x}.", "Somewhere there is {x}.")
ASKED_FIRST = 0.3
ORDINALS = ("first", "second", "third", "fourth")
DECADE = ("in the {low}s", "in the decade that began in {low}")
YEARS = ("between {low} and {high}", "no earlier than {low} and no later than {high}")
NUMBERS = ("between {low:,} and {high:,}", "at least {low:,} but at most {high:,}")


def answers(world: World, question: Question) -> list[str]:
    """Accepted answers, the fullest first."""
    entity = question.path[-1]
    attribute = attribute_of(entity.kind, question.relation)
    if isinstance(attribute, Relation):
        return [world.name(world.target(entity, attribute))]
    value = asked_number(world, entity, question.relation)
    if question.kind == "yes/no":
        return ["yes" if holds(question, value) else "no"]
    if isinstance(attribute, Year):
        return [str(value)]
    return list(dict.fromkeys([f"{value:,}", str(value)]))


class Wording:
    """The wording of one question."""

    def __init__(self, question: Question, obfuscation: float, draws: Draws) -> None:
        self.question = question
        self.obfuscation = obfuscation
        self.draws = draws
        self._nouns = [self._noun(place) for place in range(len(question.path))]

    def text(self) -> str:
        """The whole question."""
        last = len(self.question.path) - 1
        if not self.draws.chance(ASKED_FIRST):
            told = self._told(self.draws.choice(OPENERS))
            return f"{told} {self._asked(self._that(last))}"
        asked = self._asked(f"a certain {BY_NAME[self.question.kinds[-1]].nouns[0]}")
        told = self._told(OPENERS[0])
        return f"{asked} This is what is known: {told} The question is about {self._that(last)}."

    def _told(self, opener: str) -> str:
        """The clues and links, from the first entity to the last."""
        sentences = [opener.format(x=self._new(0))] if self._clues(0) else []
        for link in self.question.links:
            sentences.append(self._linked(link, introduced=bool(sentences)))
        return " ".join(sentences)

    def _one_of(self, pair: tuple[str, str]) -> str:
        return pair[self.draws.chance(self.obfuscation)]

    def _repeated(self, place: int) -> int:
        """How many of the path's earlier entities are of the same type."""
        kinds = self.question.kinds
        return sum(kind == kinds[place] for kind in kinds[:place])

    def _noun(self, place: int) -> str:
        kinds = self.question.kinds
        nouns = BY_NAME[kinds[place]].nouns
        return nouns[0] if kinds.count(kinds[place]) > 1 else self._one_of(nouns)

    def _that(self, place: int) -> str:
        """An entity that has been introduced."""
        kinds = self.question.kinds
        if kinds.count(kinds[place]) > 1:
            return f"the {ORDINALS[self._repeated(place)]} {self._nouns[place]}"
        return f"this {self._nouns[place]}"

    def _clues(self, place: int) -> list[Clue]:
        return [clue for clue in self.question.clues if clue.place == place]

    def _new(self, place: int) -> str:
        """An entity on its first mention, with its clues."""
        noun = self._nouns[place]
        article = "another" if self._repeated(place) else "an" if noun[0] in "aeiou" else "a"
        told = [self._clue(clue) for clue in self._clues(place)]
        if not told:
            return f"{article} {noun}"
        pronoun = "who" if self.question.kinds[place] == "person" else "that"
        return f"{article} {noun} {pronoun} {_enumerated(told)}"

    def _linked(self, link: Link, introduced: bool) -> str:
        old, new = sorted((link.subject, link.object))
        attribute = attribute_of(self.question.kinds[link.subject], link.relation)
        if not isinstance(attribute, Relation):
            raise TypeError(f"{link.relation} links nothing")
        known = self._that(old) if introduced else self._new(old)
        names = {old: known, new: self._new(new)}
        phrase = self._one_of(attribute.links)
        return capitalised(phrase.format(a=names[link.subject], b=names[link.object])) + "."

    def _clue(self, clue: Clue) -> str:
        attribute = attribute_of(self.question.kinds[clue.place], clue.relation)
        if isinstance(attribute, Relation):
            raise TypeError(f"{clue.relation} is no clue")
        phrase = self._one_of(attribute.clues)
        if isinstance(attribute, Choice):
            other = LEXICONS[attribute.lexicon][clue.value]
            return phrase.format(v=self._one_of((clue.value, other)))
        if isinstance(attribute, Number):
            shape = self._one_of(NUMBERS)
        else:
            decade = clue.low % 10 == 0 and clue.high == clue.low + 9
            shape = self._one_of(DECADE if decade else YEARS)
        return phrase.format(r=shape.format(low=clue.low, high=clue.high))

    def _asked(self, subject: str) -> str:
        question = self.question
        attribute = attribute_of(question.kinds[-1], question.relation)
        if isinstance(attribute, Choice):
            raise TypeError(f"{question.relation} is never asked")
        if question.kind != "yes/no" or isinstance(attribute, Relation):
            return attribute.ask.format(s=subject)
        year = isinstance(attribute, Year)
        threshold = str(question.threshold) if year else f"{question.threshold:,}"
        return attribute.polar.format(s=subject, t=threshold)


def _enumerated(parts: list[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
