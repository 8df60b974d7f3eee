"""Read a ``.nemo`` file: a tar of ``model_config.yaml``, ``model_weights.ckpt`` and the tokenizer.

Nothing is unpacked to disk under a name from the archive. The YAML is read by a safe loader and the weights
by ``torch.load(weights_only=True)``, so a file from a stranger can at worst be refused.
"""

from __future__ import annotations

import contextlib
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from nemostream.checkpoints.checkpoint import Checkpoint
from nemostream.checkpoints.files import optional_module, reading_config
from nemostream.checkpoints.names import expected_shapes, nemo_to_canonical
from nemostream.config import ModelConfig
from nemostream.errors import BackendError, CheckpointError
from nemostream.text.tokenizer import Tokenizer

_CONFIG = "model_config.yaml"
_WEIGHTS = "model_weights.ckpt"
_MAX_MEMBER = 64 << 30  # bytes; far above any model of this family
_MAX_TEXT = 64 << 20  # bytes of YAML or of a tokenizer; the published ones have under 1 MB
_SLACK = 64 << 20  # bytes that a weights file may have beyond twice its float32 tensors
_EXPECTED = "a .nemo archive with model_config.yaml, model_weights.ckpt and a tokenizer was expected"
_AGAIN = "fetch the file again"


def load_nemo(path: Path) -> Checkpoint:
    """Read a ``.nemo`` file (a tar, plain or gzipped).

    Raises:
        CheckpointError: if it is not such an archive, is cut short, holds anything unsafe, or its weights do
            not fit its configuration.
        BackendError: if torch or pyyaml is not installed.
    """
    try:
        with path.open("rb") as file:
            gzipped = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            with tarfile.open(fileobj=file, mode="r:gz" if gzipped else "r:") as archive:
                members = _list_members(archive, path, None if gzipped else path.stat().st_size)
                tree = _parse_yaml(_read_small(archive, members, _CONFIG, path), path)
                with reading_config(path):
                    config = ModelConfig.from_nemo(tree)
                tokenizer = _tokenizer(archive, members, tree, path)
                weights = _member(members, _WEIGHTS, path)
                with _seekable(archive, weights, gzipped, config, path) as stream:
                    tensors = _read_weights(stream, path)
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise CheckpointError(
            f"{path} is damaged or not a .nemo file ({error}): {_EXPECTED}; {_AGAIN}."
        ) from error
    return Checkpoint(config, tensors, tokenizer, str(path), "nemo")


def _list_members(archive: tarfile.TarFile, path: Path, file_size: int | None) -> dict[str, tarfile.TarInfo]:
    """Return name (without ``./``) -> regular file, having refused whatever a checkpoint does not need."""
    members: dict[str, tarfile.TarInfo] = {}
    while (member := archive.next()) is not None:
        pure = PureWindowsPath(member.name)  # takes both kinds of slash, and drive letters
        if pure.anchor or ".." in pure.parts:
            raise CheckpointError(
                f"{path} holds {member.name!r}, a path that leaves the archive; do not trust it."
            )
        if member.isdir():
            continue
        if not member.isreg():
            raise CheckpointError(
                f"{path} holds {member.name!r}, a link or device; {_EXPECTED}, so do not trust this one."
            )
        end = member.offset_data + member.size
        if member.size > _MAX_MEMBER or (file_size is not None and end > file_size):
            raise CheckpointError(
                f"{path} holds {member.name!r} of {member.size} bytes, more than the file has "
                f"or a model needs: it was cut short or altered, so {_AGAIN}."
            )
        name = pure.as_posix()
        if name in members:
            raise CheckpointError(f"{path} holds {name!r} twice; {_EXPECTED}, so do not trust this one.")
        members[name] = member
    return members


def _member(members: Mapping[str, tarfile.TarInfo], name: str, path: Path) -> tarfile.TarInfo:
    if name not in members:
        found = ", ".join(sorted(members)[:5]) or "nothing"
        raise CheckpointError(f"{path} has no {name} (it holds {found}): {_EXPECTED}; {_AGAIN}.")
    return members[name]


def _read_small(
    archive: tarfile.TarFile, members: Mapping[str, tarfile.TarInfo], name: str, path: Path
) -> bytes:
    member = _member(members, name, path)
    if member.size > _MAX_TEXT:
        raise CheckpointError(f"{path} has a {name} of {member.size} bytes; under {_MAX_TEXT} were expected.")
    with _open(archive, member) as stream:
        return stream.read()


