"""The wheel: it holds `soundingline` alone and works next to packages with our folders' names.

`openai-agents` installs a top-level package `agents`. A stand-in with that name serves here; the
peers' suite installs the real one.
"""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("toolkit", "pipelines", "agents", "experiments", "conf")
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
STAND_IN = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "openai-agents"
version = "1"

[tool.setuptools]
packages = ["agents"]
"""
USE_BOTH = """
import sys
sys.path.insert(0, sys.argv[1])
from agents import Agent
from soundingline.agents.base import Episode
from soundingline.pipelines import MaxP
import soundingline.experiments.config as settings
assert Agent.__module__ == "agents" and MaxP() == MaxP()
assert (settings.CONF / "config.yaml").is_file(), settings.CONF
for module in (sys.modules[Episode.__module__], settings):
    assert module.__file__.startswith(sys.argv[1]), module.__file__
"""

pytestmark = pytest.mark.slow


def build(source, folder):
    command = [*PIP, "wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), str(source)]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """Our wheel, and one of a package that has a folder `agents` of its own."""
    # setuptools leaves a folder `build` in the tree that it builds.
    ours = tmp_path_factory.mktemp("project")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, ours / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, ours)
    other = tmp_path_factory.mktemp("other")
    (other / "pyproject.toml").write_text(STAND_IN)
    (other / "agents").mkdir()
    (other / "agents" / "__init__.py").write_text("class Agent: ...\n")
    return {
        "ours": build(ours, tmp_path_factory.mktemp("ours")),
        "openai-agents": build(other, tmp_path_factory.mktemp("theirs")),
    }


def test_the_wheel_holds_one_top_level_package(wheels):
    names = zipfile.ZipFile(wheels["ours"]).namelist()
    tops = {name.partition("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == {"soundingline"}
    assert "soundingline/conf/config.yaml" in names
    assert "soundingline/__init__.py" not in names


@pytest.mark.parametrize("order", [("ours", "openai-agents"), ("openai-agents", "ours")])
def test_the_wheel_works_next_to_a_package_named_agents(wheels, order, tmp_path):
    for name in order:
        target = ["install", "--no-deps", "--target", str(tmp_path), str(wheels[name])]
        subprocess.run([*PIP, *target], check=True, capture_output=True)
    done = subprocess.run(
        [sys.executable, "-c", USE_BOTH, str(tmp_path)], capture_output=True, text=True, cwd="/"
    )
    assert done.returncode == 0, done.stderr
