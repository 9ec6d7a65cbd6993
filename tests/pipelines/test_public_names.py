"""What `soundingline.pipelines` exports: names, docstrings, imports, short pipelines."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path

import pandas as pd
import pyterrier as pt
import pytest

ROOT = Path(__file__).resolve().parents[2]

WITHOUT_PAPER = (
    "Interpolation",
    "LinkExpansion",
    "OracleRetriever",
    "Reranker",
    "RerankHead",
    "Retriever",
)


def test_every_public_name_is_importable_and_has_a_docstring():
    from soundingline import pipelines

    for name in pipelines.__all__:
        part = getattr(pipelines, name)
        text = part.__doc__ or ""
        assert text.strip(), name
        if name not in ("Stage", "LexicalIndexer") and issubclass(part, pt.Transformer):
            assert re.search(r"\bIn: |[Cc]olumns", text), f"{name}: columns in and out"
            assert re.search(r"InputError|errors as in", text), f"{name}: errors"
            if name not in WITHOUT_PAPER:
                assert re.search(r"\b20\d\d[);]", text), f"{name}: paper"
    assert set(pipelines.__all__) <= set(dir(pipelines))
    with pytest.raises(AttributeError, match="no attribute 'Monot5'"):
        _ = pipelines.Monot5


def test_importing_the_package_loads_no_library_of_models():
    code = (
        "import sys, pipelines; from soundingline.pipelines import LexicalIndex, Collection; "
        "print(sorted({'torch', 'transformers', 'pyterrier_dr', 'sentence_transformers', 'numba'}"
        " & set(sys.modules)))"
    )
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; import soundingline.pipelines; print(len(sys.modules))",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) < 200
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "torch" not in done.stdout and "transformers" not in done.stdout
    assert "pyterrier_dr" not in done.stdout


@pytest.fixture
def tiny_monot5(tmp_path):
    """A folder with weights for `MonoT5`, in the place of those that it downloads."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from support import checkpoints

    torch.set_num_threads(1)
    return str(checkpoints.save_t5(tmp_path / "model"))


EXPERIMENT = """
import pyterrier as pt
from soundingline.pipelines import LexicalIndex, MonoT5, MaxP
index = LexicalIndex.build([{"docno": "d1%p0", "text": "the old mill"}], "my-index")
pipe = index.bm25(k1=25, b=1.0, depth=1000) >> MonoT5(depth=50) >> MaxP()
table = pt.Experiment([index.bm25() >> MaxP(), pipe], topics, qrels, ["map", "ndcg_cut_10"])
"""


def test_an_experiment_of_two_pipelines_is_four_lines_and_validated_without_a_warning(
    tiny_monot5, tmp_path, monkeypatch
):
    from soundingline import pipelines

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pipelines, "MonoT5", partial(pipelines.MonoT5, tiny_monot5), raising=False)
    names = {
        "topics": pd.DataFrame({"qid": ["1"], "query": ["mill"]}),
        "qrels": pd.DataFrame({"qid": ["1"], "docno": ["d1"], "label": [1]}),
    }
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        exec(EXPERIMENT, names)
    table = names["table"]
    assert isinstance(table, pd.DataFrame)
    assert table[["map", "ndcg_cut_10"]].to_numpy().tolist() == [[1.0, 1.0]] * 2
    assert not [str(item.message) for item in caught if "validated" in str(item.message)]


def test_a_reranker_finds_the_texts_that_its_index_keeps(tiny_monot5, tmp_path):
    from soundingline.pipelines import LexicalIndex, MaxP, MonoT5

    rows = [{"docno": f"d{n}%p0", "text": f"the old mill {n}"} for n in range(4)]
    index = LexicalIndex.build(rows, tmp_path / "my-index")
    pipe = index.bm25(k1=25, b=1.0, depth=1000) >> MonoT5(tiny_monot5, depth=2) >> MaxP()
    queries = pd.DataFrame({"qid": ["1"], "query": ["mill"]})
    ranking = pipe(queries)
    texts = {row["docno"]: row["text"] for row in rows}
    given = index.bm25(k1=25, b=1.0)(queries)
    given["text"] = [texts[docno] for docno in given["docno"]]
    pd.testing.assert_frame_equal(
        ranking, (MonoT5(tiny_monot5, depth=2) >> MaxP())(given).drop(columns="text")
    )
    # Frames with the attribute are written and copied as others are.
    assert ranking.copy().attrs == ranking.attrs
