"""The direction of imports, held by reading every file, and importing without side effects."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from option_values import with_one_value

if sys.version_info >= (3, 11):
    import tomllib
else:  # comes with pytest
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]

# What each package may import of ours, itself included.
PACKAGES = {
    "toolkit": {"toolkit"},
    "pipelines": {"pipelines", "toolkit"},
    "agents": {"agents", "toolkit"},
    "experiments": {"experiments", "pipelines", "agents", "toolkit", "conf"},
}
# Rooms of toolkit by floor; a room may import itself and every lower floor.
GROUND = {
    "checksums",
    "console",
    "data",
    "errors",
    "files",
    "jit",
    "json_lines",
    "json_text",
    "locks",
    "obfuscation",
    "optional",
    "redaction",
    "tokens",
}
GROUND |= {"queries", "trajectory"}
FLOORS = {
    **dict.fromkeys(GROUND, 0),
    **dict.fromkeys(("benchmarks", "llm"), 1),
    "corpus": 2,
    "search": 3,
    "runs": 4,
    "evaluation": 5,
    **dict.fromkeys(("exchange", "report"), 6),
}
# Distributions that only these packages may import.
RESERVED = {
    "hydra": {"experiments"},
    "omegaconf": {"experiments"},
    "pyterrier": {"experiments", "pipelines"},
}


class Import(NamedTuple):
    """`module` imports `target` (the deepest dotted name that the statement can mean)."""

    module: str
    line: int
    target: str


def module_name(path, root):
    parts = ("soundingline", *path.relative_to(root).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def parts_of(name):
    """The parts of a dotted name of ours below the namespace; of others', all of them."""
    return name.removeprefix("soundingline.").split(".")


def read_sources(root):
    """Module name -> (source, whether it is a package's `__init__`), of the four packages."""
    return {
        module_name(path, root): (path.read_text(encoding="utf-8"), path.name == "__init__.py")
        for package in PACKAGES
        for path in sorted((root / package).rglob("*.py"))
    }


@cache
def imports_of(module, source, is_package):
    """Every import of a source, those inside functions and `import_module("...")` included."""
    return tuple(_each_import(module, source, is_package))


