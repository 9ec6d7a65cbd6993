"""Reports on evaluated runs: HTML, Markdown and the terminal.

Here is how numbers are shown. No number is computed here but the interval of one cell's mean; the
measures and the paired comparisons belong to `toolkit.evaluation`.
"""

from toolkit.report.page import Report, render, write_report
from toolkit.report.terminal import benchmark_tables, comparison_table

__all__ = ["Report", "benchmark_tables", "comparison_table", "render", "write_report"]
