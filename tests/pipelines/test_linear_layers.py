"""Linear layers whose weights are packed, against torch's own layers."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from soundingline.pipelines.models import computes_bfloat16, pack_linear_layers  # noqa: E402

CPU = torch.device("cpu")
# Half of the distance between neighbours of 8 bits, and a little for the order of the sum.
ROUNDING = 2**-8 * 1.01


@pytest.mark.parametrize("bias", [True, False])
def test_packed_layers_of_a_network_give_its_results(bias):
    network = torch.nn.Sequential(torch.nn.Linear(16, 8, bias=bias), torch.nn.Linear(8, 3))
    states = torch.randn(2, 5, 16)
    with torch.inference_mode():
        expected = network(states)
        pack_linear_layers(network)
        assert network[0].weight.numel() == 0 and network[0].weight.dtype == torch.float32
        torch.testing.assert_close(network(states), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.skipif(not computes_bfloat16(CPU), reason="no instructions for bfloat16")
def test_in_bfloat16_a_sum_is_rounded_once_after_the_bias():
    torch.manual_seed(3)
    network = torch.nn.Sequential(torch.nn.Linear(48, 80)).bfloat16()
    rows = torch.randn(300, 48).bfloat16()
    weight, bias = (value.detach().double() for value in network.parameters())
    expected = rows.double() @ weight.T + bias
    with torch.inference_mode():
        pack_linear_layers(network)
        result = network(rows).double()
    assert ((result - expected).abs() <= ROUNDING * expected.abs() + 1e-5).all()


def test_a_torch_without_the_operators_keeps_its_layers(monkeypatch):
    monkeypatch.setattr(torch.ops, "mkldnn", object())
    network = torch.nn.Sequential(torch.nn.Linear(16, 8))
    pack_linear_layers(network)
    assert type(network[0]) is torch.nn.Linear
