"""The workplace of the golden gate, a fixture."""

import os

import pytest
from golden_workplace import Workplace
from support.llm_server import running_peer


@pytest.fixture(scope="session")
def _served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("golden")
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "golden-shared"
    shared.mkdir(exist_ok=True)
    with running_peer() as server:
        yield Workplace(folder, shared, server)


@pytest.fixture
def workplace(_served, monkeypatch):
    monkeypatch.chdir(_served.folder)
    monkeypatch.setenv("COLUMNS", "120")
    _served.reset()
    return _served
