"""``nemostream models``: the models that are known by name, and which of them are on this machine."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nemostream.config import FRAME_MS


@dataclass(frozen=True)
class KnownModel:
    """A published model.

    Attributes:
        name: hub id.
        licence: of its weights, from its model card.
        languages: in words.
        att_contexts: trained (left, right) contexts, the default first.
        about: one sentence.
    """

    name: str
    licence: str
    languages: str
    att_contexts: tuple[tuple[int, int], ...]
    about: str


PUBLISHED = (
    KnownModel(
        "nvidia/nemotron-3.5-asr-streaming-0.6b",
        "OpenMDW-1.1",
        "40 locales, or auto",
        ((56, 3), (56, 0), (56, 6), (56, 13)),
        "638 M parameters, punctuation and capitals, names the language it heard",
    ),
    KnownModel(
        "nvidia/nemotron-speech-streaming-en-0.6b",
        "NVIDIA Open Model License",
        "English",
        ((70, 13), (70, 6), (70, 1), (70, 0)),
        "618 M parameters, punctuation and capitals",
    ),
)


def add_parser(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], common: argparse.ArgumentParser
) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "models",
        help="list the models that are known by name",
        description="List the models that are known by name; any other works by its path or hub id.",
        parents=[common],
    )
    parser.set_defaults(run=run, parser=parser)


def run(arguments: argparse.Namespace) -> int:
    """Print a paragraph for every model."""
    from nemostream.checkpoints.hub import PINNED

    _print_embedded()
    for model in PUBLISHED:
        pin = PINNED.get(model.name)
        revision = pin.revision if pin else None
        _print(
            model.name,
            about=model.about,
            licence=model.licence,
            languages=model.languages,
            latency=describe_contexts(model.att_contexts),
            revision=revision or "not pinned; give one as NAME@COMMIT",
            here=", ".join(cached_revisions(model.name)) or "not downloaded",
        )
    return 0


def _print_embedded() -> None:
    from nemostream.checkpoints.bundle import MANIFEST, read_manifest
    from nemostream.loading import EMBEDDED_MODEL, embedded_bundle

    folder = embedded_bundle()
    if not (folder / MANIFEST).is_file():
        _print(EMBEDDED_MODEL, here="missing from this installation; install nemostream again")
        return
    config = read_manifest(folder, verify=False).config
    _print(
        EMBEDDED_MODEL,
        about="embedded in the package and small: works offline, for trying things out",
        licence="Apache-2.0",
        languages=", ".join(sorted(config.prompts)) or "English",
        latency=describe_contexts(config.att_context_sizes),
        here=str(folder),
    )


def describe_contexts(contexts: Sequence[tuple[int, int]]) -> str:
    """Return such as ``320 ms [56, 3] (default), 80 ms [56, 0]``."""
    described = [f"{(right + 1) * FRAME_MS} ms [{left}, {right}]" for left, right in contexts]
    return ", ".join([described[0] + " (default)", *described[1:]])


def cached_revisions(model_id: str) -> list[str]:
    """Return the commits of a model that lie in huggingface_hub's cache, without asking that package."""
    home = Path(
        os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    )
    cache = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE") or home / "hub"
    snapshots = Path(cache).expanduser() / ("models--" + model_id.replace("/", "--")) / "snapshots"
    return sorted(path.name for path in snapshots.iterdir()) if snapshots.is_dir() else []


def _print(name: str, **facts: str) -> None:
    print(name)
    for key, value in facts.items():
        print(f"  {key:10} {value}")
