"""The navigator, by rules and with scripted models: every path of a round, and its end."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.llm_model import ScriptedModel, saying, used
from support.search import WordBackend, store_of

from soundingline.agents.base import Budget, RunResources
from soundingline.agents.literature import Navigator, OverlapScorer
from soundingline.agents.literature.planner import normalize_checklist, read_plan
from soundingline.agents.literature.rules import find_clauses
from soundingline.agents.literature.scores import CandidateScores
from soundingline.toolkit.benchmarks.links import LinkGraph
from soundingline.toolkit.corpus.resolve import Resolver
from soundingline.toolkit.data import Document, Link, Topic
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.llm.errors import (
    AuthenticationFailed,
    OutOfMoney,
    ServerGone,
    ServerTimeout,
)
from soundingline.toolkit.llm.ledger import Ledger
from soundingline.toolkit.llm.prices import Price
from soundingline.toolkit.runs import RunFolder, dump_trajectory, read_trajectory
from soundingline.toolkit.runs.run_folder import RoundsFile
from soundingline.toolkit.search import Literature, Located, Operators, RankedBrowsing
from soundingline.toolkit.search.scoring import (
    CandidateDocument,
    DocumentScore,
    RequirementScore,
)

QUESTION = "Which mills grind barley, stand by the Wey and did not burn down?"
TEXTS = {
    "barley": "This mill grinds barley.",
    "wey": "This mill grinds barley and stands by the Wey.",
    "burnt": "This mill grinds barley by the Wey until it was burnt.",
    "town": "A town by the sea.",
    "rye": "A kiln that dries rye.",
}
CHECKLIST = ["grinds barley", "stands by the Wey"]
STORE = store_of({docid: Document(docid, f"The {docid}", t) for docid, t in TEXTS.items()})


class WholeDocuments:
    """Every document is its own evidence."""

    def locate(self, docids, requirements, most=3):
        return [[[Located(docid, 1.0)] for _ in requirements] for docid in docids]


def plan(*queries, checklist=CHECKLIST, **others):
    rows = [row if isinstance(row, dict) else {"query": row} for row in queries]
    text = json.dumps({"checklist": list(checklist), "queries": rows, "reason": "So.", **others})
    return saying(f"Here is the plan:\n{text}", usage=used())


STOP = saying('{"stop": true}', usage=used())


class Scorer(OverlapScorer):
    """Scores by words; what `act` does or raises for a candidate comes first."""

    def __init__(
        self, act: Callable[[CandidateDocument], DocumentScore | None] = lambda one: None
    ) -> None:
        super().__init__()
        self.scored = []
        self._act = act

    def score(self, candidates):
        self.scored += [(c.docid, row.requirement) for c in candidates for row in c.evidence]
        acted = [self._act(candidate) for candidate in candidates]
        judged = super().score(candidates)
        return [mine or theirs for mine, theirs in zip(acted, judged, strict=True)]


def answered(
    model,
    scorer=None,
    *,
    budget=None,
    resources=None,
    texts=TEXTS,
    question=QUESTION,
    **settings,
):
    operators = Operators(
        links=LinkGraph.build([Link("wey", "town")]),
        locator=WholeDocuments(),
        scorer=scorer or Scorer(),
        resolver=Resolver(Document(docid, f"The {docid}", "") for docid in TEXTS),
    )
    tool = Literature().bind(operators).open(WordBackend(texts), STORE)
    given = RunResources(budget or Budget(), model=model, **(resources or {}))
    agent = Navigator(**settings).bind(given)
    return asyncio.run(agent.run(Topic("q", question), tool))


def request(model, number):
    return str(model.requests[number].messages[-1]["content"])


def test_plans_and_checklists_are_the_models_and_are_revised_from_the_evidence():
    revised = [*CHECKLIST, "was not burnt"]
    model = ScriptedModel(plan("mill barley"), plan("burnt mill", checklist=revised), STOP)
    scorer = Scorer()
    trajectory = answered(model, scorer, rounds=5)
    assert trajectory.status == "completed", trajectory.traceback
    assert trajectory.answer.documents[0] == "wey", "the burnt one misses what came in round 2"
    assert [row["checklist"] for row in trajectory.rounds] == [CHECKLIST, revised]
    assert all(row["planned_by"] == "model" for row in trajectory.rounds)
    table = request(model, 1)
    assert "Round 2 of 5" in table and "1. grinds barley" in table
    assert "1. 3 satisfied, 0 not, 0 open" in table and "> wey | The wey |" in table
    assert "- search: mill barley (3 new)" in table
    assert ">   1 satisfied 1.00 in wey: This mill grinds barley and stands by the Wey." in table
    assert table.count(">   wey | This mill grinds barley and stands by the Wey.") == 1
    assert len(scorer.scored) == len(set(scorer.scored)), "nothing is scored twice"
    assert ("wey", "was not burnt") in scorer.scored


def test_a_trajectory_tells_its_rounds_and_is_read_back(tmp_path):
    trajectory = answered(ScriptedModel(plan("mill barley"), STOP), rounds=3)
    (row,) = trajectory.rounds
    assert row["librarians"][0] | {"error": ""} == row["librarians"][0]
    cell = row["documents"]["wey"]["requirements"]["grinds barley"]
    assert cell["verdict"] == "satisfied" and cell["passage"] == "wey"
    assert row["documents"]["wey"]["score"] > row["documents"]["barley"]["score"]
    path = tmp_path / "q.json"
    path.write_text(dump_trajectory(trajectory), encoding="utf-8")
    assert read_trajectory(path).rounds == trajectory.rounds
    calls = [message for message in trajectory.messages if message["role"] == "tool"]
    assert [message["content"] for message in calls] == [c.output for c in trajectory.calls]


def test_navigator_and_librarians_are_on_one_ledger_by_role():
    ledger = Ledger()

    def librarian(candidate):
        with ledger.request(
            "librarian", candidate.qid or "q", Price(input=1.0, output=1.0)
        ) as entry:
            entry.reply(saying("", usage=used(7, 3)))

    model = ScriptedModel(plan("mill barley"), STOP)
    resources = {"ledger": ledger, "price": Price(input=2.0, output=2.0)}
    usage = answered(model, Scorer(librarian), resources=resources, rounds=3).usage
    assert usage["navigator_calls"] == 2 and usage["librarian_calls"] == 3
    assert usage["librarian_input_tokens"] == 21 and usage["calls"] == 5


def test_a_librarian_that_fails_leaves_its_documents_unscored_and_the_round_goes_on():
    def act(candidate):
        if candidate.docid == "rye":
            raise ServerTimeout("late")

    trajectory = answered(
        ScriptedModel(plan("mill barley", "kiln rye"), STOP), Scorer(act), rounds=2
    )
    assert trajectory.status == "completed"
    (row,) = trajectory.rounds
    assert row["unscored"] == {"server_timeout": 1}
    assert row["documents"]["rye"]["unscored"] == "server_timeout"
    assert set(trajectory.answer.documents) == {"wey", "barley", "burnt", "rye"}
    assert trajectory.answer.documents[-1] == "rye"
    assert "1 documents could not be scored" in trajectory.warnings


def test_a_document_whose_scores_failed_is_tried_again_in_the_next_round():
    failures = iter([True])

    def act(candidate):
        if candidate.docid == "rye" and next(failures, False):
            return DocumentScore((None, None), error="unreadable")
        return None

    model = ScriptedModel(plan("mill barley rye"), plan("town sea"))
    trajectory = answered(model, Scorer(act), rounds=2)
    assert trajectory.rounds[0]["unscored"] == {"unreadable": 1}
    assert trajectory.rounds[1]["unscored"] == {}
    assert "score" in trajectory.rounds[1]["documents"]["rye"]


def test_a_librarian_that_is_late_leaves_its_documents_unscored():
    go_on = threading.Event()

    def act(candidate):
        if candidate.docid == "rye":
            go_on.wait(60)

    began = time.monotonic()
    try:
        trajectory = answered(
            ScriptedModel(plan("mill barley", "kiln rye"), STOP),
            Scorer(act),
            rounds=2,
            librarian_seconds=1.0,
        )
    finally:
        go_on.set()
    assert time.monotonic() - began < 30
    assert trajectory.rounds[0]["unscored"] == {"timed_out": 1}
    assert trajectory.status == "completed" and "wey" in trajectory.answer.documents


def test_where_no_document_could_be_scored_the_question_has_failed():
    dead = Scorer(lambda one: DocumentScore((None, None), error="server_gone"))
    trajectory = answered(ScriptedModel(plan("mill barley")), dead)
    assert (trajectory.status, trajectory.reason) == ("failed", ServerGone.code)


def test_an_error_that_stops_the_run_ends_the_question():
    def act(candidate):
        raise AuthenticationFailed("no key")

    trajectory = answered(ScriptedModel(plan("mill barley")), Scorer(act))
    assert (trajectory.status, trajectory.reason) == ("failed", "authentication_failed")


def test_a_navigator_that_returns_prose_is_asked_once_more():
    model = ScriptedModel(saying("Let me think."), plan("mill barley"), STOP)
    trajectory = answered(model, rounds=2)
    assert trajectory.answer.documents[0] == "wey"
    assert "Reply with that object alone" in request(model, 1)


def test_prose_twice_at_the_beginning_is_planned_by_rules():
    model = ScriptedModel(saying(""), last=saying("See The Fabled Mill (2031), by N. Obody."))
    trajectory = answered(model, rounds=3)
    assert trajectory.status == "completed"
    assert [row["planned_by"] for row in trajectory.rounds] == ["rules"]
    assert all(message["content"] for message in model.requests[1].messages)
    assert trajectory.answer.documents and set(trajectory.answer.documents) <= set(TEXTS)
    assert any("gave no plan" in warning for warning in trajectory.warnings)


def test_docids_that_a_model_invents_reach_no_result():
    invented = {"operator": "expand", "docids": ["nobody", "wey"], "direction": "both"}
    rows = ({"operator": "expand", "docids": ["nobody"]}, invented, {"operator": "fly"}, 7)
    text = saying(json.dumps({"queries": list(rows), "documents": ["nobody"]}))
    trajectory = answered(ScriptedModel(plan("Wey"), text), rounds=2)
    assert "town" in trajectory.answer.documents, "what is linked with a known document"
    assert set(trajectory.answer.documents) <= set(TEXTS)
    assert trajectory.rounds[1]["left_out"] == 3
    assert trajectory.rounds[1]["librarians"][0]["docids"] == ["wey"]


def test_findings_of_the_model_are_mapped_to_the_corpus_or_left_out():
    findings = {"operator": "resolve", "findings": ["The rye", "The Fabled Mill (2031)"]}
    trajectory = answered(ScriptedModel(plan("Wey", findings), STOP), rounds=2)
    assert "rye" in trajectory.answer.documents
    assert set(trajectory.answer.documents) <= set(TEXTS)


def test_filters_keep_hits_by_their_titles():
    has = {"query": "mill barley", "title_has": ["WEY", "burnt"], "title_lacks": ["burnt"]}
    trajectory = answered(ScriptedModel(plan(has), STOP), rounds=2)
    assert trajectory.answer.documents == ("wey",)
    assert trajectory.rounds[0]["librarians"][0]["title_lacks"] == ["burnt"]


def test_an_empty_pool_ends_in_an_empty_list():
    model = ScriptedModel(plan("nothing like it"), plan("nor this"))
    trajectory = answered(model, texts={}, rounds=2)
    assert trajectory.status == "completed" and trajectory.answer.documents == ()
    assert "(nothing was scored)" in request(model, 1) or "0 satisfied" in request(model, 1)


@pytest.mark.parametrize("checklist", [[], ["", " \n"]])
def test_without_a_checklist_documents_are_judged_by_the_question(checklist):
    trajectory = answered(ScriptedModel(plan("mill", checklist=checklist), STOP), rounds=2)
    assert trajectory.status == "completed"
    assert trajectory.rounds[0]["checklist"] == [QUESTION]


def test_a_checklist_of_200_items_is_cut_and_counted():
    items = [f"meets requirement {number} {'x' * 400}" for number in range(200)]
    scorer = Scorer()
    trajectory = answered(ScriptedModel(plan("mill", checklist=items), STOP), scorer, rounds=2)
    assert trajectory.status == "completed"
    assert len(trajectory.rounds[0]["checklist"]) == 30
    assert trajectory.rounds[0]["left_out"] == 170
    assert all(call.error == "" for call in trajectory.calls)


def test_requirements_in_other_scripts_are_scored_as_they_are():
    items = ["用大麦磨粉", "يطحن الشعير", "می‌خواهم", "half a pair \ud800"]
    scorer = Scorer()
    model = ScriptedModel(plan("mill", checklist=items), STOP)
    trajectory = answered(model, scorer, rounds=2)
    assert trajectory.status == "completed"
    assert {need for _, need in scorer.scored} == {*items[:3], "half a pair ?"}


def test_no_new_good_document_in_a_row_of_rounds_ends_the_search():
    model = ScriptedModel(last=plan("town sea"))
    trajectory = answered(model, rounds=9, patience=2, bar=0.9)
    assert [row["good"] for row in trajectory.rounds] == [0, 0]
    model = ScriptedModel(plan("mill barley"), last=plan("town sea"))
    trajectory = answered(model, rounds=9, patience=2, bar=0.9)
    assert [row["good"] for row in trajectory.rounds] == [1, 0, 0]


def test_gaps_and_strategy_are_recorded_and_the_next_round_sees_the_strategy():
    gaps = {"missing": ["mills that burnt"], "strategy": "Search for fires."}
    model = ScriptedModel(plan("mill barley"), plan("burnt mill", **gaps), STOP)
    trajectory = answered(model)
    assert [row["missing"] for row in trajectory.rounds] == [[], ["mills that burnt"]]
    assert "The strategy so far:\n(none)" in request(model, 1)
    assert "The strategy so far:\nSearch for fires." in request(model, 2)


def test_the_model_may_stop_before_the_last_of_four_rounds():
    trajectory = answered(ScriptedModel(plan("mill barley"), plan("Wey"), STOP, last=plan("sea")))
    assert [row.get("stopped") for row in trajectory.rounds] == [None, "plan"]
    assert len(answered(ScriptedModel(last=plan("mill barley")), patience=9).rounds) == 4


@pytest.mark.parametrize(("enough", "rounds"), [(2, 1), (3, 2)])
def test_rounds_end_when_enough_documents_satisfy_every_requirement(enough, rounds):
    # `wey` and `burnt` meet both requirements, `barley` and `town` one or none.
    model = ScriptedModel(plan("Wey"), plan("town sea"), STOP)
    trajectory = answered(model, enough=enough)
    assert len(trajectory.rounds) == rounds
    assert trajectory.rounds[-1]["stopped"] == ("coverage" if rounds == 1 else "plan")


def test_queries_of_a_round_are_limited():
    model = ScriptedModel(plan("mill", "barley", "Wey", "sea"), STOP)
    trajectory = answered(model, rounds=2, queries=2)
    assert [row["text"] for row in trajectory.rounds[0]["librarians"]] == ["mill", "barley"]
    assert trajectory.rounds[0]["left_out"] == 2


@pytest.mark.parametrize(
    ("budget", "status", "reason"),
    [
        (Budget(turns=1), "out_of_turns", "turns"),
        (Budget(output_tokens=5), "out_of_turns", "output_tokens"),
        (Budget(tool_calls=2), "out_of_turns", "tool_calls"),
        (Budget(context_window=4100), "out_of_context", "context_window"),
    ],
)
def test_each_budget_ends_the_rounds_with_what_was_scored(budget, status, reason):
    model = ScriptedModel(last=plan("mill barley", "town sea"))
    trajectory = answered(model, budget=budget, rounds=9, patience=9)
    assert (trajectory.status, trajectory.reason) == (status, reason)
    if reason != "context_window":
        assert trajectory.answer.documents and len(trajectory.rounds) == 1


def test_money_that_ends_in_the_middle_of_a_round_leaves_what_was_scored_before():
    rounds = [plan("Wey"), plan("mill barley", "kiln rye")]

    def act(candidate):
        if candidate.docid == "rye":
            raise OutOfMoney("gone", scope="question")

    trajectory = answered(ScriptedModel(*rounds), Scorer(act), rounds=3)
    assert (trajectory.status, trajectory.reason) == ("out_of_money", "dollars")
    assert "score" in trajectory.rounds[1]["documents"]["barley"], "the other librarian's are kept"
    assert trajectory.answer.documents[0] == "wey"


def test_the_runs_money_ends_the_question_so_that_it_is_asked_again():
    ledger = Ledger(cap=1e-9)
    resources = {"ledger": ledger, "price": Price(input=1.0, output=1.0)}
    model = ScriptedModel(last=plan("mill barley"))
    trajectory = answered(model, resources=resources, rounds=3)
    assert (trajectory.status, trajectory.reason) == ("out_of_money", "run_out_of_money")
    assert trajectory.answer.documents and len(trajectory.rounds) == 1


def test_seconds_end_a_round_that_is_under_way():
    go_on = threading.Event()
    try:
        trajectory = answered(
            ScriptedModel(plan("mill barley")),
            Scorer(lambda one: go_on.wait(5) and None),  # type: ignore[arg-type,return-value]
            budget=Budget(seconds=0.4),
            rounds=3,
        )
    finally:
        go_on.set()
    assert (trajectory.status, trajectory.reason) == ("timed_out", "seconds")
    assert trajectory.seconds < 4 and set(trajectory.answer.documents) >= {"wey", "barley"}


def test_a_question_survives_kill_9_between_rounds(tmp_path):
    folder = RunFolder(tmp_path / "run")
    file = folder.rounds("q").path
    resources = {"rounds": folder.rounds}

    def work_until_killed():
        never = asyncio.Event().wait
        answered(ScriptedModel(plan("mill barley"), lambda: never()), rounds=3, resources=resources)

    process = multiprocessing.get_context("fork").Process(target=work_until_killed)
    process.start()
    until = time.monotonic() + 30
    while not folder.rounds("q").read() and time.monotonic() < until:
        time.sleep(0.01)
    assert process.pid
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    with file.open("ab") as stream:
        stream.write(b'{"row": {"round": 2, ')  # what a kill may leave of the next line
    scorer = Scorer()
    trajectory = answered(
        ScriptedModel(plan("kiln rye"), STOP), scorer, rounds=3, resources=resources
    )
    assert trajectory.status == "completed", trajectory.traceback
    assert {docid for docid, _ in scorer.scored} == {"rye"}
    assert [row["round"] for row in trajectory.rounds] == [1, 2]
    assert "went on behind round 1" in trajectory.warnings
    with folder.writing({"sealed": False, "fingerprints": {}}):
        folder.write(trajectory)
    assert not file.exists() and folder.read("q") == trajectory


def test_a_file_of_rounds_that_is_none_of_ours_is_told():
    class Foreign(RoundsFile):
        def read(self):
            return [{"row": 1}]

    resources = {"rounds": lambda qid: Foreign(Path("x.rounds.jsonl"))}
    trajectory = answered(ScriptedModel(), resources=resources)
    assert trajectory.status == "failed" and "rounds.jsonl" in trajectory.traceback


def test_librarians_of_all_questions_share_one_bound():
    lock, under_way, most = threading.Lock(), [0], [0]

    def act(candidate):
        with lock:
            under_way[0] += 1
            most[0] = max(most[0], under_way[0])
        time.sleep(0.02)
        with lock:
            under_way[0] -= 1

    operators = Operators(locator=WholeDocuments(), scorer=Scorer(act))
    model = ScriptedModel(last=plan("mill", "barley", "Wey", "rye", "sea"))
    agent = Navigator(rounds=1, librarians=3).bind(RunResources(Budget(), model=model))

    async def all_questions():
        return await asyncio.gather(
            *(
                agent.run(
                    Topic(f"q{number}", QUESTION),
                    Literature().bind(operators).open(WordBackend(TEXTS), STORE),
                )
                for number in range(6)
            )
        )

    trajectories = asyncio.run(all_questions())
    assert all(trajectory.status == "completed" for trajectory in trajectories)
    assert 2 <= most[0] <= 3


def test_a_prompt_of_ones_own_needs_all_its_sections(tmp_path):
    path = tmp_path / "own.txt"
    path.write_text("=== system ===\nPlan.\n", encoding="utf-8")
    with pytest.raises(InputError, match="navigator's prompt"):
        Navigator(prompt=str(path))
    with pytest.raises(InputError, match="no prompt"):
        Navigator(prompt="nowhere")


def test_a_calibration_maps_the_probability_and_its_absence_is_said(tmp_path):
    path = tmp_path / "calibration.json"
    path.write_text('{"method": "isotonic", "x": [0.0, 1.0], "y": [0.0, 0.5], "scorer": ""}')

    def act(candidate):
        plain = OverlapScorer().score([candidate])[0]
        return plain._replace(probability=0.8, origin="stated")

    script = (plan("mill barley"), STOP)
    raw = answered(ScriptedModel(*script), Scorer(act), rounds=2)
    assert "the scorer's probability is not calibrated" in raw.warnings
    row = raw.rounds[0]["documents"]["wey"]
    mean = sum(cell["score"] for cell in row["requirements"].values()) / 2
    assert row["score"] == pytest.approx((mean + 0.8) / 2) and "calibrated" not in row
    mapped = answered(ScriptedModel(*script), Scorer(act), rounds=2, calibration=str(path))
    row = mapped.rounds[0]["documents"]["wey"]
    assert row["calibrated"] == pytest.approx(0.4)
    assert row["score"] == pytest.approx((mean + 0.4) / 2)
    assert not [line for line in mapped.warnings if "calibrated" in line]
    assert Navigator().fingerprints["calibration"] == "none"
    for damaged in ("", "[]", '{"method": "magic"}', '{"method": "isotonic", "x": [1], "y": []}'):
        path.write_text(damaged)
        with pytest.raises(InputError, match="calibration"):
            Navigator(calibration=str(path))


def test_a_plan_is_the_last_object_of_a_reply():
    text = 'First {"queries": ["a"]}, or rather {"queries": ["b", {"query": 7}], "checklist": "c"}'
    read = read_plan(text, set(), queries=5, requirements=5)
    assert read is not None and [query.text for query in read.queries] == ["b", "7"]
    assert read.checklist == ("c",)
    assert read_plan("no plan", set(), queries=5, requirements=5) is None
    assert normalize_checklist(["a  b", "a b", ""], 9) == ("a b",)


def ordered_by(reranker, **settings):
    operators = Operators(locator=WholeDocuments(), scorer=Scorer(), order=reranker)
    tool = Literature().bind(operators).open(WordBackend(TEXTS), STORE)
    agent = Navigator(rounds=1, **settings).bind(
        RunResources(Budget(), model=ScriptedModel(plan("mill barley town")))
    )
    return asyncio.run(agent.run(Topic("q", QUESTION), tool))


def test_the_best_are_put_in_the_order_of_a_re_ranker_of_lists():
    asked = []

    def backwards(qid, question, documents):
        asked.append((qid, question, list(documents)))
        return ["nobody", *(docid for docid, _ in reversed(documents))]

    plain = ordered_by(None).answer.documents
    trajectory = ordered_by(backwards, ordered=3)
    assert trajectory.answer.documents == (*reversed(plain[:3]), *plain[3:])
    ((_, question, documents),) = asked
    assert question == QUESTION and documents[0] == (plain[0], f"The {plain[0]}\n{TEXTS[plain[0]]}")
    assert trajectory.calls[-1].name == "order"


@pytest.mark.parametrize(
    ("error", "status"), [(ServerTimeout("late"), "completed"), (OutOfMoney("x"), "out_of_money")]
)
def test_a_re_ranker_of_lists_that_fails_leaves_the_order_of_scores(error, status):
    def broken(qid, question, documents):
        raise error

    trajectory = ordered_by(broken)
    assert trajectory.status == status
    assert trajectory.answer.documents == ordered_by(None).answer.documents
    assert any("not re-ranked" in line for line in trajectory.warnings)


# Without a model: requirements read from a question, and plans by rules.

RULE_QUESTION = (
    "Find all pages about a mill that grinds barley and was built between 1700 and 1750. "
    "The mill stands in Port Brel. Leave out those where the mill burnt down."
)
RULE_TEXTS = {
    "good": "A mill. It grinds barley. It was built in 1720. It stands in Port Brel.",
    "burnt": "A mill. It grinds barley. It was built in 1720. It burnt down. It is in Port Brel.",
    "late": "A mill. It grinds barley. It was built in 1820. It stands in Port Brel.",
    "linked": "It turns since 1730 beside the river Wey.",
    "town": "A town by the sea.",
    "other": "Nothing of the kind.",
}
RULE_DOCUMENTS = {
    docid: Document(docid, "Port Brel" if docid == "town" else docid, text)
    for docid, text in RULE_TEXTS.items()
}


RULE_STORE = store_of(RULE_DOCUMENTS)
RULE_OPERATORS = Operators(
    links=LinkGraph.build([Link("linked", "town"), Link("good", "town")]),
    locator=WholeDocuments(),
    scorer=OverlapScorer(),
    resolver=Resolver(Document(d.docid, d.title, "") for d in RULE_DOCUMENTS.values()),
)


def answered_by_rules(operators=RULE_OPERATORS, **settings):
    backend = WordBackend(RULE_TEXTS)
    tool = Literature().bind(operators).open(backend, RULE_STORE)
    return asyncio.run(Navigator(**settings).run(Topic("q", RULE_QUESTION), tool))


def test_requirements_are_the_clauses_of_the_question():
    clauses = find_clauses(RULE_QUESTION, lambda word: 0.5)
    assert [(clause.query, clause.span, clause.excluded) for clause in clauses] == [
        ("mill", None, False),
        ("grinds barley", None, False),
        ("built", (1700, 1750), False),
        ("mill stands Port Brel", None, False),
        ("mill burnt", None, True),
    ]


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("with between 1,200 and 3,400 people", (1200, 3400)),
        ("no earlier than 1800 and no later than 1809", (1800, 1809)),
        ("at least 5 but at most 90 mills", (5, 90)),
        ("opened in the 1870s", (1870, 1879)),
        ("opened in the decade that began in 1870", (1870, 1879)),
    ],
)
def test_a_range_stays_whole_and_is_understood(text, span):
    clauses = find_clauses(f"Towns {text}", lambda word: 0.5)
    assert [clause.span for clause in clauses if clause.span] == [span]


def test_a_number_outside_of_the_range_counts_less():
    (clause,) = find_clauses("built between 1700 and 1750", lambda word: 0.5)
    assert clause.best_sentence("It was built in 1720.")[0] == 1.0
    assert 0 < clause.best_sentence("It was built in 1820. Rain fell in 1720.")[0] < 0.5
    assert clause.best_sentence("Nothing.")[0] == 0.0


def test_a_question_without_words_is_one_requirement():
    assert len(find_clauses("???", lambda word: 0.5)) == 1


def test_the_document_that_meets_all_stands_above_its_near_misses():
    trajectory = answered_by_rules()
    documents = list(trajectory.answer.documents)
    assert trajectory.status == "completed"
    assert documents[0] == "good"
    assert set(documents) <= set(RULE_DOCUMENTS)
    assert trajectory.tiers["cited"] == ("good",)


def test_a_second_round_follows_links_to_what_the_question_names():
    assert "linked" not in answered_by_rules(rounds=1).answer.documents
    trajectory = answered_by_rules(rounds=2)
    assert "linked" in trajectory.answer.documents
    assert {"resolve", "expand"} <= {call.name for call in trajectory.calls}


def test_without_links_the_second_round_asks_again():
    trajectory = answered_by_rules(Operators(locator=WholeDocuments(), scorer=OverlapScorer()))
    assert {call.name for call in trajectory.calls} == {"search", "score"}
    assert trajectory.answer.documents[0] == "good"


def test_calls_that_are_used_up_leave_an_answer_from_what_was_scored():
    trajectory = answered_by_rules(max_calls=9)
    assert trajectory.status == "steered" and len(trajectory.calls) <= 9
    assert trajectory.answer.documents


def test_the_answer_is_no_longer_than_asked_for():
    assert len(answered_by_rules(listed=2).answer.documents) == 2


def test_a_pool_of_nothing_is_answered_by_an_empty_list():
    bare = Operators(locator=WholeDocuments(), scorer=OverlapScorer())
    tool = Literature().bind(bare).open(WordBackend({}), store_of({}))
    trajectory = asyncio.run(Navigator().run(Topic("q", RULE_QUESTION), tool))
    assert trajectory.status == "completed" and trajectory.answer.documents == ()


def test_an_interface_without_evidence_fails_its_question_in_one_line():
    tool = RankedBrowsing().open(WordBackend(RULE_TEXTS), RULE_STORE)
    trajectory = asyncio.run(Navigator().run(Topic("q", RULE_QUESTION), tool))
    assert trajectory.status == "failed"
    assert "an interface that searches, locates evidence and scores it" in trajectory.traceback


@pytest.mark.parametrize(
    "name",
    [
        *("rounds", "queries", "requirements", "pool", "seeds", "shown", "listed", "patience"),
        *("ordered", "enough"),
        *("librarians", "librarian_seconds", "max_calls"),
    ],
)
def test_impossible_settings_are_refused(name):
    settings = {name: 0}
    with pytest.raises(InputError, match=name):
        Navigator(**settings)


@pytest.mark.parametrize(("by_checklist", "expected"), [(True, (0.5 + 0.9) / 2), (False, 0.9)])
def test_a_score_may_be_the_probability_alone(by_checklist, expected):
    scores = CandidateScores(by_checklist=by_checklist)
    scores.checklist = ("early", "cited")
    scores.add_ranking(["d1"])
    met, missed = RequirementScore("satisfied", 1.0), RequirementScore("not satisfied", 0.0)
    scores.add("d1", scores.checklist, DocumentScore((met, missed), probability=0.9))
    assert scores.score("d1") == pytest.approx(expected)


def test_the_score_of_a_document_by_hand():
    scores = CandidateScores(lambda probability: probability / 2)  # calibrated: 0.8 is 0.4
    scores.checklist = ("a", "b", "c")
    scores.add_ranking(["d1", "d2"])
    cells = [RequirementScore("satisfied", 1.0), RequirementScore("satisfied", 0.5), None]
    scores.add("d1", scores.checklist, DocumentScore(tuple(cells), probability=0.8, origin="score"))
    # ((1 + 0.5 + 0) / 3 + 0.4) / 2
    assert scores.score("d1") == pytest.approx(0.45)
    full = [RequirementScore("satisfied", 1.0)] * 3
    scores.add("d2", scores.checklist, DocumentScore(tuple(full), probability=1.0))
    assert scores.score("d2") == pytest.approx((1 + 0.5) / 2)
    scores = CandidateScores()  # the largest score is 1
    scores.checklist = ("a",)
    scores.add_ranking(["d"])
    scores.add("d", ("a",), DocumentScore((full[0],), probability=1.0))
    assert scores.score("d") == 1.0
