"""What Prometheus reads at ``/metrics``."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_BATCH = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256)


class Metrics:
    """The figures of one server, in a registry of their own, so that two servers fit in one process."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        self.slots = Gauge("nemostream_slots", "Calls that fit at the same time.", registry=registry)
        self.streams = Gauge("nemostream_streams", "Calls that hold a slot.", registry=registry)
        self.connections = Counter(
            "nemostream_connections", "Conversations that began.", ["protocol"], registry=registry
        )
        self.resumed = Counter("nemostream_resumed", "Conversations taken up again.", registry=registry)
        self.refused = Counter(
            "nemostream_refused",
            "Calls turned away: full, late, draining, key, rate, origin.",
            ["reason"],
            registry=registry,
        )
        self.batch_size = Histogram(
            "nemostream_batch_size", "Calls in one encoder step.", buckets=_BATCH, registry=registry
        )
        self.step_seconds = Histogram(
            "nemostream_step_seconds",
            "Encoding and decoding of one step.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.decode_seconds = Counter(
            "nemostream_decode_seconds", "Time spent in the decoder.", registry=registry
        )
        self.encode_seconds = Counter(
            "nemostream_encode_seconds", "Time spent in the encoder.", registry=registry
        )
        self.feature_seconds = Counter(
            "nemostream_feature_seconds", "Time spent on resampling and log-mels.", registry=registry
        )
        self.queue_seconds = Histogram(
            "nemostream_queue_seconds",
            "Wait of audio that makes a chunk for its step.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.lag_seconds = Histogram(
            "nemostream_lag_seconds",
            "From a whole chunk to its result.",
            buckets=_SECONDS,
            registry=registry,
        )
