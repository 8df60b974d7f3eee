"""The same application as Ray Serve replicas: one model each, WebSockets that stay where they began.

Ray's proxy sends a new conversation to the replica with the fewer ones of two, so that free slots fill
evenly, and starts and stops replicas by their number. A replica that has no slot refuses by itself, as a
single server does.
"""

from __future__ import annotations

import logging
import signal
import threading
from dataclasses import replace

from ray import serve

from nemostream.serve.app import create_app
from nemostream.serve.config import ServeConfig

_SPARE_REQUESTS = (
    32  # a replica that is full must still hear calls, to refuse them, and requests that need no slot
)
_BUSY_SHARE = 0.7  # of the slots of a replica: above it another one is started
_HEALTH_SECONDS = 5.0
NAME = "nemostream"


def application(config: ServeConfig, replicas: int, fewest: int = 1) -> serve.Application:
    """Return what `ray.serve.run` takes.

    Args:
        config: of every replica; its ``slots`` should be set, since Ray has to know them before a replica
        measures. replicas: the most.
        fewest: that always run.
    """
    slots = config.slots or config.max_slots

    @serve.deployment(
        name=NAME,
        max_ongoing_requests=slots + _SPARE_REQUESTS,
        autoscaling_config={
            "min_replicas": fewest,
            "initial_replicas": fewest,
            "max_replicas": replicas,
            "target_ongoing_requests": max(1, round(_BUSY_SHARE * slots)),
        },
        ray_actor_options={"num_cpus": (config.workers or 1) * (config.threads or 1)},
        graceful_shutdown_timeout_s=config.drain_seconds,
        health_check_period_s=_HEALTH_SECONDS,
    )
    @serve.ingress(lambda: create_app(config))
    class Replica:
        """One server; everything is in the application."""

    bound: serve.Application = Replica.bind()  # type: ignore[attr-defined]
    return bound


def run_replicas(config: ServeConfig, replicas: int) -> None:
    """Serve on this machine, or on the Ray cluster that it belongs to, until told to stop."""
    import ray

    logging.basicConfig(level=config.log_level.upper())
    ray.init(address=None, ignore_reinit_error=True, include_dashboard=False)
    serve.start(http_options={"host": config.host, "port": config.port})
    inner = replace(config, host="127.0.0.1", wyoming_port=0)  # the proxy listens, not the replica
    serve.run(application(inner, replicas, fewest=replicas), name=NAME, route_prefix="/")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    stop.wait()
    serve.shutdown()  # type: ignore[no-untyped-call]
    ray.shutdown()
