"""One fake server for the tests of clients."""

import pytest
from support.llm_server import running_peer

from soundingline.toolkit.llm import transport


@pytest.fixture(scope="session")
def server():
    with running_peer() as running:
        yield running


@pytest.fixture
def peer(server):
    server.reset()
    return server


@pytest.fixture(autouse=True)
def waits(monkeypatch):
    """The waits between attempts in seconds, the longest that are possible; none takes any time."""
    waited = []

    async def wait(seconds):
        waited.append(seconds)

    monkeypatch.setattr(transport, "_sleep", wait)
    monkeypatch.setattr(transport, "_chance", lambda: 1.0)
    return waited
