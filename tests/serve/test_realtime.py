"""Transcription sessions in the messages of OpenAI's Realtime API."""

from __future__ import annotations

import base64
import json
import threading

import numpy as np
import pytest
import soxr
from websockets.sync.client import ClientConnection, connect

from tests.serve.conftest import Running, mulaw, s16le

PREFIX = "conversation.item.input_audio_transcription."


def session(server: Running) -> connect:
    return connect(f"{server.ws}/v1/realtime?intent=transcription", subprotocols=["realtime"])


def update(
    socket: ClientConnection, form: dict | str, turns: dict | None = None, **transcription: str
) -> None:
    given = {"format": form, "turn_detection": turns, "transcription": transcription}
    socket.send(
        json.dumps(
            {"type": "session.update", "session": {"type": "transcription", "audio": {"input": given}}}
        )
    )


def events_until(socket: ClientConnection, kind: str) -> list[dict]:
    """Everything up to and with the next event of a kind."""
    events = []
    while not events or events[-1]["type"] != kind:
        events.append(json.loads(socket.recv(timeout=30)))
        assert events[-1]["type"] != "error" or kind == "error", events[-1]
    return events


def commit(socket: ClientConnection) -> list[dict]:
    socket.send('{"type": "input_audio_buffer.commit"}')
    return events_until(socket, PREFIX + "completed")


def test_binary_and_base64_give_the_same_append_only_text(server, clip, expect) -> None:
    audio = s16le(clip)
    expected = expect(audio, encoding="s16le")
    for binary in (True, False):
        with session(server) as socket:
            assert socket.subprotocol == "realtime"
            update(socket, {"type": "audio/pcm", "rate": 16_000})
            for start in range(0, len(audio), 6401):
                part = audio[start : start + 6401]
                append = {"type": "input_audio_buffer.append", "audio": base64.b64encode(part).decode()}
                socket.send(part if binary else json.dumps(append))
            events = commit(socket)
        deltas = [event["delta"] for event in events if event["type"] == PREFIX + "delta"]
        assert len(deltas) > 2
        assert "".join(deltas).strip() == events[-1]["transcript"] == expected
        assert {event["item_id"] for event in events if "item_id" in event} == {"item_1"}
        assert " ".join(word["word"] for word in events[-1]["words"]) == expected


@pytest.mark.parametrize("rate", [24_000, 44_100, 48_000])
def test_every_rate_of_a_browser(server, clip, expect, rate) -> None:
    audio = s16le(soxr.resample(clip, 16_000, rate))
    with session(server) as socket:
        update(socket, {"type": "audio/pcm", "rate": rate})
        socket.send(audio)
        assert commit(socket)[-1]["transcript"] == expect(audio, encoding="s16le", sample_rate=rate)


def test_telephone_formats_by_old_and_new_names(server, clip, expect) -> None:
    audio = mulaw(soxr.resample(clip, 16_000, 8000))
    expected = expect(audio, encoding="mulaw", sample_rate=8000)
    for form in ({"type": "audio/pcmu"}, "g711_ulaw"):
        with session(server) as socket:
            update(socket, form)
            socket.send(audio)
            assert commit(socket)[-1]["transcript"] == expected


def test_every_commit_is_answered_exactly_once(server, clip) -> None:
    with session(server) as socket:
        update(socket, {"type": "audio/pcm", "rate": 16_000})
        for _ in range(2):
            socket.send('{"type": "input_audio_buffer.commit"}')  # of nothing
        socket.send(s16le(clip[:48_000]))
        for _ in range(3):
            socket.send('{"type": "input_audio_buffer.commit"}')
        transcripts = [events_until(socket, PREFIX + "completed")[-1]["transcript"] for _ in range(5)]
        assert transcripts[0] == transcripts[1] == transcripts[3] == transcripts[4] == ""
        assert transcripts[2]
        update(socket, {"type": "audio/pcm", "rate": 16_000})
        assert json.loads(socket.recv(timeout=5))["type"] == "session.updated"  # nothing came in between


