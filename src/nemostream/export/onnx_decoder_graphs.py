"""The predictor and the joint as ONNX graphs; see `nemostream.runtimes.onnx_graphs` for their names."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from nemostream.config import ModelConfig
from nemostream.export.graph import GraphBuilder
from nemostream.export.linear import LinearLayers, Weights
from nemostream.model.network import Joint, Predictor


def export_predictor(config: ModelConfig, predictor: Predictor, path: Path, weights: Weights) -> list[str]:
    """Write the predictor's graph; returns the names of its files."""
    graph = GraphBuilder(path)
    linear = LinearLayers(graph, weights)
    state = (config.predictor_layers, "batch", config.predictor_hidden_size)
    tokens = graph.input("tokens", ["batch"], np.int64)
    old = [
        [graph.op("Gather", value, graph.constant(layer), axis=0) for layer in range(config.predictor_layers)]
        for value in (graph.input("h", state), graph.input("c", state))
    ]
    x = linear.table("decoder.embedding", predictor.embedding.weight.detach().numpy(), tokens)
    new_h, new_c = [], []
    for layer, (h, c) in enumerate(zip(*old, strict=True)):
        lstm = predictor.lstm
        bias = getattr(lstm, f"bias_ih_l{layer}") + getattr(lstm, f"bias_hh_l{layer}")
        gates = graph.op(
            "Add",
            linear.add(x, f"decoder.lstm.weight_ih_l{layer}", getattr(lstm, f"weight_ih_l{layer}"), bias),
            linear.add(h, f"decoder.lstm.weight_hh_l{layer}", getattr(lstm, f"weight_hh_l{layer}")),
        )
        enter, forget, cell, leave = graph.ops("Split", 4, gates, axis=1, num_outputs=4)
        kept = graph.op("Mul", graph.op("Sigmoid", forget), c)
        added = graph.op("Mul", graph.op("Sigmoid", enter), graph.op("Tanh", cell))
        c = graph.op("Add", kept, added)
        x = graph.op("Mul", graph.op("Sigmoid", leave), graph.op("Tanh", c))
        new_h.append(graph.op("Unsqueeze", x, graph.constant([0])))
        new_c.append(graph.op("Unsqueeze", c, graph.constant([0])))
    projector = predictor.decoder_projector
    predicted = linear.add(x, "decoder.decoder_projector", projector.weight, projector.bias)
    graph.output("predicted", predicted, ["batch", config.joint_hidden_size])
    graph.output("new_h", graph.op("Concat", *new_h, axis=0), state)
    graph.output("new_c", graph.op("Concat", *new_c, axis=0), state)
    return graph.save()


def export_joint(config: ModelConfig, joint: Joint, path: Path, weights: Weights) -> list[str]:
    """Write the joint's graph; returns the names of its files."""
    width, head = config.joint_hidden_size, joint.head
    graph = GraphBuilder(path)
    encoded = graph.input("encoded", ["batch", "window", width])
    predicted = graph.input("predicted", ["batch", width])
    hidden = graph.op("Add", encoded, graph.op("Unsqueeze", predicted, graph.constant([1])))
    rows = graph.op("Reshape", graph.op("Relu", hidden), graph.constant([-1, width]))
    logits = LinearLayers(graph, weights).add(rows, "joint.head", head.weight, head.bias, least=0.0)
    shape = graph.op("Shape", encoded, start=0, end=2)
    shape = graph.op("Concat", shape, graph.constant([-1]), axis=0)
    logits = graph.op("Reshape", logits, shape)
    tokens = graph.op("ArgMax", logits, axis=2, keepdims=0)
    graph.output("tokens", tokens, ["batch", "window"], np.int64)
    graph.output("logits", logits, ["batch", "window", head.weight.shape[0]])
    return graph.save()
