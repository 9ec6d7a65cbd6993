"""The cache of results, and replies to prompts: what they took; processes with one cache pay for
each prompt once."""

import errno
import fcntl
import gc
import inspect
import json
import math
import multiprocessing
import os
import pickle
import random
import re
import signal
import sqlite3
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.assertions import refused
from support.llm_model import ScriptedModel, ScriptedPrompts, saying, used
from support.llm_server import Fail, Say, Stall, running_peer
from support.needs import cases

from soundingline.pipelines import cache as caches
from soundingline.pipelines.cache import (
    Claims,
    ResultCache,
    limit_size,
    list_caches,
    network_note,
    prune,
)
from soundingline.pipelines.enrich.llm_phrases import ModelPhrases, ModelText
from soundingline.pipelines.grep import GrepRag, ShellAgent
from soundingline.pipelines.prompting import CachedLLM
from soundingline.pipelines.q2q import Q2Q
from soundingline.pipelines.requirements.chat import ChatScorer
from soundingline.pipelines.rerank.listwise import Listwise
from soundingline.pipelines.rerank.pointwise import Pointwise
from soundingline.pipelines.stage import Collection, Counts, Stage
from soundingline.toolkit import locks
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.llm.blocking import BlockingModel
from soundingline.toolkit.llm.errors import Refused, Truncated
from soundingline.toolkit.llm.ledger import Ledger
from soundingline.toolkit.llm.messages import SamplingParams, Usage
from soundingline.toolkit.llm.openai import OpenAIChat
from soundingline.toolkit.llm.prices import Price
from soundingline.toolkit.runs.run_folder import repeat_id

FORK = multiprocessing.get_context("fork")
SPAWN = multiprocessing.get_context("spawn")
DAY = 86400
MB = 1 << 20


@pytest.fixture
def path(tmp_path):
    return tmp_path / "folder" / "cache.sqlite"


def key(number):
    return "stage", str(number)


def test_what_was_put_last_is_got_by_its_key_in_the_order_asked(path):
    cache = ResultCache(path)
    cache.put([(("a", "b"), 1.5), (("c",), "old")])
    cache.put([(("c",), {"text": ["x", None]})])
    for opened in (cache, ResultCache(path), pickle.loads(pickle.dumps(cache))):
        values = opened.get([("c",), ("unknown",), ("a", "b")])
        assert values == [{"text": ["x", None]}, None, 1.5]
    ((value,), _) = cache._connection().execute("SELECT value FROM results").fetchall()
    assert json.loads(value) in (1.5, {"text": ["x", None]})


def test_more_keys_than_sqlite_takes_in_one_statement(path):
    cache = ResultCache(path)
    cache.put((key(n), n) for n in range(0, 70_000, 2))
    got = cache.get([key(n) for n in range(70_000)])
    assert got[::2] == list(range(0, 70_000, 2))
    assert not any(value is not None for value in got[1::2])


def test_hits_and_misses_are_counted_among_those_of_the_caller(path):
    counts = Counts("queries")
    cache = ResultCache(path, counts)
    assert counts() == {"queries": 0, "cache_hits": 0, "cache_misses": 0}
    cache.put([(key(1), 0.0), (key(2), False)])
    cache.get([key(1), key(2), key(3)])
    cache.get([key(1)], counted=False)
    assert counts() == {"queries": 0, "cache_hits": 2, "cache_misses": 1}


def test_without_a_path_nothing_is_kept(tmp_path):
    cache = ResultCache(None)
    cache.put([(key(1), 1)])
    assert cache.get([key(1)]) == [None]
    assert cache.counts() == {}


TEXTS = st.text(max_size=8)
PARTS = st.lists(TEXTS, max_size=4).map(tuple)


@settings(max_examples=cases(30))
@given(PARTS, PARTS)
@example(("ab", "c"), ("a", "bc"))
@example(("a", ""), ("a",))
@example((), ("",))
def test_only_equal_keys_find_a_value(tmp_path_factory, mine, other):
    cache = ResultCache(tmp_path_factory.mktemp("cache") / "c.sqlite")
    cache.put([(mine, "mine")])
    assert cache.get([other]) == ["mine" if mine == other else None]


def test_text_of_any_script_is_kept(path):
    odd = ["naïve 東京 \U0001f600", "a\x00b", "'; DROP TABLE results; --"]
    cache = ResultCache(path)
    cache.put([((text,), text) for text in odd] + [(("nan",), math.nan)])
    assert cache.get([(text,) for text in odd]) == odd
    assert math.isnan(cache.get([("nan",)])[0])


