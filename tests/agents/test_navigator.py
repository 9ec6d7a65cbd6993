"""The navigator, by rules and with scripted models: every path of a round, and its end; killed
behind a round and started again, it ends with the trajectory of one that was left alone: every text
that its scorer and its re-ranker of lists read, and the whole record."""

import asyncio
import json
import multiprocessing
import os
import random
import signal
import threading
import time
from collections import Counter
from typing import NamedTuple

import pytest
from support.assertions import refused
from support.benchmarks import WordBackend, store_of
from support.llm_model import ScriptedModel, saying, used
from support.needs import cases
from support.runs import ended

from soundingline.agents.base import Budget, RunResources
from soundingline.agents.literature import Navigator, OverlapScorer
from soundingline.agents.literature.planner import normalize_checklist, read_plan
from soundingline.agents.literature.rules import find_clauses
from soundingline.agents.literature.scores import Calibration, CandidateScores
from soundingline.toolkit.corpus.links import LinkGraph
from soundingline.toolkit.corpus.resolve import Resolver
from soundingline.toolkit.data import Document, Link, SearchResult, Topic
from soundingline.toolkit.llm.errors import AuthenticationFailed, OutOfMoney, ServerTimeout
from soundingline.toolkit.llm.ledger import Ledger
from soundingline.toolkit.llm.prices import Price
from soundingline.toolkit.runs import RunFolder, dump_trajectory, read_trajectory
from soundingline.toolkit.runs.run_folder import RoundsFile
from soundingline.toolkit.search import Literature, Located, Operators, RankedBrowsing
from soundingline.toolkit.search.scoring import DocumentScore, RequirementScore
from soundingline.toolkit.trajectory import Trajectory, to_record

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
STOP = saying('{"stop": true}', usage=used())


class WholeDocuments:
    """Every document is its own evidence."""

    def locate(self, docids, requirements, most=3):
        return [[[Located(docid, 1.0)] for _ in requirements] for docid in docids]


def plan(*queries, checklist=CHECKLIST, **others):
    rows = [row if isinstance(row, dict) else {"query": row} for row in queries]
    text = json.dumps({"checklist": list(checklist), "queries": rows, "reason": "So.", **others})
    return saying(f"Here is the plan:\n{text}", usage=used())


class Scorer(OverlapScorer):
    """Scores by words; what `act` does or raises for a candidate comes first."""

    def __init__(self, act=lambda candidate: None):
        super().__init__()
        self.scored, self._act = [], act

    def score(self, candidates):
        self.scored += [(c.docid, row.requirement) for c in candidates for row in c.evidence]
        acted = [self._act(candidate) for candidate in candidates]
        judged = super().score(candidates)
        return [mine or theirs for mine, theirs in zip(acted, judged, strict=True)]


def answered(
    *steps, act=None, scorer=None, budget=None, resources=(), texts=TEXTS, order=None, **settings
):
    """The trajectory of a question whose model, if it is not given, says the steps and stops."""
    scripted = len(steps) == 1 and isinstance(steps[0], ScriptedModel)
    model = steps[0] if scripted else ScriptedModel(*steps, last=STOP)
    operators = Operators(
        links=LinkGraph.build([Link("wey", "town")]),
        locator=WholeDocuments(),
        scorer=scorer or Scorer(act or (lambda candidate: None)),
        resolver=Resolver(Document(docid, f"The {docid}", "") for docid in TEXTS),
        order=order,
    )
    tool = Literature(operators=operators).open(WordBackend(texts), STORE)
    bound = RunResources(budget or Budget(), model=model, **dict(resources))
    agent = Navigator(**settings).bind(bound)
    return asyncio.run(agent.run(Topic("q", QUESTION), tool))


