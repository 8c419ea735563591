"""The end of what is installed: what holds an Installation until then, and what goes with it.

`installations` calls it where nothing is installed any more, `dispatches` where an uninstall takes no run.
"""

from outhaul_api.vocabulary import (
    FORCE_DELETE_ANNOTATION,
    UNINSTALL_FINALIZER,
    Action,
    ActionPhase,
    DeletionPolicy,
    InstallationPhase,
    OutputPhase,
    Reason,
)

from outhaul_operator import events, finalizers, leaving, lending, namespaces, outcomes, publishing, showing
from outhaul_operator.cluster import Cluster
from outhaul_operator.decisions import Due, next_run
from outhaul_operator.kinds import Object
from outhaul_operator.outcomes import Outcome
from outhaul_operator.passes import Pass


async def hold(this: Pass, *, is_starting: bool = False) -> None:
    """Sees to it that the finalizer is there where a run, or an uninstall, has to come before the end, and only there.

    Args:
        this: The pass.
        is_starting: Whether a run is about to start: it comes to its end also where nothing is uninstalled after it.
    """
    if not this.is_deleting:
        wanted = is_starting or this.installation.spec.deletion_policy is DeletionPolicy.DELETE
        this.put(await finalizers.set_uninstall(this.cluster, this.obj, wanted=wanted))


async def release(this: Pass) -> None:
    """Takes the finalizer away; the API server and the garbage collector do the rest."""
    this.put(await finalizers.set_uninstall(this.cluster, this.obj, wanted=False))


async def leave_by_force(this: Pass) -> None:
    """Lets an Installation go at once, whatever it waits for. A run under way is told to stop: its pod goes too."""
    await leaving.say(this, f"{FORCE_DELETE_ANNOTATION} is true")
    await release(this)


async def leave_with_namespace(this: Pass) -> None:
    """Lets an Installation go in whose namespace no uninstall can be started any more."""
    await leaving.say_of_namespace(this)
    await release(this)


async def leave_unread(cluster: Cluster, obj: Object) -> bool:
    """Lets an Installation go that cannot be read, where it would be let go without an uninstall.

    Returns:
        Whether it goes.
    """
    metadata = obj["metadata"]
    if UNINSTALL_FINALIZER not in metadata.get("finalizers", []) or not metadata.get("deletionTimestamp"):
        return False
    if not leaving.is_forced(obj) and not await namespaces.is_ending(cluster, metadata["namespace"]):
        return False
    await leaving.say_of_unread(cluster, obj)
    await finalizers.set_uninstall(cluster, obj, wanted=False)
    return True


async def end(this: Pass) -> Outcome | None:
    """Lets an Installation go of which nothing is installed, or says that it stays as that; None where it goes."""
    if this.is_deleting:
        if this.is_held and this.installation.spec.deletion_policy is DeletionPolicy.ORPHAN:
            await leaving.say(this, "deletionPolicy Orphan", "Normal")
        elif this.is_held and this.run is not None and outcomes.is_uninstall_success(this.run):
            said = f"run {this.run.name} has uninstalled it"
            await events.emit(this.cluster, this.obj, "Normal", Reason.UNINSTALLED, said)
        await release(this)
        return None
    await lending.drop(this, this.actions)
    if this.installation.status.phase is not InstallationPhase.UNINSTALLED:
        await showing.withdraw(this)
    return outcomes.uninstalled("uninstalled, as spec.uninstalled asks")


async def end_without_a_run(this: Pass) -> Outcome | None:
    """Remembers an uninstall that takes no run as one that has succeeded: wanted again, it is installed again."""
    if not this.is_deleting:
        await publishing.mark_records(this.cluster, this.namespace, this.name, OutputPhase.INVALIDATED)
        run = next_run(this.installation, this.run, Due(Action.UNINSTALL))
        this.run, this.action = run.model_copy(update={"phase": ActionPhase.SUCCEEDED}), None
    return await end(this)
