"""Files over HTTP, as OpenAI's API has them."""

from __future__ import annotations

import io
import json

import httpx
import numpy as np
import pytest
import soundfile

from nemostream.loading import embedded_clip
from tests.serve.conftest import EXAMPLES


def post(server, file=None, **fields: str) -> httpx.Response:
    content = embedded_clip().read_bytes() if file is None else file
    files = {"file": ("clip.flac", content)} if content is not False else {"nothing": ("", b"")}
    return httpx.post(f"{server.http}/v1/audio/transcriptions", files=files, data=fields, timeout=60)


@pytest.fixture(scope="module")
def text(model) -> str:
    return model.transcribe(embedded_clip()).text.strip()


def test_formats(server, text) -> None:
    assert post(server).json()["text"] == text
    assert post(server, response_format="text").text == text + "\n"
    assert post(server, response_format="vtt").text.startswith("WEBVTT\n")
    assert post(server, response_format="srt").text.startswith("1\n00:00:0")
    verbose = post(server, response_format="verbose_json").json()
    assert verbose["text"] == text
    assert " ".join(word["word"] for word in verbose["words"]) == text
    assert verbose["duration"] == pytest.approx(soundfile.info(embedded_clip()).duration, abs=0.01)


def test_stream(server, text) -> None:
    lines = post(server, stream="true").text.split("\n\n")
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line]
    assert "".join(event["delta"] for event in events[:-1]).strip() == text
    assert events[-1]["type"] == "transcript.text.done"
    assert events[-1]["text"] == text


def test_every_example_at_every_latency(server, model) -> None:
    for path in EXAMPLES:
        for latency in (80, 1120):
            answer = post(server, path.read_bytes(), latency=str(latency), language="en-US")
            assert answer.json()["text"] == model.transcribe(path, "en-US", latency=latency).text.strip()


def test_stereo_is_mixed_and_a_file_may_be_long(server, model) -> None:
    samples, rate = soundfile.read(embedded_clip(), dtype="float32")
    long = np.tile(samples, 8)
    file = io.BytesIO()
    soundfile.write(file, np.stack([long, long], axis=1), rate, format="WAV")
    file.seek(0)
    expected = model.transcribe(file).text.strip()
    assert post(server, file.getvalue()).json()["text"] == expected


@pytest.mark.parametrize(
    ("file", "fields", "part"),
    [
        (b"no audio at all", {}, "clip.flac"),
        (b"", {}, "clip.flac"),
        (False, {}, "file"),
        (None, {"response_format": "pdf"}, "response_format"),
        (None, {"language": "tlh"}, "tlh"),
        (None, {"latency": "7"}, "80"),
        (None, {"latency": "x"}, "latency"),
        (None, {"stream": "banana"}, "banana"),
        (None, {"stream": "true", "response_format": "srt"}, "srt"),
        (None, {"timestamp_granularities[]": "word"}, "verbose_json"),
        (None, {"timestamp_granularities[]": "page", "response_format": "verbose_json"}, "page"),
    ],
)
def test_errors_are_sentences(server, file, fields, part) -> None:
    answer = post(server, file, **fields)
    assert answer.status_code == 400
    assert part in answer.json()["error"]["message"]
    server.wait_until_idle()


def test_words_or_segments(server, text) -> None:
    for given, other in (("word", "segment"), ("segment", "word")):
        fields = {"response_format": "verbose_json", "timestamp_granularities[]": given}
        body = post(server, **fields).json()
        assert f"{given}s" in body
        assert f"{other}s" not in body


def test_garbage_in_a_file_of_floats_is_named(server) -> None:
    file = io.BytesIO()
    soundfile.write(file, np.full(32_000, 4e29), 16_000, format="WAV", subtype="FLOAT")
    answer = post(server, file.getvalue())
    assert answer.status_code == 400
    assert "clip.flac: Float audio has 4e+29 at sample 0" in answer.json()["error"]["message"]


def test_addresses_that_are_not_there_get_errors_as_clients_read_them(server) -> None:
    name = httpx.get(f"{server.http}/v1/models").json()["data"][0]["id"]
    assert httpx.get(f"{server.http}/v1/models/{name}").json()["id"] == name
    for answer in (
        httpx.get(f"{server.http}/v1/models/whisper-1"),
        httpx.get(f"{server.http}/v1/nothing"),
        httpx.get(f"{server.http}/v1/audio/transcriptions"),
    ):
        assert answer.status_code in (404, 405)
        assert answer.json()["error"]["type"] == "invalid_request_error"


def test_a_damaged_file_fails_and_gives_its_slot_back(server) -> None:
    whole = embedded_clip().read_bytes()
    answer = post(server, whole[: len(whole) // 2])
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("clip.flac: ")
    streamed = post(server, whole[: len(whole) // 2], stream="true").text
    assert "error" in streamed
    server.wait_until_idle()


def test_openai_client(server, text) -> None:
    openai = pytest.importorskip("openai", reason="the public client is not installed")
    client = openai.OpenAI(base_url=f"{server.http}/v1", api_key="none")
    (model,) = client.models.list().data
    with embedded_clip().open("rb") as file:
        whole = client.audio.transcriptions.create(model=model.id, file=file)
        assert whole.text == text
    with embedded_clip().open("rb") as file:
        verbose = client.audio.transcriptions.create(
            model=model.id, file=file, response_format="verbose_json", timestamp_granularities=["word"]
        )
        assert " ".join(word.word for word in verbose.words) == text
    with embedded_clip().open("rb") as file:
        events = list(client.audio.transcriptions.create(model=model.id, file=file, stream=True))
        assert events[-1].text == text
    with pytest.raises(openai.BadRequestError, match="clip"):
        client.audio.transcriptions.create(model=model.id, file=("clip.wav", b"nothing"))