def test_plans_and_checklists_are_the_models_and_are_revised_from_the_evidence(tmp_path):
    revised, scorer = [*CHECKLIST, "was not burnt"], Scorer()
    gaps = {"missing": ["mills that burnt"], "strategy": "Search for fires."}
    model = ScriptedModel(plan("mill barley"), plan("burnt mill", checklist=revised, **gaps), STOP)
    trajectory = answered(model, scorer=scorer, rounds=5)
    assert trajectory.status == "completed", trajectory.traceback
    assert trajectory.answer.documents[0] == "wey", "the burnt one misses what came in round 2"
    first, second = trajectory.rounds
    assert (first["checklist"], second["checklist"]) == (CHECKLIST, revised)
    assert (first["missing"], second["missing"]) == ([], gaps["missing"])
    assert first["planned_by"] == second["planned_by"] == "model" and second["stopped"] == "plan"
    table = model.last_message(1)
    for text in (
        *("Round 2 of 5", "1. grinds barley", "1. 3 satisfied, 0 not, 0 open", "> wey | The wey |"),
        *("- search: mill barley (3 new)", "The strategy so far:\n(none)"),
        ">   1 satisfied 1.00 in wey: This mill grinds barley and stands by the Wey.",
    ):
        assert text in table
    assert table.count(">   wey | This mill grinds barley and stands by the Wey.") == 1
    assert "The strategy so far:\nSearch for fires." in model.last_message(2)
    assert len(scorer.scored) == len(set(scorer.scored)), "nothing is scored twice"
    assert ("wey", "was not burnt") in scorer.scored
    assert first["librarians"][0]["error"] == ""
    cell = first["documents"]["wey"]["requirements"]["grinds barley"]
    assert (cell["verdict"], cell["passage"]) == ("satisfied", "wey")
    assert first["documents"]["wey"]["score"] > first["documents"]["barley"]["score"]
    path = tmp_path / "q.json"
    path.write_text(dump_trajectory(trajectory), encoding="utf-8")
    assert read_trajectory(path).rounds == trajectory.rounds
    outputs = [message["content"] for message in trajectory.messages if message["role"] == "tool"]
    assert outputs == [call.output for call in trajectory.calls]


def test_navigator_and_librarians_are_on_one_ledger_by_role():
    ledger = Ledger()

    def librarian(candidate):
        with ledger.request("librarian", "q", Price(input=1.0, output=1.0)) as entry:
            entry.reply(saying("", usage=used(7, 3)))

    resources = {"ledger": ledger, "price": Price(input=2.0, output=2.0)}
    usage = answered(plan("mill barley"), act=librarian, resources=resources, rounds=3).usage
    assert usage["navigator_calls"] == 2 and usage["librarian_calls"] == 3
    assert usage["librarian_input_tokens"] == 21 and usage["calls"] == 5


def test_a_librarian_that_fails_or_is_late_leaves_its_documents_unscored():
    go_on = threading.Event()

    def fail():
        raise ServerTimeout("late")

    try:
        for act, code in ((fail, "server_timeout"), (lambda: go_on.wait(60), "timed_out")):
            began = time.monotonic()
            trajectory = answered(
                plan("mill barley", "kiln rye"),
                act=lambda one, act=act: act() and None if one.docid == "rye" else None,
                rounds=2,
                librarian_seconds=1.0,
            )
            assert time.monotonic() - began < 30 and trajectory.status == "completed"
            (row,) = trajectory.rounds
            assert row["unscored"] == {code: 1} and row["documents"]["rye"]["unscored"] == code
            assert set(trajectory.answer.documents) == {"wey", "barley", "burnt", "rye"}
            assert trajectory.answer.documents[-1] == "rye"
            assert "1 documents could not be scored" in trajectory.warnings
    finally:
        go_on.set()


def test_by_a_virtual_clock_no_librarian_is_late_and_a_plan_that_is_late_is_lost():
    slow = {"act": lambda one: time.sleep(0.05), "librarian_seconds": 0.01, "rounds": 1}
    late = answered(plan("mill barley"), **slow)
    assert late.rounds[0]["unscored"] and late.virtual_seconds is None
    done = answered(plan("mill barley"), budget=Budget(seconds=1e9, **VIRTUAL), **slow)
    assert done.status == "completed" and not done.rounds[0]["unscored"]
    assert done.virtual_seconds == 110 and done.seconds < 60
    model = ScriptedModel(plan("mill barley"))
    lost = answered(model, budget=Budget(seconds=110, **VIRTUAL), rounds=2)
    assert ended(lost) == ("timed_out", "seconds") and len(model.requests) == 1
    assert not lost.calls and not lost.rounds


def test_a_document_whose_scores_failed_is_tried_again_in_the_next_round():
    failures = iter([True])

    def act(candidate):
        if candidate.docid == "rye" and next(failures, False):
            return DocumentScore((None, None), error="unreadable")
        return None

    first, second = answered(plan("mill barley rye"), plan("town sea"), act=act, rounds=2).rounds
    assert (first["unscored"], second["unscored"]) == ({"unreadable": 1}, {})
    assert "score" in second["documents"]["rye"]


@pytest.mark.parametrize("error", [None, AuthenticationFailed("no key")])
def test_a_question_without_any_score_and_one_whose_run_must_stop_have_failed(error):
    def act(candidate):
        if error:
            raise error
        return DocumentScore((None, None), error="server_gone")

    trajectory = answered(plan("mill barley"), act=act)
    assert ended(trajectory) == ("failed", error.code if error else "server_gone")


