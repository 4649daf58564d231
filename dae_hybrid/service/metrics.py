"""Counters of the service in the format of Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest

#: bounds of the histogram of durations, in seconds
BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class Metrics:
    """Counters and gauges of one service."""

    media_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self) -> None:
        disable_created_metrics()
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "dae_hybrid_requests", "Requests by route and status", ["route", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "dae_hybrid_request_seconds",
            "Time of requests by route",
            ["route"],
            buckets=BUCKETS,
            registry=self.registry,
        )

    def gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Add a gauge that reads a value when asked."""
        Gauge(f"dae_hybrid_{name}", text, registry=self.registry).set_function(value)

    def text(self) -> bytes:
        """All of them."""
        return generate_latest(self.registry)
