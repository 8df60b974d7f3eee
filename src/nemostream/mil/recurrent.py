"""The LSTM operation: forward or reverse, one layer."""

from __future__ import annotations

from typing import Any

import numpy as np

from nemostream.mil.values import Array

_FUNCTIONS: dict[str, Any] = {
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
}


def lstm(
    x: Array,
    initial_h: Array,
    initial_c: Array,
    weight_ih: Array,
    weight_hh: Array,
    bias: Array | None = None,
    direction: Array | str = "forward",
    output_sequence: Any = False,
    recurrent_activation: Array | str = "sigmoid",
    cell_activation: Array | str = "tanh",
    activation: Array | str = "tanh",
) -> list[Array]:
    """x [T, B, I], weights [4 H, I] and [4 H, H] with gates in the order input, forget, output, cell.

    Returns:
        h of every step [T, B, H], or of the last [1, B, H]; the last h and c [B, H].

    Raises:
        ValueError: on a bidirectional one.
    """
    if str(direction) not in ("forward", "reverse"):
        raise ValueError("bidirectional LSTMs are not supported")
    gate, cell, out = (_FUNCTIONS[str(kind)] for kind in (recurrent_activation, cell_activation, activation))
    h, c = initial_h, initial_c
    inputs = x @ weight_ih.T
    if bias is not None:
        inputs = inputs + bias
    steps = []
    for part in inputs[::-1] if str(direction) == "reverse" else inputs:
        i, f, o, g = np.split(part + h @ weight_hh.T, 4, axis=-1)
        c = gate(f) * c + gate(i) * cell(g)
        h = gate(o) * out(c)
        steps.append(h)
    if str(direction) == "reverse":
        steps.reverse()
    return [np.stack(steps) if output_sequence else h[None], h, c]
