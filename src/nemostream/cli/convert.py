"""``nemostream convert``: a checkpoint to a bundle of another runtime."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from nemostream.cli.messages import report_note
from nemostream.config import FRAME_MS

if TYPE_CHECKING:
    from nemostream.checkpoints import Checkpoint


def add_parser(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], common: argparse.ArgumentParser
) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "convert",
        help="convert a checkpoint to a bundle for another runtime",
        description="Convert a checkpoint to a folder that another runtime loads; "
        "this needs `pip install 'nemostream[export]'`.",
        parents=[common],
    )
    parser.add_argument(
        "checkpoint", metavar="CHECKPOINT", help="hub id, .nemo file, or Hugging Face or MLX folder"
    )
    parser.add_argument(
        "--to",
        choices=tuple(WEIGHTS),
        required=True,
        help="onnx: a bundle for ONNX Runtime; sherpa: what sherpa-onnx loads; mlx: safetensors for MLX; "
        "coreai: graphs for Core AI; coreml: graphs for CoreML",
    )
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="FOLDER", help="new or empty folder"
    )
    parser.add_argument(
        "--weights",
        choices=sorted({name for names in WEIGHTS.values() for name in names}),
        help="how matrices are stored: int8 is fastest and a quarter of the size; "
        "default: fp32, of Core AI and CoreML fp16, or int8 with the layout sharded; of MLX as in the "
        "checkpoint",
    )
    parser.add_argument(
        "--layout",
        help="of a Core AI export: six (default) or sharded, see docs/coreai.md; of a CoreML export: single "
        "(default), english or sharded, see docs/coreml.md",
    )
    parser.add_argument(
        "--activations",
        choices=("fp16", "fp32"),
        help="in what a Core AI export with int8 weights computes; default: fp16, which is slow on Linux",
    )
    parser.add_argument(
        "--latency",
        type=milliseconds,
        metavar="MS",
        help="of exports that have one, sherpa and Core AI: 80 to 1120, or a tier of the sharded layout "
        "(560 to 4480); default: the model's, or 2240",
    )
    parser.add_argument(
        "--att-context",
        type=int,
        nargs=2,
        metavar=("LEFT", "RIGHT"),
        help="of a CoreML export: context in encoder frames of 80 ms; default: that of the published bundle",
    )
    parser.add_argument(
        "--chunk", type=int, metavar="MEL_FRAMES", help="of a CoreML export: new mel frames (10 ms) in a call"
    )
    parser.add_argument(
        "--tiers",
        type=milliseconds,
        nargs="+",
        metavar="MS",
        help="of a CoreML export with the layout sharded: 560, 1120, 2240 (default), 4480; several give a "
        "folder each",
    )
    parser.add_argument(
        "--watch",
        action="store_const",
        const=True,
        help="of a CoreML export with the layout sharded: without what is too large for a watch",
    )
    parser.add_argument(
        "--measure-on",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="recordings or manifests (.jsonl) with which the cost of smaller weights is measured, for the "
        "bundle's manifest; default: the clip in this package",
    )
    parser.add_argument("--revision", help="commit of a hub id")
    parser.set_defaults(run=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Convert, and say what to do with the result."""
    folder: Path = arguments.output
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        arguments.parser.error(f"{folder} is not an empty folder; choose another with -o")
    for option, targets in _OPTIONS.items():
        if getattr(arguments, option) is not None and arguments.to not in targets:
            arguments.parser.error(f"--{option.replace('_', '-')} is for --to {' or '.join(targets)} only")
    allowed = WEIGHTS[arguments.to]
    if arguments.weights is None:
        arguments.weights = "int8" if arguments.layout == "sharded" else _DEFAULT_WEIGHTS.get(arguments.to)
    if arguments.weights not in (None, *allowed):  # None: as they are in the checkpoint
        arguments.parser.error(f"--to {arguments.to} stores weights as {' or '.join(allowed)} only")
    from nemostream.checkpoints import load_checkpoint
    from nemostream.errors import BackendError
    from nemostream.loading import EMBEDDED_MODEL, embedded_checkpoint

    name: str = arguments.checkpoint
    checkpoint = load_checkpoint(
        embedded_checkpoint() if name == EMBEDDED_MODEL else name, revision=arguments.revision
    )
    try:
        _CONVERTERS[arguments.to](checkpoint, arguments)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("nemostream"):
            raise
        raise BackendError(
            f"Converting needs the package {error.name}; run: pip install 'nemostream[export]'."
        ) from error
    return 0


def _to_onnx(checkpoint: Checkpoint, arguments: argparse.Namespace) -> None:
    from nemostream.export.onnx import export_onnx
    from nemostream.loading import embedded_clip
    from nemostream.runtimes.torch import load_network

    folder: Path = arguments.output
    source, revision = _source(checkpoint, arguments)
    export_onnx(
        load_network(checkpoint),
        checkpoint.tokenizer,
        folder,
        source=source,
        source_revision=revision,
        weights=arguments.weights,
    )
    recordings: list[Path] = arguments.measure_on or [embedded_clip()]
    if arguments.measure_on or (arguments.weights != "fp32" and recordings[0].is_file()):
        from nemostream.export.measure import record_error

        measured = record_error(folder, checkpoint, recordings).measured or {}
        for part in () if arguments.quiet else measured["parts"]:
            report_note("Against fp32: " + ", ".join(f"{key} {value}" for key, value in part.items()) + ".")
    if not arguments.quiet:
        report_note(f"{folder} is ready: nemostream transcribe --model {folder} FILE")


