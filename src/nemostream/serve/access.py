"""Who may use the server: API keys, origins of web pages, and how often."""

from __future__ import annotations

import ipaddress
import secrets
from urllib.parse import urlsplit

from limits import RateLimitItemPerMinute
from limits.storage import MemoryStorage
from limits.strategies import SlidingWindowCounterRateLimiter
from starlette.requests import HTTPConnection

from nemostream.errors import NemostreamError
from nemostream.serve.config import LOOPBACK, ServeConfig
from nemostream.serve.metrics import Metrics

_KEY_SUBPROTOCOL = "openai-insecure-api-key."  # how browsers, which can't set headers, give a key


class Denied(NemostreamError):  # noqa: N818 - an answer, not a fault
    """A request that may not be served; ``status`` is that of HTTP."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason = status, reason


class Access:
    """Checks every request before anything else is done for it."""

    def __init__(self, config: ServeConfig, metrics: Metrics) -> None:
        self._keys = [key.encode() for key in config.api_keys]
        self._origins = set(config.origins)
        self._only_local = config.host in LOOPBACK and not config.api_keys and not config.open
        self._names = {urlsplit(origin).hostname for origin in config.origins}
        self._metrics = metrics
        limit = config.connections_per_minute
        self._limit = RateLimitItemPerMinute(limit) if limit else None
        self._limiter = SlidingWindowCounterRateLimiter(MemoryStorage())

    def check(self, connection: HTTPConnection) -> None:
        """Let a request pass, or not.

        Raises:
            Denied: 401 without a valid key, 403 from a strange web page, 429 too often.
        """
        self._check_origin(connection)
        key = key_of(connection)
        caller = key if key is not None and self._is_valid(key) else None
        if caller is None:  # an invented key is no way round the limit, and guessing is limited too
            caller = connection.client.host if connection.client else "unknown"
        if self._limit is not None and not self._limiter.hit(self._limit, caller):
            self._deny(429, "rate", f"More than {self._limit.amount} connections a minute; wait a little.")
        if not connection.scope.get("key_follows"):
            self.check_key(connection)

    def check_key(self, connection: HTTPConnection, key: str | None = None) -> None:
        """Check the key of a request, or one that a message brought.

        Raises:
            Denied: without a valid key, if keys are needed.
        """
        if self._keys and not self._is_valid(key or key_of(connection)):
            self._deny(401, "key", "A valid API key is needed: send the header Authorization: Bearer KEY.")

    def _check_origin(self, connection: HTTPConnection) -> None:
        """A page of another site may not use a server that happens to listen on the reader's machine."""
        name = _hostname(connection.headers.get("host", ""))
        if self._only_local and _is_public(name) and name not in self._names:
            self._deny(403, "origin", f"{name} is not this machine; add its address to origins.")
        origin = connection.headers.get("origin")
        if origin is None or origin in self._origins:
            return
        host = origin.partition("://")[2]
        # a strange name may be made to lead here, and then its page has it as its own host
        named_here = not self._only_local or _hostname(host) in LOOPBACK
        if host != connection.headers.get("host") or not named_here:
            self._deny(403, "origin", f"Pages of {origin} may not use this server; add it to origins.")

    def _is_valid(self, given: str | None) -> bool:
        if given is None:
            return False
        # every key is compared, so that the time says nothing
        code = given.encode(errors="surrogatepass")  # JSON may hold half a character
        return any([secrets.compare_digest(code, key) for key in self._keys])  # noqa: C419

    def _deny(self, status: int, reason: str, message: str) -> None:
        self._metrics.refused.labels(reason).inc()
        raise Denied(status, reason, message)


def _hostname(host: str) -> str:
    """The name in a ``Host``, in lower case and without its port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return host


def _is_public(name: str) -> bool:
    """Whether a name can be made to lead here by somebody else: it is in the DNS.

    A page of that name then has this server as its own host, and a GET of it has no origin.
    """
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return "." in name and not name.endswith(".localhost")
    return False


def key_of(connection: HTTPConnection) -> str | None:
    """The API key that a request carries: a header, or a WebSocket subprotocol."""
    scheme, _, key = connection.headers.get("authorization", "").partition(" ")
    if scheme.lower() in ("bearer", "token") and key:
        return key.strip()
    offered: list[str] = connection.scope.get("subprotocols", [])
    for index, protocol in enumerate(offered):
        if protocol.startswith(_KEY_SUBPROTOCOL):
            return protocol.removeprefix(_KEY_SUBPROTOCOL)
        if protocol.lower() in ("token", "bearer") and index + 1 < len(offered):  # Deepgram's way
            return offered[index + 1]
    return None
