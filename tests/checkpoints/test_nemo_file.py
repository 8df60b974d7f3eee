"""``.nemo`` archives: sound ones, unsafe ones, damaged ones."""

from __future__ import annotations

import contextlib
import io
import pickle
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from nemostream.checkpoints import Checkpoint, load_nemo
from nemostream.errors import BackendError, CheckpointError, ConfigError

Members = Callable[[Checkpoint], dict[str, bytes]]
Tar = Callable[..., Path]
CONFIG, WEIGHTS = "./model_config.yaml", "./model_weights.ckpt"


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_archives_plain_and_gzipped(
    mode: str,
    checkpoint: Checkpoint,
    nemo_members: Members,
    tar: Tar,
    same: Callable[..., bool],
    tmp_path: Path,
) -> None:
    loaded = load_nemo(tar(tmp_path / "a.nemo", nemo_members(checkpoint), mode))
    assert same(loaded, checkpoint)
    assert loaded.format == "nemo"
    assert loaded.source.endswith("a.nemo")


@pytest.mark.parametrize("model", ["multi", "en"])
def test_golden_file_equals_its_huggingface_twin(model: str, shared_dir: Path) -> None:
    loaded = load_nemo(shared_dir / "golden" / f"{model}.nemo")
    theirs = pytest.importorskip("safetensors.numpy").load_file(
        shared_dir / "golden" / f"{model}_hf" / "model.safetensors"
    )
    assert loaded.tensors.keys() == theirs.keys()
    assert all(np.array_equal(loaded.tensors[name], theirs[name]) for name in theirs)
    assert loaded.tokenizer.language_tags[1] == "en-US"
    assert loaded.config.has_prompt == (model == "multi")


@pytest.mark.parametrize(("stored", "expected"), [("float16", "float16"), ("bfloat16", "float32")])
def test_half_precision_weights(
    stored: str, expected: str, checkpoint: Checkpoint, nemo_members: Members, tar: Tar, tmp_path: Path
) -> None:
    torch = pytest.importorskip("torch")
    members = nemo_members(checkpoint)
    state = torch.load(io.BytesIO(members[WEIGHTS]), weights_only=True)
    stream = io.BytesIO()
    torch.save({name: tensor.to(getattr(torch, stored)) for name, tensor in state.items()}, stream)
    loaded = load_nemo(tar(tmp_path / "a.nemo", members | {WEIGHTS: stream.getvalue()}))
    assert {str(array.dtype) for array in loaded.tensors.values()} == {expected}


def test_unquoted_no_is_norwegian_and_a_piece(
    make_checkpoint: Callable[..., Checkpoint], nemo_members: Members, tar: Tar, tmp_path: Path
) -> None:
    checkpoint = make_checkpoint()
    members = nemo_members(checkpoint)
    text = members[CONFIG].decode().replace("'no'", "no").replace("'on'", "on")
    assert "\n    no: 27" in text
    loaded = load_nemo(tar(tmp_path / "a.nemo", members | {CONFIG: text.encode()}))
    assert loaded.config.prompt_id("no") == 27
    assert loaded.tokenizer == checkpoint.tokenizer


