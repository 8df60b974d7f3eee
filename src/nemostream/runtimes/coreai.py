"""Core AI as a runtime: bundles of `nemostream convert --to coreai`, on a Mac's units or on any CPU.

The graphs have fixed shapes and one stream each call, so a batch is a loop over its rows.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from nemostream.checkpoints.bundle import MANIFEST, TOKENS, read_manifest
from nemostream.errors import BackendError, CheckpointError
from nemostream.framing import UNIFORM_HISTORY
from nemostream.runtimes import coreai_graphs as graphs
from nemostream.runtimes.calls import check_call
from nemostream.runtimes.coreai_assets import CoreAiAssets
from nemostream.runtimes.coreai_encoders import Encoder, EncoderState, ShardedEncoder, SixEncoder
from nemostream.runtimes.coreml_contract import SHARDS
from nemostream.runtimes.protocol import Float32, Framing, Int64, PredictorState
from nemostream.text.tokenizer import Tokenizer


class CoreAiRuntime:
    """`nemostream.runtimes.protocol.FixedRuntime` on Core AI.

    Args:
        bundle: folder made by `nemostream convert --to coreai`.
        compute_units: see `CoreAiAssets`.

    Raises:
        CheckpointError: if the folder is not such a bundle, or was altered.
        BackendError: if Core AI is not installed, or cannot load it.
    """

    name = "coreai"
    framing: Framing

    def __init__(self, bundle: Path, *, compute_units: str | None = None) -> None:
        manifest = read_manifest(bundle)
        if manifest.runtime != "coreai" or manifest.max_frames is None:
            raise BackendError(f"{bundle} is a bundle for {manifest.runtime}, not for Core AI.")
        self.config, self.framing, self.weights = manifest.config, manifest.framing, manifest.weights
        self.tokenizer = Tokenizer.from_tokens_txt(bundle / TOKENS, self.config.vocab_size)
        self.call_frames = manifest.max_frames
        self.max_frames: int | None = manifest.max_frames
        self.att_context = self.config.default_att_context
        self.left_context = self.att_context[0]
        self.slots = 0
        names = graphs.graph_names(self.framing, manifest.weights)
        places = {name: graphs.asset_path(self.framing, name) for name in names}
        for place in places.values():
            if not any(file.startswith(f"{place}/") for file in manifest.files):
                raise CheckpointError(
                    f"{bundle / MANIFEST} does not list {place}; convert the model or download the bundle "
                    "again."
                )
        self.assets = CoreAiAssets({name: bundle / place for name, place in places.items()}, compute_units)
        self.encoder: Encoder
        if self.framing == "native":
            self.encoder = SixEncoder(self.assets, self.config, self.att_context)
            self._predict, self._joint = (graphs.PREDICT, graphs.MAIN), (graphs.JOINT, graphs.CHUNK)
        else:
            self._shards = names[:SHARDS]
            self.encoder = ShardedEncoder(self.assets, self.config, self._shards)
            self._predict = graphs.DECODER_JOINT, graphs.PREDICT_ONLY
            self._joint = graphs.DECODER_JOINT, graphs.JOINT_ONLY
        self._encoder_states: list[EncoderState] = []
        self._predictor_states: list[PredictorState] = []

    @property
    def arithmetic(self) -> str:
        """In what the encoder computes: "fp32" or "fp16"."""
        graph = graphs.CONFORMER_A if self.framing == "native" else self._shards[0]
        inputs, _ = self.assets.signature(graph)
        return "fp16" if any(dtype == "float16" for _, dtype in inputs.values()) else "fp32"

    def resize(self, slots: int) -> None:
        """Grow the arena to ``slots`` slots; what the old ones hold stays."""
        for _ in range(self.slots, slots):
            self._encoder_states.append(self.encoder.begin())
            self._predictor_states.append(self._initial_predictor_state())
        self.slots = max(self.slots, slots)

    def reset(self, slot: int) -> None:
        """Make a slot ready for a new stream."""
        self._encoder_states[slot] = self.encoder.begin()
        self._predictor_states[slot] = self._initial_predictor_state()

    def encode(
        self, slots: list[int], mel: Float32, mel_lengths: Int64, prompt_ids: Int64, att_context: Int64
    ) -> tuple[Float32, Int64]:
        """See `nemostream.runtimes.protocol.Runtime.encode`.

        Raises:
            BackendError: if the call does not have the size and context of the bundle, or Core AI fails.
        """
        self._check(mel, att_context)
        rows, valid = [], []
        for row, slot in enumerate(slots):
            stages, frames = self.encoder.step(
                self._encoder_states[slot], mel[row], int(mel_lengths[row]), int(prompt_ids[row])
            )
            rows.append(stages["projection"])
            valid.append(frames)
        return np.stack(rows), np.array(valid, np.int64)

    def predict(self, slots: list[int], tokens: Int64) -> Float32:
        """See `nemostream.runtimes.protocol.Runtime.predict`."""
        rows = []
        for slot, token in zip(slots, tokens, strict=True):
            predicted, self._predictor_states[slot] = self._predict_one(self._predictor_states[slot], token)
            rows.append(predicted)
        return np.stack(rows)

    def predict_from(self, state: PredictorState, tokens: Int64) -> tuple[Float32, PredictorState]:
        """See `nemostream.runtimes.protocol.ForkingRuntime.predict_from`."""
        rows, new_h, new_c = [], [], []
        for row, token in enumerate(tokens):
            h, c = (part[:, row : row + 1] for part in state)
            predicted, (h, c) = self._predict_one((h, c), token)
            rows.append(predicted)
            new_h.append(h)
            new_c.append(c)
        return np.stack(rows), (np.concatenate(new_h, axis=1), np.concatenate(new_c, axis=1))

    def joint(self, encoded: Float32, predicted: Float32) -> Int64:
        """See `nemostream.runtimes.protocol.Runtime.joint`."""
        tokens: Int64 = self.joint_logits(encoded, predicted).argmax(axis=2)
        return tokens

    def joint_logits(self, encoded: Float32, predicted: Float32) -> Float32:
        """See `nemostream.runtimes.protocol.Runtime.joint_logits`."""
        width, step = encoded.shape[1], self.call_frames
        padded = np.pad(encoded, ((0, 0), (0, -width % step), (0, 0)))
        graph, entry = self._joint
        rows = [
            np.concatenate(
                [
                    self.assets.call(
                        graph, {"dec_out": dec_out[None], "enc_frame": frames[None, at : at + step]}, entry
                    )["token_logits"][0]
                    for at in range(0, padded.shape[1], step)
                ]
            )
            for frames, dec_out in zip(padded, predicted, strict=True)
        ]
        return np.stack(rows)[:, :width]

    def _predict_one(self, state: PredictorState, token: np.int64) -> tuple[Float32, PredictorState]:
        graph, entry = self._predict
        inputs = {"token": np.array([[token]]), **dict(zip(graphs.LSTM_STATE, state, strict=True))}
        result = self.assets.call(graph, inputs, entry)
        return result["dec_out"][0], (result["h_out"], result["c_out"])

    def _initial_predictor_state(self) -> PredictorState:
        zeros = np.zeros((self.config.predictor_layers, 1, self.config.predictor_hidden_size), np.float32)
        return zeros, zeros.copy()

    def _check(self, mel: Float32, att_context: Int64) -> None:
        lead = 0 if self.framing == "native" else UNIFORM_HISTORY
        frames = check_call(self, mel[:, lead:], att_context)
        if frames != self.call_frames or (att_context != np.array(self.att_context)).any():
            raise BackendError(
                f"A call of {frames} encoder frames with context {att_context[0].tolist()} was made; this "
                f"bundle takes {self.call_frames} with {list(self.att_context)} only."
            )
