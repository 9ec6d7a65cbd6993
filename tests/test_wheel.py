"""The wheel: it holds `soundingline` alone and works next to packages with our folders' names.

`openai-agents` installs a top-level package `agents`. A stand-in with that name serves here; the
peers' suite installs the real one.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from functools import partial
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LICENCES = ("LICENSE.CC-BY-4.0.txt", "LICENSE.CC-BY-SA-3.0.txt")
FOLDERS = ("toolkit", "pipelines", "agents", "experiments", "conf")
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
USE_BOTH = """
import sys
sys.path.insert(0, sys.argv[1])
from agents import Agent
from soundingline.agents.base import Episode
from soundingline.pipelines import MaxP
import soundingline.experiments.config as settings
assert Agent.__module__ == "agents" and repr(MaxP(depth=7)) == "MaxP(depth=7)"
assert (settings.CONF / "config.yaml").is_file(), settings.CONF
for module in (sys.modules[Episode.__module__], settings):
    assert module.__file__.startswith(sys.argv[1]), module.__file__
from soundingline.toolkit.optional import install_command
advice = install_command("rerank")
assert advice == f"pip install '{sys.argv[2]}[rerank]'", advice
"""
# By the hooks that pip calls.
BUILD = (
    "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"
)

pytestmark = pytest.mark.slow


def build(kind, source, folder):
    """The wheel or the sdist of a source tree, in this folder."""
    command = [sys.executable, "-c", BUILD, f"build_{kind}", str(folder)]
    subprocess.run(command, check=True, capture_output=True, cwd=source)
    (built,) = folder.iterdir()
    return built


def install(wheel, site):
    target = ["install", "--no-deps", "--target", str(site), str(wheel)]
    subprocess.run([*PIP, *target], check=True, capture_output=True)


def build_both(place):
    # setuptools leaves a folder `build` in the tree that it builds.
    project = place / "project"
    for folder in FOLDERS:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, project / folder, ignore=ignored)
    for file in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / file, project)
    for kind in ("sdist", "wheel"):
        (place / kind).mkdir()
        build(kind, project, place / kind)


@pytest.fixture(scope="module")
def built(once):
    """The sdist and the wheel of this tree."""
    place = once("built", build_both)
    return {kind: next((place / kind).iterdir()) for kind in ("sdist", "wheel")}


@pytest.fixture(scope="module")
def site(built, once):
    """A folder into which pip has installed the wheel."""
    return once("site", partial(install, built["wheel"]))


def contents(wheel):
    with zipfile.ZipFile(wheel) as files:
        return {name: files.read(name) for name in files.namelist()}


def test_the_wheel_holds_one_package_and_a_plugin_of_hydra(built):
    names = contents(built["wheel"])
    tops = {name.partition("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == {"soundingline", "hydra_plugins"}
    assert "hydra_plugins/soundingline/__init__.py" in names
    assert "hydra_plugins/__init__.py" not in names  # a namespace that all plugins share
    assert "soundingline/conf/config.yaml" in names
    assert "soundingline/__init__.py" not in names
    tracked = ["git", "ls-files", "-z", *FOLDERS]
    files = subprocess.run(tracked, check=True, capture_output=True, text=True, cwd=ROOT).stdout
    files = files.replace("experiments/plugins/__init__.py\0", "")
    assert {f"soundingline/{file}" for file in files.split("\0") if file} <= set(names)


def test_the_wheel_states_the_licences_of_the_code_and_of_the_texts(built):
    files = contents(built["wheel"])
    (described,) = (name for name in files if name.endswith(".dist-info/METADATA"))
    metadata = message_from_bytes(files[described])
    assert metadata["License-Expression"] == "Apache-2.0 AND CC-BY-SA-3.0 AND CC-BY-4.0"
    texts = "toolkit/benchmarks/wikidemo"
    named = [f"{texts}/{name}" for name in ("ATTRIBUTION.txt", *LICENCES)]
    assert sorted(metadata.get_all("License-File")) == sorted(["LICENSE", *named])
    licences = described.replace("METADATA", "licenses")
    for name in named:  # among the licences, and next to the texts
        assert files[f"{licences}/{name}"] == files[f"soundingline/{name}"]


def test_the_sdist_builds_the_same_wheel(built, tmp_path):
    with tarfile.open(built["sdist"]) as archive:
        archive.extractall(tmp_path / "source")
    (source,) = (tmp_path / "source").iterdir()
    (tmp_path / "wheel").mkdir()
    again = build("wheel", source, tmp_path / "wheel")
    assert contents(again) == contents(built["wheel"])


def test_an_installed_wheel_runs_an_experiment(site, tmp_path):
    demo = ["experiment=demo", "benchmark.limit=2", "hydra.sweeper.changes=['tool=top_k']"]
    done = subprocess.run(
        [sys.executable, "-m", "soundingline.experiments", "run", *demo],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(site), "NUMBA_DISABLE_JIT": "1"},  # no compiling
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs/demo/report.html").exists()
    assert len(list(tmp_path.glob("runs/demo/*/metrics.json"))) == 2


@pytest.mark.parametrize("first", [True, False])
def test_the_wheel_works_next_to_a_package_named_agents(built, site, first, tmp_path):
    """Installed first, or into a folder that has the other package."""
    both = tmp_path / "both"
    if first:
        shutil.copytree(site, both)
    (both / "agents").mkdir(parents=True)
    (both / "agents" / "__init__.py").write_text("class Agent: ...\n")
    if not first:
        install(built["wheel"], both)
    done = subprocess.run(
        [sys.executable, "-c", USE_BOTH, str(both), str(built["wheel"])],
        capture_output=True,
        text=True,
        cwd="/",
    )
    assert done.returncode == 0, done.stderr
