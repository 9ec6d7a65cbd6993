"""Scorers without a chat model: cross-encoders, a student, a file; and that scores are kept."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from pipelines.rerank.base import Pair
from pipelines.rerank.listwise import Listwise
from pipelines.scorers.cached import CachedScorer
from pipelines.scorers.file import FileScorer
from pipelines.scorers.pairs import PairScorers, StudentScorer
from toolkit.errors import InputError
from toolkit.search.scoring import (
    Candidate,
    Evidence,
    Judgement,
    Passage,
    RequirementScore,
    ScorerResources,
    judgement_row,
)

FIRST, SECOND = Passage("d%p0", "about barley"), Passage("d%p1", "about the Wey, and barley too")
BARLEY, WEY, NOTHING = (
    Evidence("barley", (FIRST, SECOND)),
    Evidence("Wey", (SECOND,)),
    Evidence("wheat"),
)
CANDIDATE = Candidate("barley Wey", "d", "Title", (BARLEY, WEY, NOTHING))


class SharedWords:
    """A pair scores the number of words that both sides share."""

    fingerprint = "shared words"
    counts: Mapping[str, int] = {}

    def __init__(self, broken: str = "") -> None:
        self.pairs: list[Pair] = []
        self._broken = broken

    def score(self, pairs: Sequence[Pair]) -> list[float]:
        self.pairs += pairs
        words = [len(set(pair.query.split()) & set(pair.text.split())) for pair in pairs]
        return [
            math.nan if pair.query == self._broken else float(count)
            for pair, count in zip(pairs, words, strict=True)
        ]

    def close(self) -> None:
        pass


def test_a_requirement_scores_its_best_passage() -> None:
    (judgement,) = PairScorers(SharedWords(), output="probability").score([CANDIDATE])
    assert judgement.requirements == (
        RequirementScore("satisfied", 1.0, "", "d%p0"),
        RequirementScore("not", 0.0, "", "d%p1"),  # "Wey," is another word
        RequirementScore("unknown", 0.0),
    )
    assert (judgement.probability, judgement.origin) == (1.0, "score")


@pytest.mark.parametrize(
    ("output", "expected"),
    [("logit", 1 / (1 + math.exp(-1))), ("log_probability", 1.0), ("probability", 1.0)],
)
def test_what_a_model_puts_out_becomes_a_score_of_0_to_1(output: str, expected: float) -> None:
    (judgement,) = PairScorers(SharedWords(), output=output).score([CANDIDATE])
    assert judgement.requirements[0] is not None
    assert judgement.requirements[0].score == pytest.approx(expected)


def test_an_output_of_another_kind_is_refused() -> None:
    with pytest.raises(InputError, match="logit"):
        PairScorers(SharedWords(), output="percent")


def test_a_re_ranker_of_lists_is_no_scorer_of_pairs() -> None:
    with pytest.raises(InputError, match="Listwise scores no pairs"):
        PairScorers(Listwise())  # type: ignore[arg-type]


def test_a_score_that_is_no_number_leaves_its_requirement_unscored() -> None:
    scorer = PairScorers(SharedWords(broken="Wey"), output="probability")
    (judgement,) = scorer.score([CANDIDATE])
    assert judgement.requirements[1] is None and judgement.error == "not_a_number"
    assert judgement.requirements[0] is not None and scorer.counts["not_a_number"] == 1


def test_scores_of_pairs_are_kept_between_runs(tmp_path: Path) -> None:
    model = SharedWords()
    resources = ScorerResources(caches=tmp_path)
    first = PairScorers(model, output="probability").bind(resources).score([CANDIDATE])
    scored = len(model.pairs)
    bound = PairScorers(model, output="probability").bind(resources)
    assert bound.score([CANDIDATE]) == first and len(model.pairs) == scored
    assert bound.counts["cache_hits"] == 4 and bound.counts["cache_misses"] == 0


@pytest.mark.parametrize(
    "other",
    [
        CANDIDATE._replace(question="Wey"),
        CANDIDATE._replace(docid="e"),
        CANDIDATE._replace(evidence=(Evidence("barley", (SECOND,)), WEY, NOTHING)),
        CANDIDATE._replace(
            evidence=(Evidence("barley", (FIRST._replace(text="changed"), SECOND)), WEY, NOTHING)
        ),
    ],
)
def test_another_question_document_or_text_has_its_own_score(
    other: Candidate, tmp_path: Path
) -> None:
    model = SharedWords()
    scorer = CachedScorer(PairScorers(model, output="probability"), tmp_path)
    scorer.score([CANDIDATE])
    before = len(model.pairs)
    scorer.score([other])
    assert len(model.pairs) > before


def test_a_student_is_a_sequence_classifier_in_a_folder(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "about", "barley", "the", "wey"]
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary), encoding="utf-8")
    tokenizer = transformers.BertTokenizer(str(tmp_path / "vocab.txt"))
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(tokenizer), intermediate_size=16, num_labels=1, **sizes
    )
    network = transformers.BertForSequenceClassification(config).eval()
    network.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    scorer = StudentScorer(str(tmp_path), max_length=64, device="cpu", dtype="float32")
    (judgement,) = scorer.score([CANDIDATE])
    with torch.no_grad():
        inputs = tokenizer("Wey", SECOND.text, return_tensors="pt")
        expected = torch.sigmoid(network(**inputs).logits[0, 0]).item()
    assert judgement.requirements[1] is not None
    assert judgement.requirements[1].score == pytest.approx(expected, abs=1e-5)
    assert 0 < (judgement.probability or 0) < 1
    three = transformers.BertConfig(num_labels=3, **sizes)
    three.save_pretrained(tmp_path)
    with pytest.raises(InputError, match="3 labels"):
        _ = StudentScorer(str(tmp_path)).fingerprint


def test_a_file_gives_back_what_was_written(tmp_path: Path) -> None:
    rows = (RequirementScore("satisfied", 0.9, "It says so.", "d%p0"),)
    judgement = Judgement((*rows, RequirementScore("not", 0.0), rows[0]), 0.6, "stated")
    path = tmp_path / "scores.jsonl"
    path.write_text(json.dumps(judgement_row(CANDIDATE, judgement)) + "\n", encoding="utf-8")
    scorer = FileScorer(str(path))
    assert scorer.score([CANDIDATE]) == [judgement]
    other = CANDIDATE._replace(question="BARLEY  wey", evidence=(WEY,))
    assert scorer.score([other])[0].requirements == (judgement.requirements[1],)
    absent = scorer.score([CANDIDATE._replace(docid="e")])[0]
    assert absent.error == "not_in_file" and scorer.counts["absent"] == 1


@pytest.mark.parametrize(
    "line",
    ["[]", "{", '{"query": "q", "docid": "d"}']
    + [
        json.dumps({"query": "q", "docid": "d", "requirements": [{"requirement": "r", **row}]})
        for row in ({"score": 2}, {"score": "much"}, {"score": 1, "verdict": "perhaps"}, {})
    ],
)
def test_a_damaged_line_is_named(line: str, tmp_path: Path) -> None:
    path = tmp_path / "scores.jsonl"
    path.write_text(f"\n{line}\n", encoding="utf-8")
    with pytest.raises(InputError, match="line 2"):
        _ = FileScorer(str(path)).fingerprint


def test_an_absent_file_is_told() -> None:
    with pytest.raises(InputError, match="cannot read the scores"):
        _ = FileScorer("nowhere.jsonl").fingerprint
