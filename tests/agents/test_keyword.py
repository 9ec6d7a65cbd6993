from __future__ import annotations

import asyncio
import inspect
import json
import time
from collections.abc import Mapping

import pytest
from toy_search import WordBackend, store_of

from soundingline.agents.keyword import KeywordAgent
from soundingline.toolkit.data import Document, Topic
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.search import RankedBrowsing, TopK

CORPUS = {
    "mill": Document(
        "mill",
        "Grenholm Mill",
        "Grenholm Mill stands on the river Aske.\nIt was built by Torvald Brekke in 1871.\n"
        "The mill burnt in 1911 and was never rebuilt.",
    ),
    "brekke": Document(
        "brekke",
        "Torvald Brekke",
        "Torvald Brekke was a carpenter.\nBrekke was born in Lysanger on 4 May 1832.",
    ),
    "swan": Document("swan", "Swan", "Young swans are known as cygnets.\nSwans eat plants."),
    "river": Document("river", "Aske", "The river Aske is 42 miles long.\nIt has eleven bridges."),
    **{
        f"filler{number}": Document(f"filler{number}", "", f"Entry {number} of a river list.")
        for number in range(30)
    },
}
TEXTS = {docid: f"{document.title}\n{document.text}" for docid, document in CORPUS.items()}


def ranked(**arguments):
    return RankedBrowsing(**arguments).open(WordBackend(TEXTS), store_of(CORPUS))


def top_k(**arguments):
    return TopK(**arguments).open(WordBackend(TEXTS), store_of(CORPUS))


INTERFACES = {
    "ranked browsing": ranked,
    "top k": top_k,
    "top k with get_document": lambda: top_k(get_document=True),
}


def ask(question, tool=None, **arguments):
    agent = KeywordAgent(**arguments)
    return asyncio.run(agent.run(Topic("q1", question), tool or ranked()))


def names(trajectory):
    return [call.name for call in trajectory.calls]


@pytest.mark.parametrize("make", INTERFACES.values(), ids=INTERFACES.keys())
@pytest.mark.parametrize(
    ("question", "answer", "docid"),
    [
        ("Who built Grenholm Mill?", "Torvald Brekke", "mill"),
        ("What year did the Grenholm Mill burn?", "1911", "mill"),
        ("When was Torvald Brekke born?", "4 May 1832", "brekke"),
        ("Where was Torvald Brekke born?", "Lysanger", "brekke"),
        ("How many bridges has the river Aske?", "eleven", "river"),
        ("What are young swans known as?", "cygnets", "swan"),
        ("Was the Grenholm Mill rebuilt?", "No", "mill"),
    ],
)
def test_plain_questions_are_answered_and_cited_through_every_interface(
    make, question, answer, docid
):
    trajectory = ask(question, make())
    assert trajectory.status == "completed", trajectory.traceback
    assert trajectory.answer.exact == answer
    assert docid in trajectory.answer.citations
    assert tuple(trajectory.answer.citations) == tuple(trajectory.tiers["cited"])
    assert 0 < (trajectory.answer.confidence or 0) <= 100


def test_every_tool_of_ranked_browsing_is_used_with_a_reason():
    trajectory = ask("Who built Grenholm Mill on the river Aske?")
    assert set(names(trajectory)) == {"search", "read_search_results", "read_document"}
    assert all(call.arguments["reason"] and not call.error for call in trajectory.calls)


def test_only_declared_arguments_are_sent():
    trajectory = ask("Who built Grenholm Mill?", top_k(get_document=True))
    assert set(names(trajectory)) == {"search", "get_document"}
    assert all("reason" not in call.arguments for call in trajectory.calls)
    assert not any(call.error for call in trajectory.calls)


def test_messages_are_linear_and_pair_every_call_with_its_result():
    trajectory = ask("Who built Grenholm Mill?")
    first, *middle, last = trajectory.messages
    assert first == {"role": "user", "content": "Who built Grenholm Mill?"}
    assert [message["role"] for message in middle] == ["assistant", "tool"] * len(trajectory.calls)
    for request, result, call in zip(middle[::2], middle[1::2], trajectory.calls, strict=True):
        (made,) = request["tool_calls"]
        assert made["id"] == result["tool_call_id"]
        assert made["function"]["name"] == call.name
        assert json.loads(made["function"]["arguments"]) == call.arguments
        assert result["content"] == call.output
        assert request["content"] and "\n" not in request["content"]
    explanation, exact, confidence = last["content"].split("\n")
    assert explanation.startswith("Explanation: ") and "[mill]" in explanation
    assert exact == "Exact Answer: Torvald Brekke"
    assert confidence.startswith("Confidence: ") and confidence.endswith("%")