def write_and_read(path, worker, barrier):
    """200 values that all workers write, and 200 of its own."""
    barrier.wait(60)
    cache = ResultCache(path)
    for n in range(0, 200, 10):
        mine = [
            *((key(m), m) for m in range(n, n + 10)),
            *((("own", str(worker), str(m)), m) for m in range(n, n + 10)),
        ]
        cache.put(mine)
        assert cache.get([each for each, _ in mine]) == [value for _, value in mine]


def whole(path):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_many_threads_share_one_object(path):
    cache = ResultCache(path)

    def work(worker):
        for n in range(20):
            cache.put([(key(n), n), (("own", str(worker), str(n)), n)])
            assert cache.get([key(n), ("own", str(worker), str(n))]) == [n, n]

    with ThreadPoolExecutor(32) as pool:
        list(pool.map(work, range(32)))
    assert cache.counts() == {"cache_hits": 32 * 40, "cache_misses": 0}
    assert whole(path)


@pytest.fixture
def mounted(tmp_path, monkeypatch):
    """Have this process, and those forked from it, take `tmp_path` for a mount of another kind."""

    def mount(kind="nfs4"):
        table = tmp_path / "mountinfo"
        table.write_text(f"1 0 0:1 / {tmp_path.resolve()} rw - {kind} server:/export rw\n")
        monkeypatch.setattr(locks, "MOUNTS", table)

    return mount


def test_where_the_file_system_is_not_known_to_be_local_no_log_or_memory_is_shared(path, mounted):
    mounted()
    cache = ResultCache(path)
    cache.put([(key(2), 2)])
    with cache._connection() as writing:
        writing.execute("BEGIN IMMEDIATE")
        names = {file.name for file in path.parent.iterdir()}
        assert not [name for name in names if name.endswith(("-wal", "-shm"))]
    (mode,) = cache._connection().execute("PRAGMA journal_mode").fetchone()
    (level,) = cache._connection().execute("PRAGMA synchronous").fetchone()
    assert (mode, level) == ("delete", 2)
    assert cache.get([key(2)]) == [2]


def test_a_file_with_a_log_is_opened_with_a_rollback_journal_and_keeps_its_entries(path, mounted):
    filled(path)
    mounted()
    path.rename(ResultCache(path).file)
    cache = ResultCache(path)
    assert cache.get([key(1)]) == ["value " * 20]
    assert cache._connection().execute("PRAGMA journal_mode").fetchone() == ("delete",)


def test_hosts_have_files_of_their_own_where_locks_may_stay_on_their_host(
    path, mounted, monkeypatch
):
    mounted()
    for host in ("node-1.cluster", "node/2"):
        monkeypatch.setattr("socket.gethostname", lambda host=host: host)
        ResultCache(path).put([(key(1), host)])
        assert ResultCache(path).get([key(1)]) == [host]
    names = {file.name for file in path.parent.glob("*.sqlite")}
    assert names == {"cache@node-1.cluster.sqlite", "cache@node_2.sqlite"}


def test_a_file_system_that_is_not_known_to_be_local_is_told_in_one_line(tmp_path, mounted):
    assert network_note(tmp_path / "caches") == ""
    mounted("beegfs")
    assert re.fullmatch(
        r".*caches.*not known to be local \(beegfs\).*rollback journal.*one file a host.*",
        network_note(tmp_path / "caches"),
    )


@pytest.mark.parametrize(
    ("context", "network"),
    [(FORK, False), (SPAWN, False), (FORK, True)],
    ids=["fork", "spawn", "network"],
)
def test_several_processes_begin_one_file_together(path, mounted, context, network):
    if network:
        mounted()
    # This process is the last one, because each new interpreter imports all packages.
    count = 2 if context is SPAWN else 4
    barrier = context.Barrier(count)
    arguments = [(path, number, barrier) for number in range(count)]
    workers = [context.Process(target=write_and_read, args=each) for each in arguments[:-1]]
    for worker in workers:
        worker.start()
    write_and_read(*arguments[-1])
    for worker in workers:
        worker.join(120)
    assert [worker.exitcode for worker in workers] == [0] * (count - 1)
    own = [("own", str(worker), str(n)) for worker in range(count) for n in range(200)]
    cache = ResultCache(path)
    assert cache.get(own) == [*range(200)] * count
    assert whole(cache.file)


def test_a_cache_in_use_goes_on_in_forked_processes_and_in_their_parent(path):
    cache = ResultCache(path)
    cache.put([(key(n), n) for n in range(50)])

    def child(number):
        for n in range(50):
            assert cache.get([key(n)]) == [n]
            cache.put([(("child", str(number), str(n)), n)])

    for round_ in range(3):
        children = [FORK.Process(target=child, args=(3 * round_ + n,)) for n in range(3)]
        for each in children:
            each.start()
        for n in range(50):
            cache.put([(("parent", str(round_), str(n)), n)])
            assert cache.get([key(n)]) == [n]
        for each in children:
            each.join(120)
        assert [each.exitcode for each in children] == [0] * 3
    everyone = [("child", str(number), str(n)) for number in range(9) for n in range(50)]
    everyone += [("parent", str(round_), str(n)) for round_ in range(3) for n in range(50)]
    assert cache.get(everyone) == [*range(50)] * 12
    assert whole(path)


