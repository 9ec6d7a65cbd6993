"""No document mentions an override that does not compose; nothing is run, built or downloaded.

Each command is composed by its own entry point (`--cfg=job`). A list of options is a sweep, of
which each value is composed. Overrides that stand alone are composed by `soundingline run`, with
the option that has the setting where they name none.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from support.commands import run_entry
from support.documents import (
    CONF,
    FLAGS,
    GROUPS,
    TAKES_PATHS,
    documents,
    mentions,
    named_files,
)

from soundingline.experiments.cli import COMMANDS
from soundingline.experiments.serve.sessions import ServerOptions

MENTIONS = [mention for path in documents() for mention in mentions(path)]
# What documents name in the form of overrides and is none: arguments of Python functions, and an
# option of mounts.
NO_OVERRIDES = {"lengths", "query_weighted", "local_lock", "n", "offset"}
NO_OVERRIDES |= {"canary_env", "team", "description"}  # flags of export and import
NO_OVERRIDES |= {"verbose"}  # an argument in Python
PAGES = [path for path in documents() if path.suffix == ".md"]
OPTIONS = {
    f"{group}={path.relative_to(CONF / group).with_suffix('')}": path.read_text(encoding="utf-8")
    for group in GROUPS
    for path in sorted((CONF / group).rglob("*.yaml"))
}
SWEPT = ("run", "rank", "index", "tune")  # Hydra's own command lines
SERVER = {field.name for field in dataclasses.fields(ServerOptions)}
SETTINGS = {name for text in OPTIONS.values() for name in re.findall(r"^ *(\w+):", text, re.M)}


@pytest.fixture(scope="module", autouse=True)
def working(tmp_path_factory):
    """A folder that holds the files which documents give by name."""
    folder = tmp_path_factory.mktemp("documented")
    for path in documents():
        for name, content in named_files(path.read_text(encoding="utf-8")).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(content, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield


@pytest.mark.parametrize("mention", MENTIONS, ids=lambda mention: mention.source)
def test_what_a_document_mentions_composes(mention):
    complaint = wrong(mention)
    assert not complaint, f"{mention.source}: {' '.join(mention.arguments)}\n{complaint}"


def wrong(mention):
    """What is wrong with a mention; empty where nothing is."""
    if mention.command:
        return wrong_command(mention)
    keys = [override.partition("=")[0].lstrip("+") for override in mention.overrides]
    if all(re.split("[.@/]", key)[0] in roots() for key in keys):
        return wrong_alone(mention)
    # A setting without its group, or a variable of the environment.
    known = SETTINGS | NO_OVERRIDES | SERVER
    unknown = [key for key in keys if key not in known and not key.isupper()]
    if not unknown:
        return ""
    return f"no group or setting is called {', '.join(unknown)} (no override? See NO_OVERRIDES)"


@cache
def roots():
    """Names that an override may begin with: those of the composed configuration."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        assert run_entry("run", "--cfg=job") == 0
    return frozenset({*re.findall(r"^(\w+):", output.getvalue(), re.M), "experiment", "hydra"})


def wrong_command(mention):
    if mention.command not in COMMANDS:
        return f"there is no command {mention.command}"
    if mention.command in TAKES_PATHS:
        # Without arguments, a command is only named.
        return refusal(mention.command, *mention.arguments) if mention.arguments else ""
    arguments = [item for item in mention.arguments if item not in FLAGS]
    plain = [item for item in arguments if "=" not in item]
    directory = plain.index("--config-dir") if "--config-dir" in plain else None
    given = [] if directory is None else plain[directory : directory + 2]
    paths = [item for item in plain if item not in given]
    if paths:
        return f"{' '.join(paths)} are no overrides"
    cells = expanded(mention.overrides)
    if len(cells) > 1 and not sweeps(mention):
        return "a list of options needs -m here"
    complaints = (refusal(mention.command, *given, *cell) for cell in cells)
    return next(filter(None, complaints), "")


def sweeps(mention):
    """Whether a command reads a list of options as a sweep."""
    experiments = [item for item in mention.overrides if item.startswith("experiment=")]
    return bool({"-m", "--multirun"} & set(mention.arguments)) or any(
        "mode: MULTIRUN" in OPTIONS[item] for item in experiments
    )