def test_a_navigator_that_returns_prose_is_asked_once_more_and_then_rules_plan():
    model = ScriptedModel(saying("Let me think."), plan("mill barley"), STOP)
    assert answered(model, rounds=2).answer.documents[0] == "wey"
    assert "Reply with that object alone" in model.last_message(1)
    model = ScriptedModel(saying(""), last=saying("See The Fabled Mill (2031), by N. Obody."))
    trajectory = answered(model, rounds=3)
    assert trajectory.status == "completed"
    assert [row["planned_by"] for row in trajectory.rounds] == ["rules"]
    assert all(message["content"] for message in model.requests[1].messages)
    assert trajectory.answer.documents and set(trajectory.answer.documents) <= set(TEXTS)
    assert any("gave no plan" in warning for warning in trajectory.warnings)


def test_docids_and_findings_that_a_model_invents_reach_no_result():
    invented = {"operator": "expand", "docids": ["nobody", "wey"], "direction": "both"}
    rows = ({"operator": "expand", "docids": ["nobody"]}, invented, {"operator": "fly"}, 7)
    text = saying(json.dumps({"queries": list(rows), "documents": ["nobody"]}))
    trajectory = answered(plan("Wey"), text, rounds=2)
    assert "town" in trajectory.answer.documents, "what is linked with a known document"
    assert set(trajectory.answer.documents) <= set(TEXTS)
    assert trajectory.rounds[1]["left_out"] == 3
    assert trajectory.rounds[1]["librarians"][0]["docids"] == ["wey"]
    findings = {"operator": "resolve", "findings": ["The rye", "The Fabled Mill (2031)"]}
    documents = answered(plan("Wey", findings), rounds=2).answer.documents
    assert "rye" in documents and set(documents) <= set(TEXTS)


def test_filters_keep_hits_by_their_titles():
    has = {"query": "mill barley", "title_has": ["WEY", "burnt"], "title_lacks": ["burnt"]}
    trajectory = answered(plan(has), rounds=2)
    assert trajectory.answer.documents == ("wey",)
    assert trajectory.rounds[0]["librarians"][0]["title_lacks"] == ["burnt"]


LONG = [f"meets requirement {number} {'x' * 400}" for number in range(200)]
SCRIPTS = ["用大麦磨粉", "يطحن الشعير", "می‌خواهم"]


@pytest.mark.parametrize(
    ("items", "checklist", "left_out"),
    [
        ([], [QUESTION], 0),
        (["", " \n"], [QUESTION], None),
        (LONG, [item[:300] for item in LONG[:30]], 170),
        (SCRIPTS, SCRIPTS, 0),
    ],
    ids=["empty", "blank", "long", "scripts"],
)
def test_a_checklist_is_normalized_and_without_one_the_question_is_the_requirement(
    items, checklist, left_out
):
    scorer = Scorer()
    trajectory = answered(plan("mill", checklist=items), scorer=scorer, rounds=2)
    assert trajectory.status == "completed" and not any(call.error for call in trajectory.calls)
    assert trajectory.rounds[0]["checklist"] == checklist
    assert left_out in (None, trajectory.rounds[0]["left_out"])
    assert {need for _, need in scorer.scored} == set(checklist)


@pytest.mark.parametrize(
    ("steps", "settings", "good", "stopped"),
    [
        ([], {"rounds": 9, "patience": 2, "bar": 0.9}, [0, 0], "patience"),
        (["mill barley"], {"rounds": 9, "patience": 2, "bar": 0.9}, [1, 0, 0], "patience"),
        ([], {"patience": 9}, [1, 0, 0, 0], None),
        # `wey` and `burnt` meet both requirements, `barley` and `town` one or none.
        (["Wey"], {"enough": 2}, [2], "coverage"),
        (["Wey", STOP], {"enough": 3}, [2], "plan"),
    ],
)
def test_rounds_end_by_their_number_patience_coverage_or_plan(steps, settings, good, stopped):
    steps = [step if step is STOP else plan(step) for step in steps]
    trajectory = answered(ScriptedModel(*steps, last=plan("town sea")), **settings)
    assert [row["good"] for row in trajectory.rounds] == good
    assert trajectory.rounds[-1].get("stopped") == stopped


def test_queries_of_a_round_are_limited():
    (row,) = answered(plan("mill", "barley", "Wey", "sea"), rounds=2, queries=2).rounds
    assert [query["text"] for query in row["librarians"]] == ["mill", "barley"]
    assert row["left_out"] == 2


