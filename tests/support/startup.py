"""The start of a worker: bytecode of a new clone, and compiled kernels that workers share."""

from __future__ import annotations

import compileall
import contextlib
import fcntl
import importlib.util
import os
import sys
from contextlib import contextmanager
from pathlib import Path


def compile_share(places, worker, workers):
    """Leave bytecode beside one in `workers` of the sources that `places` are or hold: that of
    number `worker`, and so on."""
    if sys.dont_write_bytecode:
        return
    sources = {
        source
        for place in places
        for source in ([place] if place.is_file() else place.rglob("*.py"))
    }
    # Large ones first, so that shares take equally long.
    by_size = sorted(sources, key=lambda source: (-source.stat().st_size, source))
    for source in by_size[worker::workers]:
        if source.name.startswith("test_") or source.name == "conftest.py":
            _rewrite_assertions(source)
        else:
            compileall.compile_file(source, quiet=2)


def _rewrite_assertions(source):
    """As pytest does it before it executes a module. Without builtins, this one stops at its first
    import."""
    specs = (finder.find_spec(source.stem, [str(source.parent)]) for finder in sys.meta_path)
    spec = next(filter(None, specs))
    module = importlib.util.module_from_spec(spec)
    vars(module)["__builtins__"] = {}
    with contextlib.suppress(ImportError, SyntaxError):  # pytest tells of the latter
        spec.loader.exec_module(module)


_FOLDER = "SOUNDINGLINE_TEST_KERNELS"
_held = set()


def share(folder):
    """Processes that start from here on, and `install` this, wait for each other by files there."""
    folder.mkdir()
    os.environ[_FOLDER] = str(folder)


def install():
    from numba.core.compiler_lock import global_compiler_lock
    from numba.core.dispatcher import Dispatcher

    compile_one = Dispatcher.compile

    def compile_alone(dispatcher, signature):
        # Threads of this process first, as numba has them wait: in the other order each could hold
        # what the other needs. Of several kernels the one that calls comes before the one called.
        with global_compiler_lock, _alone(dispatcher.py_func):
            return compile_one(dispatcher, signature)

    Dispatcher.compile = compile_alone


@contextmanager
def _alone(function):
    path = Path(os.environ[_FOLDER], f"{function.__module__}.{function.__qualname__}")
    if path in _held or not path.parent.is_dir():  # it calls itself; or the suite has ended
        yield
        return
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        _held.add(path)
        try:
            yield
        finally:
            _held.remove(path)
            fcntl.flock(file, fcntl.LOCK_UN)  # also of processes that were forked meanwhile
