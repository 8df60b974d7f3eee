"""The Neural Engine lint finds each fault in a program built to have it, and none in one without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nemostream.export.coreml.lint import Finding, lint
from nemostream.export.coreml.package import Operation, Package, TensorType, read_package

ct = pytest.importorskip("coremltools", reason="the extra coreml is not installed")

from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import get_new_symbol, types

IOS18 = ct.target.iOS18


def findings(program: Any, folder: Path, **options: Any) -> list[Finding]:
    model = ct.convert(program, minimum_deployment_target=IOS18, skip_model_load=True, **options)
    model.save(str(folder / "graph.mlpackage"))
    return lint(read_package(folder / "graph.mlpackage"))


def rules(found: list[Finding]) -> set[str]:
    return {finding.rule for finding in found}


def test_a_program_made_for_the_neural_engine_is_clean(tmp_path: Path) -> None:
    @mb.program(input_specs=[mb.TensorSpec((1, 4, 64))], opset_version=IOS18)  # type: ignore[untyped-decorator]
    def program(x: Any) -> Any:
        return mb.relu(x=mb.mul(x=x, y=2.0))

    assert findings(program, tmp_path) == []


def test_integer_islands_are_counted(tmp_path: Path) -> None:
    """Two groups that share no whole number are two islands, also where they meet through floats."""

    @mb.program(  # type: ignore[untyped-decorator]
        input_specs=[
            mb.TensorSpec((1, 64)),
            mb.TensorSpec((1,), dtype=types.int32),
            mb.TensorSpec((1,), dtype=types.int32),
        ],
        opset_version=IOS18,
    )
    def program(x: Any, a: Any, b: Any) -> Any:
        first = mb.cast(x=mb.add(x=a, y=1), dtype="fp32")
        second = mb.cast(x=mb.sub(x=b, y=1), dtype="fp32")
        return mb.mul(x=mb.mul(x=x, y=first), y=second)

    found = [finding.message for finding in findings(program, tmp_path) if finding.rule == "integer island"]
    assert len(found) == 2
    assert any("add" in message for message in found)
    assert any("sub" in message for message in found)


def test_rank_six() -> None:
    """coremltools itself saves no such program, other tools do, so this one is made by hand."""
    shallow, deep = TensorType("x", "fp16", (2, 2, 64)), TensorType("deep", "fp16", (1, 2, 1, 2, 2, 32))
    operations = (Operation("reshape", (shallow,), (deep,)), Operation("reshape", (deep,), (shallow,)))
    found = lint(Package((shallow,), (shallow,), operations, {}, {}, "iOS 18"))
    assert [finding for finding in found if finding.rule == "rank"] == [
        Finding("rank", "reshape deep has 6 dimensions, 5 at most fit")
    ]


def test_sizes_that_vary(tmp_path: Path) -> None:
    @mb.program(input_specs=[mb.TensorSpec((1, get_new_symbol(), 64))], opset_version=IOS18)  # type: ignore[untyped-decorator]
    def program(x: Any) -> Any:
        return mb.relu(x=x)

    varying = ct.TensorType("x", shape=(1, ct.RangeDim(1, 8), 64))
    found = findings(program, tmp_path, inputs=[varying])
    assert any(finding.message.startswith("input x is [1, any, 64]") for finding in found)
    assert any("results of operations have sizes that vary" in finding.message for finding in found)


def test_rows_that_are_padded(tmp_path: Path) -> None:
    """The case of the published English model: [1, 1024, 7] comes with rows of 32."""

    @mb.program(input_specs=[mb.TensorSpec((1, 1024, 7), dtype=types.fp16)], opset_version=IOS18)  # type: ignore[untyped-decorator]
    def program(x: Any) -> Any:
        return mb.relu(x=x, name="encoded")

    found = findings(program, tmp_path)
    assert rules(found) == {"unaligned"}
    assert "output encoded [1, 1024, 7] may come with rows of 32: copy it by its strides" in [
        finding.message for finding in found
    ]
