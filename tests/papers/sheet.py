"""What the sheets of the papers share: the cells of an experiment, and its published rows."""

from functools import cache

from omegaconf import OmegaConf

from soundingline.experiments import config
from soundingline.experiments.config import CONF, Settings, choice_of


def experiments(folder):
    return [
        f"{folder}/{path.stem}" for path in sorted((CONF / "experiment" / folder).glob("*.yaml"))
    ]


@cache
def overrides_of_cells(experiment, *overrides):
    """What each cell of an experiment adds to these overrides."""
    return config.overrides_of_cells([f"experiment={experiment}", *overrides])


@cache
def cells(experiment, *overrides):
    """The settings of each cell."""
    base = [f"experiment={experiment}", *overrides]
    return [Settings.compose([*base, *cell]) for cell in overrides_of_cells(experiment, *overrides)]


def value(settings, key):
    """A group's option, or the value of a key with dots."""
    option = settings.choices.get(choice_of(key))
    return OmegaConf.select(settings.config, key) if option is None else option


def check_constants(settings, constants):
    for key, expected in constants.items():
        assert value(settings, key) == expected, f"{key} is {value(settings, key)}"


def check_published_rows(experiment):
    """Each published row belongs to one cell, and each cell has one row."""
    found = cells(experiment)
    published = found[0].config.published
    measures = {"accuracy", "completion", "run_dollars", "read_calls", "search_calls"}
    factors = [
        name
        for name in published.columns
        if name not in measures and not name.startswith("recall_")
    ]
    matched = []
    for row in published.rows:
        wanted = dict(zip(published.columns, row, strict=True))
        matches = [
            number
            for number, settings in enumerate(found)
            if all(value(settings, n) == wanted[n] for n in factors if wanted[n] is not None)
        ]
        assert len(matches) == 1, wanted
        matched += matches
    assert sorted(matched) == list(range(len(found)))
    return published
