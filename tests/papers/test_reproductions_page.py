"""The table of docs/reproductions.md has what `soundingline describe experiment=NAME` prints. This
file, run as a program, prints its rows."""

import re
import sys

from sheet import experiments, plan_of

from soundingline.experiments.config import CONF
from soundingline.experiments.planning import command_of

PAGE = CONF.parent / "docs" / "reproductions.md"
LONG = {"SOUNDINGLINE_CANARY": "canary"}


def short(needs):
    """The needs of an experiment without the names of its models, and without the GPU that only a
    large corpus needs."""
    for need in needs:
        weights = re.match(r"GPU: (\d+ GB)", need)
        if weights or re.fullmatch("[A-Z_]+", need):
            yield weights[1] if weights else LONG.get(need, need)


def expected():
    for folder in sorted((CONF / "experiment").iterdir()):
        for name in experiments(folder.name) if folder.is_dir() and folder.name != "base" else ():
            plan = plan_of(name)
            table = plan.published
            paper = f"{table.paper.removeprefix('arXiv ')}, {table.source}" if table else "—"
            state = table.state if table else "—"
            differences = "; ".join(table.differences) if table else ""
            row = (name, paper, command_of(name), ", ".join(short(plan.needs)) or "—", state)
            yield *row, differences or "—"


def test_the_page_begins_with_the_table_of_all_experiments():
    text = PAGE.read_text("utf-8")
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    table = [tuple(cell.strip() for cell in row) for row in rows if len(row) == 6]
    assert table[2:] == list(expected())
    assert text.index("|experiment") < text.index("\n## ")


if __name__ == "__main__":  # prints the table
    sys.stdout.writelines("|" + "|".join(row) + "|\n" for row in expected())
