"""Telephone calls to our server and to sherpa-onnx's own, one after the other, with the same recordings.

    pip install '.[bench,serve,eval]' sherpa-onnx-bin
    python -m benchmarks.calls RECORDING... --models FOLDER --report docs

Both run the random model of published size in int8 at 320 ms. sherpa-onnx has no request for a final
text in mid-call, so each utterance is a connection of its own there, which ends with ``Done``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.prepare import Folders
from nemostream.audio import PcmDecoder
from nemostream.load_test.call import Line
from nemostream.load_test.generate import Plan
from nemostream.load_test.generate import main as generate
from nemostream.load_test.report import plot, to_markdown
from nemostream.load_test.search import Level, LoadTest, find_largest
from nemostream.load_test.server import Server, free_port, http_ready

PEER = "sherpa-onnx-online-websocket-server"
RIGHT, LATENCY = 3, 320
MARKER = "<!-- what follows is written by `python -m benchmarks.calls --report docs` -->"


class SherpaLine:
    """`nemostream.load_test.call.Line` of sherpa-onnx: float32 samples, a connection an utterance."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._text = ""

    async def open(self) -> None:
        """Connect for the first utterance."""
        self._decoder = PcmDecoder("mulaw", 1)
        self._speaking = self._listening = await self._connect()
        self._next: asyncio.Queue[object] = asyncio.Queue()

    async def send(self, packet: bytes) -> None:
        """Send one packet."""
        samples = self._decoder.decode(packet)[:, 0].astype("<f4")
        await self._speaking.send(samples.tobytes())

    async def end_utterance(self) -> None:
        """End this connection's audio, and begin another one."""
        await self._speaking.send("Done")
        self._speaking = await self._connect()
        self._next.put_nowait(self._speaking)

    async def receive(self) -> tuple[str, bool]:
        """Wait for a result."""
        message = await self._listening.recv()
        if message == "Done!":
            await self._listening.close()
            self._listening = await self._next.get()
            text, self._text = self._text, ""
            return text, True
        self._text = json.loads(message)["text"]
        return self._text, False

    async def close(self) -> None:
        """Hang up."""
        for socket in {self._speaking, self._listening}:
            await socket.close()

    async def _connect(self):
        from websockets.asyncio.client import connect

        return await connect(self._url, compression=None)


def sherpa_line(plan: Plan) -> Line:
    """For the generator's process."""
    return SherpaLine(plan.url)


def main() -> None:
    """Search both, print both, and keep them."""
    if sys.argv[1:] == ["--generate"]:
        generate(sherpa_line)
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recordings", nargs="+", type=Path)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--size", default="full", choices=("full", "small"))
    parser.add_argument("--seconds", type=float, default=20.0, help="of each call, at least")
    parser.add_argument("--most", type=int, default=64)
    parser.add_argument("--first", type=int, default=8, help="calls of the first level after one alone")
    parser.add_argument("--report", type=Path, metavar="DIR", help="write load.md's table and load.png there")
    arguments = parser.parse_args()
    folders = Folders(arguments.models, arguments.size)
    plan = Plan("", tuple(map(str, arguments.recordings)), 1, arguments.seconds)
    found = {
        "nemostream": _ours(plan, folders, arguments.most, arguments.first),
        "sherpa-onnx": _sherpa(plan, folders, arguments.most, max(2, arguments.first // 2)),
    }
    parts = []
    for name, (levels, largest) in found.items():
        parts.append(f"### {name}: {largest} calls hold\n\n{to_markdown(levels)}")
    text = "\n".join(parts)
    print(text)
    if arguments.report is not None:
        page = arguments.report / "load.md"
        head = page.read_text(encoding="utf-8").partition(MARKER)[0]
        picture = "![95th percentile of the lag over the number of calls](load.png)"
        page.write_text(f"{head}{MARKER}\n\n{text}\n{picture}\n", encoding="utf-8")
        plot({name: levels for name, (levels, _) in found.items()}, arguments.report / "load.png")


def _ours(plan: Plan, folders: Folders, most: int, first: int) -> tuple[list[Level], int]:
    port = free_port()
    command = [sys.executable, "-m", "nemostream.cli.main", "serve", "--port", str(port)]
    command += ["--slots", str(most), "--model", str(folders.bundle("int8")), "--latency", str(LATENCY)]
    with Server(command, http_ready(f"http://127.0.0.1:{port}/readyz")) as server:
        test = LoadTest(replace(plan, url=f"ws://127.0.0.1:{port}"), pid=server.pid)
        return find_largest(test, most, _say("nemostream"), first)


def _sherpa(plan: Plan, folders: Folders, most: int, first: int) -> tuple[list[Level], int]:
    program = shutil.which(PEER, path=str(Path(sys.executable).parent)) or shutil.which(PEER)
    if program is None:
        raise SystemExit(f"{PEER} is missing; run: pip install sherpa-onnx-bin")
    folder, port = folders.sherpa(RIGHT, "int8"), free_port()
    command = [
        program,
        f"--port={port}",
        "--num-work-threads=2",
        "--num-threads=1",
        f"--max-batch-size={most}",
    ]
    command += [f"--tokens={folder / 'tokens.txt'}", "--enable-endpoint=false", "--input-sample-rate=8000"]
    command.append(f"--log-file={os.devnull}")
    command += [f"--{part}={folder / f'{part}.onnx'}" for part in ("encoder", "decoder", "joiner")]
    with Server(command, lambda: _listens(port)) as server:
        module = [sys.executable, "-m", "benchmarks.calls", "--generate"]
        test = LoadTest(replace(plan, url=f"ws://127.0.0.1:{port}"), pid=server.pid, generator=module)
        return find_largest(test, most, _say("sherpa-onnx"), first)


def _listens(port: int) -> bool:
    import socket

    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _say(name: str):
    def say(level: Level) -> None:
        print(
            f"{name}: {level.calls} calls, {np.round(level.lag, 0)} ms, {level.mismatches} mismatches",
            flush=True,
        )

    return say


if __name__ == "__main__":
    main()
