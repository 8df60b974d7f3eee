"""Options that several commands share: which model, on what, in which language, at what latency."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nemostream.engine.model import Model

LATENCIES = (80, 160, 320, 560, 1120)  # ms; of the published models


def add_model_options(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add what `load_model` reads, and return the group, for what a command has besides."""
    group = parser.add_argument_group("model")
    group.add_argument(
        "-m",
        "--model",
        default="tiny",
        help="name (see `nemostream models`), hub id, .nemo file, folder or bundle; default: tiny",
    )
    group.add_argument("--revision", help="commit of a hub id")
    group.add_argument(
        "--backend", metavar="NAME", help="runtime (see `nemostream doctor`); default: what fits the model"
    )
    group.add_argument(
        "--compute-units",
        choices=("cpu", "gpu", "neural-engine"),
        help="of a CoreML or Core AI bundle on a Mac; default: the Neural Engine, or Core AI's choice",
    )
    group.add_argument(
        "--activations",
        choices=("fp16", "fp32"),
        help="of the backend mil: fp16 rounds as a Neural Engine does, fp32 does not; default: fp16",
    )
    group.add_argument(
        "--precision",
        choices=("fp32", "fp16", "bf16", "int8", "int4"),
        help="of the backend mlx; default: fp32",
    )
    group.add_argument(
        "--decoder",
        choices=("mlx", "onnx"),
        help="of the backend mlx: where predictor and joint run, onnx is ONNX Runtime on the CPU; "
        "default: mlx",
    )
    group.add_argument(
        "--threads", type=positive, metavar="N", help="CPU threads; default: the runtime's choice"
    )
    group.add_argument(
        "--workers",
        type=positive,
        metavar="N",
        help="of ONNX Runtime: shares that a batch of many streams is divided into; default: 1",
    )
    group.add_argument(
        "--spin",
        action="store_true",
        help="of ONNX Runtime: waiting threads spin; only on a machine that runs nothing else",
    )
    group.add_argument(
        "--affinity",
        metavar="CPUS",
        help="of ONNX Runtime: processors of the threads after the first, counted from 1, such as '1;2'",
    )
    return group


def load_model(arguments: argparse.Namespace, model: str | None = None, threads: int | None = None) -> Model:
    """Load the model that the arguments name.

    Args:
        arguments: of the command line.
        model: another one instead of ``arguments.model``.
        threads: where the arguments leave them open.

    Raises:
        NemostreamError: see `nemostream.load`.
    """
    import nemostream

    return nemostream.load(
        arguments.model if model is None else model,
        backend=arguments.backend,
        threads=threads
        if arguments.threads is None and _takes_threads(arguments, model)
        else arguments.threads,
        workers=arguments.workers,
        spin=arguments.spin,
        affinity=arguments.affinity,
        revision=arguments.revision,
        compute_units=arguments.compute_units,
        activations=arguments.activations,
        precision=arguments.precision,
        decoder=arguments.decoder,
    )


def _takes_threads(arguments: argparse.Namespace, model: str | None) -> bool:
    """False for runtimes that choose their threads themselves."""
    from nemostream.checkpoints.bundle import MANIFEST, read_manifest

    if arguments.backend is not None:
        return arguments.backend in ("onnx", "torch")
    folder = Path(arguments.model if model is None else model)
    return not (folder / MANIFEST).is_file() or read_manifest(folder, verify=False).runtime == "onnx"


def add_recognition_options(
    parser: argparse.ArgumentParser,
    *,
    language: str = "such as en-US or auto (see `nemostream inspect`); default: the model's",
) -> argparse._ArgumentGroup:
    """Add language and context, which `Model.att_context` reads, and return the group.

    Args:
        parser: of the command.
        language: help of ``--language``.
    """
    group = parser.add_argument_group("recognition")
    group.add_argument("-l", "--language", help=language)
    context = group.add_mutually_exclusive_group()
    context.add_argument(
        "--latency",
        type=latency,
        metavar="|".join(map(str, LATENCIES)),
        help="milliseconds that the model waits for what comes next: more is more accurate",
    )
    context.add_argument(
        "--att-context",
        type=int,
        nargs=2,
        metavar=("L", "R"),
        help="left and right context in frames of 80 ms, instead of --latency",
    )
    return group


def latency(text: str) -> int:
    """Read ``320`` or ``320ms``."""
    digits = text.strip().lower().removesuffix("ms").strip()
    if not digits.isdecimal() or int(digits) not in LATENCIES:
        valid = ", ".join(map(str, LATENCIES))
        raise argparse.ArgumentTypeError(f"{text!r} is not one of {valid} ms; --att-context sets any other")
    return int(digits)


def positive(text: str) -> int:
    """Read a whole number above 0."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)
