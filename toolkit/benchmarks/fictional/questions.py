"""Chained questions over the world, and their wording. A question follows a path of entities. Clues
describe them without naming them, hops connect them, and the question is about the last one. Over
all facts of the world, exactly one path satisfies it. If it has more than one hop, the facts of all
documents but one leave at least two answers, whichever document is left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, zip_longest
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from soundingline.toolkit.benchmarks.fictional.pages import (
    PHRASES,
    capitalised,
    docid,
    document_number,
    stated_fact,
)
from soundingline.toolkit.benchmarks.fictional.world import (
    BY_NAME,
    CHOICE,
    LEXICONS,
    NUMBER,
    RELATION,
    TYPES,
    WORDS,
    YEAR,
    Attribute,
    Entity,
    EntityType,
    Random,
    World,
    attribute_of,
)
from soundingline.toolkit.data import StatedFact

Mask = npt.NDArray[np.bool_]
ANSWER_KINDS = {  # the kinds of attributes that are asked for
    "name": (RELATION,),
    "number": (NUMBER,),
    "year": (YEAR,),
    "yes/no": (YEAR, NUMBER),
}
ATTEMPTS = 60  # attempts for each question
TWIN_SHARE = 0.5  # share of the paths that start at one of two near-twins
ASKED_FIRST = 0.3  # share of the questions that begin with the inquiry
FEWEST_TARGETS, MOST_TARGETS = 2, 50
FEWEST_REQUIREMENTS, MOST_REQUIREMENTS = 2, 6
SET_ATTEMPTS = 120  # attempts for a question with so many requirements
EXCLUDED = 0.25  # share of the requirements that are drawn as exclusions
RELATED = 0.4  # share of the questions that require a relation to another entity
NARROWEST, WIDEST = 20, 60  # percent of the entities of a type that a range contains
EXCLUSION = "exclusion"
SORTS = (CHOICE, NUMBER, YEAR, RELATION, EXCLUSION)  # of requirements


@dataclass(frozen=True)
class WorldClue:
    """A condition on the entity at `position` of the path: `low <= value <= high` for numbers and
    years, or `value` equal to a word (`low` and `high` are then the number of the word in its
    lexicon)."""

    position: int
    relation: str
    low: int
    high: int
    value: str = ""


@dataclass(frozen=True)
class Hop:
    """`relation` of the entity at `subject` is the entity at `object`; the article of `subject`
    states it. The two are neighbours on the path."""

    subject: int
    relation: str
    object: int


@dataclass(frozen=True)
class WorldQuestion:
    """A question in its formal shape. `path` holds the entities from the first described to the one
    that the question is about; `kind` is one of `ANSWER_KINDS`. `threshold` belongs to yes/no
    questions: is the year before it, or the number above it?"""

    path: tuple[Entity, ...]
    clues: tuple[WorldClue, ...]
    hops: tuple[Hop, ...]
    relation: str
    kind: str
    threshold: int = 0

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(entity.kind for entity in self.path)


class Columns:
    """Digits and numbers of complete types, computed at their first use, four bytes each."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._columns: dict[tuple[str, str], npt.NDArray[np.int32]] = {}

    def values(self, kind: str, relation: str) -> npt.NDArray[np.int32]:
        """By ordinal: the number or year itself, the number of the word, or the ordinal of the
        target."""
        if (kind, relation) not in self._columns:
            attribute, ordinals = attribute_of(kind, relation), self.world.ordinals(kind)
            if attribute.is_quantity:
                column = self.world.numbers(kind, attribute, ordinals)
            else:
                column = self.world.digits(kind, attribute, ordinals)
            self._columns[kind, relation] = column.astype(np.int32)
        return self._columns[kind, relation]


