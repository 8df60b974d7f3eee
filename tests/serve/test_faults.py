"""What may not cost a slot, a word or another call's time: faults of clients and of the network."""

from __future__ import annotations

import asyncio
import json
import socket as sockets
import struct
import threading
import time
from contextlib import suppress

import httpx
import numpy as np
import pytest
from starlette.requests import HTTPConnection
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from nemostream.loading import embedded_clip
from nemostream.serve.conversation import Conversation
from tests.serve.conftest import mulaw, running, s16le
from tests.serve.test_listen import QUERY, finals, hang_up, listen, results
from tests.serve.test_operations import metric

DEEP = "[" * 100_000
HANDSHAKE = (
    "GET /v1/listen?{} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


def reset(raw: sockets.socket) -> None:
    """Close without a goodbye."""
    raw.setsockopt(sockets.SOL_SOCKET, sockets.SO_LINGER, struct.pack("ii", 1, 0))
    raw.close()


def slow_down(monkeypatch, server, seconds: float) -> None:
    """Let every step of the encoder take so much longer."""
    runtime = type(server.state.model.engine.runtime)
    encode = runtime.encode

    def slow(*arguments):
        time.sleep(seconds)
        return encode(*arguments)

    monkeypatch.setattr(runtime, "encode", slow)


def all_of(socket, audio: bytes, begin: int, packet: int = 3200) -> list[dict]:
    """Send the audio from a byte on and close the stream, while reading what comes."""

    def send() -> None:
        for start in range(begin, len(audio), packet):
            socket.send(audio[start : start + packet])
        socket.send('{"type": "CloseStream"}')

    sender = threading.Thread(target=send)
    sender.start()
    messages = results(socket)
    sender.join()
    return messages


@pytest.mark.parametrize(
    ("path", "messages"),
    [
        ("listen?" + QUERY, [DEEP]),
        ("listen?" + QUERY, ['{"type": "Configure", "language": []}']),
        ("listen?" + QUERY, ['{"type": "Configure", "language": 5}']),
        ("realtime", [DEEP]),
        (
            "realtime",
            ['{"type": "session.update", "session": {"audio": {"input": {"format": {"type": []}}}}}'],
        ),
        (
            "realtime",
            ['{"type": "session.update", "session": {"input_audio_transcription": {"language": []}}}'],
        ),
        (
            "realtime",
            ['{"type": "session.update", "session": {"input_audio_transcription": {"language": 5}}}'],
        ),
        ("realtime", ['{"type": []}']),
        ("twilio", ['{"event": "start", "start": {"customParameters": []}}']),
        ("twilio", ['{"event": "start", "start": {"customParameters": {"language": []}}}']),
        ("twilio", ['{"event": "start", "start": {"mediaFormat": {"sampleRate": "x"}}}']),
        ("twilio", ['{"event": "start", "start": {"tracks": [[]]}}']),
        ("twilio", ['{"event": "start", "start": {"tracks": 5}}']),
        ("twilio", ['{"event": "start", "start": {}}', '{"event": "media", "media": {"track": []}}']),
    ],
)
def test_nonsense_of_any_kind_leaves_no_slot(server, path, messages) -> None:
    before = metric(server, "nemostream_streams")
    with connect(f"{server.ws}/v1/{path}") as socket:
        for message in messages:
            socket.send(message)
        with suppress(ConnectionClosed, TimeoutError):
            while "rror" not in str(socket.recv(timeout=0.7)):
                pass
    server.wait_until_idle(5)
    assert metric(server, "nemostream_streams") == before == 0


def test_wrong_api_key_types_of_twilio() -> None:
    with running(api_keys=("secret",)) as server:
        for key in (5, [], "\ud800"):
            with connect(f"{server.ws}/v1/twilio") as socket:
                socket.send(json.dumps({"event": "start", "start": {"customParameters": {"api_key": key}}}))
                with suppress(ConnectionClosed):
                    assert "key" in json.loads(socket.recv(timeout=5))["message"]
        server.wait_until_idle(5)


def test_clients_that_vanish_in_the_handshake_leave_no_slot(server) -> None:
    for _ in range(20):
        raw = sockets.create_connection(("127.0.0.1", server.port))
        raw.send(HANDSHAKE.format(QUERY, server.port).encode())
        reset(raw)
    server.wait_until_idle(5)


def test_clients_that_vanish_before_an_event_stream_leave_no_slot(server) -> None:
    content = embedded_clip().read_bytes()
    request = httpx.Request(
        "POST",
        f"{server.http}/v1/audio/transcriptions",
        files={"file": ("clip.flac", content)},
        data={"stream": "true"},
    )
    body = request.read()
    head = "POST /v1/audio/transcriptions HTTP/1.1\r\n" + "".join(
        f"{name}: {value}\r\n" for name, value in request.headers.items()
    )
    for _ in range(30):
        raw = sockets.create_connection(("127.0.0.1", server.port))
        raw.sendall(head.encode() + b"\r\n" + body)
        reset(raw)
    time.sleep(1)
    server.wait_until_idle(10)


def test_an_upload_without_a_length_is_limited_too() -> None:
    """It is answered when it is too large, and not when it is over, which may be never."""
    with running(max_upload_mb=1) as server:
        raw = sockets.create_connection(("127.0.0.1", server.port))
        raw.settimeout(5)
        raw.sendall(
            b"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n"
            b"Content-Type: multipart/form-data; boundary=x\r\n\r\n"
        )
        begin = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
        for part in (begin, *[bytes(500_000)] * 6):
            raw.sendall(b"%x\r\n%b\r\n" % (len(part), part))
        assert raw.recv(1000).startswith(b"HTTP/1.1 413")
        raw.close()


def test_unread_answers_come_again_without_new_audio(server, clip, expect) -> None:
    """All was sent; the connection broke before the answer came."""
    audio = s16le(clip)
    with listen(server) as socket:
        socket.send(audio[:64_000])
        socket.send('{"type": "Finalize"}')
        first = json.loads(socket.recv(timeout=10))
        name = first["metadata"]["session"]
        socket.send(audio)
        socket.send('{"type": "Finalize"}')
        second = json.loads(socket.recv(timeout=10))
        hang_up(socket)
    with connect(f"{server.ws}/v1/listen?session={name}&received={first['sequence']}") as socket:
        again = json.loads(socket.recv(timeout=5))
        assert again["channel"] == second["channel"]
        assert again["sequence"] == second["sequence"]


def test_a_connection_lost_at_the_very_end_loses_no_words(clip, expect) -> None:
    audio = s16le(clip)
    with running(resume_seconds=5) as server:
        with listen(server) as socket:
            socket.send(audio[:64_000])
            socket.send('{"type": "Finalize"}')
            first = json.loads(socket.recv(timeout=10))
            socket.send(audio)
            socket.send('{"type": "CloseStream"}')
            hang_up(socket)
        time.sleep(1.5)
        name = first["metadata"]["session"]
        with connect(f"{server.ws}/v1/listen?session={name}&received={first['sequence']}") as socket:
            assert finals(results(socket)) == expect(audio, encoding="s16le")


@pytest.mark.long
def test_taking_over_from_a_half_open_connection_repeats_nothing(clip, expect, monkeypatch) -> None:
    """The old connection still has messages in its buffers when the client is back on another."""
    audio = s16le(np.tile(clip, 3))
    with running(queue_seconds=2.5, resume_seconds=5) as server:
        slow_down(monkeypatch, server, 0.03)
        old = listen(server, QUERY + "&interim_results=true")
        for start in range(0, 640_000, 640):
            old.send(audio[start : start + 640])
        first = json.loads(old.recv(timeout=10))
        query = f"session={first['metadata']['session']}&received={first['sequence']}&offset=3200"
        with connect(f"{server.ws}/v1/listen?{query}") as socket:
            messages = all_of(socket, audio, 3200)
        old.socket.close()
    assert finals(messages) == expect(audio, encoding="s16le")
    assert [m["sequence"] for m in messages] == list(range(2, 2 + len(messages)))


@pytest.mark.long
def test_both_channels_survive_a_take_over(clip, expect, monkeypatch) -> None:
    import soxr

    code = mulaw(soxr.resample(np.tile(clip, 3), 16_000, 8000))
    both = np.repeat(np.frombuffer(code, np.uint8), 2).tobytes()
    query = (
        "encoding=mulaw&sample_rate=8000&channels=2&multichannel=true&endpointing=false&interim_results=true"
    )
    with running(queue_seconds=2.5, resume_seconds=5) as server:
        slow_down(monkeypatch, server, 0.03)
        old = listen(server, query)
        for start in range(0, 320_000, 3200):
            old.send(both[start : start + 3200])
        first = json.loads(old.recv(timeout=10))
        hang_up(old)
        name = first["metadata"]["session"]
        with connect(f"{server.ws}/v1/listen?session={name}&received={first['sequence']}&offset=0") as socket:
            messages = all_of(socket, both, 0)
    expected = expect(code, encoding="mulaw", sample_rate=8000)
    assert finals(messages, 0) == expected
    assert finals(messages, 1) == expected


def test_being_late_once_does_not_refuse_for_ever(server, clip, monkeypatch) -> None:
    runtime = type(server.state.model.engine.runtime)
    encode = runtime.encode
    hiccups = iter([2.5])

    def slow(*arguments):
        time.sleep(next(hiccups, 0))
        return encode(*arguments)

    with listen(server) as first, listen(server) as second:
        monkeypatch.setattr(runtime, "encode", slow)
        first.send(s16le(clip[:32_000]))
        time.sleep(0.3)
        second.send(s16le(clip[:32_000]))
        time.sleep(0.1)
        time.sleep(3)  # both are idle now, and nobody waits
        with listen(server):
            pass


def test_not_a_number_harms_nobody_else(server, clip, expect) -> None:
    audio = s16le(clip)
    query = "encoding=linear32&sample_rate=16000&endpointing=false"
    with listen(server) as good, listen(server, query) as bad:
        for start in range(0, len(audio), 6400):
            good.send(audio[start : start + 6400])
            with suppress(ConnectionClosed):  # it is told what is wrong, and closed
                bad.send(np.full(3200, np.nan if start % 12_800 else np.inf, "<f4").tobytes())
        good.send('{"type": "CloseStream"}')
        assert finals(results(good)) == expect(audio, encoding="s16le")
    server.wait_until_idle()


def test_requests_queue_up_to_a_limit(clip, monkeypatch) -> None:
    with running(slots=2) as server:
        slow_down(monkeypatch, server, 0.05)
        with listen(server) as socket:

            def flood() -> None:
                with suppress(ConnectionClosed, OSError):
                    for _ in range(20_000):
                        socket.send(bytes(2))
                        socket.send('{"type": "Finalize"}')

            sender = threading.Thread(target=flood, daemon=True)
            sender.start()
            time.sleep(2)
            (call,) = (call for lane in server.state.scheduler.lanes for call in lane._calls)
            waiting = len(call._queue)
            hang_up(socket)
        assert waiting < 1000
        server.wait_until_idle(20)


def test_without_keys_an_invented_key_is_no_way_round_the_rate_limit() -> None:
    with running(connections_per_minute=3) as server:
        statuses = [
            httpx.get(f"{server.http}/v1/models", headers={"Authorization": f"Bearer {n}"}).status_code
            for n in range(6)
        ]
        assert 429 in statuses


def test_guessing_keys_is_limited() -> None:
    with running(connections_per_minute=3, api_keys=("secret",)) as server:
        statuses = [
            httpx.get(f"{server.http}/v1/models", headers={"Authorization": f"Bearer {n}"}).status_code
            for n in range(6)
        ]
        assert 429 in statuses


def test_a_silent_wyoming_client_gives_its_slot_back() -> None:
    pytest.importorskip("wyoming", reason="the extra `wyoming` is not installed")
    from nemostream.load_test.server import free_port

    port = free_port()
    with running(wyoming_port=port, idle_seconds=0.5) as server:
        raw = sockets.create_connection(("127.0.0.1", port))
        start = {"type": "audio-start", "data": {"rate": 16_000, "width": 2, "channels": 1}}
        raw.sendall(json.dumps(start).encode() + b"\n")
        time.sleep(0.3)
        assert server.state.scheduler.active == 1
        server.wait_until_idle(5)
        raw.close()


@pytest.mark.parametrize(
    "line",
    [
        b"garbage\n",
        b'{"type": "audio-chunk", "data": {}, "payload_length": 9000000000}\n',
        b'{"type": "audio-start", "data": {}}\n',
        b'{"type": "audio-start", "data": {"rate": "x", "width": 2, "channels": 1}}\n',
        b'{"type": "audio-start", "data": {"rate": 5, "width": 2, "channels": 1}}\n',
        b"[1]\n",
        b"x" * 200_000,
    ],
)
def test_wyoming_nonsense_leaves_no_slot(line) -> None:
    pytest.importorskip("wyoming", reason="the extra `wyoming` is not installed")
    from nemostream.load_test.server import free_port

    port = free_port()
    with running(wyoming_port=port, idle_seconds=1) as server:
        start = b'{"type": "audio-start", "data": {"rate": 16000, "width": 2, "channels": 1}}\n'
        raw = sockets.create_connection(("127.0.0.1", port))
        raw.settimeout(5)
        raw.sendall(start)
        time.sleep(0.2)
        raw.sendall(line)
        with suppress(TimeoutError, ConnectionError):
            while raw.recv(1000):
                pass
        server.wait_until_idle(5)
        raw.close()


def test_followers_of_a_lost_twilio_stream_are_told(server) -> None:
    done = threading.Event()

    def follow() -> None:
        with httpx.stream("GET", f"{server.http}/v1/twilio/MZlost", timeout=10) as answer:
            for _ in answer.iter_lines():
                pass
        done.set()

    listener = threading.Thread(target=follow, daemon=True)
    with connect(f"{server.ws}/v1/twilio") as socket:
        socket.send(json.dumps({"event": "start", "start": {"streamSid": "MZlost", "tracks": ["inbound"]}}))
        listener.start()
        while "MZlost" not in server.state.followers:
            time.sleep(0.02)
        hang_up(socket)
    server.wait_until_idle()
    assert done.wait(5)


def frame(code: int, data: bytes) -> bytes:
    """A WebSocket frame, masked with zeros."""
    size = bytes([0xFE]) + struct.pack("!H", len(data)) if len(data) > 125 else bytes([0x80 | len(data)])
    return bytes([0x80 | code]) + size + bytes(4) + data


def test_answers_that_were_sent_into_the_void_can_be_fetched(clip, expect) -> None:
    """The server has sent everything and said goodbye, and nothing arrived."""
    audio = s16le(clip[:64_000])

    with running(resume_seconds=5) as server:
        raw = sockets.create_connection(("127.0.0.1", server.port))
        raw.send(HANDSHAKE.format(QUERY, server.port).encode())
        assert raw.recv(1000).startswith(b"HTTP/1.1 101")
        for start in range(0, len(audio), 32_000):
            raw.sendall(frame(2, audio[start : start + 32_000]))
        raw.sendall(frame(1, b'{"type": "CloseStream"}'))
        time.sleep(2)
        (name,) = server.state.conversations
        assert server.state.scheduler.active == 0
        reset(raw)
        with connect(f"{server.ws}/v1/listen?session={name}&received=0") as socket:
            assert finals(results(socket)) == expect(audio, encoding="s16le")


def test_a_client_that_takes_nothing_is_cut_off_by_itself(clip, expect, monkeypatch) -> None:
    """It sends on, and so is not idle."""
    from nemostream.serve import conversation

    monkeypatch.setattr(conversation, "_STALL_SECONDS", 0.5)
    with running(slots=2) as server:
        raw = sockets.create_connection(("127.0.0.1", server.port))
        raw.send(HANDSHAKE.format(QUERY, server.port).encode())
        assert raw.recv(1000).startswith(b"HTTP/1.1 101")
        finalize = b'{"type": "Finalize"}'
        frame = bytes([0x81, 0x80 | len(finalize), 0, 0, 0, 0]) + finalize
        raw.settimeout(15)
        with suppress(OSError):
            for _ in range(1000):
                raw.sendall(frame * 100)
        server.wait_until_idle(10)
        raw.close()


@pytest.mark.long
def test_a_client_that_is_slowed_down_is_not_taken_for_dead(clip, expect, monkeypatch) -> None:
    """Its answers to pings wait behind its audio."""
    from nemostream.serve import run

    monkeypatch.setattr(run, "_PING_SECONDS", 0.5)
    audio = s16le(np.tile(clip, 6))
    with running(queue_seconds=2.5) as server:
        slow_down(monkeypatch, server, 0.02)
        with listen(server) as socket:
            for start in range(0, len(audio), 32_000):
                socket.send(audio[start : start + 32_000])
            socket.send('{"type": "CloseStream"}')
            assert finals(results(socket)) == expect(audio, encoding="s16le")


def test_no_wake_up_is_lost_between_the_threads() -> None:
    """The model's thread answers everything just as another request comes in; nobody else would wake it."""
    from collections import deque

    from nemostream.serve.call import Call, CallOptions

    async def scenario() -> tuple[bool, int]:
        woken = []
        call = Call(CallOptions(), 0, lambda: woken.append(call.is_due))
        call.mark("first")

        class Preempted(deque):
            def append(self, item: object) -> None:
                call._answered = call._asked  # what `advance` and `settle` do
                call.settle()
                woken.clear()
                super().append(item)

        call._queue = Preempted(call._queue)
        call.mark("second")
        return call.is_due, len(woken)

    assert asyncio.run(scenario()) == (True, 1)


def test_kept_messages_are_limited_in_size(monkeypatch) -> None:
    """Interim results of an utterance that nobody ends grow with it."""
    from nemostream.serve import conversation

    monkeypatch.setattr(conversation, "KEPT_CHARACTERS", 10_000)

    async def scenario() -> int:
        kept = Conversation(None, HTTPConnection({"type": "http", "query_string": b""}))  # type: ignore[arg-type]
        for _ in range(100):
            kept.send({"text": "x" * 900})
        return len(kept._messages)

    assert asyncio.run(scenario()) == 10


def test_a_key_term_that_can_not_be_used_is_refused_at_once(server) -> None:
    with pytest.raises(InvalidStatus) as refused:
        listen(server, QUERY + "&keyterm=" + "x" * 300)
    assert refused.value.response.status_code == 400
    assert "200 characters" in json.loads(refused.value.response.body)["error"]["message"]
    server.wait_until_idle()


def test_a_name_that_is_made_to_lead_here_is_a_strange_page(server) -> None:
    """DNS rebinding: the browser takes the page's own host for this server's."""
    headers = {"Origin": "http://evil.example:8000", "Host": "evil.example:8000"}
    assert httpx.get(f"{server.http}/v1/models", headers=headers).status_code == 403
    headers = {"Origin": f"http://localhost:{server.port}", "Host": f"localhost:{server.port}"}
    assert httpx.get(f"{server.http}/v1/models", headers=headers).status_code == 200


def test_a_client_that_leaves_in_the_middle_of_an_upload_leaves_no_traceback(server, caplog) -> None:
    raw = sockets.create_connection(("127.0.0.1", server.port))
    raw.sendall(
        b"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: here\r\nContent-Length: 1000000\r\n"
        b"Content-Type: multipart/form-data; boundary=x\r\n\r\n--x\r\n"
    )
    time.sleep(0.2)
    reset(raw)
    time.sleep(0.5)
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
