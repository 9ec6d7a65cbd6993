from collections.abc import Iterable, Iterator
from importlib import metadata
from itertools import pairwise
from types import SimpleNamespace

import pytest

from toolkit.corpus import spacy_sentences
from toolkit.corpus.segmentation import Passages
from toolkit.errors import InputError


def _installed() -> bool:
    try:
        metadata.version(spacy_sentences.MODEL)
    except metadata.PackageNotFoundError:
        return False
    return True


class HalvingModel:
    """Ends a sentence after each semicolon, white space included, as spaCy's spans may."""

    def pipe(self, texts: Iterable[str]) -> Iterator[SimpleNamespace]:
        for text in texts:
            cuts = [0, *(i + 2 for i, c in enumerate(text) if c == ";"), len(text)]
            pairs = pairwise(cuts)
            sents = [SimpleNamespace(start_char=a, end_char=b) for a, b in pairs]
            yield SimpleNamespace(sents=sents)


def test_spans_speak_of_the_whole_text_and_are_trimmed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spacy_sentences, "_model", HalvingModel)
    text = " a b; c d\n\n  e;  \nf"
    spans = spacy_sentences.spacy_spans(text)
    assert [text[start:end] for start, end in spans] == ["a b;", "c d", "e;", "f"]


@pytest.mark.skipif(_installed(), reason="the model is installed here")
def test_an_absent_model_is_told_with_the_command_that_installs_it() -> None:
    spacy_sentences._model.cache_clear()
    with pytest.raises(InputError, match=r"pip install soundingline\[spacy\]"):
        spacy_sentences.spacy_spans("One. Two.")
    with pytest.raises(InputError, match=r"spacy download en_core_web_sm"):
        _ = Passages(splitter="spacy").fingerprint


@pytest.mark.skipif(not _installed(), reason="spaCy's en_core_web_sm is an optional install")
def test_the_real_model_ends_sentences() -> None:
    text = "The ship sank. Nobody drowned.\nIt was old."
    spans = spacy_sentences.spacy_spans(text)
    assert [text[a:b] for a, b in spans] == ["The ship sank.", "Nobody drowned.", "It was old."]