def test_the_second_hop_is_found_through_what_was_read():
    texts = {
        "mill": "Grenholm Mill was built by Torvald Brekke.",
        "brekke": "Torvald Brekke did grow up in the town of Lysanger.",
        **{f"f{number}": f"The town of place {number} is old." for number in range(30)},
    }

    def search(**arguments):
        tool = RankedBrowsing(page=1).open(WordBackend(texts), store_of(texts))
        question = "In which town did the builder of Grenholm Mill grow up?"
        return ask(question, tool, pages=0, **arguments)

    assert "brekke" in search().tiers["previewed"]
    assert "brekke" not in search(feedback_terms=0).tiers["previewed"]
    assert "brekke" not in search(follow_ups=0).tiers["previewed"]


def test_no_hit_at_all_still_gives_an_answer():
    for question in ("Zzyzx qwxv?", "who is it", ""):
        trajectory = ask(question)
        assert trajectory.status == "completed"
        assert trajectory.answer.exact == "unknown"
        assert trajectory.answer.confidence == 0
        assert trajectory.answer.citations == ()


@pytest.mark.parametrize("make", INTERFACES.values(), ids=INTERFACES.keys())
def test_the_same_question_gives_the_same_trajectory(make):
    def untimed(trajectory):
        calls = [(call.name, call.arguments, call.output) for call in trajectory.calls]
        return calls, trajectory.messages, trajectory.answer, trajectory.exposures

    question = "Where was the carpenter who built Grenholm Mill on the river Aske born?"
    assert untimed(ask(question, make())) == untimed(ask(question, make()))


def test_limits_are_kept():
    question = "Which carpenter built the mill, which burnt in 1911, on the river Aske, near swans?"
    assert names(ask(question, max_searches=1)).count("search") == 1
    assert names(ask(question, max_searches=3, follow_ups=3)).count("search") <= 3
    assert names(ask(question, max_reads=2)).count("read_document") == 2
    assert "read_document" not in names(ask(question, max_reads=0))
    assert "read_search_results" not in names(ask(question, pages=0))
    pages = names(ask("Aske river list", max_searches=1, pages=2))
    assert pages.count("read_search_results") == 2
    assert len(ask(question, max_calls=4).calls) == 4
    queries = [call.arguments["query"] for call in ask(question, query_terms=2, follow_ups=0).calls
               if call.name == "search"]  # fmt: skip
    assert all(len(query.split()) <= 2 for query in queries)


def test_browsing_goes_on_where_the_page_ended():
    trajectory = ask("river list", max_searches=1, pages=2, max_reads=0)
    offsets = [call.arguments.get("offset") for call in trajectory.calls]
    assert offsets == [None, 6, 16]
    shown = [unit_id for call in trajectory.calls for unit_id in call.shown]
    assert shown == list(trajectory.calls[0].ranking[:25])


def test_a_long_document_is_read_on_from_where_the_page_ended():
    lines = [f"Line {number} says nothing." for number in range(1, 500)]
    text = "\n".join([*lines, "Grenholm Mill was built by Torvald Brekke."])
    tool = RankedBrowsing(excerpt="none").open(WordBackend({"d": text}), store_of({"d": text}))
    trajectory = ask("Who built Grenholm Mill?", tool)
    read = [call.arguments for call in trajectory.calls if call.name == "read_document"]
    assert [arguments.get("offset") for arguments in read] == [None, 201, 401]
    assert trajectory.answer.exact == "Torvald Brekke"


def test_passages_are_read_from_where_they_start():
    long = "\n".join(["Nothing here."] * 300 + ["Grenholm Mill was built by Torvald Brekke."])
    passages = {"d%p0": "Nothing here.", "d%p1": "Grenholm Mill was built by Torvald Brekke."}
    store = store_of({"d": long}, passages)
    trajectory = ask(
        "Who built Grenholm Mill?", RankedBrowsing().open(WordBackend(passages), store)
    )
    (read,) = [call for call in trajectory.calls if call.name == "read_document"]
    assert "lines 301-301 of 301" in read.output
    assert trajectory.answer.exact == "Torvald Brekke"
    assert trajectory.answer.citations == ("d",)


