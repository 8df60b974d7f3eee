"""``nemostream inspect``: what a model is made of, down to the shape of every input of every graph."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from nemostream.cli.models import describe_contexts
from nemostream.errors import CheckpointError

if TYPE_CHECKING:
    from nemostream.config import ModelConfig


def add_parser(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], common: argparse.ArgumentParser
) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "inspect",
        help="show the configuration, languages, files and shapes of a model",
        description="Show the configuration, languages, files with hashes, tensors or graphs of a model.",
        parents=[common],
    )
    parser.add_argument("model", metavar="MODEL", help="name, hub id, .nemo file, folder or bundle")
    parser.add_argument("--revision", help="commit of a hub id")
    parser.add_argument(
        "--placement",
        action="store_true",
        help="only tell where CoreML plans to run the encoder of a CoreML bundle; on a Mac",
    )
    parser.set_defaults(run=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the facts; a file that is not what the manifest says is a `CheckpointError`."""
    from nemostream.checkpoints.bundle import MANIFEST
    from nemostream.loading import EMBEDDED_MODEL, embedded_bundle

    name: str = arguments.model
    bundle = embedded_bundle() if name == EMBEDDED_MODEL else Path(name).expanduser()
    if arguments.placement:
        _print_placement(bundle)
    elif (bundle / MANIFEST).is_file():
        _inspect_bundle(bundle)
    else:
        _inspect_checkpoint(name, arguments.revision)
    return 0


def _inspect_bundle(folder: Path) -> None:
    from nemostream.checkpoints.bundle import read_manifest

    manifest = read_manifest(folder, verify=False)  # the table of files shows each that is altered
    print(f"{folder}: {manifest.runtime} bundle")
    for key in (
        "layout",
        "framing",
        "max_frames",
        "weights",
        "measured",
        "source",
        "source_revision",
        "nemostream",
        "schema_version",
    ):
        if (value := getattr(manifest, key)) is not None:
            _fact(key, value)
    _print_config(manifest.config)
    _print_files(folder, {name: record.sha256 for name, record in manifest.files.items()})
    read_manifest(folder)
    for path in sorted(folder.rglob("*.onnx")):
        _print_graph(path)
    if manifest.runtime == "coreai":
        _print_coreai_graphs(folder)
    if manifest.runtime == "coreml":
        for path in sorted(folder.rglob("*.mlpackage")):
            _print_coreml_graph(path)


def _inspect_checkpoint(name: str, revision: str | None) -> None:
    from nemostream.checkpoints import load_checkpoint

    checkpoint = load_checkpoint(name, revision=revision)
    print(f"{checkpoint.source}: {checkpoint.format} checkpoint")
    arrays = checkpoint.tensors.values()
    _fact("tensors", len(arrays))
    _fact("parameters", f"{sum(array.size for array in arrays):,}")
    _fact("dtypes", ", ".join(sorted({str(array.dtype) for array in arrays})))
    _fact("language tags", ", ".join(checkpoint.tokenizer.language_tags.values()) or "none")
    _print_config(checkpoint.config)
    path = Path(name).expanduser()
    if path.exists():
        _print_files(path, {})


def _print_config(config: ModelConfig) -> None:
    for key, value in config.to_dict().items():
        if key not in ("att_context_sizes", "prompts"):
            _fact(key, value)
    _fact("latencies", describe_contexts(config.att_context_sizes))
    _fact("languages", ", ".join(sorted(config.prompts)) or "English only")


def _print_files(path: Path, expected: Mapping[str, str]) -> None:
    """Print name, size and SHA-256 of every file, and whether it is the ``expected`` one."""
    from nemostream.checkpoints.bundle import FileRecord

    found = dict(_files(path))
    print("files")
    for name, file in found.items():
        record = FileRecord.of(file)
        mark = ""
        if name in expected:
            mark = "  as in the manifest" if record.sha256 == expected[name] else "  NOT AS IN THE MANIFEST"
        print(f"  {name}  {record.bytes:,} bytes  sha256 {record.sha256}{mark}")
    for name in expected.keys() - found.keys():
        print(f"  {name}  MISSING")


def _files(path: Path) -> Iterator[tuple[str, Path]]:
    if path.is_file():
        yield path.name, path
        return
    for file in sorted(path.rglob("*")):
        if file.is_file():
            yield file.relative_to(path).as_posix(), file


def _print_graph(path: Path) -> None:
    import onnxruntime

    try:
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime raises classes of its own, which it does not export
        raise CheckpointError(f"{path} is not a graph that ONNX Runtime can load ({error}).") from error
    print(f"graph {path.name}")
    for kind, values in (("input", session.get_inputs()), ("output", session.get_outputs())):
        for value in values:
            shape = ", ".join(map(str, value.shape))
            print(
                f"  {kind:7} {value.name}  [{shape}]  {value.type.removeprefix('tensor(').removesuffix(')')}"
            )


def _print_coreai_graphs(folder: Path) -> None:
    from nemostream.runtimes.coreai_assets import describe_asset

    for path in sorted(folder.rglob("*.aimodel")):
        for entry, inputs, outputs in describe_asset(path):
            print(f"graph {path.name}, entry point {entry}")
            for kind, values in (("input", inputs), ("output", outputs)):
                for name, value_type in values:
                    print(f"  {kind:7} {name}  {value_type}")


def _print_coreml_graph(path: Path) -> None:
    from nemostream.export.coreml.lint import lint
    from nemostream.export.coreml.package import read_package

    package = read_package(path)
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    print(f"graph {path.name}  {size:,} bytes, for {package.needs} or newer")
    for kind, values in (("input", package.inputs), ("output", package.outputs)):
        for value in values:
            print(f"  {kind:7} {value.name}  [{', '.join(map(str, value.shape))}]  {value.dtype}")
    counts = Counter(operation.type for operation in package.operations)
    print(f"  operations      {', '.join(f'{name} {count}' for name, count in counts.most_common())}")
    stored = ", ".join(f"{count:,} values {dtype}" for dtype, count in package.weights.items())
    print(f"  weights         {stored or 'none'}")
    if package.compressed:
        print(
            f"  compressed by   {', '.join(f'{name} {count}' for name, count in package.compressed.items())}"
        )
    for finding in lint(package):
        print(f"  Neural Engine   {finding.rule}: {finding.message}")


def _print_placement(bundle: Path) -> None:
    from nemostream.runtimes.coreml import placement

    for graph, shares in placement(bundle).items():
        planned = ", ".join(f"{device} {share:.1%}" for device, share in shares.items())
        print(f"{graph}: {planned or 'no estimate'}")


def _fact(key: str, value: object) -> None:
    print(f"  {key:28} {value}")
