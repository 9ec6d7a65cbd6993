"""Finished runs and sweeps in experiment trackers: MLflow, Weights & Biases.

What is recorded is read from the folder after all of its files are written, so that no result
depends on a tracker. A tracker that fails costs one line. The same command replaces its record.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from soundingline.experiments.build import make
from soundingline.experiments.config import flat_values
from soundingline.toolkit.console import notify
from soundingline.toolkit.files import fingerprint, read_json
from soundingline.toolkit.locks import file_lock
from soundingline.toolkit.optional import check_optional, import_optional

_READ = ("manifest.json", "metrics.json")
_ARTIFACTS = (*_READ, "chosen.yaml", "report.html", "report.md", "verdicts.json")
_KEY = "soundingline.run"
_NAME = re.compile(r"[^\w./ -]", re.ASCII)  # what MLflow takes in no name, such as the @ of nDCG@10
_LONGEST = 6000  # characters of a parameter of MLflow
_AT_ONCE = 100  # parameters


@dataclass(frozen=True)
class Record:
    """A finished run, or a sweep, which has files only: a `key` that stays the same when the
    command is repeated, its `name`, resolved configuration, measures, and the files to keep."""

    key: str
    name: str
    config: Mapping[str, Any]
    metrics: Mapping[str, float]
    files: tuple[Path, ...]

    @classmethod
    def of(cls, folder: Path) -> Record:
        """The record of a folder. Its configuration has no secrets, like the manifest."""
        files = [path for name in _ARTIFACTS if (path := folder / name).is_file()]
        contents = {p.name: read_json(p, dict[str, Any]) for p in files if p.name in _READ}
        manifest = contents.get("manifest.json", {})
        return cls(
            fingerprint(str(folder.resolve()), manifest.get("created", "")),
            f"{folder.parent.name}/{folder.name}",
            manifest.get("config", {}),
            contents.get("metrics.json", {}),
            tuple(files),
        )


class MlflowLogger:
    """Records runs in MLflow. Names lose the characters that MLflow refuses: `nDCG@10` is
    `nDCG_10`.

    Args:
        experiment: The experiment of MLflow, which is created if there is none.
        tracking_uri: The server or the database, such as `sqlite:///mlflow.db`. None: the
            environment's MLFLOW_TRACKING_URI, or else MLflow's default.

    Raises:
        InputError: If MLflow is not installed.
    """

    def __init__(self, experiment: str = "soundingline", tracking_uri: str | None = None) -> None:
        check_optional("mlflow")
        self._experiment, self._uri = experiment, tracking_uri

    def log(self, record: Record) -> None:
        """Write a record, in the place of an earlier one of the same key."""
        # MLflow would try a server that is away for minutes.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        mlflow = import_optional("mlflow")
        for name in ("mlflow", "alembic"):
            logging.getLogger(name).setLevel(logging.WARNING)
        client = mlflow.MlflowClient(self._uri)
        known = client.get_experiment_by_name(self._experiment)
        number = known.experiment_id if known else client.create_experiment(self._experiment)
        for earlier in client.search_runs([number], f"tags.`{_KEY}` = '{record.key}'"):
            client.delete_run(earlier.info.run_id)
        run = client.create_run(number, run_name=record.name, tags={_KEY: record.key}).info.run_id
        entities, now = mlflow.entities, int(time.time() * 1000)
        params = [
            entities.Param(_NAME.sub("_", key), str(value)[:_LONGEST])
            for key, value in flat_values(record.config)
        ]
        for start in range(0, len(params), _AT_ONCE):
            client.log_batch(run, params=params[start : start + _AT_ONCE])
        values = record.metrics.items()
        metrics = [entities.Metric(_NAME.sub("_", key), value, now, 0) for key, value in values]
        client.log_batch(run, metrics=metrics)
        for path in record.files:
            client.log_artifact(run, str(path))
        client.set_terminated(run)


class WandbLogger:
    """Records runs in Weights & Biases.

    Args:
        project: The project.
        mode: `online` or `offline`. None: the environment's WANDB_MODE, or else `online`.

    Raises:
        InputError: If wandb is not installed.
    """

    def __init__(self, project: str = "soundingline", mode: str | None = None) -> None:
        check_optional("wandb")
        self._project, self._mode = project, mode

    def log(self, record: Record) -> None:
        """Write a record, in the place of an earlier one of the same key."""
        wandb = import_optional("wandb")
        # Without a key, it would wait for one to be typed.
        settings = wandb.Settings(silent=True, console="off", login_timeout=5, disable_git=True)
        run = wandb.init(
            project=self._project,
            id=record.key,
            name=record.name,
            config=dict(record.config),
            mode=self._mode,
            resume="allow",
            settings=settings,
        )
        run.summary.update(dict(record.metrics))
        artifact = wandb.Artifact(f"run-{record.key}", type="run")
        for path in record.files:
            artifact.add_file(str(path))
        run.log_artifact(artifact)
        run.finish()


def log_folder(option: Any, folder: Path) -> None:
    """Record a finished run or sweep by an option of the group `logger`."""
    try:
        # Cells that end at once would disturb each other in a database that is a file.
        with file_lock(folder.parent / ".logger.lock"):
            make(option).log(Record.of(folder))
    except Exception as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        notify(f"{folder} is complete, and not recorded by its logger: {reason}")
