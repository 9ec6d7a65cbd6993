"""Each worker of the suite compiles its share of the sources, instead of each all of them.

A fresh clone has no bytecode. Workers start together and import the same modules in the same order,
so that each would compile every module and rewrite the assertions of every test.
"""

from __future__ import annotations

import compileall
import contextlib
import importlib.util
import sys


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
