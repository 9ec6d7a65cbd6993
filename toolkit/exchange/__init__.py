"""Runs in the file formats of others, in and out.

- `transcript`: foreign run files and the trajectories that they become.
- `browsecomp_plus`: run files of BrowseComp-Plus and Pi-Serini, and leaderboard entries.
- `inspect_ai`: logs of Inspect AI.
- `lint`: faults in a set of run files.

Imported runs go through the same evaluation, comparison and report as ours. `docs/serve.md`
names the clients that were tested.
"""
