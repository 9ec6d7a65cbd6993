"""Towns and rivers."""

from __future__ import annotations

from toolkit.benchmarks.fictional.schema import Choice, EntityType, Number, Relation, Year

TOWN = EntityType(
    name="town",
    slots=2,
    nouns=("town", "settlement"),
    forms=("{}", "{} Cross", "Port {}", "Nether {}"),
    opening=(
        "{n} is a town with a weekly market.",
        "Travellers have long written about the town of {n}.",
        "This page gathers notes on the town of {n} and its surroundings.",
    ),
    headings=("History", "Geography", "Economy", "Culture", "Streets", "Transport", "Customs"),
    attributes=(
        Year(
            name="chartered",
            tells=(
                "{s} received its charter in {v}.",
                "The charter of {s} was sealed in {v}.",
                "Since {v}, the year of its charter, {s} has governed itself.",
                "In {v} a charter raised {s} to the rank of a town.",
            ),
            line="Charter: {v}",
            clues=("received its charter {r}", "was granted the right to govern itself {r}"),
            ask="In what year did {s} receive its charter?",
            polar="Did {s} receive its charter before {t}?",
            first=1080,
            span=600,
        ),
        Number(
            name="population",
            tells=(
                "{s} has a population of {v}.",
                "The last census counted {v} inhabitants in {s}.",
                "About its size there is no dispute: {s} has {v} inhabitants.",
                "Some {v} people live in {s}.",
            ),
            line="Population: {v}",
            clues=("has a population of {r}", "is home to {r} people"),
            ask="How many inhabitants does {s} have?",
            polar="Does {s} have more than {t} inhabitants?",
            low=400,
            octaves=7,
        ),
        Relation(
            name="river",
            tells=(
                "{s} lies on {v}.",
                "{v} flows past the old walls of {s}.",
                "The lower streets of {s} run down to {v}.",
                "{s} owes its existence to a ford across {v}.",
            ),
            line="River: {v}",
            links=("{a} lies on {b}", "{b} flows past {a}"),
            ask="On which river does {s} lie?",
            target="river",
        ),
        Relation(
            name="partner",
            tells=(
                "{s} is twinned with {v}.",
                "A partnership of towns links {s} with {v}.",
                "Every second summer {s} receives guests from its twin town {v}.",
                "The council of {s} has declared {v} its twin town.",
            ),
            line="Twin town: {v}",
            links=("{a} is twinned with {b}", "{a} has chosen {b} as its partner"),
            ask="With which town is {s} twinned?",
            target="town",
        ),
        Choice(
            name="trade",
            tells=(
                "{s} became known for its trade in {v}.",
                "The wealth of {s} came from {v}.",
                "For three centuries {s} supplied the country with {v}.",
                "Merchants of {s} dealt above all in {v}.",
            ),
            line="Trade: {v}",
            clues=("grew wealthy by trading in {v}", "owes its prosperity to {v}"),
            lexicon="goods",
        ),
        Choice(
            name="dish",
            tells=(
                "The favourite dish of {s} is {v}.",
                "Every inn in {s} serves {v}.",
                "Cooks in {s} are proud of their {v}.",
                "No feast in {s} is complete without {v}.",
            ),
            line="Local dish: {v}",
            clues=("is proud of serving {v}", "has inns where guests are offered {v}"),
            lexicon="dishes",
        ),
        Choice(
            name="stone",
            tells=(
                "The houses of {s} are built of {v}.",
                "Most of {s} is made of {v}.",
                "{v} gives the streets of {s} their character.",
                "After the fire {s} was rebuilt in {v}.",
            ),
            line="Building material: {v}",
            clues=("has houses built of {v}", "is made up of dwellings of {v}"),
            lexicon="materials",
        ),
    ),
)

RIVER = EntityType(
    name="river",
    slots=1,
    nouns=("river", "watercourse"),
    forms=("River {}", "{} Water", "Little {} River", "{} Brook"),
    opening=(
        "{n} is a river of changing moods.",
        "The river called {n} has shaped the land around it.",
        "This page follows the river {n} from its source.",
    ),
    headings=("Course", "Hydrology", "Wildlife", "Navigation", "Floods", "Legends"),
    attributes=(
        Number(
            name="length",
            tells=(
                "{s} is {v} kilometres long.",
                "From source to mouth {s} measures {v} kilometres.",
                "Surveyors put the length of {s} at {v} kilometres.",
                "Over its {v} kilometres {s} hardly ever runs straight.",
            ),
            line="Length in kilometres: {v}",
            clues=("is {r} kilometres long", "takes {r} kilometres to reach its end"),
            ask="How many kilometres long is {s}?",
            polar="Is {s} more than {t} kilometres long?",
            low=18,
            size=700,
        ),
        Number(
            name="mills",
            tells=(
                "At one time {v} mills stood along {s}.",
                "{s} drove {v} mills.",
                "An old survey counts {v} mills on {s}.",
                "The banks of {s} carried {v} mills.",
            ),
            line="Mills: {v}",
            clues=("drove {r} mills", "turned the wheels of {r} mills"),
            ask="How many mills did {s} drive?",
            polar="Did {s} drive more than {t} mills?",
            low=5,
            size=240,
        ),
        Relation(
            name="mouth",
            tells=(
                "{s} reaches the sea at {v}.",
                "The mouth of {s} is at {v}.",
                "At {v} the waters of {s} meet the tide.",
                "{s} ends its course in the harbour of {v}.",
            ),
            line="Mouth: {v}",
            links=("{a} reaches the sea at {b}", "{b} stands at the mouth of {a}"),
            ask="At which town does {s} reach the sea?",
            target="town",
        ),
        Relation(
            name="mapper",
            tells=(
                "{s} was first mapped by {v}.",
                "{v} drew the first reliable map of {s}.",
                "The earliest map of {s} is the work of {v}.",
                "With two mules and a compass {v} mapped {s}.",
            ),
            line="First mapped by: {v}",
            links=("{a} was first mapped by {b}", "{b} charted the course of {a}"),
            ask="Who first mapped {s}?",
            target="person",
        ),
        Choice(
            name="fish",
            tells=(
                "The commonest fish in {s} is {v}.",
                "Anglers visit {s} for {v}.",
                "{v} is found in every pool of {s}.",
                "In {s} the usual catch is {v}.",
            ),
            line="Commonest fish: {v}",
            clues=("has {v} as its commonest fish", "is fished for {v}"),
            lexicon="fishes",
        ),
        Choice(
            name="tint",
            tells=(
                "After rain {s} turns {v}.",
                "The water of {s} has a tint of {v}.",
                "Painters gave {s} a tone of {v}.",
                "In spring {s} looks {v} from the hills.",
            ),
            line="Colour after rain: {v}",
            clues=("shows {v} in its water", "is known for {v} in its pools"),
            lexicon="colours",
        ),
    ),
)
