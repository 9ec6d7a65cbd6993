"""The quickstart in Jupyter: one kernel runs the code blocks of `docs/quickstart.md`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.documents import ROOT, code_blocks

PEERS = Path(os.environ.get("SOUNDINGLINE_PEERS", ""))
PYTHON = PEERS / "notebook" / "bin" / "python"
CLIENT = Path(__file__).parent / "clients" / "as_notebook.py"
pytestmark = pytest.mark.peers


def test_the_code_of_the_quickstart_runs_in_a_notebook(tmp_path):
    if not PEERS.is_absolute() or not PYTHON.exists():
        pytest.skip("SOUNDINGLINE_PEERS has no environment of that name")
    page = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
    cells = [block.content for block in code_blocks(page) if block.language == "python"]
    assert any("experiment.run()" in cell for cell in cells)
    cells += ["experiment.run().counts['completed']", "experiment.evaluate().counts['completed']"]
    done = subprocess.run(
        [str(PYTHON), str(CLIENT), str(ROOT), *filter(None, sys.path)],
        input=json.dumps(cells),
        cwd=tmp_path,
        # Jupyter keeps its files of connections below the user's own folder, unless told otherwise.
        env={**os.environ, "JUPYTER_RUNTIME_DIR": str(tmp_path / "jupyter")},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *_, again, evaluated = json.loads(done.stdout)
    assert again.endswith("6") and evaluated.endswith("6")