def test_an_empty_pool_ends_in_an_empty_list():
    model = ScriptedModel(plan("nothing like it"), plan("nor this"))
    trajectory = answered(model, texts={}, rounds=2)
    assert trajectory.status == "completed" and trajectory.answer.documents == ()
    assert "0 satisfied" in model.last_message(1)


# A token takes a second, and a search 20.
VIRTUAL = {
    "clock": "virtual",
    "speed": {"input": 1, "output": 1},
    "stage_seconds": {"retriever": 20},
}
PRICED = {"ledger": Ledger(cap=1e-9), "price": Price(input=1.0, output=1.0)}


@pytest.mark.parametrize(
    ("budget", "resources", "status", "reason"),
    [
        (Budget(turns=1), {}, "out_of_turns", "turns"),
        (Budget(output_tokens=5), {}, "out_of_turns", "output_tokens"),
        (Budget(tool_calls=2), {}, "out_of_turns", "tool_calls"),
        (Budget(exposed_tokens=20), {}, "out_of_turns", "exposed_tokens"),
        # A plan takes 110 seconds, and each of its two searches 20.
        (Budget(seconds=200, **VIRTUAL), {"stages": ["retriever"]}, "steered", "seconds"),
        (Budget(seconds=150, **VIRTUAL), {"stages": ["retriever"]}, "timed_out", "seconds"),
        (Budget(context_window=4100), {}, "out_of_context", "context_window"),
        (Budget(), PRICED, "out_of_money", "run_out_of_money"),
    ],
)
def test_each_budget_ends_the_rounds_with_what_was_scored(budget, resources, status, reason):
    model = ScriptedModel(last=plan("mill barley", "town sea"))
    trajectory = answered(model, budget=budget, resources=resources, rounds=9, patience=9)
    assert ended(trajectory) == (status, reason)
    rounds = 0 if reason == "context_window" else 1
    assert (bool(trajectory.answer.documents), len(trajectory.rounds)) == (rounds > 0, rounds)


def test_money_that_ends_in_the_middle_of_a_round_leaves_what_was_scored_before():
    def act(candidate):
        if candidate.docid == "rye":
            raise OutOfMoney("gone", scope="question")

    trajectory = answered(plan("Wey"), plan("mill barley", "kiln rye"), act=act, rounds=3)
    assert ended(trajectory) == ("out_of_money", "dollars")
    assert "score" in trajectory.rounds[1]["documents"]["barley"], "the other librarian's are kept"
    assert trajectory.answer.documents[0] == "wey"


def test_seconds_end_a_round_that_is_under_way():
    go_on = threading.Event()
    try:
        trajectory = answered(
            plan("mill barley"),
            act=lambda one: go_on.wait(5) and None,
            budget=Budget(seconds=0.4),
            rounds=3,
        )
    finally:
        go_on.set()
    assert ended(trajectory) == ("timed_out", "seconds")
    assert trajectory.seconds < 4 and set(trajectory.answer.documents) >= {"wey", "barley"}


def test_a_question_survives_kill_9_between_rounds(tmp_path):
    folder = RunFolder(tmp_path / "run")
    file = folder.rounds("q").path
    resources = {"rounds": folder.rounds}

    def work_until_killed():
        never = asyncio.Event().wait
        answered(plan("mill barley"), lambda: never(), rounds=3, resources=resources)

    process = multiprocessing.get_context("fork").Process(target=work_until_killed)
    process.start()
    until = time.monotonic() + 30
    while not folder.rounds("q").read() and time.monotonic() < until:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    with file.open("ab") as stream:
        stream.write(b'{"row": {"round": 2, ')  # what a kill may leave of the next line
    scorer = Scorer()
    trajectory = answered(plan("kiln rye"), scorer=scorer, rounds=3, resources=resources)
    assert trajectory.status == "completed", trajectory.traceback
    assert {docid for docid, _ in scorer.scored} == {"rye"}
    assert [row["round"] for row in trajectory.rounds] == [1, 2]
    assert "went on after round 1" in trajectory.warnings
    with folder.writing({"sealed": False, "fingerprints": {}}):
        folder.write(trajectory)
    assert not file.exists() and folder.read("q") == trajectory


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
    tools = [Literature(operators=operators).open(WordBackend(TEXTS), STORE) for _ in range(6)]

    async def all_questions():
        runs = (agent.run(Topic(f"q{n}", QUESTION), tool) for n, tool in enumerate(tools))
        return await asyncio.gather(*runs)

    assert {trajectory.status for trajectory in asyncio.run(all_questions())} == {"completed"}
    assert 2 <= most[0] <= 3


