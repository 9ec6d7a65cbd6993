"""Evaluations on disk, recorded calls through another ranking, and the choice of a point by its
measures."""

import json
import math
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import ir_measures
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.assertions import refused
from support.benchmarks import SmallBenchmark, WordBackend, store_of
from support.needs import cases

from soundingline.toolkit.data import Topic
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.evaluation import grid as grid_module
from soundingline.toolkit.evaluation.agent_run import evaluate_run
from soundingline.toolkit.evaluation.comparison import compare
from soundingline.toolkit.evaluation.evaluation import (
    _read,
    decreasing,
    evaluate_ranking,
    load_run,
    load_runs,
    read_rankings,
    write_evaluation,
)
from soundingline.toolkit.evaluation.grid import (
    Grid,
    MeasureTable,
    RankTable,
    distance,
    measure_table,
)
from soundingline.toolkit.evaluation.replay import (
    calls_until_evidence,
    first_calls,
    replay,
    without_answer,
)
from soundingline.toolkit.evaluation.retrieval import measure_rankings
from soundingline.toolkit.evaluation.statistics import holm, paired_differences, paired_test, t_test
from soundingline.toolkit.evaluation.tuning import (
    best_point,
    cross_validated,
    held_out,
    ordered_points,
    plateau,
    tune,
)
from soundingline.toolkit.files import write_text
from soundingline.toolkit.runs.manifest import make_manifest
from soundingline.toolkit.runs.run_folder import RunFolder, evaluated_runs
from soundingline.toolkit.search import RankedBrowsing, TopK
from soundingline.toolkit.trajectory import Answer, RecordedCall, Trajectory, dump_trajectory

TOPICS = [Topic("1", "one"), Topic("2", "two")]
EVIDENCE = {"1": {"a": 1, "b": 1}, "2": {"x": 1}}
BENCHMARK = SmallBenchmark(TOPICS, {"evidence": EVIDENCE}, {"1": ["Ada"], "2": ["Bob"]})


def trajectory(qid, *surfaced):
    return Trajectory(
        qid,
        "?",
        "completed",
        answer=Answer(exact="Ada", confidence=70.0),
        tiers={"surfaced": surfaced, "previewed": surfaced[:1], "opened": (), "cited": ()},
    )


def run(path, *trajectories):
    folder = RunFolder(path)
    manifest = make_manifest({}, {"benchmark": "b"}, {"unit": "document"})
    with folder.writing(manifest):
        for row in trajectories:
            folder.write(row)
    return folder


def evaluate(folder):
    return evaluate_run(folder.trajectories(), BENCHMARK, measures=("AP", "nDCG@10"))


def evaluated(path, *trajectories):
    """A run folder with its evaluation."""
    folder = run(path, *trajectories)
    write_evaluation(folder.path, evaluate(folder), state=folder.state())
    return folder


def test_a_run_is_read_as_it_was_evaluated(tmp_path):
    folder = run(tmp_path / "a", trajectory("1", "z", "a"), trajectory("2", "x"))
    evaluation = evaluate(folder)
    write_evaluation(folder.path, evaluation, state=folder.state())
    loaded = load_run(folder.path)
    assert loaded.name == "a" and loaded.factors == {"unit": "document"}
    assert loaded.metrics == evaluation.metrics
    assert loaded.per_question == evaluation.per_question
    assert loaded.funnel == evaluation.funnel
    assert loaded.curves == evaluation.curves
    assert loaded.counts == evaluation.counts
    assert loaded.manifest == folder.manifest()
    verdicts = json.loads((folder.path / "evaluation" / "verdicts.json").read_text())
    assert [row["correct"] for row in verdicts] == [True, False]
    (folder.path / "evaluation" / "curves.json").write_text("{ }")
    again = f"evaluate it again: soundingline evaluate {folder.path}"
    refused(f"curves.json is damaged.*{again}", load_run, folder.path)


