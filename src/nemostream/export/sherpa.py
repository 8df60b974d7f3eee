"""Export in the layout that sherpa-onnx loads: NeMo's fixed windows, NeMo's caches, one chunk size.

sherpa-onnx finds inputs and outputs by their place and sizes by the encoder's metadata, so both are a
contract. Its runtime computes Kaldi-style features and uniform windows, so its numbers are not those of
native framing.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor, nn

from nemostream.checkpoints.bundle import TOKENS, Manifest
from nemostream.config import FRAME_MS, SUBSAMPLING_FACTOR
from nemostream.errors import BackendError
from nemostream.export.manifest import write_manifest
from nemostream.export.traced import Axes, check_packages, write_graph
from nemostream.framing import UNIFORM_HISTORY
from nemostream.model.network import Network
from nemostream.model.uniform import UniformState, initial_uniform_state, uniform_step
from nemostream.text.tokenizer import Tokenizer

ENCODER, DECODER, JOINER = "encoder.onnx", "decoder.onnx", "joiner.onnx"
_TRACE_BATCH = 2  # neither 0 nor 1, which the exporter would take as fixed


def export_sherpa(
    network: Network,
    tokenizer: Tokenizer,
    folder: Path,
    *,
    source: str,
    source_revision: str | None = None,
    att_context: tuple[int, int] | None = None,
) -> Manifest:
    """Write a folder for sherpa-onnx, in fp32.

    Args:
        network: the model, on the CPU in fp32.
        tokenizer: its pieces.
        folder: where to write; made if it does not exist.
        source: path or id of the checkpoint, for the manifest.
        source_revision: its commit on the hub.
        att_context: (left, right) context, which is fixed; None is the model's default.

    Raises:
        BackendError: if a package for exporting is missing.
        ContextError: if the context cannot stream.
    """
    check_packages()
    config = network.config
    left, right = config.resolve_att_context(att_context)
    if left < 1:
        raise BackendError("A sherpa-onnx bundle needs left context; choose one of 1 frame or more.")
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_tokens_txt(folder / TOKENS)
    with torch.no_grad():
        files = [
            TOKENS,
            *_export_encoder(network, folder / ENCODER, left, right),
            *_export_decoder(network, folder / DECODER),
            *_export_joiner(network, folder / JOINER),
        ]
    return write_manifest(
        folder,
        config=config,
        runtime="sherpa",
        framing="uniform",
        max_frames=right + 1,
        weights="fp32",
        source=source,
        source_revision=source_revision,
        files=files,
    )


class _Encoder(nn.Module):
    """Window in, frames [B, D, N] after the prompt out; caches with the batch first."""

    def __init__(self, network: Network, left: int, right: int) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("context", torch.tensor([[left, right]]))
        for index, table in enumerate(network.encoder.position_tables(left, right + 1)):
            self.register_buffer(f"positions_{index}", table.contiguous())

    def forward(
        self, audio: Tensor, length: Tensor, channel: Tensor, time: Tensor, filled: Tensor, prompt: Tensor
    ) -> tuple[Tensor, ...]:
        encoder = self.network.encoder
        tables = [getattr(self, f"positions_{index}") for index in range(len(encoder.layers))]
        state = UniformState(channel.transpose(0, 1), time.transpose(0, 1), filled)
        context = self.context.expand(audio.shape[0], 2)  # type: ignore[operator]
        x, lengths, state = uniform_step(encoder, audio.transpose(1, 2), length, state, context, tables)
        x = self.network.fuse(x, prompt)
        caches = (state.cache_last_channel.transpose(0, 1), state.cache_last_time.transpose(0, 1))
        return (x.transpose(1, 2), lengths, *caches, state.cache_last_channel_len)


class _Decoder(nn.Module):
    """Tokens [B, U] and LSTM states to [B, H, U]."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.decoder = network.decoder

    def forward(self, targets: Tensor, length: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        output, (new_h, new_c) = self.decoder.lstm(self.decoder.embedding(targets.long()), (h, c))
        return output.transpose(1, 2), length + 0, new_h, new_c


class _Joiner(nn.Module):
    """[B, D, T] and [B, H, U] to logits [B, T, U, V + 1]; both projections are in here."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.encoder, self.decoder = network.encoder_projector, network.decoder.decoder_projector
        self.joint = network.joint

    def forward(self, encoded: Tensor, predicted: Tensor) -> Tensor:
        encoded = self.encoder(encoded.transpose(1, 2)).unsqueeze(2)
        predicted = self.decoder(predicted.transpose(1, 2)).unsqueeze(1)
        return self.joint(encoded, predicted)  # type: ignore[no-any-return]


def _export_encoder(network: Network, path: Path, left: int, right: int) -> list[str]:
    config, batch = network.config, _TRACE_BATCH
    shift = SUBSAMPLING_FACTOR * (right + 1)
    window = shift + UNIFORM_HISTORY
    state = initial_uniform_state(network.encoder, batch, left)
    arguments = (
        torch.zeros(batch, config.num_mel_bins, window),
        torch.full((batch,), window),
        state.cache_last_channel.transpose(0, 1),
        state.cache_last_time.transpose(0, 1),
        state.cache_last_channel_len,
        torch.zeros(batch, dtype=torch.int64),
    )
    caches = ["cache_last_channel", "cache_last_time", "cache_last_channel_len"]
    names = ["audio_signal", "length", *caches, *(["prompt_index"] if config.has_prompt else [])]
    outputs = ["outputs", "encoded_lengths", *caches]
    outputs[2:] = ["cache_last_channel_next", "cache_last_time_next", "cache_last_channel_next_len"]
    axes: Axes = {name: {0: "batch"} for name in (*names, *outputs)}
    sizes = {
        "cache_last_channel": (config.num_layers, left, config.hidden_size),
        "cache_last_time": (config.num_layers, config.hidden_size, config.conv_kernel_size - 1),
    }
    metadata: dict[str, object] = {
        "version": 1,
        "model_type": "EncDecRNNTBPEModelWithPrompt" if config.has_prompt else "EncDecRNNTBPEModel",
        "vocab_size": config.vocab_size,  # without the blank
        "normalize_type": "",
        "window_size": window,
        "chunk_shift": shift,
        "chunk_size_ms": (right + 1) * FRAME_MS,
        "subsampling_factor": SUBSAMPLING_FACTOR,
        "feat_dim": config.num_mel_bins,
        "pred_rnn_layers": config.predictor_layers,
        "pred_hidden": config.predictor_hidden_size,
        **{f"{name}_dim{i}": size for name, dims in sizes.items() for i, size in enumerate(dims, 1)},
    }
    if config.has_prompt:
        metadata["prompt_dictionary"] = json.dumps(dict(config.prompts))
        metadata["auto_prompt_id"] = config.prompt_id(config.default_language)
    module = _Encoder(network, left, right)
    return write_graph(
        module, arguments, names, outputs, axes, path, {key: str(value) for key, value in metadata.items()}
    )


def _export_decoder(network: Network, path: Path) -> list[str]:
    batch = _TRACE_BATCH
    targets = torch.zeros(batch, 1, dtype=torch.int32)
    arguments = (targets, torch.ones(batch, dtype=torch.int32), *network.initial_predictor_state(batch))
    names, outputs = ["targets", "target_length", "h", "c"], ["outputs", "prednet_lengths", "new_h", "new_c"]
    axes: Axes = {name: {0: "batch"} for name in ("targets", "target_length", "outputs", "prednet_lengths")}
    axes |= {name: {1: "batch"} for name in ("h", "c", "new_h", "new_c")}
    axes["targets"][1] = axes["outputs"][2] = "tokens"
    return write_graph(_Decoder(network), arguments, names, outputs, axes, path)


def _export_joiner(network: Network, path: Path) -> list[str]:
    config, batch = network.config, _TRACE_BATCH
    arguments = (
        torch.zeros(batch, config.hidden_size, 3),
        torch.zeros(batch, config.predictor_hidden_size, 3),
    )
    names, outputs = ["encoder_outputs", "decoder_outputs"], ["outputs"]
    axes: Axes = {name: {0: "batch", 2: "frames"} for name in names}
    axes["decoder_outputs"][2] = "tokens"
    axes["outputs"] = {0: "batch", 1: "frames", 2: "tokens"}
    return write_graph(_Joiner(network), arguments, names, outputs, axes, path)
