"""Writes where an Installation stands: its status, once a pass and only if it says anything new, and an event.

`outcomes` has the words; `installations` calls this at the end of a pass.
"""

from outhaul_api.installation import Binding, InstallationStatus
from outhaul_api.installationoutput import InstallationOutput
from outhaul_api.vocabulary import ActionPhase, InstallationCondition, InstallationPhase, Reason
from pydantic import ValidationError

from outhaul_operator import events, outcomes, showing
from outhaul_operator.apierrors import NotFoundError
from outhaul_operator.cluster import Cluster
from outhaul_operator.kinds import Kind, Object
from outhaul_operator.outcomes import Outcome
from outhaul_operator.passes import Pass
from outhaul_operator.verdicts import StalledError


async def write(this: Pass, outcome: Outcome) -> None:
    """Writes the status where it says anything new, and an event where a person should know."""
    old = this.installation.status
    generation = this.installation.metadata.generation
    status = old.model_copy(
        update={
            "observed_generation": generation,
            "phase": outcome.phase,
            "action": this.run,
            "conditions": outcomes.conditions(old.conditions, outcome, this.run, generation)
            + outcomes.suspension(old.conditions, this.installation, generation)
            + outcomes.dependencies(old.conditions, this.installation, this.needs, generation),
        }
    )
    await _remember_success(this, status, outcome)
    wanted = status.to_json()
    if wanted == this.obj.get("status"):
        return
    await _tell(this, outcome)
    this.put(await this.cluster.apply_status(Kind.INSTALLATION, this.obj, wanted))


async def _tell(this: Pass, outcome: Outcome) -> None:
    """Says what is new in a status that is about to be written."""
    old, run = this.installation.status, this.run
    generation = this.installation.metadata.generation
    is_known = run is None or (old.action is not None and old.action.name == run.name)
    if run is not None and this.action is not None and not is_known:
        message = f"run {run.name} was created to {run.action} generation {run.generation}"
        if run.attempt is not None:
            message += f" (attempt {run.attempt})"
        await events.emit(this.cluster, this.obj, "Normal", Reason.DISPATCHED, message)
    said = outcomes.find(old.conditions, InstallationCondition.READY)
    is_new = said is None or (said.reason, said.message) != (outcome.reason, outcome.message)
    is_held_up = outcome.reason in {Reason.AGENT_CONFIG_NOT_FOUND, Reason.IN_USE, Reason.RETRY_SCHEDULED}
    if is_new and (outcome.stalled or outcome.ready or is_held_up):
        kind: events.EventType = "Normal" if outcome.ready else "Warning"
        fact = f"{generation} {run.name if run is not None else ''}"
        await events.emit(this.cluster, this.obj, kind, outcome.reason, outcome.message, fact=fact)


async def _remember_success(this: Pass, status: InstallationStatus, outcome: Outcome) -> None:
    run, action = this.run, this.action
    if outcomes.is_uninstall_success(run) or outcome.phase is InstallationPhase.UNINSTALLED:
        status.last_succeeded, status.binding, status.outputs, status.publication = None, None, [], None
        return
    if this.is_hidden:
        # So that the next pass tries again, and does not take for shown what is not.
        status.publication = None
    if this.shown is not None:
        status.publication = this.shown
        status.binding = Binding(name=showing.latest_name(this.installation))
    if run is None or run.phase is not ActionPhase.SUCCEEDED:
        return
    is_known = status.last_succeeded is not None and status.last_succeeded.name == run.name
    status.last_succeeded = run
    if action is not None and action.status.output is not None and not is_known:
        status.outputs = await _names(this.cluster, this.namespace, action.status.output)


async def _names(cluster: Cluster, namespace: str, record: str) -> list[str]:
    """Returns the names of the outputs in a record; none where somebody has deleted it."""
    try:
        obj = await cluster.get(Kind.INSTALLATION_OUTPUT, namespace, record)
    except NotFoundError:
        return []
    return [one.name for one in InstallationOutput.model_validate(obj).status.outputs]


async def refuse(cluster: Cluster, obj: Object, why: str) -> None:
    """Says of an Installation that cannot be read what is wrong with it."""
    try:
        status = InstallationStatus.model_validate(obj.get("status", {}))
    except ValidationError:
        status = InstallationStatus()
    generation = obj["metadata"]["generation"]
    outcome = outcomes.stalled(StalledError(Reason.INVALID_SPEC, why))
    status.observed_generation, status.phase = generation, outcome.phase
    status.conditions = outcomes.conditions(status.conditions, outcome, None, generation)
    if status.to_json() == obj.get("status"):
        return
    await events.emit(cluster, obj, "Warning", outcome.reason, outcome.message, fact=str(generation))
    await cluster.apply_status(Kind.INSTALLATION, obj, status.to_json())