def test_run_trec_evaluates_to_the_metrics(tmp_path):
    # Docids in an order that trec_eval's own breaking of ties would turn round.
    rows = trajectory("1", "c", "b", "a", "z"), trajectory("2", "w", "x")
    folder = evaluated(tmp_path / "a", *rows)
    metrics = json.loads((folder.path / "metrics.json").read_text())
    rows = list(ir_measures.read_trec_run(str(folder.path / "run.trec")))
    measures = [ir_measures.parse_measure(name) for name in ("AP", "nDCG@10")]
    again = ir_measures.calc_aggregate(measures, EVIDENCE, rows)
    assert [again[each] for each in measures] == pytest.approx([metrics["AP"], metrics["nDCG@10"]])


def test_white_space_in_ids_keeps_six_columns(tmp_path):
    rows = {"q 1": ["d\t1", "d2"]}
    folder = run(tmp_path / "a")
    evaluation = evaluate_ranking(rows, {"q 1": {"d2": 1}}, ("RR",))
    for scores, written in (({}, ("2", "1")), ({"q 1": [12.5, 0.5]}, ("12.5", "0.5"))):
        evaluation = replace(evaluation, scores=scores)
        write_evaluation(folder.path, evaluation, state=folder.state())
        lines = (folder.path / "run.trec").read_text().splitlines()
        assert [line.split(" ") for line in lines] == [
            ["q%201", "Q0", "d%091", "1", written[0], "a"],
            ["q%201", "Q0", "d2", "2", written[1], "a"],
        ]


@given(st.lists(st.floats(width=32) | st.integers(-3, 3), max_size=30))
def test_decreasing_scores_are_those_of_a_loop(scores):
    expected, largest = [], np.float32(1e30)
    for score in scores:
        value = -largest if math.isnan(score) else np.float32(max(-1e30, min(score, 1e30)))
        below = np.nextafter(expected[-1], np.float32(-np.inf)) if expected else value
        expected.append(min(value, below))
    assert decreasing(scores) == expected
    assert (np.diff([np.float32(f"{score:.9g}") for score in expected]) < 0).all()


def test_a_ranking_without_an_agent_is_evaluated_too(tmp_path):
    folder = run(tmp_path / "rank")
    rows = {"1": ["a"], "2": ["y", "x"]}
    write_evaluation(folder.path, evaluate_ranking(rows, EVIDENCE, ("RR",)), state=folder.state())
    loaded = load_run(folder.path)
    assert loaded.metrics == {"RR": 0.75}
    assert loaded.per_question == {"RR": {"1": 1.0, "2": 0.5}}
    assert loaded.funnel == {} and loaded.curves == {}
    (folder.path / "evaluation" / "curves.json").write_text("{ }")
    refused("curves.json is damaged.*run the command that made it again", load_run, folder.path)


def test_two_runs_are_compared_from_their_folders(tmp_path):
    for sweep, first in (("s1", "a"), ("s2", "z")):
        evaluated(tmp_path / sweep / "run", trajectory("1", first), trajectory("2", "x"))
    one, other = tmp_path / "s1" / "run", tmp_path / "s2" / "run"
    loaded = load_runs([one, other, other / ".." / "run"])
    assert [one.name for one in loaded] == ["s1/run", "s2/run"]
    (row,) = compare(loaded, ["recall_surfaced"], "s1/run")
    assert row.difference == pytest.approx((0 + 1) / 2 - (0.5 + 1) / 2)


def test_an_error_about_an_unevaluated_run_names_the_command(tmp_path):
    folder = run(tmp_path / "a", trajectory("1", "a"))
    refused("run: soundingline evaluate", load_run, folder.path)
    refused("is not a run", load_run, tmp_path / "nothing")


ANSWERED = trajectory("1", "a")
FAILED = replace(ANSWERED, status="failed", traceback="E" * 3)  # "completed" is 3 longer


