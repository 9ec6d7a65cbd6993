"""The table of docs/reproductions.md has what `soundingline list experiment` prints. This file, run
as a program, prints its rows."""

import re
import sys

from soundingline.experiments.config import CONF
from soundingline.experiments.planning import Compositions, ExperimentPlan, block

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
    files = Compositions()
    for path in sorted((CONF / "experiment").glob("*/*.yaml")):
        if path.parent.name != "base":
            name = f"{path.parent.name}/{path.stem}"
            plan, laptop = ExperimentPlan.of(name, files)
            table = plan.published
            paper = f"{table.paper.removeprefix('arXiv ')}, {table.source}" if table else "—"
            state = table.state if table else "—"
            differences = "; ".join(table.differences) if table else ""
            row = (name, paper, plan.command(name), ", ".join(short(plan.needs)) or "—", state)
            yield (*row, differences or "—"), block(name, "", plan, laptop)


def test_the_page_begins_with_the_table_of_all_experiments():
    text = PAGE.read_text("utf-8")
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    table = [tuple(cell.strip() for cell in row) for row in rows if len(row) == 6]
    wanted = list(expected())
    assert table[2:] == [row for row, _ in wanted]
    assert text.index("|experiment") < text.index("\n## ")
    for (name, paper, command, _, state, differences), printed in wanted:
        shown = " ".join(printed.split())
        facts = [f"command soundingline {command} experiment={name}"]
        facts += [f"paper arXiv {paper}", f"state {state}"] if paper != "—" else []
        facts += [f"differs {differences}"] if differences != "—" else []
        assert [fact for fact in facts if fact not in shown] == []


if __name__ == "__main__":  # prints the table
    sys.stdout.writelines("|" + "|".join(row) + "|\n" for row, _ in expected())
