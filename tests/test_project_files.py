"""Files around the code: documentation, workflow, citation, forms, and what may be absent."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from support import needs as required
from support.needs import COLLECTIONS, collections, needs

ROOT = Path(__file__).resolve().parents[1]
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml"))
SCHEMAS = {
    "vendor.citation-file-format": [ROOT / "CITATION.cff"],
    "vendor.github-workflows": sorted((ROOT / ".github" / "workflows").glob("*.yml")),
    "vendor.github-issue-config": [ROOT / ".github" / "ISSUE_TEMPLATE" / "config.yml"],
    "vendor.github-issue-forms": FORMS,
}
PACKAGES = ("agents", "conf", "experiments", "pipelines", "toolkit", "tests")
LINK = re.compile(r"\]\(([\w./-]+)(?:#[\w-]*)?\)")
PATH = re.compile(r"\bdocs/[\w-]+\.\w+")
TABLES = re.compile(r"<!-- bench:.*?<!-- /bench:[\w-]+ -->", re.DOTALL)  # of tests/bench
FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
PAGES = [ROOT / "AGENTS.md", ROOT / "CONTRIBUTING.md", ROOT / "README.md"]
PAGES += sorted((ROOT / "skills").rglob("*.md"))


@pytest.mark.slow
@pytest.mark.parametrize("schema", SCHEMAS)
def test_files_have_the_form_that_their_readers_expect(schema):
    assert SCHEMAS[schema]
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema]
    done = subprocess.run([*check, *SCHEMAS[schema]], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_workflow_runs_make_on_every_supported_python():
    text = (ROOT / ".github" / "workflows" / "tests.yml").read_text(encoding="utf-8")
    job = yaml.safe_load(text)["jobs"]["tests"]
    supported = re.search(r'requires-python = ">=([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    assert job["strategy"]["matrix"]["python"][0] == supported[1]
    commands = [step["run"] for step in job["steps"] if "run" in step]
    assert commands == ["make test", "make check"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_target_of_make_that_a_page_names_exists(page):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE)
    assert named or page.name == "SKILL.md"
    assert set(named) <= targets


@pytest.mark.parametrize("page", [*PAGES, *sorted((ROOT / "docs").glob("*.md"))], ids=str)
def test_every_file_of_the_tests_that_a_page_names_exists(page):
    for named in re.findall(r"\btests/[\w/]+\.\w+", page.read_text(encoding="utf-8")):
        assert (ROOT / named).is_file(), named


def test_a_skill_has_a_name_and_a_description():
    pages = list((ROOT / "skills").rglob("SKILL.md"))
    assert pages
    for page in pages:
        head = yaml.safe_load(page.read_text(encoding="utf-8").split("---")[1])
        assert head["name"] == page.parent.name
        assert head["description"]


def test_hooks_of_commits_call_installed_programs():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    makefile = (ROOT / "Makefile").read_text()
    for hook in hooks:
        assert hook["id"].split("-")[0] in makefile


def linked(path):
    """The files that a text names: as paths in docs/, and a page also as links."""
    text = path.read_text(encoding="utf-8")
    yield from (ROOT / name for name in PATH.findall(text))
    if path.suffix == ".md":
        yield from ((path.parent / name).resolve() for name in LINK.findall(text))


def test_every_page_that_a_text_names_exists():
    texts = [ROOT / "Makefile", *ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
    for package in PACKAGES:
        for kind in ("py", "yaml", "sh"):
            texts += (ROOT / package).rglob(f"*.{kind}")
    missing = [f"{path}: {page}" for path in texts for page in linked(path) if not page.exists()]
    assert not missing


def test_the_readme_maps_all_pages():
    assert set((ROOT / "docs").glob("*.md")) == {
        page for page in linked(ROOT / "README.md") if page.suffix == ".md"
    }


def test_pages_are_few_and_their_lines_fit_a_screen():
    pages = list((ROOT / "docs").glob("*.md"))
    assert len(pages) <= 17
    texts = {page.name: TABLES.sub("", page.read_text(encoding="utf-8")) for page in pages}
    tokens = [word for name, text in texts.items() if name != "results.md" for word in text.split()]
    # A bar of a table is not a word.
    assert sum(any(map(str.isalnum, token)) for token in tokens) <= 18_700
    for name, text in texts.items():
        lines = FENCE.sub("", text).splitlines()
        wide = [line for line in lines if len(line) > 115 and not line.startswith("|")]
        assert not wide, name


# What is absent on a machine skips the tests that need it, unless everything must be there.


@pytest.mark.parametrize(
    ("everything", "outcome"), [(False, pytest.skip.Exception), (True, pytest.fail.Exception)]
)
def test_absent_collections_are_told_with_where_they_come_from(
    tmp_path, monkeypatch, everything, outcome
):
    monkeypatch.setenv("CI", "true")  # which every public service sets
    monkeypatch.setattr(required, "REQUIRED", everything)
    with pytest.raises(outcome, match=r"cacm, .* not below .*docs/data\.md") as caught:
        collections(tmp_path / "nowhere")
    assert ("SOUNDINGLINE_REQUIRE_ALL=1" in str(caught.value)) == everything
    for name in COLLECTIONS[1:]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "corpus.jsonl").touch()
    with pytest.raises(outcome, match=f"^{COLLECTIONS[0]} not below"):
        collections(tmp_path)
    (tmp_path / COLLECTIONS[0]).mkdir()
    (tmp_path / COLLECTIONS[0] / "corpus.jsonl").touch()
    assert collections(tmp_path) == tmp_path


def test_an_absent_package_skips_unless_everything_must_be_there(monkeypatch):
    for everything, skips in ((False, True), (True, False)):
        monkeypatch.setattr(required, "REQUIRED", everything)
        mark = needs(("json", "no_such_package"), "llm").mark
        assert mark.args == (skips,)
        assert mark.kwargs["reason"] == "not installed: no_such_package (pip install -e '.[llm]')"


def test_the_projects_own_gate_asks_for_everything():
    assert "SOUNDINGLINE_REQUIRE_ALL=1" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    # The gate installs it itself.
    assert "make anserini" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


# Words that a reader must look up, and turns of phrase that a plainer one replaces.
AVOIDED = {
    r"agent_prints|askings|talk|retreat|cramped|used_up|in_time|turnstile|dearest|unmetered",
    r"voice|pull|ballots|free_aside|MadeOnce|busy_tokens|telling words|sound files",
    r"places? in flight|likewise|lacks?|behind",
    r"(?<!here )(?:is|are|was|were) no(?! longer| more)",
}
AVOIDED_WORDS = re.compile(rf"(?<![\w.])(?:{'|'.join(sorted(AVOIDED))})(?![\w-])")


def avoided(text):
    return AVOIDED_WORDS.findall(" ".join(text.split()))


def test_names_and_sentences_have_plain_words():
    texts = [*PAGES, ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")]
    texts += (ROOT / "conf").rglob("*.yaml")
    for package in ("agents", "experiments", "pipelines", "toolkit"):
        texts += (ROOT / package).rglob("*.py")
    words = {
        str(path.relative_to(ROOT)): avoided(path.read_text(encoding="utf-8")) for path in texts
    }
    assert not {path: each for path, each in words.items() if each}


@pytest.mark.parametrize(
    "text",
    [
        "def f(talk):",
        "the index lacks a file",
        "This is\nno option.",
        "behind the last",
        "# likewise",
    ],
)
def test_a_word_to_avoid_is_found(text):
    assert avoided(text)


@pytest.mark.parametrize(
    "text", ["there is no file", "It is no longer open.", "title_lacks", "pulled"]
)
def test_a_plain_sentence_passes(text):
    assert not avoided(text)
