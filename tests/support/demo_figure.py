"""What the README shows of the demo: `make demo-figure` records a run, and writes the table,
headline and forest plot of the record into the README and docs/demo.svg. A test compares them.

    python tests/support/demo_figure.py runs/demo    records that sweep, and writes both
    python tests/support/demo_figure.py              writes both from the record
"""

import io
import json
import re
import sys
import textwrap
from pathlib import Path

from soundingline.toolkit.console import Console
from soundingline.toolkit.evaluation import EvaluatedRun, PairedComparison, load_runs
from soundingline.toolkit.report import comparison_table
from soundingline.toolkit.report.comparison import differences_section, summary
from soundingline.toolkit.report.results import ReportData

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "tests/data/demo.json"
PLOT, README = ROOT / "docs/demo.svg", ROOT / "README.md"
PART = re.compile(r"(?<=<!-- demo -->\n).*?(?=<!-- /demo -->)", re.DOTALL)
KEPT = ("name", "factors", "counts")
REMOVED = "remove_evidence"
TIMED = "seconds"  # measures that differ from run to run begin so


def recorded(sweep):
    """What a finished sweep's table, headline and plot are made of."""
    runs = load_runs(sorted(path.parent for path in Path(sweep).glob("*/metrics.json")))
    kept = [
        {
            **{name: getattr(run, name) for name in KEPT},
            "metrics": {n: v for n, v in run.metrics.items() if not n.startswith(TIMED)},
            # What a reader and a bound are recognised by.
            "config": {
                **{group: run.manifest["config"][group] for group in ("agent", "retriever")},
                "benchmark": {REMOVED: run.manifest["config"]["benchmark"][REMOVED]},
            },
        }
        for run in runs
    ]
    config = runs[0].manifest["config"]
    return {
        "runs": kept,
        "comparisons": json.loads((Path(sweep) / "verdicts.json").read_text()),
        "declared": {name: config["comparison"][name] for name in ("primary", "margin")},
    }


def shown(record):
    """The README's part and the plot of a record."""
    empty = ("per_question", "denominators", "funnel", "curves", "repeats", "rankings")
    runs = [
        EvaluatedRun(
            **{name: row[name] for name in KEPT},
            metrics=row["metrics"],
            manifest={"config": row["config"]},
            **{name: {} for name in empty},
        )
        for row in record["runs"]
    ]
    rows = [PairedComparison(**row) for row in record["comparisons"]]
    baseline = rows[0].b
    runs.sort(key=lambda run: run.name != baseline)
    table = io.StringIO()
    data = ReportData(runs, rows, baseline=baseline, declared=True, **record["declared"])
    Console(file=table, width=80).print(comparison_table(data))
    lines = [line.rstrip() for line in table.getvalue().splitlines()]
    headline = "".join(f"**{s.text}**" if s.strong else s.text for s in summary(data))
    quote = textwrap.wrap(
        headline, 113, break_on_hyphens=False, initial_indent="> ", subsequent_indent="> "
    )
    plot = differences_section(data).figures[0].svg
    # A file of its own needs what a page gives to the plots in it: the name space and the letters.
    names = 'xmlns="http://www.w3.org/2000/svg" font-family="sans-serif"'
    part = "\n".join(["```", *lines, "```", "", "Its report begins:", "", *quote, ""])
    return part, plot.replace("<svg", f"<svg {names}", 1) + "\n"


def main(sweep=None):
    if sweep:
        RECORD.write_text(json.dumps(recorded(sweep), indent=1) + "\n", encoding="utf-8")
    part, plot = shown(json.loads(RECORD.read_text(encoding="utf-8")))
    PLOT.write_text(plot, encoding="utf-8")
    README.write_text(PART.sub(lambda _: part, README.read_text("utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
