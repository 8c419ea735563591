"""AgentAction: one run. Its spec is final: commands, files, output sources. It knows nothing of engines."""

from typing import Annotated, ClassVar

from pydantic import Field
from pydantic.config import JsonDict

from outhaul_api.common import (
    AGE,
    SERVER_DEFAULT,
    Column,
    Conditions,
    CustomResource,
    Duration,
    Model,
    ObjectName,
    PreservedObject,
    PreservedValue,
    Resource,
)
from outhaul_api.vocabulary import Action, ActionPhase, OutputFormat, OutputType, StepPhase

Argument = Annotated[str, Field(max_length=32768)]
Path = Annotated[str, Field(min_length=1, max_length=4096)]
StepName = Annotated[str, Field(pattern=r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$", max_length=63)]
EnvName = Annotated[str, Field(pattern=r"^[-._a-zA-Z][-._a-zA-Z0-9]*$", max_length=253)]
# Not the format `byte`, by which API servers refuse an empty file.
Base64 = Annotated[str, Field(max_length=1398104, json_schema_extra={"pattern": "^[A-Za-z0-9+/]*={0,2}$"})]
DEFAULT_TIMEOUT = "1h"
_MAP_BY_NAME: JsonDict = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}


class EnvVar(Model):
    """One environment variable of a command. Its value is part of the object, so it must not be a secret."""

    name: EnvName
    """The variable's name."""
    value: str = Field(default="", max_length=32768)
    """The variable's value."""


class PodEnvVar(EnvVar):
    """One environment variable of the agent's container, which every command sees."""

    value_from: PreservedObject | None = None
    """Where the value comes from, as in a pod's `env`: a Secret's or a ConfigMap's key, or a field of the
    pod."""


class Command(Model):
    """One command of a run; the commands run in order."""

    name: StepName
    """The step's name, unique in the run; status and messages use it."""
    command: list[Argument] = Field(min_length=1, max_length=256)
    """The program and its first arguments. There is no shell unless you name one."""
    args: list[Argument] = Field(default=[], max_length=1024)
    """Further arguments."""
    env: list[EnvVar] = Field(default=[], max_length=256, json_schema_extra=_MAP_BY_NAME)
    """Variables of this command alone."""
    working_dir: Path | None = None
    """Where the command runs, relative to the run's working directory, which is the default."""
    timeout: Duration | None = None
    """How long the command may take; only the run's timeout limits it by default."""
    continue_on_error: bool = False
    """Whether the run goes on, and may still succeed, when this command fails."""


class DirectorySource(Model):
    """A directory with one file an output (CNAB's `/cnab/app/outputs`). The outputs are sensitive."""

    path: Path
    """The directory, relative to the run's working directory unless absolute."""
    required: list[Annotated[str, Field(max_length=1024)]] = Field(default=[], max_length=256)
    """Outputs that must be there; the run fails where one is missing."""


class CommandSource(Model):
    """A command whose standard output holds outputs. It runs after the commands, failed or not, unless cancelled."""

    command: list[Argument] = Field(min_length=1, max_length=256)
    """The program and its arguments."""
    format: OutputFormat
    """How its standard output is read."""
    name: Annotated[str, Field(max_length=1024)] | None = None
    """The output's name; needed with format `text`, meaningless with the others."""
    working_dir: Path | None = None
    """Where the command runs, relative to the run's working directory, which is the default."""


class ManifestSource(Model):
    """A JSON file that lists outputs: `[{"name", "type", "sensitive", and "value" or "path"}]`."""

    path: Path
    """The file, relative to the run's working directory unless absolute. The run fails where it is
    missing."""


OutputName = Annotated[str, Field(min_length=0, max_length=1024)]


class OutputDeclaration(Model):
    """What is expected of one output, whatever source it comes from."""

    name: OutputName
    """The output's name."""
    type: OutputType | None = None
    """The type that its value must have. Text of a source that knows no types (a file, `text`, Porter's strings) is
    read as this type."""
    sensitive: bool | None = None
    """Whether the value is a secret. True always counts; false counts where the source cannot say, and never
    against a source that says it is one."""
    required: bool = False
    """Whether the run fails where the output is missing and has no default."""
    default: PreservedValue = None
    """The value where the output is missing. It is part of this object, so it must not be a secret."""


Declarations = Annotated[list[OutputDeclaration], Field(max_length=1024, json_schema_extra=_MAP_BY_NAME)]
Patterns = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=1024)]],
    Field(max_length=256, json_schema_extra={"x-kubernetes-list-type": "set"}),
]