def _each_import(module, source, is_package):
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(module, node.lineno, alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(module, is_package, node)
            for alias in node.names:
                yield Import(module, node.lineno, f"{base}.{alias.name}")
        elif isinstance(node, ast.Call) and (name := _imported_by_call(node)):
            yield Import(module, node.lineno, name)


def _absolute(module, is_package, node):
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    parts = parts[: len(parts) - node.level + is_package]
    return ".".join([*parts, node.module] if node.module else parts)


def _imported_by_call(node):
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    argument = node.args[0] if node.args else None
    if name in ("import_module", "__import__") and isinstance(argument, ast.Constant):
        return str(argument.value)
    return ""


def check_packages(found):
    package, target = parts_of(found.module)[0], parts_of(found.target)[0]
    if target in {*PACKAGES, "conf"} and not found.target.startswith("soundingline."):
        return f"{found.target} is imported without the namespace soundingline"
    if target in {*PACKAGES, "conf"} and target not in PACKAGES[package]:
        return f"{package} must not import {target}"
    for reserved, allowed in RESERVED.items():
        if target.split("_")[0] == reserved and package not in allowed:
            return f"only {' and '.join(sorted(allowed))} may import {target}"
    return ""


def check_console(found):
    if (
        found.target.startswith("rich.console.Console")
        and found.module != "soundingline.toolkit.console"
    ):
        return (
            "only soundingline.toolkit.console may use Rich's console, which obeys what it prints"
        )
    return ""


def check_floors(found):
    here, there = parts_of(found.module), parts_of(found.target)
    if here[0] != "toolkit" or there[0] != "toolkit" or len(here) < 2 or len(there) < 2:
        return ""
    for room in (here[1], there[1]):
        if room not in FLOORS:
            return f"soundingline.toolkit.{room} has no floor"
    if here[1] == there[1] or (here[1] in GROUND and there[1] in GROUND):
        return ""
    if FLOORS[there[1]] >= FLOORS[here[1]]:
        return f"soundingline.toolkit.{here[1]} must not import soundingline.toolkit.{there[1]}"
    return ""


def violations(sources):
    """One line for each import against the rules, then one for each cycle of files."""
    wrong = []
    graph = {module: set() for module in sources}
    for module, (source, is_package) in sources.items():
        for found in imports_of(module, source, is_package):
            wrong += [
                f"{module}:{found.line} imports {found.target}: {reason}"
                for reason in (check_packages(found), check_console(found), check_floors(found))
                if reason
            ]
            if (target := resolve(found.target, sources)) and target != module:
                graph[module].add(target)
    return wrong + [f"cycle of files: {' -> '.join(cycle)}" for cycle in cycles(graph)]


def resolve(target, sources):
    """The file that a dotted name leads to: `a.b.f` is a name in `a.b` when no file is `a.b.f`."""
    if target in sources:
        return target
    head = target.rpartition(".")[0]
    return head if head in sources else ""


def cycles(graph):
    """For each module that reaches itself, one shortest way; each set of modules once."""
    ways = {}
    for start in sorted(graph):
        frontier, seen = [[start]], {start}
        while frontier:
            way = frontier.pop(0)
            if start in graph[way[-1]]:
                ways.setdefault(frozenset(way), [*way, start])
                break
            for following in sorted(graph[way[-1]] - seen):
                seen.add(following)
                frontier.append([*way, following])
    return list(ways.values())


def test_every_import_of_the_four_packages_follows_the_rules():
    assert violations(read_sources(ROOT)) == []


def test_the_checker_reads_the_files_of_all_four_packages():
    sources = read_sources(ROOT)
    assert {f"soundingline.{name}" for name in PACKAGES} <= set(sources)
    assert "soundingline.toolkit.data" in sources
    targets = {
        found.target
        for found in imports_of("x", sources["soundingline.toolkit.trajectory"][0], False)
    }
    assert "soundingline.toolkit.data.parents" in targets


BAD = {  # module below soundingline -> imports that break a rule
    "toolkit.search.tool": [
        "import soundingline.agents.keyword",  # a sibling
        "from pyterrier.model import add_ranks",
        "import pyterrier_pisa",  # a plugin of it
    ],
    "pipelines.stage": [
        "from soundingline.agents import keyword",
        "from soundingline.experiments.run import main",
        "from hydra.utils import instantiate",
    ],
    "agents.chat": [
        "from soundingline.pipelines.lexical.index import LexicalIndex",
        "import pyterrier as pt",
        "import omegaconf",
        "from agents.base import Episode",  # without the namespace
        "def f():\n    import soundingline.pipelines.lexical",
        "importlib.import_module('soundingline.pipelines.lexical')",
    ],
    "toolkit.corpus.store": [
        "from soundingline.toolkit.search import pages",  # upward
        "from ..search import pages",
    ],
    "toolkit.errors": ["from soundingline.toolkit.runs.run_folder import Folder"],
    "toolkit.benchmarks.beir": ["import soundingline.toolkit.llm.http"],  # a room of its floor
    "toolkit.cellar.wine": ["from soundingline.toolkit.errors import InputError"],  # no floor
    "toolkit.runs.run_folder": [
        "if TYPE_CHECKING:\n    from soundingline.toolkit.evaluation import funnel"
    ],
    "experiments.run": ["from rich.console import Console"],
}
GOOD = {
    "experiments.run": (
        "import hydra\nimport pyterrier\nimport soundingline.agents.keyword\n"
        "from soundingline.pipelines import lexical"
    ),
    "pipelines.stage": "import pyterrier as pt\nimport soundingline.toolkit.tokens",
    "toolkit.report.html": (
        "from soundingline.toolkit.evaluation import funnel\n"
        "from soundingline.toolkit.data import Hit"
    ),
    "toolkit.search.tool": (
        "import hydraulics, agentsmith\nfrom .pages import page\nfrom . import budget"
    ),
}


@pytest.mark.parametrize(("module", "source"), [(m, s) for m in BAD for s in BAD[m]])
def test_a_bad_import_is_found(module, source):
    assert len(violations({f"soundingline.{module}": (source, False)})) == 1


@pytest.mark.parametrize("module", GOOD)
def test_a_good_import_passes(module):
    assert violations({f"soundingline.{module}": (GOOD[module], False)}) == []


def test_two_files_that_import_each_other_are_found():
    sources = {
        "soundingline.agents.a": ("from soundingline.agents.b import f", False),
        "soundingline.agents.b": ("def f():\n    from soundingline.agents import a", False),
    }
    assert violations(sources) == [
        "cycle of files: soundingline.agents.a -> soundingline.agents.b -> soundingline.agents.a"
    ]


def test_a_longer_cycle_through_a_package_file_is_found_once():
    sources = {
        "soundingline.agents": ("from .a import f", True),
        "soundingline.agents.a": ("from .b import g", False),
        "soundingline.agents.b": ("from soundingline.agents import f", False),
    }
    assert violations(sources) == [
        "cycle of files: soundingline.agents -> soundingline.agents.a"
        " -> soundingline.agents.b -> soundingline.agents"
    ]


def test_files_that_share_a_third_are_no_cycle():
    sources = {
        "soundingline.agents.a": ("from soundingline.agents import b, c", False),
        "soundingline.agents.b": ("from soundingline.agents.c import f", False),
        "soundingline.agents.c": ("f = 1", False),
    }
    assert violations(sources) == []


def test_every_data_file_of_a_package_is_installed_with_it():
    """A clone has them all; only the globs of `package-data` bring them into a wheel."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    installed = {
        path
        for package, patterns in settings["setuptools"]["package-data"].items()
        for pattern in patterns
        for path in (ROOT / package.removeprefix("soundingline.").replace(".", "/")).glob(pattern)
    }
    files = {
        path
        for package in (*PACKAGES, "conf")
        for path in (ROOT / package).rglob("*.*")
        if path.suffix != ".py" and path.parent.name != "__pycache__"
    }
    assert files - installed == set()


def test_every_package_is_installed():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    packages = {
        ".".join(("soundingline", *path.parent.relative_to(ROOT).parts))
        for package in (*PACKAGES, "conf")
        for path in (ROOT / package).rglob("__init__.py")
    }
    plugins = {"soundingline.experiments.plugins"}  # under the name that Hydra demands
    assert set(settings["setuptools"]["packages"]) == packages - plugins | {
        "hydra_plugins.soundingline"
    }


def test_no_private_module_or_name_of_a_dependency_is_imported():
    private = {
        f"{found.module}: {found.target}"
        for module, (source, is_package) in read_sources(ROOT).items()
        for found in imports_of(module, source, is_package)
        if not found.target.startswith(("soundingline.", "__future__."))
        if any(part.startswith("_") for part in found.target.split("."))
    }
    assert not private


def test_a_real_collection_loads_no_generator():
    program = """
import sys
import soundingline.toolkit.benchmarks.beir
sys.exit("soundingline.toolkit.benchmarks.fictional" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0


IMPORT_ALL = """
import importlib, os, sys
before = set(os.listdir())
for name in sys.argv[1:]:
    importlib.import_module(name)
wrong = [f"made {entry} in the working folder" for entry in set(os.listdir()) - before]
if "jnius" in sys.modules:
    wrong.append("loaded the bridge to a JVM")
if "pyterrier" in sys.modules and sys.modules["pyterrier"].java.started():
    wrong.append("started a JVM")
wrong += [f"loaded {name}" for name in ("torch", "transformers", "spacy") if name in sys.modules]
sys.exit("; ".join(wrong) or 0)
"""


def import_all(names, root, folder):
    """Import the modules in a process of its own, in an empty working folder."""
    working, home = folder / "working", folder / "home"
    working.mkdir()
    home.mkdir()
    environment = {
        **os.environ,
        "PYTHONPATH": str(root),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": str(home),
    }
    return subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, *names],
        cwd=working,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_importing_every_module_has_no_side_effect(tmp_path):
    done = import_all(sorted(read_sources(ROOT)), ROOT, tmp_path)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


def test_a_quiet_module_passes(tmp_path):
    (tmp_path / "quiet.py").write_text("VALUE = 1")
    done = import_all(["quiet"], tmp_path, tmp_path)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


@pytest.mark.parametrize(
    "source",
    [
        "print('hello')",
        "import sys; print('hello', file=sys.stderr)",
        "open('left-behind', 'w').close()",
        "import sys, types; sys.modules['jnius'] = types.ModuleType('jnius')",
    ],
)
def test_a_side_effect_of_importing_is_found(source, tmp_path):
    (tmp_path / "noisy.py").write_text(source)
    done = import_all(["noisy"], tmp_path, tmp_path)
    assert (done.stdout, done.stderr, done.returncode) != ("", "", 0)


# Files and lines that each package may have. A larger one needs a reason: raise the bound together
# with the table in CONTRIBUTING.md.
SIZES = {
    "toolkit": (93, 27_050),
    "pipelines": (65, 17_830),
    "agents": (17, 4_100),
    "experiments": (44, 12_720),
}


@pytest.mark.parametrize("package", SIZES)
def test_a_package_keeps_to_its_size(package):
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / package).rglob("*.py")]
    files, lines = SIZES[package]
    assert len(texts) <= files
    assert sum(len(text.splitlines()) for text in texts) <= lines


