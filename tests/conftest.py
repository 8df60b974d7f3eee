"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder with golden tensors and speech that lies beside the developers' checkouts.

    A clone has none, so what uses it is skipped there; under ``NEMOSTREAM_REQUIRE_SHARED`` (as in CI) its
    absence is a failure.
    """
    folder = Path(os.environ.get("NEMOSTREAM_SHARED", REPOSITORY.parent / "shared"))
    if not folder.is_dir():
        if os.environ.get("NEMOSTREAM_REQUIRE_SHARED"):
            pytest.fail(f"{folder} is missing")
        pytest.skip(
            "needs the developers' shared folder with NeMo's golden tensors; a clone does not have it"
        )
    return folder


@pytest.fixture(scope="session")
def golden(shared_dir: Path) -> Path:
    """NeMo's golden tensors and the small checkpoints that they were computed with."""
    return shared_dir / "golden"
