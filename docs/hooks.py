"""Files that MkDocs generates: the README as the first page, the options of `conf/` by group, the
API by package, and notebooks of the quickstart and of the examples."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import griffe
import jupytext
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
CONF = ROOT / "conf"
EXAMPLES = (
    "Public classes and functions, from their docstrings. In the examples `index` is a small "
    "`LexicalIndex`, and `tool` a `RankedBrowsing` that is opened over `backend` and `store`."
)
# The classes of a user's script, by package.
REFERENCE = {
    "pipelines": None,  # its `__all__`
    "experiments": None,
    "agents": None,
    "toolkit.errors": ["InputError"],
}
GROUPS = sorted(path for path in CONF.iterdir() if path.is_dir() and path.name[0] != "_")


class SingularExamples(griffe.Extension):
    """`Example:` of a docstring as a section of code: griffe knows `Examples:` alone, and makes the
    singular a note, in which `>>>` are quotations."""

    def on_object(self, *, obj, **_):
        if obj.docstring:
            obj.docstring.value = re.sub(
                r"(?m)^(\s*)Example:$", r"\1Examples:", obj.docstring.value
            )


def on_config(config):
    """Add the generated pages to the contents."""
    options = ["options/index.md", *(f"options/{group.name}.md" for group in GROUPS)]
    config.nav += [{"Options": options}, {"API": [f"reference/{name}.md" for name in REFERENCE]}]


def on_files(files, config):
    pages = {"index.md": front_page(), "options/index.md": overview()}
    pages |= {f"options/{group.name}.md": options(group) for group in GROUPS}
    pages |= {f"reference/{name}.md": reference(name) for name in REFERENCE}
    for name, content in pages.items():
        files.append(File.generated(config, name, content=content))
    for source in [DOCS / "quickstart.md", *sorted(DOCS.glob("examples/*.py"))]:
        name = source.relative_to(DOCS).with_suffix(".ipynb").as_posix()
        files.append(File.generated(config, name, content=notebook(source)))
    return files


def on_page_markdown(markdown, page, config, files):
    """The quickstart links to its notebook, and to those of the examples instead of their code."""
    if page.file.src_uri != "quickstart.md":
        return markdown
    title, _, rest = markdown.partition("\n")
    rest = re.sub(r"\(examples/(\w+)\.py\)", r"(examples/\1.ipynb)", rest)
    return f"{title}\n\n[Download this page as a notebook](quickstart.ipynb)\n{rest}"


def notebook(path):
    """A page, or a script in jupytext's percent form, as the text of a Jupyter notebook."""
    cells = jupytext.read(path)
    cells.metadata["kernelspec"] = {
        "name": "python3", "display_name": "Python 3", "language": "python",
    }  # fmt: skip
    return jupytext.writes(cells, fmt="ipynb")


def front_page():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.sub(r"\]\(docs/", "](", text)


def overview():
    parts = [
        "# Options",
        "Each option is a file of `conf/`; its keys are arguments of the class that it names.",
        "\n".join(f"- [{group.name}]({group.name}.md)" for group in GROUPS),
    ]
    return "\n\n".join(parts) + "\n"


def options(group):
    """Every option of a group: the comment of its file, and its settings."""
    parts = [f"# {group.name}"]
    for path in sorted(group.rglob("*.yaml")):
        name = path.relative_to(group).with_suffix("")
        parts += [f"## {group.name}={name}", *described(path.read_text(encoding="utf-8"))]
    return "\n\n".join(parts) + "\n"


def described(text):
    lines = text.splitlines()
    comment = []
    while lines and lines[0].startswith("#"):
        line = lines.pop(0).removeprefix("#").strip()
        if not line.startswith("@package"):
            comment.append(line)
    yield re.sub(r"([<>_*])", r"\\\1", " ".join(comment))
    yield "```yaml\n" + "\n".join(lines).strip() + "\n```"


def reference(name):
    module = f"soundingline.{name}"
    names = REFERENCE[name] or sorted(import_module(module).__all__, key=str.lower)
    parts = [f"# {module}", EXAMPLES, *(f"::: {module}.{each}" for each in names)]
    return "\n\n".join(parts) + "\n"
