"""What the operator counts, for Prometheus; `endpoints` serves it as `/metrics`.

Labels are words of closed sets: no name, no uid and no value of anybody's object is ever one. docs/operations.md has a
row for each metric; a test compares.
"""

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
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
