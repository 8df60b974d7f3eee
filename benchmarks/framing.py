"""What uniform framing costs: error rates of one checkpoint in native and in uniform framing.

    python -m benchmarks.framing MANIFEST... [--checkpoint MODEL] [--att-context 56 13]

CoreML and sherpa-onnx bundles have uniform framing, which samples another phase of the stem than the native
framing that a model was trained with. Both are run by the reference network in PyTorch, so nothing but the
framing differs; the table has the errors of both and the difference with a 95 % interval (paired bootstrap).
"""

from __future__ import annotations

import argparse
from pathlib import Path

from nemostream.checkpoints import load_checkpoint
from nemostream.engine.model import Model
from nemostream.evaluate.comparison import Comparison, compare
from nemostream.evaluate.manifest import read_manifest
from nemostream.evaluate.run import evaluate
from nemostream.loading import embedded_checkpoint
from nemostream.runtimes.protocol import Framing
from nemostream.runtimes.torch import TorchRuntime

FRAMINGS: tuple[Framing, Framing] = ("native", "uniform")


def framing_cost(checkpoint: Path, manifest: Path, att_context: tuple[int, int]) -> Comparison:
    """Run both framings on a manifest; A of the comparison is native."""
    utterances, loaded = read_manifest(manifest), load_checkpoint(checkpoint)
    native, uniform = (
        evaluate(
            Model(TorchRuntime(loaded, framing=framing, threads=1)),
            utterances,
            name=framing,
            model_name=str(checkpoint),
            manifest=str(manifest),
            att_context=att_context,
        )
        for framing in FRAMINGS
    )
    return compare(native, uniform)


def main() -> None:
    """Print a row for each manifest."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("manifests", type=Path, nargs="+", metavar="MANIFEST")
    parser.add_argument("--checkpoint", type=Path, default=embedded_checkpoint(), help="default: tiny")
    parser.add_argument("--att-context", type=int, nargs=2, default=(56, 13), metavar=("LEFT", "RIGHT"))
    arguments = parser.parse_args()
    left, right = arguments.att_context
    print("| part | words | native WER | uniform WER | difference (95 %) | identical |")
    print("|---|---|---|---|---|---|")
    for manifest in arguments.manifests:
        row = framing_cost(arguments.checkpoint, manifest, (left, right)).rows[-1]
        delta = row.delta
        print(
            f"| {manifest.parent.name} | {row.a.units} | {row.a.rate:.1%} | {row.b.rate:.1%} "
            f"| {delta.difference:+.1%} ({delta.low:+.1%} … {delta.high:+.1%}) | {row.identical:.0%} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
