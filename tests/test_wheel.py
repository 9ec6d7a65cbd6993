"""The wheel: it holds `soundingline` alone and works next to packages with our folders' names.

`openai-agents` installs a top-level package `agents`. A stand-in with that name serves here; the
peers' suite installs the real one.
"""

import os
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
from soundingline.toolkit.optional import install_command
advice = install_command("rerank")
assert advice == f"pip install '{sys.argv[2]}[rerank]'", advice
"""
BUILD_SDIST = "import sys; from setuptools.build_meta import build_sdist as b; b(sys.argv[1])"

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
    for file in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / file, ours)
    other = tmp_path_factory.mktemp("other")
    (other / "pyproject.toml").write_text(STAND_IN)
    (other / "agents").mkdir()
    (other / "agents" / "__init__.py").write_text("class Agent: ...\n")
    sdist = tmp_path_factory.mktemp("sdist")
    command = [sys.executable, "-c", BUILD_SDIST, str(sdist)]
    subprocess.run(command, check=True, capture_output=True, cwd=ours)
    return {
        "sdist": next(sdist.glob("*.tar.gz")),
        "ours": build(ours, tmp_path_factory.mktemp("ours")),
        "openai-agents": build(other, tmp_path_factory.mktemp("theirs")),
    }


def contents(wheel):
    with zipfile.ZipFile(wheel) as files:
        return {name: files.read(name) for name in files.namelist()}


def test_the_wheel_holds_one_top_level_package(wheels):
    names = contents(wheels["ours"])
    tops = {name.partition("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == {"soundingline"}
    assert "soundingline/conf/config.yaml" in names
    assert "soundingline/__init__.py" not in names
    tracked = ["git", "ls-files", "-z", *FOLDERS]
    files = subprocess.run(tracked, check=True, capture_output=True, text=True, cwd=ROOT).stdout
    assert {f"soundingline/{file}" for file in files.split("\0") if file} <= set(names)


def test_the_sdist_builds_the_same_wheel(wheels, tmp_path):
    assert contents(build(wheels["sdist"], tmp_path)) == contents(wheels["ours"])


def test_an_installed_wheel_runs_an_experiment(wheels, tmp_path):
    site, home = tmp_path / "site", tmp_path / "home"
    home.mkdir()
    target = ["install", "--no-deps", "--target", str(site), str(wheels["ours"])]
    subprocess.run([*PIP, *target], check=True, capture_output=True)
    demo = ["experiment=ablation/tuned_bm25_agent", "scale=laptop", "name=demo"]
    sizes = {"documents": 64, "questions": 2, "hops": 1, "median_words": 60, "p90_words": 200}
    few = [
        *(f"benchmark.{key}={size}" for key, size in sizes.items()),
        "hydra.sweeper.laptop.changes=['tool=top_k']",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "soundingline.experiments", "run", *demo, *few],
        capture_output=True,
        text=True,
        cwd=home,
        env={**os.environ, "PYTHONPATH": str(site), "NUMBA_DISABLE_JIT": "1"},  # no compiling
    )
    assert done.returncode == 0, done.stderr
    assert (home / "runs/demo/report.html").exists()
    assert len(list(home.glob("runs/demo/*/metrics.json"))) == 2


@pytest.mark.parametrize("order", [("ours", "openai-agents"), ("openai-agents", "ours")])
def test_the_wheel_works_next_to_a_package_named_agents(wheels, order, tmp_path):
    for name in order:
        target = ["install", "--no-deps", "--target", str(tmp_path), str(wheels[name])]
        subprocess.run([*PIP, *target], check=True, capture_output=True)
    done = subprocess.run(
        [sys.executable, "-c", USE_BOTH, str(tmp_path), str(wheels["ours"])],
        capture_output=True,
        text=True,
        cwd="/",
    )
    assert done.returncode == 0, done.stderr