@pytest.mark.parametrize(
    ("first", "second"),
    [(ANSWERED, trajectory("2", "x")), (FAILED, ANSWERED)],
    ids=["new", "again"],
)
@pytest.mark.parametrize("live", [False, True])
def test_an_evaluation_of_other_trajectories_is_refused(tmp_path, first, second, live):
    """`live`: the run goes on while it is evaluated."""
    assert len(dump_trajectory(FAILED)) == len(dump_trajectory(ANSWERED))
    folder = run(tmp_path / "a", first)
    state, evaluation = folder.state(), evaluate(folder)
    if live:
        run(tmp_path / "a", second)
    write_evaluation(folder.path, evaluation, state=state)
    if not live:
        run(tmp_path / "a", second)
    refused("trajectories that are there now", load_run, folder.path)


def test_a_copied_run_keeps_its_evaluation(tmp_path):
    folder = evaluated(tmp_path / "a", trajectory("1", "a"))
    shutil.copytree(folder.path, tmp_path / "b", copy_function=shutil.copyfile)
    assert load_run(tmp_path / "b").metrics == load_run(folder.path).metrics


def test_two_evaluations_at_once_leave_the_files_of_one(tmp_path, monkeypatch):
    folder = run(tmp_path / "a", trajectory("1", "z"))
    early, early_state = evaluate(folder), folder.state()
    run(tmp_path / "a", trajectory("2", "x"))
    late, late_state = evaluate(folder), folder.state()
    assert early.metrics != late.metrics
    begun, may_end = threading.Event(), threading.Event()

    def slow_at_first(path, text):
        if path.name == "run.trec" and not begun.is_set():
            begun.set()  # The early summary is written, its metrics are not.
            assert may_end.wait(30)
        write_text(path, text)

    monkeypatch.setattr("soundingline.toolkit.evaluation.evaluation.write_text", slow_at_first)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(write_evaluation, folder.path, early, state=early_state)
        assert begun.wait(30)
        second = pool.submit(write_evaluation, folder.path, late, state=late_state)
        time.sleep(0.3)  # Without a lock the second ends here, and the first writes over it.
        may_end.set()
        first.result(30)
        second.result(30)
    assert load_run(folder.path).metrics == late.metrics


def test_a_reader_waits_for_an_evaluation_that_is_being_written(tmp_path, monkeypatch):
    folder = evaluated(tmp_path / "sweep" / "a", trajectory("1", "a"))
    metrics = load_run(folder.path).metrics
    begun, may_end = threading.Event(), threading.Event()

    def slow(path, text):
        begun.set()
        assert may_end.wait(30)
        write_text(path, text)

    monkeypatch.setattr("soundingline.toolkit.evaluation.evaluation.write_text", slow)
    with ThreadPoolExecutor(3) as pool:
        evaluation, state = evaluate(folder), folder.state()
        writer = pool.submit(write_evaluation, folder.path, evaluation, state=state)
        assert begun.wait(30) and not (folder.path / "metrics.json").exists()
        readers = [
            pool.submit(load_run, folder.path),
            pool.submit(evaluated_runs, tmp_path / "sweep"),
        ]
        time.sleep(0.3)  # Without a lock the readers end here, and have no evaluation.
        may_end.set()
        writer.result(30)
        assert readers[0].result(30).metrics == metrics
        assert readers[1].result(30) == [folder.path]


def test_files_of_two_evaluations_are_never_read_as_one(tmp_path, monkeypatch):
    folder = evaluated(tmp_path / "a", trajectory("1", "a"))
    (folder.path / "evaluation" / ".lock").unlink()  # as on a file system without locks
    other = evaluate(folder).with_values({"AP": {"1": 0.125}})

    def read(run, name, *others):
        if name == "evaluation/questions.json":  # after the summary
            write_evaluation(folder.path, other, state=folder.state())
        return _read(run, name, *others)

    monkeypatch.setattr("soundingline.toolkit.evaluation.evaluation._read", read)
    refused("not as the evaluation wrote it", load_run, folder.path)


def test_an_interrupted_evaluation_counts_as_none(tmp_path, monkeypatch):
    folder = evaluated(tmp_path / "a", trajectory("1", "a"))

    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("soundingline.toolkit.evaluation.evaluation.write_text", stop)
    with pytest.raises(KeyboardInterrupt):
        write_evaluation(folder.path, evaluate(folder), state=folder.state())
    refused("has not been evaluated", load_run, folder.path)


