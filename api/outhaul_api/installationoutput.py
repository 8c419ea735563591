"""InstallationOutput: the record of one run's outputs. Written at once, then immutable but for its phase."""

from typing import Annotated, Any, ClassVar

from pydantic import Field

from outhaul_api.common import AGE, Column, CustomResource, Model, Resource
from outhaul_api.vocabulary import OutputPhase, OutputType


class SecretKeyReference(Model):
    """A key of a Secret of the same namespace."""

    name: str = Field(max_length=253)
    """The Secret's name."""
    key: str = Field(max_length=253)
    """The key."""


class Output(Model):
    """One output."""

    name: str = Field(max_length=1024)
    """The output's name."""
    type: OutputType
    """The value's type."""
    sensitive: bool = True
    """Whether the value is a secret; then it is only in the Secret."""
    value: Annotated[
        Any,
        Field(json_schema_extra={"x-kubernetes-preserve-unknown-fields": True}),
    ] = None
    """The value, where it is not sensitive, not large, and JSON numbers keep it exact; else see
    `secretKeyRef`."""
    secret_key_ref: SecretKeyReference | None = None
    """Where the value is stored exactly as it came; absent only where no Secret can hold it."""
    size: int = Field(ge=0)
    """The value's size in bytes, as it is stored."""
    sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    """The SHA-256 of the value as it is stored; absent where the value is sensitive, since a weak secret can
    be guessed from it."""
    fingerprint: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    """A digest of a sensitive value under a key that only the operator has: it tells whether the value of this output
    has changed from run to run, and is no help in guessing it."""


class InstallationOutputSpec(Model):
    """Which run the outputs belong to."""

    name: str | None = Field(default=None, max_length=253)
    """The engine's own name of the installation."""
    namespace: str | None = Field(default=None, max_length=253)
    """The engine's own namespace of the installation."""
    installation: str | None = Field(default=None, max_length=253)
    """The Installation's name; absent for a run written by hand."""
    action: str = Field(max_length=253)
    """The AgentAction's name."""
    generation: int = 0
    """The Installation's generation that the run brought about."""


class Provenance(Model):
    """How the outputs came here."""

    agent_version: str | None = Field(default=None, max_length=64)
    """The agent's version."""
    operator_version: str | None = Field(default=None, max_length=64)
    """The operator's version."""
    image: str | None = Field(default=None, max_length=1024)
    """The image that the run used."""
    action_uid: str | None = Field(default=None, max_length=64)
    """The AgentAction's uid."""


class InstallationOutputStatus(Model):
    """The outputs."""

    phase: OutputPhase
    """What this record stands for."""
    outputs: list[Output] = Field(default=[], max_length=10000)
    """Each output, ordered by name."""
    output_names: str | None = Field(default=None, max_length=1024)
    """The names, joined for `kubectl get`."""
    secret_name: str | None = Field(default=None, max_length=253)
    """The Secret with every output of the run, to be mounted; more than one where they do not fit: see
    `secretKeyRef`."""
    provenance: Provenance | None = None
    """How the outputs came here."""


class InstallationOutput(Resource):
    """The outputs of one run: plain values typed and readable here, every value exact in a Secret."""

    definition: ClassVar[CustomResource] = CustomResource(
        kind="InstallationOutput",
        plural="installationoutputs",
        short_names=["io"],
        columns=[
            Column(name="Installation", type="string", json_path=".spec.installation"),
            Column(name="Phase", type="string", json_path=".status.phase"),
            Column(name="Outputs", type="string", json_path=".status.outputNames"),
            Column(name="Secret", type="string", json_path=".status.secretName", priority=1),
            Column(name="Generation", type="integer", json_path=".spec.generation", priority=1),
            AGE,
        ],
        status_subresource=False,
    )
    kind: str = "InstallationOutput"
    spec: Annotated[
        InstallationOutputSpec,
        Field(
            json_schema_extra={
                "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "a record of outputs is final"}]
            }
        ),
    ]
    """Which run the outputs belong to."""
    status: InstallationOutputStatus
    """The outputs."""
