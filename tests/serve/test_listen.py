"""Live calls in Deepgram's messages."""

from __future__ import annotations

import json
import threading
from itertools import pairwise

import numpy as np
import pytest
import soxr
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from nemostream.audio import load_audio
from tests.serve.conftest import EXAMPLES, Running, mulaw, s16le

QUERY = "encoding=linear16&sample_rate=16000&endpointing=false"


def listen(server: Running, query: str = QUERY) -> ClientConnection:
    return connect(f"{server.ws}/v1/listen?{query}")


def results(socket: ClientConnection) -> list[dict]:
    """Everything up to the server's close."""
    return [json.loads(message) for message in socket]


def finals(messages: list[dict], channel: int = 0) -> str:
    texts = [
        message["channel"]["alternatives"][0]["transcript"]
        for message in messages
        if message["type"] == "Results" and message["is_final"] and message["channel_index"][0] == channel
    ]
    return " ".join(text for text in texts if text)


def hang_up(socket: ClientConnection) -> None:
    """As if the network had gone: no closing handshake."""
    socket.socket.shutdown(2)


def say(server: Running, audio: bytes, size: int, query: str = QUERY) -> list[dict]:
    with listen(server, query) as socket:
        for start in range(0, len(audio), size):
            socket.send(audio[start : start + size])
        socket.send('{"type": "CloseStream"}')
        return results(socket)


@pytest.mark.parametrize("size", [77, 640, 100_000])
def test_packets_do_not_change_the_text(server, clip, expect, size) -> None:
    audio = s16le(clip[:80_000])
    expected = expect(audio, encoding="s16le")
    assert expected
    messages = say(server, audio, size)
    assert finals(messages) == expected
    assert messages[-1]["type"] == "Metadata"
    assert messages[-1]["duration"] == pytest.approx(5.0)


def test_interim_results_grow_and_end_in_the_final(server, clip) -> None:
    messages = say(server, s16le(clip), 3200, QUERY + "&interim_results=true")
    texts = [m["channel"]["alternatives"][0]["transcript"] for m in messages if m["type"] == "Results"]
    assert len(texts) > 3
    for before, after in pairwise(texts):
        assert after.startswith(before)
    words = messages[-2]["channel"]["alternatives"][0]["words"]
    assert " ".join(word["punctuated_word"] for word in words) == texts[-1]
    times = [time for word in words for time in (word["start"], word["end"])]
    assert times == sorted(times)
    assert times[-1] <= len(clip) / 16_000


def test_finalize_is_answered_once_after_all_audio_before_it(server, clip, expect) -> None:
    audio = s16le(clip[:64_000])
    expected = expect(audio, encoding="s16le")
    with listen(server) as socket:
        for _ in range(3):
            socket.send(audio)
            socket.send('{"type": "Finalize"}')
        socket.send('{"type": "Finalize"}')  # nothing since the last one
        socket.send('{"type": "CloseStream"}')
        answers = [message for message in results(socket) if message.get("from_finalize")]
    assert [a["channel"]["alternatives"][0]["transcript"] for a in answers] == [expected] * 3 + [""]
    assert [a["start"] for a in answers] == pytest.approx([0, 4, 8, 12])


def test_endpointing_ends_utterances_by_itself(server, clip) -> None:
    quiet = np.zeros(32_000, np.float32)
    audio = s16le(np.concatenate([clip, quiet, clip, quiet]))
    messages = say(server, audio, 640, QUERY.replace("endpointing=false", "endpointing=300"))
    spoken = [
        m
        for m in messages
        if m["type"] == "Results" and m["is_final"] and m["channel"]["alternatives"][0]["words"]
    ]
    assert len(spoken) >= 2
    assert spoken[0]["start"] + spoken[0]["duration"] < (len(clip) + len(quiet)) / 16_000


def test_channels_are_two_calls(server, expect) -> None:
    left, right = (soxr.resample(load_audio(path), 16_000, 8000) for path in EXAMPLES[:2])
    length = min(len(left), len(right))
    codes = [mulaw(side[:length]) for side in (left, right)]
    both = mulaw(np.stack([left[:length], right[:length]], axis=1))
    query = "encoding=mulaw&sample_rate=8000&channels=2&multichannel=true&endpointing=false"
    messages = say(server, both, 320, query)
    for channel, code in enumerate(codes):
        assert finals(messages, channel) == expect(code, encoding="mulaw", sample_rate=8000)


