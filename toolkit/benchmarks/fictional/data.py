"""The words and sentences of the world, in YAML files under `data/`."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # faster, where libyaml is


@lru_cache
def load(name: str) -> Any:
    """The contents of `data/<name>.yaml`, read once a process."""
    path = Path(__file__).with_name("data") / f"{name}.yaml"
    return yaml.load(path.read_text(encoding="utf-8"), Loader=_LOADER)


def word_lists() -> dict[str, list[str]]:
    """The lists of words and of parts of words in `data/vocabulary.yaml`."""
    return {name: text.split() for name, text in load("vocabulary").items()}
