"""Each graph of a bundle alone: the same numbers go to it and to the module that it was made from.

A stream leads only to the graphs and entry points that a runtime of this project calls. Apps call others too,
such as a front end or a fused decoder, so all that a bundle has is executed here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nemostream.config import ModelConfig
from nemostream.export.coreai.bundle import graph_modules as entry_points
from nemostream.export.coreml.bundle import graph_modules
from nemostream.export.coreml.decoder import ArgmaxDecoder
from nemostream.model.network import Network
from nemostream.runtimes.coreai import CoreAiRuntime
from nemostream.runtimes.coreai_graphs import HIDDEN_KEY, Layout, graph_names
from nemostream.runtimes.coreml_bundle import CoreMlBundleRuntime
from nemostream.runtimes.coreml_contract import WINDOW_LENGTH, Contract, Graph

Arrays = dict[str, NDArray[Any]]

_DECODER_RUNS = 8  # a decoder's graph gives few numbers
_MEL = ("mel", "processed_signal", "audio_signal")  # inputs of log-mel frames
_TOKENS = ("token", "targets")
_CACHE_LENGTHS = ("cache_len", "cache_last_channel_len")
_LANGUAGE = 9  # a slot that is not the first


@dataclass(frozen=True)
class GraphRun:
    """What a graph and its module gave on the same inputs.

    Attributes:
        graph: its name, and its entry point if it has several.
        encoder: True if it stores its weights as the bundle's manifest says.
        outputs: name -> the graph's and the module's.
    """

    graph: str
    encoder: bool
    outputs: Mapping[str, tuple[NDArray[Any], NDArray[Any]]]


def coreml_graphs(runtime: CoreMlBundleRuntime, network: Network) -> Iterator[GraphRun]:
    """Run every graph of a CoreML bundle, on calls that are full and caches that are half filled."""
    contract, config = runtime.contract, runtime.config
    for name, module, kind in graph_modules(network, contract):
        graph = contract.graphs[name]
        for run in range(_DECODER_RUNS if kind == "decoder" else 1):
            rng = np.random.default_rng(run)
            inputs = {
                value.name: _whole(value.shape, _number(value.name, graph, contract, config, rng))
                if value.dtype == "int32"
                else _floats(value.name, value.shape, rng)
                for value in graph.inputs
            }
            found = runtime.run(name, inputs)
            expected = _outputs(module, inputs, [value.name for value in graph.outputs])
            if isinstance(module, ArgmaxDecoder):
                chosen = int(found.pop("token_id").reshape(()))
                expected.pop("token_id")
                found["token_id"], expected["token_id"] = _as_good(module, inputs, chosen)
            yield GraphRun(
                name, kind == "encoder", {output: (found[output], expected[output]) for output in expected}
            )


def coreai_graphs(runtime: CoreAiRuntime, network: Network) -> Iterator[GraphRun]:
    """Run every entry point of every graph of a Core AI bundle."""
    layout: Layout = "six" if runtime.framing == "native" else "sharded"
    made = entry_points(network, layout, runtime.att_context, runtime.call_frames, "fp32", "fp32")
    names = graph_names(runtime.framing, runtime.weights)  # of shards: with how their weights are stored
    for name, (_, graphs) in zip(names, made, strict=True):
        is_encoder = name.startswith(("stream_", "encoder_shard"))
        for graph in graphs:
            rng = np.random.default_rng(0)
            inputs = {key: _like(key, example, runtime.config, rng) for key, example in graph.inputs.items()}
            found = runtime.assets.call(name, inputs, graph.name)
            expected = _outputs(graph.module, inputs, list(graph.outputs))
            entry = "" if len(graphs) == 1 else f" {graph.name}"
            outputs = {output: (found[output], expected[output]) for output in expected}
            yield GraphRun(f"{name}{entry}", is_encoder, outputs)


def _outputs(module: nn.Module, inputs: Arrays, names: list[str]) -> Arrays:
    with torch.no_grad():
        results = module.eval()(*map(torch.from_numpy, inputs.values()))
    results = results if isinstance(results, tuple) else (results,)
    return {name: result.numpy() for name, result in zip(names, results, strict=True)}


def _floats(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[Any]:
    """Numbers of the size that such an input has, which fp16 holds."""
    if name == "neg_mask":  # the older half of the past is not there
        mask = np.zeros(shape, np.float32)
        mask[..., : shape[-1] // 2] = HIDDEN_KEY
        return mask
    if name == "one_hot":
        return np.eye(1, shape[1], _LANGUAGE % shape[1], np.float32)
    mean, size = (-8, 3) if name in _MEL else (0, 0.1) if name == "audio" else (0, 1)
    return rng.normal(mean, size, shape).astype(np.float16).astype(np.float32)


def _whole(shape: tuple[int, ...], number: int) -> NDArray[Any]:
    return np.full(shape, number, np.int32)


def _number(
    name: str, graph: Graph, contract: Contract, config: ModelConfig, rng: np.random.Generator
) -> int:
    if name in _TOKENS:
        return int(rng.integers(config.vocab_size))
    if name == "length":
        return contract.window_mel_frames if graph.takes[name] == WINDOW_LENGTH else contract.frames
    known = {"audio_length": graph.inputs[0].shape[1], "prompt_id": _LANGUAGE}
    known |= dict.fromkeys(_CACHE_LENGTHS, contract.att_context[0] // 2)
    return known.get(name, 1)  # else the number of tokens of a call


def _like(name: str, example: Tensor, config: ModelConfig, rng: np.random.Generator) -> NDArray[Any]:
    if example.dtype.is_floating_point:
        return _floats(name, tuple(example.shape), rng)
    numbers = {
        "token": int(rng.integers(config.vocab_size)),
        "prompt_id": _LANGUAGE,
        "cache_len": config.default_att_context[0] // 2,
        "mel_length": int(example) - 5,
    }
    return _whole(tuple(example.shape), numbers.get(name, int(example.reshape(-1)[0])))


def _as_good(module: ArgmaxDecoder, inputs: Arrays, chosen: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """How far the chosen token's logit, and the largest one, are above the mean: a tie is no fault."""
    token, _, h, c, frame = map(torch.from_numpy, inputs.values())
    with torch.no_grad():
        logits = module.run(token, (h, c), frame)[0].reshape(-1).numpy()
    above = logits - logits.mean()
    return above[chosen : chosen + 1], above.max(keepdims=True)