def test_a_calibration_maps_the_probability_and_its_absence_is_reported(tmp_path):
    path = tmp_path / "calibration.json"
    path.write_text('{"method": "isotonic", "x": [0.0, 1.0], "y": [0.0, 0.5], "scorer": ""}')

    def act(candidate):
        plain = OverlapScorer().score([candidate])[0]
        return plain._replace(probability=0.8, origin="stated")

    raw = answered(plan("mill barley"), act=act, rounds=2)
    assert "the scorer's probability is not calibrated" in raw.warnings
    row = raw.rounds[0]["documents"]["wey"]
    mean = sum(cell["score"] for cell in row["requirements"].values()) / 2
    assert row["score"] == pytest.approx((mean + 0.8) / 2) and "calibrated" not in row
    mapped = answered(plan("mill barley"), act=act, rounds=2, calibration=str(path))
    row = mapped.rounds[0]["documents"]["wey"]
    assert row["calibrated"] == pytest.approx(0.4)
    assert row["score"] == pytest.approx((mean + 0.4) / 2)
    assert not [line for line in mapped.warnings if "calibrated" in line]
    assert Navigator().fingerprints["calibration"] == "none"
    steps = ({"x": [1], "y": []}, {"x": [], "y": []}, {"x": [0.5, 0.2], "y": [0, 1]})
    isotonic = [json.dumps({"method": "isotonic", "scorer": "", **each}) for each in steps]
    for damaged in ("", "[]", '{"method": "magic"}', *isotonic):
        path.write_text(damaged)
        refused("calibration", lambda: Navigator(calibration=str(path)))


def test_a_logistic_calibration_is_right_at_any_slope(tmp_path):
    path = tmp_path / "calibration.json"
    for slope, calibrated in ((1, 0.8), (2, 16 / 17), (80, 1.0), (-80, 0.0)):  # 0.8 has the odds 4
        fitted = {"method": "platt", "scorer": "", "slope": slope, "intercept": 0}
        path.write_text(json.dumps(fitted))
        assert Calibration(str(path))(0.8) == pytest.approx(calibrated)
        assert Calibration(str(path))(0.0) == pytest.approx(0.0 if slope > 0 else 1.0, abs=1e-5)


def test_a_plan_is_the_last_object_of_a_reply():
    text = 'First {"queries": ["a"]}, or rather {"queries": ["b", {"query": 7}], "checklist": "c"}'
    read = read_plan(text, set(), queries=5, requirements=5)
    assert [query.text for query in read.queries] == ["b", "7"] and read.checklist == ("c",)
    assert read_plan("no plan", set(), queries=5, requirements=5) is None
    assert normalize_checklist(["a  b", "a b", ""], 9) == ("a b",)


def test_the_best_are_put_in_the_order_of_a_re_ranker_of_lists():
    requests = []

    def backwards(qid, question, documents):
        requests.append((question, list(documents)))
        return ["nobody", *(docid for docid, _ in reversed(documents))]

    plain = answered(plan("mill barley town"), rounds=1).answer.documents
    trajectory = answered(plan("mill barley town"), rounds=1, order=backwards, ordered=3)
    assert trajectory.answer.documents == (*reversed(plain[:3]), *plain[3:])
    ((question, documents),) = requests
    assert question == QUESTION and documents[0] == (plain[0], f"The {plain[0]}\n{TEXTS[plain[0]]}")
    assert trajectory.calls[-1].name == "order"
    for error, status in ((ServerTimeout("late"), "completed"), (OutOfMoney("x"), "out_of_money")):

        def broken(qid, question, documents, error=error):
            raise error

        trajectory = answered(plan("mill barley town"), rounds=1, order=broken)
        assert trajectory.status == status and trajectory.answer.documents == plain
        assert any("not re-ranked" in line for line in trajectory.warnings)


def test_a_prompt_of_ones_own_needs_all_its_sections(tmp_path):
    path = tmp_path / "own.txt"
    path.write_text("=== system ===\nPlan.\n", encoding="utf-8")
    for prompt, message in ((str(path), "navigator's prompt"), ("nowhere", "no prompt")):
        refused(message, Navigator, prompt=prompt)


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
BARE = {"locator": WholeDocuments(), "scorer": OverlapScorer()}
LINKED = {
    "links": LinkGraph.build([Link("linked", "town"), Link("good", "town")]),
    "resolver": Resolver(Document(d.docid, d.title, "") for d in RULE_DOCUMENTS.values()),
}


def answered_by_rules(tool=None, texts=RULE_TEXTS, calls=None, **settings):
    tool = tool or Literature(operators=Operators(**BARE, **LINKED))
    session = tool.open(WordBackend(texts), store_of(RULE_DOCUMENTS))
    agent = Navigator(**settings).bind(RunResources(Budget(tool_calls=calls)))
    return asyncio.run(agent.run(Topic("q", RULE_QUESTION), session))


