"""The layers of reading of a document."""

from __future__ import annotations

import pytest

from toolkit.contracts import Document
from toolkit.corpus.layers import LayeredStore, first_sentences
from toolkit.search import DictionaryStore

TEXT = "One two three. Four five six. Seven eight nine ten. " + "More words follow. " * 50
STORE = DictionaryStore(
    {"d": Document("d", "Title", TEXT, "http://x/d"), "e": Document("e", "", "")}
)


def test_metadata_is_all_but_the_text() -> None:
    fields = {"d": {"abstract": "Short.", "year": "1990"}}
    layers = LayeredStore(STORE, fields=lambda docid: fields.get(docid, {}))
    assert layers.metadata("d") == ("d", "Title", "http://x/d", {"year": "1990"})
    assert layers.abstract("d") == "Short."


def test_an_abstract_is_the_first_sentences_up_to_the_limit() -> None:
    # Words and marks count: four a sentence.
    assert LayeredStore(STORE, abstract_tokens=9).abstract("d") == "One two three. Four five six."
    assert LayeredStore(STORE, abstract_tokens=8).abstract("d") == "One two three. Four five six."
    assert LayeredStore(STORE, abstract_tokens=7).abstract("d") == "One two three."


def test_a_first_sentence_that_is_too_long_is_cut_and_a_short_text_is_whole() -> None:
    assert first_sentences(TEXT, 2) == "One two"
    assert first_sentences("No full stop", 100) == "No full stop"
    assert LayeredStore(STORE).abstract("e") == ""


def test_the_whole_text_and_passages_come_from_the_store() -> None:
    passages = DictionaryStore({"d": TEXT}, {"d%p1": "Four five six."})
    layers = LayeredStore(STORE, passages=passages)
    assert layers.text("d").text == TEXT
    assert [unit.text for unit in layers.evidence(["d%p1"])] == ["Four five six."]


@pytest.mark.parametrize("read", ["metadata", "abstract", "text"])
def test_an_unknown_document_is_a_key_error(read: str) -> None:
    with pytest.raises(KeyError):
        getattr(LayeredStore(STORE), read)("ghost")
