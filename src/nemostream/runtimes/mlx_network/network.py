"""The two halves of the network: from mel frames to the joint's input, and from tokens to tokens.

    mel -> encoder -> prompt -> encoder_projector --+
                                                    +-> joint -> token
    tokens so far -> predictor ---------------------+

They are separate because the second may run elsewhere (`nemostream.runtimes.onnx_decoder`).
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
from mlx import nn

from nemostream.config import ModelConfig
from nemostream.runtimes.mlx_network.conformer import ConformerLayer, LayerState
from nemostream.runtimes.mlx_network.subsampling import Subsampling


class Encoder(nn.Module):
    """Stem and conformer layers (checkpoint prefix ``encoder``)."""

    def __init__(self, config: ModelConfig, past: int, max_frames: int) -> None:
        super().__init__()
        self.subsampling = Subsampling(config)
        self.layers = [ConformerLayer(config, past, max_frames) for _ in range(config.num_layers)]

    def __call__(
        self,
        mel: mx.array,
        stem_masks: Sequence[mx.array],
        visible: mx.array,
        stem: Sequence[mx.array],
        layers: Sequence[LayerState],
    ) -> tuple[mx.array, list[mx.array], list[LayerState]]:
        """Encode one call of a whole number of chunks.

        Args:
            mel: [B, 8 N, F] float32.
            stem_masks: see `Subsampling`.
            visible: see `RelativeAttention`.
            stem: state of the stem.
            layers: state of every layer.

        Returns:
            encoded [B, N, D], and the new states of stem and layers.
        """
        x, new_stem = self.subsampling(mel, stem_masks, stem)
        dtype = self.layers[0].norm_out.weight.dtype
        x, real = x.astype(dtype), stem_masks[-1][:, :, None].astype(dtype)
        new_layers = []
        for layer, state in zip(self.layers, layers, strict=True):
            x, new = layer(x, state, visible, real)
            new_layers.append(new)
        return x, new_stem, new_layers


class PromptProjector(nn.Module):
    """Fuses the language with every encoder frame by an MLP over [frame, one-hot slot], without residual.

    The one-hot half of ``linear_1`` is a table to look up: ``slots`` [prompts, inner].
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        inner = config.prompt_intermediate_size
        self.linear_1 = nn.Linear(config.hidden_size, inner)
        self.slots = mx.zeros((config.num_prompts, inner))
        self.linear_2 = nn.Linear(inner, config.hidden_size)

    def __call__(self, x: mx.array, prompt_ids: mx.array) -> mx.array:
        """x [B, T, D], prompt_ids [B] -> [B, T, D]."""
        return self.linear_2(nn.relu(self.linear_1(x) + self.slots[prompt_ids][:, None]))


class EncoderNetwork(nn.Module):
    """Encoder, language prompt and projection to the joint: what ``encoder.safetensors`` holds."""

    def __init__(self, config: ModelConfig, past: int, max_frames: int) -> None:
        super().__init__()
        self.encoder = Encoder(config, past, max_frames)
        if config.has_prompt:
            self.prompt_projector = PromptProjector(config)
        self.encoder_projector = nn.Linear(config.hidden_size, config.joint_hidden_size)

    def project(self, encoded: mx.array, prompt_ids: mx.array) -> mx.array:
        """Language prompt and projection to the joint: [B, T, D], [B] -> [B, T, J]."""
        fused = self.prompt_projector(encoded, prompt_ids) if "prompt_projector" in self else encoded
        return self.encoder_projector(fused)


class Lstm(nn.Module):
    """Layers of LSTM for one token, with torch's parameters: gates are input, forget, cell, output."""

    def __init__(self, size: int, layers: int) -> None:
        super().__init__()
        self.num_layers = layers
        for layer in range(layers):
            for kind, shape in (("weight", (4 * size, size)), ("bias", (4 * size,))):
                self[f"{kind}_ih_l{layer}"] = mx.zeros(shape)
                self[f"{kind}_hh_l{layer}"] = mx.zeros(shape)

    def __call__(
        self, x: mx.array, state: Sequence[tuple[mx.array, mx.array]]
    ) -> tuple[mx.array, list[tuple[mx.array, mx.array]]]:
        """x [B, H], (h, c) of every layer, [B, H] each -> output [B, H] and the new state."""
        new = []
        for layer, (h, c) in enumerate(state):
            gates = x @ self[f"weight_ih_l{layer}"].T + self[f"bias_ih_l{layer}"]
            gates = gates + h @ self[f"weight_hh_l{layer}"].T + self[f"bias_hh_l{layer}"]
            entry, forget, cell, output = mx.split(gates, 4, axis=1)
            c = mx.sigmoid(forget) * c + mx.sigmoid(entry) * mx.tanh(cell)
            x = mx.sigmoid(output) * mx.tanh(c)
            new.append((x, c))
        return x, new


class Predictor(nn.Module):
    """Embedding, LSTM, projection to the joint (checkpoint prefix ``decoder``)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        size = config.predictor_hidden_size
        self.embedding = nn.Embedding(config.vocab_size + 1, size)
        self.lstm = Lstm(size, config.predictor_layers)
        self.decoder_projector = nn.Linear(size, config.joint_hidden_size)

    def __call__(
        self, tokens: mx.array, state: Sequence[tuple[mx.array, mx.array]]
    ) -> tuple[mx.array, list[tuple[mx.array, mx.array]]]:
        """tokens [B], see `Lstm` for the state -> [B, J] and the new state."""
        output, new = self.lstm(self.embedding(tokens), state)
        return self.decoder_projector(output), new


class Joint(nn.Module):
    """relu(encoder + predictor), then one linear layer to pieces and blank (``joint.head``)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.head = nn.Linear(config.joint_hidden_size, config.vocab_size + 1)

    def __call__(self, encoded: mx.array, predicted: mx.array) -> mx.array:
        """encoded [..., J] and predicted [..., J], broadcast together -> logits [..., V + 1]."""
        return self.head(nn.relu(encoded + predicted))


class DecoderNetwork(nn.Module):
    """Predictor and joint, in fp32 always: they are small, and the joint's differences decide the token."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.decoder = Predictor(config)
        self.joint = Joint(config)
