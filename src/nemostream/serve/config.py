"""`ServeConfig`: defaults < file < environment < flags."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, get_type_hints

from nemostream.errors import ConfigError

PREFIX = "NEMOSTREAM_SERVE_"
_LEAST_QUEUE = 2.5  # twice the longest chunk, 1120 ms, and what the resampler keeps
LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """Everything that can be set; a file names the fields, the environment ``NEMOSTREAM_SERVE_`` and the
    field.

    Attributes:
        model: what `nemostream.load` takes.
        backend: runtime; None: what fits the model.
        precision, decoder: of the backend mlx, see `nemostream.load`.
        threads: CPU threads inside the model's operators.
        workers: lanes, each a thread that steps calls of its own, on ONNX Runtime; None: one a core, or a
            single one if ``threads`` is set.
        latency: of calls that ask for none, in milliseconds; None is the model's default.
        language: of calls that ask for none; None is the model's default.
        vad: silero-vad says where a pause is, instead of the level of the sound.
        host: address to listen on; other than loopback only with API keys, or ``open`` set.
        port: 0 takes a free one.
        open: allow everybody who can reach the port, without keys.
        slots: calls at the same time; 0 measures at start what the machine holds.
        max_slots: the most that measuring may give.
        max_batch: calls in one encoder step.
        gather_ms: how long a chunk may wait for others to share its step.
        api_keys: of which a client must give one; empty: none is needed.
        api_keys_file: with a key a line, instead.
        origins: other web sites whose pages may use this server, such as https://example.org.
        max_upload_mb: size of a file.
        max_message_kb: size of one WebSocket message.
        queue_seconds: audio of one call that may wait; a client that sends faster is slowed down.
        idle_seconds: a conversation without any message for so long is closed.
        resume_seconds: how long a conversation that lost its connection can be taken up again.
        connections_per_minute: of one key or address; 0: no limit.
        drain_seconds: at shutdown, how long calls may go on.
        wyoming_port: also serve the Wyoming protocol on this port; 0: do not.
        log_level: debug, info, warning or error.
    """

    model: str = "tiny"
    backend: str | None = None
    precision: str | None = None
    decoder: str | None = None
    threads: int | None = None
    workers: int | None = None
    latency: int | None = None
    language: str | None = None
    vad: bool = False
    host: str = "127.0.0.1"
    port: int = 8000
    open: bool = False
    slots: int = 0
    max_slots: int = 512
    max_batch: int = 64
    gather_ms: int = 20
    api_keys: tuple[str, ...] = ()
    api_keys_file: str | None = None
    origins: tuple[str, ...] = ()
    max_upload_mb: int = 200
    max_message_kb: int = 1024
    queue_seconds: float = 10.0
    idle_seconds: float = 60.0
    resume_seconds: float = 30.0
    connections_per_minute: int = 600
    drain_seconds: float = 30.0
    wyoming_port: int = 0
    log_level: str = "info"

    def checked(self) -> ServeConfig:
        """Return it with the key file read.

        Raises:
            ConfigError: if a value makes no sense, or everybody could use the server without meaning it.
        """
        config = self
        if self.api_keys_file is not None:
            try:
                text = Path(self.api_keys_file).read_text(encoding="utf-8-sig")
            except OSError as error:
                raise ConfigError(
                    f"{self.api_keys_file}: the key file can't be read ({error.strerror})."
                ) from error
            except UnicodeDecodeError:
                raise ConfigError(f"{self.api_keys_file} is not text; a key a line was expected.") from None
            lines = [line.strip() for line in text.splitlines() if line.strip()]
            if not lines:
                raise ConfigError(f"{self.api_keys_file} has no key; one a line was expected.")
            config = replace(config, api_keys=(*self.api_keys, *lines), api_keys_file=None)
        for number, key in enumerate(config.api_keys, 1):  # words of a comment would be keys, easy to guess
            if not key or any(character.isspace() for character in key):
                raise ConfigError(f"API key {number} is empty or has a space in it; keys have none.")
        if config.host not in LOOPBACK and not config.api_keys and not config.open:
            raise ConfigError(
                f"Listening on {config.host} would let everybody on the network use this server; set "
                "api_keys, "
                "or open = true if that is meant."
            )
        for name in (
            "max_slots",
            "max_batch",
            "max_upload_mb",
            "max_message_kb",
            "idle_seconds",
        ):
            if not getattr(config, name) > 0:  # NaN is not
                raise ConfigError(f"{name} is {getattr(config, name)}; a positive number was expected.")
        for name in (
            "slots",
            "gather_ms",
            "resume_seconds",
            "connections_per_minute",
            "drain_seconds",
        ):
            if not getattr(config, name) >= 0:
                raise ConfigError(f"{name} is {getattr(config, name)}; 0 or more was expected.")
        for name in ("port", "wyoming_port"):
            if not 0 <= getattr(config, name) <= 65_535:
                raise ConfigError(f"{name} is {getattr(config, name)}; 0 to 65535 was expected.")
        if config.port == config.wyoming_port != 0:
            raise ConfigError(f"port and wyoming_port are both {config.port}; two numbers were expected.")
        if not config.queue_seconds >= _LEAST_QUEUE:
            raise ConfigError(
                f"queue_seconds is {config.queue_seconds}; at least {_LEAST_QUEUE} was expected, so that "
                "a whole chunk fits."
            )
        if config.log_level not in ("debug", "info", "warning", "error"):
            raise ConfigError(
                f"log_level is {config.log_level!r}; debug, info, warning or error was expected."
            )
        return config


def read_config(
    file: Path | None, environment: Mapping[str, str] = os.environ, flags: Mapping[str, Any] | None = None
) -> ServeConfig:
    """Put the settings together; what comes later wins: defaults, file, environment, flags.

    Args:
        file: TOML with the fields' names at its top level.
        environment: variables, of which those that begin with `PREFIX` count.
        flags: from a command line; None stands for what was not given.

    Raises:
        ConfigError: on an unknown key, or a value of the wrong type.
    """
    types = get_type_hints(ServeConfig)
    values: dict[str, Any] = {}
    if file is not None:
        try:
            given = tomllib.loads(file.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"{file}: the configuration can't be read ({error.strerror}).") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file} is not TOML: {error}.") from error
        for key, value in given.items():
            values[key] = _typed(key, value, types, str(file))
    for name, text in environment.items():
        if name.startswith(PREFIX):
            key = name.removeprefix(PREFIX).lower()
            _check_known(key, types, name)
            values[key] = _parsed(text, types[key], name)
    for key, value in (flags or {}).items():
        if value is not None:
            values[key] = tuple(value) if isinstance(value, list) else value
    return ServeConfig(**values).checked()


def _check_known(key: str, types: Mapping[str, Any], source: str) -> None:
    if key not in types:
        known = ", ".join(field.name for field in fields(ServeConfig))
        raise ConfigError(f"{source}: there is no setting {key!r}; the settings are: {known}.")


def _typed(key: str, value: object, types: Mapping[str, Any], source: str) -> object:
    _check_known(key, types, source)
    kind = types[key]
    if kind == tuple[str, ...] and isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(value)
    if kind is float and type(value) is int:
        return float(value)
    if type(value) not in (kind, *getattr(kind, "__args__", ())) or kind == tuple[str, ...]:
        raise ConfigError(f"{source}: {key} is {value!r}; a value of type {_name(kind)} was expected.")
    return value


def _parsed(text: str, kind: Any, source: str) -> object:
    """A value from the environment, which is text; lists are separated by commas."""
    if kind == tuple[str, ...]:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if kind is bool:
        if text.lower() not in ("true", "false", "1", "0"):
            raise ConfigError(f"{source} is {text!r}; true or false was expected.")
        return text.lower() in ("true", "1")
    for convert in (int, float):
        if kind is convert or convert in getattr(kind, "__args__", ()):
            try:
                return convert(text)
            except ValueError:
                raise ConfigError(f"{source} is {text!r}; a number was expected.") from None
    return text


def _name(kind: Any) -> str:
    if kind == tuple[str, ...]:
        return "list of strings"
    return str(getattr(kind, "__name__", kind)).replace("int | None", "int").replace("str | None", "str")
