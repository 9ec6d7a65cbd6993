"""Engines build an index of units and open it again; an opened index ranks."""
