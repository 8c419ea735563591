"""What the operator counts, for Prometheus; `endpoints` serves it as `/metrics`.

Labels are words of closed sets: no name, no uid and no value of anybody's object is ever one. docs/operations.md has a
row for each metric; a test compares.
"""

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

from outhaul_operator import __version__

disable_created_metrics()  # type: ignore[no-untyped-call]

REGISTRY = CollectorRegistry()
"""The operator's own: what libraries register with the default one is not served."""

ProcessCollector(registry=REGISTRY)

BUILD_INFO = Gauge("outhaul_build_info", "Always 1; the label says which version runs.", ["version"], registry=REGISTRY)
BUILD_INFO.labels(__version__).set(1)

LEADER = Gauge("outhaul_leader", "1 where this operator leads, 0 where it waits.", registry=REGISTRY)

RUNS = Counter(
    "outhaul_runs_total",
    "Runs that have ended, by their final phase. The engine of a run that no Installation has made is `none`.",
    ["engine", "action", "result"],
    registry=REGISTRY,
)

PUBLISH_SECONDS = Histogram(
    "outhaul_publish_seconds",
    "From an agent's word that its run has ended to the final status, with every output stored.",
    buckets=(0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300),
    registry=REGISTRY,
)

QUEUE_WAITING = Gauge(
    "outhaul_queue_waiting", "Objects that wait for their turn to be looked at.", ["queue"], registry=REGISTRY
)
QUEUE_LONGEST_WAIT = Gauge(
    "outhaul_queue_longest_wait_seconds",
    "How long the object has waited that has waited the longest.",
    ["queue"],
    registry=REGISTRY,
)
QUEUE_RETRIES = Counter(
    "outhaul_queue_retries_total",
    "Looks at an object that failed, or had to wait for something, and are repeated.",
    ["queue"],
    registry=REGISTRY,
)

WATCH_AGE = Gauge(
    "outhaul_watch_age_seconds",
    "Since when the API server has said nothing about a kind; it says something at least each minute.",
    ["resource"],
    registry=REGISTRY,
)

API_SECONDS = Histogram(
    "outhaul_api_request_seconds",
    "How long the API server took to begin its answer; watches are left out.",
    ["verb"],
    buckets=(0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30),
    registry=REGISTRY,
)
API_REQUESTS = Counter(
    "outhaul_api_requests_total",
    "Requests to the API server that have ended. The code of one without an answer is `none`.",
    ["verb", "resource", "code"],
    registry=REGISTRY,
)

CA_EXPIRY = Gauge(
    "outhaul_ca_expiry_timestamp_seconds",
    "When the authority that signs new runs' certificates ends, in seconds since 1970; NaN: there is none.",
    registry=REGISTRY,
)


def exposition() -> bytes:
    """Returns all metrics in Prometheus' text format."""
    return generate_latest(REGISTRY)
