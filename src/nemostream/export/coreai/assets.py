"""From a module of the reference network to an ``.aimodel`` asset."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nemostream.errors import BackendError
from nemostream.runtimes.coreai_graphs import MAIN


@dataclass(frozen=True)
class Graph:
    """An entry point of an asset.

    Attributes:
        module: what it computes; it takes tensors by place and returns one tensor or a tuple.
        inputs: name -> example of the right shape and dtype; all shapes are fixed.
        outputs: names.
        name: of the entry point.
    """

    module: nn.Module
    inputs: Mapping[str, Tensor]
    outputs: Sequence[str]
    name: str = MAIN


def converter_package() -> Any:
    """The package that converts, or a `BackendError` that says how to install it."""
    try:
        import coreai_torch
    except ImportError as error:
        raise BackendError(
            "Converting to Core AI needs coreai-torch (Linux or macOS); install it with "
            "`pip install 'nemostream[coreai]'`."
        ) from error
    return coreai_torch


def write_asset(path: Path, graphs: Sequence[Graph], description: str) -> list[str]:
    """Convert entry points that share weights, and save them.

    Args:
        path: the ``.aimodel`` folder to write.
        graphs: its entry points, one `Graph` each.
        description: for people who look into the asset.

    Returns:
        names of the files that were written, relative to ``path``.
    """
    package = converter_package()
    from coreai.runtime import AIModelAssetMetadata

    converter = package.TorchConverter(mode=package.TorchConverter.Mode.RELEASE)
    with warnings.catch_warnings(), torch.no_grad(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")  # of torch.export, about itself
        for graph in graphs:
            program = torch.export.export(graph.module.eval(), tuple(graph.inputs.values()))
            converter.add_exported_program(
                program.run_decompositions(package.get_decomp_table()),
                input_names=list(graph.inputs),
                output_names=list(graph.outputs),
                entrypoint_name=graph.name,
            )
        metadata = AIModelAssetMetadata()
        metadata.model_description = description
        converter.to_coreai().save_asset(path.absolute(), metadata)
    return sorted(file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file())
