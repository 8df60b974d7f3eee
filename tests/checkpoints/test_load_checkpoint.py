"""One door: what is there decides how it is read, and anything else is one clear sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nemostream.checkpoints import Checkpoint, load_checkpoint, save_huggingface, save_mlx_style
from nemostream.errors import CheckpointError, HubError

Members = Callable[[Checkpoint], dict[str, bytes]]


def test_every_kind(
    checkpoint: Checkpoint,
    same: Callable[..., bool],
    nemo_members: Members,
    tar: Callable[..., Path],
    tmp_path: Path,
) -> None:
    save_huggingface(checkpoint, tmp_path / "hf")
    save_mlx_style(checkpoint, tmp_path / "mlx", "float32")
    (tmp_path / "nemo").mkdir()
    archive = tar(tmp_path / "nemo" / "m.nemo", nemo_members(checkpoint))
    kinds = {"hf": "huggingface", "mlx": "mlx", "nemo": "nemo"}
    for folder, kind in kinds.items():
        loaded = load_checkpoint(tmp_path / folder)
        assert loaded.format == kind
        assert same(loaded, checkpoint)
    assert same(load_checkpoint(str(archive)), checkpoint)


@pytest.mark.parametrize("name", ["missing.nemo", "missing", "a/b/c", "x/missing.nemo"])
def test_missing(name: str, tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"There is no file or folder .*; a \.nemo file, .* was expected"
    ):
        load_checkpoint(tmp_path / name)
    with pytest.raises(CheckpointError, match="There is no file or folder"):
        load_checkpoint(str(tmp_path / name))


def test_missing_in_a_folder_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match="There is no file or folder models/tiny"):
        load_checkpoint("models/tiny")


def test_hub_id_without_revision() -> None:
    with pytest.raises(HubError, match="No revision of some-org/name is pinned"):
        load_checkpoint("some-org/name")


def test_two_revisions(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="give only one"):
        load_checkpoint("some-org/name@" + "a" * 40, revision="b" * 40)
    with pytest.raises(CheckpointError, match="is a local path; leave the revision out"):
        load_checkpoint(tmp_path, revision="b" * 40)


def test_unknown_folder(tmp_path: Path) -> None:
    (tmp_path / "readme.txt").write_text("hello")
    with pytest.raises(CheckpointError, match=r"holds no checkpoint that is known here; a \.nemo file"):
        load_checkpoint(tmp_path)


def test_several_archives(tmp_path: Path) -> None:
    for name in ("a.nemo", "b.nemo"):
        (tmp_path / name).touch()
    with pytest.raises(CheckpointError, match=r"several checkpoints \(a\.nemo, b\.nemo\); name one of them"):
        load_checkpoint(tmp_path)


def test_other_files(tmp_path: Path) -> None:
    for name, message in (("a.wav", "is a file of another kind"), ("m.safetensors", "give the folder")):
        (tmp_path / name).write_bytes(b"x")
        with pytest.raises(CheckpointError, match=message):
            load_checkpoint(tmp_path / name)


def test_cut_safetensors(checkpoint: Checkpoint, tmp_path: Path) -> None:
    save_huggingface(checkpoint, tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"model\.safetensors has \d+ bytes where its header promises"):
        load_checkpoint(tmp_path)
