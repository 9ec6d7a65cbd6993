"""`python tests/bench NAME [--small] [--write]`: speed and memory, against other libraries.

`python tests/bench --list` prints the names; `python tests/bench NAME --help` the options of one.
"""

import sys
from importlib import import_module
from pathlib import Path

# A spawned process imports the modules of the benchmarks by name too.
sys.path.insert(0, str(Path(__file__).resolve().parent))
MODULES = {
    "lexical": ("lexical", "building", "tuning"),
    "scale": ("scale",),
    "learned": ("encode", "shards", "splade", "vectors"),
    "late": ("late",),
    "reranking": ("rerank",),
    "agents": ("agent", "enrich", "librarians"),
    "serving": ("serve",),
    "world": ("world",),
    "tools": ("tool", "replay", "evidence", "startup"),
}


def main(arguments):
    names = {name: module for module, names in MODULES.items() for name in names}
    if not arguments or arguments[0] in ("-h", "--help", "--list"):
        sys.stdout.write("\n".join([__doc__, *names, ""]))
        return 0
    if arguments[0] not in names:
        sys.stderr.write(f"bench: no benchmark {arguments[0]}. Valid: {', '.join(names)}.\n")
        return 2
    from harness import run

    from soundingline.toolkit.errors import InputError

    import_module(names[arguments[0]])
    try:
        return run(arguments[0], arguments[1:])
    except InputError as error:
        sys.stderr.write(f"bench: {error}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
