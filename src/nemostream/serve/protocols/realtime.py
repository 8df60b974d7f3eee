"""``/v1/realtime``: transcription sessions with the messages of OpenAI's Realtime API.

Beyond it: audio may come as binary messages, ``rate`` may be any from 8000 to 48000 Hz, and ``?latency=``
chooses the look-ahead.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import replace
from typing import Any

from nemostream.audio import check_rate
from nemostream.decoding.endpoint import Endpoint
from nemostream.serve.call import Call, Result
from nemostream.serve.conversation import Conversation, Problem, typed, with_latency

_FORMATS = {"audio/pcm": ("s16le", 24_000), "audio/pcmu": ("mulaw", 8000), "audio/pcma": ("alaw", 8000)}
_OLD_FORMATS = {"pcm16": "audio/pcm", "g711_ulaw": "audio/pcmu", "g711_alaw": "audio/pcma"}
_TRANSCRIPTION = "conversation.item.input_audio_transcription."


class Realtime(Conversation):
    """One item an utterance; deltas are append-only; every commit is answered exactly once."""

    protocol = "realtime"
    subprotocol = "realtime"

    async def begin(self) -> None:
        """Take a slot, with OpenAI's default format until the client says another."""
        options = with_latency(self.server.default_options(), self.query)
        options = replace(options, encoding="s16le", sample_rate=24_000, endpoint=Endpoint())
        self.admit(options)
        self._heard = False
        self._item = 1
        self._last_item: str | None = None
        self._send("session.created", session=self._session())

    async def on_message(self, message: dict[str, Any]) -> None:
        """session.update, input_audio_buffer.append and commit."""
        kind = message.get("type")
        if kind == "input_audio_buffer.append":
            try:
                audio = base64.b64decode(message.get("audio", ""), validate=True)
            except (binascii.Error, TypeError, ValueError):
                raise Problem("audio is not base64.") from None
            await self.on_audio(audio)
        elif kind == "input_audio_buffer.commit":
            self.calls[0].mark("commit")
        elif kind in ("session.update", "transcription_session.update"):
            self._update(message.get("session"))
            self._send("session.updated", session=self._session())
        elif kind == "input_audio_buffer.clear":
            raise Problem("Audio is recognised as it arrives and can't be taken back; commit it and go on.")
        else:
            raise Problem(
                f"The event type {kind!r} is unknown; session.update, input_audio_buffer.append or "
                "input_audio_buffer.commit was expected."
            )

    async def on_audio(self, audio: bytes) -> None:
        """Take audio, from an event or a binary message."""
        self._heard = True
        await self.feed(audio)

    def on_result(self, call: Call, result: Result) -> None:
        """A delta, or the end of an item."""
        item = f"item_{self._item}"
        if result.delta:
            self._send(_TRANSCRIPTION + "delta", item_id=item, content_index=0, delta=result.delta)
        if not result.final:
            return
        self._item += 1
        if result.mark is None and not result.text:
            return  # nothing was said, and nobody asked
        self._send("input_audio_buffer.committed", item_id=item, previous_item_id=self._last_item)
        self._send(
            _TRANSCRIPTION + "completed",
            item_id=item,
            content_index=0,
            transcript=result.text,
            language=result.language,
            start=round(result.start, 3),
            end=round(result.end, 3),
            words=[
                {"word": word.text, "start": round(word.start, 3), "end": round(word.end, 3)}
                for word in result.words
            ],
            usage={"type": "duration", "seconds": round(result.end - result.start, 3)},
        )
        self._last_item = item

    def on_problem(self, message: str) -> None:
        """An error event."""
        self._send("error", error={"type": "invalid_request_error", "code": None, "message": message})

    def _update(self, session: Any) -> None:
        """Apply what a session update sets, in the present or the former form of the API."""
        if not isinstance(session, dict):
            raise Problem("session is not an object.")
        audio = session.get("audio", {})
        given = audio.get("input", session) if isinstance(audio, dict) else None
        if not isinstance(given, dict):
            raise Problem("session.audio is not an object with an object `input`.")
        call = self.calls[0]
        options = call.options
        form = given.get("format", given.get("input_audio_format"))
        if form is not None:
            encoding, rate = _format(form)
            if self._heard and (encoding, rate) != (options.encoding, options.sample_rate):
                raise Problem("The format can't change after audio has come; open another session.")
            options = replace(options, encoding=encoding, sample_rate=rate)
        if "turn_detection" in given:
            options = replace(options, endpoint=_turns(given["turn_detection"]))
        transcription = given.get("transcription", given.get("input_audio_transcription")) or {}
        if not isinstance(transcription, dict):
            raise Problem("transcription is not an object.")
        if "language" in transcription:
            language = typed(transcription["language"] or "", str, "language") or None
            self.server.model.config.prompt_id(language)
            options = replace(options, language=language)
            call.set_language(language)
        call.options = options

    def _session(self) -> dict[str, Any]:
        options = self.calls[0].options
        form = next(name for name, (encoding, _) in _FORMATS.items() if encoding == options.encoding)
        return {
            "id": self.id,
            "object": "realtime.transcription_session",
            "type": "transcription",
            "audio": {
                "input": {
                    "format": {"type": form, "rate": options.sample_rate},
                    "transcription": {"model": self.server.config.model, "language": options.language},
                    "turn_detection": None if options.endpoint is None else {"type": "server_vad"},
                }
            },
        }

    def _send(self, kind: str, **values: Any) -> None:
        self.send({"type": kind, "event_id": f"event_{self._sequence + 1}"} | values)


def _format(form: Any) -> tuple[str, int]:
    """Encoding and rate of ``{"type": "audio/pcm", "rate": 16000}``, or of the API's former names."""
    kind = form.get("type") if isinstance(form, dict) else _OLD_FORMATS.get(str(form))
    if not isinstance(kind, str) or kind not in _FORMATS:
        known = ", ".join([*_FORMATS, *_OLD_FORMATS])
        raise Problem(f"The audio format {form!r} is unknown; one of {known} was expected.")
    encoding, rate = _FORMATS[kind]
    rate = form.get("rate", rate) if isinstance(form, dict) else rate
    if type(rate) is not int:
        raise Problem(f"rate is {rate!r}; a whole number of Hz was expected.")
    check_rate(rate, "rate")
    return encoding, rate


def _turns(detection: Any) -> Endpoint | None:
    if detection is None:
        return None
    if not isinstance(detection, dict):
        raise Problem("turn_detection is not an object.")
    silence = detection.get("silence_duration_ms", 800)
    if type(silence) not in (int, float) or not 80 <= silence <= 10_000:
        raise Problem(f"silence_duration_ms is {silence!r}; 80 to 10000 was expected.")
    return Endpoint(quiet=silence / 1000, pause=2 * silence / 1000)
