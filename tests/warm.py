"""What the server behind `processes` has done before it forks: imports, a first search, and the
composition of the defaults."""

from __future__ import annotations

import tempfile
from pathlib import Path

import composition_memo
import scipy.stats  # noqa: F401

import experiments.enrich
import experiments.evaluate
import experiments.rank
import experiments.run
import experiments.serve  # noqa: F401
from experiments.settings import Settings
from pipelines.lexical import LexicalIndex

_TEXTS = [{"docno": f"d{n}", "text": f"the old mill {n} by the river"} for n in range(3)]

with tempfile.TemporaryDirectory() as folder:
    LexicalIndex.build(_TEXTS, Path(folder) / "index", processes=1).bm25().search("mill")

composition_memo.install()
Settings.compose()
