"""Every word that more than one place spells: group, keys, phases, condition types and reasons.

A string of the API is written here once, with a sentence that says what it means.
"""

from enum import StrEnum

GROUP = "outhaul.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

RETRY_ANNOTATION = f"{GROUP}/retry"
"""On an Installation: any value that was not there before, but the empty one, asks for another run."""

RECOLLECT_ANNOTATION = f"{GROUP}/recollect"
"""On an Installation: likewise; the outputs are read again, and nothing is applied."""

CANCEL_ANNOTATION = f"{GROUP}/cancel"
"""On an AgentAction: whatever its value, the run is told to stop. On an Installation: as with `retry`,
its run is told to stop, and none follows it."""

FORMER_CANCEL_ANNOTATION = f"{GROUP}/former-cancel"
"""On an AgentAction: the value that the cancel annotation of its Installation had when it was created."""

UNINSTALL_FIRST_ANNOTATION = f"{GROUP}/uninstall-first"
"""On an Installation: `true` lets it be uninstalled although others use its outputs or depend on it."""

FORCE_DELETE_ANNOTATION = f"{GROUP}/force-delete"
"""On an Installation that is being deleted: `true` lets it go without an uninstall, whatever it waits for."""

RUN_ANNOTATION = f"{GROUP}/run"
"""On a latest Secret: the name of the run that last changed it."""

GENERATION_ANNOTATION = f"{GROUP}/generation"
"""On a latest Secret: the generation of the Installation that the run was made for."""

NUMBER_ANNOTATION = f"{GROUP}/run-number"
"""On a latest Secret: the number of its run; a run never replaces the outputs of one with a higher number."""

PUBLISHED_ANNOTATION = f"{GROUP}/published-at"
"""On a latest Secret: when it was last written (RFC 3339)."""

PARTS_ANNOTATION = f"{GROUP}/parts"
"""On a latest Secret: over how many Secrets (`-1`, `-2` … after the first) the outputs are spread."""

FIRST_ANNOTATION = f"{GROUP}/first"
"""On an AgentAction: nothing was installed when it was created."""

RETRY_LIMIT_ANNOTATION = f"{GROUP}/retry-limit"
"""On an AgentAction: the `retryLimit` of its AgentConfig when it was created."""

INPUTS_ANNOTATION = f"{GROUP}/inputs"
"""On an AgentAction: the digest of the other Installations' outputs that it was made from."""

DIGEST_ANNOTATION = f"{GROUP}/digest"
"""On an AgentAction: the digest of the Installation's spec that it was made from."""

ROTATE_ANNOTATION = f"{GROUP}/rotate"
"""On the Secret `outhaul-ca`, with any value: asks for another root. The operator takes it away once it has one."""

AUTHORITY_LABEL = f"{GROUP}/authority"
"""On a run's pod: the fingerprint of the authority that the run was started under."""

INSTALLATION_LABEL = f"{GROUP}/installation"
"""On what belongs to an Installation: its name, or the name's hash where it is too long for a label."""

ENGINE_LABEL = f"{GROUP}/engine"
"""On an AgentAction of an Installation: the engine that it was made by."""

ACTION_LABEL = f"{GROUP}/action"
"""On what belongs to a run: the AgentAction's uid."""

MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
MANAGER = "outhaul"
"""The value of the managed-by label, and the field manager of the operator's writes."""

UNINSTALL_FINALIZER = f"{GROUP}/uninstall"
"""Holds an Installation that is being deleted until its uninstall run has succeeded."""


class SecretType(StrEnum):
    """The `type` of the Secrets that the operator writes; a Secret of another type is never ours."""

    CA = f"{GROUP}/ca"
    """The operator's certificate authorities, in the operator's namespace."""
    RUN = f"{GROUP}/run"
    """What one run's agent reads: its instructions and its TLS material."""
    SOURCE = f"{GROUP}/source"
    """The copy of what a run was made from, for an uninstall after that is gone."""
    OUTPUTS = f"{GROUP}/outputs"
    """The outputs of one run, or the latest outputs of an Installation."""


class Action(StrEnum):
    """What a run does."""

    INSTALL = "install"
    UPGRADE = "upgrade"
    UNINSTALL = "uninstall"
    RECOLLECT = "recollect"
    """Read the outputs again and publish them; nothing is applied."""


class KeyStyle(StrEnum):
    """How the latest Secret's keys are made of the outputs' names."""

    NAME = "Name"
    """The output's name where Kubernetes accepts it, else a reversible encoding of it."""
    ENV = "Env"
    """UPPER_SNAKE, so that the Secret can be used with `envFrom`. Two outputs of one key are an error."""


