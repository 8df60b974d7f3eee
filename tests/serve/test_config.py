"""Settings: defaults < file < environment < flags; what is unknown or wrong is an error that names it."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("prometheus_client", reason="the extra `serve` is not installed")

from nemostream.cli.main import main
from nemostream.errors import ConfigError
from nemostream.serve.config import read_config


def test_the_later_wins(tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    file.write_text('port = 1\nslots = 2\nidle_seconds = 5\napi_keys = ["a", "b"]\n')
    environment = {"NEMOSTREAM_SERVE_SLOTS": "3", "NEMOSTREAM_SERVE_BACKEND": "onnx", "OTHER": "x"}
    config = read_config(file, environment, {"slots": 4, "port": None})
    assert (config.port, config.slots, config.backend, config.idle_seconds) == (1, 4, "onnx", 5.0)
    assert config.api_keys == ("a", "b")
    assert read_config(None, {"NEMOSTREAM_SERVE_OPEN": "true"}).open
    assert read_config(None, {"NEMOSTREAM_SERVE_API_KEYS": "a, b"}).api_keys == ("a", "b")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("prot = 1", "prot"),
        ('port = "1"', "port"),
        ("open = 1", "open"),
        ("api_keys = 5", "api_keys"),
        ("port = -1", "port"),
        ("log_level = 'loud'", "loud"),
        ("port", "TOML"),
        ('api_keys_file = "/none"', "/none"),
        ('api_keys = ["a", ""]', "API key 2"),
        ('api_keys = ["a b"]', "API key 1"),
        ("queue_seconds = nan", "queue_seconds"),
        ("idle_seconds = nan", "idle_seconds"),
        ("drain_seconds = nan", "drain_seconds"),
        ("port = 9000\nwyoming_port = 9000", "both 9000"),
    ],
)
def test_wrong_files(tmp_path: Path, text: str, part: str) -> None:
    file = tmp_path / "serve.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=part):
        read_config(file, {})


@pytest.mark.parametrize(
    "environment",
    [{"NEMOSTREAM_SERVE_PROT": "1"}, {"NEMOSTREAM_SERVE_PORT": "x"}, {"NEMOSTREAM_SERVE_OPEN": "perhaps"}],
)
def test_wrong_environment(environment: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=next(iter(environment))):
        read_config(None, environment)


def test_a_key_file_has_a_key_a_line(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    given = {"NEMOSTREAM_SERVE_API_KEYS_FILE": str(file)}
    file.write_bytes(b"\xef\xbb\xbfone\r\n\n  two  \n")  # as editors of Windows write it
    assert read_config(None, given).api_keys == ("one", "two")
    file.write_text("# keys of my team\none\n")  # no words that are easy to guess
    with pytest.raises(ConfigError, match="API key 1"):
        read_config(None, given)
    file.write_bytes(b"\x82\xff")
    with pytest.raises(ConfigError, match="not text"):
        read_config(None, given)


def test_the_command_line_says_it_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--config", str(tmp_path / "none.toml")]) == 4
    assert main(["serve", "--host", "0.0.0.0"]) == 4
    assert main(["serve", "--replicas", "2"]) == 2
    errors = capsys.readouterr().err.strip().splitlines()
    assert len(errors) == 3