@pytest.mark.parametrize(
    ("question", "clauses"),
    [
        (
            RULE_QUESTION,
            [
                ("mill", None, False),
                ("grinds barley", None, False),
                ("built", (1700, 1750), False),
                ("mill stands Port Brel", None, False),
                ("mill burnt", None, True),
            ],
        ),
        ("with between 1,200 and 3,400 people", [("people", (1200, 3400), False)]),
        ("a mill no earlier than 1800 and no later than 1809", [("mill", (1800, 1809), False)]),
        ("at least 5 but at most 90 mills", [("mills", (5, 90), False)]),
        ("opened in the 1870s", [("opened", (1870, 1879), False)]),
        ("opened in the decade that began in 1870", [("opened", (1870, 1879), False)]),
        ("???", [("", None, False)]),
    ],
)
def test_requirements_are_the_clauses_of_the_question(question, clauses):
    read = find_clauses(question, lambda word: 0.5)
    assert [(clause.query, clause.span, clause.excluded) for clause in read] == clauses


def test_a_number_outside_of_the_range_counts_less():
    (clause,) = find_clauses("built between 1700 and 1750", lambda word: 0.5)
    assert clause.best_sentence("It was built in 1720.")[0] == 1.0
    assert 0 < clause.best_sentence("It was built in 1820. Rain fell in 1720.")[0] < 0.5
    assert clause.best_sentence("Nothing.")[0] == 0.0


def test_by_rules_the_document_that_meets_all_is_first_and_links_are_followed():
    trajectory = answered_by_rules()
    documents = trajectory.answer.documents
    assert trajectory.status == "completed" and trajectory.tiers["cited"] == ("good",)
    assert documents[0] == "good" and set(documents) <= set(RULE_DOCUMENTS)
    assert "linked" not in answered_by_rules(rounds=1).answer.documents
    trajectory = answered_by_rules(rounds=2)
    assert "linked" in trajectory.answer.documents
    assert {"resolve", "expand"} <= {call.name for call in trajectory.calls}
    bare = Literature(operators=Operators(**BARE))
    without_links = answered_by_rules(bare)
    assert {call.name for call in without_links.calls} == {"search", "score"}
    assert without_links.answer.documents[0] == "good"
    assert len(answered_by_rules(listed=2).answer.documents) == 2
    empty = answered_by_rules(bare, texts={})
    assert empty.status == "completed" and empty.answer.documents == ()
    cut = answered_by_rules(calls=9)
    assert cut.status == "out_of_turns" and len(cut.calls) <= 9 and cut.answer.documents


def test_an_interface_without_evidence_fails_its_question_in_one_line():
    trajectory = answered_by_rules(RankedBrowsing())
    assert trajectory.status == "failed"
    assert "an interface that searches, locates evidence and scores it" in trajectory.traceback


# The score of a document.

FULL, HALF, NONE = (RequirementScore("satisfied", score) for score in (1.0, 0.5, 0.0))


@pytest.mark.parametrize(
    ("scores", "cells", "probability", "expected"),
    [
        (CandidateScores(), [FULL, NONE], 0.9, (0.5 + 0.9) / 2),
        (CandidateScores(by_checklist=False), [FULL, NONE], 0.9, 0.9),
        (CandidateScores(lambda stated: stated / 2), [FULL, HALF, None], 0.8, (0.5 + 0.4) / 2),
        (CandidateScores(lambda stated: stated / 2), [FULL] * 3, 1.0, (1 + 0.5) / 2),
        (CandidateScores(), [FULL], 1.0, 1.0),
    ],
)
def test_the_score_of_a_document_is_the_mean_of_requirements_and_probability(
    scores, cells, probability, expected
):
    scores.checklist = tuple("abc"[: len(cells)])
    scores.add_ranking(["d1", "d2"])
    scores.add("d1", scores.checklist, DocumentScore(tuple(cells), probability=probability))
    assert scores.score("d1") == pytest.approx(expected)


WORDS = ["mill", "barley", "wey", "burnt", "town", "rye", "kiln", "sea", "stone", "wheel", "brook"]
KILLED_QUESTION = "Which mill grinds barley, stands by the Wey and was not burnt?"
# 1/1024 dollars a token, so that sums do not depend on the order of the librarians' threads.
PRICE = Price(input=976.5625, output=976.5625)
ROUNDS = 4


class Killed(BaseException):
    """Nothing catches it, as nothing catches a kill."""


