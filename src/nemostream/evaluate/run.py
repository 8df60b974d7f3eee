"""Run a model over a manifest as live streams, and time what a listener would wait.

The clock is virtual: packets of 20 ms arrive in real time, and processing one takes as long as it took here,
after the one before it. So latencies are those of a live stream, and an hour of audio does not take an hour.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from nemostream.audio import load_audio
from nemostream.config import SAMPLE_RATE
from nemostream.engine.model import Model
from nemostream.errors import LanguageError
from nemostream.evaluate.manifest import Utterance
from nemostream.evaluate.normalize import language_code
from nemostream.evaluate.results import Heard, Results
from nemostream.runtimes.protocol import Float32

PACKET_SECONDS = 0.02
_PACKET = round(PACKET_SECONDS * SAMPLE_RATE)

Progress = Callable[[int, int], None]  # utterances done, in all


def evaluate(
    model: Model,
    utterances: Sequence[Utterance],
    *,
    name: str,
    model_name: str,
    manifest: str,
    att_context: tuple[int, int],
    language: str | None = None,
    progress: Progress | None = None,
    **options: object,
) -> Results:
    """Transcribe every utterance.

    Args:
        model: the model.
        utterances: what to transcribe.
        name: what to call the results.
        model_name: for the results; so is ``manifest``.
        manifest: its path.
        att_context: (left, right) context.
        language: of the prompt for all; None takes each utterance's own, "auto" lets the model find out.
        progress: called after every utterance.
        options: more arguments of `Model.stream`, such as ``boost`` or ``beam``; of ``itn`` the result is
            scored.

    Raises:
        AudioError: if a recording cannot be read.
        LanguageError: if the model does not know a language.
    """
    heard = []
    for done, utterance in enumerate(utterances, 1):
        chosen = prompt_language(model, utterance.lang) if language is None else language
        heard.append(
            hear(model, load_audio(utterance.audio), utterance, chosen, att_context, options=options)
        )
        if progress is not None:
            progress(done, len(utterances))
    return Results(name, model_name, model.backend, att_context, manifest, tuple(heard), language)


def hear(
    model: Model,
    samples: Float32,
    utterance: Utterance,
    language: str | None,
    att_context: tuple[int, int],
    *,
    clock: Callable[[], float] = time.perf_counter,
    options: dict[str, object] | None = None,
) -> Heard:
    """Transcribe 16 kHz samples as a live stream on a virtual clock."""
    arguments: dict[str, object] = {"att_context_size": att_context, **(options or {})}
    free = compute = 0.0  # when the machine is free again; seconds of work in all
    first: float | None = None
    with model.stream(language, **arguments) as session:  # type: ignore[arg-type]
        for arrived, packet in [*_packets(samples), (len(samples) / SAMPLE_RATE, None)]:
            started = clock()
            events = session.finish() if packet is None else session.feed(packet)
            spent = clock() - started
            compute += spent
            free = max(free, arrived) + spent
            if first is None and any(event.text.strip() for event in events):
                first = free
        transcript = session.transcript()
    duration = len(samples) / SAMPLE_RATE
    begun = transcript.words[0].start if transcript.words else None
    rewritten = "itn" in arguments
    return Heard(
        key=utterance.key,
        lang=utterance.lang,
        reference=utterance.text,
        text=" ".join(part.text for part in transcript.utterances) if rewritten else transcript.text,
        duration=duration,
        compute=compute,
        first_word=None if first is None or begun is None else first - begun,
        final=free - duration,
        named=transcript.language,
        words=tuple((w.text, w.confidence) for w in transcript.words if w.confidence is not None),
    )


def prompt_language(model: Model, lang: str) -> str | None:
    """Return the name of the prompt for a manifest's language: itself, or the first of its region's.

    Raises:
        LanguageError: if the model has none.
    """
    try:
        model.config.prompt_id(lang)
        return lang
    except LanguageError:
        code = language_code(lang)
        for name in model.config.prompts:
            if language_code(name) == code:
                return name
        raise


def _packets(samples: Float32) -> Iterator[tuple[float, Float32 | None]]:
    """Yield each packet with the time at which its last sample arrives."""
    for start in range(0, len(samples), _PACKET):
        packet = np.ascontiguousarray(samples[start : start + _PACKET])
        yield (start + len(packet)) / SAMPLE_RATE, packet
