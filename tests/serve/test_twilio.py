"""Twilio Media Streams, as its documentation shows the messages."""

from __future__ import annotations

import base64
import json
import re
import threading

import httpx
import pytest
import soxr
from websockets.sync.client import connect

from nemostream.audio import load_audio
from tests.serve.conftest import EXAMPLES, mulaw


def start(tracks: list[str], **parameters: str) -> str:
    media = {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1}
    given = {"streamSid": "MZ1", "tracks": tracks, "mediaFormat": media, "customParameters": parameters}
    return json.dumps({"event": "start", "sequenceNumber": "1", "streamSid": "MZ1", "start": given})


def spoken(text: str) -> str:
    """The letters: a full stop, or half a word, may come after a pause has ended its utterance."""
    return "".join(re.findall(r"\w", text))


def media(track: str, audio: bytes) -> str:
    payload = base64.b64encode(audio).decode()
    return json.dumps({"event": "media", "streamSid": "MZ1", "media": {"track": track, "payload": payload}})


def test_two_tracks_are_two_calls(server, expect) -> None:
    tracks = {
        name: mulaw(soxr.resample(load_audio(path), 16_000, 8000))
        for name, path in zip(("inbound", "outbound"), EXAMPLES, strict=False)
    }
    with connect(f"{server.ws}/v1/twilio") as socket:
        socket.send('{"event": "connected", "protocol": "Call", "version": "1.0.0"}')
        socket.send(start(list(tracks)))
        for position in range(0, max(map(len, tracks.values())), 160):
            for name, audio in tracks.items():
                if position < len(audio):
                    socket.send(media(name, audio[position : position + 160]))
        socket.send('{"event": "stop", "streamSid": "MZ1"}')
        events = [json.loads(message) for message in socket]
    for name, audio in tracks.items():
        finals = [event["text"] for event in events if event["track"] == name and event["final"]]
        expected = expect(audio, encoding="mulaw", sample_rate=8000)
        assert spoken(" ".join(finals)) == spoken(expected)


def test_others_can_follow(server) -> None:
    audio = mulaw(soxr.resample(load_audio(EXAMPLES[0]), 16_000, 8000))
    followed: list[dict] = []
    ready = threading.Event()

    def follow() -> None:
        with httpx.stream("GET", f"{server.http}/v1/twilio/MZ1", timeout=30) as answer:
            ready.set()
            followed.extend(json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: "))

    thread = threading.Thread(target=follow)
    thread.start()
    ready.wait(10)
    with connect(f"{server.ws}/v1/twilio") as socket:
        socket.send(start(["inbound"]))
        socket.send(media("inbound", audio))
        socket.send('{"event": "stop"}')
        events = [json.loads(message) for message in socket]
    thread.join(10)
    assert followed == [{key: value for key, value in event.items() if key != "sequence"} for event in events]
    assert followed[-1]["final"]


@pytest.mark.parametrize(
    "message",
    [
        media("inbound", b"\xff"),
        '{"event": "dance"}',
        start(["sideways"]),
        start(["inbound"], language="tlh"),
        '{"event": "start"}',
    ],
)
def test_nonsense_is_an_error_event(server, message) -> None:
    with connect(f"{server.ws}/v1/twilio") as socket:
        socket.send(message)
        assert json.loads(socket.recv(timeout=10))["event"] == "error"
