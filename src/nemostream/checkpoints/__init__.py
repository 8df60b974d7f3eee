"""Checkpoints: every published form of a model, read into one `Checkpoint` and written back."""

from nemostream.checkpoints.checkpoint import Checkpoint, check_tensors
from nemostream.checkpoints.huggingface import load_huggingface, save_huggingface
from nemostream.checkpoints.load import load_checkpoint
from nemostream.checkpoints.mlx_style import load_mlx_style, save_mlx_style
from nemostream.checkpoints.names import canonical_to_nemo, expected_shapes, nemo_to_canonical
from nemostream.checkpoints.nemo import load_nemo

__all__ = [
    "Checkpoint",
    "canonical_to_nemo",
    "check_tensors",
    "expected_shapes",
    "load_checkpoint",
    "load_huggingface",
    "load_mlx_style",
    "load_nemo",
    "nemo_to_canonical",
    "save_huggingface",
    "save_mlx_style",
]
