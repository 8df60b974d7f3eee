"""Folders of one random model for every system that is compared; made once and kept."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from benchmarks.models import CONFIGS, random_checkpoint
from nemostream.checkpoints.huggingface import load_huggingface, save_huggingface
from nemostream.export.linear import Weights
from nemostream.export.onnx import export_onnx
from nemostream.export.sherpa import DECODER, ENCODER, JOINER, export_sherpa
from nemostream.runtimes.torch import load_network

GRAPHS = (ENCODER, DECODER, JOINER)


@dataclass(frozen=True)
class Folders:
    """Where the models lie.

    Attributes:
        root: the folder of all.
        size: "full" or "small".
    """

    root: Path
    size: str

    @property
    def huggingface(self) -> Path:
        """The checkpoint."""
        folder = self.root / f"{self.size}-hf"
        if not (folder / "config.json").is_file():
            save_huggingface(random_checkpoint(CONFIGS[self.size]), folder)
        return folder

    def bundle(self, weights: Weights) -> Path:
        """Our ONNX bundle."""
        folder = self.root / f"{self.size}-{weights}"
        if not (folder / "manifest.json").is_file():
            checkpoint = load_huggingface(self.huggingface)
            network = load_network(checkpoint)
            export_onnx(network, checkpoint.tokenizer, folder, source="random", weights=weights)
        return folder

    def sherpa(self, right: int, weights: str) -> Path:
        """sherpa-onnx's layout with one chunk size: "fp32", or "int8" with a scale per output."""
        folder = self.root / f"{self.size}-sherpa-{right}"
        if not (folder / "manifest.json").is_file():
            checkpoint = load_huggingface(self.huggingface)
            network, left = load_network(checkpoint), checkpoint.config.default_att_context[0]
            context = (left - left % (right + 1), right)
            export_sherpa(network, checkpoint.tokenizer, folder, source="random", att_context=context)
        return folder if weights == "fp32" else _quantised(folder)


def _quantised(folder: Path) -> Path:
    """The same with matrices in int8, by ONNX Runtime's own tool."""
    target = folder.with_name(f"{folder.name}-int8")
    if (target / "tokens.txt").is_file():
        return target
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    target.mkdir(exist_ok=True)
    for name in GRAPHS:
        graph = onnx.load(folder / name, load_external_data=False).graph
        # products with the position tables have three dimensions, for which there is no quantised operator
        tables = {tensor.name for tensor in graph.initializer if len(tensor.dims) != 2}
        plain = [node.name for node in graph.node if node.op_type == "MatMul" and tables & set(node.input)]
        quantize_dynamic(
            folder / name,
            target / name,
            per_channel=True,
            weight_type=QuantType.QInt8,
            op_types_to_quantize=["MatMul"],
            nodes_to_exclude=plain,
            use_external_data_format=(folder / f"{name}.data").is_file(),
        )
    shutil.copy(folder / "tokens.txt", target / "tokens.txt")
    return target
