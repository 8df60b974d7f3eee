"""In what the weights of a Core AI graph are stored, and in what it computes."""

from __future__ import annotations

import copy
import warnings
from typing import Any, Literal, TypeVar, get_args

import torch
from torch import Tensor, nn

from nemostream.errors import BackendError, CheckpointError

Weights = Literal["fp32", "fp16", "int8"]
Activations = Literal["fp32", "fp16"]

M = TypeVar("M", bound=nn.Module)
_FP16_LARGEST = torch.finfo(torch.float16).max
_NOT_INT8 = ("relative_k_proj", "encoder_projector", "prompt_projector.linear_1", "prompt_projector.linear_2")


def activations_for(weights: str, activations: str | None) -> Activations:
    """In what to compute: as the weights say, and for int8 what is asked for, or fp16.

    Raises:
        BackendError: if either is unknown, or they don't go together.
    """
    if weights not in get_args(Weights):
        raise BackendError(
            f"Core AI weights cannot be stored as {weights!r}; use one of {', '.join(get_args(Weights))}."
        )
    if activations not in (None, *get_args(Activations)):
        raise BackendError(
            f"Core AI cannot compute in {activations!r}; use one of {', '.join(get_args(Activations))}."
        )
    if weights == "int8":
        return "fp32" if activations == "fp32" else "fp16"
    if activations not in (None, weights):
        raise BackendError(f"With {weights} weights everything is {weights}; leave the activations out.")
    return "fp16" if weights == "fp16" else "fp32"


def prepared(module: M, weights: Weights, activations: Activations) -> M:
    """A copy of a part of the network with its matrices and its arithmetic in those precisions.

    int8 are the matrices of the layers, one scale for each output, symmetric. The stem, the language prompt
    and the projection before the joint stay as the activations are, and so do the depthwise convolutions,
    which are small: the prompt comes after the last norm, and in int8 it was almost half of the whole error.

    Raises:
        CheckpointError: if a weight is too large for fp16.
    """
    changed = copy.deepcopy(module)
    if activations == "fp16":
        for name, parameter in changed.named_parameters():
            if parameter.abs().max() > _FP16_LARGEST:
                raise CheckpointError(f"{name} has a weight that is too large for fp16; use --weights fp32.")
        changed = changed.half()
    if weights == "int8":
        _quantise(_matrices(changed))
    return changed


def _matrices(module: nn.Module) -> list[nn.Linear]:
    """The linear layers to quantise; pointwise convolutions become linear layers in place."""
    found = []
    for name, part in list(module.named_modules()):
        if isinstance(part, nn.Linear) and not name.endswith(_NOT_INT8):
            found.append(part)
        elif isinstance(part, nn.Conv1d) and part.kernel_size == (1,):
            pointwise = _Pointwise(part)
            parent, _, child = name.rpartition(".")
            setattr(module.get_submodule(parent), child, pointwise)
            found.append(pointwise.linear)
    return found


class _Pointwise(nn.Module):
    """A pointwise convolution whose weight [O, I, 1] is that of a linear layer, for `_quantise`."""

    def __init__(self, convolution: nn.Conv1d) -> None:
        super().__init__()
        weight = convolution.weight.data.squeeze(2)
        self.linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=weight.dtype)
        self.linear.weight.data = weight

    @property
    def weight(self) -> Tensor:
        """What `CausalConvolution` reads."""
        return self.linear.weight.unsqueeze(2)


class _CallEach(nn.Module):
    """Calls every layer once, which is how the quantiser finds them."""

    def __init__(self, layers: list[nn.Linear]) -> None:
        super().__init__()
        self.layers: Any = nn.ModuleList(layers)

    def forward(self) -> tuple[Tensor, ...]:
        return tuple(
            layer(torch.zeros(1, layer.in_features, dtype=layer.weight.dtype)) for layer in self.layers
        )


def _quantise(layers: list[nn.Linear]) -> None:
    """Store the weights of linear layers in int8, in place, by coreai-opt."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torchao, about kernels that this has no use for
            from coreai_opt.common import ExportBackend
            from coreai_opt.quantization import ModuleQuantizerConfig, Quantizer, QuantizerConfig
            from coreai_opt.quantization.config import ExecutionMode
            from coreai_opt.quantization.spec import (
                PerChannelGranularity,
                QuantizationScheme,
                QuantizationSpec,
            )
    except ImportError as error:
        raise BackendError(
            "int8 weights for Core AI need coreai-opt; install it with `pip install 'nemostream[coreai]'`."
        ) from error
    # largest weight / 127: the plain symmetric scheme divides by 127.5 and so clips the largest weight of a
    # row, which changed a transcript of the embedded model
    scheme = QuantizationScheme.SYMMETRIC_WITH_CLIPPING
    granularity = PerChannelGranularity(axis=0)
    spec = QuantizationSpec(dtype=torch.int8, qscheme=scheme, granularity=granularity)
    config = QuantizerConfig(
        global_config=ModuleQuantizerConfig(
            op_input_spec=None, op_output_spec=None, op_state_spec={"weight": spec}
        ),
        execution_mode=ExecutionMode.EAGER,
    )
    calls = _CallEach(layers)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        quantizer = Quantizer(calls, config)
        prepared_calls = quantizer.prepare(())
        with quantizer.calibration_mode():
            prepared_calls()
        quantizer.finalize(backend=ExportBackend.CoreAI)
