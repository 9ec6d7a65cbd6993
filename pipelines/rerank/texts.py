"""The texts of a ranking's rows, for stages that read them."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import pyterrier as pt

from pipelines.lexical.storage import ATTRIBUTE
from pipelines.stage import Collection, Texts
from toolkit.errors import InputError

if TYPE_CHECKING:
    from pipelines.lexical.index import LexicalIndex


def texts_for(
    inp: pd.DataFrame, texts: Texts | None, collection: Collection | None
) -> Texts | None:
    """Where a stage finds the texts of `inp`: its own `texts`, the collection's, or those of the
    index that the ranking came from; None where there are none but a column `text`."""
    if texts or (collection and collection.texts):
        return texts or (collection.texts if collection else None)
    path = inp.attrs.get(ATTRIBUTE)
    return _opened(path).texts if isinstance(path, str) and Path(path).is_dir() else None


@lru_cache(maxsize=16)
def _opened(path: str) -> LexicalIndex:
    from pipelines.lexical.index import LexicalIndex  # here, because it imports numba

    return LexicalIndex.open(path)


def check_columns(frame: pd.DataFrame, texts: Texts | None, stage: pt.Transformer) -> None:
    """`InputError` where there is no text to read and for queries that are no text; PyTerrier's
    error for other columns that `stage` misses. A frame without rows needs no text: PyTerrier asks
    with such frames for the columns of a pipeline, and they do not tell which index they are of."""
    needed = ["query", "score"] if texts else ["query", "score", "text"]
    if {"qid", "docno", *needed} - set(frame.columns) == {"text"}:
        if frame.empty:
            return
        name = type(stage).__name__
        raise InputError(
            f"the ranking has no text for {stage!r} to read",
            valid="a column text, or a re-ranker with texts",
            do=f"give {name} texts=store.texts, or put pt.text.get_text before it",
        )
    pt.validate.result_frame(frame, extra_columns=needed, context=stage)
    for qid, query in zip(frame["qid"].tolist(), frame["query"].tolist(), strict=True):
        if not isinstance(query, str):
            raise InputError(f"the query {qid!r} is {query!r}", do="give each query as text")


def texts_of(frame: pd.DataFrame, texts: Texts | None) -> list[str]:
    """The text of each row: its column `text`, else what `texts` gives for its docno (title in
    front); empty where there is none. `InputError` for a docno that `texts` lacks."""
    if "text" in frame.columns:
        return [text if isinstance(text, str) else "" for text in frame["text"].tolist()]
    docnos = list(map(str, frame["docno"].tolist()))
    different = list(dict.fromkeys(docnos))
    try:
        units = texts(different) if texts and different else []
    except KeyError as error:
        raise InputError(
            f"the ranking names {error}, which the document store lacks",
            do="build the index and the store from the same corpus",
        ) from error
    contents = {docno: unit.contents for docno, unit in zip(different, units, strict=True)}
    return [contents[docno] for docno in docnos]