class OutputSource(Model):
    """One place where outputs come from: exactly one of the fields is given."""

    directory: DirectorySource | None = None
    """A directory with one file an output."""
    command: CommandSource | None = None
    """A command's standard output."""
    manifest: ManifestSource | None = None
    """A manifest file."""


OutputSources = Annotated[
    list[OutputSource], Field(max_length=32, json_schema_extra={"x-kubernetes-list-type": "atomic"})
]


class InstallationReference(Model):
    """The Installation that a run belongs to."""

    name: ObjectName
    """The Installation's name."""
    uid: str = Field(default="", max_length=64)
    """The Installation's uid."""
    generation: int = 0
    """The Installation's generation that this run brings about."""
    number: int = Field(default=0, ge=0)
    """Counts the Installation's runs: a run with a higher number is newer."""
    attempt: int = Field(default=1, ge=1)
    """Counts the runs for the same: it grows with each that follows a failed one by itself."""


class NameReference(Model):
    """A reference to an object of the same namespace."""

    name: ObjectName
    """The object's name."""


class KeptSource(Model):
    """A copy of what an earlier run was made from; it stands in for what is gone meanwhile."""

    secret_name: ObjectName
    """The Secret that holds the copy. It is mounted; the run starts without it where it is gone."""
    required: list[Path] = Field(default=[], max_length=16)
    """Directories of `copyFrom` without which the run fails: empty, and not in the copy."""


class Archive(Model):
    """A tar.gz that the run's agent downloads and unpacks into the working directory."""

    url: str = Field(pattern=r"^https?://[A-Za-z0-9.:_\[\]-]+([/?][!-~]*)?$", max_length=2048)
    """Where it is, by http or https. It is part of this object, so it must have no credentials. Proxies are those of
    the pod's variables, trusted authorities those of its image."""
    sha256: str = Field(pattern=r"^[0-9A-Fa-f]{64}$", max_length=64)
    """Its SHA-256, 64 hex digits: anything else is not unpacked."""
    path: Path | None = None
    """A directory of the archive that is the working directory, such as `network-1.2.0/modules/vpc`; the archive's root
    by default."""


class AgentActionSpec(Model):
    """What one run does. The spec cannot be changed; make another AgentAction instead."""

    action: Action = Field(default=Action.INSTALL, json_schema_extra={SERVER_DEFAULT: True})
    """What the run does to the installation."""
    installation: InstallationReference | None = None
    """The Installation that the run belongs to; absent for a run written by hand."""
    agent_config: NameReference | None = None
    """The AgentConfig to use; the namespace's `default`, if there is one, applies below it."""
    command: list[Argument] = Field(default=[], max_length=256)
    """Porter's form, instead of `commands`: one command."""
    args: list[Argument] = Field(default=[], max_length=1024)
    """Porter's form: the arguments of `command`."""
    commands: list[Command] = Field(default=[], max_length=64, json_schema_extra=_MAP_BY_NAME)
    """The commands, in order."""
    outputs: OutputSources = []
    """Where outputs come from; read in order, and a name may come from one place only."""
    declare: Declarations = []
    """What is expected of outputs."""
    non_sensitive: Patterns = []
    """Names, or shell patterns of names, of outputs that are no secrets where their source cannot say whether they
    are (a file, `json`, `text`)."""
    files: dict[str, Base64] = Field(default={}, json_schema_extra={"maxProperties": 1024})
    """Files that are written to the working directory before the first command: relative path to base64
    content."""
    archive: Archive | None = None
    """A tar.gz that is unpacked before all else."""
    copy_from: list[Path] = Field(default=[], max_length=16)
    """Directories, usually mounted volumes, whose files are copied to the working directory before the first
    command."""
    keep_source: bool = False
    """Whether a copy is kept of what the run is made from and does not have in its own spec: `archive`, the files of
    `copyFrom`, and variables of `env` that refer to a Secret or a ConfigMap."""
    kept_source: KeptSource | None = None
    """The copy that an earlier run has left: it stands in for `archive`, if it has the same, for directories of
    `copyFrom` that are empty, and for variables whose Secret or ConfigMap is gone."""
    env: list[PodEnvVar] = Field(default=[], max_length=256, json_schema_extra=_MAP_BY_NAME)
    """Variables that every command sees."""
    env_from: list[PreservedObject] = Field(default=[], max_length=64)
    """ConfigMaps and Secrets whose keys become variables that every command sees, as in a pod's `envFrom`."""
    volumes: list[PreservedObject] = Field(default=[], max_length=64)
    """Further volumes of the pod, as in a pod's `volumes`."""
    volume_mounts: list[PreservedObject] = Field(default=[], max_length=64)
    """Where the volumes are mounted, as in a container's `volumeMounts`."""
    timeout: Duration = Field(default=DEFAULT_TIMEOUT, json_schema_extra={SERVER_DEFAULT: True})
    """How long all commands together may take."""


