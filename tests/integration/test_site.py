"""The site of `make docs`: pages by group and by package, examples as code, and its search."""

from __future__ import annotations

import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from subprocess import run
from threading import Thread

import pytest
from bs4 import BeautifulSoup
from support.documents import CONF, ROOT
from support.needs import needs_real
from test_chromium import BROWSER, running_tab

MISSING = [name for name in ("mkdocs", "mkdocstrings", "jupytext") if find_spec(name) is None]
pytestmark = needs_real("peers", missing=", ".join(MISSING))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir"]
    run([*command, folder], cwd=ROOT, check=True)
    return folder


def soup(path):
    return BeautifulSoup((path / "index.html").read_text(encoding="utf-8"), "html.parser")


def test_each_group_of_options_and_each_package_has_a_page(site):
    groups = {path.name for path in CONF.iterdir() if path.is_dir() and path.name[0] != "_"}
    pages = {path.parent.name for path in site.glob("options/*/index.html")}
    assert pages == groups and {"agent", "retriever"} <= pages
    links = {link["href"] for link in soup(site / "options").select("article a[href]")}
    assert {f"{group}/" for group in groups} <= links
    titles = {title.text.strip("¶ ") for title in soup(site / "options" / "unit").select("h2")}
    assert titles == {f"unit={path.stem}" for path in CONF.glob("unit/*.yaml")}
    packages = {path.parent.name for path in site.glob("reference/*/index.html")}
    assert packages == {"agents", "experiments", "pipelines", "toolkit.errors"}


def test_the_examples_of_docstrings_are_code(site):
    page = soup(site / "reference" / "pipelines")
    assert not page.select("blockquote blockquote")
    prompts = page.select("pre .gp")
    assert len(prompts) > 20 and {one.text.strip() for one in prompts} <= {">>>", "..."}


@pytest.mark.skipif(BROWSER is None, reason="Chromium is not installed")
def test_the_search_finds_significance(site):
    handler = partial(SimpleHTTPRequestHandler, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, running_tab(BROWSER) as tab:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/?q=significance"
        tab.ask("Page.navigate", url=url)
        found = "[...document.querySelectorAll('.md-search-result__item a')].map((a) => a.href)"
        tab.wait(f"{found}.length > 0")
        (link,) = (link for link in tab.value(found) if "#" in link)
        assert "/experiments/" in link and link.endswith("#statistical-significance")
        server.shutdown()
