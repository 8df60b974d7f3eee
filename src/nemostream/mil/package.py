"""Opens a saved package and makes a `Program` of it."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from nemostream.checkpoints.files import optional_module
from nemostream.errors import CheckpointError
from nemostream.mil.program import Program
from nemostream.mil.values import WeightFile


def read_program(package: Path, *, fp16: bool = True, function: str = "main") -> Program:
    """Read an ``.mlpackage`` folder that coremltools wrote.

    Args:
        package: the folder.
        fp16: round every result that the program declares as fp16 to fp16, as the Neural Engine has them;
            False computes all in fp32, which shows what the graph means apart from rounding.
        function: of the program.

    Raises:
        CheckpointError: if the package is incomplete, or not an ML program.
        BackendError: if coremltools, which knows the format, is not installed.
    """
    model, file = read_model(package, function)
    weights = WeightFile(file.parent / "weights" / "weight.bin")
    return Program(model.mlProgram.functions[function], model.description, weights, str(package), fp16=fp16)


def read_model(package: Path, function: str = "main") -> tuple[Any, Path]:
    """The protobuf message of a package that has an ML program with this function, and the file it is in.

    Raises:
        CheckpointError: if the package is incomplete, or not an ML program.
        BackendError: if coremltools, which knows the format, is not installed.
    """
    file = package / "Data" / _model_path(package)
    try:
        data = file.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{package} has no {file.name}; it is incomplete.") from error
    # it tells of the torch versions that it was tested with, and of the libraries that only a Mac has
    logging.getLogger("coremltools").setLevel(logging.ERROR)
    formats = optional_module("coremltools.proto.Model_pb2", "coreml", "Reading a CoreML package")
    messages = optional_module("google.protobuf.message", "coreml", "Reading a CoreML package")
    model = formats.Model()
    try:
        model.ParseFromString(data)
    except messages.DecodeError as error:
        raise CheckpointError(f"{file} is damaged.") from error
    if model.WhichOneof("Type") != "mlProgram" or function not in model.mlProgram.functions:
        raise CheckpointError(f"{package} is not an ML program with a function {function!r}.")
    return model, file


def _model_path(package: Path) -> str:
    """Where the package's own manifest says that the model lies, below ``Data``."""
    try:
        manifest = json.loads((package / "Manifest.json").read_text(encoding="utf-8"))
        path = manifest["itemInfoEntries"][manifest["rootModelIdentifier"]]["path"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{package} is not a CoreML package: its Manifest.json is missing or damaged."
        ) from error
    if Path(path).is_absolute() or ".." in Path(path).parts:
        raise CheckpointError(f"{package}: its manifest points outside of the package.")
    return str(path)
