"""Add layers to a checkpoint's encoder without changing what it computes."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

Weights = dict[str, NDArray[np.generic]]

_LAYER = re.compile(r"encoder\.layers\.(\d+)\.(.+)")
# the last matrix of each branch; at zero, a layer passes on what it is given
_BRANCH_ENDS = (
    "feed_forward1.linear2.weight",
    "self_attn.o_proj.weight",
    "conv.pointwise_conv2.weight",
    "feed_forward2.linear2.weight",
)


def deepen(weights: Weights, num_layers: int) -> Weights:
    """Weights of the same network with more layers, spread evenly among the old ones.

    An added layer is a copy of the one before it whose branches end in zeros. The gain and offset of the norm
    at that one's end move to the added layer's, since a norm undoes those of the norm before it.

    Args:
        weights: by checkpoint key.
        num_layers: of the result.

    Raises:
        ValueError: if there are as many layers already, or fewer than half as many.
    """
    layers: dict[int, Weights] = {}
    others: Weights = {}
    for name, value in weights.items():
        match = _LAYER.fullmatch(name)
        if match:
            layers.setdefault(int(match[1]), {})[match[2]] = value
        else:
            others[name] = value
    old, added = len(layers), num_layers - len(layers)
    if not 0 < added <= old:
        raise ValueError(f"{old} layers can become {old + 1} to {2 * old}, not {num_layers}.")
    followed = {(2 * number + 1) * old // (2 * added) for number in range(added)}
    result: list[Weights] = []
    for number in range(old):
        layer = dict(layers[number])
        result.append(layer)
        if number in followed:
            copy = {
                name: np.zeros_like(value) if name in _BRANCH_ENDS else value for name, value in layer.items()
            }
            layer["norm_out.weight"] = np.ones_like(layer["norm_out.weight"])
            layer["norm_out.bias"] = np.zeros_like(layer["norm_out.bias"])
            result.append(copy)
    return others | {
        f"encoder.layers.{number}.{name}": value
        for number, layer in enumerate(result)
        for name, value in layer.items()
    }
