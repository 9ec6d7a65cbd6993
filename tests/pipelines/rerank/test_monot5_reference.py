from __future__ import annotations

import json
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import tiny_t5

from pipelines.rerank.base import Pair
from pipelines.rerank.monot5 import MonoT5Scorer
from pipelines.rerank.monot5_reference import MonoT5Reference
from toolkit.contracts import Unit
from toolkit.errors import InputError

torch = pytest.importorskip("torch")
# Not imported here: that takes a second in each worker of the suite.
pytestmark = pytest.mark.skipif(
    find_spec("pyterrier_t5") is None, reason="pyterrier-t5 is not installed"
)

TEXTS = {"a": "the old mill", "b": "river", "c": "stone bridge by the river who built", "d": ""}


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_t5.save_t5(tmp_path_factory.mktemp("reference") / "model")


def units(docnos: Any) -> list[Unit]:
    return [Unit(each, "", TEXTS[each]) for each in docnos]


def reference(model: Path, **arguments: Any) -> MonoT5Reference:
    return MonoT5Reference(texts=units, model=str(model), tokenizer=str(model), **arguments)


def ranking() -> pd.DataFrame:
    rows = [
        {
            "qid": qid,
            "query": query,
            "docno": docno,
            "score": 9.0 - rank,
            "rank": rank,
            "kept": rank,
        }
        for qid, query in (("1", "who built the mill"), ("2", "bridge"))
        for rank, docno in enumerate("abcd")
    ]
    return pd.DataFrame(rows)


def test_the_head_has_the_references_scores_and_the_tail_stays_below(model: Path) -> None:
    found = reference(model, depth=3, batch_size=1)(ranking())
    head = ranking().query("rank < 3").assign(text=lambda frame: frame["docno"].map(TEXTS))
    their = import_module("pyterrier_t5").MonoT5ReRanker(
        tok_model=str(model), model=str(model), batch_size=1, device="cpu", verbose=False
    )
    expected = their(head.drop(columns=["score", "rank"])).set_index(["qid", "docno"])["score"]
    scores = found.set_index(["qid", "docno"])["score"]
    for key, score in expected.items():
        assert scores[key] == pytest.approx(score, abs=1e-5)
    assert found.groupby("qid")["docno"].last().tolist() == ["d", "d"]
    assert (
        found["score"].is_monotonic_decreasing
        or found.groupby("qid")["score"].apply(lambda each: each.is_monotonic_decreasing).all()
    )
    assert found["kept"].tolist() == [ranking()["kept"]["abcd".index(d)] for d in found["docno"]]


def test_with_one_pair_a_batch_it_scores_as_ours(model: Path) -> None:
    found = reference(model, batch_size=1)(ranking()).set_index(["qid", "docno"])["score"]
    ours = MonoT5Scorer(str(model), device="cpu", dtype="float32")
    pairs = {(r.qid, r.docno): Pair(r.query, TEXTS[r.docno]) for r in ranking().itertuples()}
    scores = dict(zip(pairs, ours.score(list(pairs.values())), strict=True))
    assert found.to_dict() == pytest.approx(scores, abs=1e-4)


def test_its_scores_change_with_the_batch_and_ours_do_not(model: Path) -> None:
    alone = reference(model, batch_size=1)(ranking()).set_index(["qid", "docno"])["score"]
    four = reference(model, batch_size=4)(ranking()).set_index(["qid", "docno"])["score"]
    assert (alone - four.reindex(alone.index)).abs().max() > 1e-3


def test_a_column_of_texts_is_used_and_missing_text_is_empty(model: Path) -> None:
    frame = ranking().assign(text=[*TEXTS.values()] * 2)
    frame.loc[3, "text"] = None
    stage = MonoT5Reference(model=str(model), tokenizer=str(model), batch_size=1)
    scores = stage(frame).set_index(["qid", "docno"])["score"]
    expected = reference(model, batch_size=1)(ranking()).set_index(["qid", "docno"])["score"]
    assert scores.to_dict() == pytest.approx(expected.to_dict(), abs=1e-6)


def test_an_empty_ranking_stays_empty(model: Path) -> None:
    found = reference(model)(ranking().head(0))
    assert len(found) == 0
    assert {"qid", "query", "docno", "score", "rank", "kept"} == set(found.columns)


def test_equal_settings_are_equal_stages(model: Path) -> None:
    assert reference(model) == reference(model)
    assert hash(reference(model)) == hash(reference(model))
    assert reference(model) != reference(model, batch_size=8)
    assert reference(model) != reference(model, depth=10)


def test_a_configuration_without_n_positions_is_told(
    model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for path in model.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = json.loads((model / "config.json").read_text())
    del config["n_positions"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"lacks n_positions.*reranker=monot5") as told:
        _ = reference(tmp_path).fingerprint
    assert "\n" not in str(told.value)


def test_a_tokenizer_that_is_not_here_is_told_although_the_library_makes_up_one(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(InputError, match=r"'t5-base' cannot be loaded.*hf download") as told:
        _ = MonoT5Reference(texts=units, model=str(model)).fingerprint
    assert "\n" not in str(told.value)


def test_wrong_arguments_and_models_are_told(model: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="batch_size=0"):
        _ = reference(model, batch_size=0).fingerprint
    with pytest.raises(InputError, match="depth=0"):
        _ = reference(model, depth=0).fingerprint
    with pytest.raises(InputError, match="there is no folder"):
        _ = reference(tmp_path / "nowhere").fingerprint
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(InputError, match=r"kind bert.*kind t5"):
        _ = reference(tmp_path).fingerprint