def test_rankings_that_were_changed_after_the_evaluation_are_refused(tmp_path):
    folder = evaluated(tmp_path / "a", trajectory("1", "a"))
    assert read_rankings(folder) == (folder.path / "run.trec").read_text()
    path = folder.path / "run.trec"
    path.write_text(path.read_text().replace(" a ", " b ", 1))
    refused(r"run\.trec", read_rankings, folder)


def test_a_damaged_evaluation_is_named(tmp_path):
    folder = evaluated(tmp_path / "a", trajectory("1", "a"))
    (folder.path / "evaluation" / "funnel.json").write_text('{"evidence":')
    refused(r"funnel\.json", load_run, folder.path)


# Recorded calls through another ranking: what changes, and from which page on.


TEXTS = {
    "a": "tide harbour brel",
    "b": "tide mill",
    "c": "harbour mill market",
    "d": "market tide harbour",
}
OTHER = {**{docid: TEXTS[docid] for docid in reversed(TEXTS)}, "a": "nothing of it"}
STORE = store_of(TEXTS)
TOOL = TopK(k=2, get_document=True)
QUERIES = ("mill market", "tide harbour", "brel")


def recorded(tool=TOOL):
    session = tool.open(WordBackend(TEXTS), STORE)
    reason = {"reason": "r"} if isinstance(tool, RankedBrowsing) else {}
    for query in QUERIES:
        session.call("search", {**reason, "query": query})
    read = "read_document" if reason else "get_document"
    session.call(read, {**reason, "docid": "a"})
    session.call("search", {"nonsense": 1})
    session.block("time is over")
    session.call("search", {**reason, "query": "mill"})
    return Trajectory(
        "q",
        "?",
        "completed",
        answer=Answer(exact="x"),
        calls=session.calls,
        tiers=session.exposures.tiers,
        exposures=session.exposures.rows,
    )


def test_the_same_pipeline_shows_the_same_pages_and_changes_nothing():
    before = recorded()
    result = replay(before, TOOL.open(WordBackend(TEXTS), STORE), {"a"})
    assert (result.calls, result.unchanged) == (5, 5)  # the refused one is left out
    assert (result.overlap, result.moved) == (1.0, 0.0)
    assert result.trajectory.tiers["previewed"] == before.tiers["previewed"]
    assert result.trajectory.tiers["opened"] == ("a",)
    assert result.trajectory.answer == Answer()


def test_another_ranking_changes_pages_from_the_first_other_text_on():
    result = replay(recorded(), TOOL.open(WordBackend(OTHER), STORE), {"a"})
    assert result.unchanged < result.calls
    rankings = [call.ranking for call in result.trajectory.calls if call.name == "search"]
    expected, moves = [], []
    for call, ranking in zip(recorded().calls[:3], rankings, strict=False):
        head = set(call.ranking)
        expected.append(len(head & set(ranking[: len(head)])) / len(head))
        if "a" in head:  # It is found no more, which counts as the rank behind the longer ranking.
            moves.append(call.ranking.index("a") - max(len(head), len(ranking)))
    assert result.overlap == pytest.approx(sum(expected) / 3)
    assert moves and result.moved == pytest.approx(sum(moves) / len(moves))


def test_equal_ids_with_another_text_are_a_changed_page():
    class Scored(WordBackend):
        def search(self, request):
            actual = super().search(request)
            return actual._replace(hits=[hit._replace(score=hit.score / 2) for hit in actual.hits])

    result = replay(recorded(), TOOL.open(Scored(TEXTS), STORE), {"a"})
    assert (result.overlap, result.unchanged) == (1.0, 0)


def test_measures_before_the_first_changed_page_count_the_calls_before_it_alone():
    before = recorded()
    head = first_calls(before, 1)
    assert len(head.calls) == 1
    assert head.tiers["surfaced"] == tuple(before.calls[0].ranking)
    assert head.tiers["previewed"] == tuple(before.calls[0].shown)
    assert head.tiers["opened"] == ()
    assert first_calls(before, 0).tiers["surfaced"] == ()