def test_public_class_names_are_unique():
    places = {}
    for module, (source, _) in read_sources(ROOT).items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(module)
    assert not {name: where for name, where in places.items() if len(where) > 1}


# Commands and the functions that they call, entry points, and what each form of exchange has.
SHARED_NAMES = {"compare", "tune", "main", "read", "write"}


def test_public_function_names_are_unique():
    places = {}
    for module, (source, _) in read_sources(ROOT).items():
        for node in ast.parse(source).body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                places.setdefault(node.name, set()).add(module)
    assert {name for name, modules in places.items() if len(modules) > 1} == SHARED_NAMES


def test_few_options_have_one_value_everywhere():
    """`python tests/option_values.py` prints them; such an option should be a constant."""
    single, places, values = with_one_value()
    assert {"tool.depth", "agent.prompt"} <= set(values) - {*single, *places}  # have several
    assert len(single) <= 80, single


def importers_of(name):
    return {
        module.removeprefix("soundingline.")
        for module, (source, is_package) in read_sources(ROOT).items()
        if any(
            f"{each.target}.".startswith(f"{name}.")
            for each in imports_of(module, source, is_package)
        )
    }


def test_one_module_locks_files_and_few_know_that_texts_are_obfuscated():
    # The claims of cached replies are locks on single bytes, which `flock` does not have.
    assert importers_of("fcntl") == {"toolkit.locks", "pipelines.cache"}
    assert importers_of("soundingline.toolkit.obfuscation") == {
        *("toolkit.files", "toolkit.json_lines", "toolkit.trajectory", "pipelines.cache"),
        *("toolkit.llm.client", "toolkit.llm.local_servers"),  # the log of a server
        *("toolkit.benchmarks.browsecomp_plus", "toolkit.exchange.browsecomp_plus"),  # published
        *("experiments.exchange", "experiments.planning", "experiments.sweep"),
    }


