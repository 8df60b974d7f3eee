"""Turn a training run into a checkpoint folder and the bundle that ships in the package.

    python recipes/tiny/export.py --run work/run --checkpoint work/checkpoint --bundle work/bundle

The averaged weights are rounded to fp16 once; the Hugging Face folder and the ONNX bundle hold those same
numbers, so both give the same tokens.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import numpy as np
from average import read_average

from nemostream.checkpoints import Checkpoint, load_checkpoint, save_huggingface
from nemostream.export.onnx import export_onnx
from nemostream.runtimes.torch import load_network
from nemostream.text import Tokenizer


def averaged_checkpoint(run: Path) -> Checkpoint:
    """The running average of a training run, in fp16."""
    average = read_average(run)
    tensors = {name: value.astype(np.float16) for name, value in average.weights.items()}
    tokenizer = Tokenizer.from_sentencepiece(run / "tokenizer.model")
    return Checkpoint(average.config, tensors, tokenizer, source=str(run), format="huggingface")


def main(argv: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, required=True, help="folder that train.py wrote")
    parser.add_argument("--checkpoint", type=Path, required=True, help="Hugging Face folder to write")
    parser.add_argument("--bundle", type=Path, help="ONNX bundle to write as well")
    arguments = parser.parse_args(argv)
    save_huggingface(averaged_checkpoint(arguments.run), arguments.checkpoint, "float16")
    shutil.copy(
        arguments.run / "tokenizer.model", arguments.checkpoint / "tokenizer.model"
    )  # for fine-tuning
    if arguments.bundle is not None:
        checkpoint = load_checkpoint(arguments.checkpoint)
        export_onnx(
            load_network(checkpoint),
            checkpoint.tokenizer,
            arguments.bundle,
            source="recipes/tiny",
            weights="fp16",
        )


if __name__ == "__main__":
    main()