def test_a_process_killed_while_it_writes_leaves_whole_batches_only(path):
    ready = FORK.Event()

    def writer():
        cache = ResultCache(path)
        for batch in range(10**6):
            cache.put([((str(batch), str(n)), n) for n in range(100)])
            if batch == 20:
                ready.set()

    worker = FORK.Process(target=writer)
    worker.start()
    assert ready.wait(60)
    worker.kill()
    worker.join(60)
    cache, batch = ResultCache(path), 0
    while (got := cache.get([(str(batch), str(n)) for n in range(100)]))[0] is not None:
        assert got == [*range(100)]
        batch += 1
    assert batch > 20
    assert set(got) == {None}
    assert whole(path)


def filled(path):
    cache = ResultCache(path)
    cache.put((key(n), "value " * 20) for n in range(2000))
    del cache
    gc.collect()


@pytest.mark.parametrize(
    "use",
    [
        lambda path: ResultCache(path).get([key(n) for n in range(2000)]),
        lambda path: ResultCache(path).put((key(n), 1) for n in range(2000)),
    ],
    ids=["read", "written"],
)
@pytest.mark.parametrize("sound", [0, 4096])  # nothing, or the first page
def test_a_damaged_file_is_told_in_one_line(path, use, sound):
    filled(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = path.read_bytes()
    path.write_bytes(content[:sound] + b"\x55" * (len(content) - sound))
    refused(r"cache .*cache.sqlite .*move that file away", use, path)


BITS = [(byte, bit) for byte in range(len('{"text": "a paid reply"}')) for bit in range(8)]


@pytest.mark.parametrize(("byte", "bit"), random.Random(5).sample(BITS, cases(len(BITS), 12)))
def test_a_value_with_one_changed_bit_is_set_aside_and_told(path, capsys, byte, bit):
    cache = ResultCache(path)
    cache.put([(key(n), {"text": "another"}) for n in range(2, 9)])
    cache.put([(key(1), {"text": "a paid reply"})])
    del cache
    gc.collect()  # closes the connection, and with it the log is written into the file
    content = bytearray(path.read_bytes())
    at = content.index(b'{"text": "a paid reply"}')
    content[at + byte] ^= 1 << bit
    damaged = bytes(content[at : at + len('{"text": "a paid reply"}')])
    path.write_bytes(content)
    cache = ResultCache(path)
    assert cache.get([key(1), key(2)]) == [None, {"text": "another"}]
    assert re.fullmatch(r".*cache\.sqlite is damaged; .*damaged-1\n", capsys.readouterr().err)
    assert path.with_name("cache.sqlite.damaged-1").read_bytes() == damaged
    cache.put([(key(1), {"text": "paid again"})])
    assert ResultCache(path).get([key(1)]) == [{"text": "paid again"}]
    assert whole(path) and not capsys.readouterr().err


def test_a_full_disk_keeps_what_was_there_and_is_told(path):
    cache = ResultCache(path)
    cache.put([(key(1), 1)])
    pages = cache._connection().execute("PRAGMA page_count").fetchone()[0]
    cache._connection().execute(f"PRAGMA max_page_count={pages + 2}")
    with pytest.raises(InputError, match=r"cache .*cannot be written.*full"):
        cache.put((key(n), "x" * 1000) for n in range(2, 100))
    assert cache.get([key(1), key(2)]) == [1, None]


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").write_text("in the way")
    refused(r"cache .*cannot be opened", ResultCache, tmp_path / "file" / "cache.sqlite")


def times_used(path):
    connection = sqlite3.connect(path)
    try:
        return [row[0] for row in connection.execute("SELECT used FROM results ORDER BY used")]
    finally:
        connection.close()


def test_a_hit_notes_when_an_entry_was_used_once_a_day(path, monkeypatch):
    day, now = 86400, 1_700_000_000.9
    cache = ResultCache(path)
    monkeypatch.setattr("time.time", lambda: now)
    cache.put([(key(1), 1), (key(2), 2)])
    monkeypatch.setattr("time.time", lambda: now + day - 1)
    cache.get([key(1)])
    assert times_used(path) == [1_700_000_000] * 2
    monkeypatch.setattr("time.time", lambda: now + day + 1)
    cache.get([key(1), key(3)])
    assert times_used(path) == [1_700_000_000, 1_700_000_001 + day]


def test_a_hit_whose_use_cannot_be_noted_is_a_hit(path, monkeypatch):
    cache = ResultCache(path)
    cache.put([(key(1), 1)])
    cache._connection().execute("PRAGMA query_only=1")
    monkeypatch.setattr("time.time", lambda: 9e9)
    assert cache.get([key(1)]) == [1]


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "caches"


def named(name, number):
    return name, str(number)


def fill(file, name, numbers, at, monkeypatch, value="x" * 200):
    """Entries written at a time, in batches a second apart."""
    cache = ResultCache(file)
    for start in range(0, len(numbers), 500):
        with monkeypatch.context() as patch:
            patch.setattr("time.time", lambda start=start: at + start // 500)
            cache.put((named(name, n), value) for n in numbers[start : start + 500])
    del cache
    gc.collect()


def present(file, name, numbers):
    values = ResultCache(file).get([named(name, n) for n in numbers])
    return [n for n, value in zip(numbers, values, strict=True) if value is not None]


def on_disk(folder):
    gc.collect()
    size = 0
    for file in folder.iterdir():
        with suppress(FileNotFoundError):  # a journal of SQLite's that ends meanwhile
            size += file.stat().st_size
    return size


def size_of(file):
    """The bytes of a cache's file, whose connections are closed."""
    gc.collect()
    return file.stat().st_size


def test_a_folder_that_is_not_there_holds_no_caches(tmp_path):
    assert list_caches(tmp_path / "absent") == []
    assert limit_size(tmp_path / "absent", 0) == 0
    assert not (tmp_path / "absent").exists()


def test_the_least_recently_used_entries_of_all_caches_go_first(folder, monkeypatch):
    numbers = list(range(4000))
    fill(folder / "a.sqlite", "old", numbers, 1e9, monkeypatch)
    fill(folder / "b.sqlite", "middle", numbers, 1.1e9, monkeypatch)
    fill(folder / "a.sqlite", "new", numbers, 1.2e9, monkeypatch)
    before = on_disk(folder)
    freed = prune(folder, limit=before // 2)
    assert before // 3 < on_disk(folder) <= before // 2
    assert freed >= before // 2
    assert present(folder / "a.sqlite", "new", numbers) == numbers
    assert present(folder / "a.sqlite", "old", numbers) == []
    rest = present(folder / "b.sqlite", "middle", numbers)
    assert 0 < len(rest) < len(numbers)
    # Some of one batch went; all later batches stayed.
    assert set(rest) >= set(range(min(rest) // 500 * 500 + 500, len(numbers)))


def test_what_was_not_used_since_a_time_is_pruned_and_reading_is_a_use(folder, monkeypatch):
    file = folder / "a.sqlite"
    fill(file, "old", range(5000), 1e9, monkeypatch)
    fill(file, "new", range(100), 1.5e9, monkeypatch)
    read = list(range(0, 5000, 50))
    assert present(file, "old", read) == read
    prune(folder, before=1_500_000_000)
    assert len(times_used(file)) == 200
    assert present(file, "new", range(100)) == list(range(100))
    assert present(file, "old", range(5000)) == read
    assert on_disk(folder) < 200_000


@pytest.mark.parametrize("length", [0, 200, 20_000])
def test_any_size_of_values_is_pruned_to_the_limit_and_not_far_below(folder, monkeypatch, length):
    file = folder / "a.sqlite"
    fill(file, "a", range(200_000 // (length + 50)), 1e9, monkeypatch, value="é" * length)
    limit = size_of(file) // 2
    prune(folder, limit=limit)
    assert limit // 3 < size_of(file) <= limit
    assert whole(file)


def test_a_cache_below_its_bound_is_left_alone_and_one_above_falls_well_below(folder, monkeypatch):
    file = folder / "a.sqlite"
    fill(file, "a", range(5000), 1e9, monkeypatch)
    size = size_of(file)
    assert limit_size(folder, size) == 0
    assert len(times_used(file)) == 5000
    assert limit_size(folder, size - 1) >= size // 5
    assert size // 2 < size_of(file) <= 0.8 * size


def use(file, worker, stop, ready):
    """Write and read new entries until `stop`; each must be there right after it was written."""
    cache, n = ResultCache(file), 0
    while n < 50 or not stop.is_set():
        mine = [(("worker", str(worker), str(m)), m) for m in range(n, n + 10)]
        cache.put(mine)
        assert cache.get([key_ for key_, _ in mine]) == [value for _, value in mine]
        n += 10
        ready.set()
        time.sleep(0.005)  # what a stage computes meanwhile


@pytest.mark.parametrize("network", [False, True], ids=["local", "network"])
def test_processes_go_on_while_another_prunes(folder, mounted, monkeypatch, network):
    if network:
        mounted()
    path = folder / "a.sqlite"
    file = ResultCache(path).file
    fill(path, "old", range(20_000), 1e9, monkeypatch)
    stop, ready = FORK.Event(), [FORK.Event() for _ in range(3)]
    workers = [FORK.Process(target=use, args=(path, n, stop, ready[n])) for n in range(3)]
    for worker in workers:
        worker.start()
    assert all(event.wait(60) for event in ready)
    size = on_disk(folder)
    other = FORK.Process(target=prune, args=(folder,), kwargs={"limit": MB})
    other.start()
    prune(folder, limit=MB)
    other.join(60)
    assert other.exitcode == 0
    stop.set()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0] * 3
    assert size > 4 * MB
    # Pruned to 1 MiB, then written to a little more.
    assert size_of(file) < 3 * MB
    assert len(present(path, "old", range(20_000))) < 5000
    own = [("worker", str(n), str(m)) for n in range(3) for m in range(50)]
    assert ResultCache(path).get(own) == [*range(50)] * 3
    assert whole(file)


def test_a_file_of_another_host_is_listed_and_never_opened(folder, mounted, monkeypatch):
    mounted()
    for host in ("here", "there"):
        monkeypatch.setattr("socket.gethostname", lambda host=host: host)
        fill(folder / "a.sqlite", "a", range(2000), 1e9, monkeypatch)
    mine, theirs = folder / "a@here.sqlite", folder / "a@there.sqlite"
    content = theirs.read_bytes()
    monkeypatch.setattr("socket.gethostname", lambda: "here")
    prune(folder, limit=0)
    assert list_caches(folder) == [mine, theirs]
    assert times_used(mine) == []
    assert theirs.read_bytes() == content


def test_a_database_of_another_kind_is_not_touched(folder):
    folder.mkdir()
    file = folder / "other.sqlite"
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("CREATE TABLE texts (text TEXT)")
        connection.executemany("INSERT INTO texts VALUES (?)", [("x" * 5000,)] * 100)
    content = file.read_bytes()
    prune(folder, limit=0, before=2**40)
    assert file.read_bytes() == content


def test_a_damaged_cache_is_told_in_one_line(folder):
    folder.mkdir()
    (folder / "a.sqlite").write_bytes(random.Random(0).randbytes(9000))
    refused(r"cache .*a.sqlite is damaged.*move that file away", prune, folder, limit=0)


# Replies to prompts.

DOLLAR = Price(input=0.0, output=1_000_000.0)


def replies(model, folder, ledger=None):
    """The counts of a stage that requests the reply to one prompt."""
    settings = SamplingParams(seed=1)
    blocking = BlockingModel("m", role="rewriter", settings=settings, price=DOLLAR)
    counts = Counts()
    llm = CachedLLM(name="test", parts=[], is_empty=lambda text: not text, counts=counts)
    with blocking.started(model, ledger):
        llm.of(blocking, folder).replies({"prompt": "q"})
    return counts()


@pytest.mark.parametrize(
    ("usage", "counted"),
    [
        (used(100, 10), {"reply_input_tokens": 100, "reply_output_tokens": 10}),
        (Usage(input=5), {"reply_input_tokens": 5, "reply_unreported": 1}),
    ],
)
def test_the_tokens_of_a_reply_are_counted_again_from_the_cache(tmp_path, usage, counted):
    for steps, lookups in (
        (
            [saying("yes", usage=usage)],
            {"asked": 1, "shared": 0, "cache_hits": 0, "cache_misses": 1},
        ),
        ([], {"cache_hits": 1, "cache_misses": 0}),
    ):
        assert replies(ScriptedModel(*steps), tmp_path) == {**lookups, **counted}


@pytest.mark.parametrize(
    "first",
    [saying("", usage=used(0, 1)), Truncated("cut", turn=saying("y", usage=used(0, 1)))],
    ids=["empty", "truncated"],
)
def test_a_second_request_for_a_prompt_is_on_the_ledger_beside_the_first(tmp_path, first):
    ledger = Ledger()
    model = ScriptedModel(first, saying("yes", usage=used(0, 1)))
    counted = replies(model, tmp_path, ledger)
    assert counted["asked"] == counted["retried"] == 1
    assert (ledger.total.calls, ledger.total.dollars) == (2, 2.0)
    assert [request.settings.seed for request in model.requests] == [1, 2]


def test_each_repeat_has_a_sampled_reply_of_its_own_and_gets_it_again(tmp_path):
    def asked(settings, run="one"):
        """The reply to one prompt in three repeats, by a client of a new process."""
        model = ScriptedModel(choose=lambda *_: saying(f"reply {len(given)}", usage=used(1, 1)))
        given, counts = model.requests, Counts("samples_of_other_runs")
        blocking = BlockingModel("m", role="rewriter", settings=settings, price=DOLLAR)
        llm = CachedLLM(name="test", parts=[], is_empty=lambda text: not text, counts=counts)
        with blocking.started(model, run=run):
            bound = llm.of(blocking, tmp_path)
            texts = [bound.replies({"prompt": repeat_id("q", n)})["prompt"].text for n in (1, 2, 3)]
        seeds = [request.settings.seed for request in model.requests]
        hits, misses = llm.counts()["cache_hits"], llm.counts()["cache_misses"]
        return texts, seeds, (hits, misses), counts()["samples_of_other_runs"]

    sampled = SamplingParams(seed=5)
    own = ["reply 1", "reply 2", "reply 3"]
    assert asked(sampled) == (own, [5, 6, 7], (0, 3), 0)
    assert asked(sampled) == (own, [], (3, 0), 0)
    assert asked(sampled, "another") == (own, [], (3, 0), 3)
    for alike in (SamplingParams(temperature=0.0), SamplingParams(max_output_tokens=1, logprobs=0)):
        kept = alike.logprobs is None  # log-probabilities that did not come are not kept on disk
        assert asked(alike) == (["reply 1"] * 3, [None], (2 if kept else 0, 1 if kept else 3), 0)


# Steps of a pipeline that ask a language model.

STEPS = [Q2Q, Listwise, Pointwise, GrepRag, ShellAgent, ModelPhrases, ModelText, ChatScorer]


@pytest.mark.parametrize("kind", STEPS)
def test_a_step_without_a_model_is_refused_and_its_counts_begin_at_zero(kind):
    step = kind()
    refused(f"{kind.__name__} asks a language model, and there is none", lambda: step.ask([], []))
    assert set(step.counts) == {*kind.counted, "asked", "retried", "shared"}
    assert kind.needs_llm and not any(step.counts.values())


@pytest.fixture
def models(tmp_path):
    """A model of a step's own, that of its collection, and the collection."""
    own, theirs = (BlockingModel(name, role="rewriter") for name in ("own", "theirs"))
    return own, theirs, Collection("c", model=theirs, caches=tmp_path / "theirs")


@pytest.mark.parametrize("kind", STEPS)
def test_a_step_asks_the_model_of_its_collection(kind, models, tmp_path):
    _, theirs, collection = models
    assert kind().model_and_cache(collection) == (theirs, tmp_path / "theirs")


@pytest.mark.parametrize("kind", [kind for kind in STEPS if issubclass(kind, Stage)])
def test_a_stage_asks_its_own_model_and_else_that_of_its_collection(kind, models, tmp_path):
    own, theirs, collection = models
    bound = kind().bind(collection)
    assert bound.model_and_cache() == (theirs, tmp_path / "theirs")
    assert bound.fingerprint == kind(theirs).fingerprint
    assert len({kind().fingerprint, kind(own).fingerprint, bound.fingerprint}) == 3
    assert kind(own).bind(collection).model_and_cache() == (own, tmp_path / "theirs")


@pytest.mark.parametrize(
    "kind", [kind for kind in STEPS if "cache" in inspect.signature(kind).parameters]
)
def test_a_stage_with_a_cache_of_its_own_uses_it(kind, models, tmp_path):
    own, _, collection = models
    with_both = kind(own, cache=tmp_path / "own").bind(collection)
    assert with_both.model_and_cache() == (own, tmp_path / "own")


def test_replies_are_in_the_order_of_the_prompts_and_equal_ones_are_paid_for_once():
    ledger, blocking = Ledger(), BlockingModel("m", role="rewriter", price=DOLLAR)

    def answer(messages, _):
        return saying(f"It is {messages[-1]['content']}.", usage=used(0, 1))

    step = Q2Q(blocking)
    with blocking.started(ScriptedModel(choose=answer), ledger):
        found = step.ask(["mill", "river", "mill"], ["1", "2", "3"])
    assert [reply.text for reply in found] == ["It is mill.", "It is river.", "It is mill."]
    assert ledger.total.calls == step.counts["asked"] == 2 and ledger.by_role("2")


PROMPTS = [f"Which mill is number {number}?" for number in range(cases(200, 120))]


@pytest.fixture(scope="module")
def server():
    import_module("httpx2")  # Once, and not in each of the processes that are forked.
    with running_peer() as running:
        yield running


@pytest.fixture
def peer(server):
    server.reset()
    return server


def prompt_of(request):
    """Empty where the process was killed before it had sent the request whole."""
    messages = request.body.get("messages", [{"content": ""}])
    return str(messages[-1]["content"])


def paid(peer):
    """How often each prompt has come to the server."""
    return Counter(filter(None, map(prompt_of, peer.requests)))


def answering(seconds):
    """A server that takes about so long for each reply."""

    def step(request):
        time.sleep(seconds * random.random() * 2)
        return Say(text=f"It is {prompt_of(request)}")

    return step


def client_of(folder, model, counts=None):
    counts = counts or Counts()
    llm = CachedLLM(name="test", parts=["test"], is_empty=lambda text: not text, counts=counts)
    return llm.of(model, folder)


def ask(folder, url, batches, timeout, threads):
    """What a process does; its exit code is 0 where it has the right reply to each prompt."""
    settings = SamplingParams(timeout=timeout)
    chat = OpenAIChat(model="m", base_url=url, settings=settings, concurrency=16, attempts=1)
    blocking = BlockingModel("m", role="enrichment", settings=settings)
    client = client_of(folder, blocking)

    def replies(batch):
        texts = {
            prompt: one.text for prompt, one in client.replies(dict.fromkeys(batch, "")).items()
        }
        return texts == {prompt: f"It is {prompt}" for prompt in batch}

    with blocking.started(chat), ThreadPoolExecutor(threads) as pool:
        right = all(pool.map(replies, batches))
    os._exit(0 if right else 1)


def begun(folder, peer, batches, timeout=60.0, threads=1):
    arguments = (folder, peer.openai_url, batches, timeout, threads)
    process = FORK.Process(target=ask, args=arguments)
    process.start()
    return process


def ended(*processes, seconds=60.0):
    for process in processes:
        process.join(seconds)
    codes = [process.exitcode for process in processes]
    for process in processes:
        if process.exitcode is None:
            process.kill()
            process.join()
    return codes


def in_batches(size, seed, count=None):
    """The first `count` prompts in the order of the seed."""
    prompts = PROMPTS[:count]
    random.Random(seed).shuffle(prompts)
    return [prompts[start : start + size] for start in range(0, len(prompts), size)]


@pytest.mark.parametrize(
    ("size", "threads", "network"),
    [(len(PROMPTS), 1, False), (16, 4, False), (1, 8, False), (16, 4, True)],
)
def test_two_processes_pay_for_each_prompt_once(tmp_path, peer, mounted, size, threads, network):
    if network:
        mounted()
    count = cases(200, 40) if network else len(PROMPTS)  # each reply is synced there
    peer.default = answering(0.002)
    processes = [
        begun(tmp_path / "caches", peer, in_batches(size, seed, count), threads=threads)
        for seed in (1, 2)
    ]
    assert ended(*processes) == [0, 0]
    assert paid(peer) == Counter(PROMPTS[:count]), f"{len(peer.requests)} requests"


@pytest.mark.parametrize("network", [False, True], ids=["local", "network"])
@pytest.mark.parametrize("seed", range(cases(20, 2)))
def test_more_processes_some_of_which_are_killed_pay_twice_only_for_what_was_in_flight(
    tmp_path, peer, mounted, seed, network
):
    if network:
        mounted()
    chance = random.Random(seed)
    peer.default = answering(0.01)
    processes = [begun(tmp_path, peer, in_batches(50, seed * 4 + number)) for number in range(4)]
    killed = chance.sample(processes, 2)
    for process in killed:
        seen = len(peer.requests) + chance.randrange(20, 40)
        while len(peer.requests) < seen and process.is_alive():
            time.sleep(0.001)
        process.kill()
    left = [process for process in processes if process not in killed]
    assert ended(*left) == [0, 0]
    assert set(paid(peer)) == set(PROMPTS)
    # Each process has at most 16 requests in flight.
    assert paid(peer).total() <= len(PROMPTS) + 16 * len(killed)


def stalled(folder, peer):
    """A process that waits for the server with 16 requests in flight."""
    peer.default = Stall(60)
    process = begun(folder, peer, [PROMPTS])
    while len(peer.requests) < 16:
        time.sleep(0.001)
    return process


def test_the_claims_of_a_killed_process_are_free_at_once(tmp_path, peer):
    first = stalled(tmp_path, peer)
    second = begun(tmp_path, peer, [PROMPTS])
    second.join(0.5)
    assert second.is_alive() and len(peer.requests) == 16, "it waits"
    peer.default = answering(0.001)
    first.kill()
    began = time.monotonic()
    assert ended(first, second) == [-signal.SIGKILL, 0]
    assert time.monotonic() - began < 10
    assert len(peer.requests) == 16 + len(PROMPTS)


def test_a_process_that_was_stopped_is_waited_for_no_longer_than_an_attempt_may_last(
    tmp_path, peer, capfd
):
    first = stalled(tmp_path, peer)
    os.kill(first.pid, signal.SIGSTOP)
    peer.default = answering(0.001)
    began = time.monotonic()
    assert ended(begun(tmp_path, peer, [PROMPTS], timeout=1.0)) == [0]
    assert 1 <= time.monotonic() - began < 20
    assert f"asking for {len(PROMPTS)} of the same prompts" in capfd.readouterr().err
    first.kill()
    first.join()


def test_prompts_that_another_process_got_no_reply_to_are_asked_for_here(tmp_path, peer):
    refused = set(random.Random(3).sample(PROMPTS, 20))
    told = set[str]()

    def step(request):
        prompt = prompt_of(request)
        time.sleep(0.002)
        if prompt in refused - told:
            told.add(prompt)
            return Fail(400, "no", "content_filter")
        return Say(text=f"It is {prompt}")

    peer.default = step
    first = begun(tmp_path, peer, [PROMPTS])
    while not peer.requests:  # until it has claimed all prompts
        time.sleep(0.001)
    second = begun(tmp_path, peer, [PROMPTS])
    assert ended(first, second) == [1, 0], "the first lacks the replies that were refused"
    assert paid(peer) == Counter(PROMPTS) + Counter(refused)


def test_two_clients_of_one_process_share_a_file_and_neither_frees_the_others_claims(tmp_path):
    cache = tmp_path / "c.sqlite"
    one, other = Claims(cache, 60), Claims(cache, 60)
    first, second = one.in_turn(["a", "b"]), other.in_turn(["b", "c"])
    assert next(first) == ["a", "b"] and next(second) == ["c"]
    one.release("b")
    assert next(second) == ["b"]
    first.close()
    assert next(Claims(cache, 60).in_turn(["a"])) == ["a"]
    waiting = Claims(cache, 0.0).in_turn(["b"])
    assert next(waiting) == ["b"], "given without a claim, because nobody waits so long"
    assert not cache.with_name("c.sqlite.claims").read_bytes()
    second.close()


def test_no_descriptor_stays_open_without_a_claim(tmp_path):
    before = len(list(Path("/proc/self/fd").iterdir()))
    for number in range(50):
        for part in Claims(tmp_path / f"{number}.sqlite", 60).in_turn(["a", "b"]):
            assert part == ["a", "b"]
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_forked_child_has_none_of_its_parents_claims_and_respects_them(tmp_path):
    cache = tmp_path / "c.sqlite"
    mine = Claims(cache, 60).in_turn(["a"])
    assert next(mine) == ["a"]

    def child():
        parts = Claims(cache, 60).in_turn(["b", "a"])
        os._exit(0 if [next(parts), next(parts)] == [["b"], ["a"]] else 1)

    process = FORK.Process(target=child)
    process.start()
    process.join(0.3)
    assert process.is_alive(), "it waits for its parent"
    mine.close()
    assert ended(process) == [0]


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOTSUP])
def test_where_there_are_no_locks_every_prompt_is_given_at_once(tmp_path, monkeypatch, code):
    def without(handle, command, *range_):
        if command != fcntl.LOCK_UN:
            raise OSError(code, os.strerror(code))

    monkeypatch.setattr(caches.fcntl, "lockf", without)
    assert list(Claims(tmp_path / "c.sqlite", 60).in_turn(["a", "b"])) == [["a", "b"]]
    assert list(Claims(None, 60).in_turn(["a", "b"])) == [["a", "b"]]


def test_replies_of_another_process_count_as_shared(tmp_path):
    counts = Counts("asked", "shared")
    model = ScriptedPrompts(lambda prompt: f"It is {prompt}")
    client = client_of(tmp_path, model, counts)
    (file,) = tmp_path.glob("test-*.sqlite")
    key = file.stem.removeprefix("test-")
    other = Claims(file, 60).in_turn(PROMPTS[:3])
    assert next(other) == PROMPTS[:3]
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(client.replies, dict.fromkeys(PROMPTS[:5], ""))
        while not model.rounds:
            time.sleep(0.001)
        value = {"text": "theirs", "retried": False, "tokens": (1, 2)}
        ResultCache(file).put(((key, prompt), value) for prompt in PROMPTS[:3])
        other.close()
        replies = asking.result(60)
    assert [replies[prompt].text for prompt in PROMPTS[:3]] == ["theirs"] * 3
    assert model.prompts == PROMPTS[3:5]
    assert counts() == {
        "asked": 2,
        "shared": 3,
        "reply_input_tokens": 3,
        "reply_output_tokens": 6,
        "reply_unreported": 2,  # the scripted model tells no tokens
        "cache_hits": 0,
        "cache_misses": 5,
    }


def test_an_error_frees_the_claims(tmp_path):
    failing = client_of(tmp_path, ScriptedPrompts(lambda prompt: "unused"))
    failing._model.respond_many = None
    with pytest.raises(TypeError):
        failing.replies({"a": ""})
    refusing = client_of(tmp_path, ScriptedPrompts(lambda prompt: Refused("no")))
    assert refusing.replies({"a": ""})["a"].error == "refused"
    working = client_of(tmp_path, ScriptedPrompts(lambda prompt: "yes"))
    assert working.replies({"a": ""})["a"].text == "yes"
