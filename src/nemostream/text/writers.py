"""Transcripts as files: txt, srt, vtt, tsv and json. Each writer is a function from `Recognition` to text.

Times are rounded once, to whole milliseconds. Where the channels of a recording were recognised apart, the
subtitle formats and tsv hold the segments of all channels in the order of their start, each with its channel,
and txt holds one line per channel.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from nemostream.results import Transcript
from nemostream.text.segments import LINE_WIDTH, Segment, segments_of


@dataclass(frozen=True)
class Recognition:
    """What was recognised in one file, and how.

    Attributes:
        file: the file's name as it was given, or "-" for standard input.
        model: the model's name or path as it was given.
        backend: the runtime, such as "onnx".
        att_context_size: left and right context that it ran with.
        transcripts: one, or one per channel if ``split``.
        split: True if every channel was recognised apart.
    """

    file: str
    model: str
    backend: str
    att_context_size: tuple[int, int]
    transcripts: tuple[Transcript, ...]
    split: bool = False


def to_txt(recognition: Recognition) -> str:
    """Return the text on one line, or on one for each utterance if the stream looked for them.

    With split channels every line begins with its channel, as in ``[0] text``.
    """
    lines = []
    for channel, transcript in enumerate(recognition.transcripts):
        label = f"[{channel}] " if recognition.split else ""
        texts = [utterance.text for utterance in transcript.utterances] or [transcript.text]
        lines += [label + " ".join(text.split()) for text in texts]
    return "".join(line + "\n" for line in lines)


def to_srt(recognition: Recognition) -> str:
    """Return SubRip subtitles; with split channels every cue begins with ``[0] ``."""
    cues = []
    for number, (channel, segment) in enumerate(_segments(recognition), 1):
        label = f"[{channel}] " if recognition.split else ""
        text = label + "\n".join(segment.lines).replace("-->", "->")  # the arrow would end the cue
        cues.append(f"{number}\n{_clock(segment.start, ',')} --> {_clock(segment.end, ',')}\n{text}\n\n")
    return "".join(cues)


def to_vtt(recognition: Recognition) -> str:
    """Return WebVTT subtitles; with split channels every cue is a voice ``<v Channel 0>``."""
    cues = ["WEBVTT\n\n"]
    for channel, segment in _segments(recognition):
        voice = f"<v Channel {channel}>" if recognition.split else ""
        text = voice + _vtt_escaped("\n".join(segment.lines))
        cues.append(f"{_clock(segment.start, '.')} --> {_clock(segment.end, '.')}\n{text}\n\n")
    return "".join(cues)


def to_tsv(recognition: Recognition) -> str:
    """Return a head line and ``start end text`` (ms) per segment; split channels add a column ``channel``."""
    rows = ["start\tend\ttext" + ("\tchannel" if recognition.split else "")]
    for channel, segment in _segments(recognition):
        row = f"{_milliseconds(segment.start)}\t{_milliseconds(segment.end)}\t{segment.text}"
        rows.append(row + (f"\t{channel}" if recognition.split else ""))
    return "".join(row + "\n" for row in rows)


def to_json(recognition: Recognition) -> str:
    """Return everything as a JSON object on one line, so that several files make JSON lines.

    Keys: ``file``, ``model``, ``backend``, ``language``, ``duration`` (s), ``att_context_size``, ``text``,
    ``words`` (``text``, ``start``, ``end`` in s, ``confidence`` if it is known) and ``tokens`` (``id``,
    ``piece``, encoder ``frame``, ``time`` in s, ``log_prob`` if it is known); besides, where there are any,
    ``utterances`` (``text``, ``start``, ``end``, ``language``) and ``alternatives`` (``text``, ``score``, the
    best first). With split channels, what follows ``backend``, the context aside, stands in the objects of
    the list ``channels`` instead, each with its number as ``channel``.
    """
    head: dict[str, Any] = {
        "file": recognition.file,
        "model": recognition.model,
        "backend": recognition.backend,
    }
    context = {"att_context_size": list(recognition.att_context_size)}
    if recognition.split:
        channels = [
            {"channel": channel, **_about(transcript), **_content(transcript)}
            for channel, transcript in enumerate(recognition.transcripts)
        ]
        content = {**head, **context, "channels": channels}
    else:
        transcript = recognition.transcripts[0]
        content = {**head, **_about(transcript), **context, **_content(transcript)}
    return json.dumps(content, ensure_ascii=False) + "\n"


WRITERS: dict[str, Callable[[Recognition], str]] = {
    "txt": to_txt,
    "srt": to_srt,
    "vtt": to_vtt,
    "tsv": to_tsv,
    "json": to_json,
}
"""Format, which is also the file name's suffix -> writer."""


def _segments(recognition: Recognition) -> Iterator[tuple[int, Segment]]:
    """Yield (channel, segment) by start time; lines leave room for the label of split channels."""
    label = f"[{len(recognition.transcripts) - 1}] " if recognition.split else ""
    line_width = LINE_WIDTH - len(label)
    found = [
        (channel, segment)
        for channel, transcript in enumerate(recognition.transcripts)
        for segment in segments_of(transcript, line_width)
    ]
    yield from sorted(found, key=lambda item: (item[1].start, item[0]))


def _about(transcript: Transcript) -> dict[str, Any]:
    return {"language": transcript.language, "duration": round(transcript.duration, 3)}


def _content(transcript: Transcript) -> dict[str, Any]:
    content: dict[str, Any] = {
        "text": transcript.text,
        "words": [
            {"text": word.text, "start": round(word.start, 3), "end": round(word.end, 3)}
            | ({} if word.confidence is None else {"confidence": round(word.confidence, 4)})
            for word in transcript.words
        ],
        "tokens": [
            {"id": token.id, "piece": token.piece, "frame": token.frame, "time": round(token.time, 3)}
            | ({} if token.log_prob is None else {"log_prob": round(token.log_prob, 4)})
            for token in transcript.tokens
        ],
    }
    if transcript.utterances:
        content["utterances"] = [
            {
                "text": utterance.text,
                "start": round(utterance.start, 3),
                "end": round(utterance.end, 3),
                "language": utterance.language,
            }
            for utterance in transcript.utterances
        ]
    if transcript.alternatives:
        content["alternatives"] = [
            {"text": alternative.text, "score": round(alternative.score, 4)}
            for alternative in transcript.alternatives
        ]
    return content


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


def _clock(seconds: float, point: str) -> str:
    """Return ``hh:mm:ss,mmm`` with ``point`` before the milliseconds."""
    rest, milliseconds = divmod(_milliseconds(seconds), 1000)
    rest, whole_seconds = divmod(rest, 60)
    hours, minutes = divmod(rest, 60)
    return f"{hours:02}:{minutes:02}:{whole_seconds:02}{point}{milliseconds:03}"


def _vtt_escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
