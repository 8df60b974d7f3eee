"""``nemostream listen``: captions of what the microphone hears, in the terminal."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Self

from nemostream.cli.decoding_options import add_decoding_options, check_decoding_usage, decoding_options
from nemostream.cli.messages import report_note, report_warning
from nemostream.cli.model_options import add_model_options, add_recognition_options, load_model
from nemostream.errors import NemostreamError
from nemostream.text.writers import WRITERS, Recognition

if TYPE_CHECKING:
    from nemostream.audio.microphone import Microphone
    from nemostream.engine.session import Session
    from nemostream.results import Event, Transcript, Utterance

_DESCRIPTION = """\
Show what the microphone hears as captions; this needs `pip install 'nemostream[mic]'`. Every utterance
becomes a line on standard output. Ctrl-C ends it: what was said last is still recognised, and --save writes
the whole transcript.
"""


def add_parser(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], common: argparse.ArgumentParser
) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "listen",
        help="captions from the microphone",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[common],
    )
    parser.add_argument("--device", help="number of the microphone or a part of its name")
    parser.add_argument("--devices", action="store_true", help="list the microphones and stop")
    parser.add_argument(
        "--save", type=Path, metavar="FILE", help=f"write the transcript: .{', .'.join(WRITERS)}"
    )
    add_model_options(parser)
    add_recognition_options(parser)
    add_decoding_options(
        parser, confidence="give every word its confidence; with --save FILE.json", endpoint=False
    )
    parser.set_defaults(run=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Listen until Ctrl-C, or until the device stops."""
    from nemostream.audio.microphone import Microphone, input_devices

    if arguments.devices:
        for number, name in input_devices():
            print(f"{number}: {name}")
        return 0
    save: Path | None = arguments.save
    if save is not None and save.suffix[1:] not in WRITERS:
        arguments.parser.error(f"--save {save}: the name has to end with one of .{', .'.join(WRITERS)}")
    check_decoding_usage(arguments)
    if arguments.confidence and (save is None or save.suffix != ".json"):
        arguments.parser.error("--confidence is written by --save FILE.json only")
    options = decoding_options(arguments)
    device: str | None = arguments.device
    microphone = Microphone(int(device) if device is not None and device.isdecimal() else device)
    model = load_model(arguments)
    context = model.att_context(arguments.latency, arguments.att_context)
    with model.stream(
        arguments.language,
        att_context_size=context,
        sample_rate=microphone.sample_rate,
        endpoint=True,
        **options,
    ) as session:
        if not arguments.quiet:
            report_note(f"listening to {microphone.name}; Ctrl-C ends.")
        transcript = _listen(session, microphone)
    if microphone.dropped and not arguments.quiet:
        report_warning(f"{microphone.dropped} blocks of sound were lost; a smaller model would keep up.")
    if save is not None:
        recognition = Recognition(microphone.name, arguments.model, model.backend, context, (transcript,))
        try:
            save.write_text(WRITERS[save.suffix[1:]](recognition), encoding="utf-8", newline="\n")
        except OSError as error:
            raise NemostreamError(f"{save}: the transcript cannot be written ({error.strerror}).") from error
        if not arguments.quiet:
            report_note(f"{save} written.")
    return 0


def _listen(session: Session, microphone: Microphone) -> Transcript:
    """Show captions until Ctrl-C, then recognise what was recorded by then."""
    with _Captions() as captions:
        with _interrupted_by(microphone.end), microphone:
            for block in microphone:
                captions.show(session.feed(block))
        for block in microphone.waiting():
            captions.show(session.feed(block))
        captions.show(session.finish())
    return session.transcript()


@contextmanager
def _interrupted_by(end: Callable[[], None]) -> Iterator[None]:
    """Let the first Ctrl-C call ``end``, so that it never cuts a step of the model in two."""

    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        end()

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class _Captions:
    """Utterances as lines; on a terminal the one that is being said stands below them and grows."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        self._growing = ""
        self._text = Text
        self._console = Console(soft_wrap=True)
        shown = sys.stdout is not None and sys.stdout.isatty()  # it may be closed
        self._live = Live("", console=self._console, transient=True) if shown else None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, events: Iterable[Event]) -> None:
        """Show what is new."""
        for event in events:
            self._growing += event.text
            if event.utterance is not None:
                self._growing = ""
                self._line(event.utterance)
        if self._live is not None:
            self._live.update(self._text(self._growing.strip(), style="dim"))

    def _line(self, utterance: Utterance) -> None:
        minutes, seconds = divmod(int(utterance.start), 60)
        language = f" {utterance.language}" if utterance.language else ""
        line = f"[{minutes:02}:{seconds:02}{language}] {utterance.text}"
        if self._live is not None:
            self._console.print(self._text(line))
        else:
            print(line, flush=True)
