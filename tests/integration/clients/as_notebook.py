"""Execute the cells of a JSON list on standard input in one Jupyter kernel, whose path begins with
the arguments. Prints the text that each cell shows, as a JSON list; fails where a cell fails."""

from __future__ import annotations

import json
import sys

import nbformat.v4
from nbclient import NotebookClient

# The notebook's own packages come first. `addsitedir` also reads the files that make an editable
# installation importable.
path = (
    f"import site, sys; sys.path[:0] = {sys.argv[1:2]!r}\n"
    f"for folder in {sys.argv[2:]!r}: site.addsitedir(folder)"
)
cells = [nbformat.v4.new_code_cell(source) for source in (path, *json.load(sys.stdin))]
notebook = nbformat.v4.new_notebook(cells=cells)
NotebookClient(notebook, timeout=300, kernel_name="python3").execute()


def shown(cell):
    texts = [
        output.get("text") or output.get("data", {}).get("text/plain") for output in cell.outputs
    ]
    return "".join(text for text in texts if text)


print(json.dumps([shown(cell) for cell in cells[1:]]))
