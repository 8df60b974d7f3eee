"""Clients that leave, half come, or come at the wrong time; and what a server that is behind says."""

from __future__ import annotations

import gc
import json
import socket as sockets
import threading
import time

import httpx
import numpy as np
import pytest
import soxr
from starlette.requests import HTTPConnection
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from nemostream.audio import load_audio
from nemostream.engine.session import Session
from nemostream.errors import ConfigError, NemostreamError
from nemostream.loading import embedded_clip
from nemostream.serve.access import Access, Denied
from nemostream.serve.call import Result
from nemostream.serve.config import ServeConfig
from nemostream.serve.metrics import Metrics
from nemostream.serve.protocols import transcriptions, twilio
from nemostream.serve.run import run_server
from tests.serve.conftest import EXAMPLES, mulaw, running, s16le
from tests.serve.test_faults import HANDSHAKE, frame, reset, slow_down
from tests.serve.test_listen import QUERY, finals, listen, results
from tests.serve.test_operations import metric
from tests.serve.test_twilio import media, spoken, start


def test_twilio_hangs_up_right_after_stop(server, expect) -> None:
    """Nothing keeps it from closing then, and who follows the stream is still owed the last words."""
    audio = mulaw(soxr.resample(load_audio(EXAMPLES[0]), 16_000, 8000))
    followed: list[dict] = []

    def follow() -> None:
        with httpx.stream("GET", f"{server.http}/v1/twilio/MZ1", timeout=30) as answer:
            followed.extend(json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: "))

    follower = threading.Thread(target=follow)
    follower.start()
    while "MZ1" not in server.state.followers:
        time.sleep(0.02)
    with connect(f"{server.ws}/v1/twilio") as socket:
        socket.send(start(["inbound"]))
        socket.send(media("inbound", audio))
        socket.send('{"event": "stop"}')
    follower.join(20)
    text = " ".join(event["text"] for event in followed if event["final"])
    assert spoken(text) == spoken(expect(audio, encoding="mulaw", sample_rate=8000))
    server.wait_until_idle()


def test_a_twilio_stream_that_breaks_off_ends_with_what_was_heard(expect) -> None:
    audio = mulaw(soxr.resample(load_audio(EXAMPLES[0]), 16_000, 8000))
    with running(resume_seconds=30) as server:
        raw = sockets.create_connection(("127.0.0.1", server.port))
        raw.send(HANDSHAKE.format("", server.port).replace("listen?", "twilio").encode())
        assert raw.recv(1000).startswith(b"HTTP/1.1 101")
        for message in (start(["inbound"]), media("inbound", audio[:16_000])):
            raw.sendall(frame(1, message.encode()))
        while not server.state.scheduler.active:
            time.sleep(0.02)
        reset(raw)
        server.wait_until_idle(5)  # Twilio does not come back


def test_a_close_without_a_code_ends_the_call_at_once() -> None:
    """As of ``socket.close()`` in a browser; nobody will come back."""
    with running(resume_seconds=30) as server:
        raw = sockets.create_connection(("127.0.0.1", server.port))
        raw.send(HANDSHAKE.format(QUERY, server.port).encode())
        assert raw.recv(1000).startswith(b"HTTP/1.1 101")
        assert server.state.scheduler.active == 1
        raw.sendall(frame(8, b""))
        server.wait_until_idle(3)
        raw.close()


def test_a_page_under_a_strange_name_is_refused_without_an_origin_too(server) -> None:
    """Browsers give no origin with a GET to the page's own host."""
    for name, status in (("evil.example", 403), ("localhost", 200), ("127.0.0.1", 200), ("box", 200)):
        headers = {"Host": f"{name}:{server.port}"}
        assert httpx.get(f"{server.http}/v1/models", headers=headers).status_code == status


@pytest.mark.parametrize(("settings", "passes"), [({"open": True}, True), ({}, False)])
def test_a_server_that_is_open_takes_its_own_page_under_any_name(settings, passes) -> None:
    """A proxy, or Ray's, listens for it."""
    access = Access(ServeConfig(**settings), Metrics())
    headers = [(b"host", b"box.example:8000"), (b"origin", b"http://box.example:8000")]
    connection = HTTPConnection({"type": "http", "headers": headers, "client": ("10.0.0.1", 1)})
    if passes:
        access.check(connection)
    else:
        with pytest.raises(Denied):
            access.check(connection)


def upload(server, length: int) -> sockets.socket:
    raw = sockets.create_connection(("127.0.0.1", server.port))
    raw.settimeout(5)
    raw.sendall(
        b"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n"
        b"Content-Type: multipart/form-data; boundary=x\r\n\r\n--x\r\n" % length
    )
    return raw


def test_an_upload_that_stops_is_not_waited_for_for_ever() -> None:
    with running(idle_seconds=0.5) as server:
        raw = upload(server, 1_000_000)
        assert raw.recv(1000).startswith(b"HTTP/1.1 408")
        raw.close()


@pytest.mark.parametrize("begin", [b"GET /", b"GET / HTTP/1.1\r\nX: "])
def test_an_address_and_headers_have_an_end(server, begin) -> None:
    with sockets.create_connection(("127.0.0.1", server.port)) as raw:
        raw.settimeout(5)
        with pytest.raises(OSError, match=r"reset|[Pp]ipe"):  # noqa: PT012 - which of them, the network says
            raw.sendall(begin)
            for _ in range(100):
                raw.sendall(bytes([97]) * 100_000)


def test_files_count_as_connections(server) -> None:
    name = 'nemostream_connections_total{protocol="transcriptions"}'
    before = metric(server, name)
    files = {"file": ("clip.flac", embedded_clip().read_bytes())}
    httpx.post(f"{server.http}/v1/audio/transcriptions", files=files)
    assert metric(server, name) == before + 1
    server.wait_until_idle()
    assert metric(server, "nemostream_streams") == 0


def test_a_full_server_refuses_before_the_upload() -> None:
    with running(slots=1) as server, listen(server):
        raw = upload(server, 100_000_000)
        assert raw.recv(1000).startswith(b"HTTP/1.1 503")
        raw.close()
        assert metric(server, 'nemostream_refused_total{reason="full"}') == 1


def test_a_killed_client_does_not_have_its_file_finished(clip, monkeypatch) -> None:
    import io

    import soundfile

    file = io.BytesIO()
    soundfile.write(file, np.tile(clip, 20), 16_000, format="WAV")
    with running(slots=2) as server:
        slow_down(monkeypatch, server, 0.3)
        request = httpx.Request(
            "POST", f"{server.http}/v1/audio/transcriptions", files={"file": ("a.wav", file.getvalue())}
        )
        body = request.read()
        head = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
        raw = sockets.create_connection(("127.0.0.1", server.port))
        raw.sendall(f"POST /v1/audio/transcriptions HTTP/1.1\r\n{head}\r\n".encode() + body)
        while not server.state.scheduler.active:
            time.sleep(0.02)
        reset(raw)
        server.wait_until_idle(3)


def test_results_of_a_long_file_are_not_all_kept(server, monkeypatch) -> None:
    """Each holds the whole text so far, so that all together grow with the square of the length."""
    kept = []
    answer = transcriptions._answer

    def counting(*arguments):
        kept.append(sum(type(each) is Result for each in gc.get_objects()))
        return answer(*arguments)

    monkeypatch.setattr(transcriptions, "_answer", counting)
    files = {"file": ("clip.flac", embedded_clip().read_bytes())}
    gc.collect()  # what other tests have left
    assert httpx.post(f"{server.http}/v1/audio/transcriptions", files=files).status_code == 200
    assert kept[0] <= 2


def test_a_server_that_is_behind_knows_it(clip, monkeypatch) -> None:
    """Each chunk is stepped soon after the one before, but the audio has waited for long."""
    code = mulaw(soxr.resample(np.tile(clip, 3), 16_000, 8000))
    query = "encoding=mulaw&sample_rate=8000&endpointing=false&latency=80"
    with running(slots=4, workers=1) as server, connect(f"{server.ws}/v1/listen?{query}") as socket:
        slow_down(monkeypatch, server, 0.4)
        begin = time.monotonic()
        for number in range(40):  # 4 s in real time, of which a tenth can be recognised
            socket.send(code[800 * number : 800 * (number + 1)])
            time.sleep(max(0.0, begin + 0.1 * (number + 1) - time.monotonic()))
        with pytest.raises(InvalidStatus) as refused:
            listen(server)
        assert refused.value.response.status_code == 503
        assert metric(server, 'nemostream_refused_total{reason="late"}') == 1
        late = metric(server, 'nemostream_lag_seconds_bucket{le="+Inf"}')
        assert late > metric(server, 'nemostream_lag_seconds_bucket{le="2.0"}')


def test_a_fast_sender_does_not_make_the_server_late(clip, monkeypatch) -> None:
    audio = s16le(np.tile(clip, 4))
    with running(slots=4) as server, listen(server, QUERY + "&latency=1120") as socket:
        slow_down(monkeypatch, server, 0.5)
        for begin in range(0, 300_000, 32_000):  # 9 s at once, twice as fast as they are said
            socket.send(audio[begin : begin + 32_000])
        time.sleep(3)
        assert server.state.scheduler.active == 1
        with listen(server):
            pass


def test_a_fault_in_the_audio_of_one_call_ends_that_call_only(clip, expect, monkeypatch) -> None:
    audio = s16le(clip)
    push = Session.push

    def failing(self: Session, piece: bytes) -> None:
        if b"\x42" * 64 in piece:
            raise IndexError("a fault of ours")
        push(self, piece)

    monkeypatch.setattr(Session, "push", failing)
    with running(slots=4) as server, listen(server) as good, listen(server) as bad:
        slow_down(monkeypatch, server, 0.1)
        good.send(audio)  # has a chunk in every step
        bad.send(b"\x42" * 32_000)
        assert "failed" in json.loads(bad.recv(timeout=10))["description"]
        good.send('{"type": "CloseStream"}')
        assert finals(results(good)) == expect(audio, encoding="s16le")
        server.wait_until_idle()


def test_an_empty_key_is_no_key() -> None:
    with pytest.raises(ConfigError, match="empty"):
        ServeConfig(api_keys=("good", "")).checked()


def test_a_start_that_fails_says_why() -> None:
    pytest.importorskip("wyoming", reason="the extra `wyoming` is not installed")
    with sockets.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(NemostreamError, match=str(port)):
            run_server(ServeConfig(port=0, slots=1, wyoming_port=port))
    with pytest.raises(ConfigError, match="no keys"):
        run_server(ServeConfig(port=0, slots=1, wyoming_port=1, api_keys=("k",)))


def test_a_stream_of_events_shows_that_it_lives(server, monkeypatch) -> None:
    """Else proxies cut it off, and a listener that has gone is never noticed."""
    monkeypatch.setattr(twilio, "_COMMENT_SECONDS", 0.1, raising=False)
    with httpx.stream("GET", f"{server.http}/v1/twilio/MZquiet", timeout=3) as answer:
        assert next(answer.iter_lines()).startswith(":")


def test_twilio_names_the_latency_in_its_parameters(server) -> None:
    """It drops the query of a stream's address."""
    with connect(f"{server.ws}/v1/twilio") as socket:
        socket.send(start(["inbound"], latency="77"))
        assert "77" in json.loads(socket.recv(timeout=10))["message"]
