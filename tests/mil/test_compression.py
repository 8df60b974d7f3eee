"""Compressed weights, decompressed exactly as coremltools does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

ct = pytest.importorskip("coremltools", reason="the extra coreml is not installed")
import coremltools.optimize.coreml as cto
from coremltools.converters.mil import Builder as mb

from nemostream.mil import read_program

rng = np.random.default_rng(1)
SMALL = 0  # compress every weight, however small
CONFIGS = {
    "int8": cto.OpLinearQuantizerConfig(mode="linear_symmetric", weight_threshold=SMALL),
    "int8 affine": cto.OpLinearQuantizerConfig(mode="linear", dtype="uint8", weight_threshold=SMALL),
    "int8 in blocks": cto.OpLinearQuantizerConfig(
        granularity="per_block", block_size=16, weight_threshold=SMALL
    ),
    "int4 in blocks": cto.OpLinearQuantizerConfig(
        dtype="int4", granularity="per_block", block_size=16, weight_threshold=SMALL
    ),
    **{
        f"{bits} bits {mode}": cto.OpPalettizerConfig(mode=mode, nbits=bits, weight_threshold=SMALL)
        for bits in (1, 2, 4, 6, 8)
        for mode in ("uniform", "kmeans")
    },
    "4 bits in groups": cto.OpPalettizerConfig(
        mode="uniform", nbits=4, granularity="per_grouped_channel", group_size=8, weight_threshold=SMALL
    ),
}
OLD = {"int8", "int8 affine", "6 bits uniform", "8 bits kmeans"}  # what iOS 17 and before can hold
FAST = {"int8", "6 bits uniform"}


def cases() -> list[object]:
    pairs = [(name, "iOS18") for name in CONFIGS] + [(name, "iOS17") for name in sorted(OLD)]
    return [pytest.param(*pair, marks=() if pair[0] in FAST else pytest.mark.long) for pair in pairs]


@pytest.mark.parametrize(("name", "target"), cases())
def test_weights_are_those_of_coremltools(tmp_path: Path, name: str, target: str) -> None:
    """The same outputs bit for bit, whether results are rounded to fp16 or not: weights always are."""
    weight = rng.normal(size=(128, 96)).astype(np.float32)
    kernel = rng.normal(size=(128, 96, 3)).astype(np.float32)

    def build(x: Any) -> Any:
        rows = mb.linear(x=x, weight=weight)
        columns = mb.conv(x=mb.transpose(x=x, perm=[0, 2, 1]), weight=kernel, pad_type="same")
        return mb.add(x=mb.transpose(x=columns, perm=[0, 2, 1]), y=rows)

    opset = getattr(ct.target, target)
    program = mb.program(input_specs=[mb.TensorSpec(shape=(1, 5, 96))], opset_version=opset)(build)
    model = ct.convert(program, minimum_deployment_target=opset)
    config = cto.OptimizationConfig(global_config=CONFIGS[name])
    quantize = cto.linear_quantize_weights if name.startswith("int") else cto.palettize_weights
    compressed = quantize(model, config)
    x = rng.normal(size=(1, 5, 96)).astype(np.float32)
    outputs: dict[bool, list[Any]] = {True: [], False: []}
    for stage, each in (("compressed", compressed), ("decompressed", cto.decompress_weights(compressed))):
        path = tmp_path / f"{stage}.mlpackage"
        each.save(str(path))
        for fp16, found in outputs.items():
            read = read_program(path, fp16=fp16)
            assert bool(read.compressed) == (stage == "compressed")
            found += read({"x": x}).values()
    for found in outputs.values():
        np.testing.assert_array_equal(*found)
    assert not np.array_equal(outputs[True][0], outputs[False][0])
