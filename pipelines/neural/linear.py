"""Linear layers, prepared once for many texts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from pipelines.neural.devices import computes_bfloat16
from toolkit.extras import require

if TYPE_CHECKING:
    from torch import Tensor

Linear: TypeAlias = "Callable[[Tensor], Tensor]"
"""[rows, inputs] -> [rows, outputs]."""
# Activations that oneDNN applies to a sum before it is rounded, with its names and arguments.
_FUSED: dict[str, tuple[str, list[Any], str]] = {
    "gelu": ("gelu", [], "none"),
    "relu": ("relu", [], ""),
}
_PLAIN: tuple[str, list[Any], str] = ("none", [], "")


def linear(weight: Tensor, bias: Tensor | None = None, activation: str | None = None) -> Linear:
    """The function of [tokens, inputs] that is a linear layer of `weight` [outputs, inputs], and
    then `activation`, by the name that transformers gives it.

    In bfloat16 on a CPU that has instructions for it, the weight is copied once into the order that
    oneDNN multiplies in, and the bias, GELU and ReLU cost no pass of their own. These operators are
    what torch.compile emits; a torch that lacks them computes the layer step by step, as every
    other device and type does.
    """
    if _packs(weight):
        return _packed(weight, bias, activation)
    product = require("torch").nn.functional.linear
    return _then(activation, lambda rows: product(rows, weight, bias))


def _packs(weight: Tensor) -> bool:
    torch = require("torch")
    names = ("_reorder_linear_weight", "_linear_pointwise")
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.bfloat16
        and computes_bfloat16(weight.device)
        and bool(torch.backends.mkldnn.is_available())
        and all(hasattr(torch.ops.mkldnn, name) for name in names)
    )


def _packed(weight: Tensor, bias: Tensor | None, activation: str | None) -> Linear:
    torch = require("torch")
    operators = torch.ops.mkldnn
    with torch.inference_mode():
        packed = operators._reorder_linear_weight(weight.contiguous())
    fused = _FUSED.get(activation or "", _PLAIN)
    rest = None if activation in _FUSED else activation
    return _then(rest, lambda rows: operators._linear_pointwise(rows, packed, bias, *fused))


def _then(activation: str | None, product: Linear) -> Linear:
    if activation is None:
        return product
    if activation == "relu":  # in place, as this is the widest tensor of a network
        return lambda rows: product(rows).relu_()
    function = require("transformers.activations").ACT2FN[activation]
    return lambda rows: function(product(rows))
