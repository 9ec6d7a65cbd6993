"""The workplace of the golden gate, a fixture."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from golden_workplace import Workplace
from scripted_peer import running_peer


@pytest.fixture(scope="session")
def _served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workplace]:
    folder = tmp_path_factory.mktemp("golden")
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "golden-shared"
    shared.mkdir(exist_ok=True)
    with running_peer() as server:
        yield Workplace(folder, shared, server)


@pytest.fixture
def workplace(_served: Workplace, monkeypatch: pytest.MonkeyPatch) -> Workplace:
    monkeypatch.chdir(_served.folder)
    monkeypatch.setenv("COLUMNS", "120")
    _served.reset()
    return _served
