"""What `soundingline.pipelines` exports: names, docstrings, imports, short pipelines."""

import importlib
import re
import socket
import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path

import pandas as pd
import pyterrier as pt
import pytest

from soundingline.pipelines.stage import ByArguments

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


@pytest.mark.parametrize("name", ["agents", "experiments", "pipelines", "toolkit"])
def test_a_package_lists_its_public_names_alone(name):
    package = importlib.import_module(f"soundingline.{name}")
    assert dir(package) == sorted(package.__all__)
    assert all(hasattr(package, public) for public in package.__all__)


def test_an_unknown_name_or_argument_is_answered_with_the_nearest():
    from soundingline import agents, pipelines

    with pytest.raises(AttributeError, match=r"no attribute 'Monot5'; did you mean MonoT5\?$"):
        _ = pipelines.Monot5
    with pytest.raises(AttributeError, match=r"no attribute 'zzz'$"):
        _ = agents.zzz
    wrong = [(pipelines.BM25, "dept", "depth"), (pipelines.MaxP, "Depth", "depth")]
    wrong += [(pipelines.MonoT5, "device_", "device"), (pipelines.LexicalIndexer, "pth", "path")]
    for stage, given, meant in wrong:
        told = f"^{stage.__name__} has no argument '{given}'. valid: .*did you mean {meant}\\?$"
        with pytest.raises(TypeError, match=told):
            stage(**{given: 1})


class Doubled(ByArguments, pt.Transformer):
    """A stage of one's own, without constructor arguments."""

    def transform(self, inp):
        return inp


@pytest.fixture
def instances(tmp_path):
    """One instance of each exported stage, with arguments that are not the defaults; none loads a
    model."""
    from soundingline import pipelines
    from soundingline.pipelines import LexicalIndex

    rows = [{"docno": "d1", "text": "the old mill"}]
    index = LexicalIndex.build(rows, tmp_path / "index")
    phrases = LexicalIndex.build(rows, tmp_path / "phrases").over(index)
    graph = {"direction": "out", "depth": None}
    arguments = {
        "BM25": {"index": index, "k1": 25.0, "operators": "phrases"},
        "ColBERT": {"model": "some/model", "compression": "ivf_pq"},
        "Dense": {"model": "some/model", "pooling": "last"},
        "Interpolation": {"first": index.bm25(), "second": index.ql(mu=7), "weight": 0.25},
        "LexicalIndexer": {"path": tmp_path / "new", "keep_texts": False},
        "LinkExpansion": {"retriever": index.bm25() >> Doubled(), **graph},
        "MaxP": {"depth": 3},
        "Q2Q": {"cache": tmp_path / "cache", "max_words": 7},
        "RM3": {"index": index, "fb_docs": 3},
        "ReciprocalRankFusion": {
            "first": index.bm25(),
            "second": phrases.bm25(depth=2) >> Doubled(),
        },
        "RerankHead": {"stage": Doubled(), "depth": 5, "texts": index.texts},
        "Retriever": {"index": phrases, "depth": 9},
    }
    abstract = {"Stage", "Reranker"}
    found = [(name, getattr(pipelines, name)) for name in pipelines.__all__]
    stages = {name: kind for name, kind in found if issubclass(kind, pt.Transformer)}
    assert set(arguments) <= set(stages)
    return {
        "LexicalIndex": index,
        "over": phrases,
        **{n: kind(**arguments.get(n, {})) for n, kind in stages.items() if n not in abstract},
    }


def test_the_representation_of_every_stage_is_code_that_makes_it_again(instances):
    from soundingline import pipelines

    public = {name: getattr(pipelines, name) for name in pipelines.__all__}
    names = {**public, "Path": Path, "Doubled": Doubled}
    assert len(instances) > 20
    for name, stage in instances.items():
        again = eval(repr(stage), names)
        assert repr(again) == repr(stage) and type(again) is type(stage), name
        if isinstance(stage, pt.Transformer):
            given = {key: str(value) for key, value in stage._arguments().items()}
            assert {key: str(value) for key, value in again._arguments().items()} == given, name
    pipe = instances["BM25"] >> pipelines.MaxP()
    assert eval(repr(pipe), names) == pipe
    assert eval(repr(instances["over"]), names).base == instances["LexicalIndex"]


def test_every_stage_is_drawn_without_a_network(instances, monkeypatch):
    """PyTerrier's schematics draw a pipeline as HTML, which loads nothing."""
    from soundingline.pipelines import MaxP, MonoT5

    monkeypatch.setattr(pt.documentation, "objects_inv", lambda: pytest.fail("a page is looked up"))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: pytest.fail("a host is looked up"))
    for name, stage in instances.items():
        if isinstance(stage, pt.Transformer) and not isinstance(stage, pt.Indexer):
            assert type(stage).__name__ in pt.schematic.draw(stage), name
    drawn = pt.schematic.draw(instances["BM25"] >> MonoT5(depth=50) >> MaxP())
    assert all(label in drawn for label in ("BM25", "MonoT5 %50", "MaxP"))
    assert not re.search(r"(src|href)=.https?:", drawn)


IMPORTS = """
import sys
import soundingline.pipelines
print(len(sys.modules))
from soundingline.pipelines import Collection, LexicalIndex
from soundingline.pipelines.engines.anserini import AnseriniEngine
AnseriniEngine().fingerprint
libraries = {"torch", "transformers", "pyterrier_dr", "sentence_transformers", "jnius"}
print(*libraries & set(sys.modules))
"""


def test_importing_the_package_loads_no_library_of_models_and_no_java():
    command = [sys.executable, "-c", IMPORTS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    count, loaded = done.stdout.split("\n", 1)
    assert int(count) < 200 and loaded == "\n"


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
