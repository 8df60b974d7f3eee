"""NeMo-style manifests: a JSON object a line with ``audio_filepath``, ``text`` and ``lang``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from nemostream.errors import NemostreamError


class ManifestError(NemostreamError):
    """A manifest or a results file cannot be read, or two of them do not go together."""


@dataclass(frozen=True)
class Utterance:
    """One recording and what is said in it.

    Attributes:
        audio: path, from the current folder.
        text: what is said.
        lang: such as "en" or "en-US".
        key: its path as the manifest has it, which tells it from the others.
    """

    audio: Path
    text: str
    lang: str
    key: str


def read_manifest(path: Path, limit: int | None = None) -> list[Utterance]:
    """Read a manifest; paths in it are relative to its folder.

    Args:
        path: the file.
        limit: read this many lines at most.

    Raises:
        ManifestError: if it cannot be read, or a line lacks a path or a text; the message has its number.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ManifestError(f"{path} cannot be read as a manifest ({reason}).") from error
    found: dict[str, Utterance] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        if limit is not None and len(found) >= limit:
            break
        try:
            entry = json.loads(line)
            key, text = str(entry["audio_filepath"]), str(entry["text"])
            lang = str(entry.get("lang") or entry.get("target_lang") or "en")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ManifestError(
                f"{path} line {number} is not a JSON object with audio_filepath and text ({error})."
            ) from error
        if key in found:
            raise ManifestError(f"{path} line {number} names {key} for the second time.")
        found[key] = Utterance(path.parent / key, text, lang, key)
    if not found:
        raise ManifestError(f"{path} has no utterances.")
    return list(found.values())
