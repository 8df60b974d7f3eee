"""``nemostream transcribe``: recordings, or a live stream on standard input, to text and subtitles."""

from __future__ import annotations

import argparse
import contextlib
import functools
import queue
import sys
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemostream.cli.decoding_options import add_decoding_options, check_decoding_usage, decoding_options
from nemostream.cli.interruption import Interruption
from nemostream.cli.messages import report_exception, report_note
from nemostream.cli.model_options import add_model_options, add_recognition_options, load_model, positive
from nemostream.cli.progress import progress_bar
from nemostream.errors import NemostreamError

if TYPE_CHECKING:
    from nemostream.engine.model import Model
    from nemostream.results import Transcript
    from nemostream.text.writers import Recognition

    Results = Generator[tuple[str, Callable[[], Recognition]], None, None]

STDIN = "-"

_DESCRIPTION = """\
Transcribe recordings (WAV, FLAC, OGG, MP3, ...; other containers with `pip install 'nemostream[av]'`), or raw
PCM from standard input as a live stream.

Text goes to standard output: of one file its text, of several one line `FILE: text` each, in their order.
With -f json every file is one JSON object on one line; -f srt, vtt and tsv print one file only. With -o
nothing is printed: DIR/<name of the file>.<format> is written. A second input of the same name becomes
<name>-2. What fails is reported on standard error in one line, and the other files are still done.
"""
_EPILOG = """\
examples:
  nemostream transcribe talk.flac
  nemostream transcribe calls/*.wav -f srt -o subtitles --channels split
  arecord -q -t raw -f S16_LE -r 16000 | nemostream transcribe - --rate 16000 --latency 160
"""