def test_calls_together_are_as_alone(server, expect) -> None:
    """Twelve at once, in 20 ms packets, different recordings: nothing swapped, lost or changed."""
    recordings = [mulaw(soxr.resample(load_audio(path), 16_000, 8000)) for path in EXAMPLES]
    expected = [expect(code, encoding="mulaw", sample_rate=8000) for code in recordings]
    heard: dict[int, str] = {}

    def call(number: int) -> None:
        query = "encoding=mulaw&sample_rate=8000&endpointing=false"
        heard[number] = finals(say(server, recordings[number % len(recordings)], 160, query))

    threads = [threading.Thread(target=call, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert heard == {number: expected[number % len(expected)] for number in range(12)}


def test_a_lost_connection_is_taken_up_again(server, clip, expect) -> None:
    """In the middle of a word, with results unread and half of the last packet lost on the way."""
    audio = s16le(clip)
    expected = expect(audio, encoding="s16le")
    with listen(server, QUERY + "&interim_results=true") as socket:
        socket.send(audio[:70_001])
        first = json.loads(socket.recv())
        session, seen = first["metadata"]["session"], first["sequence"]
        texts = [first["channel"]["alternatives"][0]["transcript"]]
        hang_up(socket)  # later results were sent to nobody
    again = connect(f"{server.ws}/v1/listen?session={session}&received={seen}&offset=60000")
    with again as socket:
        socket.send(audio[60_000:])
        socket.send('{"type": "CloseStream"}')
        messages = results(socket)
    assert [m["sequence"] for m in messages] == list(range(seen + 1, seen + 1 + len(messages)))
    texts += [m["channel"]["alternatives"][0]["transcript"] for m in messages if m["type"] == "Results"]
    for before, after in pairwise(texts):
        assert after.startswith(before)
    assert texts[-1] == expected


def test_resuming_needs_a_session_and_no_gap(server, clip) -> None:
    with pytest.raises(InvalidStatus) as unknown, connect(f"{server.ws}/v1/listen?session=none"):
        pass
    assert unknown.value.response.status_code == 404
    with listen(server, QUERY + "&interim_results=true") as socket:
        socket.send(s16le(clip[:50_000]))
        session = json.loads(socket.recv())["metadata"]["session"]
        hang_up(socket)
    with (
        pytest.raises(InvalidStatus) as gap,
        connect(f"{server.ws}/v1/listen?session={session}&offset=100001"),
    ):
        pass
    assert "100000 bytes have arrived" in gap.value.response.body.decode()
    server.wait_until_idle()  # the time to come back is over: the slot is free


@pytest.mark.parametrize(
    ("query", "part"),
    [
        ("", "encoding"),
        ("encoding=opus&sample_rate=16000", "encoding"),
        ("encoding=linear16&sample_rate=many", "sample_rate"),
        ("encoding=linear16&sample_rate=5", "rate"),
        ("encoding=linear16&sample_rate=16000&channels=2", "multichannel"),
        ("encoding=linear16&sample_rate=16000&language=xx", "language"),
        ("encoding=linear16&sample_rate=16000&latency=100", "80"),
        ("encoding=linear16&sample_rate=16000&endpointing=1", "endpointing"),
    ],
)
def test_wrong_parameters_are_explained(server, query, part) -> None:
    with pytest.raises(InvalidStatus) as refused, listen(server, query):
        pass
    assert refused.value.response.status_code == 400
    assert part in json.loads(refused.value.response.body)["error"]["message"]


def test_nonsense_is_answered_and_forgiven(server, clip, expect) -> None:
    audio = s16le(clip[:64_000])
    with listen(server) as socket:
        for nonsense in ("garbage", "[1]", '{"type": "Sing"}', "{}"):
            socket.send(nonsense)
            assert json.loads(socket.recv())["type"] == "Error"
        socket.send(audio + b"\x01")  # an odd byte waits for its other half
        socket.send('{"type": "CloseStream"}')
        assert finals(results(socket)) == expect(audio, encoding="s16le")


def test_a_message_over_the_limit_ends_its_call_only(server, clip, expect) -> None:
    with listen(server) as good, listen(server) as bad:
        good.send(s16le(clip[:64_000]))
        bad.send(bytes(2_000_000))
        with pytest.raises(ConnectionClosed) as closed:
            bad.recv()
        assert closed.value.rcvd.code == 1009
        good.send('{"type": "CloseStream"}')
        assert finals(results(good)) == expect(s16le(clip[:64_000]), encoding="s16le")
    server.wait_until_idle()
