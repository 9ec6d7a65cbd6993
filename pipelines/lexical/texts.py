"""The texts that an index keeps, as PyTerrier's stages ask for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import pandas as pd
import pyterrier as pt

from pipelines.arguments import ByArguments
from toolkit.contracts import Unit
from toolkit.errors import InputError

FIELDS = ("text", "title")


class TextIndex(Protocol):
    """What keeps texts; `LexicalIndex` does."""

    def texts(self, unit_ids: Sequence[str]) -> list[Unit]: ...


class TextLoader(ByArguments, pt.Transformer):
    """Adds texts to rows of documents: `docno` in; the same rows out, with `fields` of `text`
    (without its title) and `title`. `InputError` for other fields and for a docno that is not in
    the index."""

    def __init__(self, index: TextIndex, fields: str | Sequence[str] = FIELDS) -> None:
        self.index = index
        self.fields = (fields,) if isinstance(fields, str) else tuple(fields)
        if unknown := sorted(set(self.fields) - set(FIELDS)):
            raise InputError(f"the index has no {', '.join(unknown)}", valid=", ".join(FIELDS))

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        pt.validate.columns(inp, includes=["docno"])
        units = known_texts(self.index, list(map(str, inp["docno"].tolist())))
        columns = {field: [getattr(unit, field) for unit in units] for field in self.fields}
        return inp.assign(**{name: pd.Series(values, inp.index, dtype=object)
                             for name, values in columns.items()})  # fmt: skip


def known_texts(index: TextIndex, docnos: Sequence[str]) -> list[Unit]:
    """Texts by docno; `InputError` for one that the index lacks."""
    try:
        return index.texts(docnos)
    except KeyError as error:
        raise InputError(
            f"the ranking names {error}, which the index lacks", do="rank and read one index"
        ) from error
