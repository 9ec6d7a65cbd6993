"""Complete stores and indexes are used where nothing can be written beside them."""

import errno
import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pandas as pd
import pytest
from experiment_samples import CORPUS, QRELS, QUERIES, folder

from soundingline.experiments.collection import prepare
from soundingline.pipelines.lexical import forward
from soundingline.pipelines.lexical.index import LexicalEngine
from soundingline.toolkit import files
from soundingline.toolkit.benchmarks.beir import BeirBenchmark
from soundingline.toolkit.corpus import Passages, WholeDocument
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.files import building_lock, cached_file_hash

HERE = Path(__file__).resolve()
QUESTIONS = pd.DataFrame({"qid": ["1", "2"], "query": ["tide", "harbour town"]})
# A mount of its own, in a namespace of its own: the folder is read-only for root as well.
MOUNT = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && shift && exec "$@"'
READ = "import sys, test_read_only as t; t.read_in_place(*sys.argv[1:])"


def used(benchmark, indexes):
    """What a store, an index with feedback, a link graph and a resolver give, and PISA where it is
    installed."""
    made = BeirBenchmark(benchmark)
    prepared = prepare(made, Passages(), LexicalEngine(), indexes)
    assert prepared.links is not None and prepared.resolver is not None
    rankers = {"bm25": prepared.index.bm25(), "rm3": prepared.index.bm25().rm3(fb_docs=2)}
    if find_spec("pyterrier_pisa"):
        from soundingline.pipelines.engines.pisa import PisaEngine

        rankers["pisa"] = prepared.indexed(PisaEngine()).bm25(1.2, 0.5)
    return {
        "text": prepared.store.document("d1").text,
        "links": prepared.links().neighbours("d1"),
        "resolved": prepared.resolver().resolve("Tides").docid,
        **{
            name: ranker(QUESTIONS)[["qid", "docno", "score"]].to_numpy().tolist()
            for name, ranker in rankers.items()
        },
    }


def read_in_place(benchmark, indexes):
    """In the process that has the folder mounted read-only."""
    with pytest.raises(OSError, match="Read-only file system"):
        (Path(indexes) / "probe").touch()
    forward._FILES_PAY = 0
    result = json.dumps(used(Path(benchmark), Path(indexes)))
    with pytest.raises(InputError) as missing:
        prepare(BeirBenchmark(Path(benchmark)), WholeDocument(), LexicalEngine(), Path(indexes))
    sys.stdout.write(f"{result}\n{missing.value}\n")


def mounts():
    command = ["unshare", "-rm", "sh", "-c", MOUNT, "sh", str(HERE.parent), "true"]
    if not shutil.which("unshare"):
        return False
    return subprocess.run(command, capture_output=True).returncode == 0


@pytest.fixture(autouse=True)
def files_of_feedback(monkeypatch):
    """Feedback's files beside the index, however small that is."""
    monkeypatch.setattr(forward, "_FILES_PAY", 0)


@pytest.fixture
def benchmark(tmp_path):
    path = folder(tmp_path / "beir", corpus=CORPUS, queries=QUERIES, qrels=QRELS)
    (path / "links.tsv").write_text("docid\tlinked\nd1\td2\nd2\td3\n")
    return path


def state(root):
    paths = [root, *root.rglob("*")]
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in paths}


@pytest.mark.slow
@pytest.mark.skipif(not mounts(), reason="this machine lets nobody mount in a namespace")
def test_what_is_complete_is_used_on_a_read_only_mount(benchmark, tmp_path):
    indexes, cache = tmp_path / "indexes", tmp_path / "cache"
    expected = used(benchmark, indexes)
    for record in indexes.rglob(".verified.json"):
        record.unlink()
    for lock in indexes.rglob("*.lock"):
        lock.unlink()
    before = state(indexes)
    paths = os.pathsep.join([str(HERE.parents[2]), str(HERE.parents[1]), str(HERE.parent)])
    reading = [sys.executable, "-c", READ, str(benchmark), str(indexes)]
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", MOUNT, "sh", str(indexes), *reading],
        env={**os.environ, "PYTHONPATH": paths, "XDG_CACHE_HOME": str(cache)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    result, missing = done.stdout.splitlines()
    assert json.loads(result) == json.loads(json.dumps(expected))
    assert "is not there" in missing and "cannot be written (Read-only file system)" in missing
    assert state(indexes) == before
    # What was found whole is remembered elsewhere.
    assert len(list((cache / "soundingline").glob("verified-*.json"))) >= 5


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_lock_that_cannot_be_made_stops_only_what_must_be_built(
    number, benchmark, tmp_path, monkeypatch
):
    indexes = tmp_path / "indexes"
    expected = used(benchmark, indexes)

    def refused(path, **_):
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(files, "open_own", refused)
    assert used(benchmark, indexes) == expected
    shutil.rmtree(next(indexes.rglob("headings-*")))
    shutil.rmtree(next(indexes.rglob("links-*")))
    assert used(benchmark, indexes) == expected
    shutil.rmtree(next(path for path in indexes.rglob("*-lexical-*") if path.is_dir()))
    with pytest.raises(
        InputError, match=r"the index '.*' is not there, and '.*' cannot be written"
    ):
        used(benchmark, indexes)


def test_another_error_of_a_lock_is_not_taken_for_a_missing_right(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError), building_lock(tmp_path / "file" / "lock", "the index"):
        pass


def test_a_hash_whose_record_cannot_be_written_is_given_all_the_same(tmp_path):
    (tmp_path / "weights").write_bytes(b"weights")
    plain = cached_file_hash(tmp_path / "weights", None)
    (tmp_path / "file").touch()
    assert cached_file_hash(tmp_path / "weights", tmp_path / "file" / "record") == plain
