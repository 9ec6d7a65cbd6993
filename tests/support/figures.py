"""A report draws a figure of the same values once for the whole suite.

Most sweeps of tests are alike, and drawing was half of the time of a comparison. The tests of
`soundingline.toolkit.report.plots` call its functions directly, so that these draw each time.
"""

import pickle
from dataclasses import replace
from functools import partial

from support.compositions import kept

from soundingline.toolkit.report import agents, comparison, tuning
from soundingline.toolkit.report.page import RunStyle

_DRAWING = {
    agents: ("against_cost", "exposure", "funnel", "spreads"),
    comparison: ("forest",),
    tuning: ("heat_map",),
}


def install():
    """Keep the figures of reports from here on, in the folder of `compositions`."""
    for module, names in _DRAWING.items():
        for name in names:
            setattr(module, name, partial(_kept_figure, getattr(module, name)))


def _kept_figure(draw, *arguments, **options):
    arguments = _without_runs(arguments)
    key = pickle.dumps((arguments, options))
    return kept(key, draw.__name__, partial(draw, *arguments, **options))


def _without_runs(value):
    """The arguments without the runs in their styles, which differ in folders and times. A function
    that reads a run fails for lack of it, and draws no figure of another run."""
    if isinstance(value, RunStyle):
        return replace(value, run=None)
    if type(value) in (list, tuple):
        return type(value)(_without_runs(item) for item in value)
    return value
