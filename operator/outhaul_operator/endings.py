"""The end of what is installed: what holds an Installation until then, and what goes with it.

`installations` calls it where nothing is installed any more, `dispatches` where an uninstall takes no run.
"""

from outhaul_api.vocabulary import Action, ActionPhase, DeletionPolicy, OutputPhase

from outhaul_operator import finalizers, latest, lending, outcomes, publishing
from outhaul_operator.decisions import Due, next_run
from outhaul_operator.outcomes import Outcome
from outhaul_operator.passes import Pass


async def hold(this: Pass) -> None:
    """Sees to it that the finalizer is there where an uninstall has to come before the end, and only there."""
    if not this.is_deleting:
        wanted = this.installation.spec.deletion_policy is DeletionPolicy.DELETE
        this.put(await finalizers.set_uninstall(this.cluster, this.obj, wanted=wanted))


async def release(this: Pass) -> None:
    """Takes the finalizer away; the API server and the garbage collector do the rest."""
    this.put(await finalizers.set_uninstall(this.cluster, this.obj, wanted=False))


async def end(this: Pass) -> Outcome | None:
    """Lets an Installation go of which nothing is installed, or says that it stays as that; None where it goes."""
    if this.is_deleting:
        await release(this)
        return None
    await lending.drop(this, this.actions)
    binding = this.installation.status.binding
    if binding is not None:
        await latest.withdraw_latest(this.cluster, this.namespace, binding.name, this.installation.metadata.uid)
    return outcomes.uninstalled("uninstalled, as spec.uninstalled asks")


async def end_without_a_run(this: Pass) -> Outcome | None:
    """Remembers an uninstall that takes no run as one that has succeeded: wanted again, it is installed again."""
    if not this.is_deleting:
        await publishing.mark_records(this.cluster, this.namespace, this.name, OutputPhase.INVALIDATED)
        run = next_run(this.installation, this.run, Due(Action.UNINSTALL))
        this.run, this.action = run.model_copy(update={"phase": ActionPhase.SUCCEEDED}), None
    return await end(this)
