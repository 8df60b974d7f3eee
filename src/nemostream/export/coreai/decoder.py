"""Predictor and joint as Core AI graphs, always in fp32."""

from __future__ import annotations

from torch import Tensor, nn

from nemostream.export.coreai.assets import Graph
from nemostream.model.network import Network
from nemostream.runtimes import coreai_graphs as graphs


class _Predict(nn.Module):
    """One token [1, 1] and the state h, c [layers, 1, H] to [1, J] and the new state."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.decoder = network.decoder

    def forward(self, token: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        predicted, (new_h, new_c) = self.decoder(token, (h, c))
        return predicted[:, 0], new_h, new_c


class _Joint(nn.Module):
    """[1, J] and an encoder frame [1, J], or frames [1, N, J], to logits [1, V + 1] or [1, N, V + 1]."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.joint = network.joint

    def forward(self, predicted: Tensor, encoded: Tensor) -> Tensor:
        return self.joint(encoded, predicted if encoded.ndim == 2 else predicted[:, None])  # type: ignore[no-any-return]


class _Project(nn.Module):
    """Encoder frames [1, D, N] to the width of the joint, [1, N, J]."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.encoder_projector = network.encoder_projector

    def forward(self, encoder: Tensor) -> Tensor:
        return self.encoder_projector(encoder.transpose(1, 2))  # type: ignore[no-any-return]


class _DecoderJoint(nn.Module):
    """Predictor, projection and joint in one: logits [1, N, V + 1] of all frames of a chunk after one token.

    ``token_length`` is always 1 and not looked at; hosts of this layout give it.
    """

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.predict, self.project, self.joint = _Predict(network), _Project(network), _Joint(network)

    def forward(
        self, token: Tensor, token_length: Tensor, h: Tensor, c: Tensor, encoder: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        predicted, new_h, new_c = self.predict(token, h, c)
        return self.joint(predicted, self.project(encoder)), new_h, new_c


def predict_graph(network: Network, name: str = graphs.MAIN) -> Graph:
    """Entry point of the predictor."""
    token = network.decoder.embedding.weight.new_zeros(1, 1).int()
    state = dict(zip(graphs.LSTM_STATE, network.initial_predictor_state(1), strict=True))
    return Graph(
        _Predict(network), {"token": token, **state}, ("dec_out", *graphs.out(graphs.LSTM_STATE)), name
    )


def joint_graph(network: Network, frames: int | None, name: str = graphs.MAIN) -> Graph:
    """Entry point of the joint for one frame (None), or for ``frames`` of them."""
    like, width = network.joint.head.weight, network.config.joint_hidden_size
    encoded = like.new_zeros(1, width) if frames is None else like.new_zeros(1, frames, width)
    inputs = {"dec_out": like.new_zeros(1, width), "enc_frame": encoded}
    return Graph(_Joint(network), inputs, ("token_logits",), name)


def decoder_joint_graphs(network: Network, frames: int) -> list[Graph]:
    """Entry points of the fused decoder, and of its parts."""
    predict = predict_graph(network, graphs.PREDICT_ONLY)
    encoder = network.joint.head.weight.new_zeros(1, network.config.hidden_size, frames)
    token = predict.inputs["token"]
    inputs = {
        "token": token,
        "token_length": token[0] + 1,
        "h_in": predict.inputs["h"],
        "c_in": predict.inputs["c"],
        "encoder": encoder,
    }
    return [
        Graph(_DecoderJoint(network), inputs, ("logits", "h_out", "c_out")),
        Graph(_Project(network), {"encoder": encoder}, ("enc_proj",), graphs.PROJECT),
        predict,
        joint_graph(network, frames, graphs.JOINT_ONLY),
    ]
