"""The whole network: encoder, language prompt, predictor, joint.

    mel -> encoder -> prompt -> encoder_projector --+
                                                    +-> joint -> token
    tokens so far -> predictor ---------------------+

Module names are those of the Hugging Face checkpoints, so a state dict loads as it is.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nemostream.config import ModelConfig
from nemostream.model.encoder import Encoder

LstmState = tuple[Tensor, Tensor]


class PromptProjector(nn.Module):
    """Fuses the language with every encoder frame by an MLP over [frame, one-hot slot], without residual."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.hidden_size = config.hidden_size
        self.linear_1 = nn.Linear(config.hidden_size + config.num_prompts, config.prompt_intermediate_size)
        self.linear_2 = nn.Linear(config.prompt_intermediate_size, config.hidden_size)

    def forward(self, x: Tensor, prompt_ids: Tensor) -> Tensor:
        """x [B, T, D], prompt_ids [B] int64 -> [B, T, D].

        The one-hot half of the first matrix product is a column of its weight, so it is looked up.
        """
        weight = self.linear_1.weight
        column = weight[:, self.hidden_size :].t()[prompt_ids].unsqueeze(1)
        inner = nn.functional.linear(x, weight[:, : self.hidden_size], self.linear_1.bias) + column
        return self.linear_2(torch.relu(inner))  # type: ignore[no-any-return]


class Predictor(nn.Module):
    """Embedding, LSTM, projection to the joint (checkpoint prefix ``decoder``)."""

    def __init__(self, config: ModelConfig, dropout: float = 0.0) -> None:
        super().__init__()
        size = config.predictor_hidden_size
        self.embedding = nn.Embedding(config.vocab_size + 1, size, padding_idx=config.blank_id)
        self.lstm = nn.LSTM(size, size, config.predictor_layers, batch_first=True)
        self.decoder_projector = nn.Linear(size, config.joint_hidden_size)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor, state: LstmState) -> tuple[Tensor, LstmState]:
        """tokens [B, U] int64, state (h, c) [layers, B, H] each -> [B, U, J] and the new state.

        A stream begins with zeros as state and the blank as token.
        """
        output, state = self.lstm(self.dropout(self.embedding(tokens)), state)
        return self.decoder_projector(self.dropout(output)), state


class Joint(nn.Module):
    """relu(encoder + predictor), then one linear layer to pieces and blank (``joint.head``)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.head = nn.Linear(config.joint_hidden_size, config.vocab_size + 1)

    def forward(self, encoded: Tensor, predicted: Tensor) -> Tensor:
        """encoded [..., J] and predicted [..., J], broadcast together -> logits [..., V + 1]."""
        return self.head(torch.relu(encoded + predicted))  # type: ignore[no-any-return]


class Network(nn.Module):
    """A model of the family, as its config says."""

    def __init__(self, config: ModelConfig, dropout: float = 0.0) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config, dropout)
        self.encoder_projector = nn.Linear(config.hidden_size, config.joint_hidden_size)
        if config.has_prompt:
            self.prompt_projector = PromptProjector(config)
        self.decoder = Predictor(config, dropout)
        self.joint = Joint(config)

    def fuse(self, encoded: Tensor, prompt_ids: Tensor) -> Tensor:
        """Apply the language prompt: [B, T, D], [B] -> [B, T, D]; the identity for a model without one."""
        return self.prompt_projector(encoded, prompt_ids) if self.config.has_prompt else encoded

    def project(self, encoded: Tensor, prompt_ids: Tensor) -> Tensor:
        """Language prompt and projection to the joint: [B, T, D], [B] -> [B, T, J]."""
        return self.encoder_projector(self.fuse(encoded, prompt_ids))  # type: ignore[no-any-return]

    def initial_predictor_state(self, batch: int) -> LstmState:
        """Zeros: (h, c), each [layers, B, H]."""
        zeros = self.joint.head.weight.new_zeros(
            self.config.predictor_layers, batch, self.config.predictor_hidden_size
        )
        return zeros, zeros.clone()
