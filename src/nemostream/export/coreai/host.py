"""What a host needs beside the graphs: front-end constants, metadata, tokenizer, and the script for a Mac."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from nemostream.checkpoints.files import write_json
from nemostream.config import FRAME_MS, SUBSAMPLING_FACTOR, ModelConfig
from nemostream.features.mel import FFT_SIZE, WINDOW_SAMPLES, mel_filterbank
from nemostream.framing import UNIFORM_HISTORY
from nemostream.runtimes import coreai_graphs as graphs
from nemostream.runtimes.protocol import Framing
from nemostream.text.tokenizer import Tokenizer

METADATA, TOKENIZER = "metadata.json", "tokenizer.json"
MEL_WINDOW, MEL_FILTERBANK = "mel_window.f32", "mel_filterbank.f32"
BUILD_SCRIPT = "build_ios.sh"


def write_host_files(folder: Path, config: ModelConfig, tokenizer: Tokenizer, frames: int) -> list[str]:
    """Write metadata, pieces and front-end constants of the layout "sharded"; returns their names.

    ``mel_window.f32`` is the symmetric Hann window of 400 in the middle of 512 samples,
    ``mel_filterbank.f32`` the filters [F, 257], both little-endian; the features are
    log(filters @ |STFT|^2 + 2^-24) of the pre-emphasised signal, a frame every 160 samples.
    """
    place = graphs.FOLDERS["uniform"]
    window = np.zeros(FFT_SIZE, "<f4")
    start = (FFT_SIZE - WINDOW_SAMPLES) // 2
    window[start : start + WINDOW_SAMPLES] = np.hanning(WINDOW_SAMPLES)
    (folder / place).mkdir(parents=True, exist_ok=True)
    (folder / place / MEL_WINDOW).write_bytes(window.tobytes())
    (folder / place / MEL_FILTERBANK).write_bytes(mel_filterbank(config.num_mel_bins).astype("<f4").tobytes())
    write_json(folder / METADATA, host_metadata(config, tokenizer, frames))
    write_json(folder / TOKENIZER, {str(index): piece for index, piece in enumerate(tokenizer.pieces)})
    return [f"{place}/{MEL_WINDOW}", f"{place}/{MEL_FILTERBANK}", METADATA, TOKENIZER]


def host_metadata(config: ModelConfig, tokenizer: Tokenizer, frames: int) -> dict[str, object]:
    """Shapes and tables by the names that hosts of this layout read."""
    left, right = config.default_att_context
    chunk = SUBSAMPLING_FACTOR * frames
    return {
        "sample_rate": 16000,
        "mel_features": config.num_mel_bins,
        "preemphasis": config.preemphasis,
        "chunk_ms": FRAME_MS * frames,
        "chunk_mel_frames": chunk,
        "pre_encode_cache": UNIFORM_HISTORY,
        "total_mel_frames": UNIFORM_HISTORY + chunk,
        "encoder_frames": frames,
        "att_context_size": [left, right],
        "encoder_dim": config.hidden_size,
        "cache_channel_shape": [1, config.num_layers, left, config.hidden_size],
        "cache_time_shape": [1, config.num_layers, config.hidden_size, config.conv_kernel_size - 1],
        "decoder_hidden": config.predictor_hidden_size,
        "decoder_layers": config.predictor_layers,
        "vocab_size": config.vocab_size,
        "blank_idx": config.blank_id,
        "max_symbols_per_step": config.max_symbols,
        "prompt_dictionary": dict(config.prompts),
        "default_prompt_id": config.prompt_id(None) if config.has_prompt else None,
        "lang_tag_token_ids": sorted(tokenizer.language_tags),
    }


def write_build_script(folder: Path, framing: Framing, weights: str) -> list[str]:
    """Write the script that compiles the large graphs ahead of time for an iPhone; returns its name."""
    names = graphs.graph_names(framing, weights)
    large = [name for name in names if name.startswith(("stream_conformer", "encoder_shard"))]
    small = [name for name in names if name not in large]
    script = _SCRIPT.format(place=graphs.FOLDERS[framing], large=" ".join(large), small=" ".join(small))
    path = folder / BUILD_SCRIPT
    path.write_text(script, encoding="utf-8", newline="\n")
    path.chmod(0o755)
    return [BUILD_SCRIPT]


_SCRIPT = """\
#!/bin/sh
# Makes ios/: the large graphs compiled ahead of time for one chip, the small ones as they are. It needs a
# Mac with macOS 27, Xcode 27 and its Metal toolchain (xcodebuild -downloadComponent MetalToolchain).
# usage: ./build_ios.sh [ARCHITECTURE] [gpu|neural-engine]        h18p is the iPhone 17 Pro
set -eu
cd "$(dirname "$0")"
architecture=${{1:-h18p}}
unit=${{2:-gpu}}
mkdir -p ios
for graph in {large}; do
  xcrun coreai-build compile "{place}/$graph.aimodel" --output ios --platform iOS \\
    --min-deployment-version 27.0 --preferred-compute "$unit" --architecture "$architecture"
done
for graph in {small}; do
  rm -rf "ios/$graph.aimodel"
  cp -R "{place}/$graph.aimodel" ios/
done
"""