def test_few_files_are_small_and_few_have_one_importer():
    """Entry points, packages and scripts apart, and classes that an option names."""
    sources = read_sources(ROOT)
    importers = {module: set() for module in sources}
    for module, (source, is_package) in sources.items():
        for each in imports_of(module, source, is_package):
            if (target := resolve(each.target, sources)) and target != module:
                importers[target].add(module)
    options = "".join(path.read_text("utf-8") for path in (ROOT / "conf").rglob("*.yaml"))
    commands = sources["soundingline.experiments.cli"][0]
    single = [
        module
        for module, users in importers.items()
        if len(users) == 1
        and not sources[next(iter(users))][1]
        and f"{module}." not in options
        and f'"{parts_of(module)[-1]}:' not in commands
        and module != "soundingline.experiments.cli"  # the program of pyproject.toml
    ]
    assert len(single) <= 17, single
    small = [
        module
        for module, (source, is_package) in sources.items()
        if not is_package and len(source.splitlines()) < 60
    ]
    assert len(small) <= 4, small


# Forms of a test by which an assertion is skipped, or true whatever the product does.


def nodes_of(test):
    """The nodes of a test without those of the functions that it defines."""
    for node in ast.iter_child_nodes(test):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            yield node
            yield from nodes_of(node)


def forms_that_cannot_fail(source):
    """One line for each `return`, each `if` without `else` that holds an assertion, and each
    `.get` with a default in an assertion, of each test."""
    tests = (ast.FunctionDef, ast.AsyncFunctionDef)
    for test in ast.walk(ast.parse(source)):
        if not isinstance(test, tests) or not test.name.startswith("test_"):
            continue
        for node in nodes_of(test):
            if isinstance(node, ast.Return):
                yield f"{node.lineno}: {test.name} returns before its end"
            elif isinstance(node, ast.If) and not node.orelse:
                if any(map(asserts, ast.walk(node))):
                    yield f"{node.lineno}: {test.name} asserts inside `if` without `else`"
            elif isinstance(node, ast.Assert) and any(map(is_get_with_default, ast.walk(node))):
                yield f"{node.lineno}: {test.name} asserts what `.get` gives by default"


