"""Fetching, offline, from caches laid out as huggingface_hub lays them out."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nemostream.checkpoints import Checkpoint, hub, load_checkpoint, save_huggingface
from nemostream.errors import BackendError, HubError

COMMIT = "0123456789abcdef0123456789abcdef01234567"
MODEL = "some-org/tiny.model"


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


def add_to_cache(
    cache: Path, files: dict[str, bytes], model: str = MODEL, large: str = ".safetensors"
) -> Path:
    """Lay out a snapshot; blobs are named by SHA-256 for large files, by git's blob id for others."""
    root = cache / f"models--{model.replace('/', '--')}"
    snapshot = root / "snapshots" / COMMIT
    for folder in (root / "blobs", root / "refs", snapshot):
        folder.mkdir(parents=True, exist_ok=True)
    (root / "refs" / "main").write_text(COMMIT)
    for name, content in files.items():
        if name.endswith((large, ".nemo")):
            label = hashlib.sha256(content).hexdigest()
        else:
            label = hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()
        (root / "blobs" / label).write_bytes(content)
        (snapshot / name).symlink_to(Path("../../blobs") / label)
    return snapshot


FILES = {"config.json": b'{"a": 1}', "model.safetensors": b"weights" * 1000}


def test_a_sound_snapshot(tmp_path: Path) -> None:
    snapshot = add_to_cache(tmp_path, FILES)
    known = {"model.safetensors": hashlib.sha256(FILES["model.safetensors"]).hexdigest().upper()}
    assert hub.fetch(f"{MODEL}@{COMMIT}", cache_dir=tmp_path) == snapshot
    assert hub.fetch(MODEL, COMMIT, known, ["*.safetensors"], cache_dir=tmp_path) == snapshot


@pytest.mark.parametrize("name", list(FILES))
def test_a_tampered_blob(name: str, tmp_path: Path) -> None:
    snapshot = add_to_cache(tmp_path, FILES)
    blob = (snapshot / name).resolve()
    blob.write_bytes(blob.read_bytes()[:-1] + b"X")
    with pytest.raises(
        HubError, match=rf"{name} has .* was damaged or altered; delete {blob} and fetch it again"
    ):
        hub.fetch(MODEL, COMMIT, cache_dir=tmp_path)


def test_a_hash_that_does_not_match(tmp_path: Path) -> None:
    add_to_cache(tmp_path, FILES)
    with pytest.raises(HubError, match=r"config\.json has SHA-256 .* where 000000000000\.\.\. was expected"):
        hub.fetch(MODEL, COMMIT, {"config.json": "0" * 64}, cache_dir=tmp_path)


def test_a_hash_of_a_file_that_is_not_there(tmp_path: Path) -> None:
    add_to_cache(tmp_path, FILES)
    with pytest.raises(
        HubError, match=r"lacks tokenizer\.json, for which a SHA-256 was given; check the revision"
    ):
        hub.fetch(MODEL, COMMIT, {"tokenizer.json": "0" * 64}, cache_dir=tmp_path)


def test_a_file_whose_hash_nobody_knows(tmp_path: Path) -> None:
    snapshot = add_to_cache(tmp_path, FILES)
    (snapshot / "notes.txt").write_text("hello")
    with pytest.warns(UserWarning, match=r"notes\.txt should be, so it was not checked; give sha256"):
        hub.fetch(MODEL, COMMIT, cache_dir=tmp_path)


def test_no_file_that_matches(tmp_path: Path) -> None:
    add_to_cache(tmp_path, FILES)
    with pytest.raises(HubError, match=r"has no file that matches \*\.nemo"):
        hub.fetch(MODEL, COMMIT, allow_patterns=["*.nemo"], cache_dir=tmp_path)


@pytest.mark.parametrize("model", [*hub.PINNED, MODEL])
def test_no_revision(model: str, tmp_path: Path) -> None:
    with pytest.raises(
        HubError, match=rf"No revision of {model} is pinned.*name a commit as {model}@<commit>"
    ):
        hub.fetch(model, cache_dir=tmp_path)


def test_a_pinned_revision_and_its_hashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = add_to_cache(tmp_path, FILES)
    pin = hub.Pin(COMMIT, {"config.json": hashlib.sha256(FILES["config.json"]).hexdigest()})
    monkeypatch.setitem(hub.PINNED, MODEL, pin)
    assert hub.fetch(MODEL, cache_dir=tmp_path) == snapshot
    monkeypatch.setitem(hub.PINNED, MODEL, hub.Pin(COMMIT, {"config.json": "f" * 64}))
    with pytest.raises(HubError, match=r"config\.json has SHA-256"):
        hub.fetch(MODEL, cache_dir=tmp_path)


