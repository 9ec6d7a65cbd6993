"""`python tests/bench NAME [--small] [--write]`: speed and memory, against other libraries.

`python tests/bench --list` prints the names; `python tests/bench NAME --help` the options of one.
"""

import sys
from importlib import import_module
from pathlib import Path

# A spawned process imports the modules of the benchmarks by name too.
sys.path[:0] = map(str, Path(__file__).resolve().parents[:2])
MODULES = {
    "lexical": "lexical building tuning scale opensearch terrier frame",
    "learned": "encode shards splade vectors rerank",
    "late": "late",
    "gpu": "gpu",
    "chat": "chat",
    "agents": "agent enrich librarians serve",
    "tools": "tool replay evidence startup world comparison",
}
NAMES = {name: module for module, names in MODULES.items() for name in names.split()}

if __name__ == "__main__":
    name = sys.argv[1] if sys.argv[1:] else "--list"
    if name not in NAMES:
        sys.stdout.write("\n".join([__doc__, *NAMES, ""]))
        sys.exit(0 if name == "--list" else 2)
    from harness import run

    from soundingline.toolkit.errors import InputError

    import_module(NAMES[name])
    try:
        run(name, sys.argv[2:])
    except (InputError, ModuleNotFoundError) as error:  # of a package of the extra `bench`
        sys.exit(f"bench: {error}")
