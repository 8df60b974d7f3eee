"""Raw PCM on standard input as a live stream: read as it comes, recognised chunk by chunk."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, BinaryIO

from nemostream.audio import ENCODINGS, encoding_name
from nemostream.cli.interruption import Interruption
from nemostream.cli.messages import report_warning
from nemostream.errors import AudioError
from nemostream.text.writers import Recognition

if TYPE_CHECKING:
    from nemostream.engine.model import Model
    from nemostream.results import Event

PACKET_SECONDS = 0.02  # what sound cards and telephone networks give at once
_HEADERS = {
    b"RIFF": "WAV",
    b"RIFX": "WAV",
    b"RF64": "WAV",
    b"fLaC": "FLAC",
    b"OggS": "Ogg",
    b"FORM": "AIFF",
    b"ID3\x03": "MP3",
    b"ID3\x04": "MP3",
    b"caff": "CAF",
    b"\x1aE\xdf\xa3": "WebM",
}


def recognize_stdin(
    model: Model,
    arguments: argparse.Namespace,
    context: tuple[int, int],
    options: dict[str, Any],
    grows: bool,
    interruption: Interruption,
) -> Recognition:
    """Transcribe standard input until it ends, or until Ctrl-C.

    Args:
        model: the model.
        arguments: of the command line.
        context: left and right context.
        options: more arguments of `Model.stream`: how to decode.
        grows: True to print the text as it grows; the caller then has nothing to print but the line's end.
        interruption: says that the user wants to stop; what was heard is recognised all the same.

    Raises:
        AudioError: if there is no audio, it begins with a file's header, or its encoding or rate is wrong.
    """
    split = arguments.channels == "split"
    chosen = list(range(arguments.input_channels)) if split else [arguments.channels]
    frame_bytes = ENCODINGS[encoding_name(arguments.encoding)] * arguments.input_channels
    packet_bytes = max(1, round(PACKET_SECONDS * arguments.rate)) * frame_bytes
    with ExitStack() as stack:
        sessions = [
            stack.enter_context(
                model.stream(
                    arguments.language,
                    att_context_size=context,
                    sample_rate=arguments.rate,
                    encoding=arguments.encoding,
                    num_channels=arguments.input_channels,
                    channel=channel,
                    chunks_per_call=arguments.chunks_per_call or 1,
                    **options,
                )
            )
            for channel in chosen
        ]
        received = 0
        show = _Growing("itn" in options).show if grows else list
        with suppress(KeyboardInterrupt):
            for packet in _packets(sys.stdin.buffer, packet_bytes, interruption):
                received += len(packet)
                for session in sessions:
                    show(session.feed(packet))
        if received < frame_bytes:
            if interruption.asked:
                raise KeyboardInterrupt
            raise AudioError(
                f"standard input ended after {received} bytes, without a single sample; is a source piped in?"
            )
        if received % frame_bytes and not arguments.quiet:
            report_warning(f"the last {received % frame_bytes} bytes of standard input are no whole sample.")
        for session in sessions:
            show(session.finish())
        transcripts = tuple(session.transcript() for session in sessions)
    return Recognition("-", arguments.model, model.backend, context, transcripts, split)


def _packets(stream: BinaryIO, size: int, interruption: Interruption) -> Iterator[bytes]:
    """Yield what comes, at most ``size`` bytes at once, without waiting for more than there is."""
    read1 = getattr(stream, "read1", stream.read)  # read1 returns as soon as there is something

    def read() -> bytes:
        data: bytes = interruption.waiting(lambda: read1(size))
        return data

    head = b""
    while len(head) < 4 and (more := read()):
        head += more
    if kind := _HEADERS.get(head[:4]):
        raise AudioError(
            f"standard input begins with the header of a {kind} file, but raw PCM was expected; "
            "save it to a file and give that."
        )
    while head:
        yield head
        head = read()


class _Growing:
    """Prints text as it comes, an utterance a line; what is rewritten comes with the end of its utterance."""

    def __init__(self, rewritten: bool) -> None:
        self._rewritten = rewritten
        self._ended = False  # the line is complete, and its end not printed yet

    def show(self, events: list[Event]) -> None:
        """Print what is new."""
        for event in events:
            text = event.text
            if self._rewritten:
                text = event.utterance.text if event.utterance is not None else ""
            if self._ended and text.strip():
                text, self._ended = "\n" + text.lstrip(), False
            print(text, end="", flush=True)
            self._ended = self._ended or event.utterance is not None
