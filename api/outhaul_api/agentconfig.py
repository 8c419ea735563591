"""AgentConfig: how the pods of runs look. Up to three apply; a field comes from the nearest that has it."""

from enum import StrEnum
from typing import ClassVar

from pydantic import Field

from outhaul_api.common import (
    AGE,
    Column,
    CustomResource,
    Duration,
    Model,
    ObjectName,
    PreservedObject,
    Resource,
)


class PullPolicy(StrEnum):
    """When the kubelet pulls the agent's image."""

    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


class AgentConfigSpec(Model):
    """How runs are executed. An absent field comes from the namespace's `default`, then the operator's."""

    image: str | None = Field(default=None, max_length=1024)
    """The image of the agent, with the tools that the commands need."""
    pull_policy: PullPolicy | None = None
    """When the image is pulled; Kubernetes' own default applies where it is absent."""
    engine: str | None = Field(default=None, max_length=63)
    """The engine of Installations that name none."""
    service_account: ObjectName | None = None
    """The service account of the pods. Without one the pod gets no API token."""
    start_timeout: Duration | None = None
    """How long a run may wait for its agent to start: for a quota, a node, an image, a volume, init containers
    (default 15m; 0s: for ever). Then it has failed, and its pod is removed."""
    linger: Duration | None = None
    """How long an agent holds its outputs for an operator that does not come (default 24h)."""
    retry_limit: int | None = Field(default=None, ge=0, le=100)
    """How many further runs follow a failed one by themselves, where an Installation's `retry.limit` does not say
    (default 0)."""
    ttl_seconds_after_finished: int | None = Field(default=None, ge=0, le=31536000)
    """Seconds until the pod and the run's own Secret are deleted after the run has ended (default 600)."""
    pod_template: PreservedObject | None = None
    """A partial pod template (`metadata.labels`, `metadata.annotations`, `spec`) that is merged over the
    operator's own; the agent's container is called `agent`."""


class AgentConfig(Resource):
    """How the pods of runs look. `default` applies to its namespace, in the operator's namespace to all."""

    definition: ClassVar[CustomResource] = CustomResource(
        kind="AgentConfig",
        plural="agentconfigs",
        short_names=["ac"],
        columns=[
            Column(name="Image", type="string", json_path=".spec.image"),
            Column(name="Engine", type="string", json_path=".spec.engine"),
            Column(name="ServiceAccount", type="string", json_path=".spec.serviceAccount"),
            AGE,
        ],
        status_subresource=False,
    )
    kind: str = "AgentConfig"
    spec: AgentConfigSpec = AgentConfigSpec()
    """How runs are executed."""