def solutions(
    columns: Columns,
    kinds: Sequence[str],
    clues: Sequence[WorldClue],
    hops: Sequence[Hop],
    without: int = -1,
) -> list[Mask]:
    """For each position of the path, the entities (by ordinal) that occur in some solution. The
    conditions form a path, so that passing sets of candidates along it once in each direction
    leaves exactly these. `without` leaves out all facts of the document at that position."""
    masks = [np.ones(columns.world.counts[kind], dtype=bool) for kind in kinds]
    for clue in clues:
        if clue.position != without:
            values = columns.values(kinds[clue.position], clue.relation)
            masks[clue.position] &= (values >= clue.low) & (values <= clue.high)
    hops = [hop for hop in hops if hop.subject != without]
    forward = [(hop, hop.subject < hop.object) for hop in hops]
    backward = [(hop, hop.subject > hop.object) for hop in reversed(hops)]
    for hop, from_subject in forward + backward:
        targets = columns.values(kinds[hop.subject], hop.relation)
        if from_subject:
            reached = np.zeros_like(masks[hop.object])
            reached[targets[masks[hop.subject]]] = True
            masks[hop.object] &= reached
        else:
            masks[hop.subject] &= masks[hop.object][targets]
    return masks


class QuestionMaker:
    """Makes the questions of a world one after another and uses no entity of an answer twice."""

    def __init__(self, world: World, hops: int, clues: int, yes_no: bool = True) -> None:
        self.world = world
        self.hops = hops
        self._kinds = [kind for kind in ANSWER_KINDS if yes_no or kind != "yes/no"]
        self.most_clues = clues
        self._columns = Columns(world)
        self._used: set[Entity] = set()

    def questions(self, count: int) -> Iterator[WorldQuestion]:
        """Up to `count` questions: fewer only if the world is too small."""
        attempts = (
            self._attempt(Random("question", self.world.seed, self.hops, attempt))
            for attempt in range(count * ATTEMPTS)
        )
        for question in islice(filter(None, attempts), count):
            self._used |= answer_entities(self.world, question)
            yield question

    def _attempt(self, random: Random) -> WorldQuestion | None:
        path, hops = self._path(random)
        if not path or path[-1] in self._used:
            return None
        inquiry = self._inquiry(path, hops, random)
        if inquiry is None:
            return None
        bare = WorldQuestion(tuple(path), (), tuple(hops), *inquiry)
        if answer_entities(self.world, bare) & self._used:
            return None
        return self._described(bare, random)

    def _path(self, random: Random) -> tuple[list[Entity], list[Hop]]:
        """The entities of a path and its hops, drawn from the last entity backwards; none if it
        cannot be long enough."""
        kind = random.choice(TYPES).name
        ordinal = random.below(self.world.counts[kind])
        if random.chance(TWIN_SHARE):
            twins = np.flatnonzero(self.world.is_twin(self.world.ordinals(kind)))
            if len(twins):
                ordinal = int(twins[random.below(len(twins))]) - random.below(2)
        path, hops = [Entity(kind, ordinal)], list[Hop]()
        for new in reversed(range(self.hops - 1)):
            neighbour = self._neighbour(path, random)
            if neighbour is None:
                return [], []
            entity, relation, inward = neighbour
            path.insert(0, entity)
            hops.insert(0, Hop(new, relation, new + 1) if inward else Hop(new + 1, relation, new))
        return path, hops

    def _neighbour(self, path: list[Entity], random: Random) -> tuple[Entity, str, bool] | None:
        """A new neighbour of the first entity, the relation, and whether the neighbour's page
        states it."""
        entity = path[0]
        outward = [
            (relation.target, relation.name, False)
            for relation in BY_NAME[entity.kind].attributes
            if relation.kind == RELATION
        ]
        inward = [
            (kind.name, relation.name, True)
            for kind in TYPES
            for relation in kind.attributes
            if relation.kind == RELATION and relation.target == entity.kind
        ]
        for kind, relation, is_inward in random.shuffled(outward + inward):
            if is_inward:
                sources = np.flatnonzero(self._columns.values(kind, relation) == entity.ordinal)
                if not len(sources):
                    continue
                ordinal = int(sources[random.below(len(sources))])
            else:
                ordinal = int(self._columns.values(entity.kind, relation)[entity.ordinal])
            if (new := Entity(kind, ordinal)) not in path:
                return new, relation, is_inward
        return None

    def _inquiry(
        self, path: list[Entity], hops: list[Hop], random: Random
    ) -> tuple[str, str, int] | None:
        """What the question asks of the last entity: relation, kind of answer, threshold."""
        entity, last = path[-1], len(path) - 1
        used = {hop.relation for hop in hops if hop.subject == last}
        kind = random.choice(self._kinds)
        free = [
            attribute
            for attribute in BY_NAME[entity.kind].attributes
            if attribute.name not in used and attribute.kind in ANSWER_KINDS[kind]
        ]
        if not free:
            return None
        attribute = random.choice(free)
        if attribute.kind == RELATION and self.world.target(entity, attribute) in path:
            return None
        threshold = 0
        if kind == "yes/no":
            # On either side of the truth with equal chance, and never the truth itself.
            value = self.world.number(entity, attribute)
            spread = 24 if attribute.kind == YEAR else max(3, value // 4)
            distance = random.between(1, spread)
            threshold = value + distance if random.chance(0.5) else value - distance
        return attribute.name, kind, threshold

    def _described(self, bare: WorldQuestion, random: Random) -> WorldQuestion | None:
        """The question with clues added one by one until it has one solution; None if that is
        impossible without making a document superfluous."""
        question = bare
        for option in self._options(bare, random):
            if len(question.clues) > len(bare.path) and self._unique(question):
                break
            if sum(clue.position == option.position for clue in question.clues) < self.most_clues:
                longer = replace(question, clues=(*question.clues, option))
                question = longer if self._chained(longer) else question
        return question if self._unique(question) and self._chained(question) else None

    def _options(self, bare: WorldQuestion, random: Random) -> list[WorldClue]:
        """Possible clues: one for each entity, then a second one for each, and so on."""
        options: list[list[WorldClue]] = []
        for position, entity in enumerate(bare.path):
            used = {hop.relation for hop in bare.hops if hop.subject == position}
            if position == len(bare.path) - 1:
                used.add(bare.relation)
            free = [
                attribute
                for attribute in BY_NAME[entity.kind].attributes
                if attribute.kind != RELATION and attribute.name not in used
            ]
            shuffled = random.shuffled(free)
            options.append(
                [_make_clue(self.world, position, entity, it, random) for it in shuffled]
            )
        rounds = zip_longest(*options)
        return [option for turn in rounds for option in turn if option is not None]

    def _unique(self, question: WorldQuestion) -> bool:
        masks = solutions(self._columns, question.kinds, question.clues, question.hops)
        return all(int(np.count_nonzero(mask)) == 1 for mask in masks)

    def _chained(self, question: WorldQuestion) -> bool:
        """Whether leaving out any one document leaves two answers possible. More clues elsewhere
        can only exclude answers, so that a question which fails once fails for good."""
        for without in range(len(question.path) - 1):
            masks = solutions(self._columns, question.kinds, question.clues, question.hops, without)
            values = self._columns.values(question.kinds[-1], question.relation)[masks[-1]]
            if question.kind == "yes/no":
                values = is_yes(question, values)
            if len(np.unique(values)) < 2:
                return False
        return True


def _make_clue(
    world: World, position: int, entity: Entity, attribute: Attribute, random: Random
) -> WorldClue:
    """A clue that the entity at `position` of a path meets: a word, a span of years (the decade, or
    5 to 12 years), or a range with rounded bounds up to a fifth below and above the number."""
    if attribute.kind == CHOICE:
        digit = world.digits(entity.kind, attribute, entity.ordinal)
        return WorldClue(position, attribute.name, digit, digit, WORDS[attribute.lexicon][digit])
    value = world.number(entity, attribute)
    if attribute.kind != YEAR:
        low = value - random.between(0, value // 5)
        high = value + random.between(0, value // 5)
        step = rounding_step(value)
        low, high = max(1, low // step * step), -(-(high + 1) // step) * step
    elif random.chance(0.5):
        low, high = value // 10 * 10, value // 10 * 10 + 9
    else:
        low = value - random.between(2, 6)
        high = value + random.between(2, 6)
    return WorldClue(position, attribute.name, low, high)


def rounding_step(value: int) -> int:
    """The step to which the bounds of a range around a number are rounded."""
    return next(size for size in (1000, 100, 10, 5) if size <= max(5, value // 10))


def is_yes(question: WorldQuestion, values: Any) -> Any:
    """Whether the answer to a yes/no question is yes: before the year, or above the number."""
    if attribute_of(question.kinds[-1], question.relation).kind == YEAR:
        return values < question.threshold
    return values > question.threshold


def answer_entities(world: World, question: WorldQuestion) -> set[Entity]:
    """The entity that the question is about, and the one that the answer names."""
    entity = question.path[-1]
    attribute = attribute_of(entity.kind, question.relation)
    return {entity, world.target(entity, attribute) if attribute.kind == RELATION else entity}


def answers(world: World, question: WorldQuestion) -> list[str]:
    """Accepted answers, the fullest first."""
    entity = question.path[-1]
    attribute = attribute_of(entity.kind, question.relation)
    if attribute.kind == RELATION:
        return [world.name(world.target(entity, attribute))]
    value = world.number(entity, attribute)
    if question.kind == "yes/no":
        return ["yes" if is_yes(question, value) else "no"]
    if attribute.kind == YEAR:
        return [str(value)]
    return list(dict.fromkeys([f"{value:,}", str(value)]))


def needed_attributes(question: WorldQuestion) -> list[tuple[Entity, str]]:
    """What an answer rests on, each once: the entities of the clues and of the hops with their
    attributes, and last what is asked for."""
    needed = [(clue.position, clue.relation) for clue in question.clues]
    needed += [(hop.subject, hop.relation) for hop in question.hops]
    needed.append((len(question.path) - 1, question.relation))
    return [(question.path[position], relation) for position, relation in dict.fromkeys(needed)]


def needed_facts(world: World, question: WorldQuestion) -> list[StatedFact]:
    """The facts that an answer rests on."""
    return [
        stated_fact(world, entity, attribute_of(entity.kind, relation))
        for entity, relation in needed_attributes(question)
    ]


def clue_phrase(kind: str, clue: WorldClue, one_of: Callable[[Sequence[str]], str]) -> str:
    """What a clue says of an entity of the type `kind`, from its verb on. `one_of` chooses between
    the words of the pages and a paraphrase: first for the phrase, then for the value."""
    attribute = attribute_of(kind, clue.relation)
    phrase = one_of(attribute.clues)
    if attribute.kind == CHOICE:
        paraphrase = LEXICONS[attribute.lexicon][clue.value]
        return phrase.format(v=one_of((clue.value, paraphrase)))
    if attribute.kind == NUMBER:
        frames = PHRASES["numbers"]
    else:
        decade = clue.low % 10 == 0 and clue.high == clue.low + 9
        frames = PHRASES["decade" if decade else "years"]
    return phrase.format(r=one_of(frames).format(low=clue.low, high=clue.high))


def entity_phrase(kind: str, noun: str, clues: Sequence[str], article: str = "") -> str:
    """`a river that ..., ... and ...`: an entity of the type `kind` with clues about it. The
    article is `a` or `an` by default."""
    article = article or ("an" if noun[0] in "aeiou" else "a")
    pronoun = "who" if kind == "person" else "that"
    listed = " and ".join(filter(None, [", ".join(clues[:-1]), *clues[-1:]]))
    return f"{article} {noun} {pronoun} {listed}" if clues else f"{article} {noun}"


class Wording:
    """The wording of one question. It names no entity; each clue is worded as its article would
    word it or, with the probability `obfuscation`, in other words (drawn once for the phrase and
    once for the value)."""

    def __init__(self, question: WorldQuestion, obfuscation: float, random: Random) -> None:
        self.question, self.obfuscation, self.random = question, obfuscation, random
        self._kinds = question.kinds
        self._nouns = []
        for kind in self._kinds:
            nouns = BY_NAME[kind].nouns
            shared = self._kinds.count(kind) > 1
            self._nouns.append(nouns[0] if shared else self._one_of(nouns))

    def text(self) -> str:
        """The whole question."""
        last = len(self._kinds) - 1
        openers = PHRASES["openers"]
        if not self.random.chance(ASKED_FIRST):
            description = self._description(self.random.choice(openers))
            return f"{description} {self._inquiry(self._that(last))}"
        inquiry = self._inquiry(f"a certain {BY_NAME[self._kinds[-1]].nouns[0]}")
        description = self._description(openers[0])
        that = self._that(last)
        return f"{inquiry} This is what is known: {description} The question is about {that}."

    def _description(self, opener: str) -> str:
        """The clues and hops, from the first entity to the last."""
        question = self.question
        introduced = any(clue.position == 0 for clue in question.clues)
        sentences = [opener.format(x=self._new(0))] if introduced else []
        for hop in question.hops:
            old, new = sorted((hop.subject, hop.object))
            attribute = attribute_of(self._kinds[hop.subject], hop.relation)
            old_phrase = self._that(old) if sentences else self._new(old)
            names = {old: old_phrase, new: self._new(new)}
            phrase = self._one_of(attribute.links)
            sentence = phrase.format(a=names[hop.subject], b=names[hop.object])
            sentences.append(f"{capitalised(sentence)}.")
        return " ".join(sentences)

    def _one_of(self, pair: Sequence[str]) -> str:
        return pair[self.random.chance(self.obfuscation)]

    def _repeated(self, position: int) -> int:
        """How many of the path's earlier entities are of the same type."""
        return self._kinds[:position].count(self._kinds[position])

    def _that(self, position: int) -> str:
        """A later mention of an entity."""
        if self._kinds.count(self._kinds[position]) > 1:
            return f"the {PHRASES['ordinals'][self._repeated(position)]} {self._nouns[position]}"
        return f"this {self._nouns[position]}"

    def _new(self, position: int) -> str:
        """The first mention of an entity, with its clues."""
        kind = self._kinds[position]
        clues = [
            clue_phrase(kind, clue, self._one_of)
            for clue in self.question.clues
            if clue.position == position
        ]
        article = "another" if self._repeated(position) else ""
        return entity_phrase(kind, self._nouns[position], clues, article)

    def _inquiry(self, subject: str) -> str:
        question = self.question
        attribute = attribute_of(self._kinds[-1], question.relation)
        if question.kind == "yes/no":
            year = attribute.kind == YEAR
            threshold = str(question.threshold) if year else f"{question.threshold:,}"
            return attribute.polar.format(s=subject, t=threshold)
        return attribute.ask.format(s=subject)


# Questions that ask for documents: all pages about entities that meet 2 to 6 requirements. Each
# requirement has a near miss, a document that meets all others and not this one. A question is
# worded as pages word their facts or, with the probability `obfuscation`, in other words; its
# checklist is always worded as pages do.


class Requirement(NamedTuple):
    """A condition on the entity of a page: that it meets `clue` or, if `excluded`, that it does
    not. A clue about a relation holds the name of the other entity in `value`, and its ordinal in
    `low` and `high`."""

    clue: WorldClue
    excluded: bool = False

    def sort(self, kind: str) -> str:
        """One of `SORTS`, for the type `kind`."""
        return EXCLUSION if self.excluded else attribute_of(kind, self.clue.relation).kind

    def mask(self, columns: Columns, kind: str) -> Mask:
        """Which entities of the type meet it, by ordinal."""
        values = columns.values(kind, self.clue.relation)
        inside: Mask = (values >= self.clue.low) & (values <= self.clue.high)
        return ~inside if self.excluded else inside


class SetQuestion(NamedTuple):
    """A question in its formal shape: the type of the entities, and the requirements for them."""

    kind: str
    requirements: tuple[Requirement, ...]


class SetQuestionMaker:
    """Makes the questions of a world one after another, none twice."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.columns = Columns(world)

    def questions(self, count: int) -> Iterator[SetQuestion]:
        """Up to `count` questions, fewer only if the world is too small. The numbers of
        requirements take turns; where a number is impossible, the next lower one replaces it."""
        earlier: set[SetQuestion] = set()
        for number in range(count):
            new = (question for question in self._attempts(number) if question not in earlier)
            question = next(new, None)
            if question is None:
                return
            earlier.add(question)
            yield question

    def _attempts(self, number: int) -> Iterator[SetQuestion]:
        seed = self.world.seed
        related = Random("set form", seed, number).chance(RELATED)
        most = FEWEST_REQUIREMENTS + number % (MOST_REQUIREMENTS - FEWEST_REQUIREMENTS + 1)
        for requirements in range(most, FEWEST_REQUIREMENTS - 1, -1):
            for attempt in range(SET_ATTEMPTS):
                random = Random("set question", seed, number, requirements, attempt)
                if question := self._attempt(requirements, related, random):
                    yield question

    def targets(self, question: SetQuestion) -> frozenset[str]:
        """The docids of all documents that meet every requirement."""
        met = np.logical_and.reduce(self._masks(question.kind, question.requirements))
        entities = [Entity(question.kind, int(ordinal)) for ordinal in np.flatnonzero(met)]
        return frozenset(docid(self.world.index(entity)) for entity in entities)

    def meets(self, question: SetQuestion, entity: Entity) -> tuple[bool, ...]:
        """Whether the entity meets each requirement; one of another type meets none."""
        if entity.kind != question.kind:
            return (False,) * len(question.requirements)
        values = [
            int(self.columns.values(entity.kind, requirement.clue.relation)[entity.ordinal])
            for requirement in question.requirements
        ]
        return tuple(
            (clue.low <= value <= clue.high) != excluded
            for value, (clue, excluded) in zip(values, question.requirements, strict=True)
        )

    def _attempt(self, count: int, related: bool, random: Random) -> SetQuestion | None:
        """Requirements that one drawn entity meets, added while each has a near miss. If `related`,
        the first one is a relation to another entity."""
        kind = random.choice(TYPES)
        ordinal = random.below(self.world.counts[kind.name])
        requirements: list[Requirement] = []
        if related:
            relation = self._shared_relation(kind, ordinal, random)
            if relation is None:
                return None
            requirements.append(relation)
        attributes = random.shuffled(kind.attributes)
        for position, attribute in enumerate(attributes):
            if len(requirements) + len(attributes) - position < count:
                return None
            if any(attribute.name == earlier.clue.relation for earlier in requirements):
                continue
            exclusions = sum(earlier.excluded for earlier in requirements)
            option = self._requirement(kind, ordinal, attribute, requirements, random)
            if option and option.excluded and exclusions == count // 2:
                continue
            if option and self._sharp(kind.name, [*requirements, option], FEWEST_TARGETS):
                requirements.append(option)
            if len(requirements) == count:
                break
        if len(requirements) < count or not self._sharp(
            kind.name, requirements, FEWEST_TARGETS, MOST_TARGETS
        ):
            return None
        requirements.sort(key=lambda requirement: SORTS.index(requirement.sort(kind.name)))
        return SetQuestion(kind.name, tuple(requirements))

    def _shared_relation(
        self, kind: EntityType, ordinal: int, random: Random
    ) -> Requirement | None:
        """A relation of the entity that enough others of its type have to the same entity."""
        for attribute in random.shuffled(kind.attributes):
            values = self.columns.values(kind.name, attribute.name)
            shared = int((values == values[ordinal]).sum()) > FEWEST_TARGETS
            if attribute.kind == RELATION and shared:
                return Requirement(self._clue(kind.name, ordinal, attribute, random))
        return None

    def _sharp(
        self, kind: str, requirements: Sequence[Requirement], fewest: int, most: int | None = None
    ) -> bool:
        """Whether the number of targets is right and each requirement has a near miss."""
        met = np.array(self._masks(kind, requirements))
        count = met.sum(axis=0)
        targets = int((count == len(met)).sum())
        near = (~met & (count == len(met) - 1)).any(axis=1)
        return fewest <= targets and (most is None or targets <= most) and bool(near.all())

    def _masks(self, kind: str, requirements: Sequence[Requirement]) -> list[Mask]:
        return [requirement.mask(self.columns, kind) for requirement in requirements]

    def _requirement(
        self,
        kind: EntityType,
        ordinal: int,
        attribute: Attribute,
        others: Sequence[Requirement],
        random: Random,
    ) -> Requirement | None:
        """A requirement on this attribute that the entity meets. An exclusion takes the value of
        another entity that meets the requirements so far; None if all of those share one value."""
        if not random.chance(EXCLUDED):
            return Requirement(self._clue(kind.name, ordinal, attribute, random))
        values = self.columns.values(kind.name, attribute.name)
        rivals = np.flatnonzero(
            np.logical_and.reduce([values != values[ordinal], *self._masks(kind.name, others)])
        )
        if not len(rivals):
            return None
        rival = int(rivals[random.below(len(rivals))])
        clue = self._clue(kind.name, rival, attribute, random)
        outside = not clue.low <= int(values[ordinal]) <= clue.high
        return Requirement(clue, excluded=True) if outside else None

    def _clue(self, kind: str, ordinal: int, attribute: Attribute, random: Random) -> WorldClue:
        """A clue that the entity meets: its word, its entity, or a range around its number."""
        values = self.columns.values(kind, attribute.name)
        value = int(values[ordinal])
        if attribute.kind == CHOICE:
            return WorldClue(0, attribute.name, value, value, WORDS[attribute.lexicon][value])
        if attribute.kind == RELATION:
            name = self.world.name(Entity(attribute.target, value))
            return WorldClue(0, attribute.name, value, value, name)
        ordered = np.sort(values)
        width = max(1, len(ordered) * random.between(NARROWEST, WIDEST) // 100)
        start = int(np.searchsorted(ordered, value)) - random.below(width)
        start = min(max(0, start), len(ordered) - width)
        low, high = int(ordered[start]), max(value, int(ordered[start + width - 1]))
        if attribute.kind == NUMBER:
            step = rounding_step(value)
            low, high = max(1, low // step * step), -(-high // step) * step
        return WorldClue(0, attribute.name, low, high)


def set_wording(question: SetQuestion, obfuscation: float, random: Random) -> str:
    """The question in words."""

    def one_of(pair: Sequence[str]) -> str:
        return pair[random.chance(obfuscation)]

    kind = BY_NAME[question.kind]
    noun = one_of(kind.nouns)
    clues: list[str] = []
    statements: list[str] = []
    exclusions: list[str] = []
    for requirement in question.requirements:
        sort = requirement.sort(kind.name)
        if sort in (EXCLUSION, RELATION):
            statement = _statement(kind.name, requirement.clue, noun, one_of)
            (exclusions if sort == EXCLUSION else statements).append(statement)
        else:
            clues.append(clue_phrase(kind.name, requirement.clue, one_of))
    description = entity_phrase(kind.name, noun, clues)
    sentences = [random.choice(PHRASES["sets"]).format(x=description)]
    sentences += [f"{capitalised(statement)}." for statement in statements]
    frames = PHRASES["exclusions"]
    sentences += [random.choice(frames).format(s=statement) for statement in exclusions]
    return " ".join(sentences)


def checklist(question: SetQuestion) -> list[str]:
    """One sentence for each requirement, in their order."""
    noun = BY_NAME[question.kind].nouns[0]
    sentences = []
    for clue, excluded in question.requirements:
        statement = _statement(question.kind, clue, noun, lambda pair: pair[0])
        sentence = f"It is not the case that {statement}" if excluded else capitalised(statement)
        sentences.append(f"{sentence}.")
    return sentences


def _statement(
    kind: str, clue: WorldClue, noun: str, one_of: Callable[[Sequence[str]], str]
) -> str:
    """The clue as a sentence about `the <noun>`, without its full stop."""
    attribute = attribute_of(kind, clue.relation)
    if attribute.kind == RELATION:
        return one_of(attribute.links).format(a=f"the {noun}", b=clue.value)
    return f"the {noun} {clue_phrase(kind, clue, one_of)}"


class Satisfaction(Mapping[str, Sequence[bool]]):
    """Which requirements of a question each document of the world meets, computed on reading. A
    page about an entity of another type meets none."""

    def __init__(self, maker: SetQuestionMaker, question: SetQuestion) -> None:
        self._maker = maker
        self._question = question

    def __getitem__(self, name: str) -> Sequence[bool]:
        world = self._maker.world
        entity = world.entity(document_number(name, world.size))
        return self._maker.meets(self._question, entity)

    def __iter__(self) -> Iterator[str]:
        return map(docid, range(self._maker.world.size))

    def __len__(self) -> int:
        return self._maker.world.size
