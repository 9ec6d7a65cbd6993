"""Trajectories as pages for a reader: a folder that opens in a browser without a server.

`traces/index.html` below a run folder holds the code alone. Everything else is data, in scripts
that hand one value each over, because a page that was opened from a disk may load no other kind of
file. In a sealed run the values are obfuscated, and the page asks for the canary.
"""

from toolkit.report.traces.files import PAGE, write_traces

__all__ = ["PAGE", "write_traces"]
