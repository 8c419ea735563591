"""The kinds that the operator touches, and the form that their objects have here: plain JSON."""

from enum import Enum
from typing import Any

from outhaul_api.vocabulary import API_VERSION

Object = dict[str, Any]
"""One Kubernetes object, as JSON."""
Objects = list[Object]

LEASES = "coordination.k8s.io/v1"


class Kind(Enum):
    """The kinds that the operator touches: API path and plural name."""

    INSTALLATION = (f"apis/{API_VERSION}", "installations")
    AGENT_ACTION = (f"apis/{API_VERSION}", "agentactions")
    AGENT_CONFIG = (f"apis/{API_VERSION}", "agentconfigs")
    INSTALLATION_OUTPUT = (f"apis/{API_VERSION}", "installationoutputs")
    POD = ("api/v1", "pods")
    SECRET = ("api/v1", "secrets")
    CONFIG_MAP = ("api/v1", "configmaps")
    EVENT = ("api/v1", "events")
    LEASE = (f"apis/{LEASES}", "leases")
    ACCESS_REVIEW = ("apis/authorization.k8s.io/v1", "selfsubjectaccessreviews")
