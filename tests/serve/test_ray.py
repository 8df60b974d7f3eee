"""Two replicas on one machine; one of them is killed in mid-call."""

from __future__ import annotations

import json
import os
import time

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

ray = pytest.importorskip("ray", reason="the extra `ray` is not installed")
pytest.importorskip("ray.serve", reason="the extra `ray` is not installed")

from nemostream.load_test.server import free_port
from nemostream.serve.config import ServeConfig
from tests.serve.conftest import s16le
from tests.serve.test_listen import QUERY, finals, results

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def cluster():
    from ray import serve

    from nemostream.serve.ray import NAME, application

    port = free_port()
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100_000_000, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    config = ServeConfig(slots=4, threads=1, resume_seconds=0.5)
    serve.run(application(config, replicas=2, fewest=2), name=NAME, route_prefix="/")
    yield port
    serve.shutdown()
    ray.shutdown()


def test_calls_spread_over_replicas_and_survive_each_other(cluster: int, clip, expect) -> None:
    audio = s16le(clip)
    expected = expect(audio, encoding="s16le")
    address = f"ws://127.0.0.1:{cluster}/v1/listen?{QUERY}&interim_results=true"
    calls = [connect(address).__enter__() for _ in range(4)]
    heard = [[] for _ in calls]
    for call, messages in zip(calls, heard, strict=True):
        call.send(audio[:70_000])
        messages.append(json.loads(call.recv(timeout=60)))
    processes = [messages[0]["metadata"]["process"] for messages in heard]
    assert len(set(processes)) == 2, "all calls went to one replica"
    killed = processes[0]
    os.kill(killed, 9)
    lost = []
    for number, (call, messages) in enumerate(zip(calls, heard, strict=True)):
        try:
            call.send(audio[70_000:])
            call.send('{"type": "CloseStream"}')
            messages += results(call)
        except ConnectionClosed:
            pass
        if processes[number] == killed:
            lost.append(number)
            assert messages[-1]["type"] != "Metadata"
        else:
            assert finals(messages) == expected
    deadline = time.monotonic() + 60
    for _ in lost:  # who was cut off calls again, and another replica answers from the beginning of the audio
        while True:
            try:
                with connect(address) as call:
                    call.send(audio)
                    call.send('{"type": "CloseStream"}')
                    assert finals(results(call)) == expected
                break
            except (ConnectionClosed, OSError):
                assert time.monotonic() < deadline
                time.sleep(0.5)
    while True:  # Ray starts a new one
        try:
            assert httpx.get(f"http://127.0.0.1:{cluster}/readyz", timeout=5).json() == {"ready": True}
            break
        except (httpx.HTTPError, AssertionError):
            assert time.monotonic() < deadline
            time.sleep(0.5)
