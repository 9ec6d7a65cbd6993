"""A linear layer, against its definition in float64."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from soundingline.pipelines.models import (  # noqa: E402
    computes_bfloat16,
    linear,
    pack_linear_layers,
)

CPU = torch.device("cpu")
INPUTS, OUTPUTS = 48, 80
# Half of the distance between neighbours of 8 bits, and a little for the order of the sum.
ROUNDING = 2**-8 * 1.01
ACTIVATIONS = {
    None: lambda rows: rows,
    "gelu": lambda rows: rows * (1 + torch.erf(rows / 2**0.5)) / 2,
    "relu": lambda rows: rows.clamp(min=0),
    "gelu_new": lambda rows: (
        rows * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (rows + 0.044715 * rows**3))) / 2
    ),
}


def numbers(*shape, seed, dtype):
    torch.set_num_threads(1)
    random = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=random).to(dtype)


def layer(dtype):
    weight = numbers(OUTPUTS, INPUTS, seed=1, dtype=dtype) / 6
    return weight, numbers(OUTPUTS, seed=2, dtype=dtype)


def exact(rows, dtype, activation):
    weight, bias = layer(dtype)
    return ACTIVATIONS[activation](rows.double() @ weight.double().T + bias.double())


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("tokens", [1, 7, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_layer_is_its_product_its_bias_and_its_activation(dtype, tokens, activation):
    rows = numbers(tokens, INPUTS, seed=3, dtype=dtype)
    result = linear(*layer(dtype), activation)(rows)
    assert result.dtype == dtype
    # The sum is rounded before an activation that is not fused.
    limit = 1e-5 if dtype == torch.float32 else 0.02
    expected = exact(rows, dtype, activation)
    torch.testing.assert_close(result.double(), expected, atol=limit, rtol=limit)


@pytest.mark.skipif(not computes_bfloat16(CPU), reason="no instructions for bfloat16")
@pytest.mark.parametrize("activation", [None, "gelu", "relu"])
def test_in_bfloat16_a_sum_is_rounded_once_after_bias_and_activation(
    activation,
):
    rows = numbers(300, INPUTS, seed=3, dtype=torch.bfloat16)
    result = linear(*layer(torch.bfloat16), activation)(rows).double()
    expected = exact(rows, torch.bfloat16, activation)
    assert ((result - expected).abs() <= ROUNDING * expected.abs() + 1e-5).all()


@pytest.mark.parametrize("activation", [None, "gelu", "relu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_layer_without_a_bias_adds_zeros(dtype, activation):
    rows = numbers(300, INPUTS, seed=3, dtype=dtype)
    weight, _ = layer(dtype)
    zeros = torch.zeros(OUTPUTS, dtype=dtype)
    alike = linear(weight, zeros, activation)(rows)
    torch.testing.assert_close(linear(weight, None, activation)(rows), alike)


def test_a_torch_without_the_operators_computes_step_by_step(
    monkeypatch,
):
    monkeypatch.setattr(torch.ops, "mkldnn", object())
    rows = numbers(300, INPUTS, seed=3, dtype=torch.bfloat16)
    weight, bias = layer(torch.bfloat16)
    steps = torch.nn.functional.gelu(torch.nn.functional.linear(rows, weight, bias))
    assert torch.equal(linear(weight, bias, "gelu")(rows), steps)


def test_float32_is_computed_as_torch_does():
    rows = numbers(300, INPUTS, seed=3, dtype=torch.float32)
    weight, bias = layer(torch.float32)
    steps = torch.nn.functional.linear(rows, weight, bias)
    assert torch.equal(linear(weight, bias)(rows), steps)


@pytest.mark.parametrize("bias", [True, False])
def test_packed_layers_of_a_network_give_its_results(bias):
    network = torch.nn.Sequential(torch.nn.Linear(16, 8, bias=bias), torch.nn.Linear(8, 3))
    states = torch.randn(2, 5, 16)
    with torch.inference_mode():
        expected = network(states)
        pack_linear_layers(network)
        assert network[0].weight.numel() == 0 and network[0].weight.dtype == torch.float32
        torch.testing.assert_close(network(states), expected, atol=1e-5, rtol=1e-5)