def test_sentencepiece_model_or_the_vocabulary_without_that_package(
    shared_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sentencepiece")
    path = shared_dir / "golden" / "multi.nemo"
    with_package = load_nemo(path).tokenizer
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    assert load_nemo(path).tokenizer == with_package


def test_no_sentencepiece_and_no_vocabulary(
    checkpoint: Checkpoint, nemo_members: Members, tar: Tar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = nemo_members(checkpoint)
    config = members[CONFIG].decode().replace("vocabulary:", "other:")
    path = tar(tmp_path / "a.nemo", members | {CONFIG: config.encode(), "./x_tokenizer.model": b"x"})
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(BackendError, match=r"sentencepiece package; run: pip install"):
        load_nemo(path)


@pytest.mark.parametrize(("module", "package"), [("yaml", "yaml"), ("torch", "torch")])
def test_missing_packages_name_the_extra(
    module: str,
    package: str,
    checkpoint: Checkpoint,
    nemo_members: Members,
    tar: Tar,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tar(tmp_path / "a.nemo", nemo_members(checkpoint))
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(BackendError, match=rf"{package} package; run: pip install 'nemostream\[torch\]'"):
        load_nemo(path)


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "a/../../evil", "..\\evil", "C:\\evil", "C:/evil"])
def test_paths_that_leave_the_archive(
    name: str, checkpoint: Checkpoint, nemo_members: Members, tar: Tar, tmp_path: Path
) -> None:
    path = tar(tmp_path / "a.nemo", nemo_members(checkpoint) | {name: b"x"})
    with pytest.raises(CheckpointError, match=r"evil', a path that leaves the archive; do not trust it"):
        load_nemo(path)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_links_and_devices(kind: bytes, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.nemo", "w") as archive:
        info = tarfile.TarInfo("model_config.yaml")
        info.type, info.linkname = kind, "/etc/passwd"
        archive.addfile(info)
    with pytest.raises(CheckpointError, match=r"'model_config.yaml', a link or device.*do not trust"):
        load_nemo(tmp_path / "a.nemo")


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_absurd_sizes(mode: str, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.nemo", mode) as archive:  # type: ignore[call-overload]
        info = tarfile.TarInfo("model_weights.ckpt")
        info.size = 1 << 40
        archive.fileobj.write(info.tobuf())
        archive.offset += 512
    with pytest.raises(
        CheckpointError, match=r"'model_weights.ckpt' of 1099511627776 bytes.*fetch the file again"
    ):
        load_nemo(tmp_path / "a.nemo")


def test_weights_far_larger_than_the_configuration(
    checkpoint: Checkpoint, nemo_members: Members, tar: Tar, tmp_path: Path
) -> None:
    path = tar(tmp_path / "a.nemo", nemo_members(checkpoint) | {WEIGHTS: bytes(80 << 20)}, "w:gz")
    with pytest.raises(CheckpointError, match=r"bytes of weights; its configuration needs about"):
        load_nemo(path)


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS])
def test_missing_members(
    name: str, checkpoint: Checkpoint, nemo_members: Members, tar: Tar, tmp_path: Path
) -> None:
    members = nemo_members(checkpoint)
    del members[name]
    with pytest.raises(CheckpointError, match=rf"has no {name.removeprefix('./')} \(it holds model_.*fetch"):
        load_nemo(tar(tmp_path / "a.nemo", members))


def test_a_member_twice(checkpoint: Checkpoint, nemo_members: Members, tar: Tar, tmp_path: Path) -> None:
    path = tar(tmp_path / "a.nemo", nemo_members(checkpoint) | {"model_config.yaml": b"x: 1"})
    with pytest.raises(CheckpointError, match=r"'model_config.yaml' twice"):
        load_nemo(path)


@pytest.mark.parametrize("mode", ["w", "w:gz"])
@pytest.mark.parametrize("part", [0.01, 0.3, 0.9, 0.98])
def test_cut_short(
    mode: str, part: float, checkpoint: Checkpoint, nemo_members: Members, tar: Tar, tmp_path: Path
) -> None:
    path = tar(tmp_path / "a.nemo", nemo_members(checkpoint), mode)
    content = path.read_bytes()
    weights_end = len(content) - 10_240 if mode == "w" else len(content)
    path.write_bytes(content[: int(part * weights_end)])
    with pytest.raises(CheckpointError, match=r"a\.nemo .*fetch the file again"):
        load_nemo(path)


@pytest.mark.parametrize("content", [b"", b"\xff\xd8\xff\xe0" + b"JFIF" * 300, b"\x1f\x8b\x08" + b"no" * 99])
def test_another_kind_of_file(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "photo.nemo"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"photo\.nemo is damaged or not a \.nemo file .*was expected"):
        load_nemo(path)


class _Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (Path.touch, (Path(_Bomb.target),))  # type: ignore[return-value]

    target = ""


def test_a_pickle_that_would_run_code(
    checkpoint: Checkpoint, nemo_members: Members, tar: Tar, tmp_path: Path
) -> None:
    torch = pytest.importorskip("torch")
    _Bomb.target = str(tmp_path / "boom")
    stream = io.BytesIO()
    torch.save({"w": _Bomb()}, stream)
    for content in (stream.getvalue(), pickle.dumps(_Bomb(), protocol=2), b"garbage"):
        path = tar(tmp_path / "a.nemo", nemo_members(checkpoint) | {WEIGHTS: content})
        with pytest.raises(
            CheckpointError, match=r"model_weights.ckpt that is damaged, or holds more than tensors"
        ):
            load_nemo(path)
    assert not (tmp_path / "boom").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: [", "not valid YAML"),
        (b"- 1", "without sections"),
        (b"x: !!python/object/apply:os.system [true]", "not valid YAML"),
        (b"\xff\xfe\x00", "not valid YAML"),
    ],
)
def test_bad_yaml(
    content: bytes, message: str, checkpoint: Checkpoint, nemo_members: Members, tar: Tar, tmp_path: Path
) -> None:
    path = tar(tmp_path / "a.nemo", nemo_members(checkpoint) | {CONFIG: content})
    with pytest.raises(CheckpointError, match=rf"model_config.yaml .*{message}"):
        load_nemo(path)


@pytest.mark.parametrize("value", [None, [], "text"])
def test_any_setting_lost_or_altered_is_one_clear_error(
    value: object,
    make_checkpoint: Callable[..., Checkpoint],
    nemo_members: Members,
    tar: Tar,
    tmp_path: Path,
) -> None:
    yaml = pytest.importorskip("yaml")
    members = nemo_members(make_checkpoint())
    tree = yaml.safe_load(members[CONFIG])
    for section, settings in tree.items():
        for key in settings:
            changed = tree | {section: {k: v for k, v in settings.items() if k != key or value is not None}}
            if value is not None:
                changed[section][key] = value
            altered = members | {CONFIG: yaml.safe_dump(changed).encode()}
            with contextlib.suppress(CheckpointError):  # some have a default; no other class may come out
                load_nemo(tar(tmp_path / "a.nemo", altered))
    path = tar(tmp_path / "a.nemo", members | {CONFIG: members[CONFIG].replace(b"d_model", b"width")})
    with pytest.raises(CheckpointError, match=r"a\.nemo .*'d_model'.*fetch"):
        load_nemo(path)


def test_another_family(checkpoint: Checkpoint, nemo_members: Members, tar: Tar, tmp_path: Path) -> None:
    members = nemo_members(checkpoint)
    config = members[CONFIG].replace(b"use_bias: false", b"use_bias: true")
    with pytest.raises(ConfigError, match="use_bias = True"):
        load_nemo(tar(tmp_path / "a.nemo", members | {CONFIG: config}))


@pytest.mark.parametrize("entry", ["text", 3])
def test_weights_that_are_not_tensors(
    entry: object, checkpoint: Checkpoint, nemo_members: Members, tar: Tar, tmp_path: Path
) -> None:
    torch = pytest.importorskip("torch")
    for state, message in (({"w": entry}, "'w' among its weights"), ([1], "no table of tensors")):
        stream = io.BytesIO()
        torch.save(state, stream)
        path = tar(tmp_path / "a.nemo", nemo_members(checkpoint) | {WEIGHTS: stream.getvalue()})
        with pytest.raises(CheckpointError, match=message):
            load_nemo(path)
