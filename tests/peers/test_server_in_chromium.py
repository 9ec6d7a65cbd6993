"""The page of the server in a real browser: its forms reach the server, and nothing else."""

from __future__ import annotations

import json

import pytest
from support.chromium import chromium, running_tab
from support.served import serving

BROWSER = chromium()
pytestmark = [
    pytest.mark.peers,
    pytest.mark.skipif(BROWSER is None, reason="needs Chromium: SOUNDINGLINE_CHROMIUM=path"),
]


def form(path):
    return f"""[...document.forms].find(f => f.querySelector("input").value === "{path}")"""


def tried(tab, path, body=None):
    """What the page shows after a click on the button of a form."""
    if body is not None:
        text = json.dumps(json.dumps(body))
        tab.value(f"{form(path)}.querySelector('textarea').value = {text}")
    tab.value(f"{form(path)}.querySelector('pre').textContent = ''")
    tab.value(f"{form(path)}.querySelector('button').click()")
    shown = f"{form(path)}.querySelector('pre').textContent"
    tab.wait(shown)
    status, _, reply = tab.value(shown).partition("\n")
    return int(status), json.loads(reply)


@pytest.mark.parametrize("token", [None, "s3cret"])
def test_the_forms_open_a_session_and_search_in_it(token, tmp_path):
    with serving(token=token) as server, running_tab(BROWSER) as tab:
        user = f"me:{token}@" if token else ""
        tab.size(420 if token else 1000)
        tab.ask("Page.navigate", url=f"http://{user}127.0.0.1:{server.port}/")
        tab.wait("document.forms.length > 10")
        if token:
            assert tried(tab, "/status")[0] == 401
            tab.value(f"document.getElementById('token').value = '{token}'")
        status, opened = tried(tab, "/open")
        assert status == 200
        call = json.loads(tab.value(f"{form('/call')}.querySelector('textarea').value"))
        assert call["session"] == opened["session"]
        call["arguments"] = {"reason": "r", "query": "<b>mill"}
        status, reply = tried(tab, "/call", call)
        assert status == 200 and "Grenholm" in reply["text"]
        assert tab.value("document.querySelectorAll('b').length") == 0
        assert tab.value("document.documentElement.scrollWidth <= innerWidth")
        assert [url for url in tab.requests if f":{server.port}/" not in url] == []
        assert [line for line in tab.problems if "favicon" not in line and "401" not in line] == []
        tab.picture(tmp_path / "page.png")