class StepStatus(Model):
    """How one command went."""

    name: str
    """The step's name."""
    phase: StepPhase
    """Its state."""
    exit_code: int | None = None
    """Its exit code, 128 and more for a signal; absent until it has ended."""
    started_at: str | None = Field(default=None, json_schema_extra={"format": "date-time"})
    """When it started."""
    finished_at: str | None = Field(default=None, json_schema_extra={"format": "date-time"})
    """When it ended."""


class AgentActionStatus(Model):
    """How the run is going, or how it ended."""

    phase: ActionPhase | None = None
    """The run's state."""
    conditions: Conditions = []
    """The run's conditions."""
    pod: str | None = None
    """The name of the run's pod, once it was created. A run never has a second one."""
    started: bool | None = None
    """False where the run has ended before any of its commands had started."""
    steps: list[StepStatus] = Field(default=[], max_length=64)
    """How each command went."""
    output: str | None = None
    """The name of the run's InstallationOutput, once it was written."""
    publication: str | None = Field(default=None, max_length=64)
    """The digest of what the latest Secret was made from, once it shows this run."""
    latest_secret: str | None = Field(default=None, max_length=253)
    """The name that the latest Secret had then."""
    reason: str | None = Field(default=None, max_length=64)
    """Why the run is in its phase, in one word."""
    message: str | None = Field(default=None, max_length=4096)
    """Why the run is in its phase, and what to do."""
    started_at: str | None = Field(default=None, json_schema_extra={"format": "date-time"})
    """When the agent was first seen running."""
    finished_at: str | None = Field(default=None, json_schema_extra={"format": "date-time"})
    """When the run ended."""


class AgentAction(Resource):
    """One run: a pod that executes commands and holds their outputs until the operator has stored them."""

    definition: ClassVar[CustomResource] = CustomResource(
        kind="AgentAction",
        plural="agentactions",
        short_names=["aa"],
        columns=[
            Column(name="Installation", type="string", json_path=".spec.installation.name"),
            Column(name="Action", type="string", json_path=".spec.action"),
            Column(name="Phase", type="string", json_path=".status.phase"),
            Column(name="Reason", type="string", json_path=".status.reason"),
            Column(name="Pod", type="string", json_path=".status.pod", priority=1),
            Column(name="Message", type="string", json_path=".status.message", priority=1),
            AGE,
        ],
    )
    kind: str = "AgentAction"
    spec: Annotated[
        AgentActionSpec,
        Field(
            json_schema_extra={
                "x-kubernetes-validations": [
                    {
                        "rule": "self == oldSelf",
                        "message": "a run's spec is final; create another AgentAction",
                    }
                ]
            }
        ),
    ]
    """What the run does."""
    status: AgentActionStatus = AgentActionStatus()
    """How the run goes."""