class World:
    """Documents, plans and faults of a seed. `reads` is what scorer and re-ranker were given, call
    by call; `asked` how often each query has reached the backend."""

    def __init__(self, seed, *, faults=True):
        chance = random.Random(seed)
        self.passages = {
            f"d{document}%p{passage}": " ".join(chance.choices(WORDS, k=6))
            for document in range(12)
            for passage in range(4)
        }
        texts = {
            docid: Document(docid, f"The {docid}", " ".join(self._of(docid)))
            for docid in (f"d{number}" for number in range(12))
        }
        self.store = store_of(texts, self.passages)
        self.texts = {docid: document.text for docid, document in texts.items()}
        self.links = [Link(*chance.sample(sorted(texts), 2)) for _ in range(8)]
        queries = [" ".join(chance.sample(WORDS, 2)) for _ in range(6)]
        self.plans = [self._plan(chance, queries, sorted(texts)) for _ in range(ROUNDS)]
        self.unreadable = set(chance.sample(sorted(texts), 2 * faults))
        self.late = set(chance.sample(sorted(texts), 1 * faults))
        self.reads, self.asked = [], Counter()
        self._lock = threading.Lock()

    def _of(self, docid):
        return [text for name, text in self.passages.items() if name.startswith(f"{docid}%p")]

    def _plan(self, chance, queries, docids):
        rows = [{"query": query} for query in chance.sample(queries, 2)]
        expanded = chance.sample(docids, 2)
        rows.append({"operator": "expand", "docids": expanded, "direction": "both"})
        checklist = [" ".join(chance.sample(WORDS, 2)) for _ in range(3)]
        return saying(json.dumps({"checklist": checklist, "queries": rows}), usage=used())

    def read(self, what):
        with self._lock:
            self.reads.append(repr(what))

    # The operators.

    def search(self, request):
        with self._lock:
            self.asked[request.query] += 1
        hits = WordBackend(self.texts).search(request).hits
        return SearchResult(hits, {"asked": self.asked[request.query]})

    def locate(self, docids, requirements, most=3):
        def best(docid, requirement):
            needed = set(requirement.casefold().split())
            scores = {
                name: float(len(needed & set(text.split())))
                for name, text in self.passages.items()
                if name.startswith(f"{docid}%p")
            }
            ranked = sorted(scores.items(), key=lambda item: -item[1])
            return [Located(name, score) for name, score in ranked if score][:most]

        return [[best(docid, need) for need in requirements] for docid in docids]

    def order(self, qid, question, documents):
        self.read(("order", qid, question, list(documents)))
        return [docid for docid, text in sorted(documents, key=lambda row: row[1])]


class ReadingScorer(OverlapScorer):
    """The probability depends on all that is read of a document, its context too. Documents of the
    world's `unreadable` have no score and those of `late` raise in a small call, each the first
    time."""

    def __init__(self, world, ledger, tried):
        super().__init__()
        self._world, self._ledger, self._tried = world, ledger, tried

    def score(self, candidates):
        judgements = []
        for candidate in candidates:
            self._world.read(candidate)
            self._tried[candidate.docid] += 1
            first = self._tried[candidate.docid] == 1
            # Where all documents of a round fail, the question does.
            if first and candidate.docid in self._world.late and len(candidates) < 4:
                raise ServerTimeout("late")
            with self._ledger.request("librarian", candidate.qid or "q", PRICE) as entry:
                entry.reply(saying("", usage=used(len(repr(candidate)), 3)))
            if first and candidate.docid in self._world.unreadable:
                nothing = (None,) * len(candidate.evidence)
                judgements.append(DocumentScore(nothing, error="unreadable"))
                continue
            (judgement,) = super().score([candidate])
            words = {word for passage in candidate.passages for word in passage.text.split()}
            share = len(words) / len(WORDS)
            judgements.append(judgement._replace(probability=share, origin="stated"))
        return judgements


class KilledAfter(RoundsFile):
    """Dies when so many rounds are on disk, before anything else happens."""

    def __init__(self, path, rounds):
        super().__init__(path)
        self._rounds = rounds

    def append(self, record):
        super().append(record)
        if len(self.read()) == self._rounds:
            raise Killed


class Ended(NamedTuple):
    trajectory: Trajectory
    reads: list
    asked: Counter


