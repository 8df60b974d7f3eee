"""A bundle: a folder with the files of one runtime and a ``manifest.json`` that says what they are.

Reading one needs nothing but the standard library and numpy, since the command line does it before it knows
which runtime will run.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from nemostream.checkpoints.files import read_json
from nemostream.config import ModelConfig
from nemostream.errors import CheckpointError
from nemostream.runtimes.protocol import Framing

MANIFEST = "manifest.json"
TOKENS = "tokens.txt"
SCHEMA_VERSION = 1

_T = TypeVar("_T")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_GUARDED_SUFFIXES = (".onnx", ".onnx.data")  # a file that a runtime might load must be in the manifest
_AGAIN = "convert the model or download the bundle again"


@dataclass(frozen=True)
class FileRecord:
    """Identity of one file: SHA-256 in lower-case hex, and size in bytes."""

    sha256: str
    bytes: int

    @classmethod
    def of(cls, path: Path) -> Self:
        """Hash a file.

        Raises:
            CheckpointError: if it cannot be read.
        """
        try:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                return cls(digest, file.tell())
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read ({error.strerror}); {_AGAIN}.") from error


@dataclass(frozen=True)
class Manifest:
    """What ``manifest.json`` says.

    Attributes:
        config: the model.
        runtime: the runtime that the files are for, such as "onnx".
        framing: how mel frames are cut into calls, see `nemostream.framing`.
        max_frames: most encoder frames of one call; None without a limit.
        weights: how they are stored, such as "fp32" or "int8".
        source: path or hub id of the checkpoint that it was made from.
        source_revision: commit of that checkpoint on the hub, if it has one.
        nemostream: version of this package that made it.
        files: path inside the folder -> its identity; all files of the bundle but the manifest.
        measured: what storing the weights so cost, see `nemostream.export.measure`; None if nobody looked.
        layout: which graphs it has, where a runtime knows several sets of them; None where there is one.
        schema_version: of the manifest itself.
    """

    config: ModelConfig
    runtime: str
    framing: Framing
    max_frames: int | None
    weights: str
    source: str
    source_revision: str | None
    nemostream: str
    files: Mapping[str, FileRecord]
    measured: Mapping[str, Any] | None = None
    layout: str | None = None
    schema_version: int = SCHEMA_VERSION

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary that `from_dict` reads back, the schema version first."""
        names = [spec.name for spec in dataclasses.fields(self)]
        values: dict[str, Any] = {name: getattr(self, name) for name in ("schema_version", *names[:-1])}
        values["config"] = self.config.to_dict()
        values["files"] = {name: dataclasses.asdict(record) for name, record in self.files.items()}
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], where: str = MANIFEST) -> Self:
        """Read what `to_dict` wrote; keys that this version does not know are ignored.

        Args:
            values: the JSON object.
            where: path for error messages.

        Raises:
            CheckpointError: if it has a newer schema, lacks a key, or holds a value of a wrong kind.
        """
        version = values.get("schema_version")
        if type(version) is not int or version < 1:
            raise CheckpointError(f"{where} has no schema_version, so it is not a bundle manifest; {_AGAIN}.")
        if version > SCHEMA_VERSION:
            raise CheckpointError(
                f"{where} has schema version {version}, and this nemostream reads {SCHEMA_VERSION} at most; "
                "upgrade nemostream."
            )
        try:
            return cls(
                config=ModelConfig.from_dict(values["config"]),
                runtime=_text(values["runtime"]),
                framing=_framing(values["framing"]),
                max_frames=_optional(_count, values["max_frames"]),
                weights=_text(values["weights"]),
                source=_text(values["source"]),
                source_revision=None
                if values["source_revision"] is None
                else _text(values["source_revision"]),
                nemostream=_text(values["nemostream"]),
                files={_file_name(name): _record(record) for name, record in values["files"].items()},
                measured=_optional(_object, values.get("measured")),
                layout=_optional(_text, values.get("layout")),
                schema_version=version,
            )
        except KeyError as error:
            raise CheckpointError(f"{where} lacks {error}; {_AGAIN}.") from error
        except (TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(f"{where} cannot be read: {error}; {_AGAIN}.") from error
        except CheckpointError as error:
            raise CheckpointError(f"{where}: {error}") from error


def read_manifest(folder: Path, verify: bool = True) -> Manifest:
    """Read the manifest of a bundle.

    Args:
        folder: the bundle.
        verify: hash every file that is listed, and look for ONNX files that are not.

    Raises:
        CheckpointError: if there is no manifest, it cannot be read or is of a newer schema, or, with
            ``verify``, a file is missing, altered, or not listed; the message names it.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise CheckpointError(f"{folder} has no {MANIFEST}, so it is not a bundle; {_AGAIN}.")
    manifest = Manifest.from_dict(read_json(path), str(path))
    if verify:
        _verify(folder, manifest)
    return manifest


def _verify(folder: Path, manifest: Manifest) -> None:
    for name, expected in manifest.files.items():
        path = folder / name
        if not path.is_file():
            raise CheckpointError(f"{folder} lacks {name}, which its {MANIFEST} lists; {_AGAIN}.")
        size = path.stat().st_size
        if size != expected.bytes:
            raise CheckpointError(
                f"{path} has {size} bytes and should have {expected.bytes}, so it was altered or cut short; "
                f"{_AGAIN}."
            )
        if FileRecord.of(path) != expected:
            raise CheckpointError(
                f"{path} does not have the SHA-256 that {MANIFEST} gives, so it was altered; {_AGAIN}."
            )
    for path in sorted(folder.iterdir()):
        if path.name.endswith(_GUARDED_SUFFIXES) and path.name not in manifest.files:
            raise CheckpointError(f"{path} is not listed in {MANIFEST}; remove it, or {_AGAIN}.")


def _file_name(name: object) -> str:
    """Return a relative path, with "/" between its parts, that cannot lead out of the bundle's folder."""
    if not isinstance(name, str) or set("\\:\0") & set(name) or {"", ".", ".."} & set(name.split("/")):
        raise ValueError(f"it lists {name!r}, where the name of a file inside the folder was expected")
    return name


def _record(values: Mapping[str, Any]) -> FileRecord:
    digest = _text(values["sha256"])
    if not _SHA256.fullmatch(digest):
        raise ValueError(f"{digest!r} is not a SHA-256")
    size = values["bytes"]
    if type(size) is not int or size < 0:
        raise ValueError(f"{size!r} is not a number of bytes")
    return FileRecord(digest, size)


def _optional(read: Callable[[object], _T], value: object) -> _T | None:
    return None if value is None else read(value)


def _object(value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{value!r} stands where an object was expected")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} stands where a string was expected")
    return value


def _count(value: object) -> int:
    if type(value) is not int or value < 1:
        raise TypeError(f"{value!r} stands where a positive whole number was expected")
    return value


def _framing(value: object) -> Framing:
    if value == "native":
        return "native"
    if value == "uniform":
        return "uniform"
    raise ValueError(f"framing {value!r} is neither 'native' nor 'uniform'")
