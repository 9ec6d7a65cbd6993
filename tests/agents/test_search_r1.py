"""Search-R1's loop: what is sent, what an action is, and how a question ends."""

import asyncio

import pytest
from support.agents import bound
from support.benchmarks import WordBackend, store_of
from support.llm_model import ScriptedModel, saying
from support.runs import ended

from soundingline.agents.base import Budget
from soundingline.agents.search_r1 import SearchR1Agent
from soundingline.toolkit.data import Document, Topic
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.llm import Turn
from soundingline.toolkit.llm.errors import ContextOverflow, Truncated
from soundingline.toolkit.search import RankedBrowsing, TopK

CORPUS = {
    "mill": Document("mill", "Grenholm Mill", "Torvald Brekke built it in 1871."),
    "brekke": Document("brekke", "Torvald Brekke", "A carpenter of Grenholm."),
}
QUESTION = Topic("q1", "Who built Grenholm Mill ")
SEARCH = "<think>Who?</think>\n<search> Grenholm Mill </search>"
ANSWER = "<think>He did.</think>\n<answer> Torvald Brekke </answer>"
FOUND = (
    "\n\n<information>Doc 1(Title: Grenholm Mill) Torvald Brekke built it in 1871.\n"
    "Doc 2(Title: Torvald Brekke) A carpenter of Grenholm.</information>\n\n"
)


def session(tool=None):
    texts = {docid: f"{document.title}\n{document.text}" for docid, document in CORPUS.items()}
    tool = tool or TopK(k=3, max_tokens=None)
    return tool.open(WordBackend(texts), store_of(CORPUS))


def ask(*steps, turns=4, last=None, **arguments):
    model = ScriptedModel(*steps, last=last)
    agent = bound(model, kind=SearchR1Agent, budget=Budget(turns=turns), **arguments)
    return asyncio.run(agent.run(QUESTION, session())), model


def test_a_question_is_searched_and_answered_in_one_text_of_the_model():
    trajectory, model = ask(saying(SEARCH), saying(ANSWER))
    assert (trajectory.status, trajectory.answer.exact) == ("completed", "Torvald Brekke")
    [call] = trajectory.calls
    assert (call.name, call.arguments) == ("search", {"query": "Grenholm Mill"})
    assert trajectory.tiers["previewed"] == ("mill", "brekke")
    opening, first = (request.messages for request in model.requests)
    [rules] = opening
    assert rules["role"] == "user"
    assert rules["content"].endswith("Question: Who built Grenholm Mill?")
    assert first == [rules, {"role": "assistant", "content": SEARCH + FOUND}]
    assert all(request.tools == [] for request in model.requests)
    extras = [request.settings.extra for request in model.requests]
    assert extras == [{}, {"add_generation_prompt": False, "continue_final_message": True}]
    roles = [message["role"] for message in trajectory.messages]
    assert roles == ["user", "assistant", "user", "assistant"]


def test_a_rewriter_gets_the_newest_reasoning_with_each_query():
    requests = []

    class Recording(WordBackend):
        def search(self, request):
            requests.append(request)
            return super().search(request)

    tool = TopK(k=3).open(Recording({"mill": "Grenholm Mill"}), store_of(CORPUS))
    apart = Turn(text="<search>a mill</search>", reasoning="A mill, then.")
    model = ScriptedModel(saying(SEARCH), saying("<search>Brekke</search>"), apart, saying(ANSWER))
    asyncio.run(bound(model, kind=SearchR1Agent).run(QUESTION, tool))
    sent = [(request.query, request.reasoning) for request in requests]
    assert sent == [("Grenholm Mill", "Who?"), ("Brekke", "Who?"), ("a mill", "A mill, then.")]


def test_the_first_action_of_a_reply_counts_and_what_follows_is_dropped():
    invented = f"{SEARCH}<information>Doc 1(Title: x) y</information>{ANSWER}"
    trajectory, model = ask(saying(invented), saying(ANSWER))
    assert len(trajectory.calls) == 1
    assert model.requests[1].messages[1]["content"] == SEARCH + FOUND


@pytest.mark.parametrize(
    "invalid", ["Torvald Brekke.", "<search>Grenholm", "<search>Grenholm</answer>", ""]
)
def test_a_reply_without_an_action_is_corrected(invalid):
    trajectory, model = ask(saying(invalid), saying(ANSWER))
    assert trajectory.answer.exact == "Torvald Brekke" and not trajectory.calls
    continued = model.requests[1].messages[1]["content"]
    assert continued.startswith(f"{invalid}\nMy previous action is not valid.")
    assert continued.endswith("I try again.\n")


def test_a_reply_that_is_cut_has_an_action_or_is_corrected():
    cut = Truncated("cut", turn=saying("<think>" + "Who? " * 9))
    trajectory, model = ask(cut, Truncated("cut", turn=saying(SEARCH + "<thi")), saying(ANSWER))
    assert trajectory.answer.exact == "Torvald Brekke" and len(trajectory.calls) == 1
    assert "not valid" in model.requests[1].messages[1]["content"]
    assert model.requests[2].messages[1]["content"].endswith(SEARCH + FOUND)


@pytest.mark.parametrize(
    ("final", "answer"), [(ANSWER, "Torvald Brekke"), (SEARCH, ""), ("Brekke, perhaps.", "")]
)
def test_after_the_last_turn_there_is_one_reply_and_no_search(final, answer):
    trajectory, model = ask(*[saying(SEARCH)] * 4, saying(final))
    assert ended(trajectory) == ("out_of_turns", "turns")
    assert trajectory.answer.exact == answer
    assert len(trajectory.calls) == 4 and len(model.requests) == 5
    # Nothing is demanded: the last request ends in the newest results.
    assert model.requests[-1].messages[-1]["content"] == (SEARCH + FOUND) * 4


def test_a_transcript_that_the_server_refuses_twice_is_sent_without_the_newest_results():
    refusal = ContextOverflow("too long")
    trajectory, model = ask(saying(SEARCH), refusal, refusal, saying(ANSWER))
    assert (trajectory.status, trajectory.answer.exact) == ("out_of_context", "Torvald Brekke")
    assert [len(request.messages) for request in model.requests] == [1, 2, 2, 1]


def test_when_time_is_nearly_over_the_answer_is_demanded_and_no_search_is_made():
    now = iter([0.0, 0.0, 80.0, *[80.0] * 50])
    model = ScriptedModel(saying(SEARCH), saying(ANSWER))
    budget = Budget(seconds=100.0, turns=4)
    agent = bound(model, kind=SearchR1Agent, budget=budget, clock=lambda: next(now))
    trajectory = asyncio.run(agent.run(QUESTION, session()))
    assert trajectory.status == "steered" and trajectory.answer.exact == "Torvald Brekke"
    assert ["nearly over" in message["content"] for message in trajectory.messages].count(True) == 1


def test_a_search_that_needs_more_than_a_query_is_refused():
    agent = SearchR1Agent()
    agent.check_tool(session())
    with pytest.raises(InputError, match=r"needs reason, query.*tool=search_r1"):
        agent.check_tool(session(RankedBrowsing()))