def asserts(node):
    name = getattr(node.func, "attr", getattr(node.func, "id", "")) if is_call(node) else ""
    return isinstance(node, ast.Assert) or name in ("refused", "raises") or name[:7] == "assert_"


def is_call(node):
    return isinstance(node, ast.Call)


def is_get_with_default(node):
    return is_call(node) and getattr(node.func, "attr", "") == "get" and len(node.args) == 2


def test_tests_have_no_form_that_cannot_fail():
    paths = sorted((ROOT / "tests").rglob("test_*.py"))
    forms = {path: [*forms_that_cannot_fail(path.read_text(encoding="utf-8"))] for path in paths}
    assert {path: lines for path, lines in forms.items() if lines} == {}


@pytest.mark.parametrize(
    ("body", "forms"),
    [
        ("assert f(x) == 1", 0),
        ("if x:\n  assert f()\nelse:\n  assert g()", 0),
        ("if x:\n  y = 1\nassert f(y)", 0),
        ("def inner():\n  return 1\nassert f(inner) and f.get('x') == 1", 0),
        ("if x:\n  return\nassert f()", 1),
        ("for each in x:\n  if each:\n    assert f(each)", 1),
        ("if x:\n  refused('depth', f, x)", 1),
        ("assert counts.get('x', 1) == 1", 1),
        ("assert [counts.get(each, 0) for each in x] == [0]", 1),
    ],
)
def test_a_form_that_cannot_fail_is_found(body, forms):
    source = "def test_it(x):\n" + "".join(f"  {line}\n" for line in body.split("\n"))
    assert len(list(forms_that_cannot_fail(source))) == forms
    assert list(forms_that_cannot_fail(source.replace("test_it", "helper"))) == []


def disguises(source):
    """Forms that hide which code runs: an intercepted attribute, a method's identity as a
    condition, an attribute that is read for its side effect, a class's subclasses as a list."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            names = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
            yield from names & {"__getattr__", "__getattribute__", "__setattr__", "__class__"}
        elif isinstance(node, ast.Attribute) and node.attr == "__subclasses__":
            yield node.attr
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.Is, ast.IsNot)):
            names = [getattr(side, "attr", side) for side in (node.left, node.comparators[0])]
            if names[0] == names[1]:
                yield ast.unparse(node)
        elif isinstance(node, ast.Assign):
            if ast.unparse(node.targets[0]) == "_":
                yield ast.unparse(node)
        elif isinstance(node, ast.Expr) and isinstance(node.value, (ast.Attribute, ast.Subscript)):
            yield ast.unparse(node)


def test_no_form_hides_which_code_runs():
    hidden = {module: list(disguises(source)) for module, (source, _) in read_sources(ROOT).items()}
    assert not {module: forms for module, forms in hidden.items() if forms}


@pytest.mark.parametrize(
    "source",
    [
        "class A:\n    def __getattr__(self, name): return getattr(self.other, name)",
        "if type(self).windows is not Scorer.windows: pass",
        "if type(self).windows is Scorer.windows: pass",
        "_ = prepared.index",
        "prepared.index",
        "kinds = Base.__subclasses__()",
    ],
)
def test_a_form_that_hides_which_code_runs_is_found(source):
    assert len(list(disguises(source))) == 1