def test_the_server_finds_the_turns(server, clip) -> None:
    quiet = np.zeros(24_000, np.float32)
    with session(server) as socket:
        update(
            socket, {"type": "audio/pcm", "rate": 16_000}, {"type": "server_vad", "silence_duration_ms": 300}
        )
        socket.send(s16le(np.concatenate([clip, quiet, clip, quiet])))
        first, second = (events_until(socket, PREFIX + "completed") for _ in range(2))
        assert first[-1]["transcript"]
        assert second[-1]["item_id"] == "item_2"
        committed = next(event for event in second if event["type"] == "input_audio_buffer.committed")
        assert committed["previous_item_id"] == "item_1"


def test_the_language_changes_between_utterances(server, clip, expect) -> None:
    audio = s16le(clip[:64_000])
    with session(server) as socket:
        update(socket, {"type": "audio/pcm", "rate": 16_000}, language="en-US")
        socket.send(audio)
        assert commit(socket)[-1]["transcript"] == expect(audio, encoding="s16le", language="en-US")
        update(socket, {"type": "audio/pcm", "rate": 16_000}, language="auto")
        socket.send(audio)
        assert commit(socket)[-1]["transcript"] == expect(audio, encoding="s16le", language="auto")
        update(socket, {"type": "audio/pcm", "rate": 16_000}, language="tlh")
        assert "tlh" in events_until(socket, "error")[-1]["error"]["message"]
        socket.send(audio)
        assert commit(socket)[-1]["transcript"] == expect(audio, encoding="s16le", language="auto")


@pytest.mark.parametrize(
    "nonsense",
    [
        "}",
        '{"type": "response.create"}',
        '{"type": "input_audio_buffer.append", "audio": "*"}',
        '{"type": "input_audio_buffer.append", "audio": 7}',
        '{"type": "input_audio_buffer.clear"}',
        '{"type": "session.update"}',
        '{"type": "session.update", "session": {"audio": {"input": {"format": "mp3"}}}}',
        '{"type": "session.update", "session": {"audio": {"input": {"format": {"type": "audio/pcm"'
        ', "rate": 5}}}}}',
        '{"type": "session.update", "session": {"audio": {"input": {"turn_detection": 5}}}}',
        '{"type": "session.update", "session": {"audio": 5}}',
    ],
)
def test_nonsense_is_an_error_event_and_no_more(server, clip, nonsense) -> None:
    with session(server) as socket:
        socket.send(nonsense)
        assert events_until(socket, "error")[-1]["error"]["message"]
        update(socket, {"type": "audio/pcm", "rate": 16_000})
        socket.send(s16le(clip))
        assert commit(socket)[-1]["transcript"]
        socket.send('{"type": "session.update", "session": {"audio": {"input": {"format": "g711_ulaw"}}}}')
        assert "another session" in events_until(socket, "error")[-1]["error"]["message"]


def test_openai_client(server, clip, expect) -> None:
    """The public client's own types and loop."""
    openai = pytest.importorskip("openai", reason="the public client is not installed")
    audio = s16le(soxr.resample(clip, 16_000, 24_000))
    client = openai.OpenAI(base_url=f"{server.http}/v1", api_key="none", websocket_base_url=f"{server.ws}/v1")
    heard = ""
    with client.realtime.connect(extra_query={"intent": "transcription"}) as connection:
        connection.session.update(
            session={
                "type": "transcription",
                "audio": {"input": {"format": {"type": "audio/pcm", "rate": 24_000}, "turn_detection": None}},
            }
        )
        for start in range(0, len(audio), 9600):
            connection.input_audio_buffer.append(audio=base64.b64encode(audio[start : start + 9600]).decode())
        connection.input_audio_buffer.commit()
        timer = threading.Timer(30, connection.close)
        timer.start()
        for event in connection:
            if event.type == PREFIX + "delta":
                heard += event.delta
            if event.type == PREFIX + "completed":
                break
        timer.cancel()
    assert heard.strip() == expect(audio, encoding="s16le", sample_rate=24_000)
