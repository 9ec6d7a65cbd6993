"""`python tests/bench/parity.py FOLDER...`: our analyzer and scores against Lucene's.

Each folder is a collection in the BEIR layout. It needs Anserini (`make anserini`).
The results are in docs/lexical.md.
"""

import os
import sys
import tempfile
from pathlib import Path

import pandas as pd

from soundingline.pipelines.engines.anserini import AnseriniEngine, find_jar, find_java
from soundingline.pipelines.lexical.analyzers import make_analyzer
from soundingline.pipelines.lexical.index import LexicalIndex
from soundingline.toolkit.benchmarks.beir import BeirBenchmark
from soundingline.toolkit.data import Unit

BM25 = [{"k1": 0.9, "b": 0.4}, {"k1": 25.0, "b": 1.0}, {"k1": 1.2, "b": 0.75}]


def collection(folder):
    """The units of a collection and a frame of its questions."""
    benchmark = BeirBenchmark(folder, split=None)
    units = [Unit(row.docid, row.title, row.text) for row in benchmark.documents()]
    rows = [(topic.qid, topic.text) for topic in benchmark.topics]
    return units, pd.DataFrame(rows, columns=["qid", "query"])


def compare_tokens(analyze, name, texts):
    """Print how many texts have other tokens than Anserini's `DefaultEnglishAnalyzer` gives."""
    terms = make_analyzer("english").terms
    count = tokens = differ = 0
    for text in texts:
        theirs = analyze(text)
        count, tokens = count + 1, tokens + len(theirs)
        differ += theirs != list(terms(text))
    sys.stdout.write(f"{name}: {count:,} texts, {tokens:,} tokens, {differ} differ\n")


def lucene_analyze():
    """Anserini's analyzer in a Java virtual machine of this process."""
    os.environ["JAVA_HOME"] = str(find_java())
    import jnius_config

    jnius_config.set_classpath(str(find_jar()))
    from jnius import autoclass

    analyzer = autoclass("io.anserini.analysis.DefaultEnglishAnalyzer").newDefaultInstance()
    analyze = autoclass("io.anserini.analysis.AnalyzerUtils").analyze
    return lambda text: list(analyze(analyzer, text).toArray())


def compare_scores(name, theirs, ours):
    """Print the overlap, the largest difference of a score, and how far what ours lacks lies above
    the lowest score of theirs: 0 for ties at the cut."""
    both = theirs.merge(ours, on=["qid", "docno"], how="left", suffixes=("", "_of_ours"))
    common = both["score_of_ours"].notna()
    largest = (both["score"] - both["score_of_ours"]).abs().max()
    above = both["score"] - both.groupby("qid")["score"].transform("min")
    sys.stdout.write(
        f"{name}: {len(ours):,} hits, overlap {common.sum() / len(ours):.5f}, largest difference "
        f"{largest:.1e}, from the cut {above.where(~common, 0.0).max():.1e}\n"
    )


def compare_collection(folder, work):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from support.engines import lucene

    units, queries = collection(folder)
    AnseriniEngine().build(units, work / "theirs", corpus_fingerprint="")
    anserini = AnseriniEngine().open(work / "theirs")
    lexical = LexicalIndex.build(units, work / "ours")
    for settings in [*BM25, {"mu": 1000.0}]:
        model = "ql" if "mu" in settings else "bm25"
        rankings = lucene(anserini, list(queries["query"]), getattr(anserini, model)(**settings))
        theirs = [
            pd.DataFrame({"qid": qid, "docno": ranking.docnos, "score": ranking.scores})
            for qid, ranking in zip(queries["qid"], rankings, strict=True)
        ]
        ours = getattr(lexical, model)(**settings).transform(queries)
        name = f"{folder.name}, {settings}, {(ours['score'] == 0).sum():,} of score 0"
        compare_scores(name, pd.concat(theirs), ours)
    rm3 = [index.bm25().rm3().transform(queries) for index in (anserini, lexical)]
    compare_scores(f"{folder.name}, BM25 and RM3", *rm3)


def main(folders):
    analyze = lucene_analyze()
    for folder in folders:
        units, queries = collection(folder)
        texts = [*(unit.contents for unit in units), *queries["query"]]
        compare_tokens(analyze, folder.name, texts)
    numbers = (n for n in range(0x110000) if not 0xD800 <= n < 0xE000)
    characters = (chr(n) for n in numbers if chr(n) not in "\n\r")
    compare_tokens(analyze, "code points", (f"{c} a{c}b 1{c}2 ab{c}'s" for c in characters))
    for folder in folders:
        with tempfile.TemporaryDirectory() as work:
            compare_collection(folder, Path(work))


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
