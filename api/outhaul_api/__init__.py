"""The four kinds of `outhaul.dev/v1alpha1` as pydantic models, and the words they use.

Imports nothing of the project. The operator reads objects through these models, `crds` generates the
CustomResourceDefinitions from them, and users may import them to build objects.
"""

from outhaul_api.agentaction import AgentAction
from outhaul_api.agentconfig import AgentConfig
from outhaul_api.installation import Installation
from outhaul_api.installationoutput import InstallationOutput

KINDS = (Installation, AgentAction, AgentConfig, InstallationOutput)

__all__ = ["KINDS", "AgentAction", "AgentConfig", "Installation", "InstallationOutput"]
