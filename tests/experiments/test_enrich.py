"""`soundingline enrich`: a whole corpus, and its money."""

import json
import threading
from collections import Counter
from pathlib import Path

import pytest
from experiment_samples import TINY
from support.llm_server import Say, running_peer
from support.runs import starts

from soundingline.toolkit.runs import RunFolder

OPTIONS = Path(__file__).resolve().parent / "options"
KEYWORDS = json.dumps({"keywords": ["seamark", "tidal range"]})
QUERY_SIDE = ("enrichment=sira", "enrichment.sides=query")
CORPUS_SIDE = ("enrichment=sira", "enrichment.sides=corpus")
SCRIPTED = (f"hydra.searchpath=[file://{OPTIONS}]", "llm@enrichment_llm=scripted")
SAYS = f"enrichment_llm.says='{KEYWORDS}'"
DOCUMENTS = 64


def test_a_corpus_is_enriched_once_and_then_ranked(entry, capsys, tmp_path):
    log = tmp_path / "asked"
    options = (*TINY, *SCRIPTED, SAYS, f"enrichment_llm.log={log}", *CORPUS_SIDE)
    assert entry("rank", *options) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "64 of 64 documents have no phrases yet" in error
    assert "set enrichment.corpus.allow_missing=true" in error
    assert entry("enrich", *options) == 0
    told = capsys.readouterr()
    assert "64 of 64 documents" in told.err and "will take about" in told.err
    assert "128 phrases for 64 documents" in told.out and "128 kept" in told.out
    assert len(log.read_text().splitlines()) == DOCUMENTS
    assert entry("enrich", *options) == 0
    assert len(log.read_text().splitlines()) == DOCUMENTS
    assert entry("rank", *options, "name=r") == 0
    assert len(log.read_text().splitlines()) == DOCUMENTS
    manifest = json.loads((tmp_path / "runs" / "r" / "manifest.json").read_text())
    assert any(name.startswith("document-enriched-") for name in manifest["fingerprints"])


def test_shards_of_a_corpus_are_enriched_and_the_last_one_makes_the_index(entry, capsys, tmp_path):
    log = tmp_path / "asked"
    options = (*TINY, *SCRIPTED, SAYS, f"enrichment_llm.log={log}", *CORPUS_SIDE, "shards=4")
    assert entry("enrich", *options, "shard=2") == 0
    own = len(log.read_text().splitlines())
    assert 0 < own < DOCUMENTS
    told = capsys.readouterr()
    assert f"{own} of {own} documents have no phrases yet" in told.err
    assert "shard 2 of 4 is enriched" in told.out
    assert not list((tmp_path / "indexes").rglob("document-enriched-*"))
    assert entry("enrich", "-m", *options, "name=s") == 0
    assert len(log.read_text().splitlines()) == DOCUMENTS
    assert "128 phrases for 64 documents" in capsys.readouterr().out
    # Each shard has a run and a ledger of its own.
    assert len(list((tmp_path / "runs/s").glob("*/ledger.jsonl"))) == 3


def test_answers_in_the_phrases_of_queries_are_counted(entry, beir, tmp_path):
    """The benchmark asks for a mayor, Anna Kow, and for a height, nine metres."""
    says = json.dumps({"keywords": ["mayor anna kow", "harbour", "kow anna", "nineteen metres"]})
    options = ("benchmark=beir", f"benchmark.path={beir}", *SCRIPTED, *QUERY_SIDE)
    filter_ = "enrichment.query_filter.tau=1"
    assert entry("rank", *options, f"enrichment_llm.says='{says}'", filter_, "name=r") == 0
    run = tmp_path / "runs/r"
    metrics = json.loads((run / "metrics.json").read_text())
    assert metrics["phrases_with_answer"] == 0.5  # one phrase, of two questions
    rows = [json.loads(line) for line in (run / "phrases.jsonl").read_text().splitlines()]
    held = {
        (row["qid"], phrase["phrase"])
        for row in rows
        for phrase in row["phrases"]
        if phrase["holds_answer"]
    }
    assert held == {("../../x", "mayor anna kow")}
    reasons = {phrase["phrase"]: phrase["reason"] for phrase in rows[0]["phrases"]}
    assert reasons["harbour"] == "kept" and reasons["nineteen metres"] == "not in the index"


@pytest.mark.parametrize("option", ["hyde", "chain_of_thought"])
def test_answers_in_the_texts_that_are_written_for_queries_are_counted(
    entry, beir, tmp_path, option
):
    """A passage that answers gives the answer away: the mayor, Anna Kow, and nine metres."""
    says = "The mayor is Anna Kow. The tide rises nine metres."
    options = ("benchmark=beir", f"benchmark.path={beir}", *SCRIPTED, f"enrichment={option}")
    assert entry("rank", *options, f"enrichment_llm.says='{says}'", "name=r") == 0
    metrics = json.loads((tmp_path / "runs/r/metrics.json").read_text())
    assert metrics["phrases_with_answer"] == 1.0


