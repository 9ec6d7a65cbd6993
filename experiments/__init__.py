"""Hydra entry points: `python -m experiments.<index|rank|run|evaluate|compare>`.

The only room that imports Hydra. Each entry point composes `conf/`, calls the other rooms and
writes `runs/<name>/`.
"""
