"""Reports on evaluated runs as HTML, Markdown and tables for the terminal, and traces of runs.

`render` makes the report on compared runs, `soundingline.toolkit.report.tuning` the one on a
tuning, and `soundingline.toolkit.report.traces` the pages of single questions.
"""

from soundingline.toolkit.report.comparison import render
from soundingline.toolkit.report.page import Report, write_report
from soundingline.toolkit.report.results import ReportData
from soundingline.toolkit.report.terminal import (
    benchmark_tables,
    comparison_table,
    cost_tables,
    evidence_line,
    pairs_tables,
)

__all__ = [
    "Report",
    "ReportData",
    "benchmark_tables",
    "comparison_table",
    "cost_tables",
    "evidence_line",
    "pairs_tables",
    "render",
    "write_report",
]
