"""Files around the code: the workflow, the citation, forms of issues, pages for contributors."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml"))
SCHEMAS = {
    "vendor.citation-file-format": [ROOT / "CITATION.cff"],
    "vendor.github-workflows": sorted((ROOT / ".github" / "workflows").glob("*.yml")),
    "vendor.github-issue-config": [ROOT / ".github" / "ISSUE_TEMPLATE" / "config.yml"],
    "vendor.github-issue-forms": FORMS,
}
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


def test_a_skill_has_a_name_and_a_description():
    for page in (ROOT / "skills").rglob("SKILL.md"):
        head = yaml.safe_load(page.read_text(encoding="utf-8").split("---")[1])
        assert head["name"] == page.parent.name
        assert head["description"]


def test_hooks_of_commits_call_installed_programs():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    makefile = (ROOT / "Makefile").read_text()
    for hook in hooks:
        assert hook["id"].split("-")[0] in makefile
