"""One stream on its way through the engine: mel frames in, tokens out, no runtime inside."""

from __future__ import annotations

from dataclasses import dataclass, field

from nemostream.config import ModelConfig
from nemostream.decoding import Decoder, Hypothesis
from nemostream.features import IncrementalLogMel
from nemostream.framing import Framer, NativeFramer, UniformFramer
from nemostream.runtimes.protocol import Float32, Framing


@dataclass
class Stream:
    """State of one stream between engine steps.

    Attributes:
        slot: its slot in the runtime's arena.
        prompt_id: language slot; may change between steps.
        att_context: (left, right) context in encoder frames.
        features: its front end.
        framer: cuts its frames into chunks.
        hypothesis: its decoder state.
        chunk_frames: encoder frames in a chunk: right + 1, or what a bundle with fixed shapes takes.
        decoder: its own decoder; None means the engine's.
    """

    slot: int
    prompt_id: int
    att_context: tuple[int, int]
    features: IncrementalLogMel
    framer: Framer
    chunk_frames: int
    hypothesis: Hypothesis = field(default_factory=Hypothesis)
    decoder: Decoder | None = None

    @classmethod
    def begin(
        cls,
        slot: int,
        prompt_id: int,
        att_context: tuple[int, int],
        config: ModelConfig,
        framing: Framing,
        decoder: Decoder | None = None,
        chunk_frames: int | None = None,
    ) -> Stream:
        """A stream that has heard nothing yet; ``chunk_frames`` is right + 1 if it is not given."""
        frames = att_context[1] + 1 if chunk_frames is None else chunk_frames
        framer = NativeFramer if framing == "native" else UniformFramer
        return cls(
            slot=slot,
            prompt_id=prompt_id,
            att_context=att_context,
            features=IncrementalLogMel(config.num_mel_bins, config.preemphasis),
            framer=framer(frames, config.num_mel_bins),
            chunk_frames=frames,
            hypothesis=Hypothesis() if decoder is None else decoder.begin(),
            decoder=decoder,
        )

    def feed(self, samples: Float32) -> None:
        """Take 16 kHz mono samples [N]."""
        self.framer.push(self.features.feed(samples))

    def finish(self) -> None:
        """No more samples will come: what is left becomes the last, shorter chunk."""
        self.framer.push(self.features.finish())
        self.framer.finish()
