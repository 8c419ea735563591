"""Installation: what a person writes. The spec of a Porter Installation, pasted in, is valid."""

from typing import Annotated, ClassVar

from pydantic import Field
from pydantic.config import JsonDict

from outhaul_api.agentaction import Archive, Command, Declarations, NameReference, OutputSources, Patterns
from outhaul_api.common import (
    AGE,
    OBJECT_NAME_PATTERN,
    SERVER_DEFAULT,
    Column,
    Conditions,
    CustomResource,
    Duration,
    Model,
    ObjectName,
    PreservedObject,
    Resource,
)
from outhaul_api.vocabulary import Action, ActionPhase, DeletionPolicy, InstallationPhase, KeyStyle

_BY_NAME: JsonDict = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
Commands = Annotated[list[Command], Field(max_length=64, json_schema_extra=_BY_NAME)]


class Bundle(Model):
    """A CNAB bundle, by Porter's names."""

    repository: str = Field(min_length=1, max_length=1024)
    """The bundle's repository, without tag or digest."""
    version: str | None = Field(default=None, max_length=128)
    """The bundle's version; a leading v is added to find its tag."""
    digest: str | None = Field(default=None, max_length=256)
    """The bundle's digest."""
    tag: str | None = Field(default=None, max_length=128)
    """The bundle's tag."""


class Source(Model):
    """The infrastructure code: exactly one of the fields is given."""

    files: dict[str, Annotated[str, Field(max_length=1048576)]] | None = Field(
        default=None, json_schema_extra={"maxProperties": 1024}
    )
    """Files as they are: relative path to text."""
    config_map_ref: NameReference | None = None
    """A ConfigMap of the same namespace: a key a file. It is mounted into the pod; the operator never reads
    it, so a change of it counts at the next run."""
    secret_ref: NameReference | None = None
    """A Secret of the same namespace, in the same way."""
    archive: Archive | None = None
    """A tar.gz that the run's agent downloads and unpacks."""


class ActionCommands(Model):
    """The commands of engine `exec`."""

    install: Commands = []
    """What installs."""
    upgrade: Commands | None = None
    """What upgrades; `install` where it is absent."""
    uninstall: Commands = []
    """What uninstalls; nothing is run where it is empty."""


SecretName = Annotated[str, Field(pattern=OBJECT_NAME_PATTERN, max_length=248)]
"""The name of a Secret that may go on in `-1`, `-2` …"""


class ServiceBinding(Model):
    """What servicebinding.io asks of a Secret beside the outputs."""

    type: str = Field(min_length=1, max_length=253)
    """The entry `type`: what kind of service it is, such as `postgresql`."""
    provider: str | None = Field(default=None, max_length=253)
    """The entry `provider`: who provides it."""


class Outputs(Model):
    """Where outputs come from and where they go."""

    from_: Annotated[OutputSources | None, Field(alias="from")] = None
    """Where outputs come from; the engine's own sources where it is absent."""
    secret_name: SecretName | None = None
    """The name of the latest Secret; by default the Installation's name with `-outputs`."""
    declare: Declarations = []
    """What is expected of outputs: type, whether they are secrets, whether they must be there, a default."""
    non_sensitive: Patterns = []
    """Names, or shell patterns of names, of outputs that are no secrets where their source cannot say whether they
    are (a file, `json`, `text`)."""
    key_style: KeyStyle = KeyStyle.NAME
    """How the latest Secret's keys are made of the outputs' names."""
    template: dict[str, Annotated[str, Field(max_length=65536)]] = Field(
        default={}, json_schema_extra={"maxProperties": 256}
    )
    """Further keys of the latest Secret, made from outputs: key to a Jinja template, in which each output is a variable
    and `outputs["a-b"]` reaches those whose names are none. For example
    `postgresql://{{ user }}:{{ password|urlencode }}@{{ host }}:{{ port }}`."""
    binding: ServiceBinding | None = None
    """Adds the entries `type` and `provider` of servicebinding.io to the latest Secret."""
    history_limit: int = Field(default=5, ge=1, le=1000)
    """How many runs are kept with their outputs, the current one always among them."""


class OutputReference(Model):
    """An output of another Installation of the same namespace."""

    installation: ObjectName
    """The Installation's name."""
    name: str = Field(min_length=1, max_length=1024)
    """The output's name."""


class KeyReference(Model):
    """A key of a ConfigMap or a Secret of the same namespace."""

    name: ObjectName
    """The object's name."""
    key: str = Field(min_length=1, max_length=253)
    """The key."""


class Input(Model):
    """A value from elsewhere: exactly one of `output`, `configMapKeyRef` and `secretKeyRef` is given.

    Terraform gets it as the variable of its name, Porter as the parameter, commands as `OUTHAUL_INPUT_<name>`.
    """

    name: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=253)
    """The input's name."""
    output: OutputReference | None = None
    """An output of another Installation, which must be Ready. A secret goes to the pod by reference; the operator does
    not read it."""
    config_map_key_ref: KeyReference | None = None
    """A ConfigMap's key. It goes to the pod by reference, so a change of it counts at the next run."""
    secret_key_ref: KeyReference | None = None
    """A Secret's key. It goes to the pod by reference, so a change of it counts at the next run."""
    file: str | None = Field(default=None, min_length=1, max_length=1024)
    """Gives the value as this file of the working directory (a relative path) instead of a variable."""


class Retry(Model):
    """Whether a failed run is followed by another one by itself."""

    limit: int | None = Field(default=None, ge=0, le=100)
    """How many further runs follow a failed one. Default: the AgentConfig's `retryLimit`, else 0: nothing is applied
    again unless somebody asks for it."""
    backoff: Duration = "30s"
    """The pause before the first of them. It doubles each time, up to an hour."""


