"""A short list in the order of any re-ranker, outside of a pipeline."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import pyterrier as pt


class ListOrder:
    """Puts documents in the order of `stage`, a bound re-ranker such as `Listwise`, which reads the
    texts that it is given. Thread-safe where the stage is."""

    def __init__(self, stage: pt.Transformer) -> None:
        self.stage = stage

    def __call__(self, qid: str, question: str, documents: Sequence[tuple[str, str]]) -> list[str]:
        """The docids, each once, the best first; `documents` are (docid, text), and their order is
        that of equal scores."""
        rows = list(dict(documents).items())
        frame = pd.DataFrame(
            {
                "qid": [qid or "0"] * len(rows),
                "query": [question] * len(rows),
                "docno": [docid for docid, _ in rows],
                "text": [text for _, text in rows],
                "score": [float(len(rows) - number) for number in range(len(rows))],
                "rank": list(range(len(rows))),
            }
        )
        ranked = self.stage.transform(frame).sort_values("rank", kind="stable")
        return list(map(str, ranked["docno"]))