class DeletionPolicy(StrEnum):
    """What happens to the installed things when the Installation is deleted."""

    DELETE = "Delete"
    """Run uninstall first."""
    ORPHAN = "Orphan"
    """Leave them as they are."""


class InstallationPhase(StrEnum):
    """An Installation's state in one word, for people; programs read the conditions."""

    PENDING = "Pending"
    """Nothing runs yet; the conditions say what it waits for."""
    RUNNING = "Running"
    """A run is under way."""
    SUCCEEDED = "Succeeded"
    """The newest spec is installed and its outputs can be read."""
    FAILED = "Failed"
    """A person has to act; the conditions say how."""
    UNINSTALLED = "Uninstalled"
    """Uninstalled as `spec.uninstalled` asks; the object stays."""


class ActionPhase(StrEnum):
    """The state of one run."""

    PENDING = "Pending"
    """No command has started yet."""
    RUNNING = "Running"
    """The agent is at work, or its outputs are being published."""
    SUCCEEDED = "Succeeded"
    """Every command succeeded and the outputs can be read."""
    FAILED = "Failed"
    """The run ended without success; it is never started again."""
    CANCELLED = "Cancelled"
    """The run was told to stop before it was done."""

    @property
    def is_final(self) -> bool:
        """True when the run has ended."""
        return self in {ActionPhase.SUCCEEDED, ActionPhase.FAILED, ActionPhase.CANCELLED}


class StepPhase(StrEnum):
    """The state of one command of a run."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    SKIPPED = "Skipped"
    """Not started, since an earlier command failed."""


class OutputPhase(StrEnum):
    """What a record of outputs stands for."""

    CURRENT = "Current"
    """The newest successful run; the latest Secret shows these outputs."""
    SUPERSEDED = "Superseded"
    """A newer run took its place."""
    INVALIDATED = "Invalidated"
    """What these outputs describe has been, or is being, uninstalled."""
    FAILED = "Failed"
    """What a failed run left behind; never in the latest Secret."""


class OutputType(StrEnum):
    """The type of one output: JSON's types, and bytes."""

    STRING = "string"
    NUMBER = "number"
    BOOLEAN = "boolean"
    NULL = "null"
    OBJECT = "object"
    ARRAY = "array"
    BYTES = "bytes"
    """Bytes that are not UTF-8 text."""


class OutputFormat(StrEnum):
    """How an output command's standard output is read."""

    TERRAFORM = "terraform"
    """`terraform output -json`: an object of `{value, type, sensitive}`."""
    PORTER = "porter"
    """`porter installation outputs list --output json`: a list of `{name, type, value, sensitive}`."""
    JSON = "json"
    """One JSON object: a member an output. Every output is sensitive."""
    TEXT = "text"
    """The bytes as they are: one output, named by the source. It is sensitive."""


class InstallationCondition(StrEnum):
    """Condition types of an Installation (Ready, Reconciling and Stalled as kstatus defines them)."""

    READY = "Ready"
    """True: the newest spec is installed and its outputs can be read."""
    RECONCILING = "Reconciling"
    """True: the operator is at work, or waits for something that is expected to come."""
    STALLED = "Stalled"
    """True: nothing will happen until a person changes something."""
    OUTPUTS_READY = "OutputsReady"
    """True: the latest Secret shows the newest successful run."""
    SUSPENDED = "Suspended"
    """True: no run starts, since `spec.suspend` asks for that; there only while it is so."""
    DEPENDENCIES_READY = "DependenciesReady"
    """True: what `dependsOn` and `inputs` name is there; only on Installations that name something."""


class ActionCondition(StrEnum):
    """Condition types of an AgentAction."""

    SCHEDULED = "Scheduled"
    """True: the pod has a node."""
    STARTED = "Started"
    """True: the agent is running, or was."""
    COMPLETED = "Completed"
    """True: every command has ended well."""
    FAILED = "Failed"
    """True: the run has failed; the reason says where."""
    OUTPUTS_COLLECTED = "OutputsCollected"
    """True: the outputs are stored in the cluster."""
    SOURCE_KEPT = "SourceKept"
    """True: a copy of what the run was made from is kept; only on runs that are made from more than their own spec."""


