"""What the small install may not import."""

from __future__ import annotations

import subprocess
import sys

import pytest

OPTIONAL = (
    "torch",
    "transformers",
    "onnx",
    "safetensors",
    "sentencepiece",
    "huggingface_hub",
    "av",
    "yaml",
    "jiwer",
)


@pytest.mark.parametrize(
    "code",
    [
        "import nemostream, nemostream.loading, nemostream.runtimes.onnx, nemostream.cli.main",
        "import nemostream; nemostream.load().stream().close()",
        "import nemostream.checkpoints, nemostream.audio, nemostream.text",
    ],
)
def test_no_optional_library_is_imported(code: str) -> None:
    check = f"{code}\nimport sys\nprint([name for name in {OPTIONAL} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=False)
    assert done.stdout == "[]\n", done.stderr


def test_public_names_exist() -> None:
    import nemostream

    assert all(getattr(nemostream, name) is not None for name in nemostream.__all__)
    with pytest.raises(AttributeError, match="nothing"):
        _ = nemostream.nothing
