"""The decoder's graphs as torch modules: predictor, joint, both in one, and prompt with projection."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nemostream.model.network import LstmState, Network


class Predictor(nn.Module):
    """One token [1, 1] and LSTM states [layers, 1, H] to the LSTM's output [1, H, 1] and the new states.

    The projection to the joint is in the joint's graph. ``token_length`` is an input of NeMo's and always 1.
    The one step of the LSTM is written out, since coremltools reads no LSTM from an exported program.
    """

    def __init__(self, network: Network) -> None:
        super().__init__()
        decoder = network.decoder
        self.embedding = decoder.embedding
        self.from_input = nn.ModuleList(
            _gates(decoder.lstm, "ih", layer) for layer in range(decoder.lstm.num_layers)
        )
        self.from_state = nn.ModuleList(
            _gates(decoder.lstm, "hh", layer) for layer in range(decoder.lstm.num_layers)
        )

    def forward(self, token: Tensor, token_length: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        """Token, length, h, c -> output, h, c."""
        output, (h, c) = self.run(token, (h, c))
        return output.transpose(1, 2), h, c

    def run(self, token: Tensor, state: LstmState) -> tuple[Tensor, LstmState]:
        """The LSTM's output [1, 1, H] and the new state."""
        x, new_h, new_c = self.embedding(token)[:, 0], [], []
        for layer, (from_input, from_state) in enumerate(zip(self.from_input, self.from_state, strict=True)):
            gates = from_input(x) + from_state(state[0][layer])
            write, keep, value, read = gates.chunk(4, dim=1)  # torch calls them i, f, g, o
            c = torch.sigmoid(keep) * state[1][layer] + torch.sigmoid(write) * torch.tanh(value)
            x = torch.sigmoid(read) * torch.tanh(c)
            new_h.append(x)
            new_c.append(c)
        return x.unsqueeze(1), (torch.stack(new_h), torch.stack(new_c))


def _gates(lstm: nn.LSTM, source: str, layer: int) -> nn.Linear:
    """The gates' part that comes from the ``source`` "ih" (input) or "hh" (state) of a layer."""
    weight = getattr(lstm, f"weight_{source}_l{layer}")
    linear = nn.Linear(weight.shape[1], weight.shape[0])
    linear.weight, linear.bias = weight, getattr(lstm, f"bias_{source}_l{layer}")
    return linear


class WindowJoint(nn.Module):
    """Projected frames [1, W, J] and the LSTM's output [1, H, 1] to logits [1, W, 1, V + 1]."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.decoder_projector, self.joint = network.decoder.decoder_projector, network.joint

    def forward(self, encoder_proj: Tensor, decoder: Tensor) -> Tensor:
        """Frames, output of the LSTM -> logits."""
        predicted = self.decoder_projector(decoder.transpose(1, 2))
        return self.joint(encoder_proj, predicted).unsqueeze(2)  # type: ignore[no-any-return]


class PromptProjection(nn.Module):
    """Encoder frames [1, D, N] and the language's slot to frames for the joint, [1, N, J]."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.encoder_projector = network.encoder_projector
        if network.config.has_prompt:
            self.prompt_projector = network.prompt_projector

    def forward(self, encoder: Tensor, *prompt: Tensor) -> Tensor:
        """Frames and, if the model has prompts, the slot [1] -> projected frames."""
        x = encoder.transpose(1, 2)
        if prompt:
            x = self.prompt_projector(x, *prompt)
        return self.encoder_projector(x)  # type: ignore[no-any-return]


class _Fused(nn.Module):
    """One token, the states before it and one frame [1, D, 1] to logits [1, 1, V + 1] and new states."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.predictor = Predictor(network)
        self.encoder_projector = network.encoder_projector
        self.decoder_projector, self.joint = network.decoder.decoder_projector, network.joint

    def run(self, token: Tensor, state: LstmState, encoder: Tensor) -> tuple[Tensor, LstmState]:
        output, state = self.predictor.run(token, state)
        encoded = self.encoder_projector(encoder.transpose(1, 2))
        return self.joint(encoded, self.decoder_projector(output)), state


class EnglishDecoder(_Fused):
    """Layout "english": NeMo's ``decoder_joint``, logits [1, 1, 1, V + 1]."""

    def forward(
        self, encoder: Tensor, targets: Tensor, target_length: Tensor, h: Tensor, c: Tensor
    ) -> tuple[Tensor, ...]:
        """Frame, token, length, h, c -> logits, length, h, c."""
        logits, (h, c) = self.run(targets, (h, c), encoder)
        return logits.unsqueeze(1), target_length.clamp(min=0), h, c


class ArgmaxDecoder(_Fused):
    """Layouts "sharded" and "watch": the most likely token [1, 1, 1] instead of logits."""

    def forward(
        self, token: Tensor, token_length: Tensor, h: Tensor, c: Tensor, encoder: Tensor
    ) -> tuple[Tensor, ...]:
        """Token, length, h, c, frame -> token, h, c."""
        logits, (h, c) = self.run(token, (h, c), encoder)
        return logits.argmax(dim=2, keepdim=True), h, c