class InstallationSpec(Model):
    """What is to be installed, and how."""

    schema_version: str | None = Field(default=None, max_length=32)
    """Porter's version of this document; it is handed to Porter as it is."""
    name: str | None = Field(default=None, max_length=253)
    """The engine's own name of the installation; the object's name by default."""
    namespace: str | None = Field(default=None, max_length=253)
    """The engine's own namespace of the installation, the object's by default. It never chooses where
    Kubernetes objects go."""
    bundle: Bundle | None = None
    """The bundle that engine `porter` installs."""
    parameters: PreservedObject = {}
    """Parameters, free in form. They are readable by everyone who may read this object: no secrets."""
    labels: dict[str, Annotated[str, Field(max_length=1024)]] = Field(
        default={}, json_schema_extra={"maxProperties": 256}
    )
    """The engine's own labels of the installation; handed to Porter."""
    uninstalled: bool = False
    """Whether the installation is to be uninstalled while this object stays."""
    agent_config: NameReference | None = None
    """The AgentConfig that the runs use."""
    engine: str | None = Field(default=None, max_length=63)
    """`terraform`, `porter` or `exec`. Default: the AgentConfig's, else `porter` where `bundle` is given,
    else `exec`."""
    source: Source | None = None
    """The infrastructure code."""
    commands: ActionCommands | None = None
    """The commands of engine `exec`."""
    inputs: list[Input] = Field(default=[], max_length=256, json_schema_extra=_BY_NAME)
    """Values from other Installations' outputs, from ConfigMaps and from Secrets."""
    depends_on: Annotated[
        list[ObjectName], Field(max_length=64, json_schema_extra={"x-kubernetes-list-type": "set"})
    ] = []
    """Installations of the same namespace that must be Ready, at their newest generation, before a run starts."""
    outputs: Outputs = Outputs()
    """Where outputs come from and where they go."""
    deletion_policy: DeletionPolicy = Field(default=DeletionPolicy.DELETE, json_schema_extra={SERVER_DEFAULT: True})
    """What deleting this object does: `Delete` uninstalls first, `Orphan` leaves what was installed."""
    timeout: Duration | None = None
    """How long all commands of one run together may take (default 1h)."""
    retry: Retry = Retry()
    """Whether a failed run is followed by another one by itself."""
    suspend: bool = False
    """Whether no run may start. One that is under way goes on, and a deletion still uninstalls."""


class RunReference(Model):
    """A run, as its Installation remembers it. It says what was due, so a run is never started twice."""

    name: str
    """The AgentAction's name."""
    action: Action
    """What the run does."""
    generation: int
    """The generation of the Installation that it brings about."""
    number: int = 0
    """Counts the Installation's runs."""
    attempt: int | None = None
    """Counts the runs for the same, where more than one was needed."""
    retry_limit: int | None = None
    """The `retryLimit` of its AgentConfig."""
    digest: str
    """The digest of the spec that the run was made from."""
    inputs: str | None = None
    """The digest of the other Installations' outputs that the run was made from."""
    retry: str | None = None
    """The value of the retry annotation that asked for it."""
    phase: ActionPhase | None = None
    """How the run ended; absent until it has."""
    reason: str | None = None
    """Why it ended so, in one word."""
    recollect: str | None = None
    """The value of the recollect annotation that asked for it."""
    outputs_lost: bool | None = None
    """True where its commands succeeded and its pod was lost before the outputs were stored."""
    first: bool | None = None
    """True where nothing was installed when it was created."""
    started: bool | None = None
    """False where the run has ended before any of its commands had started."""
    cancel: str | None = None
    """The value of the cancel annotation when it was created; another one tells it to stop."""
    finished_at: str | None = Field(default=None, json_schema_extra={"format": "date-time"})
    """When it ended."""


class Binding(Model):
    """The contract of servicebinding.io: which Secret to bind to."""

    name: str
    """The latest Secret's name."""


class InstallationStatus(Model):
    """How the installation is."""

    observed_generation: int | None = None
    """The generation that the rest of the status speaks of."""
    phase: InstallationPhase | None = None
    """The state in one word."""
    conditions: Conditions = []
    """The conditions, as kstatus defines them."""
    action: RunReference | None = None
    """The newest run."""
    last_succeeded: RunReference | None = None
    """The newest run that succeeded."""
    publication: str | None = None
    """The digest of what the latest Secret was made from."""
    binding: Binding | None = None
    """The latest Secret, once it was written."""
    outputs: list[str] = Field(default=[], max_length=10000)
    """The names of the current outputs."""


class Installation(Resource):
    """Something that an engine installs, and whose outputs become Secrets and InstallationOutputs."""

    definition: ClassVar[CustomResource] = CustomResource(
        kind="Installation",
        plural="installations",
        short_names=["inst"],
        columns=[
            Column(name="Ready", type="string", json_path='.status.conditions[?(@.type=="Ready")].status'),
            Column(name="Phase", type="string", json_path=".status.phase"),
            Column(name="Reason", type="string", json_path='.status.conditions[?(@.type=="Ready")].reason'),
            Column(name="Secret", type="string", json_path=".status.binding.name"),
            Column(
                name="Message",
                type="string",
                json_path='.status.conditions[?(@.type=="Ready")].message',
                priority=1,
            ),
            AGE,
        ],
    )
    kind: str = "Installation"
    spec: InstallationSpec = InstallationSpec()
    """What is to be installed, and how."""
    status: InstallationStatus = InstallationStatus()
    """How the installation is."""