def test_calls_until_evidence_are_one_more_than_all_where_none_was_shown():
    before = without_answer(recorded(), recorded().calls)
    assert calls_until_evidence(before, {"c"}) == 1
    assert calls_until_evidence(before, {"a"}) == 2
    assert calls_until_evidence(before, {"nowhere"}) == len(before.calls) + 1


@pytest.mark.parametrize("foreign", [True, False])
def test_calls_to_another_tool_are_made_by_its_own_names(foreign):
    """A foreign client's names, and a run of ours through another interface."""
    if foreign:
        calls = [
            RecordedCall("search", {"user_query": "brel"}, "", notes={"tool": "retrieval"}),
            RecordedCall("get_document", {"docid": "b"}, ""),
        ]
        before = replace(recorded(), calls=tuple(calls), source={"format": "browsecomp_plus"})
    else:
        before = replace(recorded(RankedBrowsing()), calls=recorded(RankedBrowsing()).calls[2:4])
    for tool in (TopK(get_document=True), RankedBrowsing()):
        result = replay(before, tool.open(WordBackend(TEXTS), STORE), {"a"})
        assert [call.error for call in result.trajectory.calls] == ["", ""]
        assert result.trajectory.tiers["previewed"] == ("a",)
        assert result.trajectory.tiers["opened"] == (("b",) if foreign else ("a",))


def test_the_newest_reasoning_goes_with_each_query():
    asked = []

    class Listening(WordBackend):
        def search(self, request):
            asked.append((request.query, request.reasoning))
            return super().search(request)

    messages = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": "", "reasoning": "one", "tool_calls": [{}]},
        {"role": "tool", "content": ""},
        {"role": "assistant", "content": "two", "tool_calls": [{}]},
        {"role": "tool", "content": ""},
        {"role": "assistant", "content": "", "tool_calls": [{}]},
        {"role": "tool", "content": ""},
    ]
    before = replace(recorded(), messages=tuple(messages))
    replay(before, TOOL.open(Listening(TEXTS), STORE), set())
    assert asked == [(QUERIES[0], "one"), (QUERIES[1], "two"), (QUERIES[2], "two")]


# Tuning: grid, measures of all points, choice, optimism and plateau.


MEASURES = ["AP", "RR", "nDCG@10", "nDCG", "P@5", "R@3", "R@100", "Rprec", "Success@1", "Bpref"]


