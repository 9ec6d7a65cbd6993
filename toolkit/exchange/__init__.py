"""Runs in the file formats of others, in and out. Imported runs go through the same evaluation,
comparison and report as ours. `docs/serve.md` names the clients that were tested."""
