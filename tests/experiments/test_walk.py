"""How many files a reader opens to see how `soundingline run` composes a pipeline."""

from __future__ import annotations

import sys
import threading
from functools import cache
from pathlib import Path
from types import CodeType

import pytest
from experiment_samples import TINY
from hydra.utils import get_object

from soundingline.experiments import run as running
from soundingline.experiments.config import Settings, plain_values
from soundingline.experiments.pipeline import build_pipeline

ROOT = Path(__file__).resolve().parents[2]
# The packages that compose; `toolkit` knows of no pipeline.
COMPOSING = ("experiments", "pipelines")
# Hold the caches at their size, and count what stages do; nothing of the pipeline comes from here.
ASIDE = {"pipelines/cache.py", "pipelines/counts.py"}
CONFIGURATIONS = {
    "BM25 over documents": ("unit=document", "retriever=bm25_default"),
    "a re-ranker of passages, Max-P": ("unit=maxp", "reranker=rank1"),
    "two retrievers fused, rewriting": (
        *("retriever=fusion_interpolation", "retriever@retriever.first=bm25_default"),
        *("retriever@retriever.second=ql", "rewriter=q2q", "llm=openai_compatible"),
        *("llm.model=none", "llm.base_url=http://127.0.0.1:9/v1"),
    ),
}


class Composed(Exception):
    """The pipeline is bound; the run need not go on."""


class Walk:
    """The files of ours through which calls lead from a call of `start` to its end, and the
    functions by which another file enters each. Calls that an option's object makes are its own
    affair, and are not followed; nor are `__init__` files, which name what their packages have."""

    def __init__(self, start: CodeType, options: tuple[type, ...]) -> None:
        self.entrances = {}
        self._start, self._options = start, options

    def __call__(self, frame, event, argument):
        """What `sys.setprofile` calls."""
        if event != "call":
            return
        file = file_of_ours(frame)
        if not file or frame.f_code.co_name == "<module>":
            return
        callers = list(self._callers(frame))
        if any(isinstance(caller.f_locals.get("self"), self._options) for caller in callers):
            return
        entrances = self.entrances.setdefault(file, set())
        if not callers or file_of_ours(callers[0]) != file:
            entrances.add(frame.f_code)

    def _callers(self, frame):
        """The frames of ours above `frame`, up to that of the start."""
        above = frame
        while above and above.f_code is not self._start:
            above = above.f_back
            if above and file_of_ours(above):
                yield above


def file_of_ours(frame):
    """The path from the root to the file of a frame, in the packages that compose; else empty."""
    return _of_ours(frame.f_code.co_filename)


@cache
def _of_ours(name):
    path = Path(name)
    if path.name == "__init__.py" or not path.is_relative_to(ROOT):
        return ""
    file = path.relative_to(ROOT)
    return file.as_posix() if file.parts[0] in COMPOSING else ""


def targets(values):
    """What the options of a configuration name as their classes."""
    if isinstance(values, dict):
        if "_target_" in values:
            yield values["_target_"]
        for value in values.values():
            yield from targets(value)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("walk")


@pytest.mark.parametrize("options", CONFIGURATIONS.values(), ids=CONFIGURATIONS.keys())
def test_a_run_composes_its_pipeline_in_ten_files(options, folder, monkeypatch):
    monkeypatch.chdir(folder)
    settings = Settings.compose([*TINY, "name=walk", *options])
    classes = [get_object(name) for name in targets(plain_values(settings.config))]
    walk = Walk(build_pipeline.__code__, tuple(classes))

    def traced(*given, **named):
        build_pipeline(*given, **named)  # Builds the indexes, for which tracing takes long.
        sys.setprofile(walk)
        try:
            build_pipeline(*given, **named)
        finally:
            sys.setprofile(None)
        raise Composed

    monkeypatch.setattr(running, "build_pipeline", traced)
    with pytest.raises(Composed):
        running.run(settings)
    files = {"experiments/run.py", *walk.entrances} - ASIDE
    assert {"experiments/pipeline.py", "pipelines/compose.py"} <= files
    assert len(files) <= 10, sorted(files)
    # Each is entered once or twice. What an option and a stage are called by is their protocol.
    composing = {file for file in files if file.startswith("experiments/")}
    for file in composing - {"experiments/run.py"} | {"pipelines/compose.py"}:
        names = [code.co_name for code in walk.entrances[file]]
        assert len(names) <= 2, (file, names)


MOST_FILES, MOST_FRAMES = 90, 27


def test_a_run_of_one_question_calls_few_files_and_few_frames(entry):
    """From the command to the kernels of the index: files with a called function, its start
    included, and frames of ours on the longest way to a search."""
    files, frames = set(), []

    def profile(frame, event, argument):
        if event != "call" or frame.f_code.co_name == "<module>":
            return
        path = Path(frame.f_code.co_filename)
        if path.suffix != ".py" or not _is_product(path):
            return
        files.add(path)
        if frame.f_code.co_name == "search" and path.parts[-2:] == ("lexical", "index.py"):
            above, names = frame, []
            while above:
                if _is_product(Path(above.f_code.co_filename)):
                    names.append(above.f_code.co_qualname if sys.version_info >= (3, 11) else "")
                above = above.f_back
            frames.append(names)

    one = [item for item in TINY if not item.startswith("benchmark.questions")]
    sys.setprofile(profile)
    threading.setprofile(profile)
    try:
        assert entry("run", *one, "benchmark.questions=1", "name=x") == 0
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    assert len(files) <= MOST_FILES, sorted(files)
    longest = max(frames, key=len)
    assert len(longest) <= MOST_FRAMES, longest


@cache
def _is_product(path):
    packages = ("agents", "experiments", "pipelines", "toolkit")
    return path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in packages
