"""Scorers of requirements that ask a model or a file (`toolkit.search.scoring`)."""