def test_a_grid_has_decimal_steps_up_to_its_end_and_sorted_values_without_repetition():
    grid = Grid("0:32:1", "0:1:0.1")
    assert len(grid) == len(grid.points) == 363
    assert grid.b == (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
    assert grid.points[:2] == [(0.0, 0.0), (0.0, 0.1)] and grid.k1[-1] == 32
    assert Grid("0.5:1.2:0.2", [1, 0.4, 0.4]).k1 == (0.5, 0.7, 0.9, 1.1)
    assert Grid([3], [1, 0.4, 0.4]).b == (0.4, 1.0)
    assert Grid(3, 0.4, weight=0.5, tau=0.05).points == [(3.0, 0.4, 0.5, 0.05)]


@pytest.mark.parametrize(
    ("k1", "b", "message"),
    [
        ([], [0.4], "k1 is empty"),
        ("3:1:1", [0.4], "k1 is empty"),
        ("0:32:0", [0.4], "k1 is '0:32:0'"),
        ("0:32:-1", [0.4], "k1 is '0:32:-1'"),
        ("0:32", [0.4], "start:stop:step"),
        ("a:b:c", [0.4], "start:stop:step"),
        ("0:nan:1", [0.4], "start:stop:step"),
        ([-1], [0.4], "k1=-1"),
        ([float("inf")], [0.4], "k1=inf"),
        ([0.9], [1.1], "b=1.1"),
        ([0.9], [True], "b=True"),
        ([0.9], ["x"], "'x'"),
        ("0:1000000:0.001", [0.4], "at most"),
        ("0:1000:1", "0:1:0.001", "points"),
    ],
)
def test_bad_grids_are_refused(k1, b, message):
    refused(message, Grid, k1, b)


def test_distance_counts_saturation_and_length_on_one_scale():
    assert distance((0.9, 0.4)) == 0
    assert distance((0.9, 0.5)) == pytest.approx(0.1)
    assert distance((1.0, 0.4)) < distance((0.9, 0.5))
    assert distance((32.0, 0.4)) - distance((16.0, 0.4)) < distance((2.0, 0.4))


# A ranking is a permutation of documents; the judged ones are d0, d1, ...
@st.composite
def tuned(draw):
    judged = {
        f"q{n}": {f"d{d}": draw(st.integers(-2, 2)) for d in range(draw(st.integers(1, 4)))}
        for n in range(draw(st.integers(1, 4)))
    }
    names = [f"d{d}" for d in range(4)] + [f"x{d}" for d in range(12)]
    points = [
        {qid: draw(st.permutations(names))[: draw(st.integers(0, 16))] for qid in judged}
        for _ in range(draw(st.integers(1, 4)))
    ]
    return points, judged


def rank_table(points, judged):
    ranks = {
        qid: np.array(
            [
                [point[qid].index(docid) + 1 if docid in point[qid] else 0 for point in points]
                for docid in grades
            ],
            dtype=np.int32,
        )
        for qid, grades in judged.items()
    }
    settings_ = [(float(place), 0.4) for place in range(len(points))]
    return RankTable(settings_, {qid: list(grades) for qid, grades in judged.items()}, ranks)


@settings(max_examples=cases(60), deadline=None)
@given(tuned(), st.sampled_from([1, 10, 2_000_000]))
def test_measures_of_ranks_equal_those_of_the_rankings(drawn, batch):
    points, judged = drawn
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grid_module, "_BATCH", batch)
        table = measure_table(rank_table(points, judged), judged, MEASURES)
    for place, point in enumerate(points):
        expected = measure_rankings(point, judged, MEASURES)
        for name in MEASURES:
            result = dict(zip(table.qids, table.of(name)[:, place].tolist(), strict=True))
            assert result == expected[name], name


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("SetP", "depends on how many"),
        ("NumRet", "depends on how many"),
        ("Judged@10", r"depends on how many|not a measure"),
        ("nDGC@10", r"'nDGC@10' is not a measure.*nDCG@10"),
    ],
)
def test_an_objective_that_is_unknown_or_that_ranks_do_not_determine_is_refused(name, message):
    judged = {"q": {"d": 1}}
    refused(message, lambda: measure_table(rank_table([{"q": ["d"]}], judged), judged, [name]))


def test_tables_survive_their_files(tmp_path):
    judged = {"q 1": {"d/1": 1, "ü": 0}, "q2": {"d": 1}}
    points = [{"q 1": ["x", "ü", "d/1"], "q2": []}, {"q 1": ["d/1"], "q2": ["d"]}]
    ranks = rank_table(points, judged)
    ranks.save(tmp_path / "ranks.npz")
    again = RankTable.load(tmp_path / "ranks.npz")
    assert again.points == ranks.points
    assert again.docids == ranks.docids
    assert all((again.ranks[qid] == ranks.ranks[qid]).all() for qid in judged)
    enriched = [(*point, 0.5, 2.0) for point in ranks.points]
    for table in (RankTable(enriched, ranks.docids, ranks.ranks), RankTable([], {}, {})):
        table.save(tmp_path / "others.npz")
        others = RankTable.load(tmp_path / "others.npz")
        assert (others.points, others.docids) == (table.points, table.docids)
    table = measure_table(again, judged, ["AP", "R@5"])
    table.save(tmp_path / "deep" / "measures.npz")
    with np.load(tmp_path / "deep" / "measures.npz") as loaded:
        assert loaded["measures"].tolist() == table.measures
        assert loaded["qids"].tolist() == table.qids
        assert loaded["points"].tolist() == [list(point) for point in table.points]
        assert (loaded["values"] == table.values).all()
    refused("no measure 'RR'", table.of, "RR")
    refused("different points", lambda: RankTable.joined([ranks, rank_table(points[:1], judged)]))


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04"])
def test_a_damaged_table_is_named_by_its_path(tmp_path, content):
    path = tmp_path / "ranks.npz"
    path.write_bytes(content)
    refused(r"ranks\.npz", RankTable.load, path)


