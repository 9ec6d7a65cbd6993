"""Stands in for tqdm."""

from __future__ import annotations


def tqdm(rows, **settings):
    return rows
