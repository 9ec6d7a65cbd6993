"""Persons."""

from __future__ import annotations

from toolkit.benchmarks.fictional.schema import Choice, EntityType, Number, Relation, Year

PERSON = EntityType(
    name="person",
    slots=4,
    nouns=("person", "individual"),
    forms=("{}",),
    opening=(
        "{n} is a person whose life is treated at length below.",
        "This page collects what is known about the person called {n}.",
        "The life of {n} has drawn readers for several generations.",
    ),
    headings=("Early life", "Career", "Later years", "Family", "Reputation", "Letters", "Travels"),
    attributes=(
        Year(
            name="born",
            tells=(
                "{s} was born in {v}.",
                "The parish register gives {v} as the year in which {s} was born.",
                "It was in {v} that {s} came into the world.",
                "Most accounts agree that the birth of {s} fell in {v}.",
            ),
            line="Born: {v}",
            clues=("was born {r}", "came into the world {r}"),
            ask="In what year was {s} born?",
            polar="Was {s} born before {t}?",
            first=1760,
            span=180,
        ),
        Relation(
            name="birthplace",
            tells=(
                "{s} was a native of {v}.",
                "The first home of {s} stood in {v}.",
                "{v} is where {s} was born, in a house near the square.",
                "The birthplace of {s} was {v}.",
            ),
            line="Birthplace: {v}",
            links=("{a} was born in {b}", "{a} drew a first breath in {b}"),
            ask="In which town was {s} born?",
            target="town",
        ),
        Relation(
            name="school",
            tells=(
                "{s} was educated at {v}.",
                "At {v} the young {s} received a thorough schooling.",
                "{v} counts {s} among its former pupils.",
                "For six years {s} sat on the benches of {v}.",
            ),
            line="Educated at: {v}",
            links=("{a} was educated at {b}", "{a} sat in the classrooms of {b}"),
            ask="At which school was {s} educated?",
            target="school",
        ),
        Relation(
            name="portrait",
            tells=(
                "A portrait of {s} hangs in {v}.",
                "Visitors to {v} may see the only known portrait of {s}.",
                "{v} keeps an oil portrait of {s} above the stairs.",
                "The best likeness of {s}, a portrait in oils, is shown at {v}.",
            ),
            line="Portrait: {v}",
            links=("a portrait of {a} hangs in {b}", "{b} displays a likeness of {a}"),
            ask="In which building does a portrait of {s} hang?",
            target="building",
        ),
        Choice(
            name="profession",
            tells=(
                "{s} worked as {v} for most of a long life.",
                "By trade {s} was {v}.",
                "The census lists {s} as {v}.",
                "{s} earned a living as {v}.",
            ),
            line="Occupation: {v}",
            clues=("worked as {v}", "made a living as {v}"),
            lexicon="professions",
        ),
        Choice(
            name="pastime",
            tells=(
                "In free hours {s} loved {v} above all else.",
                "The diaries of {s} speak of {v} on nearly every page.",
                "{s} was devoted to {v}.",
                "Friends recalled that {s} never tired of {v}.",
            ),
            line="Pastime: {v}",
            clues=("was devoted to {v}", "spent every free hour on {v}"),
            lexicon="pastimes",
        ),
        Choice(
            name="instrument",
            tells=(
                "{s} played {v} from childhood.",
                "At family gatherings {s} played {v}.",
                "{s} had lessons on {v} and kept it up into old age.",
                "Neighbours often heard {s} practising {v}.",
            ),
            line="Instrument: {v}",
            clues=("played {v}", "made music on {v}"),
            lexicon="instruments",
        ),
        Number(
            name="letters",
            tells=(
                "Some {v} letters by {s} survive.",
                "The archive holds {v} letters in the hand of {s}.",
                "Of the correspondence of {s}, {v} letters have been traced.",
                "An edition prints the {v} letters that {s} left behind.",
            ),
            line="Surviving letters: {v}",
            clues=("left behind {r} letters", "wrote a correspondence of which {r} items survive"),
            ask="How many letters by {s} survive?",
            polar="Do more than {t} letters by {s} survive?",
            low=12,
            size=900,
        ),
    ),
)
