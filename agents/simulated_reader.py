"""A simulation that reads in place of a language model, for collections whose facts are known."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from soundingline.toolkit.data import StatedFact
from soundingline.toolkit.trajectory import Answer


class ShownText(NamedTuple):
    """A text that an agent was shown, under the title with which it was shown."""

    docid: str
    title: str
    text: str


@dataclass(frozen=True)
class SimulatedReader:
    """Answers a question right if the texts that an agent was shown state every fact that the
    question needs, and says `unknown` otherwise. It never guesses and never misreads, so that the
    accuracy of its answers measures search and exposure alone.

    A text states a fact if it contains one of the fact's wordings whole, white space and capitals
    aside, and names its subject in the wording or the title. Ids of documents play no part, except
    that the answer cites the documents whose texts it used.

    Args:
        needed_facts: the facts that each question needs, by qid.
        answers: the accepted answers by qid, the fullest first.

    Example:
        >>> from soundingline.toolkit.data import StatedFact
        >>> fact = StatedFact("Mill", named=("the old mill",), titled=("It was built in 1820",))
        >>> reader = SimulatedReader({"q1": [fact]}, {"q1": ["1820"]})
        >>> reader.answer("q1", [ShownText("d1", "Mill", "It was built in 1820.")]).exact
        '1820'
    """

    needed_facts: Mapping[str, Sequence[StatedFact]]
    answers: Mapping[str, Sequence[str]]

    def answer(self, qid: str, shown: Iterable[ShownText]) -> Answer:
        """The answer to a question after these texts, with confidence 100 or 0."""
        texts = [(each, _plain(each.title), _plain(each.text)) for each in shown]
        everything = "\n".join(text for _, _, text in texts)
        facts, sources = self.needed_facts[qid], dict[str, None]()
        stated = 0
        for fact in facts:
            # Most facts have not been shown, which a search for plain strings tells quickly.
            named = [wording for wording in map(_plain, fact.named) if wording in everything]
            titled = [wording for wording in map(_plain, fact.titled) if wording in everything]
            subject = _plain(fact.subject)
            for each, title, text in texts:
                wordings = named + titled if title == subject else named
                if any(_states(text, wording) for wording in wordings):
                    sources[each.docid] = None
                    stated += 1
                    break
        explanation = f"Simulated reader: {stated} of {len(facts)} needed facts were shown."
        if stated < len(facts):
            return Answer(explanation, "unknown", 0.0)
        return Answer(explanation, self.answers[qid][0], 100.0, tuple(sources))


def _plain(text: str) -> str:
    """The text without differences of white space and capitals."""
    return " ".join(text.split()).casefold()


def _states(text: str, wording: str) -> bool:
    """Whether a text has the wording, not inside a longer word or number."""
    whole = rf"(?<!\w){re.escape(wording)}(?!\w|[.,]\d)"
    return wording in text and re.search(whole, text) is not None
