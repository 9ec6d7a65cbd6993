"""From labels to scores: a tiny monoT5 is trained on judgements, saved, and loaded by its path."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import tiny_t5

from pipelines.lexical import LexicalIndex
from pipelines.rerank.monot5 import MonoT5
from toolkit.benchmarks.beir import BeirBenchmark
from toolkit.contracts import Unit
from toolkit.evaluation.retrieval import measure_rankings

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

QUESTIONS, DEPTH, STEPS, BATCH, RATE = 12, 20, 90, 24, 0.01
SHAPE = {"d_model": 48, "d_kv": 12, "d_ff": 96, "num_layers": 1, "num_decoder_layers": 1}


class Collection:
    """The first questions of vaswani, BM25's best candidates for them, and their judgements."""

    def __init__(self, root: Path, folder: Path) -> None:
        benchmark = BeirBenchmark(root / "vaswani")
        self.units = {each.docid: Unit(each.docid, "", each.text) for each in benchmark.documents()}
        topics = benchmark.topics[:QUESTIONS]
        # The questions are in capitals and the documents are not; a T5 tells them apart.
        questions = pd.DataFrame([{"qid": each.qid, "query": each.text.lower()} for each in topics])
        index = LexicalIndex.build(self.units.values(), folder, processes=1)
        self.ranking = index.bm25(depth=DEPTH)(questions)
        self.judgements = {each.qid: benchmark.judgements["evidence"][each.qid] for each in topics}

    def texts(self, docnos: Sequence[str]) -> list[Unit]:
        return [self.units[each] for each in docnos]

    def examples(self) -> dict[bool, list[str]]:
        """Prompts of relevant and of other candidates."""
        found: dict[bool, list[str]] = {True: [], False: []}
        for row in self.ranking.itertuples():
            prompt = f"Query: {row.query} Document: {self.units[row.docno].text} Relevant:"
            found[self.judgements[row.qid].get(row.docno, 0) > 0].append(prompt)
        return found

    def ndcg(self, ranking: pd.DataFrame) -> float:
        ordered = ranking.sort_values(["qid", "rank"])
        rankings = {str(qid): rows["docno"].tolist() for qid, rows in ordered.groupby("qid")}
        found = measure_rankings(rankings, self.judgements, ["nDCG@10"])["nDCG@10"]
        return sum(found.values()) / len(found)

    def best_ndcg(self) -> float:
        """With the same candidates in the order of their judgements."""
        grades = [
            self.judgements[qid].get(docno, 0)
            for qid, docno in zip(self.ranking["qid"], self.ranking["docno"], strict=True)
        ]
        return self.ndcg(self.ranking.assign(rank=[-grade for grade in grades]))


@pytest.fixture(scope="module")
def collection(data_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Collection:
    return Collection(data_root, tmp_path_factory.mktemp("vaswani") / "index")


def network_and_tokenizer(examples: dict[bool, list[str]]) -> tuple[Any, Any]:
    words = {word for each in examples.values() for text in each for word in text.split()}
    tokens = tiny_t5.tokenizer(sorted({*words, *tiny_t5.WORDS}))
    torch.manual_seed(0)
    config = tiny_t5.configuration(
        len(tokens), initializer_factor=0.5, dropout_rate=0.0, num_heads=4, **SHAPE
    )
    return transformers.T5ForConditionalGeneration(config), tokens


def train(network: Any, tokens: Any, examples: dict[bool, list[str]]) -> None:
    """As the paper does: the answers `true` and `false` are target tokens among all others."""
    chance = random.Random(0)
    optimizer = torch.optim.AdamW(network.parameters(), lr=RATE, weight_decay=0.0)
    answers = {label: tokens(str(label).lower()).input_ids[0] for label in (True, False)}
    for _ in range(STEPS):
        labels = [True, False] * (BATCH // 2)
        texts = [chance.choice(examples[label]) for label in labels]
        inputs = tokens(texts, return_tensors="pt", padding=True)
        targets = torch.tensor([[answers[label]] for label in labels])
        optimizer.zero_grad()
        network(**inputs, labels=targets).loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()


def test_a_model_trained_on_judgements_beats_bm25s_order_on_its_questions(
    collection: Collection, tmp_path: Path
) -> None:
    torch.set_num_threads(1)
    examples = collection.examples()
    network, tokens = network_and_tokenizer(examples)
    found = {}
    for name in ("untrained", "trained"):
        if name == "trained":
            train(network, tokens, examples)
        network.save_pretrained(tmp_path / name)
        tokens.save_pretrained(tmp_path / name)
        reranker = MonoT5(str(tmp_path / name), texts=collection.texts, depth=DEPTH, device="cpu")
        found[name] = collection.ndcg(reranker(collection.ranking))
    bm25, best = collection.ndcg(collection.ranking), collection.best_ndcg()
    assert best > bm25 + 0.2  # there is something to gain, and something to lose
    assert found["trained"] > bm25 + 0.6 * (best - bm25)
    assert found["untrained"] < bm25 + 0.2 * (best - bm25)
