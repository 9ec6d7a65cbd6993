"""The command that shows and prunes caches, and the bound that runs hold them at."""

import re

import pytest
from experiment_samples import TINY
from test_stages import REWRITER, SAYS

from soundingline.pipelines.cache import ResultCache, notify_once, survey
from soundingline.toolkit import files

MONTH = 30 * 86400


@pytest.fixture
def filled(tmp_path, monkeypatch):
    """Two caches: one of 5,000 entries used in 2001, one with an entry of 2033."""
    folder = tmp_path / "caches"
    for name, number, now in (("rerank-[old]", 5000, 1e9), ("rewrite-new", 1, 2e9)):
        with monkeypatch.context() as patch:
            patch.setattr("time.time", lambda now=now: now)
            cache = ResultCache(folder / f"{name}.sqlite")
            cache.put(((str(n),), "x" * 100) for n in range(number))
    return folder


def test_caches_are_shown_with_entries_size_and_last_use(entry, filled, capsys):
    assert entry("caches") == 0
    shown = capsys.readouterr().out
    assert re.search(r"caches/rerank-\[old\].sqlite +5,000 +0\.\d MB +2001-09-09", shown)
    assert re.search(r"caches/rewrite-new.sqlite +1 +0.0 MB +2033-05-18", shown)
    assert re.search(r"2 caches +[01]\.\d MB", shown)


def test_caches_are_pruned_to_an_age_or_a_size(entry, filled, capsys):
    assert entry("caches", "--keep-days", "30") == 0
    assert re.match(r"0\.\d MB freed", capsys.readouterr().out)
    assert [summary.entries for summary in survey(filled)] == [0, 1]
    assert entry("caches", str(filled), "--keep-gb=0") == 0
    assert [summary.entries for summary in survey(filled)] == [0, 0]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("--keep-gb=-1", r"--keep-gb=-1.0. valid: a number, 0 or more"),
        ("--keep-days=nan", r"--keep-days=nan. valid: a number, 0 or more"),
        ("--keep-gb=inf", r"--keep-gb=inf. valid: a number, 0 or more"),
        ("--keep-gb=much", r"--keep-gb: invalid float value: .much.. --help lists"),
        ("--keep-gbs=1", r"--keep-gbs=1. did you mean --keep-gb\? --help lists"),
        ("paths.caches=null", r"paths.caches is null"),
        ("paths.caches=absent", r"no folder of caches at absent"),
    ],
)
def test_what_cannot_be_pruned_is_refused_in_one_line(entry, filled, capsys, given, message):
    assert entry("caches", given) == 2
    assert re.search(message, capsys.readouterr().err)
    assert [summary.entries for summary in survey(filled)] == [5000, 1]


def test_a_run_holds_the_caches_at_their_bound(entry, filled, capsys):
    given = (*TINY, *REWRITER, SAYS, "agent.max_searches=1")
    assert entry("run", *given, "name=within") == 0
    assert "caches_gb" not in capsys.readouterr().err
    assert survey(filled)[0].entries == 5000
    assert entry("run", *given, "name=above", "paths.caches_gb=0.0003") == 0
    assert re.search(r"above paths.caches_gb=0.0003: 0\.\d MB freed", capsys.readouterr().err)
    assert survey(filled)[0].entries < 2000  # type: ignore[operator]


def test_a_damaged_cache_that_a_run_does_not_use_stops_nothing(entry, filled, capsys):
    (filled / "rerank-other.sqlite").write_bytes(b"damaged " * 1000)
    given = (*TINY, *REWRITER, SAYS, "agent.max_searches=1")
    assert entry("run", *given, "name=x") == 0
    assert "rerank-other.sqlite is damaged" in capsys.readouterr().err


def test_a_run_tells_once_what_a_network_file_system_asks_for(entry, tmp_path, monkeypatch, capsys):
    table = tmp_path / "mountinfo"
    table.write_text(f"1 0 0:1 / {tmp_path.resolve()} rw - nfs4 server:/ rw,local_lock=none\n")
    monkeypatch.setattr(files, "MOUNTS", table)
    notify_once.cache_clear()
    given = (*TINY, *REWRITER, SAYS, "agent.max_searches=1")
    assert entry("run", *given, "name=one") == 0
    assert entry("run", *given, "name=two") == 0
    assert capsys.readouterr().err.count("rollback journal") == 1
    assert not list((tmp_path / "caches").glob("*-wal"))
