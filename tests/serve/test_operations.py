"""Limits, keys, metrics, and what goes wrong in production."""

from __future__ import annotations

import json
import os
import signal
import socket as sockets
import subprocess
import sys
import time
from contextlib import ExitStack

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from nemostream.load_test.server import free_port, http_ready
from nemostream.loading import embedded_clip
from nemostream.serve.server import Server
from tests.serve.conftest import running, s16le
from tests.serve.test_listen import QUERY, finals, hang_up, listen, results

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
CALLS_TO_DRAIN = 16


def metric(server, name: str) -> float:
    lines = httpx.get(f"{server.http}/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def test_health_and_metrics(server, clip) -> None:
    assert httpx.get(f"{server.http}/healthz").json() == {"status": "ok"}
    assert httpx.get(f"{server.http}/readyz").json() == {"ready": True}
    before = metric(server, "nemostream_batch_size_count")
    with listen(server) as socket:
        socket.send(s16le(clip))
        socket.send('{"type": "CloseStream"}')
        results(socket)
    server.wait_until_idle()
    assert metric(server, "nemostream_batch_size_count") > before
    assert metric(server, "nemostream_lag_seconds_count") > 0
    parts = [metric(server, f"nemostream_{part}_seconds_total") for part in ("encode", "decode", "feature")]
    assert min(parts) > 0
    assert parts[0] + parts[1] <= metric(server, "nemostream_step_seconds_sum")
    assert metric(server, "nemostream_streams") == 0
    assert metric(server, "nemostream_slots") == 16


def test_past_the_capacity_calls_are_refused_and_the_others_go_on(clip, expect) -> None:
    audio = s16le(clip)
    with running(slots=2) as server, listen(server) as first, listen(server) as second:
        first.send(audio[:50_000])
        with pytest.raises(InvalidStatus) as refused, listen(server):
            pass
        assert refused.value.response.status_code == 503
        assert "slots" in json.loads(refused.value.response.body)["error"]["message"]
        files = {"file": ("clip.flac", embedded_clip().read_bytes())}
        answer = httpx.post(f"{server.http}/v1/audio/transcriptions", files=files)
        assert answer.status_code == 503
        assert answer.headers["retry-after"]
        for socket in (first, second):
            socket.send(audio[50_000:] if socket is first else audio)
            socket.send('{"type": "CloseStream"}')
            assert finals(results(socket)) == expect(audio, encoding="s16le")
        assert metric(server, 'nemostream_refused_total{reason="full"}') == 2
        server.wait_until_idle()
        with listen(server):  # there is room again
            pass


def test_keys(clip) -> None:
    with running(api_keys=("secret", "other")) as server:
        for path in ("/v1/models", "/v1/twilio/MZ1"):
            assert httpx.get(server.http + path).status_code == 401
        headers = {"Authorization": "Bearer other"}
        assert httpx.get(f"{server.http}/v1/models", headers=headers).status_code == 200
        assert (
            httpx.get(f"{server.http}/v1/models", headers={"Authorization": "Bearer wrong"}).status_code
            == 401
        )
        for protocol in ("listen?" + QUERY, "realtime"):
            with pytest.raises(InvalidStatus) as refused, connect(f"{server.ws}/v1/{protocol}"):
                pass
            assert refused.value.response.status_code == 401
        with connect(f"{server.ws}/v1/listen?{QUERY}", additional_headers={"Authorization": "Token secret"}):
            pass
        with connect(f"{server.ws}/v1/realtime", subprotocols=["realtime", "openai-insecure-api-key.secret"]):
            pass
        with connect(f"{server.ws}/v1/listen?{QUERY}", subprotocols=["token", "secret"]) as socket:
            assert socket.subprotocol == "token"
        start = {"event": "start", "start": {"tracks": ["inbound"], "customParameters": {"api_key": "no"}}}
        with connect(f"{server.ws}/v1/twilio") as socket:
            socket.send(json.dumps(start))
            assert "key" in json.loads(socket.recv())["message"]
        server.wait_until_idle()


def test_pages_of_other_sites_are_refused(server) -> None:
    """A web page that somebody looks at must not reach a server on their machine."""
    foreign = {"Origin": "https://example.org"}
    assert httpx.get(f"{server.http}/v1/models", headers=foreign).status_code == 403
    assert httpx.get(f"{server.http}/v1/models", headers={"Origin": server.http}).status_code == 200
    with pytest.raises(InvalidStatus), connect(f"{server.ws}/v1/realtime", additional_headers=foreign):
        pass


def test_rate_size_and_idle_limits() -> None:
    settings = {"connections_per_minute": 3, "max_upload_mb": 1, "idle_seconds": 0.3}
    with running(**settings) as server:
        files = {"file": ("big.wav", bytes(2_000_000))}
        assert httpx.post(f"{server.http}/v1/audio/transcriptions", files=files).status_code == 413
        with listen(server) as socket:
            assert "0 s" in json.loads(socket.recv(timeout=5))["description"]
            with pytest.raises(Exception, match="idle"):
                socket.recv(timeout=5)
        statuses = [httpx.get(f"{server.http}/v1/models").status_code for _ in range(4)]
        assert statuses[-1] == 429
        server.wait_until_idle()


def test_killed_and_half_open_clients_leave_no_slot(server, clip, expect) -> None:
    audio = s16le(clip)
    with listen(server) as healthy:
        healthy.send(audio[:60_000])
        for _ in range(5):
            with listen(server) as socket:
                socket.send(audio[:40_001])
                hang_up(socket)
        raw = sockets.create_connection(("127.0.0.1", server.port))  # connects and says nothing
        healthy.send(audio[60_000:])
        healthy.send('{"type": "CloseStream"}')
        assert finals(results(healthy)) == expect(audio, encoding="s16le")
        raw.close()
    server.wait_until_idle()


def test_a_client_that_reads_nothing_is_cut_off_and_harms_nobody(clip, expect) -> None:
    """Results pile up until the limit; the other call does not notice."""
    audio = s16le(clip)
    with running(slots=4) as server, listen(server) as good:
        raw = sockets.create_connection(("127.0.0.1", server.port))
        raw.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 1024)
        raw.send(
            f"GET /v1/listen?{QUERY} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nUpgrade: websocket\r\n"
            "Connection: Upgrade\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
            "Sec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        finalize = b'{"type": "Finalize"}'
        frame = bytes([0x81, 0x80 | len(finalize), 0, 0, 0, 0]) + finalize  # masked with zeros
        raw.settimeout(5)
        try:
            for _ in range(400):
                raw.send(frame * 100)
        except OSError:
            pass  # the server does not read any more, or has closed
        good.send(audio)
        good.send('{"type": "CloseStream"}')
        assert finals(results(good)) == expect(audio, encoding="s16le")
        raw.close()
        server.wait_until_idle(20)


def test_a_fault_of_the_model_ends_its_calls_and_not_the_server(clip, expect, monkeypatch) -> None:
    audio = s16le(clip)
    with running(slots=4) as server:
        runtime = server.state.model.engine.runtime
        encode = type(runtime).encode
        with listen(server) as socket:
            monkeypatch.setattr(type(runtime), "encode", lambda *_: 1 / 0)
            socket.send(audio)
            assert "failed" in json.loads(socket.recv(timeout=10))["description"]
        monkeypatch.setattr(type(runtime), "encode", encode)
        server.wait_until_idle()
        with listen(server) as socket:
            socket.send(audio)
            socket.send('{"type": "CloseStream"}')
            assert finals(results(socket)) == expect(audio, encoding="s16le")


def test_sigterm_lets_calls_finish_and_refuses_new_ones(clip, expect) -> None:
    audio = s16le(clip)
    port = free_port()
    slots = str(CALLS_TO_DRAIN + 1)  # so that the refusal is not for want of one
    command = [sys.executable, "-m", "nemostream.cli.main", "serve", "--port", str(port), "--slots", slots]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ)
    try:
        ready = http_ready(f"http://127.0.0.1:{port}/readyz")
        deadline = time.monotonic() + 60
        while not ready():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        with ExitStack() as stack:
            url = f"ws://127.0.0.1:{port}/v1/listen?{QUERY}"
            calls = [stack.enter_context(connect(url)) for _ in range(CALLS_TO_DRAIN)]
            for number, socket in enumerate(calls):
                socket.send(audio[: 12_000 * (number + 1)])  # some have hardly begun
            process.send_signal(signal.SIGTERM)
            while ready():
                time.sleep(0.05)
            with pytest.raises(InvalidStatus) as refused, connect(url):
                pass
            assert refused.value.response.status_code == 503
            for number, socket in enumerate(calls):
                socket.send(audio[12_000 * (number + 1) :])
                socket.send('{"type": "CloseStream"}')
            expected = expect(audio, encoding="s16le")
            for socket in calls:
                assert finals(results(socket)) == expected
        assert process.wait(20) == 0
        log = [json.loads(line) for line in process.stderr.read().splitlines()]
        assert any(line["message"] == "draining" for line in log)
    finally:
        process.kill()


def test_server_is_private_by_default() -> None:
    from nemostream.errors import ConfigError
    from nemostream.serve.config import ServeConfig

    assert ServeConfig().checked().host == "127.0.0.1"
    with pytest.raises(ConfigError, match="everybody"):
        ServeConfig(host="0.0.0.0").checked()
    assert isinstance(Server(ServeConfig(host="0.0.0.0", api_keys=("k",)).checked()), Server)