def wrong_alone(mention):
    # Each option by itself is composed in tests/experiments/test_conf.py.
    cells = [cell for cell in expanded(mention.overrides) if not set(cell) <= OPTIONS.keys()]
    first = ""
    for option in options_with(mention):
        complaints = [refusal("run", *option, *cell) for cell in cells]
        complaint = next(filter(None, complaints), "")
        if not complaint:
            return ""
        first = first or complaint
    return first


def options_with(mention):
    """The option in whose file a mention stands, or none, then those of its first setting's group:
    `llm.key_env=...` composes only where an option of `llm` is chosen."""
    chosen = {override.partition("=")[0] for override in mention.overrides}
    own = mention.option
    yield [own] if own and own.partition("=")[0] not in chosen else []
    setting = next((key.lstrip("+") for key in chosen if "." in key and "@" not in key), "")
    group, *names = setting.split(".")
    if group in chosen:
        return
    options = [option for option in OPTIONS if option.startswith(f"{group}=")]
    for option in sorted(options, key=lambda option: -sum(n in OPTIONS[option] for n in names)):
        yield [option]


def expanded(overrides):
    """Overrides without lists of options: the first value of each, then the others in turn. What
    is added (`+a.b=c`) must have a place to go, and is composed with `~a` too, which Hydra refuses
    where there is no `a`."""
    values = []
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        line, key = str(override.input_line), str(override.key_or_group)
        if override.is_sweep_override():
            key = override.get_key_element()
            values.append([f"{key}={value}" for value in override.sweep_string_iterator()])
        elif override.is_add() and "." in key:
            values.append([line, f"~{key.rpartition('.')[0]}"])
        else:
            values.append([line])
    first = [options[0] for options in values]
    others = [
        [*first[:place], option, *first[place + 1 :]]
        for place, options in enumerate(values)
        for option in options[1:]
    ]
    return [first, *others]


@cache
def refusal(command, *arguments):
    """What an entry point says to a command line that it does not compose; else empty."""
    errors = io.StringIO()
    little = ["--package=paths"] if command in SWEPT else []  # nobody reads what is printed
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
        code = run_entry(command, "--cfg=job", *little, *arguments)
    return errors.getvalue() or f"exit code {code}" if code else ""


# What is found, so that nothing is passed over in silence.


def test_the_documents_mention_every_command_and_nearly_every_group():
    commands = Counter(mention.command for mention in MENTIONS if mention.command)
    assert sum(commands.values()) >= 40
    assert {"run", "rank", "index", "tune", "evaluate", "compare"} <= set(commands)
    alone = [mention for mention in MENTIONS if not mention.command]
    assert len(alone) >= 90
    keys = {item.partition("=")[0] for mention in MENTIONS for item in mention.overrides}
    assert len(set(GROUPS) - keys) <= 1, set(GROUPS) - keys


DOCUMENT = """\
Write `retriever=bm25_defualt`, `unit.tokens=3`, `+judge.setings.x=1`, or `exeriment=demo`.
```
soundingline run unit=document,passage
soundingline run -m unit=document,pasage \\
    agent=keyword
make demo && soundingline rnak benchmark=...
soundingline rank benchmark=cacm runs/<name>
```
"""


def test_what_does_not_compose_is_found_wherever_it_stands():
    results = mentions(Path("document.md"), DOCUMENT)
    complaints = {" ".join(mention.arguments): wrong(mention) for mention in results}
    assert len(complaints) == 8 and all(complaints.values()), complaints
    assert complaints["unit=document,passage"] == "a list of options needs -m here"
    assert "pasage" in complaints["-m unit=document,pasage agent=keyword"]
    assert "rnak" in complaints["benchmark=fictional"]
    assert "runs/name" in complaints["benchmark=cacm runs/name"]


def test_placeholders_are_filled_in_and_what_composes_is_passed():
    text = "`soundingline run benchmark=... llm=... llm.key_env=<variable> ...`, `agent=`"
    command, alone = mentions(Path("document.md"), text)
    assert " ".join(command.arguments) == (
        "benchmark=fictional llm=openai_compatible llm.key_env=API_KEY"
    )
    assert alone.arguments == ("agent=keyword",)
    assert not wrong(command) and not wrong(alone)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_sections_that_a_page_links_to_exist(page):
    for link, section in re.findall(r"\]\(([\w.-]*)#([\w-]+)\)", page.read_text(encoding="utf-8")):
        target = page.parent / link if link else page
        titles = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.M)
        anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
        assert section in anchors, f"{page.name}: {link}#{section}"