def _open(archive: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    stream = archive.extractfile(member)
    if stream is None:
        raise tarfile.ReadError(f"{member.name} is not a file")
    return stream


def _parse_yaml(content: bytes, path: Path) -> dict[str, Any]:
    """Parse with YAML 1.2 booleans, where only true and false are: ``no`` is a language and a piece here."""
    yaml = optional_module("yaml", "torch", "Reading a .nemo file")
    loader = type("_Loader", (getattr(yaml, "CSafeLoader", yaml.SafeLoader),), {})
    loader.yaml_implicit_resolvers = {  # type: ignore[attr-defined]
        first: [(tag, regex) for tag, regex in rules if first in "tTfF" or not tag.endswith(":bool")]
        for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    try:
        tree = yaml.load(content, Loader=loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(
            f"{path} has a {_CONFIG} that is not valid YAML ({reason}); {_AGAIN}."
        ) from error
    if not isinstance(tree, dict):
        raise CheckpointError(f"{path} has a {_CONFIG} without sections: {_EXPECTED}; {_AGAIN}.")
    return tree


def _tokenizer(
    archive: tarfile.TarFile, members: Mapping[str, tarfile.TarInfo], tree: Mapping[str, Any], path: Path
) -> Tokenizer:
    """Return the tokenizer of the SentencePiece model, or without that package of the YAML's vocabulary."""
    section = tree.get("tokenizer")
    named = str(section.get("model_path", "")) if isinstance(section, Mapping) else ""
    name = str(PurePosixPath(named.removeprefix("nemo:")))
    if name not in members:
        name = next((other for other in members if other.endswith("tokenizer.model")), name)
    vocabulary = tree["joint"].get("vocabulary")
    listed = isinstance(vocabulary, list) and all(isinstance(piece, str) for piece in vocabulary)
    if name not in members and listed:
        return Tokenizer(vocabulary)
    try:
        return Tokenizer.from_sentencepiece(_read_small(archive, members, name, path))
    except BackendError:
        if listed:
            return Tokenizer(vocabulary)
        raise


@contextlib.contextmanager
def _seekable(
    archive: tarfile.TarFile, member: tarfile.TarInfo, gzipped: bool, config: ModelConfig, path: Path
) -> Iterator[IO[bytes]]:
    """Give the weights as a seekable stream; out of a gzip through an unnamed temporary file."""
    weights = sum(int(np.prod(shape)) for shape in expected_shapes(config).values())
    if member.size > 8 * weights + _SLACK:
        raise CheckpointError(
            f"{path} has {member.size} bytes of weights; its configuration needs about {4 * weights}. "
            f"Weights and configuration are of different models; {_AGAIN}."
        )
    with _open(archive, member) as stream:
        if not gzipped:
            yield stream
            return
        with tempfile.TemporaryFile() as unpacked:
            shutil.copyfileobj(stream, unpacked, 1 << 20)
            unpacked.seek(0)
            yield unpacked


def _read_weights(stream: IO[bytes], path: Path) -> dict[str, npt.NDArray[Any]]:
    torch = optional_module("torch", "torch", "Reading a .nemo file")
    try:
        state = torch.load(stream, weights_only=True, map_location="cpu")
    except Exception as error:  # torch raises nearly any class on a bad file
        reason = str(error).strip().split("\n")[0][:200]
        raise CheckpointError(
            f"{path} has a {_WEIGHTS} that is damaged, or holds more than tensors ({reason}); "
            f"nothing in it was run. Do not trust it, or {_AGAIN}."
        ) from error
    if not isinstance(state, Mapping):
        raise CheckpointError(f"{path} has a {_WEIGHTS} that is no table of tensors: {_EXPECTED}; {_AGAIN}.")
    tensors: dict[str, npt.NDArray[Any]] = {}
    for name, tensor in state.items():
        if not isinstance(tensor, torch.Tensor):
            raise CheckpointError(f"{path} has {name!r} among its weights, which is not a tensor; {_AGAIN}.")
        canonical = nemo_to_canonical(str(name))
        if canonical is not None:
            plain = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
            tensors[canonical] = plain.detach().contiguous().numpy()
    return tensors
