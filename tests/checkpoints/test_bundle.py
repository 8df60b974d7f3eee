"""Manifests: what is written is read back, and no altered bundle passes."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nemostream.checkpoints.bundle import MANIFEST, FileRecord, Manifest, read_manifest
from nemostream.config import ModelConfig
from nemostream.errors import CheckpointError
from nemostream.export.manifest import write_manifest

FILES = {"encoder.onnx": b"graph", "encoder.onnx.data": b"weights", "tokens.txt": "▁a 0\n".encode()}

Alter = Callable[[dict[str, Any]], None]


@pytest.fixture
def bundle(tmp_path: Path, config: ModelConfig) -> Path:
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    written = write_manifest(
        tmp_path,
        config=config,
        runtime="onnx",
        framing="native",
        max_frames=112,
        weights="fp16",
        source="org/name",
        source_revision="0" * 40,
        files=FILES,
    )
    assert read_manifest(tmp_path) == written
    return tmp_path


def alter(bundle: Path, change: Alter) -> None:
    values = json.loads((bundle / MANIFEST).read_text(encoding="utf-8"))
    change(values)
    (bundle / MANIFEST).write_text(json.dumps(values), encoding="utf-8")


def test_a_manifest_is_readable_by_a_person_and_read_back(bundle: Path, config: ModelConfig) -> None:
    values = json.loads((bundle / MANIFEST).read_text(encoding="utf-8"))
    assert next(iter(values)) == "schema_version"
    assert values["schema_version"] == 1
    digest = hashlib.sha256(b"graph").hexdigest()
    assert values["files"]["encoder.onnx"] == {"sha256": digest, "bytes": 5}
    manifest = read_manifest(bundle)
    assert manifest.config == config
    assert manifest.files["encoder.onnx"] == FileRecord(digest, 5)
    assert Manifest.from_dict(manifest.to_dict()) == manifest


def test_keys_of_later_versions_of_the_same_schema_are_ignored(bundle: Path) -> None:
    alter(bundle, lambda values: values.update(news=1))
    assert read_manifest(bundle).weights == "fp16"


@pytest.mark.parametrize("name", FILES)
def test_an_altered_file_is_named(bundle: Path, name: str) -> None:
    (bundle / name).write_bytes(FILES[name][:-1] + b"?")
    with pytest.raises(
        CheckpointError, match=rf"{name} does not have the SHA-256.*download the bundle again"
    ):
        read_manifest(bundle)
    assert read_manifest(bundle, verify=False).runtime == "onnx"


@pytest.mark.parametrize("name", FILES)
def test_a_file_cut_short_is_named(bundle: Path, name: str) -> None:
    (bundle / name).write_bytes(FILES[name][:-1])
    with pytest.raises(CheckpointError, match=rf"{name} has \d bytes and should have \d.*cut short"):
        read_manifest(bundle)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(bundle: Path, name: str) -> None:
    (bundle / name).unlink()
    with pytest.raises(CheckpointError, match=rf"lacks {name}, .*convert the model or download"):
        read_manifest(bundle)


@pytest.mark.parametrize("name", ["old.onnx", "joint.onnx.data"])
def test_a_graph_that_is_not_listed_is_named(bundle: Path, name: str) -> None:
    (bundle / name).write_bytes(b"")
    with pytest.raises(CheckpointError, match=rf"{name} is not listed"):
        read_manifest(bundle)


def test_other_files_may_lie_beside(bundle: Path) -> None:
    (bundle / "README.md").write_bytes(b"")
    read_manifest(bundle)


@pytest.mark.parametrize(
    "name", ["../x", "/etc/passwd", "a/../../x", "", ".", "a//b", "..\\x", "c:x", "a\0b"]
)
def test_a_file_name_cannot_lead_out_of_the_folder(bundle: Path, name: str) -> None:
    alter(bundle, lambda values: values["files"].update({name: {"sha256": "0" * 64, "bytes": 1}}))
    with pytest.raises(CheckpointError, match="the name of a file inside the folder was expected"):
        read_manifest(bundle)


def test_a_newer_schema_asks_for_an_upgrade(bundle: Path) -> None:
    alter(bundle, lambda values: values.update(schema_version=2))
    with pytest.raises(
        CheckpointError, match="schema version 2, and this nemostream reads 1 at most; upgrade"
    ):
        read_manifest(bundle)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda values: values.pop("schema_version"), "no schema_version"),
        (lambda values: values.update(schema_version=True), "no schema_version"),
        (lambda values: values.pop("weights"), "lacks 'weights'"),
        (lambda values: values.update(weights=8), "8 stands where a string"),
        (lambda values: values.update(max_frames=0), "0 stands where a positive"),
        (lambda values: values.update(max_frames="112"), "'112' stands where a positive"),
        (lambda values: values.update(framing="other"), "framing 'other' is neither"),
        (lambda values: values.update(files=[]), "cannot be read"),
        (lambda values: values["files"].update(x={"sha256": "0" * 63, "bytes": 1}), "not a SHA-256"),
        (lambda values: values["files"].update(x={"sha256": "0" * 64, "bytes": -1}), "not a number of bytes"),
        (lambda values: values["files"].update(x={"sha256": "0" * 64}), "lacks 'bytes'"),
        (lambda values: values["config"].pop("num_layers"), "lacks 'num_layers'"),
        (lambda values: values["config"].update(num_layers=0), "num_layers is 0"),
        (lambda values: values["config"].update(att_context_sizes=3), "cannot be read"),
    ],
)
def test_a_manifest_that_makes_no_sense(bundle: Path, change: Alter, message: str) -> None:
    alter(bundle, change)
    with pytest.raises(CheckpointError, match=message):
        read_manifest(bundle)


def test_no_manifest_at_all(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no manifest\.json, so it is not a bundle"):
        read_manifest(tmp_path)
    (tmp_path / MANIFEST).write_text("[]")
    with pytest.raises(CheckpointError, match="not an object"):
        read_manifest(tmp_path)


def test_a_limit_may_be_absent(bundle: Path) -> None:
    alter(bundle, lambda values: values.update(max_frames=None, source_revision=None))
    manifest = read_manifest(bundle)
    assert manifest.max_frames is None
    assert manifest.source_revision is None


def test_reading_needs_no_torch(bundle: Path) -> None:
    code = (
        "import sys, pathlib; from nemostream.checkpoints.bundle import read_manifest; "
        "read_manifest(pathlib.Path(sys.argv[1])); "
        "assert not {'torch', 'onnx', 'onnxruntime'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(bundle)], check=True)
