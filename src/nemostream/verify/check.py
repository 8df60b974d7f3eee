"""`verify`: run a port and its checkpoint side by side, over many chained chunks, and compare every stage.

Both get the same mel frames, and each carries its own state from call to call, so that an error in a cache
shows as one in arithmetic does. Predictor and joint are compared on the reference's own tokens and frames,
so that they are judged by themselves; tokens and text are each side's own, from end to end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from difflib import SequenceMatcher
from typing import Any

import numpy as np

from nemostream.checkpoints.checkpoint import Checkpoint
from nemostream.config import FRAME_MS, SAMPLE_RATE
from nemostream.decoding import GreedyDecoder, Hypothesis
from nemostream.errors import AudioError
from nemostream.features import IncrementalLogMel, log_mel
from nemostream.framing import Framer, NativeFramer, UniformFramer
from nemostream.runtimes.protocol import FixedRuntime, Float32, Int64, Runtime
from nemostream.verify.compare import Meter, StageResult
from nemostream.verify.features import exact_log_mel
from nemostream.verify.gates import Gates
from nemostream.verify.ports import Port
from nemostream.verify.reference import Reference
from nemostream.verify.stages import FUSED_JOINT, GRAPH, all_stages

Context = tuple[int, int]
_SHOWN_CHARACTERS = 60
_OTHER_TOKENS = 16
_PACKET = 777  # samples; no multiple of anything in the front end


@dataclass(frozen=True)
class Report:
    """What came of verifying a port.

    Attributes:
        source: the port.
        against: its checkpoint.
        runtime: the port's runtime.
        weights: how the port stores its weights.
        gates: the limits.
        contexts: (left, right) contexts that were run.
        seconds: of audio, per context.
        stages: results in the order of the data; stages that cannot be seen are left out.
    """

    source: str
    against: str
    runtime: str
    weights: str
    gates: Gates
    contexts: tuple[Context, ...]
    seconds: float
    stages: tuple[StageResult, ...]

    @property
    def first_divergence(self) -> StageResult | None:
        """The first stage that is not within the gates: the one to look at."""
        return next((stage for stage in self.stages if not stage.passed), None)

    @property
    def passed(self) -> bool:
        """True if every stage is within the gates."""
        return self.first_divergence is None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        first = self.first_divergence
        return {
            "passed": self.passed,
            "first_divergence": first.stage if first else None,
            **asdict(self),
        }


def verify(
    port: Port,
    checkpoint: Checkpoint,
    clips: Mapping[str, Float32],
    *,
    contexts: Sequence[Context] | None = None,
    language: str | None = None,
    tolerance: float | None = None,
) -> Report:
    """Compare a port with the checkpoint that it was made from.

    Args:
        port: see `open_port`.
        checkpoint: the original.
        clips: name -> 16 kHz mono samples to run both on.
        contexts: (left, right) contexts to run; None takes the one that the port was made for, or else all
            that the model was trained with.
        language: for the prompt; None is the model's default.
        tolerance: limit of numeric differences instead of that of `Gates.for_weights`.

    Raises:
        AudioError: if a clip has not even one call, or not one that can be compared.
        LanguageError: if the model does not know the language.
    """
    gates = Gates.for_weights(port.weights, port.arithmetic).with_tolerance(tolerance)
    if contexts is None:
        fixed = isinstance(port.runtime, FixedRuntime)
        contexts = (port.runtime if fixed else checkpoint).config.att_context_sizes
    runs = tuple(contexts)
    found: dict[str, StageResult | None] = {"config": _compare_config(port.runtime, checkpoint)}
    if found["config"] is not None and found["config"].passed:
        comparison = _Comparison(port, checkpoint, gates, checkpoint.config.prompt_id(language))
        for name, samples in clips.items():
            comparison.compare_features(name, samples)
            for context in runs:
                comparison.compare_stream(name, samples, context)
        comparison.compare_graphs()
        found |= comparison.results()
    known = (*all_stages(checkpoint.config), FUSED_JOINT)
    graphs = (stage for stage in found if stage.startswith(GRAPH))
    ordered = (found.get(stage) for stage in (*known, *graphs))
    return Report(
        source=port.source,
        against=checkpoint.source,
        runtime=port.runtime.name,
        weights=port.weights,
        gates=gates,
        contexts=runs,
        seconds=sum(len(samples) for samples in clips.values()) / 16000,
        stages=tuple(result for result in ordered if result is not None),
    )


class _Comparison:
    """Both sides of a comparison, and what was found so far."""

    def __init__(self, port: Port, checkpoint: Checkpoint, gates: Gates, prompt_id: int) -> None:
        self._port, self._runtime, self._gates = port, port.runtime, gates
        self._reference = Reference(checkpoint, self._runtime.framing, half=port.weights == "fp16")
        if self._runtime.slots < 1:
            self._runtime.resize(1)
        self._prompt = np.array([prompt_id], np.int64)
        self._meters: dict[str, Meter] = {}
        self._tokens: list[tuple[str, list[int], list[int]]] = []  # clip and context, port's, reference's

    def compare_features(self, name: str, samples: Float32) -> None:
        """The host's front end, fed in packets as a live stream is, against the definition."""
        config, expected = self._runtime.config, self._reference.config
        front_end = IncrementalLogMel(config.num_mel_bins, config.preemphasis)
        packets = [samples[start : start + _PACKET] for start in range(0, len(samples), _PACKET)]
        mel = np.concatenate([*map(front_end.feed, packets), front_end.finish()])
        self._meter("features").add(
            mel, exact_log_mel(samples, expected.num_mel_bins, expected.preemphasis), f"clip {name}"
        )

    def compare_stream(self, name: str, samples: Float32, context: Context) -> None:
        """One clip as a live stream at one latency."""
        config = self._reference.config
        framer_of = NativeFramer if self._runtime.framing == "native" else UniformFramer
        frames = self._runtime.call_frames if isinstance(self._runtime, FixedRuntime) else context[1] + 1
        framer: Framer = framer_of(frames, config.num_mel_bins)
        framer.push(log_mel(samples, config.num_mel_bins, config.preemphasis))
        framer.finish()
        self._reference.start()
        self._runtime.reset(0)
        if self._port.inner is not None:
            self._port.inner.start()
        run = f"clip {name}, context [{context[0]}, {context[1]}]"
        encoded: list[tuple[Float32, Float32]] = []
        for chunk in range(framer.ready()):
            call = framer.take(1)
            if call.length < len(call.mel) and not self._port.exact_end:
                break
            arguments = (
                np.ascontiguousarray(call.mel[None]),
                np.array([call.length], np.int64),
                self._prompt,
                np.array([context], np.int64),
            )
            encoded.append(self._compare_chunk(arguments, f"{run}, chunk {chunk}"))
        if not encoded:
            lasts = len(samples) * 1000 // SAMPLE_RATE
            raise AudioError(
                f"{name} is too short to verify with: it lasts {lasts} ms, and a call of this port takes "
                f"{FRAME_MS * frames} ms."
            )
        ours, theirs = (np.concatenate([pair[side] for pair in encoded])[None] for side in (0, 1))
        tokens = _greedy(self._reference, theirs)
        if self._port.decoder == "staged":
            self._compare_decoder(tokens, theirs, run)
        elif self._port.decoder == "joined":
            self._compare_joined_decoder(tokens, ours, theirs, run)
        self._runtime.reset(0)
        self._tokens.append((run, _greedy(self._runtime, ours), tokens))

    def compare_graphs(self) -> None:
        """Every graph alone. Whole numbers have to be equal."""
        if self._port.graphs is None:
            return
        for run in self._port.graphs(self._reference.network):
            stage = f"{GRAPH}{run.graph}"
            gates = self._gates if run.encoder else self._gates.for_unquantised()
            meter = self._meters.setdefault(stage, Meter(stage, gates))
            for output, (ours, theirs) in run.outputs.items():
                if ours.dtype.kind == "i" and ours.shape == theirs.shape:
                    ours, theirs = (ours != theirs).astype(np.float32), np.zeros(ours.shape, np.float32)
                meter.add(ours, theirs, f"output {output}")

    def results(self) -> dict[str, StageResult | None]:
        """Results by stage."""
        found = {stage: meter.result() for stage, meter in self._meters.items()}
        return found | {
            "tokens": self._tokens_result(),
            "tokenizer": self._tokenizer_result(),
            "text": self._text_result(),
        }

    def _compare_chunk(
        self, arguments: tuple[Float32, Int64, Int64, Int64], where: str
    ) -> tuple[Float32, Float32]:
        """Compare the inner stages and the runtime on one call; return encoder frames [N, J] of both."""
        expected = self._reference.step(*arguments)
        valid = int(self._frames(arguments[1]))
        if self._port.inner is not None:
            for stage, array in self._port.inner.step(*arguments).items():
                self._meter(stage).add(array[0, :valid], expected[stage][0, :valid], where)
        encoded, lengths = self._runtime.encode([0], *arguments)
        reference = expected["projection"][0, :valid]
        if self._port.projected:
            self._meter("runtime").add(encoded[0, : int(lengths[0])], reference, where)
        return encoded[0, : int(lengths[0])], reference

    def _frames(self, mel_lengths: Int64) -> Int64:
        """Valid encoder frames of a call of so many mel rows."""
        lead = 0 if self._runtime.framing == "native" else 9
        frames: Int64 = (mel_lengths[0] - lead + 7) // 8
        return frames

    def _compare_decoder(self, tokens: list[int], encoded: Float32, run: str) -> None:
        """Predictor and joint on the reference's tokens, and any others, so that silence tests them too."""
        config = self._reference.config
        others = np.random.default_rng(len(tokens)).integers(0, config.vocab_size, _OTHER_TOKENS)
        self._reference.reset(0)
        self._runtime.reset(0)
        for count, token in enumerate([config.blank_id, *tokens, *others.tolist()]):
            fed = np.array([token], np.int64)
            expected = self._reference.predict([0], fed)
            where = f"{run}, token {count}"
            self._meter("predictor").add(self._runtime.predict([0], fed), expected, where)
            first = min(count, encoded.shape[1] - 1)
            frames = np.ascontiguousarray(encoded[:, first : first + 8])
            self._meter("joint").add(
                self._runtime.joint_logits(frames, expected)[0],
                self._reference.joint_logits(frames, expected)[0],
                where,
            )

    def _compare_joined_decoder(self, tokens: list[int], ours: Float32, theirs: Float32, run: str) -> None:
        """Logits on each side's own frames, after the reference's tokens."""
        config = self._reference.config
        self._reference.reset(0)
        self._runtime.reset(0)
        for count, token in enumerate([config.blank_id, *tokens]):
            fed = np.array([token], np.int64)
            predicted, expected = self._runtime.predict([0], fed), self._reference.predict([0], fed)
            first = min(count, min(ours.shape[1], theirs.shape[1]) - 1)
            self._meter("joint").add(
                self._runtime.joint_logits(ours[:, first : first + 1], predicted)[0],
                self._reference.joint_logits(theirs[:, first : first + 1], expected)[0],
                f"{run}, token {count}",
            )

    def _meter(self, stage: str) -> Meter:
        return self._meters.setdefault(stage, Meter(stage, self._gates))

    def _tokens_result(self) -> StageResult:
        compared = errors = 0
        first: tuple[str, str] | None = None
        for run, ours, theirs in self._tokens:
            compared += len(theirs)
            if ours == theirs:
                continue
            matcher = SequenceMatcher(None, ours, theirs, autojunk=False)
            same = sum(block.size for block in matcher.get_matching_blocks())
            errors += max(len(ours), len(theirs)) - same
            index = next(
                (i for i, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]),
                min(len(ours), len(theirs)),
            )
            first = first or (run, f"from token {index} of {len(theirs)} on")
        passed = errors <= self._gates.token_errors * compared
        detail = f"{errors} of {compared} differ, {first[1]}" if first else None
        return StageResult("tokens", passed, compared=compared, where=first and first[0], detail=detail)

    def _tokenizer_result(self) -> StageResult:
        ours, theirs = self._runtime.tokenizer.pieces, self._reference.tokenizer.pieces
        wrong = [index for index, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]]
        detail = None
        if wrong:
            index = wrong[0]
            detail = f"piece {index} is {ours[index]!r}, expected {theirs[index]!r}; {len(wrong)} differ"
        elif len(ours) != len(theirs):
            detail = f"{len(ours)} pieces, expected {len(theirs)}"
        return StageResult("tokenizer", detail is None, compared=len(theirs), detail=detail)

    def _text_result(self) -> StageResult:
        """With tokens that may differ, text is judged on the reference's tokens."""
        for run, ours, theirs in self._tokens:
            tokens = ours if self._gates.token_errors == 0 else theirs
            heard = self._runtime.tokenizer.decode(tokens)
            expected = self._reference.tokenizer.decode(theirs)
            if heard != expected:
                detail = f"{heard[:_SHOWN_CHARACTERS]!r}, expected {expected[:_SHOWN_CHARACTERS]!r}"
                return StageResult("text", False, compared=len(self._tokens), where=run, detail=detail)
        return StageResult("text", True, compared=len(self._tokens))


def _greedy(runtime: Runtime, encoded: Float32) -> list[int]:
    """Tokens of encoder frames [1, N, J], in a slot that was reset."""
    runtime.reset(0)
    lengths = np.array([encoded.shape[1]], np.int64)
    (emitted,) = GreedyDecoder(runtime).decode([0], [Hypothesis()], encoded, lengths)
    return [token for token, _ in emitted]


def _compare_config(runtime: Runtime, checkpoint: Checkpoint) -> StageResult:
    """What must agree for the two to be one model; a port with fixed shapes has a context of its own."""
    ours, theirs = runtime.config.to_dict(), checkpoint.config.to_dict()
    if isinstance(runtime, FixedRuntime):
        del ours["att_context_sizes"], theirs["att_context_sizes"]
    wrong = [
        f"{key} is {ours[key]!r}, expected {theirs[key]!r}" for key in theirs if ours[key] != theirs[key]
    ]
    detail = "; ".join(f"{text[:160]}" for text in wrong) or None
    return StageResult("config", not wrong, compared=len(theirs), detail=detail)