def started(world, path, tried, *, model, die_after=0, calls=None, **settings):
    """One start, which shares with the one before it nothing but the file of rounds, what the
    backend counts, and the faults that a document has already had."""
    ledger = Ledger()
    operators = Operators(
        links=LinkGraph.build(world.links),
        locator=world,
        scorer=ReadingScorer(world, ledger, tried),
        passages=world.store,
        resolver=Resolver(Document(docid, f"The {docid}", "") for docid in world.texts),
        order=world.order,
    )
    two_passages = type("TwoPassages", (Literature,), {"passages": 2})
    tool = two_passages(operators=operators).open(world, world.store)
    rounds = KilledAfter(path, die_after)
    script = ScriptedModel(*world.plans[len(rounds.read()) :]) if model else None
    resources = RunResources(
        Budget(**VIRTUAL, tool_calls=calls),
        model=script,
        ledger=ledger,
        price=PRICE,
        stages=["retriever"],
        rounds=lambda qid: rounds,
    )
    agent = Navigator(rounds=ROUNDS, pool=5, patience=ROUNDS, **settings).bind(resources)
    return asyncio.run(agent.run(Topic("q", KILLED_QUESTION), tool))


def after_kills(seed, path, kills, *, faults=True, **settings):
    """What comes of a question that is killed behind each of these rounds."""
    world, tried = World(seed, faults=faults), Counter()
    for number in kills:
        with pytest.raises(Killed):
            started(world, path, tried, die_after=number, **settings)
    return Ended(started(world, path, tried, **settings), world.reads, world.asked)


def facts(trajectory):
    """The whole record without times and without the warning that tells of the kill."""
    assert trajectory.status != "failed", trajectory.traceback
    record = json.loads(json.dumps(to_record(trajectory)))
    for timed in (record, *record["calls"]):
        del timed["seconds"]
    del record["started"]
    record["usage"] = {n: v for n, v in record["usage"].items() if "seconds" not in n}
    record["warnings"] = [w for w in record["warnings"] if not w.startswith("went on after")]
    return dict(record)


@pytest.mark.parametrize("model", [True, False], ids=["model", "rules"])
@pytest.mark.parametrize("seed", range(cases(40, 2)))
def test_a_kill_behind_any_round_changes_nothing(tmp_path, seed, model):
    unbroken = after_kills(seed, tmp_path / "unbroken", (), model=model)
    assert facts(unbroken.trajectory)
    rounds = len(unbroken.trajectory.rounds)
    assert rounds == ROUNDS
    searches = sum(call.name == "search" for call in unbroken.trajectory.calls)
    seconds = unbroken.trajectory.virtual_seconds - 20 * searches
    assert searches and (seconds > 0) == model  # those of the plans
    every = tuple(range(1, rounds + 1))
    for kills in [*((number,) for number in every), every]:
        broken = after_kills(seed, tmp_path / f"killed-{kills}", kills, model=model)
        assert facts(broken.trajectory) == facts(unbroken.trajectory)
        assert broken.reads[-1] == unbroken.reads[-1], "what the re-ranker of lists reads"
        assert sorted(broken.reads) == sorted(unbroken.reads), "what the scorer reads"
        assert broken.asked == unbroken.asked, "an equal query is not searched again"
        notes = [w for w in broken.trajectory.warnings if w.startswith("went on after")]
        assert notes == [f"went on after round {number}" for number in kills]


@pytest.mark.parametrize("calls", [5, 9, 14])
def test_a_kill_behind_the_round_that_used_up_the_calls_begins_no_other(tmp_path, calls):
    unbroken = after_kills(0, tmp_path / "unbroken", (), model=True, calls=calls)
    ended = unbroken.trajectory.status, unbroken.trajectory.reason
    assert ended == ("out_of_turns", "tool_calls")
    rounds = len(unbroken.trajectory.rounds)
    broken = after_kills(0, tmp_path / "killed", (rounds,), model=True, calls=calls)
    assert facts(broken.trajectory) == facts(unbroken.trajectory)


@pytest.mark.parametrize("damaged", range(1, ROUNDS + 1))
def test_rounds_behind_a_damaged_one_are_done_again_with_the_same_end(tmp_path, damaged):
    unbroken = after_kills(1, tmp_path / "unbroken", (), model=True, faults=False)
    path = tmp_path / "killed.rounds.jsonl"
    with pytest.raises(Killed):
        started(World(1, faults=False), path, Counter(), model=True, die_after=ROUNDS)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[damaged - 1] = bytes(len(lines[damaged - 1]) - 1) + b"\n"  # a page that never was on disk
    path.write_bytes(b"".join(lines))
    again = started(World(1, faults=False), path, Counter(), model=True)
    assert facts(again) == facts(unbroken.trajectory)
    behind = [f"went on after round {damaged - 1}"] if damaged > 1 else []
    assert [w for w in again.warnings if w.startswith("went on after")] == behind
    assert path.with_name(f"{path.name}.damaged-1").read_bytes() == b"".join(lines)