def add_parser(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], common: argparse.ArgumentParser
) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "transcribe",
        help="transcribe recordings, or raw audio from standard input",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[common],
    )
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help="recordings, or - for raw PCM on standard input"
    )
    model = add_model_options(parser)
    model.add_argument(
        "-j",
        "--jobs",
        type=positive,
        default=1,
        metavar="N",
        help="files at a time, on one copy of the weights; the output stays in order; default: 1",
    )
    listening = add_recognition_options(parser)
    listening.add_argument(
        "--chunks-per-call",
        type=positive,
        metavar="N",
        help="chunks that go through the encoder together; it changes the speed, not the result",
    )
    listening.add_argument(
        "--channels",
        type=channels,
        default="mix",
        metavar="mix|split|N",
        help="the mean of all channels, each by itself, or only number N, from 0; default: mix",
    )
    add_decoding_options(parser, confidence="give every word its confidence; with -f json")
    output = parser.add_argument_group("output")
    output.add_argument(
        "-f",
        "--format",
        choices=("txt", "srt", "vtt", "tsv", "json", "all"),
        default="txt",
        help="default: txt",
    )
    output.add_argument(
        "-o", "--output-dir", type=folder, metavar="DIR", help="write files there instead of printing"
    )
    raw = parser.add_argument_group("standard input (-)")
    raw.add_argument("--rate", type=positive, metavar="HZ", help="sample rate; has to be given")
    raw.add_argument("--encoding", default="s16le", help="s16le (default), f32le, mulaw or alaw")
    raw.add_argument(
        "--input-channels", type=positive, default=1, metavar="N", help="interleaved channels; default: 1"
    )
    parser.set_defaults(run=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Transcribe everything; return 0, or the exit code of the first error."""
    _check_usage(arguments)
    from nemostream.cli.outputs import Output

    output = Output.of(arguments)
    options = decoding_options(arguments)
    # a file of its own keeps a core busier than a share of an operator does
    model = load_model(arguments, threads=1 if arguments.jobs > 1 else None)
    # what is wrong for every file is said once
    context = model.att_context(arguments.latency, arguments.att_context)
    model.stream(arguments.language, att_context_size=context, **options).close()
    first_code = 0
    with (
        Interruption() if STDIN in arguments.files else contextlib.nullcontext() as interruption,
        contextlib.closing(
            _recognitions(model, arguments, context, options, output.grows, interruption)
        ) as results,
    ):
        for place, (name, result) in enumerate(results):
            try:
                output.write(result(), place)
            except BrokenPipeError:
                raise
            except Exception as error:
                about = "standard input" if name == STDIN else name
                report_exception(error, arguments.verbose, about=about)
                code = error.exit_code if isinstance(error, NemostreamError) else NemostreamError.exit_code
                first_code = first_code or code
    if interruption is not None and interruption.asked:
        raise KeyboardInterrupt
    return first_code


def _recognitions(
    model: Model,
    arguments: argparse.Namespace,
    context: tuple[int, int],
    options: dict[str, Any],
    grows: bool,
    interruption: Interruption | None,
) -> Results:
    """Every input in its order, with what gives its result or raises its error."""
    jobs = min(arguments.jobs, len(arguments.files))
    if interruption is not None:
        from nemostream.cli.live import recognize_stdin

        yield STDIN, lambda: recognize_stdin(model, arguments, context, options, grows, interruption)
    elif jobs == 1:
        for name in arguments.files:
            yield name, functools.partial(_recognize_file, model, name, arguments, context, options)
    else:
        yield from _in_parallel(model, arguments, context, options, jobs)


def _in_parallel(
    model: Model,
    arguments: argparse.Namespace,
    context: tuple[int, int],
    options: dict[str, Any],
    jobs: int,
) -> Results:
    free: queue.SimpleQueue[Model] = queue.SimpleQueue()
    for member in (model, *(model.sibling() for _ in range(jobs - 1))):
        free.put(member)

    def recognize(name: str) -> Recognition:
        member = free.get()
        try:
            return _recognize_file(member, name, arguments, context, options, several=True)
        finally:
            free.put(member)

    pool = ThreadPoolExecutor(jobs, "nemostream-file")
    try:
        for name, future in [(name, pool.submit(recognize, name)) for name in arguments.files]:
            yield name, future.result
    finally:
        pool.shutdown(cancel_futures=True)


def _recognize_file(
    model: Model,
    name: str,
    arguments: argparse.Namespace,
    context: tuple[int, int],
    options: dict[str, Any],
    several: bool = False,
) -> Recognition:
    """One file; of ``several`` at a time none shows a progress bar, since they would share one line."""
    from nemostream.audio import AudioFile
    from nemostream.text.writers import Recognition

    started = time.perf_counter()
    split = arguments.channels == "split"
    chosen = [arguments.channels]
    if split:
        with AudioFile(name) as audio:
            chosen = list(range(audio.channels))
    transcripts: list[Transcript] = []
    for channel in chosen:
        label = f"{name} [{channel}]" if split else name
        with progress_bar(label, arguments.quiet or several) as progress:
            transcripts.append(
                model.transcribe(
                    name,
                    arguments.language,
                    att_context_size=context,
                    channels=channel,
                    chunks_per_call=arguments.chunks_per_call,
                    progress=progress,
                    **options,
                )
            )
    if arguments.verbose:
        seconds, duration = time.perf_counter() - started, sum(part.duration for part in transcripts)
        report_note(
            f"{name}: {duration:.2f} s of audio in {seconds:.2f} s ({duration / seconds:.1f} times as fast), "
            f"{model.backend}, att_context_size {list(context)}, language {transcripts[0].language}."
        )
    return Recognition(name, arguments.model, model.backend, context, tuple(transcripts), split)


def _check_usage(arguments: argparse.Namespace) -> None:
    parser: argparse.ArgumentParser = arguments.parser
    check_decoding_usage(arguments)
    if arguments.confidence and arguments.format not in ("json", "all"):
        parser.error(f"--confidence is written by -f json only, not by -f {arguments.format}")
    if arguments.itn is not None and arguments.format not in ("txt", "json"):
        parser.error(
            f"--itn rewrites whole utterances, and -f {arguments.format} needs the time of every word; "
            "use -f txt or json"
        )
    if STDIN in arguments.files:
        if len(arguments.files) > 1:
            parser.error("standard input (-) cannot be combined with files; transcribe it by itself")
        if arguments.rate is None:
            parser.error("standard input is raw PCM without a header, so --rate has to say its sample rate")
        if sys.stdin is None or sys.stdin.isatty():
            parser.error("standard input is closed or a terminal; pipe raw PCM into it")
    elif arguments.rate is not None:
        parser.error("--rate is for raw PCM on standard input (-); files say their own")
    if arguments.output_dir is None:
        if arguments.format == "all":
            parser.error("-f all writes several files, so -o has to say where")
        if len(arguments.files) > 1 and arguments.format in ("srt", "vtt", "tsv"):
            parser.error(f"-f {arguments.format} of several files cannot share one output; say where with -o")


def folder(text: str) -> Path:
    """Read the name of a folder, which is not empty."""
    if not text:
        raise argparse.ArgumentTypeError("the name of a folder is empty; . is the current one")
    return Path(text)


def channels(text: str) -> str | int:
    """Read ``mix``, ``split`` or a number from 0."""
    if text in ("mix", "split"):
        return text
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not mix, split, or a number from 0")
    return int(text)
