"""The golden gate on real collections: rankings of a thousand documents with their scores, and what
a tuning of 363 settings found.

Of each ranking the first ten hits are stored with their scores; of the others, by bands of ranks, a
hash of their ids in any order and the sum of their scores. A difference names collection, setting,
question and band; `tests/ab.py` then shows both rankings.
"""

import hashlib
import json
from pathlib import Path

import golden_product as product
import pytest
from golden_record import plain, read
from golden_store import number
from golden_workplace import check

SETTINGS = {
    "bm25 0.9 0.4": "retriever=bm25_default",
    "bm25 10 1": "retriever=bm25_text_ranking",
    "bm25 1.5 0.75, passages": "retriever=bm25_sira unit=maxp",
    "ql": "retriever=ql",
    "rm3": "retriever=bm25_rm3",
}
# One question in so many: all of CACM's 64, and 66 of the 977 of wikimix.
EVERY = {"cacm": 1, "wikimix": 15}
TOP, BANDS = 10, (30, 100, 300, 1000)


@pytest.mark.parametrize("collection", EVERY)
def test_rankings_of_a_real_collection(collection, workplace, data_root):
    lines = (data_root / collection / "queries.jsonl").read_text(encoding="utf-8").splitlines()
    queries = [json.loads(line) for line in lines][:: EVERY[collection]]
    content = {}
    for name, overrides in SETTINGS.items():
        text = f"benchmark={collection} paths.data={data_root} benchmark.split=null {overrides}"
        frame = product.ranked(*workplace.arguments("ranked", text), queries=queries)
        frame = frame.sort_values(["qid", "rank"])
        content[name] = {
            str(qid): _ranking(list(rows["docno"]), list(rows["score"]))
            for qid, rows in frame.groupby("qid")
        }
        assert len(content[name]) == len(queries)
    check(f"collection_{collection}", content, workplace.places)


def _ranking(ids, scores):
    stored = {
        "ids": " ".join(ids[:TOP]),
        "scores": [number(float(score)) for score in scores[:TOP]],
    }
    start = TOP
    for end in BANDS:
        if band := sorted(ids[start:end]):
            digest = hashlib.sha256(" ".join(band).encode()).hexdigest()[:6]
            stored[f"{start + 1}-{min(end, len(ids))}"] = digest
            stored[f"sum to {end}"] = number(float(sum(scores[start:end])))
        start = end
    return stored


def test_the_ranks_of_a_tuning_on_a_real_collection(workplace, data_root):
    """Of the table of ranks (settings by judged documents) the sums by setting and by question:
    together they place a difference."""
    import numpy as np

    text = f"benchmark=cacm paths.data={data_root} tuning.select=null measures=[AP,nDCG@10,R@100]"
    workplace.run("tune", "grid", text)
    by_cell = {}
    by_question = {}
    for path in sorted(Path("runs/grid/ranks").glob("*.npz")):
        part = np.load(path, allow_pickle=False)
        ranks, start = part["ranks"], 0
        cells = [" ".join(f"{value:g}" for value in cell) for cell in part["points"]]
        for cell, column in zip(cells, ranks.T, strict=True):
            sums = by_cell.setdefault(cell, [0, 0])
            sums[0] += int(column.sum())
            sums[1] += int((column > 0).sum())
        for qid, count in zip(part["qids"], part["counts"], strict=True):
            rows = ranks[start : start + count]
            by_question[str(qid)] = [int(rows.sum()), int((rows > 0).sum())]
            start += int(count)
    assert len(by_cell) >= 363
    content = {
        "ranks by setting, and documents found": by_cell,
        "ranks by question, and documents found": dict(sorted(by_question.items())),
        "tuning": plain(read(Path("runs/grid/tuning.json"))),
        "cells": Path("runs/grid/points.csv").read_text(encoding="utf-8").splitlines()[:40],
    }
    check("collection_tuning", content, workplace.places)
