"""`load_checkpoint`: one door for every kind of checkpoint."""

from __future__ import annotations

from pathlib import Path

from nemostream.checkpoints import huggingface, mlx_style
from nemostream.checkpoints.checkpoint import Checkpoint
from nemostream.checkpoints.hub import fetch, split_model_id
from nemostream.checkpoints.nemo import load_nemo
from nemostream.errors import CheckpointError

_FOLDER_FILES = ("*.json", "*.safetensors", "tokens.txt", "melfilters.f32", "decoder.onnx*", "joiner.onnx*")
_EXPECTED = (
    "a .nemo file, a Hugging Face folder (config.json), an MLX folder (encoder.safetensors) "
    "or a hub id org/name@revision"
)


def load_checkpoint(source: str | Path, *, revision: str | None = None) -> Checkpoint:
    """Read a checkpoint of any supported kind, told apart by what is there.

    Args:
        source: path of a ``.nemo`` file; of a folder with ``config.json`` (Hugging Face), with
            ``encoder.safetensors`` (MLX), or with a single ``.nemo``; or ``org/name[@revision]`` on the hub.
            A path that exists always wins.
        revision: the commit of a hub model, if it is not in ``source``.

    Raises:
        CheckpointError: if it is none of these, or incomplete, damaged or inconsistent; `HubError` for what
            concerns fetching.
        BackendError: if a package that the format needs is not installed.
    """
    path = Path(source).expanduser()
    exists = path.exists()
    if not exists and isinstance(source, str) and _looks_like_hub_id(source):
        return _load_from_hub(source, revision)
    if revision is not None:
        raise CheckpointError(f"A revision was given, but {source} is a local path; leave the revision out.")
    if not exists:
        raise CheckpointError(f"There is no file or folder {source}; {_EXPECTED} was expected.")
    if path.is_dir():
        return _load_folder(path)
    if path.suffix.lower() == ".nemo":
        return load_nemo(path)
    if path.suffix == ".safetensors":
        raise CheckpointError(
            f"{path} has weights without a configuration; give the folder {path.parent} instead."
        )
    raise CheckpointError(f"{path} is a file of another kind; {_EXPECTED} was expected.")


def _load_folder(folder: Path) -> Checkpoint:
    if (folder / mlx_style.ENCODER).exists():
        return mlx_style.load_mlx_style(folder)
    if (folder / huggingface.CONFIG).exists():
        return huggingface.load_huggingface(folder)
    archives = sorted(folder.glob("*.nemo"))
    if len(archives) == 1:
        return load_nemo(archives[0])
    if archives:
        names = ", ".join(path.name for path in archives)
        raise CheckpointError(f"{folder} holds several checkpoints ({names}); name one of them.")
    raise CheckpointError(f"{folder} holds no checkpoint that is known here; {_EXPECTED} was expected.")


def _looks_like_hub_id(source: str) -> bool:
    """Tell ``org/name`` from the path of something missing: two parts, no suffix, no such parent folder."""
    parts = source.partition("@")[0].split("/")
    if len(parts) != 2 or "\\" in source or source.startswith((".", "~", "/")):
        return False
    return not source.endswith((".nemo", ".safetensors", "/")) and not Path(parts[0]).is_dir()


def _load_from_hub(source: str, revision: str | None) -> Checkpoint:
    model_id, given = split_model_id(source)
    if given and revision and given != revision:
        raise CheckpointError(f"{source} names one revision and {revision} was given as well; give only one.")
    revision = given or revision
    folder = fetch(model_id, revision, allow_patterns=_FOLDER_FILES)
    if not (folder / huggingface.CONFIG).exists() and not (folder / mlx_style.ENCODER).exists():
        folder = fetch(model_id, revision, allow_patterns=("*.nemo",))
    return _load_folder(folder)
