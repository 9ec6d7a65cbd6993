"""What is checked before a run, so that no money is spent on one that cannot succeed."""
