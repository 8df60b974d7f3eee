"""Names and shapes of all weights.

The canonical names are those of the Hugging Face checkpoints; a ``.nemo`` file has the same tensors, in the
same layout, under other names (the two published models' key lists are the source of both). LSTM gates are in
torch's order: input, forget, cell, output.
"""

from __future__ import annotations

from nemostream.config import ModelConfig

_COMPUTED = ("preprocessor.featurizer.fb", "preprocessor.featurizer.window")  # rebuilt from the configuration

_PREFIXES = (  # (NeMo, canonical)
    ("prompt_kernel.0.", "prompt_projector.linear_1."),
    ("prompt_kernel.2.", "prompt_projector.linear_2."),
    ("encoder.pre_encode.conv.0.", "encoder.subsampling.conv_in."),
    ("encoder.pre_encode.conv.2.", "encoder.subsampling.layers.0.depthwise_conv."),
    ("encoder.pre_encode.conv.3.", "encoder.subsampling.layers.0.pointwise_conv."),
    ("encoder.pre_encode.conv.5.", "encoder.subsampling.layers.1.depthwise_conv."),
    ("encoder.pre_encode.conv.6.", "encoder.subsampling.layers.1.pointwise_conv."),
    ("encoder.pre_encode.out.", "encoder.subsampling.linear."),
    ("decoder.prediction.embed.", "decoder.embedding."),
    ("decoder.prediction.dec_rnn.lstm.", "decoder.lstm."),
    ("joint.enc.", "encoder_projector."),
    ("joint.pred.", "decoder.decoder_projector."),
    ("joint.joint_net.2.", "joint.head."),
)
_IN_A_LAYER = (  # (NeMo, canonical), inside encoder.layers.N
    (".conv.batch_norm.", ".conv.norm."),  # a layer norm, whatever NeMo calls it
    (".self_attn.linear_q.", ".self_attn.q_proj."),
    (".self_attn.linear_k.", ".self_attn.k_proj."),
    (".self_attn.linear_v.", ".self_attn.v_proj."),
    (".self_attn.linear_out.", ".self_attn.o_proj."),
    (".self_attn.linear_pos.", ".self_attn.relative_k_proj."),
    (".self_attn.pos_bias_u", ".self_attn.bias_u"),
    (".self_attn.pos_bias_v", ".self_attn.bias_v"),
)


def nemo_to_canonical(name: str) -> str | None:
    """Return the canonical name of a NeMo weight, or None for a buffer that is computed, not stored.

    A name that neither table knows is returned as it is.
    """
    if name in _COMPUTED:
        return None
    return _rename(name, _PREFIXES, _IN_A_LAYER)


def canonical_to_nemo(name: str) -> str:
    """Return the name that a ``.nemo`` file has for a canonical name."""
    return _rename(
        name,
        tuple((canonical, nemo) for nemo, canonical in _PREFIXES),
        tuple((canonical, nemo) for nemo, canonical in _IN_A_LAYER),
    )


def _rename(name: str, prefixes: tuple[tuple[str, str], ...], inner: tuple[tuple[str, str], ...]) -> str:
    for old, new in prefixes:
        if name.startswith(old):
            return new + name[len(old) :]
    if name.startswith("encoder.layers."):
        for old, new in inner:
            if old in name:
                return name.replace(old, new)
    return name


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return canonical name -> shape of every weight of a model, in the order of the published files."""
    shapes = {f"encoder.subsampling.{name}": shape for name, shape in _stem(config).items()}
    for layer in range(config.num_layers):
        shapes |= {
            f"encoder.layers.{layer}.{name}": shape for name, shape in _conformer_layer(config).items()
        }
    hidden, joint = config.predictor_hidden_size, config.joint_hidden_size
    classes = config.vocab_size + 1  # the blank
    shapes |= _linear("encoder_projector", joint, config.hidden_size)
    shapes["decoder.embedding.weight"] = (classes, hidden)
    for layer in range(config.predictor_layers):
        shapes[f"decoder.lstm.weight_ih_l{layer}"] = (4 * hidden, hidden)
        shapes[f"decoder.lstm.weight_hh_l{layer}"] = (4 * hidden, hidden)
        shapes[f"decoder.lstm.bias_ih_l{layer}"] = (4 * hidden,)
        shapes[f"decoder.lstm.bias_hh_l{layer}"] = (4 * hidden,)
    shapes |= _linear("decoder.decoder_projector", joint, hidden)
    shapes |= _linear("joint.head", classes, joint)
    if config.has_prompt:
        inner, width = config.prompt_intermediate_size, config.hidden_size
        shapes |= _linear("prompt_projector.linear_1", inner, width + config.num_prompts)
        shapes |= _linear("prompt_projector.linear_2", width, inner)
    return shapes


def _stem(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    channels = config.subsampling_channels
    shapes: dict[str, tuple[int, ...]] = {"conv_in.weight": (channels, 1, 3, 3), "conv_in.bias": (channels,)}
    for stage in range(2):
        shapes[f"layers.{stage}.depthwise_conv.weight"] = (channels, 1, 3, 3)
        shapes[f"layers.{stage}.depthwise_conv.bias"] = (channels,)
        shapes[f"layers.{stage}.pointwise_conv.weight"] = (channels, channels, 1, 1)
        shapes[f"layers.{stage}.pointwise_conv.bias"] = (channels,)
    return shapes | _linear("linear", config.hidden_size, channels * config.subsampled_mel_bins())


def _conformer_layer(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    width, inner = config.hidden_size, config.intermediate_size
    square, per_head = (width, width), (config.num_heads, config.head_size)
    shapes: dict[str, tuple[int, ...]] = {
        "feed_forward1.linear1.weight": (inner, width),
        "feed_forward1.linear2.weight": (width, inner),
        "self_attn.bias_u": per_head,
        "self_attn.bias_v": per_head,
        "self_attn.q_proj.weight": square,
        "self_attn.k_proj.weight": square,
        "self_attn.v_proj.weight": square,
        "self_attn.o_proj.weight": square,
        "self_attn.relative_k_proj.weight": square,
        "conv.pointwise_conv1.weight": (2 * width, width, 1),
        "conv.depthwise_conv.weight": (width, 1, config.conv_kernel_size),
        "conv.norm.weight": (width,),
        "conv.norm.bias": (width,),
        "conv.pointwise_conv2.weight": (width, width, 1),
        "feed_forward2.linear1.weight": (inner, width),
        "feed_forward2.linear2.weight": (width, inner),
    }
    for norm in ("feed_forward1", "self_att", "conv", "feed_forward2", "out"):
        shapes |= {f"norm_{norm}.weight": (width,), f"norm_{norm}.bias": (width,)}
    return shapes


def _linear(name: str, outputs: int, inputs: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}
