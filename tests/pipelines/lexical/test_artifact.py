"""A lexical index as an artifact of PyTerrier's: opened, packaged, downloaded, read again."""

import json
import tarfile
import threading
from collections import Counter
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pandas as pd
import pyterrier as pt
import pytest
from lz4.frame import LZ4FrameFile

from soundingline.pipelines.lexical import forward
from soundingline.pipelines.lexical.index import LexicalIndex
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.files import VERIFIED

UNITS = [
    Unit("d1%p0", "Tides", "The tide rises nine metres, and falls again."),
    Unit("empty", "", ""),
    Unit("größe", "", "lead " * 300 + "line"),
    *(Unit(f"d{n}", "", f"line {n} and tide {n % 7}") for n in range(2, 60)),
]
QUERIES = pd.DataFrame({"qid": ["1", "2"], "query": ["tide lead", "line 7"]})


@pytest.fixture
def index(tmp_path):
    return LexicalIndex.build(UNITS, tmp_path / "index", corpus_fingerprint="c")


@pytest.fixture
def address(tmp_path):
    """Of a server that gives the files in `tmp_path`."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_): ...

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_pyterrier_opens_it_by_its_path(index):
    opened = pt.Artifact.load(str(index.path))
    assert isinstance(opened, LexicalIndex) and opened == index
    assert LexicalIndex.load(index.path) == index
    assert pt.Artifact.load(str(index.path), corpus_fingerprint="c") == index
    with pytest.raises(InputError, match="another corpus"):
        pt.Artifact.load(str(index.path), corpus_fingerprint="other")
    assert pt.inspect.artifact_type_format(index) == ("sparse_index", "soundingline")
    (index.path / "documents.bin").write_bytes(b"")
    with pytest.raises(InputError, match=r"is damaged: documents\.bin"):
        pt.Artifact.load(str(index.path))


def test_a_package_is_what_was_built_and_is_the_same_index_elsewhere(
    index, tmp_path, address, monkeypatch
):
    monkeypatch.setenv("PYTERRIER_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(forward, "_FILES_PAY", 0)
    built = {path.name for path in index.path.iterdir() if path.name != VERIFIED}
    expected = LexicalIndex.open(index.path).bm25().rm3()(QUERIES)
    assert (index.path / "forward").is_dir()  # noted since, and no part of the index
    metadata = {}
    package = index.build_package(verbose=False, metadata_out=metadata)
    assert (metadata["type"], metadata["format"]) == ("sparse_index", "soundingline")
    with LZ4FrameFile(package) as stream, tarfile.open(fileobj=stream) as files:
        assert set(files.getnames()) == built
    downloaded = pt.Artifact.from_url(f"{address}/{Path(package).name}")
    assert isinstance(downloaded, LexicalIndex)
    assert downloaded.path.is_relative_to(tmp_path / "home")
    pd.testing.assert_frame_equal(downloaded.bm25().rm3()(QUERIES), expected, check_flags=False)
    assert [downloaded.texts([unit.unit_id])[0] for unit in UNITS] == UNITS


@pytest.mark.parametrize("piece", [50, 1 << 25])
@pytest.mark.parametrize("analyzer", ["english", "english:2"])
def test_the_corpus_comes_as_its_terms_or_as_its_texts(tmp_path, analyzer, piece, monkeypatch):
    monkeypatch.setattr(forward, "_PIECE", piece)
    index = LexicalIndex.build(UNITS, tmp_path / "index", analyzer=analyzer)
    rows = list(index.get_corpus_iter())
    assert [row["docno"] for row in rows] == [unit.unit_id for unit in UNITS]
    expected = [dict(Counter(index.analyzer.terms(unit.contents))) for unit in UNITS]
    assert [row["toks"] for row in rows] == expected
    assert max(rows[2]["toks"].values()) == 300
    texts = list(index.get_corpus_iter(return_toks=False))
    assert texts == [{"docno": u.unit_id, "title": u.title, "text": u.text} for u in UNITS]


def test_without_texts_the_corpus_comes_as_terms_alone(tmp_path):
    index = LexicalIndex.build(UNITS, tmp_path / "index", keep_texts=False)
    assert len(list(index.get_corpus_iter())) == len(UNITS)
    with pytest.raises(InputError, match="stores no texts"):
        next(iter(index.get_corpus_iter(return_toks=False)))


def test_another_engine_indexes_the_corpus(index, tmp_path):
    pisa = pytest.importorskip("pyterrier_pisa")
    other = pisa.PisaIndex(str(tmp_path / "pisa"), stemmer="none")
    other.toks_indexer("toks", scale=1).index(index.get_corpus_iter())
    assert len(other) == len(UNITS)
    assert json.loads((index.path / "pt_meta.json").read_text())["type"] == "sparse_index"
