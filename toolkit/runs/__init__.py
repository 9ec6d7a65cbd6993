"""The run folder: trajectory records, manifest, lock, resume. Numbers are made in `evaluation`."""
