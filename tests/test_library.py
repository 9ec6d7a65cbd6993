"""What `docs/library.md` and the README show runs as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str) -> list[str]:
    return BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", ["docs/library.md", "README.md"])
def test_the_examples_of_a_page_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    examples = blocks(page)
    assert examples
    for example in examples:
        exec(compile(example, page, "exec"), names)


def test_every_name_of_the_face_is_importable_and_has_a_docstring() -> None:
    import pipelines

    for name in pipelines.__all__:
        assert (getattr(pipelines, name).__doc__ or "").strip(), name
    assert set(pipelines.__all__) <= set(dir(pipelines))
    with pytest.raises(AttributeError, match="no attribute 'Monot5'"):
        _ = pipelines.Monot5


def test_importing_the_face_loads_no_library_of_models() -> None:
    code = (
        "import sys, pipelines; from pipelines import LexicalIndex, Collection; "
        "print(sorted({'torch', 'transformers', 'pyterrier_dr', 'sentence_transformers', 'numba'}"
        " & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", "import sys; import pipelines; print(len(sys.modules))"],
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


def test_a_reranker_finds_the_texts_that_its_index_keeps(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    import tiny_t5

    from pipelines import LexicalIndex, MaxP, MonoT5

    torch.set_num_threads(1)
    model = tiny_t5.save_t5(tmp_path / "model")
    rows = [{"docno": f"d{n}%p0", "text": f"the old mill {n}"} for n in range(4)]
    index = LexicalIndex.build(rows, tmp_path / "my-index", processes=1)
    pipe = index.bm25(k1=25, b=1.0, depth=1000) >> MonoT5(str(model), depth=2) >> MaxP()
    queries = pd.DataFrame({"qid": ["1"], "query": ["mill"]})
    ranking = pipe(queries)
    texts = {row["docno"]: row["text"] for row in rows}
    given = index.bm25(k1=25, b=1.0)(queries)
    given["text"] = [texts[docno] for docno in given["docno"]]
    pd.testing.assert_frame_equal(
        ranking, (MonoT5(str(model), depth=2) >> MaxP())(given).drop(columns="text")
    )
    # Frames with the attribute are written and copied as others are.
    assert ranking.copy().attrs == ranking.attrs
