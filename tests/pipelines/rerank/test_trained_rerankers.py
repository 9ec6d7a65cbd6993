"""From labels to scores: a small model with random weights is trained on judgements, saved, and
loaded by its path."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from support import checkpoints

from soundingline.experiments.training import examples, fit
from soundingline.pipelines import CrossEncoder, MonoT5
from soundingline.pipelines.lexical.index import LexicalIndex
from soundingline.toolkit.benchmarks.beir import BeirBenchmark
from soundingline.toolkit.data import Unit
from soundingline.toolkit.evaluation.retrieval import measure_rankings

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

QUESTIONS, DEPTH = 12, 20


class Collection:
    """The first questions of vaswani, BM25's best candidates for them, and their judgements."""

    def __init__(self, root: Path, folder: Path) -> None:
        benchmark = BeirBenchmark(root / "vaswani")
        self.units = {each.docid: Unit(each.docid, "", each.text) for each in benchmark.documents()}
        topics = benchmark.topics[:QUESTIONS]
        questions = pd.DataFrame([{"qid": each.qid, "query": each.text} for each in topics])
        index = LexicalIndex.build(self.units.values(), folder)
        self.ranking = index.bm25(depth=DEPTH)(questions)
        self.qrels = {each.qid: benchmark.qrels["evidence"][each.qid] for each in topics}

    def texts(self, docnos):
        return [self.units[each] for each in docnos]

    def ndcg(self, ranking):
        ordered = ranking.sort_values(["qid", "rank"])
        rankings = {str(qid): rows["docno"].tolist() for qid, rows in ordered.groupby("qid")}
        found = measure_rankings(rankings, self.qrels, ["nDCG@10"])["nDCG@10"]
        return sum(found.values()) / len(found)

    def best_ndcg(self):
        """With the same candidates in the order of their judgements."""
        grades = [
            self.qrels[qid].get(docno, 0)
            for qid, docno in zip(self.ranking["qid"], self.ranking["docno"], strict=True)
        ]
        return self.ndcg(self.ranking.assign(rank=[-grade for grade in grades]))


@pytest.fixture(scope="module")
def collection(data_root, tmp_path_factory):
    return Collection(data_root, tmp_path_factory.mktemp("vaswani") / "index")


@pytest.mark.parametrize(
    ("kind", "stage", "steps", "batch", "rate"),
    [("monot5", MonoT5, 65, 24, 0.01), ("cross_encoder", CrossEncoder, 50, 16, 0.003)],
)
def test_a_model_trained_on_judgements_beats_bm25s_order_on_its_questions(
    kind, stage, steps, batch, rate, collection, tmp_path
):
    torch.set_num_threads(1)
    learnt = examples(collection.ranking, collection.qrels, collection.texts)
    small = {"monot5": checkpoints.small_t5, "cross_encoder": checkpoints.small_bert}
    network, tokenizer = small[kind]([text for example in learnt for text in example.pair])
    ndcg = {}
    for name in ("untrained", "trained"):
        if name == "trained":
            fit(kind, network, tokenizer, learnt, steps=steps, batch=batch, rate=rate)
        path = checkpoints.save_network(tmp_path / name, network, tokenizer)
        reranker = stage(path, texts=collection.texts, depth=DEPTH, device="cpu")
        ndcg[name] = collection.ndcg(reranker(collection.ranking))
    bm25, best = collection.ndcg(collection.ranking), collection.best_ndcg()
    assert best > bm25 + 0.2  # there is something to gain, and something to lose
    assert ndcg["trained"] > bm25 + 0.6 * (best - bm25)
    assert ndcg["untrained"] < bm25 + 0.2 * (best - bm25)
