"""The figures (a) to (f): each a function that returns rows of the results table."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from benchmarks.ceiling import Ceiling
from benchmarks.models import CONFIGS
from benchmarks.prepare import Folders
from benchmarks.systems import Nemostream, Sherpa, System, Transformers, packets, sound
from nemostream.config import FRAME_MS

WARM_UP_STEPS = 3
LATENCIES = (80, 320, 560, 1120)


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
        cores: threads for (c).
        peers: measure others too.
        soak_steps: steps of the simulated long session.
    """

    folders: Folders
    seconds: float = 20.0
    file_seconds: float = 600.0
    threads: tuple[int, ...] = (1, 2)
    latencies: tuple[int, ...] = LATENCIES
    cores: int = 2
    peers: bool = True
    soak_steps: int = 11_250  # an hour of 320 ms chunks


def live(plan: Plan) -> Iterator[Row]:
    """(a) Real-time factor of one stream: median step time / chunk length."""
    for threads in plan.threads:
        ceiling = Ceiling(CONFIGS[plan.folders.size], threads)
        for latency in plan.latencies:
            setting, length = f"{latency} ms, {threads} thread{'s' * (threads > 1)}", latency / 1000
            audio = packets(sound(plan.seconds), latency)
            least = ceiling.seconds(latency // FRAME_MS)
            yield Row("live", "int8 matrix products alone", setting, least / length, "RTF")
            for system in _systems(plan, latency, threads):
                step = median(system.steps(audio)[WARM_UP_STEPS:])
                yield Row("live", system.name, setting, step / length, "RTF")
                if system.name == "nemostream int8":
                    yield Row("live", system.name, setting, 100 * least / step, "% of limit")


def _systems(plan: Plan, latency: int, threads: int) -> Iterator[System]:
    folders, right = plan.folders, latency // FRAME_MS - 1
    yield Nemostream(folders.bundle("int8"), right, threads)
    if latency == 320:
        yield Nemostream(folders.bundle("int4"), right, threads)
        yield Nemostream(folders.bundle("fp32"), right, threads)
        if plan.peers:
            yield Sherpa(folders.sherpa(right, "int8"), threads)
            yield Sherpa(folders.sherpa(right, "fp32"), threads)
            yield Transformers(folders.huggingface, right, threads)


def file(plan: Plan) -> Iterator[Row]:
    """(b) Throughput on a recording: seconds of audio per second, one thread."""
    samples, right, setting = sound(plan.file_seconds), 3, f"{plan.file_seconds:g} s file, 1 thread"
    most = plan.folders.bundle("int8")
    least = Ceiling(CONFIGS[plan.folders.size], 1).seconds(112) * plan.file_seconds / (112 * 0.08)
    yield Row("file", "int8 matrix products alone", setting, plan.file_seconds / least, "x real time")
    ours = Nemostream(most, right, 1)
    taken = ours.file(samples)
    yield Row("file", ours.name, setting, plan.file_seconds / taken, "x real time")
    yield Row("file", ours.name, setting, 100 * least / taken, "% of limit")
    if plan.peers:
        part = samples[: 16_000 * min(60, int(plan.file_seconds))]  # its speed does not depend on the length
        peer = Sherpa(plan.folders.sherpa(right, "int8"), 1)
        seconds = sum(peer.steps(packets(part, 320)))
        yield Row("file", f"{peer.name}, streaming", setting, len(part) / 16_000 / seconds, "x real time")
        offline = Transformers(plan.folders.huggingface, right, 1)
        taken = offline.file(part)
        yield Row("file", f"{offline.name}, offline", setting, len(part) / 16_000 / taken, "x real time")


def streams(plan: Plan) -> Iterator[Row]:
    """(c) Most streams whose median step, all in one batch, takes no longer than their chunk lasts."""
    for latency in plan.latencies:
        setting, right = f"{latency} ms, {plan.cores} cores", latency // FRAME_MS - 1
        ours = Nemostream(plan.folders.bundle("int8"), right, 1, workers=plan.cores)
        yield Row("streams", ours.name, setting, _most_streams(ours, latency), "streams")
        if plan.peers and latency == 320:
            peer = Sherpa(plan.folders.sherpa(right, "int8"), plan.cores)
            yield Row("streams", peer.name, setting, _most_streams(peer, latency), "streams")


def _most_streams(system: System, latency: int, most: int = 256) -> int:
    audio = packets(sound(latency * 9 / 1000), latency)

    def holds(count: int) -> bool:
        return median(system.steps(audio, count)[WARM_UP_STEPS:]) <= latency / 1000

    good, bad = 0, 1
    while bad <= most and holds(bad):
        good, bad = bad, 2 * bad
    while bad - good > max(1, good // 16):
        middle = (good + bad) // 2
        good, bad = (middle, bad) if holds(middle) else (good, middle)
    return good


def memory(plan: Plan) -> Iterator[Row]:
    """(d) Resident memory in a process of its own: one stream, each further one, and over a long session."""
    bundle = plan.folders.bundle("int8")
    report = _in_new_process("soak", str(bundle), str(plan.soak_steps))
    yield Row("memory", "nemostream int8", "1 stream, 1 thread", report["one"], "MB")
    yield Row("memory", "nemostream int8", "each further stream of 16", report["more"], "MB")
    setting = f"{plan.soak_steps} steps of 320 ms"
    yield Row("memory", "nemostream int8", f"growth over {setting}", report["growth"], "MB")
    yield Row("memory", "nemostream int8", f"median step of {setting}", report["median"], "ms")
    yield Row("memory", "nemostream int8", f"p99 / median of {setting}", report["p99"], "ratio")


def start(plan: Plan) -> Iterator[Row]:
    """(e) From the start of a process to the first word of a bundle, loading and hashing included."""
    for weights in ("int8", "fp32") if plan.folders.size == "small" else ("int8",):
        bundle = plan.folders.bundle(weights)  # type: ignore[arg-type]
        began = time.perf_counter()
        _in_new_process("first", str(bundle))
        value = time.perf_counter() - began
        yield Row("start", f"nemostream {weights}", "process start to first token", value, "s")


def share(plan: Plan) -> Iterator[Row]:
    """(f) What part of a step is decoding, at 320 ms on one thread."""
    ours = Nemostream(plan.folders.bundle("int8"), 3, 1)
    encode, taken = ours.runtime.encode, []

    def timed(*arguments: object) -> object:
        began = time.perf_counter()
        result = encode(*arguments)  # type: ignore[arg-type]
        taken.append(time.perf_counter() - began)
        return result

    ours.runtime.encode = timed  # type: ignore[assignment, method-assign]
    audio = packets(sound(plan.seconds), 320)
    for count in (1, 16):
        taken.clear()
        steps = ours.steps(audio, count)
        part = 100 * (1 - sum(taken[WARM_UP_STEPS:]) / sum(steps[-len(taken) + WARM_UP_STEPS :]))
        setting = f"{count} stream{'s' * (count > 1)}, 320 ms, features included"
        yield Row("share", ours.name, setting, part, "% of step")


def _in_new_process(*arguments: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.soak", *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return dict(json.loads(done.stdout))


FIGURES = {f.__name__: f for f in (live, file, streams, memory, start, share)}
