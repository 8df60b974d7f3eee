"""The one driver of CoreML bundles: what is called in which order, whoever executes the graphs.

`MilRuntime` executes them in numpy, `CoreMlRuntime` on a Mac. Both take one stream a call; a batch is a loop.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nemostream.checkpoints.bundle import TOKENS, read_manifest
from nemostream.errors import BackendError, CheckpointError
from nemostream.features.mel import LOG_GUARD
from nemostream.framing import UNIFORM_HISTORY
from nemostream.runtimes.calls import check_call
from nemostream.runtimes.coreml_contract import (
    JOINT_WINDOW,
    LAYOUTS,
    NATIVE_WEIGHTS,
    PROMPT_ID,
    WINDOW,
    WINDOW_LENGTH,
    Contract,
    FusedDecoder,
    Graph,
    SplitDecoder,
    contract,
    valid_frames,
)
from nemostream.runtimes.protocol import Float32, Framing, Int64
from nemostream.text.tokenizer import Tokenizer

Arrays = dict[str, NDArray[Any]]
SILENCE = np.float32(np.log(LOG_GUARD))  # log-mel


@dataclass
class _Slot:
    """State of one stream: outputs that graphs take back, and the predictor's."""

    encoder: dict[str, Arrays] = field(default_factory=dict)
    h: NDArray[Any] | None = None
    c: NDArray[Any] | None = None
    token: int | None = None  # fused decoder only: it is fed together with the next frame


