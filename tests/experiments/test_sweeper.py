"""The cells that an experiment's parameters, axes and changes describe."""

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from soundingline.experiments.hydra_plugins import Cells
from soundingline.toolkit.errors import InputError

SWEEPER = {
    "params": {"unit": "document,passage"},
    "axes": {
        "benchmarks": ["benchmark=vaswani", ["benchmark=beir", "benchmark.path=nq"]],
        "systems": [["retriever=ql", "enrichment=none"], "retriever=sira"],
    },
    "changes": ["reranker=monot5"],
    "laptop": {"axes": {"systems": ["retriever=ql", "retriever=bm25_rm3"]}},
}


def cells(*given, laptop=False, **changed):
    config = OmegaConf.create({"hydra": {"sweeper": SWEEPER | changed}, "laptop": laptop})
    described = Cells.of(config)
    words = [*(f"{key}={value}" for key, value in described.params.items()), *given]
    return described.overrides(OverridesParser.create().parse_overrides(words))


def test_params_axes_and_changes_are_crossed():
    found = cells()
    assert len(found) == len(set(map(tuple, found))) == 2 * 2 * 2 * 2
    assert found[0] == ["unit=document", "benchmark=vaswani", "retriever=ql", "enrichment=none"]
    assert found[1] == [*found[0], "reranker=monot5"]
    assert found[-1] == [
        *("unit=passage", "benchmark=beir", "benchmark.path=nq"),
        *("retriever=sira", "reranker=monot5"),
    ]


def test_the_laptop_form_replaces_all_three():
    assert cells(laptop=True) == [["retriever=ql"], ["retriever=bm25_rm3"]]


def test_an_override_replaces_the_axis_that_its_key_begins():
    found = cells("benchmark=cacm", "unit=maxp")
    assert len(found) == 2 * 2
    assert all(cell[:2] == ["unit=maxp", "benchmark=cacm"] for cell in found)
    # Other keys of an axis stay, and its entries win over an override.
    assert cells("enrichment=feedback", laptop=True) == [
        ["enrichment=feedback", "retriever=ql"],
        ["enrichment=feedback", "retriever=bm25_rm3"],
    ]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"axes": {"systems": [{"retriever": "ql"}]}}, "axes.systems has the entry"),
        ({"axes": {"systems": ["retriever=ql,sira"]}}, "axes.systems has several values"),
        ({"changes": [[]]}, "changes has the entry"),
    ],
)
def test_an_entry_is_an_override_or_a_list_of_them(changed, message):
    with pytest.raises(InputError, match=message):
        cells(**changed)