class Reason(StrEnum):
    """Why a condition is as it is, on Installations and AgentActions, and the reason of each event."""

    SUCCEEDED = "Succeeded"
    UNINSTALLED = "Uninstalled"
    IN_PROGRESS = "InProgress"
    DISPATCHED = "Dispatched"
    """A run was created."""
    WAITING_FOR_RUN = "WaitingForRun"
    """A newer spec waits until the run in flight has ended, or the pod of one that was cancelled."""
    RETRY_SCHEDULED = "RetryScheduled"
    """The newest run has failed, and another one follows by itself; the message says when."""
    SUSPENDED = "Suspended"
    """A run is due that does not start, since `spec.suspend` asks for that."""
    INVALID_SPEC = "InvalidSpec"
    UNKNOWN_ENGINE = "UnknownEngine"
    DEPENDENCIES_READY = "DependenciesReady"
    """Everything that an Installation needs is there."""
    DEPENDENCY_NOT_READY = "DependencyNotReady"
    """An Installation that this one depends on is missing, or not Ready at its newest generation."""
    DEPENDENCY_CYCLE = "DependencyCycle"
    """Installations wait for each other in a ring."""
    OUTPUT_NOT_FOUND = "OutputNotFound"
    """An output that an input names does not exist."""
    IN_USE = "InUse"
    """Others use this Installation's outputs; they are uninstalled first."""
    TEMPLATE_FAILED = "TemplateFailed"
    """A template of the latest Secret cannot be rendered, or two outputs have one key."""
    AGENT_CONFIG_NOT_FOUND = "AgentConfigNotFound"
    NO_AGENT_IMAGE = "NoAgentImage"
    RUN_FAILED = "RunFailed"
    UNINSTALL_FAILED = "UninstallFailed"
    LEFT_BEHIND = "LeftBehind"
    """An Installation went without an uninstall."""
    SOURCE_KEPT = "SourceKept"
    SOURCE_NOT_KEPT = "SourceNotKept"
    """There is no copy of what the run was made from: an uninstall needs what the spec refers to."""
    SOURCE_TOO_LARGE = "SourceTooLarge"
    """As SourceNotKept, since the copy would be larger than it may be."""
    SOURCE_MISSING = "SourceMissing"
    """What an uninstall is made from is gone, and there is no copy of it."""
    NAME_TAKEN = "NameTaken"
    """An object of the name that a run needs exists and is not ours."""
    SECRET_CONFLICT = "SecretConflict"
    """The latest Secret's name belongs to a Secret that is not ours; it is left alone."""
    PUBLISHED = "Published"
    NO_OUTPUTS = "NoOutputs"
    """Nothing has been published yet."""
    POD_REFUSED = "PodRefused"
    """The API server refused the run or its pod (service account, quota, policy); its words are quoted."""
    OUTPUTS_REFUSED = "OutputsRefused"
    """The API server refuses what the outputs are stored in (quota, policy); the agent holds them meanwhile."""
    AUTHORITY_UNUSABLE = "AuthorityUnusable"
    """The certificate authority that an admin has brought cannot be used, so no run can start."""
    AUTHORITY_ENDS = "AuthorityEnds"
    """The certificate authority that an admin has brought ends soon."""
    AUTHORITY_EXCHANGED = "AuthorityExchanged"
    """Another certificate authority signs for runs from now on; runs in flight end under theirs."""
    POD_PENDING = "PodPending"
    UNSCHEDULABLE = "Unschedulable"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    VOLUME_NOT_READY = "VolumeNotReady"
    """A ConfigMap or Secret that the pod mounts is missing, or a volume cannot be mounted."""
    CONTAINER_NOT_STARTED = "ContainerNotStarted"
    STARTED = "Started"
    COMMAND_FAILED = "CommandFailed"
    COMMAND_NOT_FOUND = "CommandNotFound"
    TIMED_OUT = "TimedOut"
    CANCELLED = "Cancelled"
    SOURCE_UNAVAILABLE = "SourceUnavailable"
    """An archive cannot be downloaded."""
    BAD_SOURCE = "BadSource"
    """An archive is not the one that was meant, or cannot be unpacked; or files of a source are in each other's way."""
    BAD_OUTPUT = "BadOutput"
    """An output source could not be read: bad JSON, a missing file, a bad manifest, a failed command."""
    DUPLICATE_OUTPUT = "DuplicateOutput"
    OUTPUT_TOO_LARGE = "OutputTooLarge"
    PROTOCOL_MISMATCH = "ProtocolMismatch"
    """Agent and operator have no protocol version in common."""
    AGENT_UNREACHABLE = "AgentUnreachable"
    """The agent's pod runs, but it cannot be reached."""
    AGENT_MISBEHAVED = "AgentMisbehaved"
    """The agent broke the protocol (wrong run, wrong sizes, wrong digests)."""
    AGENT_CRASHED = "AgentCrashed"
    OOM_KILLED = "OOMKilled"
    EVICTED = "Evicted"
    """The node, the scheduler or a controller has taken the pod away; its words are quoted."""
    OUTPUTS_LOST = "OutputsLost"
    """Every command succeeded, but the agent ended before its outputs were stored."""
    CANNOT_RECOLLECT = "CannotRecollect"
    """The engine cannot read its outputs again without another run."""
    POD_LOST = "PodLost"
    """The pod is gone and did not say how it ended, or was stopped, and nobody says why."""