@pytest.mark.parametrize("command", ["rank", "run"])
def test_answers_in_rewritten_queries_are_counted_where_the_question_lacks_them(
    entry, beir, tmp_path, command
):
    options = ("benchmark=beir", f"benchmark.path={beir}", SCRIPTED[0])
    says = "rewriter_llm.says='The mayor is Anna Kow.'"
    rewriter = ("rewriter=hyde", "llm@rewriter_llm=scripted", says)
    assert entry(command, *options, *rewriter, "name=a") == 0
    assert entry(command, *options, "name=b") == 0
    questions = tmp_path / "runs/a/evaluation/questions.json"
    # Of a mayor and a height. However often an agent searched, the rewriter had one text.
    expected = {"../../x": 1.0, "q2": 0.0}
    assert json.loads(questions.read_text())["rewrites_with_answer"] == expected
    metrics = tmp_path / "runs/a/metrics.json"
    assert "phrases_with_answer" not in metrics.read_text()
    if command == "run":
        for path in (questions, metrics):
            path.unlink()
        assert entry("evaluate", "runs/a") == 0
    assert json.loads(metrics.read_text())["rewrites_with_answer"] == 0.5
    assert "rewrites_with_answer" not in (tmp_path / "runs/b/metrics.json").read_text()
    assert entry("compare", "runs/a", "runs/b", "name=c") == 0
    assert "rewrites_with_answer" in (tmp_path / "runs/c/report.md").read_text(encoding="utf-8")


def test_an_agents_queries_are_enriched_by_its_question(entry, peer):
    peer.default = Say(text=KEYWORDS)
    llm = ("llm@enrichment_llm=openai_compatible", "enrichment_llm.model=m")
    address = f"enrichment_llm.base_url={peer.openai_url}"
    enriched = (*QUERY_SIDE, "enrichment.apply_to=question")
    assert entry("run", *TINY, *llm, address, *enriched, "name=r") == 0
    trajectories = list(RunFolder("runs/r").trajectories())
    searches = [call for each in trajectories for call in each.calls if call.ranking]
    questions = {each.question for each in trajectories}
    # One prompt a question, however often its agent searches, and with other words.
    seen = prompts(peer.requests)
    assert len(seen) == len(questions) < len(searches)
    assert all(any(question in prompt for prompt in seen) for question in questions)
    assert {call.notes["enrichment"][0]["applied_to"] for call in searches} == {"question"}


def test_what_a_corpus_and_a_query_cost_stands_beside_what_they_buy(entry, tmp_path):
    model = (*SCRIPTED, SAYS, "enrichment_llm.price=1000")
    assert entry("enrich", *TINY, *model, *CORPUS_SIDE, "name=asked") == 0
    paid = sum(start["dollars"] for start in starts(tmp_path / "runs/asked"))
    assert paid > 0
    arms = ("enrichment=none,sira", "enrichment.sides=query,corpus,both")
    assert entry("rank", "-m", *TINY, *model, *arms, "name=r") == 0
    costs = {}
    for path in (tmp_path / "runs/r").glob("*/manifest.json"):
        manifest = json.loads(path.read_text())
        assert (
            manifest["factors"]["enrichment"] == "none" or "enrichment.sides" in manifest["factors"]
        )
        costs[manifest["factors"].get("enrichment.sides", "none")] = manifest["costs"]
    # The three cells without an enrichment mean the same, and are one.
    assert set(costs) == {"none", "query", "corpus", "both"}
    assert costs["none"]["once"] == costs["query"]["once"] == {}
    for arm in ("corpus", "both"):
        assert costs[arm]["once"]["dollars"] == pytest.approx(paid)
        assert costs[arm]["once"]["documents"] == DOCUMENTS
    # The second of two arms with the same queries asks for nothing, and costs what the first does.
    assert costs["both"]["query"]["dollars"] == costs["query"]["query"]["dollars"] > 0
    assert costs["corpus"]["query"].get("dollars", 0) == 0
    report = (tmp_path / "runs/r/report.md").read_text(encoding="utf-8")
    assert "Recall against cost" in report and "dollars (once, for the corpus)" in report
    page = (tmp_path / "runs/r/report.html").read_text(encoding="utf-8")
    assert 'aria-label="R@100 against dollars once, for the corpus"' in page


