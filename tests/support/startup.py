"""Compiled kernels that workers share: of several processes one compiles a kernel, and the others
wait for its file."""

import fcntl
import os
from contextlib import contextmanager
from pathlib import Path

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