def _to_sherpa(checkpoint: Checkpoint, arguments: argparse.Namespace) -> None:
    from nemostream.export.sherpa import export_sherpa
    from nemostream.runtimes.torch import load_network

    config = checkpoint.config
    context = config.default_att_context
    if arguments.latency is not None:
        context = config.context_for_latency(arguments.latency)
    source, revision = _source(checkpoint, arguments)
    export_sherpa(
        load_network(checkpoint),
        checkpoint.tokenizer,
        arguments.output,
        source=source,
        source_revision=revision,
        att_context=context,
    )
    if not arguments.quiet:
        report_note(f"{arguments.output} is ready for sherpa_onnx.OnlineRecognizer.from_transducer.")


def _to_mlx(checkpoint: Checkpoint, arguments: argparse.Namespace) -> None:
    from nemostream.export.mlx import export_mlx

    folder: Path = arguments.output
    source, revision = _source(checkpoint, arguments)
    export_mlx(checkpoint, folder, source=source, source_revision=revision, weights=arguments.weights)
    if not arguments.quiet:
        report_note(f"{folder} is ready: nemostream transcribe --model {folder} FILE")


def _to_coreai(checkpoint: Checkpoint, arguments: argparse.Namespace) -> None:
    from nemostream.export.coreai.bundle import export_coreai
    from nemostream.runtimes.torch import load_network

    folder: Path = arguments.output
    source, revision = _source(checkpoint, arguments)
    export_coreai(
        load_network(checkpoint),
        checkpoint.tokenizer,
        folder,
        source=source,
        source_revision=revision,
        layout=arguments.layout or "six",
        weights=arguments.weights,
        activations=arguments.activations,
        latency=arguments.latency,
    )
    if not arguments.quiet:
        report_note(f"{folder} is ready: nemostream transcribe --model {folder} FILE")


def _to_coreml(checkpoint: Checkpoint, arguments: argparse.Namespace) -> None:
    from nemostream.export.coreml.bundle import DEFAULT_TIER, call_size, export_coreml
    from nemostream.runtimes.coreml_contract import Layout
    from nemostream.runtimes.torch import load_network

    layouts: dict[str, Layout] = {"single": "single", "english": "english", "sharded": "sharded"}
    if (arguments.layout or "single") not in layouts:
        arguments.parser.error(f"--to coreml has the layouts {', '.join(layouts)}, not {arguments.layout}")
    layout = layouts[arguments.layout or "single"]
    tiers: list[int] | None = arguments.tiers
    if layout != "sharded" and (tiers or arguments.watch):
        arguments.parser.error("--tiers and --watch are for --layout sharded only")
    if layout == "sharded" and arguments.chunk is not None:
        arguments.parser.error("--layout sharded has --tiers instead of --chunk")
    if arguments.watch:
        layout = "watch"
    parent: Path = arguments.output
    chunks = {parent: arguments.chunk}
    if layout in ("sharded", "watch"):
        several = tiers is not None and len(tiers) > 1
        chunks = {parent / f"{tier}ms" if several else parent: tier // 10 for tier in tiers or [DEFAULT_TIER]}
    att_context = None if arguments.att_context is None else tuple(arguments.att_context)
    for chunk in chunks.values():  # the last one too, before minutes are spent on the first
        call_size(checkpoint.config, layout, att_context, chunk)
    network = load_network(checkpoint)
    source, revision = _source(checkpoint, arguments)
    for folder, chunk in chunks.items():
        export_coreml(
            network,
            checkpoint.tokenizer,
            folder,
            source=source,
            source_revision=revision,
            layout=layout,
            weights=arguments.weights,
            att_context=att_context,
            chunk=chunk,
        )
        if not arguments.quiet:
            report_note(f"{folder} is ready: nemostream transcribe --backend mil --model {folder} FILE")


def milliseconds(text: str) -> int:
    """Read ``320`` or ``320ms``."""
    digits = text.strip().lower().removesuffix("ms").strip()
    if not digits.isdecimal() or not int(digits) or int(digits) % FRAME_MS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a multiple of {FRAME_MS} ms")
    return int(digits)


def _source(checkpoint: Checkpoint, arguments: argparse.Namespace) -> tuple[str, str | None]:
    """Where the weights came from: a path, or a hub id and its revision."""
    from nemostream.loading import EMBEDDED_MODEL

    if arguments.checkpoint == EMBEDDED_MODEL:
        return "the embedded model", None
    if Path(arguments.checkpoint).expanduser().exists():
        return checkpoint.source, None
    source, _, revision = checkpoint.source.partition("@")
    return source, revision or None


WEIGHTS = {
    "onnx": ("fp32", "fp16", "int8", "int4"),
    "sherpa": ("fp32",),
    "mlx": ("fp32", "fp16", "bf16"),
    "coreai": ("fp32", "fp16", "int8"),
    "coreml": ("fp16", "palette8", "palette8-kmeans", "palette6", "int8"),
}
_DEFAULT_WEIGHTS = {"onnx": "fp32", "sherpa": "fp32", "coreai": "fp16", "coreml": "fp16"}
_OPTIONS = {
    "latency": ("sherpa", "coreai"),
    "layout": ("coreai", "coreml"),
    "activations": ("coreai",),
    "att_context": ("coreml",),
    "chunk": ("coreml",),
    "tiers": ("coreml",),
    "watch": ("coreml",),
}
_CONVERTERS = {
    "onnx": _to_onnx,
    "sherpa": _to_sherpa,
    "mlx": _to_mlx,
    "coreai": _to_coreai,
    "coreml": _to_coreml,
}
