"""What CoreML bundles are made of: the graphs of each layout, name by name and shape by shape.

`nemostream.export.coreml` writes what is described here, and every runtime of such a bundle reads it; nothing
but the model's config, the layout and the size of a call is needed to know it all.

    layout   published for            encoder                        decoder
    single   3.5, Macs                one step                       prompt and projection, predictor, joint
    english  the English model        one step, caches batch first   predictor and joint in one
    sharded  3.5, iPhones and Macs    pre-encode and four shards     predictor, joint; both in one with argmax
    watch    3.5, Apple Watch         the same                       predictor; both in one with argmax

All have uniform framing (`nemostream.model.uniform`): every call takes a window of 9 + 8 N mel frames and the
caches of the call before, and gives N encoder frames. A graph has no hidden state: what it carries from one
call to the next is among its inputs and outputs, see `Graph.state`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from nemostream.config import MEL_HOP_SAMPLES, SUBSAMPLING_FACTOR, ModelConfig
from nemostream.framing import UNIFORM_HISTORY

Layout = Literal["single", "english", "sharded", "watch"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)
Dtype = Literal["float32", "float16", "int32"]

SHARDS = 4
JOINT_WINDOW = 8  # encoder frames that `joint_noencproj_batched` looks at in one call

# sources of an encoder graph's inputs, see `Graph.takes`
WINDOW = "window"  # float32 [1, F, 9 + 8 N]: mel frames, band-major
WINDOW_LENGTH = "window_length"  # int32 [1]: mel frames up to the last real one, the 9 of history included
PROMPT_ID = "prompt_id"  # int32 [1]: slot of the language

NATIVE_WEIGHTS = "coreml/native_weights"  # folder: the decoder's weights, for hosts that decode themselves
METADATA, TOKENIZER, CONFIG = "metadata.json", "tokenizer.json", "config.json"


@dataclass(frozen=True)
class Value:
    """An input or output of a graph."""

    name: str
    shape: tuple[int, ...]
    dtype: Dtype = "float32"


@dataclass(frozen=True)
class Graph:
    """A graph, one ``.mlpackage``.

    Attributes:
        name: of the graph, and of its file.
        path: of the ``.mlpackage`` folder inside the bundle.
        inputs: in the order of the contract.
        outputs: in the order of the contract.
        state: input -> output of the previous call that it takes; zeros in a stream's first call.
        takes: other inputs of an encoder graph -> `WINDOW`, `WINDOW_LENGTH`, `PROMPT_ID`, or "GRAPH.OUTPUT"
            of a graph that runs before it in the same call. Empty for decoder graphs.
    """

    name: str
    path: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    state: Mapping[str, str] = field(default_factory=dict)
    takes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SplitDecoder:
    """Predictor and joint are two graphs; the joint takes projected encoder frames, `JOINT_WINDOW` a call.

    Attributes:
        predictor: graph ``token``, ``token_length``, ``h_in``, ``c_in`` -> ``decoder_out [1, H, 1]``,
            ``h_out``, ``c_out``.
        joint: graph ``encoder_proj [1, 8, J]``, ``decoder [1, H, 1]`` -> ``logits [1, 8, 1, V + 1]``.
        projection: graph that projects a call's encoder frames (input ``encoder``, ``prompt_id`` if the model
            has a prompt, output ``encoder_proj``), or None if the host does that with `NATIVE_WEIGHTS`.
    """

    predictor: str
    joint: str
    projection: str | None


@dataclass(frozen=True)
class FusedDecoder:
    """Predictor, projection and joint are one graph, which looks at one encoder frame.

    Greedy: call it with the last token (blank at the start), its state *before* that token, and the frame; on
    a token adopt the new state and call again; on blank drop the new state and go to the next frame.

    Attributes:
        graph: its name.
        frame: input, [1, D, 1].
        token: input, int32 [1, 1].
        length: input, int32 [1], always 1.
        state: inputs (h, c) [layers, 1, H].
        new_state: outputs that belong to them.
        logits: output [1, 1, 1, V + 1], or None.
        best: output with the most likely token, int32 [1, 1, 1], or None; one of the two is there.
    """

    graph: str
    frame: str
    token: str
    length: str
    state: tuple[str, str]
    new_state: tuple[str, str]
    logits: str | None
    best: str | None


@dataclass(frozen=True)
class Contract:
    """A bundle's graphs and how they are called.

    Attributes:
        layout: one of `LAYOUTS`.
        att_context: (left, right) context, which is fixed.
        frames: encoder frames N of every call.
        graphs: by name; all that the bundle has.
        encoder: names of the graphs that a call runs, in order.
        encoded: "GRAPH.OUTPUT" with the encoder's frames [1, D, N].
        valid: "GRAPH.OUTPUT" with their valid number, int32 [1]; None if no graph knows: see `valid_frames`.
        decoder: how tokens come out.
    """

    layout: Layout
    att_context: tuple[int, int]
    frames: int
    graphs: Mapping[str, Graph]
    encoder: tuple[str, ...]
    encoded: str
    valid: str | None
    decoder: SplitDecoder | FusedDecoder

    @property
    def chunk_mel_frames(self) -> int:
        """New mel frames of a call."""
        return SUBSAMPLING_FACTOR * self.frames

    @property
    def window_mel_frames(self) -> int:
        """Mel frames of a call, the history included."""
        return UNIFORM_HISTORY + self.chunk_mel_frames


def valid_frames(window_length: int) -> int:
    """Encoder frames that a window of ``window_length`` real mel frames, history included, gives."""
    return max(0, -(-(window_length - UNIFORM_HISTORY) // SUBSAMPLING_FACTOR))


def shard_layers(num_layers: int) -> list[range]:
    """Which layers each shard has: as even as can be, the first ones longer; 6 each of 24."""
    short, longer = divmod(num_layers, SHARDS)
    starts = [index * short + min(index, longer) for index in range(SHARDS + 1)]
    return [range(start, stop) for start, stop in itertools.pairwise(starts)]


def contract(config: ModelConfig, layout: Layout, att_context: tuple[int, int], frames: int) -> Contract:
    """The contract of a bundle of this model.

    Args:
        config: the model.
        layout: one of `LAYOUTS`.
        att_context: (left, right) context.
        frames: encoder frames of every call.
    """
    builder = {"single": _single, "english": _english, "sharded": _sharded, "watch": _sharded}[layout]
    return builder(config, layout, att_context, frames)


def _single(config: ModelConfig, layout: Layout, att_context: tuple[int, int], frames: int) -> Contract:
    layers, width, left = config.num_layers, config.hidden_size, att_context[0]
    channel, time = (layers, 1, left, width), (layers, 1, width, config.conv_kernel_size - 1)
    caches = ("cache_last_channel", "cache_last_time", "cache_last_channel_len")
    encoder = Graph(
        "encoder",
        "encoder.mlpackage",
        (
            Value("processed_signal", (1, config.num_mel_bins, _window(frames))),
            Value("cache_last_channel", channel, "float16"),
            Value("cache_last_time", time, "float16"),
            Value("cache_last_channel_len", (1,), "int32"),
        ),
        (
            Value("encoded", (1, width, frames), "float16"),
            Value("new_cache_last_channel", channel, "float16"),
            Value("new_cache_last_time", time, "float16"),
            Value("new_cache_last_channel_len", (1,), "int32"),
        ),
        {name: f"new_{name}" for name in caches},
        {"processed_signal": WINDOW},
    )
    projection = Graph(
        "prompt_projection",
        "prompt_projection.mlpackage",
        (Value("encoder", (1, width, frames), "float16"), *_prompt(config)),
        (Value("encoder_proj", (1, frames, config.joint_hidden_size)),),
    )
    parts = (encoder, projection, _predictor(config, ""), _joint(config, ""))
    decoder = SplitDecoder("decoder", "joint_noencproj_batched", projection.name)
    return Contract(
        layout, att_context, frames, _by_name(parts), ("encoder",), "encoder.encoded", None, decoder
    )


def _english(config: ModelConfig, layout: Layout, att_context: tuple[int, int], frames: int) -> Contract:
    layers, width, left = config.num_layers, config.hidden_size, att_context[0]
    channel, time = (1, layers, left, width), (1, layers, width, config.conv_kernel_size - 1)
    encoder = Graph(
        "encoder",
        "encoder.mlpackage",
        (
            Value("audio_signal", (1, config.num_mel_bins, _window(frames))),
            Value("length", (1,), "int32"),
            Value("cache_last_channel", channel),
            Value("cache_last_time", time),
            Value("cache_last_channel_len", (1,), "int32"),
            *_prompt(config),
        ),
        (
            Value("outputs", (1, width, frames), "float16"),
            Value("encoded_lengths", (1,), "int32"),
            Value("cache_last_channel_next", channel, "float16"),
            Value("cache_last_time_next", time, "float16"),
            Value("cache_last_channel_next_len", (1,), "int32"),
        ),
        {
            "cache_last_channel": "cache_last_channel_next",
            "cache_last_time": "cache_last_time_next",
            "cache_last_channel_len": "cache_last_channel_next_len",
        },
        {
            "audio_signal": WINDOW,
            "length": WINDOW_LENGTH,
            **({PROMPT_ID: PROMPT_ID} if config.has_prompt else {}),
        },
    )
    state = (config.predictor_layers, 1, config.predictor_hidden_size)
    decoder = Graph(
        "decoder",
        "decoder.mlpackage",
        (
            Value("encoder_outputs", (1, width, 1)),
            Value("targets", (1, 1), "int32"),
            Value("target_length", (1,), "int32"),
            Value("input_states_1", state),
            Value("input_states_2", state),
        ),
        (
            Value("outputs", (1, 1, 1, config.vocab_size + 1), "float16"),
            Value("prednet_lengths", (1,), "int32"),
            Value("output_states_1", state, "float16"),
            Value("output_states_2", state, "float16"),
        ),
    )
    fused = FusedDecoder(
        "decoder",
        "encoder_outputs",
        "targets",
        "target_length",
        ("input_states_1", "input_states_2"),
        ("output_states_1", "output_states_2"),
        logits="outputs",
        best=None,
    )
    return Contract(
        layout,
        att_context,
        frames,
        _by_name((encoder, decoder)),
        ("encoder",),
        "encoder.outputs",
        "encoder.encoded_lengths",
        fused,
    )


def _sharded(config: ModelConfig, layout: Layout, att_context: tuple[int, int], frames: int) -> Contract:
    width, bins, window = config.hidden_size, config.num_mel_bins, _window(frames)
    samples, mel_frames = MEL_HOP_SAMPLES * SUBSAMPLING_FACTOR * frames, SUBSAMPLING_FACTOR * frames
    preprocessor = Graph(
        "preprocessor",
        "coreml/preprocessor.mlpackage",
        (Value("audio", (1, samples)), Value("audio_length", (1,), "int32")),
        (Value("mel", (1, bins, mel_frames)), Value("mel_length", (1,), "int32")),
    )
    pre_encode = Graph(
        "encoder_pre_encode",
        "coreml/encoder_pre_encode.mlpackage",
        (Value("mel", (1, bins, window)), Value("length", (1,), "int32")),
        (Value("hidden", (1, frames, width)), Value("length_out", (1,), "int32")),
        takes={"mel": WINDOW, "length": WINDOW_LENGTH},
    )
    shards = [
        _shard(config, index, layers, att_context[0], frames)
        for index, layers in enumerate(shard_layers(config.num_layers))
    ]
    state = (config.predictor_layers, 1, config.predictor_hidden_size)
    argmax = Graph(
        "decoder_joint_argmax",
        "coreml/decoder_joint_argmax.mlpackage",
        (*_predictor(config, "").inputs, Value("encoder", (1, width, 1))),
        (Value("token_id", (1, 1, 1), "int32"), Value("h_out", state), Value("c_out", state)),
    )
    parts = [preprocessor, pre_encode, *shards, _predictor(config, "coreml/"), argmax]
    decoder: SplitDecoder | FusedDecoder = FusedDecoder(
        argmax.name,
        "encoder",
        "token",
        "token_length",
        ("h_in", "c_in"),
        ("h_out", "c_out"),
        logits=None,
        best="token_id",
    )
    if layout == "sharded":
        parts.append(_joint(config, "coreml/"))
        decoder = SplitDecoder("decoder", "joint_noencproj_batched", projection=None)
    last = shards[-1].name
    return Contract(
        layout,
        att_context,
        frames,
        _by_name(parts),
        (pre_encode.name, *(shard.name for shard in shards)),
        f"{last}.encoded",
        f"{last}.length_out",
        decoder,
    )


def _shard(config: ModelConfig, index: int, layers: range, left: int, frames: int) -> Graph:
    width, last = config.hidden_size, index == SHARDS - 1
    channel = (1, len(layers), left, width)
    time = (1, len(layers), width, config.conv_kernel_size - 1)
    before = "encoder_pre_encode.hidden" if index == 0 else f"encoder_shard_{index - 1}.hidden_out"
    before_length = f"{before.partition('.')[0]}.length_out"
    encoded = Value("encoded", (1, width, frames)) if last else Value("hidden_out", (1, frames, width))
    caches = ("cache_channel", "cache_time", "cache_len")
    return Graph(
        f"encoder_shard_{index}",
        f"coreml/encoder_shard_{index}.mlpackage",
        (
            Value("hidden", (1, frames, width)),
            Value("length", (1,), "int32"),
            Value("cache_channel", channel),
            Value("cache_time", time),
            Value("cache_len", (1,), "int32"),
            *_prompt(config),
        ),
        (
            encoded,
            Value("length_out", (1,), "int32"),
            Value("cache_channel_out", channel),
            Value("cache_time_out", time),
            Value("cache_len_out", (1,), "int32"),
        ),
        {name: f"{name}_out" for name in caches},
        {
            "hidden": before,
            "length": before_length,
            **({PROMPT_ID: PROMPT_ID} if config.has_prompt else {}),
        },
    )


def _predictor(config: ModelConfig, folder: str) -> Graph:
    state = (config.predictor_layers, 1, config.predictor_hidden_size)
    return Graph(
        "decoder",
        f"{folder}decoder.mlpackage",
        (
            Value("token", (1, 1), "int32"),
            Value("token_length", (1,), "int32"),
            Value("h_in", state),
            Value("c_in", state),
        ),
        (
            Value("decoder_out", (1, config.predictor_hidden_size, 1)),
            Value("h_out", state),
            Value("c_out", state),
        ),
        {"h_in": "h_out", "c_in": "c_out"},
    )


def _joint(config: ModelConfig, folder: str) -> Graph:
    return Graph(
        "joint_noencproj_batched",
        f"{folder}joint_noencproj_batched.mlpackage",
        (
            Value("encoder_proj", (1, JOINT_WINDOW, config.joint_hidden_size)),
            Value("decoder", (1, config.predictor_hidden_size, 1)),
        ),
        (Value("logits", (1, JOINT_WINDOW, 1, config.vocab_size + 1)),),
    )


def _window(frames: int) -> int:
    return UNIFORM_HISTORY + SUBSAMPLING_FACTOR * frames


def _prompt(config: ModelConfig) -> tuple[Value, ...]:
    return (Value(PROMPT_ID, (1,), "int32"),) if config.has_prompt else ()


def _by_name(graphs: list[Graph] | tuple[Graph, ...]) -> dict[str, Graph]:
    return {graph.name: graph for graph in graphs}
