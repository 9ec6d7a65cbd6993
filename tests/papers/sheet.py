"""What the sheets of the papers share: the cells of an experiment, and its published rows."""

from functools import cache

from omegaconf import OmegaConf

from soundingline.experiments.config import CONF, CommandCells, Settings, choice_of
from soundingline.experiments.planning import ExperimentPlan
from soundingline.experiments.published_figures import is_measure
from soundingline.experiments.validity import composed_cells
from soundingline.toolkit.evaluation.published_tables import read_published


def experiments(folder):
    return [
        f"{folder}/{path.stem}" for path in sorted((CONF / "experiment" / folder).glob("*.yaml"))
    ]


@cache
def overrides_of_cells(experiment, *overrides):
    """What each cell of an experiment adds to these overrides."""
    return CommandCells.of([f"experiment={experiment}", *overrides]).added


@cache
def cells(experiment, *overrides):
    """The settings of each cell."""
    base = [f"experiment={experiment}", *overrides]
    return [Settings.compose([*base, *cell]) for cell in overrides_of_cells(experiment, *overrides)]


def plan_of(experiment, measured=()):
    chosen = f"experiment={experiment}"
    composed = composed_cells([[chosen, *cell] for cell in overrides_of_cells(experiment)])
    return ExperimentPlan(composed, measured)


def value(settings, key):
    """A group's option, or the value of a key with dots."""
    option = settings.choices.get(choice_of(key))
    return OmegaConf.select(settings.config, key) if option is None else option


def check_constants(settings, constants):
    for key, expected in constants.items():
        assert value(settings, key) == expected, f"{key} is {value(settings, key)}"


def published_of(experiment):
    """The published table that each cell of an experiment names."""
    (name,) = {settings.config.comparison.published for settings in cells(experiment)}
    return read_published(name)


def check_published_rows(experiment):
    """Each published row belongs to one cell, and each cell has one row."""
    found, published = cells(experiment), published_of(experiment)
    matched = []
    for row in published.cells:
        factors = {n: v for n, v in row.items() if not is_measure(n) and v is not None}
        matches = [
            number
            for number, settings in enumerate(found)
            if all(value(settings, name) == wanted for name, wanted in factors.items())
        ]
        assert len(matches) == 1, row
        matched += matches
    assert sorted(matched) == list(range(len(found)))
    return published
