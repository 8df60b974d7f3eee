"""Home Assistant's protocol, with its own client."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("wyoming", reason="the extra `wyoming` is not installed")
from wyoming.asr import Transcribe, Transcript
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.client import AsyncTcpClient
from wyoming.error import Error
from wyoming.info import Describe, Info

from nemostream.load_test.server import free_port
from tests.serve.conftest import running, s16le


def test_describe_and_transcribe(clip, expect) -> None:
    audio = s16le(clip)
    port = free_port()

    async def talk() -> list[str]:
        async with AsyncTcpClient("127.0.0.1", port) as client:
            await client.write_event(Describe().event())
            info = Info.from_event(await client.read_event())
            assert info.asr[0].models[0].name == "tiny"
            heard = []
            for _ in range(2):  # a connection is used again
                await client.write_event(Transcribe(language="en-US").event())
                await client.write_event(AudioStart(rate=16_000, width=2, channels=1).event())
                for start in range(0, len(audio), 2048):
                    chunk = AudioChunk(rate=16_000, width=2, channels=1, audio=audio[start : start + 2048])
                    await client.write_event(chunk.event())
                await client.write_event(AudioStop().event())
                while not Transcript.is_type((event := await client.read_event()).type):
                    pass
                heard.append(Transcript.from_event(event).text)
                await client.read_event()  # transcript-stop
            await client.write_event(AudioStart(rate=16_000, width=1, channels=2).event())
            assert Error.is_type((await client.read_event()).type)
            await client.write_event(Transcribe(language="tlh").event())
            await client.write_event(AudioStart(rate=16_000, width=2, channels=1).event())
            assert "tlh" in Error.from_event(await client.read_event()).text
            return heard

    with running(wyoming_port=port) as server:
        expected = expect(audio, encoding="s16le", language="en-US")
        assert asyncio.run(asyncio.wait_for(talk(), 60)) == [expected, expected]
        server.wait_until_idle()
