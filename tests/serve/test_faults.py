"""What may not cost a slot, a word or another call's time: faults of clients and of the network."""

from __future__ import annotations

import socket as sockets
import struct
import time
from contextlib import suppress

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from nemostream.loading import embedded_clip
from tests.serve.test_listen import QUERY
from tests.serve.test_operations import metric

DEEP = "[" * 100_000


def reset(raw: sockets.socket) -> None:
    """Close without a goodbye."""
    raw.setsockopt(sockets.SOL_SOCKET, sockets.SO_LINGER, struct.pack("ii", 1, 0))
    raw.close()


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
            [
                '{"type": "session.update", "session": {"audio": {"input": {"transcription": {"language": []}}}}}'  # noqa: E501
            ],
        ),
        (
            "realtime",
            [
                '{"type": "session.update", "session": {"audio": {"input": {"transcription": {"language": 5}}}}}'  # noqa: E501
            ],
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
            while "rror" not in str(socket.recv(timeout=2)):
                pass
    server.wait_until_idle(5)
    assert metric(server, "nemostream_streams") == before == 0


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