NEAR, FAR = (0.9, 0.4), (25.0, 1.0)


@pytest.mark.parametrize(
    ("values", "points", "order"),
    [
        (
            [[0.5, 0.7, 0.1, 0.6], [0.5, 0.3, 0.9, 0.4]],
            [(0.0, 0.4), FAR, (1.0, 0.4), (0.9, 0.9)],
            [2, 0, 3, 1],
        ),
        # 0.1 + 0.2 is not 0.3 in floating point, but the means are equal.
        ([[0.1, 0.3], [0.2, 0.0]], [FAR, NEAR], [1, 0]),
        ([[0.1, 0.3], [0.2, 0.0]], [NEAR, FAR], [0, 1]),
        (
            [[0.1, 0.3, 0.3, 0.9], [0.2, 0.0, 0.0, 0.1]],
            [FAR, (9.0, 0.4), NEAR, (1.0, 0.4)],
            [3, 2, 1, 0],
        ),
        # Means of 1e-13 and 2e-13 differ; those of 1e6 and one more bit do not.
        ([[2e-13, 1e-13]], [FAR, NEAR], [0, 1]),
        ([[np.nextafter(1e6, 2e6), 1e6]], [FAR, NEAR], [1, 0]),
    ],
)
def test_points_are_ordered_by_their_means_and_ties_from_the_default_on(values, points, order):
    assert ordered_points(np.array(values), points) == order
    assert best_point(np.array(values), points) == order[0]


POINTS = [(0.9, 0.4), (5.0, 0.4), (25.0, 1.0)]


def test_optimism_is_the_claim_of_choosing_on_the_reported_questions_less_the_truth():
    dev = np.array([[0.1, 0.5, 0.4], [0.1, 0.5, 0.4]])
    test = np.array([[0.3, 0.4, 0.8], [0.3, 0.4, 0.6], [0.3, 0.4, 0.7]])
    result = held_out(dev, test, POINTS)
    assert (result.chosen, result.best) == (1, 2)
    assert result.selected == pytest.approx(0.5)
    assert result.chosen_value == pytest.approx(0.4)
    assert result.best_value == pytest.approx(0.7)
    assert result.optimism == pytest.approx(0.3)
    assert (result.selecting, result.reported) == (2, 3)


def test_cross_validation_of_two_questions_reports_each_in_the_others_choice():
    values = np.array([[0.2, 0.9, 0.0], [0.6, 0.1, 0.0]])
    result = cross_validated(values, POINTS, folds=2)
    # Each question would choose the point that is bad for the other.
    assert sorted(result.folds) == [0, 1]
    assert result.value == pytest.approx((0.2 + 0.1) / 2)
    assert result.chosen == 1
    assert result.optimism == pytest.approx(0.5 - 0.15)
    assert result.values == pytest.approx((0.2, 0.1))


def test_cross_validation_is_repeatable_and_honest_on_noise():
    points = [(k1 / 10, 0.4) for k1 in range(100)]
    draws = np.random.default_rng(1).random((40, 30, 100))
    result = [cross_validated(noise, points, folds=5, seed=4) for noise in draws]
    assert result[0] == cross_validated(draws[0], points, folds=5, seed=4)
    assert result[0].value != cross_validated(draws[0], points, folds=5, seed=5).value
    # On noise every point is worth 0.5; the best of 100 claims more.
    assert np.mean([row.selected for row in result]) > 0.6
    assert np.mean([row.value for row in result]) == pytest.approx(0.5, abs=0.02)


