"""A student trained on a teacher's judgements: rows, pairs, and a scorer by its path."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pipelines.scorers.file import FileScorer
from pipelines.scorers.pairs import StudentScorer
from pipelines.scorers.training import TrainingPair, training_pairs
from toolkit.contracts import Trajectory, Unit
from toolkit.errors import InputError
from toolkit.exchange.judgements import judgement_rows
from toolkit.search.scoring import Candidate, Evidence, Passage

GRAINS = ("barley", "rye")
OTHERS = ("mill", "river", "stone", "old", "the", "by", "stands", "grinds")
REQUIREMENTS = tuple(f"grinds {grain}" for grain in GRAINS)


class Store:
    """The passages of a made-up corpus: one a document, `<docid>%p0`."""

    def __init__(self, texts: dict[str, str]) -> None:
        self._texts = texts

    def document(self, docid: str) -> Any:
        raise KeyError(docid)

    def lines(self, docid: str, offset: int = 1, limit: int = 200) -> Any:
        raise KeyError(docid)

    def texts(self, unit_ids: Sequence[str]) -> list[Unit]:
        return [Unit(unit_id, "", self._texts[unit_id]) for unit_id in unit_ids]


def corpus(count: int, seed: int) -> dict[str, str]:
    """Sentences of a few words, each of which names each grain or not."""
    draw = random.Random(seed)
    texts = {}
    for number in range(count):
        words = draw.choices(OTHERS, k=4) + draw.sample(GRAINS, k=draw.choice([0, 1, 2]))
        draw.shuffle(words)
        texts[f"d{number}%p0"] = " ".join(words)
    return texts


def taught(texts: dict[str, str]) -> Trajectory:
    """A run of one question whose teacher finds every grain that a passage names."""
    documents = {}
    for unit_id, text in texts.items():
        met = [float(grain in text.split()) for grain in GRAINS]
        documents[unit_id.partition("%")[0]] = {
            "requirements": {
                need: {
                    "verdict": "satisfied" if score else "not",
                    "score": 0.95 if score else 0.05,
                    "rationale": text,
                    "passage": unit_id,
                }
                for need, score in zip(REQUIREMENTS, met, strict=True)
            },
        }
    row = {"round": 1, "checklist": list(REQUIREMENTS), "documents": documents}
    return Trajectory("q", "Which mills grind which grain?", "completed", rounds=(row,))


def written(texts: dict[str, str], path: Path) -> Path:
    """The rows of a run that was taught, in a file."""
    rows = judgement_rows(taught(texts), Store(texts))
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def candidates(texts: dict[str, str]) -> list[Candidate]:
    return [
        Candidate(
            "Which mills grind which grain?",
            unit_id.partition("%")[0],
            "",
            tuple(Evidence(need, (Passage(unit_id, text),)) for need in REQUIREMENTS),
        )
        for unit_id, text in texts.items()
    ]


def test_a_run_gives_rows_that_a_file_scorer_and_training_read(tmp_path: Path) -> None:
    texts = {"d1%p0": "the mill grinds rye", "d2%p0": "by the river"}
    path = written(texts, tmp_path / "rows.jsonl")
    first, _ = map(json.loads, path.read_text().splitlines())
    assert (first["query"], first["docid"]) == ("Which mills grind which grain?", "d1")
    assert first["chunks"] == [{"id": "d1%p0", "text": "the mill grinds rye"}]
    assert first["requirements"][1]["requirement"] == "grinds rye"
    assert first["requirements"][1]["rationale"] == "the mill grinds rye"
    (judgement, _) = FileScorer(str(path)).score(candidates(texts))
    assert [row and row.score for row in judgement.requirements] == [0.05, 0.95]
    pairs = list(training_pairs(path))
    assert TrainingPair("grinds rye", "the mill grinds rye", 0.95) in pairs
    assert len(pairs) == len(REQUIREMENTS) * len(texts)


def test_an_overall_probability_trains_the_question_with_every_passage(tmp_path: Path) -> None:
    chunks = [{"id": "a", "text": "one"}, {"id": "b", "text": "two"}]
    needs = [
        {"requirement": "r", "score": 1, "passage": "b"},
        {"requirement": "without a passage", "score": 0, "passage": ""},
    ]
    row = {"query": "q", "docid": "d", "chunks": chunks, "requirements": needs, "overall": 0.25}
    path = tmp_path / "rows.jsonl"
    path.write_text(f"{json.dumps({**row, 'overall': 1.0})}\n\n{json.dumps(row)}\n")
    assert set(training_pairs(path)) == {("r", "two", 1.0), ("q", "one", 0.25), ("q", "two", 0.25)}


@pytest.mark.parametrize("line", ["{", "[]", '{"query": "q"}', '{"chunks": 1, "requirements": []}'])
def test_a_line_that_is_no_row_is_named(line: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(f"\n{line}\n")
    with pytest.raises(InputError, match="is no row of judgements"):
        list(training_pairs(path))
    with pytest.raises(InputError, match="cannot read the judgements"):
        list(training_pairs(tmp_path / "nowhere.jsonl"))


def test_documents_without_scores_and_passages_that_are_gone_are_left_out() -> None:
    cell = {"score": 0.5, "passage": "gone%p0"}
    documents = {"d1": {"requirements": {}}, "d2": {"requirements": {"r": cell}}, "d3": "?"}
    trajectory = Trajectory("q", "?", "completed", rounds=({"documents": documents},))
    (row,) = judgement_rows(trajectory, Store({}))
    assert (row["docid"], row["chunks"], row["overall"]) == ("d2", [], None)


def untrained(folder: Path) -> Path:
    """A tiny classifier of pairs with one label, whose every word is a token."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    folder.mkdir()
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *GRAINS, *OTHERS]
    (folder / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    tokenizer = transformers.BertTokenizer(str(folder / "vocab.txt"))
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=0.1,
        num_labels=1,
    )
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Threads that wait for each other take a hundred times as long on a busy machine."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def train(folder: Path, pairs: Sequence[TrainingPair], steps: int) -> None:
    """Cross-entropy towards the teacher's scores, in place."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    network = AutoModelForSequenceClassification.from_pretrained(folder).train()
    inputs = tokenizer(
        [pair.query for pair in pairs],
        [pair.text for pair in pairs],
        padding=True,
        return_tensors="pt",
    )
    scores = torch.tensor([[pair.score] for pair in pairs])
    optimizer = torch.optim.AdamW(network.parameters(), lr=5e-3, weight_decay=0.0)
    loss_of = torch.nn.BCEWithLogitsLoss()
    for _ in range(steps):
        rows = torch.randint(len(pairs), (64,))
        batch = {name: values[rows] for name, values in inputs.items()}
        loss = loss_of(network(**batch).logits, scores[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    network.eval().save_pretrained(folder)


def agreement(folder: Path, texts: dict[str, str]) -> float:
    """Share of verdicts on unseen passages that are the teacher's."""
    scorer = StudentScorer(str(folder), max_length=32, device="cpu", dtype="float32")
    judgements = scorer.score(candidates(texts))
    right = [
        (row.verdict == "satisfied") == (grain in text.split())
        for judgement, text in zip(judgements, texts.values(), strict=True)
        for row, grain in zip(judgement.requirements, GRAINS, strict=True)
        if row is not None
    ]
    assert len(right) == len(texts) * len(GRAINS)
    return sum(right) / len(right)


def test_a_student_learns_its_teachers_verdicts_and_scores_by_its_path(
    tmp_path: Path, one_thread: None
) -> None:
    folder = untrained(tmp_path / "student")
    unseen = corpus(60, seed=1)
    before = agreement(folder, unseen)
    pairs = list(training_pairs(written(corpus(200, seed=0), tmp_path / "rows.jsonl")))
    train(folder, pairs, steps=150)
    after = agreement(folder, unseen)
    # Each grain is in half of the passages: who says the same of all agrees in half of the cases.
    assert before < 0.7 and after > 0.95
