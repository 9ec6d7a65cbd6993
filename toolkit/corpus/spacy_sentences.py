"""Sentences by spaCy's small English model, an optional dependency that is loaded on first use."""

from __future__ import annotations

from functools import cache
from importlib import metadata
from typing import Any

from toolkit.corpus.lines import line_spans
from toolkit.corpus.sentences import Spans
from toolkit.errors import InputError

MODEL = "en_core_web_sm"
_LINE = 100_000


def spacy_spans(text: str) -> Spans:
    """Sentences by spaCy's `en_core_web_sm` (its parser), line by line.

    Lines beyond `_LINE` characters are parsed in pieces, because the parser's memory grows
    with the length. Far slower than the rules. `InputError` where spaCy or
    the model is not installed.
    """
    model = _model()
    blocks = line_spans(text, width=_LINE)
    parsed = model.pipe(text[start:end] for start, end in blocks)
    return [
        span
        for (start, _), block in zip(blocks, parsed, strict=True)
        for sentence in block.sents
        if (span := _trimmed(text, start + sentence.start_char, start + sentence.end_char))
    ]


def _trimmed(text: str, start: int, end: int) -> tuple[int, int] | None:
    piece = text[start:end]
    visible = piece.strip()
    if not visible:
        return None
    start += len(piece) - len(piece.lstrip())
    return start, start + len(visible)


@cache
def _model() -> Any:
    try:
        import spacy

        return spacy.load(MODEL, exclude=["ner", "tagger", "lemmatizer", "attribute_ruler"])
    except (ImportError, OSError) as error:
        raise _missing() from error


def _missing() -> InputError:
    return InputError(
        f"splitter 'spacy' needs spaCy and its model {MODEL}, which are not both installed",
        valid="splitter 'rules' needs neither",
        do=f"pip install soundingline[spacy] && python -m spacy download {MODEL}",
    )


def spacy_version() -> str:
    """The model and its version, without loading it. `InputError` where it is not installed."""
    try:
        return f"{MODEL} {metadata.version(MODEL)}"
    except metadata.PackageNotFoundError as error:
        raise _missing() from error
