"""Small programs, built with coremltools, saved, and read back by the runner."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nemostream.mil import Program, read_program
from tests.coreml_bundles import little_garbage

Build = Callable[..., Any]  # the builder `mb` and symbolic inputs -> a value, or a list of them
DTYPES = {"fp16": np.float16, "fp32": np.float32, "int32": np.int32}


def save_program(
    folder: Path, build: Build, inputs: Mapping[str, tuple[tuple[int, ...], str]], opset: str = "iOS17"
) -> Path:
    """Save a program; nothing in it is simplified, so that every operation is there as it was built.

    Args:
        folder: where the package comes to lie.
        build: makes it.
        inputs: name -> shape, dtype.
        opset: "iOS15" to "iOS18": which version of the operations.
    """
    import coremltools as ct
    from coremltools.converters.mil import Builder as mb
    from coremltools.converters.mil.mil import types

    target = getattr(ct.target, opset)
    parameters = ", ".join(inputs)
    body = eval(f"lambda {parameters}: build(mb, {parameters})", {"build": build, "mb": mb})
    specs = [mb.TensorSpec(shape=shape, dtype=getattr(types, dtype)) for shape, dtype in inputs.values()]
    program = mb.program(input_specs=specs, opset_version=target)(body)
    with little_garbage():
        model = ct.convert(
            program,
            convert_to="mlprogram",
            minimum_deployment_target=target,
            compute_precision=ct.precision.FLOAT32,
            pass_pipeline=ct.PassPipeline.EMPTY,
            skip_model_load=True,
        )
    path = folder / "program.mlpackage"
    model.save(str(path))
    return path


def run_program(
    build: Build, inputs: Mapping[str, NDArray[Any]], opset: str = "iOS17", *, fp16: bool = True
) -> list[NDArray[Any]]:
    """Outputs, in their order, of a program that was saved and read back."""
    with tempfile.TemporaryDirectory() as folder:
        names = {np.dtype(dtype): name for name, dtype in DTYPES.items()}
        specs = {name: (value.shape, names[value.dtype]) for name, value in inputs.items()}
        program: Program = read_program(save_program(Path(folder), build, specs, opset), fp16=fp16)
        return list(program(inputs).values())