def test_an_agents_run_tells_what_its_corpus_cost_and_which_phrases_hold_an_answer(
    entry, beir, tmp_path
):
    says = json.dumps({"keywords": ["mayor anna kow", "harbour town", "kow anna"]})
    model = (*SCRIPTED, f"enrichment_llm.says='{says}'", "enrichment_llm.price=1000")
    options = ("benchmark=beir", f"benchmark.path={beir}", *model)
    tau = ("enrichment.query_filter.tau=1", "enrichment.corpus_filter.tau=1")
    assert entry("enrich", *options, "enrichment=sira", *tau, "name=asked") == 0
    (start,) = starts(tmp_path / "runs/asked")
    assert entry("run", *options, "enrichment=sira", *tau, "name=a") == 0
    assert entry("run", *options, "name=b") == 0
    manifest = json.loads((tmp_path / "runs/a/manifest.json").read_text())
    assert manifest["costs"]["once"]["dollars"] == pytest.approx(start["dollars"])
    assert manifest["costs"]["once"]["documents"] == 3
    questions = json.loads((tmp_path / "runs/a/evaluation/questions.json").read_text())
    # However often the agent searched, one phrase holds the mayor's name, and none the height.
    assert questions["phrases_with_answer"] == {"../../x": 1.0, "q2": 0.0}
    plain = json.loads((tmp_path / "runs/b/manifest.json").read_text())
    assert "costs" not in plain
    assert "phrases_with_answer" not in (tmp_path / "runs/b/metrics.json").read_text()


def test_an_estimate_above_the_cap_needs_to_be_confirmed(entry, capsys, tmp_path):
    options = (*TINY, *SCRIPTED, SAYS, *CORPUS_SIDE, "enrichment_llm.price=1000")
    options = (*options, "name=r")

    def paid():
        rows = starts(tmp_path / "runs/r")
        return sum(start["dollars"] for start in rows), sum(start["calls"] for start in rows)

    # Each document costs 4.8 cents, and all of them 3.07 dollars.
    assert entry("enrich", *options, "budget.run_dollars=0.4") == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "64 documents will take about $3.07" in error and "set confirm=true" in error
    dollars, calls = paid()
    # Not all of the sample: from the first reply on, the cap holds.
    assert 0 < dollars <= 0.4 and calls == 8
    assert entry("enrich", *options, "budget.run_dollars=1000000") == 0
    assert f"{DOCUMENTS - calls} of {DOCUMENTS} documents" in capsys.readouterr().err
    assert paid()[1] == DOCUMENTS


def test_a_confirmed_run_goes_on_until_its_money_is_spent_and_keeps_its_counts(entry, capsys):
    options = (*TINY, *SCRIPTED, "enrichment_llm.says=prose", *CORPUS_SIDE, "name=r")
    paid = ("enrichment_llm.price=1000", "budget.run_dollars=2", "confirm=true")
    assert entry("enrich", *options, *paid) != 0
    assert "the run's cap is $2" in " ".join(capsys.readouterr().err.split())
    assert 1.9 < sum(start["dollars"] for start in starts("runs/r")) <= 2
    assert RunFolder("runs/r").manifest()["stages"]["enrichment"]["unreadable"] > 0


@pytest.fixture
def peer():
    with running_peer() as server:
        yield server


def test_answers_of_every_odd_kind_are_survived_and_told(entry, peer, capsys):
    """Prose, an empty list, 500 phrases, control characters, 10,000 characters."""
    kinds = [
        "Certainly! The zorbal would be a good phrase.",
        json.dumps({"keywords": []}),
        json.dumps({"keywords": [f"zorbal {number}" for number in range(500)]}),
        json.dumps({"keywords": ["zor\x00bal\x1b mark", "\u202e\x07"]}),
        json.dumps({"keywords": ["x" * 10_000, "quay " * 2_000]}),
    ]
    kind_of = {}
    lock = threading.Lock()

    def odd(request):
        prompt = request.body["messages"][0]["content"]
        with lock:
            return Say(text=kind_of.setdefault(prompt, kinds[len(kind_of) % len(kinds)]))

    peer.default = odd
    assert entry(*command(peer)) == 0
    output = capsys.readouterr()
    error = " ".join(output.err.split())
    # Of 64 documents each kind has 13, and the last one 12.
    assert "13 of 64 answers hold no list of phrases" in error
    assert f"{13 + 12} of 64 answers hold no usable phrase" in error
    left_out = f"{13 * 490:,} beyond the number allowed, {12 * 2} too long, 13 without a visible"
    assert f"phrases left out: {left_out}" in error
    assert f"{13 * 10 + 13} phrases for {13 + 13} documents" in output.out
    counted = RunFolder("runs/r").manifest()["stages"]["enrichment"]
    assert (counted["unreadable"], counted["beyond"], counted["too_long"]) == (13, 13 * 490, 24)


def command(peer, *arguments):
    llm = (
        *("llm@enrichment_llm=openai_compatible", "enrichment_llm.model=m"),
        f"enrichment_llm.base_url={peer.openai_url}",
        "enrichment_llm.attempts=1",
    )
    options = (*CORPUS_SIDE, "name=r")
    return ("enrich", *TINY, *options, *llm, *arguments)


def prompts(requests):
    # Of a client that is killed while it sends, a request comes without its body.
    bodies = [request.body for request in requests if "messages" in request.body]
    return Counter(body["messages"][0]["content"] for body in bodies)
