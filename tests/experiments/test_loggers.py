"""Finished runs and sweeps in MLflow and Weights & Biases."""

import json
import re
import sys
import time
from pathlib import Path

import pytest
from experiment_samples import TINY

from soundingline.toolkit.runs import RunFolder

# A tracker that keeps what it is given in a file, or that is out of order.
OWN = """
import json
from pathlib import Path

class Keeping:
    def __init__(self, broken: bool = False) -> None:
        self.broken = broken

    def log(self, record):
        if self.broken:
            raise RuntimeError("the tracker is\\nout of order")
        files = sorted(path.name for path in record.files)
        line = [record.key, record.name, record.config.get("repeats"), dict(record.metrics), files]
        with Path("kept.jsonl").open("a") as kept:
            kept.write(json.dumps(line) + "\\n")
"""


@pytest.fixture
def keeping(entry, tmp_path, monkeypatch):
    (tmp_path / "own_tracker.py").write_text(OWN)
    (tmp_path / "options" / "logger").mkdir(parents=True)
    option = "# A tracker.\n_target_: own_tracker.Keeping\nbroken: false\n"
    (tmp_path / "options" / "logger" / "keeping.yaml").write_text(option)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_tracker", raising=False)
    return ("--config-dir", str(tmp_path / "options"), *TINY, "logger=keeping")


def kept():
    return [json.loads(line) for line in Path("kept.jsonl").read_text().splitlines()]


def test_a_run_and_a_sweep_are_recorded_when_their_files_are_there(entry, keeping):
    assert entry("rank", *keeping, "name=single") == 0
    ((key, name, repeats, metrics, files),) = kept()
    assert (name, repeats, files) == ("runs/single", 1, ["manifest.json", "metrics.json"])
    assert metrics == json.loads(Path("runs/single/metrics.json").read_text())
    # A repeated command has the same key, by which its record is replaced.
    assert entry("rank", *keeping, "name=single") == 0
    assert kept()[1][0] == key

    assert entry("rank", "-m", *keeping, "name=swept", "unit=document,passage") == 0
    *cells, sweep = kept()[2:]
    assert len(cells) == 2 and len({key, sweep[0], *(cell[0] for cell in cells)}) == 4
    assert all(cell[1].startswith("swept/") for cell in cells)
    assert sweep[1:3] == ["runs/swept", None]
    assert sweep[4] == ["report.html", "report.md", "verdicts.json"]


def test_a_logger_changes_no_identity_and_its_failure_costs_a_line(entry, keeping, capsys):
    assert entry("rank", *TINY, "name=r") == 0
    before = Path("runs/r/metrics.json").read_bytes()
    capsys.readouterr()
    assert entry("rank", *keeping, "logger.broken=true", "name=r") == 0
    (line,) = [each for each in capsys.readouterr().err.splitlines() if "logger" in each]
    assert line == (
        "soundingline: runs/r is complete, and not recorded by its logger: the tracker is out of "
        "order"
    )
    assert Path("runs/r/metrics.json").read_bytes() == before


def test_an_absent_tracker_is_told_before_anything_is_written(entry, monkeypatch, capsys):
    monkeypatch.setattr("soundingline.toolkit.optional.find_spec", lambda name: None)
    assert entry("rank", *TINY, "logger=mlflow", "name=r") == 2
    advice = r"the package mlflow is not installed\. pip install -e '\S*\[mlflow\]'"
    assert re.search(advice, capsys.readouterr().err)
    assert not RunFolder("runs/r").manifest_path.exists()


@pytest.mark.slow
def test_mlflow_records_configuration_measures_and_files(entry, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="pip install 'soundingline[mlflow]'")
    pytest.importorskip("sqlalchemy", reason="pip install 'soundingline[mlflow]'")
    uri = f"sqlite:///{tmp_path / 'ml.db'}"
    given = (*TINY, "logger=mlflow", f"logger.tracking_uri='{uri}'", "logger.experiment=mills")
    for _ in range(2):  # the second one replaces the first
        assert entry("rank", "-m", *given, "name=s", "unit=document,passage") == 0
    client = mlflow.MlflowClient(uri)
    experiment = client.get_experiment_by_name("mills")
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    assert len(runs) == 3 and {run.info.status for run in runs.values()} == {"FINISHED"}
    files = client.list_artifacts(runs.pop("runs/s").info.run_id)
    assert [file.path for file in files] == ["report.html", "report.md", "verdicts.json"]
    for name, run in runs.items():
        folder = Path("runs") / name
        assert run.data.params["unit._target_"].startswith("soundingline.toolkit.corpus")
        assert run.data.params["benchmark.documents"] == "64"
        metrics = json.loads((folder / "metrics.json").read_text())
        assert run.data.metrics["nDCG_10"] == pytest.approx(metrics["nDCG@10"])
        assert len(run.data.metrics) == len(metrics)


@pytest.mark.slow
def test_wandb_records_without_a_network(entry, tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="pip install 'soundingline[wandb]'")
    given = ("logger=wandb", "logger.mode=offline", "logger.project=mills")
    assert entry("rank", *TINY, *given, "name=r") == 0
    (file,) = Path("wandb").glob("offline-run-*/*.wandb")
    # A process of wandb writes the file, and on a busy machine it is not done at once.
    until = time.monotonic() + 30
    parts, missing = (b"mills", b"nDCG@10", b"runs/r", b"metrics.json"), None
    while missing != [] and time.monotonic() < until:
        missing = [part for part in parts if part not in file.read_bytes()]
        time.sleep(0.1)
    assert missing == []
