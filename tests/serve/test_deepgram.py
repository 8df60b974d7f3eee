"""``/v1/listen`` with Deepgram's own client."""

from __future__ import annotations

import threading

import pytest

deepgram = pytest.importorskip("deepgram", reason="the public client is not installed")
from tests.serve.conftest import s16le


def test_deepgram_client(server, clip, expect) -> None:
    from deepgram import DeepgramClient
    from deepgram.core.events import EventType
    from deepgram.environment import DeepgramClientEnvironment

    audio = s16le(clip)
    place = DeepgramClientEnvironment(
        base=server.http, production=server.ws, agent=server.ws, agent_rest=server.http
    )
    client = DeepgramClient(api_key="none", environment=place)
    finals: list[str] = []
    failures: list[object] = []
    with client.listen.v1.connect(
        model="tiny", encoding="linear16", sample_rate="16000", interim_results="true", endpointing="false"
    ) as connection:

        def hear(message: object) -> None:
            if getattr(message, "type", "") == "Results" and message.is_final:
                finals.append(message.channel.alternatives[0].transcript)

        connection.on(EventType.MESSAGE, hear)
        connection.on(EventType.ERROR, failures.append)
        listener = threading.Thread(target=connection.start_listening, daemon=True)
        listener.start()
        for start in range(0, len(audio), 3200):
            connection.send_media(audio[start : start + 3200])
        connection.send_keep_alive()
        connection.send_close_stream()
        listener.join(30)
    assert failures == []
    assert " ".join(text for text in finals if text) == expect(audio, encoding="s16le")
