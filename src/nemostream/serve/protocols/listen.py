"""``/v1/listen``, live: the messages of Deepgram's API, version 1."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from nemostream.decoding.endpoint import Endpoint
from nemostream.results import Word
from nemostream.serve.call import Call, CallOptions, Result
from nemostream.serve.conversation import Conversation, Problem, flag, typed, whole_number, with_latency

ENCODINGS = {"linear16": "s16le", "linear32": "f32le", "mulaw": "mulaw", "alaw": "alaw"}
_PAUSE_FACTOR = 2.0  # a pause that is not quiet takes so much longer to count


class Listen(Conversation):
    """Audio as binary messages; `Results` come back."""

    protocol = "listen"
    subprotocol = "token"

    async def begin(self) -> None:
        """Read the parameters, and begin the calls."""
        query = self.query
        self._interim = flag(query.get("interim_results", "false"), "interim_results")
        options = listen_options(self.server.default_options(), query)
        self._duration = 0.0
        self._finalized: set[Call] = set()
        self._channels = options.channels
        self.admit(options)

    async def on_message(self, message: dict[str, Any]) -> None:
        """KeepAlive, Finalize, CloseStream; and, beyond Deepgram's, Configure with a language."""
        kind = message.get("type")
        if kind == "Finalize":
            for call in self.calls:
                call.mark("finalize")
        elif kind == "CloseStream":
            for call in self.calls:
                call.end()
        elif kind == "Configure":
            language = typed(message.get("language") or "", str, "language") or None
            self.server.model.config.prompt_id(language)
            for call in self.calls:
                call.set_language(language)
        elif kind != "KeepAlive":
            raise Problem(
                f"The message type {kind!r} is unknown; KeepAlive, Finalize, CloseStream or "
                "Configure was expected."
            )

    async def on_audio(self, audio: bytes) -> None:
        """Take audio; an empty message ends the stream, as Deepgram has it."""
        if audio:
            await self.feed(audio)
        else:
            for call in self.calls:
                call.end()

    def on_result(self, call: Call, result: Result) -> None:
        """Send ``Results``; those that are final part the text among them."""
        self._duration = max(self._duration, result.end)
        if not result.final and not self._interim:
            return
        alternative: dict[str, Any] = {
            "transcript": result.text,
            "words": [_word(word) for word in result.words],
        }
        known = [word.confidence for word in result.words if word.confidence is not None]
        alternative["confidence"] = sum(known) / len(known) if known else 0.0
        if result.language is not None:
            alternative["languages"] = [result.language]
        self.send(
            {
                "type": "Results",
                "channel_index": [call.channel, self._channels],
                "start": round(result.start, 3),
                "duration": round(result.end - result.start, 3),
                "is_final": result.final,
                "speech_final": result.final,
                "from_finalize": result.mark == "finalize",
                "channel": {"alternatives": [alternative]},
                "metadata": {
                    "request_id": self.id,
                    "session": self.id,
                    "process": os.getpid(),  # tells replicas apart
                    "model_info": self._model_info(),
                },
            }
        )

    def on_ended(self, call: Call) -> None:
        """After the last result of all channels: a summary, and the end."""
        if all(each.over for each in self.calls):
            self.send(
                {
                    "type": "Metadata",
                    "request_id": self.id,
                    "session": self.id,
                    "created": datetime.now(UTC).isoformat(timespec="milliseconds"),
                    "duration": round(self._duration, 3),
                    "channels": self._channels,
                    "model_info": self._model_info(),
                }
            )
            self.finish()

    def on_problem(self, message: str) -> None:
        """An error message as Deepgram sends it."""
        self.send({"type": "Error", "description": message, "message": message, "variant": "nemostream"})

    def _model_info(self) -> dict[str, str]:
        return {"name": self.server.config.model, "version": "", "arch": "fastconformer-rnnt"}


def listen_options(options: CallOptions, query: Any) -> CallOptions:
    """Read the parameters of a ``/v1/listen`` address.

    Raises:
        Problem: if one makes no sense; parameters that only other models have are ignored.
    """
    encoding = query.get("encoding")
    if encoding not in ENCODINGS or "sample_rate" not in query:
        raise Problem(
            f"encoding ({', '.join(ENCODINGS)}) and sample_rate are needed; encoding is {encoding!r}, "
            f"sample_rate {query.get('sample_rate')!r}."
        )
    channels = whole_number("channels", query.get("channels", "1"))
    if channels > 1 and not flag(query.get("multichannel", "false"), "multichannel"):
        raise Problem(
            f"channels is {channels}; multichannel=true was expected with it, one transcript a channel."
        )
    if not 1 <= channels <= 8:
        raise Problem(f"channels is {channels}; 1 to 8 was expected.")
    options = replace(
        options,
        encoding=ENCODINGS[encoding],
        sample_rate=whole_number("sample_rate", query["sample_rate"]),
        channels=channels,
        endpoint=_endpoint(query.get("endpointing", "true")),
        boost=tuple(query.getlist("keyterm")),
        confidence=flag(query.get("confidence", "false"), "confidence"),
    )
    return with_latency(options, query)


def _endpoint(text: str) -> Endpoint | None:
    if text.lower() in ("true", "false"):
        return Endpoint() if text.lower() == "true" else None
    milliseconds = whole_number("endpointing", text)
    if not 80 <= milliseconds <= 10_000:
        raise Problem(f"endpointing is {text}; true, false, or 80 to 10000 milliseconds was expected.")
    return Endpoint(quiet=milliseconds / 1000, pause=_PAUSE_FACTOR * milliseconds / 1000)


def _word(word: Word) -> dict[str, Any]:
    plain = word.text.strip(".,?!;:\"'").lower() or word.text
    times = {"word": plain, "start": round(word.start, 3), "end": round(word.end, 3)}
    return times | {"confidence": word.confidence or 0.0, "punctuated_word": word.text}
