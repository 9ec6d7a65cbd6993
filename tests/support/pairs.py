"""Pairs of a query and a text, as scorers take them."""


def sides(pairs):
    """The queries, and the texts."""
    return [pair.query for pair in pairs], [pair.text for pair in pairs]
