"""One fake server for the tests of clients."""

import pytest
from llm_clients import ADAPTERS, address, using
from support.llm_server import running_peer

from soundingline.toolkit.llm import transport
from soundingline.toolkit.llm.messages import user


@pytest.fixture(scope="session")
def server():
    with running_peer() as running:
        for adapter in ADAPTERS.values():  # The first request of an SDK imports for a second.
            model = adapter(model="m", base_url=address(running, adapter))
            using(model, lambda it: it.respond([user("?")]))
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
