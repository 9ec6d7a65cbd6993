"""Runs in the file formats of others, in and out: one module a format, each with read and write.

What a foreign file tells becomes a `Transcript` (`transcript`), and that a `Trajectory` like any of
our own, so that imported runs go through the same evaluation, report and comparison. A file that we
wrote holds, under the key `soundingline`, what its format has no place for (`own`), and reads back
as the very trajectory. Readers take one question at a time and refuse what they cannot read in one
line. `docs/exchange.md` tells which clients were run."""
