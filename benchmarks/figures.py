"""The figures (a) to (g): each a function that yields rows of the results table."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import get_args

from benchmarks.ceiling import Ceiling
from benchmarks.models import CONFIGS
from benchmarks.prepare import Folders
from benchmarks.sound import packets, sound
from benchmarks.systems import Nemostream, Sherpa, System, Transformers
from nemostream.config import FRAME_MS, SAMPLE_RATE
from nemostream.export.linear import Weights

WARM_UP_STEPS = 3
STREAM_STEPS = 6  # measured, of every number of streams that is tried
LATENCIES = (80, 320, 560, 1120)
COMPARED = 320  # ms; at which others are measured too
FILE_FRAMES = 112  # encoder frames in a call of a file
PEER_SECONDS = 60  # of a file: the speed of others does not depend on its length
STARTS = 5  # processes of which the median counts


@dataclass(frozen=True)
class Row:
    """One number: ``value`` of ``system`` under ``setting``, such as RTF at 320 ms on one thread."""

    figure: str
    system: str
    setting: str
    value: float
    unit: str


@dataclass(frozen=True)
class Plan:
    """What to measure, and for how long.

    Attributes:
        folders: the models.
        seconds: of audio for a live stream.
        file_seconds: of audio for a file.
        threads: for (a).
        latencies: in ms, for (a) and (c).
        cores: threads or workers for (c).
        peers: measure others too.
        soak_steps: steps of the simulated long session.
        recordings: recordings or manifests for (g); none means the embedded clip.
        most_streams: that are tried for (c).
    """

    folders: Folders
    seconds: float = 12.0
    file_seconds: float = 600.0
    threads: tuple[int, ...] = (1, 2)
    latencies: tuple[int, ...] = LATENCIES
    cores: int = 2
    peers: bool = True
    soak_steps: int = 11_250  # an hour of 320 ms chunks
    recordings: tuple[Path, ...] = ()
    most_streams: int = 256


def live(plan: Plan) -> Iterator[Row]:
    """(a) Real-time factor of one stream: median step time / chunk length."""
    for threads in plan.threads:
        ceiling = Ceiling(CONFIGS[plan.folders.size], threads)
        for latency in plan.latencies:
            setting, length = f"{latency} ms, {counted(threads, 'thread')}", latency / 1000
            audio, rows = packets(sound(plan.seconds), latency), latency // FRAME_MS
            for make in _systems(plan, latency, threads):
                before = ceiling.seconds(rows)
                system = make()
                step = median(system.steps(audio)[WARM_UP_STEPS:])
                yield Row("live", system.name, setting, step / length, "RTF")
                if system.name == "nemostream int8":
                    least = mean((before, ceiling.seconds(rows)))  # the machine may be slower now than then
                    yield Row("live", "int8 matrix products alone", setting, least / length, "RTF")
                    yield Row("live", system.name, setting, 100 * least / step, "% of limit")
                del system


def _systems(plan: Plan, latency: int, threads: int) -> Iterator[Callable[[], System]]:
    """Ways to make the systems of (a), so that one is in memory at a time."""
    folders, right = plan.folders, latency // FRAME_MS - 1
    yield lambda: Nemostream(folders.bundle("int8"), right, threads)
    if latency == COMPARED:
        yield lambda: Nemostream(folders.bundle("int4"), right, threads)
        yield lambda: Nemostream(folders.bundle("fp32"), right, threads)
        if plan.peers:
            yield lambda: Sherpa(folders.sherpa(right, "int8"), threads)
            yield lambda: Sherpa(folders.sherpa(right, "fp32"), threads)
            yield lambda: Transformers(folders.huggingface, right, threads)


def file(plan: Plan) -> Iterator[Row]:
    """(b) Throughput on a recording: seconds of audio per second, one thread."""
    samples, right, setting = sound(plan.file_seconds), 3, f"{plan.file_seconds:g} s file, 1 thread"
    ceiling, calls = (
        Ceiling(CONFIGS[plan.folders.size], 1),
        plan.file_seconds / (FILE_FRAMES * FRAME_MS / 1000),
    )
    before = ceiling.seconds(FILE_FRAMES)
    ours = Nemostream(plan.folders.bundle("int8"), right, 1)
    taken = ours.file(samples)
    least = calls * mean((before, ceiling.seconds(FILE_FRAMES)))
    yield Row("file", "int8 matrix products alone", setting, plan.file_seconds / least, "x real time")
    yield Row("file", ours.name, setting, plan.file_seconds / taken, "x real time")
    yield Row("file", ours.name, setting, 100 * least / taken, "% of limit")
    if plan.peers:
        part = samples[: SAMPLE_RATE * min(PEER_SECONDS, int(plan.file_seconds))]
        seconds, setting = len(part) / SAMPLE_RATE, f"{len(part) / SAMPLE_RATE:g} s file, 1 thread"
        peer = Sherpa(plan.folders.sherpa(right, "int8"), 1)
        taken = sum(peer.steps(packets(part, COMPARED)))
        yield Row("file", f"{peer.name}, streaming", setting, seconds / taken, "x real time")
        offline = Transformers(plan.folders.huggingface, right, 1)
        yield Row("file", f"{offline.name}, offline", setting, seconds / offline.file(part), "x real time")


def streams(plan: Plan) -> Iterator[Row]:
    """(c) Most streams that step together in no more time, on average, than their audio lasts."""
    for latency in plan.latencies:
        for setting, make in _ways(plan, latency):
            system = make()
            yield Row(
                "streams",
                system.name,
                f"{latency} ms, {setting}",
                _most_streams(system, latency, plan.most_streams),
                "streams",
            )
            del system


def _ways(plan: Plan, latency: int) -> Iterator[tuple[str, Callable[[], System]]]:
    """Ways to use the cores for many streams; at the latency that is compared, the slower way of each too."""
    right, cores, folders = latency // FRAME_MS - 1, plan.cores, plan.folders
    workers, threads = counted(cores, "worker"), counted(cores, "thread")
    both = latency == COMPARED and cores > 1
    yield workers, lambda: Nemostream(folders.bundle("int8"), right, 1, workers=cores)
    if both:
        yield threads, lambda: Nemostream(folders.bundle("int8"), right, cores)
    if plan.peers:
        yield threads, lambda: Sherpa(folders.sherpa(right, "int8"), cores)
        if both:
            yield workers, lambda: Sherpa(folders.sherpa(right, "int8"), 1, workers=cores)


def _most_streams(system: System, latency: int, most: int) -> int:
    audio = packets(sound(latency * (WARM_UP_STEPS + STREAM_STEPS) / 1000), latency)

    def holds(count: int) -> bool:
        return mean(system.steps(audio, count)[WARM_UP_STEPS:]) <= latency / 1000

    good, bad = 0, 1
    while bad <= most and holds(bad):
        good, bad = bad, 2 * bad
    bad = min(bad, most + 1)
    while bad - good > max(1, good // 16):
        middle = (good + bad) // 2
        good, bad = (middle, bad) if holds(middle) else (good, middle)
    return good


def memory(plan: Plan) -> Iterator[Row]:
    """(d) Resident memory in a process of its own: one stream, each further one, and over a long session."""
    report = json.loads(_lines("soak", plan.folders.bundle("int8"), plan.soak_steps)[-1])
    hours = f"{plan.soak_steps} steps of {COMPARED} ms"
    for setting, key, unit in (
        ("1 stream, 1 thread", "one", "MB"),
        ("each further stream of 16", "more", "MB"),
        (f"growth over {hours}", "growth", "MB"),
        (f"median step of {hours}", "median", "ms"),
        (f"p99 / median of {hours}", "p99", "ratio"),
        (f"longest step of {hours}", "longest", "ms"),
    ):
        yield Row("memory", "nemostream int8", setting, report[key], unit)


def start(plan: Plan) -> Iterator[Row]:
    """(e) From the start of a process to the first word, Python, loading and hashing included."""
    setting = "process start to first word of the clip, audio not waited for"
    yield Row("start", "nemostream, embedded model", setting, _start("word"), "s")
    setting = "process start to the end of the first chunk"
    yield Row("start", "nemostream int8", setting, _start("chunk", plan.folders.bundle("int8")), "s")


def _start(kind: str, *arguments: object) -> float:
    """Median seconds until a new process says something."""
    taken = []
    for _ in range(STARTS):
        began = time.perf_counter()
        _lines(kind, *arguments)
        taken.append(time.perf_counter() - began)
    return median(taken)


def share(plan: Plan) -> Iterator[Row]:
    """(f) What part of a step is decoding, and what part features, at 320 ms on one thread."""
    ours = Nemostream(plan.folders.bundle("int8"), COMPARED // FRAME_MS - 1, 1)
    audio = packets(sound(plan.seconds), COMPARED)
    for count in (1, 16):
        parts = ours.parts(audio, count)
        said = parts.pop("tokens") / (count * plan.seconds)
        yield Row(
            "share",
            ours.name,
            f"{counted(count, 'stream')}, tokens that the random model says",
            said,
            "per s",
        )
        whole = sum(parts.values())
        for name in ("decoding", "features"):
            setting = f"{counted(count, 'stream')}, {COMPARED} ms, {name}"
            yield Row("share", ours.name, setting, 100 * parts[name] / whole, "% of step")


def weights(plan: Plan) -> Iterator[Row]:
    """(g) What smaller weights cost the embedded model, as `nemostream convert --measure-on` records it.

    All forms hear the recordings together, beside the checkpoint in PyTorch, see
    `nemostream.export.measure.measure_errors`.
    """
    from nemostream.checkpoints import load_checkpoint
    from nemostream.export.measure import measure_errors
    from nemostream.export.onnx import export_onnx
    from nemostream.loading import embedded_checkpoint, embedded_clip
    from nemostream.runtimes.onnx import OnnxRuntime
    from nemostream.runtimes.torch import load_network

    checkpoint = load_checkpoint(embedded_checkpoint())
    network = load_network(checkpoint)
    forms: tuple[Weights, ...] = get_args(Weights)
    with tempfile.TemporaryDirectory() as name:
        for form in forms:
            export_onnx(network, checkpoint.tokenizer, Path(name, form), source="embedded", weights=form)
        ports = [OnnxRuntime(Path(name, form), threads=1, verify=False) for form in forms]
        for parts in measure_errors(checkpoint, ports, plan.recordings or (embedded_clip(),)):
            for form, part in zip(forms, parts, strict=True):
                setting = part.pop("on").replace("/manifest.jsonl", "")
                for key, value in part.items():
                    yield Row("weights", form, setting, value, key)


def counted(number: int, thing: str) -> str:
    """Such as "2 threads"."""
    return f"{number} {thing}{'s' * (number != 1)}"


def _lines(*arguments: object) -> list[str]:
    """What `benchmarks.processes` prints in a new process."""
    command = [sys.executable, "-m", "benchmarks.processes", *map(str, arguments)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.splitlines()


FIGURES = {f.__name__: f for f in (live, file, streams, memory, start, share, weights)}
