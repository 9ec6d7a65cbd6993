"""Agents with the resources of a run."""

from dataclasses import replace

from soundingline.agents.base import Budget, RunResources
from soundingline.agents.chat import ChatAgent
from soundingline.agents.keyword import KeywordAgent, SimulatedReader
from soundingline.toolkit.evaluation.answers import findable
from soundingline.toolkit.evaluation.funnel import NeededTexts
from soundingline.toolkit.llm.prices import UNKNOWN


def reading_agent(answer, docid, *, qid="q1", **arguments):
    """A keyword agent that answers `qid` if it was shown the answer in the document."""
    reader = SimulatedReader(
        NeededTexts({qid: {docid: findable([answer])}}, {}, {}), {qid: [answer]}
    )
    return KeywordAgent(**arguments).bind(RunResources(Budget(), reader=reader))


class CitingAgent(KeywordAgent):
    """The keyword agent, whose answers cite what it has read last."""

    def bind(self, resources):
        bound = super().bind(resources)

        def answer(qid, shown):
            texts = list(shown)
            cited = dict.fromkeys(text.docid for text in texts[-2:])
            return replace(resources.reader(qid, texts), citations=tuple(cited))

        bound.reader = answer
        return bound


def bound(
    model=None,
    *,
    kind=ChatAgent,
    budget=None,
    ledger=None,
    settings=None,
    price=UNKNOWN,
    clock=None,
    **arguments,
):
    """An agent of this kind with these arguments, bound to a model; `clock` returns seconds."""
    agent = kind(**arguments)
    agent.clock = clock or agent.clock
    return agent.bind(RunResources(budget or Budget(), ledger, model, settings, price))