def test_a_branch_warns(tmp_path: Path) -> None:
    snapshot = add_to_cache(tmp_path, FILES)
    with pytest.warns(UserWarning, match="@main is a branch or tag, which can change; name a commit"):
        assert hub.fetch(MODEL, "main", cache_dir=tmp_path) == snapshot


def test_offline_without_the_model(tmp_path: Path) -> None:
    with pytest.raises(
        HubError, match=r"not in the local cache.*Connect once and unset HF_HUB_OFFLINE.*local folder"
    ):
        hub.fetch(MODEL, COMMIT, cache_dir=tmp_path)


def test_another_nemo_release_warns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = "nvidia/nemotron-3.5-asr-streaming-0.6b"
    add_to_cache(tmp_path, {"m.nemo": b"other"}, model)
    with pytest.warns(
        UserWarning, match=r"not the 210214ed\.\.\.5436a74 that published ports were made from"
    ):
        hub.fetch(model, COMMIT, cache_dir=tmp_path)
    digest = hashlib.sha256(b"other").hexdigest()
    monkeypatch.setitem(hub.PINNED, model, hub.Pin(nemo_sha256_ends=(digest[:8], digest[-7:])))
    hub.fetch(model, COMMIT, cache_dir=tmp_path)


@pytest.mark.parametrize(
    "model",
    [
        "../../etc",
        "org/..",
        "org/../x",
        "/etc/passwd",
        "org",
        "org/a/b",
        "org/na--me",
        "org/a\\b",
        "org/.x",
        "a b/c",
        "",
    ],
)
def test_names_that_are_not_models(model: str, tmp_path: Path) -> None:
    with pytest.raises(HubError, match=r"is not the name of a model; use org/name@revision"):
        hub.fetch(model, COMMIT, cache_dir=tmp_path)


@pytest.mark.parametrize("revision", ["../x", "a/../../b", "/x", "", "a b", "-x"])
def test_revisions_that_are_not_revisions(revision: str, tmp_path: Path) -> None:
    with pytest.raises(HubError, match=rf"is not a revision; use the 40 digits of a commit of {MODEL}"):
        hub.fetch(MODEL, revision, cache_dir=tmp_path)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ("GatedRepoError", "wants its terms accepted"),
        ("RepositoryNotFoundError", "is not on the hub"),
        ("RevisionNotFoundError", "is not on the hub"),
    ],
)
def test_what_the_hub_may_answer(
    error: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = pytest.importorskip("huggingface_hub")
    kind = getattr(library.errors, error)

    def refuse(*_: object, **__: object) -> None:
        raise kind.__new__(kind)

    monkeypatch.setattr(library, "snapshot_download", refuse)
    with pytest.raises(HubError, match=message):
        hub.fetch(MODEL, COMMIT, cache_dir=tmp_path)


def test_without_huggingface_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(BackendError, match=r"huggingface_hub package; run: pip install 'nemostream\[hub\]'"):
        hub.fetch(MODEL, COMMIT, cache_dir=tmp_path)


def cache_is(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pytest.importorskip("huggingface_hub.constants"), "HF_HUB_CACHE", str(path))


def test_load_a_folder_from_the_hub(
    checkpoint: Checkpoint, same: Callable[..., bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_huggingface(checkpoint, tmp_path / "folder")
    content = {path.name: path.read_bytes() for path in (tmp_path / "folder").iterdir()}
    add_to_cache(tmp_path / "cache", content)
    cache_is(tmp_path / "cache", monkeypatch)
    assert same(load_checkpoint(f"{MODEL}@{COMMIT}"), checkpoint)
    assert same(load_checkpoint(MODEL, revision=COMMIT), checkpoint)


def test_load_a_nemo_from_the_hub(
    checkpoint: Checkpoint,
    same: Callable[..., bool],
    nemo_members: Callable[..., dict[str, bytes]],
    tar: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    archive = tar(tmp_path / "m.nemo", nemo_members(checkpoint)).read_bytes()
    add_to_cache(tmp_path / "cache", {"m.nemo": archive, "README.md": b"x", "bias.json": b"{}"})
    cache_is(tmp_path / "cache", monkeypatch)
    assert same(load_checkpoint(f"{MODEL}@{COMMIT}"), checkpoint)
