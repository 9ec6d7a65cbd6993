import gc
import multiprocessing
import random
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from pipelines.cache_limits import bound, prune, survey
from pipelines.caching import ResultCache
from toolkit import filesystems
from toolkit.errors import InputError

FORK = multiprocessing.get_context("fork")
DAY = 86400
MB = 1 << 20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "caches"


def key(name: str, number: int) -> tuple[str, ...]:
    return name, str(number)


def fill(
    file: Path,
    name: str,
    numbers: Sequence[int],
    at: float,
    monkeypatch: pytest.MonkeyPatch,
    value: Any = "x" * 200,
) -> None:
    """Entries written at a time, in batches a second apart."""
    cache = ResultCache(file)
    for start in range(0, len(numbers), 500):
        with monkeypatch.context() as patch:
            patch.setattr("time.time", lambda start=start: at + start // 500)
            cache.put((key(name, n), value) for n in numbers[start : start + 500])
    del cache
    gc.collect()


def present(file: Path, name: str, numbers: Sequence[int]) -> list[int]:
    values = ResultCache(file).get([key(name, n) for n in numbers])
    return [n for n, value in zip(numbers, values, strict=True) if value is not None]


def on_disk(folder: Path) -> int:
    gc.collect()
    size = 0
    for file in folder.iterdir():
        with suppress(FileNotFoundError):  # a journal of SQLite's that ends meanwhile
            size += file.stat().st_size
    return size


def whole(file: Path) -> bool:
    with closing(sqlite3.connect(file)) as connection:
        return connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_a_survey_tells_entries_bytes_and_last_use(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(folder / "b.sqlite", "b", range(700), 2e9, monkeypatch)
    fill(folder / "a.sqlite", "a", range(3), 1.5e9, monkeypatch)
    (folder / "notes.txt").write_text("not a cache")
    first, second = survey(folder)
    assert (first.path.name, first.entries, first.used) == ("a.sqlite", 3, 1_500_000_000)
    assert (second.path.name, second.entries, second.used) == ("b.sqlite", 700, 2_000_000_001)
    assert second.bytes == (folder / "b.sqlite").stat().st_size


def test_a_folder_that_is_not_there_holds_no_caches(tmp_path: Path) -> None:
    assert survey(tmp_path / "absent") == []
    assert bound(tmp_path / "absent", 0) == 0
    assert not (tmp_path / "absent").exists()


def test_the_least_recently_used_entries_of_all_caches_go_first(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_an_entry_that_was_found_lately_is_not_old(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = folder / "a.sqlite"
    fill(file, "a", range(4000), 1e9, monkeypatch)
    wanted = list(range(0, 4000, 9))
    assert present(file, "a", wanted) == wanted
    prune(folder, limit=on_disk(folder) // 4)
    assert present(file, "a", wanted) == wanted


def test_what_was_not_used_since_a_time_is_pruned(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = folder / "a.sqlite"
    fill(file, "old", range(5000), 1e9, monkeypatch)
    fill(file, "new", range(100), 1.5e9, monkeypatch)
    prune(folder, before=1_500_000_000)
    assert survey(folder)[0].entries == 100
    assert present(file, "new", range(100)) == list(range(100))
    assert on_disk(folder) < 200_000


def test_entries_of_one_time_go_one_by_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = folder / "a.sqlite"
    fill(file, "a", range(500), 1e9, monkeypatch, value="x" * 4000)
    size = survey(folder)[0].bytes
    prune(folder, limit=size // 2)
    assert 150 <= survey(folder)[0].entries <= 250  # type: ignore[operator]


@pytest.mark.parametrize("length", [0, 5, 200, 2000, 20_000])
def test_any_size_of_values_is_pruned_to_the_limit_and_not_far_below(
    folder: Path, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    file = folder / "a.sqlite"
    fill(file, "a", range(200_000 // (length + 50)), 1e9, monkeypatch, value="é" * length)
    limit = survey(folder)[0].bytes // 2
    prune(folder, limit=limit)
    assert limit // 3 < survey(folder)[0].bytes <= limit
    assert whole(file)


def test_a_cache_below_its_bound_is_left_alone_and_one_above_falls_well_below(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(folder / "a.sqlite", "a", range(5000), 1e9, monkeypatch)
    size = survey(folder)[0].bytes
    assert bound(folder, size) == 0
    assert survey(folder)[0].entries == 5000
    assert bound(folder, size - 1) >= size // 5
    assert size // 2 < survey(folder)[0].bytes <= 0.8 * size


def use(file: Path, worker: int, stop: Any, ready: Any) -> None:
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
def test_processes_go_on_while_another_prunes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, network: bool
) -> None:
    if network:
        table = tmp_path / "mountinfo"
        table.write_text(f"1 0 0:1 / {tmp_path.resolve()} rw - nfs4 server:/ rw,local_lock=none\n")
        monkeypatch.setattr(filesystems, "MOUNTS", table)
    file = folder / "a.sqlite"
    fill(file, "old", range(20_000), 1e9, monkeypatch)
    stop, ready = FORK.Event(), [FORK.Event() for _ in range(3)]
    workers = [FORK.Process(target=use, args=(file, n, stop, ready[n])) for n in range(3)]
    for worker in workers:
        worker.start()
    assert all(event.wait(60) for event in ready)
    size = on_disk(folder)
    prune(folder, limit=MB)
    stop.set()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0] * 3
    assert size > 4 * MB
    # Pruned to 1 MiB, then written to a little more.
    assert survey(folder)[0].bytes < 3 * MB
    assert len(present(file, "old", range(20_000))) < 5000
    own = [("worker", str(n), str(m)) for n in range(3) for m in range(50)]
    assert ResultCache(file).get(own) == [*range(50)] * 3
    assert whole(file)


def test_two_processes_may_prune_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(folder / "a.sqlite", "a", range(10_000), 1e9, monkeypatch)
    half = survey(folder)[0].bytes // 2
    workers = [FORK.Process(target=prune, args=(folder,), kwargs={"limit": half}) for _ in "12"]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert half // 2 < survey(folder)[0].bytes <= half


def test_a_file_of_another_host_is_told_and_never_opened(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(f"1 0 0:1 / {tmp_path.resolve()} rw - nfs server:/ rw,nolock\n")
    monkeypatch.setattr(filesystems, "MOUNTS", table)
    for host in ("here", "there"):
        monkeypatch.setattr("socket.gethostname", lambda host=host: host)
        fill(folder / "a.sqlite", "a", range(2000), 1e9, monkeypatch)
    theirs = folder / "a@there.sqlite"
    content = theirs.read_bytes()
    monkeypatch.setattr("socket.gethostname", lambda: "here")
    prune(folder, limit=0)
    here, there = survey(folder)
    assert (here.path.name, here.entries) == ("a@here.sqlite", 0)
    assert (there.path, there.entries, there.bytes) == (theirs, None, len(content))
    assert abs(there.used - time.time()) < DAY
    assert theirs.read_bytes() == content


def test_a_database_of_another_kind_is_not_touched(folder: Path) -> None:
    folder.mkdir()
    file = folder / "other.sqlite"
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("CREATE TABLE texts (text TEXT)")
        connection.executemany("INSERT INTO texts VALUES (?)", [("x" * 5000,)] * 100)
    content = file.read_bytes()
    assert survey(folder) == []
    prune(folder, limit=0, before=2**40)
    assert file.read_bytes() == content


def test_a_damaged_cache_is_told_in_one_line(folder: Path) -> None:
    folder.mkdir()
    (folder / "a.sqlite").write_bytes(random.Random(0).randbytes(9000))
    for call in (survey, lambda place: prune(place, limit=0)):
        with pytest.raises(InputError, match=r"cache .*a.sqlite is damaged.*delete that file"):
            call(folder)
