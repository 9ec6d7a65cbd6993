"""The tool over the SQLite store, on long real articles."""

from __future__ import annotations

import json

import pytest
from toy_search import WordBackend

from soundingline.toolkit.corpus import Passages, SqliteStore
from soundingline.toolkit.data import Document
from soundingline.toolkit.search import RankedBrowsing


@pytest.fixture(scope="module")
def articles(data_root):
    lines = (data_root / "cmuqa" / "corpus.jsonl").read_text(encoding="utf-8").splitlines()
    rows = sorted(map(json.loads, lines), key=lambda row: -len(row["text"]))
    return [Document(row["_id"], row["title"], row["text"]) for row in rows[:3]]


@pytest.fixture(scope="module")
def store(articles, tmp_path_factory):
    folder = tmp_path_factory.mktemp("store")
    texts = SqliteStore.build(folder / "texts", articles, corpus_fingerprint="test")
    texts.add_units(folder / "units", Passages())
    texts.close()
    with SqliteStore(folder / "texts", folder / "units") as opened:
        yield opened


def browsing(store):
    units = {unit.unit_id: unit.text for unit in store.units()}
    return RankedBrowsing().open(WordBackend(units), store)


def test_every_passage_opens_at_the_line_that_holds_its_beginning(store):
    tool = browsing(store)
    for unit in store.units():
        result = tool.call("read_document", {"reason": "", "docid": unit.unit_id, "limit": 9})
        assert not result.failed
        body = ["".join(line.split()) for line in result.text.split("\n")[1:-1]]
        beginning = "".join(unit.text.split())[:20]
        assert 0 <= "".join(body).find(beginning) < len(body[0])


def test_a_long_article_is_read_whole_by_its_hints(store, articles):
    tool = browsing(store)
    article = articles[0]
    got = []
    hint = "offset=1,"
    while "offset=" in hint:
        first = int(hint.split("offset=")[1].split(",")[0])
        arguments = {"reason": "", "docid": article.docid, "offset": first, "limit": 50}
        lines = tool.call("read_document", arguments).text.split("\n")
        got += lines[1:-1]
        hint = lines[-1]
    assert "".join("\n".join(got).split()) == "".join(article.text.split())


def test_a_passage_that_the_document_lacks_is_an_unknown_docid(store):
    docid = next(store.documents()).docid
    for number in ("99999", "9" * 30, "9" * 6000):
        arguments = {"reason": "", "docid": f"{docid}%p{number}"}
        assert browsing(store).call("read_document", arguments).call.error == "unknown_docid"
    past = browsing(store).call("read_document", {"reason": "", "docid": docid, "offset": 10**9})
    assert past.call.error == "past_the_end"


def test_previewed_passages_count_as_their_articles(store):
    tool = browsing(store)
    result = tool.call("search", {"reason": "", "query": "president of the united states"})
    assert all("%p" in unit_id for unit_id in result.call.shown)
    assert set(tool.exposures.tiers["surfaced"]) <= {
        document.docid for document in store.documents()
    }
    assert "…" in result.text
