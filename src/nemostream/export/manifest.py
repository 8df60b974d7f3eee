"""Write the ``manifest.json`` of a bundle; `nemostream.checkpoints.bundle` reads it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import nemostream
from nemostream.checkpoints.bundle import MANIFEST, FileRecord, Manifest
from nemostream.checkpoints.files import write_json
from nemostream.config import ModelConfig
from nemostream.runtimes.protocol import Framing


def write_manifest(
    folder: Path,
    *,
    config: ModelConfig,
    runtime: str,
    framing: Framing,
    max_frames: int | None,
    weights: str,
    source: str,
    source_revision: str | None,
    files: Iterable[str],
    layout: str | None = None,
) -> Manifest:
    """Hash the files of a bundle and write its manifest, which should be the last file that is written.

    Args:
        folder: the bundle.
        config: see `Manifest`; so are ``runtime``, ``framing``, ``max_frames``, ``weights``, ``source``,
            ``source_revision`` and ``layout``.
        files: paths inside the folder of all files that belong to the bundle.

    Raises:
        CheckpointError: if one of the files cannot be read.
    """
    manifest = Manifest(
        config=config,
        runtime=runtime,
        framing=framing,
        max_frames=max_frames,
        weights=weights,
        source=source,
        source_revision=source_revision,
        nemostream=nemostream.__version__,
        files={name: FileRecord.of(folder / name) for name in sorted(files)},
        layout=layout,
    )
    write_json(folder / MANIFEST, manifest.to_dict())
    return manifest
