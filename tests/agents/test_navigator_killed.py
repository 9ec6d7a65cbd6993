"""A navigator that is killed behind a round and started again ends with the trajectory of one that
was left alone: every text that its scorer and its re-ranker of lists read, and the whole record."""

import asyncio
import json
import random
import threading
from collections import Counter
from typing import NamedTuple

import pytest
from support.llm_model import ScriptedModel, saying, used
from support.needs import cases
from support.search import WordBackend, store_of

from soundingline.agents.base import Budget, RunResources
from soundingline.agents.literature import Navigator, OverlapScorer
from soundingline.toolkit.benchmarks.benchmark import LinkGraph
from soundingline.toolkit.corpus.resolve import Resolver
from soundingline.toolkit.data import Document, Link, SearchResult, Topic
from soundingline.toolkit.llm.errors import ServerTimeout
from soundingline.toolkit.llm.ledger import Ledger
from soundingline.toolkit.llm.prices import Price
from soundingline.toolkit.runs.run_folder import RoundsFile
from soundingline.toolkit.search import Literature, Located, Operators
from soundingline.toolkit.search.scoring import DocumentScore
from soundingline.toolkit.trajectory import Trajectory, to_record

WORDS = ["mill", "barley", "wey", "burnt", "town", "rye", "kiln", "sea", "stone", "wheel", "brook"]
QUESTION = "Which mill grinds barley, stands by the Wey and was not burnt?"
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


def started(world, path, tried, *, model, die_after=0, **settings):
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
    tool = Literature(passages=2).bind(operators).open(world, world.store)
    rounds = KilledAfter(path, die_after)
    script = ScriptedModel(*world.plans[len(rounds.read()) :]) if model else None
    resources = RunResources(
        Budget(), model=script, ledger=ledger, price=PRICE, rounds=lambda qid: rounds
    )
    agent = Navigator(rounds=ROUNDS, pool=5, patience=ROUNDS, **settings).bind(resources)
    return asyncio.run(agent.run(Topic("q", QUESTION), tool))


def ended(seed, path, kills, *, faults=True, **settings):
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
    record["warnings"] = [w for w in record["warnings"] if not w.startswith("went on behind")]
    return dict(record)


@pytest.mark.parametrize("model", [True, False], ids=["model", "rules"])
@pytest.mark.parametrize("seed", range(cases(40, 2)))
def test_a_kill_behind_any_round_changes_nothing(tmp_path, seed, model):
    unbroken = ended(seed, tmp_path / "unbroken", (), model=model)
    assert facts(unbroken.trajectory)
    rounds = len(unbroken.trajectory.rounds)
    assert rounds == ROUNDS
    every = tuple(range(1, rounds + 1))
    for kills in [*((number,) for number in every), every]:
        broken = ended(seed, tmp_path / f"killed-{kills}", kills, model=model)
        assert facts(broken.trajectory) == facts(unbroken.trajectory)
        assert broken.reads[-1] == unbroken.reads[-1], "what the re-ranker of lists reads"
        assert sorted(broken.reads) == sorted(unbroken.reads), "what the scorer reads"
        assert broken.asked == unbroken.asked, "an equal query is not searched again"
        notes = [w for w in broken.trajectory.warnings if w.startswith("went on behind")]
        assert notes == [f"went on behind round {number}" for number in kills]


@pytest.mark.parametrize("max_calls", [5, 9, 14])
def test_a_kill_behind_the_round_that_used_up_the_calls_begins_no_other(tmp_path, max_calls):
    unbroken = ended(0, tmp_path / "unbroken", (), model=True, max_calls=max_calls)
    assert (unbroken.trajectory.status, unbroken.trajectory.reason) == ("steered", "max_calls")
    rounds = len(unbroken.trajectory.rounds)
    broken = ended(0, tmp_path / "killed", (rounds,), model=True, max_calls=max_calls)
    assert facts(broken.trajectory) == facts(unbroken.trajectory)


@pytest.mark.parametrize("damaged", range(1, ROUNDS + 1))
def test_rounds_behind_a_damaged_one_are_done_again_with_the_same_end(tmp_path, damaged):
    unbroken = ended(1, tmp_path / "unbroken", (), model=True, faults=False)
    path = tmp_path / "killed.rounds.jsonl"
    with pytest.raises(Killed):
        started(World(1, faults=False), path, Counter(), model=True, die_after=ROUNDS)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[damaged - 1] = lines[damaged - 1].replace(b'"retrieval"', b'"retrieved"', 1)
    path.write_bytes(b"".join(lines))
    again = started(World(1, faults=False), path, Counter(), model=True)
    assert facts(again) == facts(unbroken.trajectory)
    behind = [f"went on behind round {damaged - 1}"] if damaged > 1 else []
    assert [w for w in again.warnings if w.startswith("went on behind")] == behind
    assert path.with_name(f"{path.name}.damaged-1").read_bytes() == b"".join(lines)
