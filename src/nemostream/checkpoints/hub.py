"""Fetch a model from the Hugging Face hub: one exact revision, and every file checked by its hash.

A branch such as ``main`` can change under the same name, so a revision has to be given unless this project
has pinned one. In huggingface_hub's cache a blob carries the name of what the server said it is: the SHA-256
of a large file, the git blob id of a small one; both are computed again here, on every fetch.
"""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from nemostream.checkpoints.files import optional_module
from nemostream.errors import HubError

_PART = r"[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?"
_MODEL_ID = re.compile(rf"{_PART}/{_PART}", re.ASCII)
_REVISION = re.compile(r"[A-Za-z0-9][\w./-]*", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_LOCAL = "or give the path of a local folder or .nemo file"


@dataclass(frozen=True)
class Pin:
    """What is known of a published model.

    Attributes:
        revision: the commit to fetch; None if none is pinned, so that the caller has to name one.
        sha256: file name -> SHA-256 in hex.
        nemo_sha256_ends: first and last digits of the SHA-256 of the ``.nemo`` release that ports report.
    """

    revision: str | None = None
    sha256: Mapping[str, str] = field(default_factory=dict)
    nemo_sha256_ends: tuple[str, str] | None = None


PINNED: dict[str, Pin] = {
    "nvidia/nemotron-3.5-asr-streaming-0.6b": Pin(nemo_sha256_ends=("210214ed", "5436a74")),
    "nvidia/nemotron-speech-streaming-en-0.6b": Pin(),
}


def split_model_id(text: str) -> tuple[str, str | None]:
    """Split ``org/name[@revision]``.

    Raises:
        HubError: if it is not of that form.
    """
    model_id, _, revision = text.partition("@")
    if not _MODEL_ID.fullmatch(model_id) or ".." in model_id or "--" in model_id:
        raise HubError(f"{text!r} is not the name of a model; use org/name@revision, {_LOCAL}.")
    if "@" in text and (not _REVISION.fullmatch(revision) or ".." in revision):
        raise HubError(f"{revision!r} is not a revision; use the 40 digits of a commit of {model_id}.")
    return model_id, revision or None


def fetch(
    model_id: str,
    revision: str | None = None,
    sha256: Mapping[str, str] | None = None,
    allow_patterns: Sequence[str] | None = None,
    *,
    cache_dir: Path | None = None,
) -> Path:
    """Download a model, or find it in the cache, check it, and return its folder.

    Args:
        model_id: ``org/name`` or ``org/name@revision``.
        revision: the commit; not needed for a model in `PINNED` that has one.
        sha256: file name in the repository -> SHA-256 in hex; each has to be there and to match.
        allow_patterns: shell patterns of the files that are wanted; None means all.
        cache_dir: the hub cache; None means huggingface_hub's own.

    Raises:
        HubError: if no revision is known, the model cannot be reached, or a file is not what it should be.
        BackendError: if huggingface_hub is not installed.
    """
    model_id, given = split_model_id(f"{model_id}@{revision}" if revision is not None else model_id)
    pin = PINNED.get(model_id, Pin())
    revision = given or pin.revision
    if revision is None:
        raise HubError(
            f"No revision of {model_id} is pinned, and its main branch may change; name a commit as "
            f"{model_id}@<commit> (it is on the model page under 'Files', 'History')."
        )
    if not _COMMIT.fullmatch(revision):
        warnings.warn(
            f"{model_id}@{revision} is a branch or tag, which can change; "
            "name a commit to get the same files again.",
            stacklevel=2,
        )
    folder = _snapshot(model_id, revision, allow_patterns, cache_dir)
    known = {**(pin.sha256 if revision == pin.revision else {}), **(sha256 or {})}
    _verify(folder, known, allow_patterns, pin, f"{model_id}@{revision}")
    return folder


def _snapshot(model_id: str, revision: str, patterns: Sequence[str] | None, cache_dir: Path | None) -> Path:
    hub = optional_module("huggingface_hub", "hub", "Fetching a model")
    errors = optional_module("huggingface_hub.errors", "hub", "Fetching a model")
    name = f"{model_id}@{revision}"
    try:
        folder = hub.snapshot_download(
            model_id,
            revision=revision,
            allow_patterns=list(patterns) if patterns is not None else None,
            cache_dir=cache_dir,
        )
    except errors.GatedRepoError as error:
        raise HubError(
            f"{name} wants its terms accepted; do so on its page, run 'hf auth login', and try again."
        ) from error
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:
        raise HubError(f"{name} is not on the hub (or is private); check the name, {_LOCAL}.") from error
    except Exception as error:  # the client raises its transport's classes too
        reason = str(error).strip().split("\n")[0][:200]
        raise HubError(
            f"{name} is not in the local cache and cannot be fetched ({type(error).__name__}: {reason}). "
            f"Connect once and unset HF_HUB_OFFLINE, copy the cache folder from another machine, {_LOCAL}."
        ) from error
    return Path(folder)


def _verify(
    folder: Path, known: Mapping[str, str], patterns: Sequence[str] | None, pin: Pin, name: str
) -> None:
    files = dict(_wanted(folder, patterns))
    if not files:
        wanted = ", ".join(patterns or ["*"])
        raise HubError(f"{name} has no file that matches {wanted}; is it a model of this family?")
    if missing := sorted(set(known) - set(files)):
        raise HubError(f"{name} lacks {missing[0]}, for which a SHA-256 was given; check the revision.")
    unchecked = []
    for file, path in files.items():
        blob = path.resolve()
        label = blob.name if blob.parent.name == "blobs" else ""
        if file in known or _SHA256.fullmatch(label):
            digest = _sha256(blob)
            for expected in {known.get(file, digest).lower(), label if _SHA256.fullmatch(label) else digest}:
                if digest != expected:
                    raise _altered(name, file, "SHA-256", digest, expected, blob)
            if file.endswith(".nemo") and pin.nemo_sha256_ends and file not in known:
                _compare_release(digest, pin.nemo_sha256_ends, f"{name}/{file}")
        elif _COMMIT.fullmatch(label):
            digest = _git_blob_id(blob)
            if digest != label:
                raise _altered(name, file, "git blob id", digest, label, blob)
        else:
            unchecked.append(file)
    if unchecked:
        warnings.warn(
            f"{name}: nothing says what the hash of {', '.join(unchecked)} should be, so it was not checked; "
            "give sha256 to have it checked.",
            stacklevel=3,
        )


def _wanted(folder: Path, patterns: Sequence[str] | None) -> Iterator[tuple[str, Path]]:
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and (patterns is None or any(fnmatch(name, pattern) for pattern in patterns)):
            yield name, path


def _altered(name: str, file: str, kind: str, found: str, expected: str, blob: Path) -> HubError:
    return HubError(
        f"{name}: {file} has {kind} {found[:12]}... where {expected[:12]}... was expected, "
        f"so it was damaged or altered; delete {blob} and fetch it again."
    )


def _compare_release(digest: str, ends: tuple[str, str], name: str) -> None:
    if not (digest.startswith(ends[0]) and digest.endswith(ends[1])):
        warnings.warn(
            f"{name} has SHA-256 {digest[:8]}...{digest[-7:]}, not the {ends[0]}...{ends[1]} "
            "that published ports were made from; results may differ from theirs.",
            stacklevel=4,
        )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _git_blob_id(path: Path) -> str:
    digest = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    with path.open("rb") as file:
        _feed(digest, iter(lambda: file.read(1 << 20), b""))
    return digest.hexdigest()


def _feed(digest: Any, blocks: Iterable[bytes]) -> None:
    for block in blocks:
        digest.update(block)