def test_many_t_tests_at_once_give_the_p_values_of_each_alone():
    values = np.random.default_rng(0).normal(0.05, 0.2, (40, 6))
    values[:, 0] = 0.0
    values[:, 1] = 0.25
    result = t_test(*paired_differences(values, np.zeros_like(values)))
    zero = dict.fromkeys(range(40), 0.0)
    for column in range(6):
        alone = paired_test(
            dict(enumerate(values[:, column].tolist())), zero, test="t", resamples=99
        )
        assert result[column] == pytest.approx(alone.p, rel=1e-12), column


def test_the_plateau_has_the_points_that_do_not_differ_significantly():
    rng = np.random.default_rng(0)
    base = rng.random(100)
    noise = rng.normal(0, 0.1, 100)
    # The last two columns are equal to the first, one of them but for rounding.
    columns = [base, base + noise - 0.01, base - 0.3, base, (base + 0.1 + 0.2) - 0.3]
    values = np.stack(columns, axis=1)
    result = plateau(values, 0)
    assert result.inside.tolist() == [True, True, False, True, True]
    assert result.p_holm[[0, 3, 4]].tolist() == [1, 1, 1]
    p = t_test(*paired_differences(values, values[:, [0]]))
    assert result.p_holm[1:].tolist() == holm(p[1:].tolist())


def test_no_optimism_is_below_zero():
    # Both points have the mean 0.3 on the reported question, but for rounding.
    dev, test = np.array([[1.0, 0.0]] * 2), np.array([[0.1 + 0.2, 0.3]])
    result = held_out(dev, test, [(25.0, 1.0), (0.9, 0.4)])
    assert (result.chosen, result.best) == (0, 1)
    assert result.optimism == 0.0


def test_folds_do_not_depend_on_the_order_of_the_questions():
    rng = np.random.default_rng(3)
    grid = Grid([1, 2], [0, 1])
    qids = [f"q{n:02}" for n in range(20)]
    values = rng.random((2, 20, 4))
    result = []
    for order in (np.arange(20), rng.permutation(20)):
        named_so = [qids[place] for place in order]
        table = MeasureTable(["AP", "RR"], named_so, grid.points, values[:, order])
        result.append(tune(grid, "AP", table, table, references=[(1.0, 0.0)], folds=5))
    assert result[0].choices == result[1].choices
    assert result[0].gains == result[1].gains


def test_bad_tests_are_refused():
    for folds in (1, 4):
        with pytest.raises(InputError, match="2 to 3 folds"):
            cross_validated(np.ones((3, 3)), POINTS, folds=folds)
    refused("1 question", lambda: plateau(np.ones((1, 3)), 0))


def small_tuning(folds):
    rng = np.random.default_rng(0)
    grid = Grid([1, 2], [0, 1])
    points = [*grid.points, (0.9, 0.4)]
    qids = [f"q{n}" for n in range(20)]
    # The reference is better than every point of the grid.
    values = rng.random((2, 20, 5)) / 2 + np.array([0, 0.1, 0, 0, 0.5])
    table = MeasureTable(["AP", "RR"], qids, points, values)
    other = MeasureTable(["AP", "RR"], [f"p{n}" for n in range(20)], points, values[:, ::-1])
    selecting = table if folds else other
    return tune(grid, "AP", selecting, table, references=[(0.9, 0.4)], folds=folds)


@pytest.mark.parametrize("folds", [None, 4])
def test_a_tuning_chooses_within_the_grid_and_compares_with_the_references(folds):
    result = small_tuning(folds)
    assert result.chosen() in result.grid.points
    assert set(result.choices) == {"AP", "RR"}
    gain = result.gains["AP"][(0.9, 0.4)]
    choice = result.choices["AP"]
    value = choice.chosen_value if folds is None else choice.value
    assert gain.difference == pytest.approx(value - result.reported.of("AP")[:, 4].mean())
    assert gain.difference < 0
    assert gain.n == 20
    assert result.plateaus["AP"].inside.shape == (4,)
    summary = result.summary()
    chosen = dict(zip(("k1", "b"), result.chosen(), strict=True))
    assert summary["measures"]["AP"]["chosen"] == chosen
    assert summary["measures"]["AP"]["optimism"] == pytest.approx(choice.optimism)
