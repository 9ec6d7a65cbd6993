"""`python tests/cluster/opensearch_parity.py URL [CACM]`: a search cluster's rankings against ours.

Loads CACM (a folder in the BEIR layout; `data/cacm` by default, left out if it is missing) and a
generated corpus of 100,000 documents into indexes of 1, 3 and 5 shards, and compares the best
1,000 documents of each query for three settings of k1 and b. Scores must agree within 1e-4, and a
document that only one ranking has must lie within 1e-4 of the other's last score. Exits with 1 if
anything differs. Credentials: OPENSEARCH_USERNAME and OPENSEARCH_PASSWORD.

The indexes (`opensearch-*`) stay in the cluster; delete them when you are done.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

import numpy as np

from soundingline.pipelines.engines.opensearch import OpenSearchEngine
from soundingline.pipelines.lexical.index import LexicalIndex
from soundingline.toolkit.data import Unit
from soundingline.toolkit.errors import InputError
from soundingline.toolkit.files import fingerprint

SETTINGS = [(0.9, 0.4), (25.0, 1.0), (1.2, 0.75)]
SHARDS = (1, 3, 5)
DEPTH, TOLERANCE = 1000, 1e-4


def cacm(folder):
    rows = map(json.loads, (folder / "corpus.jsonl").open(encoding="utf-8"))
    units = [Unit(row["_id"], row.get("title") or "", row["text"]) for row in rows]
    queries = map(json.loads, (folder / "queries.jsonl").open(encoding="utf-8"))
    return units, [row["text"] for row in queries]


def generated(documents):
    """Words by Zipf's law, lengths from 1 to 300, and 50 queries of 2 to 12 words."""
    random = np.random.default_rng(0)

    def text(length):
        return " ".join(f"w{number}" for number in random.zipf(1.3, length) % 50_000)

    units = [Unit(f"d{n}", "", text(random.integers(1, 300))) for n in range(documents)]
    return units, [text(random.integers(2, 12)) for _ in range(50)]


def difference(theirs, ours):
    """The largest difference of two rankings: of a document's scores, or of the score of a document
    that one of them lacks to the last score of the other."""
    mine, other = (dict(zip(one.docnos, one.scores, strict=True)) for one in (theirs, ours))
    largest = 0.0
    for one, another in ((mine, other), (other, mine)):
        last = min(another.values(), default=0.0) if len(another) == DEPTH else 0.0
        for docno, score in one.items():
            largest = max(largest, abs(float(score) - float(another.get(docno, last))))
    return largest


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("url")
    parser.add_argument("cacm", nargs="?", type=Path, default=Path("data/cacm"))
    parser.add_argument("--documents", type=int, default=100_000, help="of the generated corpus")
    parser.add_argument("--replicas", type=int, default=0)
    options = parser.parse_args(arguments)
    corpora = {"generated": generated(options.documents)}
    if options.cacm.is_dir():
        corpora["cacm"] = cacm(options.cacm)
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, (units, queries) in corpora.items():
            ours = LexicalIndex.build(units, Path(folder, name))
            for shards in SHARDS:
                engine = OpenSearchEngine(options.url, shards=shards, replicas=options.replicas)
                path, corpus = Path(folder, f"{name}-{shards}"), fingerprint(name, len(units))
                engine.build(units, path, corpus_fingerprint=corpus)
                index = engine.open(path)
                for k1, b in SETTINGS:
                    place = f"{name}, {shards} shards, k1={k1:g}, b={b:g}"
                    try:
                        theirs = index.rank(queries, index.bm25(k1, b), DEPTH)
                    except InputError as error:
                        failures += 1
                        sys.stdout.write(f"{place}: {error}\n")
                        continue
                    reference = ours.rank(queries, ours.bm25(k1, b), DEPTH)
                    largest = max(map(difference, theirs, reference))
                    failures += largest > TOLERANCE
                    sys.stdout.write(f"{place}: largest difference of a score {largest:.2g}\n")
    sys.stdout.write(f"{failures} comparisons differ\n" if failures else "all agree\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