class BrokenBackend(WordBackend):
    def __init__(self, texts: Mapping[str, str], good: int) -> None:
        super().__init__(texts)
        self.good = good

    def search(self, request):
        self.good -= 1
        if self.good < 0:
            raise RuntimeError("the index is gone")
        return super().search(request)


def test_a_broken_backend_fails_the_question_with_what_happened_so_far():
    tool = RankedBrowsing().open(BrokenBackend(TEXTS, good=1), store_of(CORPUS))
    trajectory = ask("Who built Grenholm Mill?", tool)
    assert trajectory.status == "failed"
    assert "RuntimeError: the index is gone" in trajectory.traceback
    assert len(trajectory.calls) >= 1
    assert "mill" in trajectory.tiers["previewed"]
    assert trajectory.messages[-1]["role"] == "assistant"
    assert trajectory.answer.exact == ""


def test_a_tool_that_closes_leads_to_an_answer_from_what_was_seen():
    class Closing(RankedBrowsing):
        def call(self, name, arguments):
            if len(self.calls) == 1:
                self.block("The time for retrieval is over. Answer now.")
            return super().call(name, arguments)

    tool = Closing().open(WordBackend(TEXTS), store_of(CORPUS))
    trajectory = ask("Who built Grenholm Mill?", tool)
    assert trajectory.status == "steered"
    assert [call.error for call in trajectory.calls] == ["", "blocked", "blocked", "blocked"]
    assert trajectory.answer.exact == "Torvald Brekke"


def test_a_single_refusal_is_survived():
    class Moody(RankedBrowsing):
        def call(self, name, arguments):
            wrong = {"query": ""} if len(self.calls) == 1 else {}
            return super().call(name, {**arguments, **wrong})

    tool = Moody().open(WordBackend(TEXTS), store_of(CORPUS))
    trajectory = ask("Who built Grenholm Mill?", tool)
    assert [bool(call.error) for call in trajectory.calls].count(True) == 1
    assert (trajectory.status, trajectory.answer.exact) == ("completed", "Torvald Brekke")


def test_time_that_runs_out_leads_to_an_answer_from_what_was_seen():
    ticks = iter(range(1000))
    trajectory = ask("Who built Grenholm Mill?", seconds=4, clock=lambda: float(next(ticks)))
    assert trajectory.status == "steered"
    assert 0 < len(trajectory.calls) < 4
    assert trajectory.answer.exact == "Torvald Brekke"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_searches", 0),
        ("max_searches", 2.5),
        ("max_searches", True),
        ("pages", -1),
        ("max_reads", -1),
        ("follow_ups", -1),
        ("query_terms", 0),
        ("feedback_terms", -2),
        ("max_calls", 0),
        ("seconds", 0),
        ("seconds", -3.0),
        ("seconds", "10"),
        ("documents", 0),
    ],
)
def test_an_impossible_value_is_named(name, value):
    with pytest.raises(InputError, match=name):
        KeywordAgent(**{name: value})


def test_the_class_stays_small():
    assert len(inspect.getsource(KeywordAgent).splitlines()) < 200


def long_documents(count, words):
    vocabulary = ["river", "stone", "mill", "north", "garden", "winter", "carpenter", "paper"]
    for number in range(count):
        body = (vocabulary[(number + at * at) % len(vocabulary)] for at in range(words))
        sentences = " ".join(f"{word.capitalize()}." if at % 12 == 11 else word
                             for at, word in enumerate(body))  # fmt: skip
        yield f"d{number}", f"{sentences}\nThe mill of Place{number} was built in {1700 + number}."


def test_a_question_on_long_documents_costs_little():
    texts = dict(long_documents(8, 5000))
    store, backend = store_of(texts), WordBackend(texts)
    agent, topic = KeywordAgent(), Topic("q", "When was the north garden mill of Place7 built?")
    costs = []
    for _ in range(5):
        tool = RankedBrowsing().open(backend, store)
        began = time.process_time()
        trajectory = asyncio.run(agent.run(topic, tool))
        costs.append(time.process_time() - began)
    assert trajectory.answer.exact == "1707"
    # 0.15 s is the aim for agent and tool together; four times that leaves room for a slow machine.
    assert min(costs) < 0.6
