"""The operator: from an Installation to a run, from a run's agent to Secrets and an InstallationOutput."""

from importlib.metadata import version

import outhaul_grpc  # noqa: F401 - before anything else loads gRPC

__version__ = version("outhaul")