class CoreMlBundleRuntime(ABC):
    """`nemostream.runtimes.protocol.FixedRuntime` over a CoreML bundle; a subclass executes the graphs.

    Args:
        bundle: folder made by `nemostream convert --to coreml`.

    Raises:
        CheckpointError: if the folder is not such a bundle, or was altered.
    """

    name = "coreml"
    framing: Framing = "uniform"

    def __init__(self, bundle: Path) -> None:
        self.contract = read_contract(bundle)
        manifest = read_manifest(bundle, verify=False)
        self.config = manifest.config
        self.tokenizer = Tokenizer.from_tokens_txt(bundle / TOKENS, self.config.vocab_size)
        self.call_frames = self.contract.frames
        self.max_frames: int | None = self.contract.frames
        self.att_context = self.contract.att_context
        self.left_context = self.att_context[0]
        self.slots = 0
        self._states: list[_Slot] = []
        self._host_projection: tuple[Float32, Float32] | None = None
        if isinstance(self.contract.decoder, SplitDecoder) and self.contract.decoder.projection is None:
            self._host_projection = _read_projection(bundle / NATIVE_WEIGHTS)

    @abstractmethod
    def execute(self, graph: str, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        """Execute a graph once; inputs and outputs have the shapes and dtypes of the contract."""

    def resize(self, slots: int) -> None:
        """Grow the arena to ``slots`` slots; what the old ones hold stays."""
        self._states += [_Slot() for _ in range(self.slots, slots)]
        self.slots = max(self.slots, slots)

    def reset(self, slot: int) -> None:
        """Make a slot ready for a new stream."""
        self._states[slot] = _Slot()

    def encode(
        self, slots: list[int], mel: Float32, mel_lengths: Int64, prompt_ids: Int64, att_context: Int64
    ) -> tuple[Float32, Int64]:
        """See `nemostream.runtimes.protocol.Runtime.encode`; a fused decoder's frames are not projected.

        Raises:
            BackendError: if the call does not have the size and context of the bundle.
        """
        frames = check_call(self, mel[:, UNIFORM_HISTORY:], att_context)
        if frames != self.call_frames or (att_context != np.array(self.att_context)).any():
            raise BackendError(
                f"A call of {frames} encoder frames with context {att_context[0].tolist()} was made; this "
                f"bundle takes {self.call_frames} with {list(self.att_context)} only."
            )
        rows, valid = [], []
        for row, slot in enumerate(slots):
            length, prompt_id = int(mel_lengths[row]), int(prompt_ids[row])
            outputs = self.encoder_step(self._states[slot].encoder, mel[row], length, prompt_id)
            rows.append(self._projected(_get(outputs, self.contract.encoded), prompt_id))
            known = self.contract.valid
            valid.append(valid_frames(length) if known is None else int(_get(outputs, known)[0]))
        return np.stack(rows), np.minimum(valid, self.call_frames).astype(np.int64)

    def encoder_step(
        self, state: dict[str, Arrays], mel: Float32, length: int, prompt_id: int
    ) -> dict[str, Arrays]:
        """Run the encoder's graphs on a window, mel [9 + 8 N, F], and bring ``state`` up to date.

        Returns:
            graph -> its outputs.
        """
        if self.contract.valid is None and length < len(mel):
            # the graph takes all rows for real: silence is what does least harm after the end
            mel = np.concatenate([mel[:length], np.full_like(mel[length:], SILENCE)])
        sources: Arrays = {
            WINDOW: np.ascontiguousarray(mel.T[None]),
            WINDOW_LENGTH: np.array([length], np.int32),
            PROMPT_ID: np.array([prompt_id], np.int32),
        }
        outputs: dict[str, Arrays] = {}
        for name in self.contract.encoder:
            graph = self.contract.graphs[name]
            inputs = {
                parameter: sources[source] if source in sources else _get(outputs, source)
                for parameter, source in graph.takes.items()
            }
            inputs |= {parameter: _carried(graph, state.get(name), parameter) for parameter in graph.state}
            outputs[name] = self.run(name, inputs)
            state[name] = {output: outputs[name][output] for output in graph.state.values()}
        return outputs

    def predict(self, slots: list[int], tokens: Int64) -> Float32:
        """See `nemostream.runtimes.protocol.Runtime.predict`; what it returns is for `joint` alone."""
        return np.stack(
            [self._predict(self._states[slot], int(token)) for slot, token in zip(slots, tokens, strict=True)]
        )

    def joint(self, encoded: Float32, predicted: Float32) -> Int64:
        """See `nemostream.runtimes.protocol.Runtime.joint`.

        A fused decoder looks at one frame a call, so it stops at a row's first token; frames after it, which
        are decoded again once the token is known, are reported as blank.
        """
        decoder = self.contract.decoder
        if isinstance(decoder, SplitDecoder):
            made: Int64 = self.joint_logits(encoded, predicted).argmax(axis=2)
            return made
        tokens = np.full(encoded.shape[:2], self.config.blank_id, np.int64)
        for row, frames in enumerate(encoded):
            for position, frame in enumerate(frames):
                outputs = self._fused(decoder, predicted[row], frame)
                best = (
                    outputs[decoder.best]
                    if decoder.best is not None
                    else outputs[str(decoder.logits)].argmax()
                )
                tokens[row, position] = int(np.asarray(best).reshape(()))
                if tokens[row, position] != self.config.blank_id:
                    break
        return tokens

    def joint_logits(self, encoded: Float32, predicted: Float32) -> Float32:
        """See `nemostream.runtimes.protocol.Runtime.joint_logits`.

        Raises:
            BackendError: if the bundle's decoder gives tokens only.
        """
        decoder = self.contract.decoder
        if isinstance(decoder, FusedDecoder):
            if decoder.logits is None:
                raise BackendError(
                    f"The layout {self.contract.layout!r} gives tokens and no logits, so there is no beam "
                    "search, boosting or confidence; use the layout sharded or single."
                )
            rows = [
                [self._fused(decoder, predicted[row], frame)[decoder.logits].reshape(-1) for frame in frames]
                for row, frames in enumerate(encoded)
            ]
            return np.array(rows, np.float32)
        width = encoded.shape[1]
        padded = np.pad(encoded, ((0, 0), (0, -width % JOINT_WINDOW), (0, 0)))
        logits = [
            np.concatenate(
                [
                    self.run(
                        decoder.joint,
                        {
                            "encoder_proj": frames[None, at : at + JOINT_WINDOW],
                            "decoder": row.reshape(1, -1, 1),
                        },
                    )["logits"][0, :, 0]
                    for at in range(0, padded.shape[1], JOINT_WINDOW)
                ]
            )
            for frames, row in zip(padded, predicted, strict=True)
        ]
        return np.stack(logits)[:, :width].astype(np.float32)

    def run(self, graph: str, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        """Run one graph, with inputs converted to the dtypes of the contract."""
        dtypes = {value.name: value.dtype for value in self.contract.graphs[graph].inputs}
        return self.execute(graph, {name: np.asarray(value, dtypes[name]) for name, value in inputs.items()})

    def _projected(self, encoded: NDArray[Any], prompt_id: int) -> Float32:
        """[1, D, N] to what `joint` takes, [N, J] or [N, D]."""
        decoder = self.contract.decoder
        frames: Float32 = encoded[0].T.astype(np.float32)
        if isinstance(decoder, FusedDecoder):
            return frames
        if self._host_projection is not None:
            weight, bias = self._host_projection
            on_host: Float32 = frames @ weight.T + bias
            return on_host
        inputs: Arrays = {"encoder": encoded}
        if self.config.has_prompt:
            inputs[PROMPT_ID] = np.array([prompt_id])
        projected: Float32 = self.run(str(decoder.projection), inputs)["encoder_proj"][0].astype(np.float32)
        return projected

    def _predict(self, slot: _Slot, token: int) -> Float32:
        h, c = self._predictor_state(slot)
        decoder = self.contract.decoder
        if isinstance(decoder, SplitDecoder):
            inputs = {"token": np.array([[token]]), "token_length": np.array([1]), "h_in": h, "c_in": c}
            outputs = self.run(decoder.predictor, inputs)
            slot.h, slot.c = outputs["h_out"], outputs["c_out"]
            row: Float32 = outputs["decoder_out"].reshape(-1).astype(np.float32)
            return row
        if slot.token is not None:  # it has been taken: adopt the state after it
            frame = np.zeros(self.config.hidden_size, np.float32)
            outputs = self._fused(decoder, _pack(slot.token, h, c), frame)
            h, c = (outputs[name].astype(np.float32) for name in decoder.new_state)
        slot.token, slot.h, slot.c = token, h, c
        return _pack(token, h, c)

    def _fused(self, decoder: FusedDecoder, packed: Float32, frame: Float32) -> Arrays:
        """Run the fused decoder on one frame [D], with the token and the state that ``packed`` holds."""
        h, c = np.split(packed[1:], 2)
        shape = (self.config.predictor_layers, 1, self.config.predictor_hidden_size)
        inputs = {
            decoder.frame: frame.reshape(1, -1, 1),
            decoder.token: np.array([[int(packed[0])]]),
            decoder.length: np.array([1]),
            decoder.state[0]: h.reshape(shape),
            decoder.state[1]: c.reshape(shape),
        }
        return self.run(decoder.graph, inputs)

    def _predictor_state(self, slot: _Slot) -> tuple[NDArray[Any], NDArray[Any]]:
        shape = (self.config.predictor_layers, 1, self.config.predictor_hidden_size)
        zeros = np.zeros(shape, np.float32)
        return (zeros if slot.h is None else slot.h, zeros if slot.c is None else slot.c)


def read_contract(bundle: Path) -> Contract:
    """The contract of a bundle on disk, whose files are checked against their hashes.

    Raises:
        CheckpointError: if it is not a CoreML bundle, or was altered.
    """
    manifest = read_manifest(bundle)
    layout = next((name for name in LAYOUTS if name == manifest.layout), None)
    if manifest.runtime != "coreml" or layout is None or manifest.max_frames is None:
        raise CheckpointError(
            f"{bundle} is a bundle for {manifest.runtime}, not a CoreML bundle of a known layout."
        )
    return contract(manifest.config, layout, manifest.config.default_att_context, manifest.max_frames)


def _get(outputs: dict[str, Arrays], source: str) -> NDArray[Any]:
    graph, _, output = source.partition(".")
    return outputs[graph][output]


def _carried(graph: Graph, before: Arrays | None, parameter: str) -> NDArray[Any]:
    if before is not None:
        return before[graph.state[parameter]]
    value = next(value for value in graph.inputs if value.name == parameter)
    return np.zeros(value.shape, value.dtype)


def _pack(token: int, h: NDArray[Any], c: NDArray[Any]) -> Float32:
    return np.concatenate([[token], h.reshape(-1), c.reshape(-1)]).astype(np.float32)


def _read_projection(folder: Path) -> tuple[Float32, Float32]:
    """The projection to the joint that a host does itself, from the file of native weights."""
    index = json.loads((folder / "weights_index.json").read_text(encoding="utf-8"))
    data = (folder / "weights.bin").read_bytes()

    def read(name: str) -> Float32:
        entry = index[name]
        raw = data[entry["offset"] : entry["offset"] + entry["bytes"]]
        return np.frombuffer(raw, np.dtype(entry["dtype"])).reshape(entry["shape"]).astype(np.float32)

    return read("encoder_projector.weight"), read("encoder_projector.bias")
