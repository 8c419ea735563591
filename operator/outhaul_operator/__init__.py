"""The operator: from an Installation to a run, from a run's agent to Secrets and an InstallationOutput."""

from importlib.metadata import version

__version__ = version("outhaul")
