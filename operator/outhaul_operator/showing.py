"""Makes sure that the latest Secret shows what it should, from what the run's own Secrets hold.

`installations` calls it once the newest run has ended: the Secret may not have been written before, may be wanted in
another form, and is compared now and then, in case somebody has deleted or edited it.
"""

from outhaul_api.agentaction import AgentAction
from outhaul_api.installation import Installation, RunReference
from outhaul_api.vocabulary import RECOLLECT_ANNOTATION, RETRY_ANNOTATION, Action, ActionPhase, Reason

from outhaul_operator import contents, latest, names, publishing
from outhaul_operator.decisions import reference_of
from outhaul_operator.passes import Pass
from outhaul_operator.verdicts import StalledError


def latest_name(installation: Installation) -> str:
    """Returns the name that the latest Secret should have."""
    return names.latest_secret_name(installation.metadata.name, installation.spec.outputs.secret_name)


def wanted_digest(installation: Installation, run: RunReference) -> str:
    """Returns the digest of what the latest Secret is made from, when it shows a run."""
    return contents.publication_digest(run.name, latest_name(installation), installation.spec.outputs)


async def keep(this: Pass, *, check: bool, sweep: bool) -> None:
    """Sees to it that the latest Secret is as it should be.

    Args:
        this: The pass; takes note of what is shown now.
        check: Whether the Secret itself is compared, even if nothing seems to be new.
        sweep: Whether it is looked then for what a publication that did not come to its end has left.

    Raises:
        StalledError: It cannot be written; the message says why.
    """
    run, status = this.run, this.installation.status
    if run is None or run.action is Action.UNINSTALL:
        return
    is_new = run.phase is ActionPhase.SUCCEEDED
    shown = run if is_new else status.last_succeeded
    action = next((one for one in this.actions if shown is not None and one.metadata.name == shown.name), None)
    if shown is None or action is None or action.status.output is None:
        return
    wanted = wanted_digest(this.installation, shown)
    try:
        # What the run itself has published counts until the Installation has taken note of it, and never again.
        is_known = status.last_succeeded is not None and status.last_succeeded.name == shown.name
        if check or wanted != (status.publication if is_known else action.status.publication):
            await _show(this, action, sweep=sweep)
        await withdraw(this, but=latest_name(this.installation))
        this.shown = wanted
    except StalledError:
        this.is_hidden = True
        # The failure of the newest run says more.
        if is_new:
            raise


async def _show(this: Pass, action: AgentAction, *, sweep: bool) -> None:
    """Writes the latest Secret, where it is not as it should be.

    Args:
        this: The pass.
        action: The newest successful run.
        sweep: Whether to look for parts that nobody needs.

    Raises:
        StalledError: The name is taken, a template cannot be rendered, or what the run has stored is gone.
        WaitingError: The Secret changed meanwhile.
    """
    installation, name = this.installation, latest_name(this.installation)
    binding, newest = installation.status.binding, installation.status.action
    number = newest.number if newest is not None else 0
    try:
        async with publishing.stored(this.cluster, this.context.budget, action) as outputs:
            wanted = installation.spec.outputs
            data = await contents.contents(this.context.renderer, this.namespace, outputs, wanted)
            await latest.publish_latest(
                this.cluster, action, name, data, newest=number, expect=binding is not None, sweep=sweep
            )
    except publishing.LostError:
        can_recollect = all(one.command is not None for one in action.spec.outputs)
        raise StalledError(
            Reason.OUTPUTS_LOST,
            f"what run {action.metadata.name} has stored is gone, so Secret {name} cannot be written from it; "
            f"set the annotation {RECOLLECT_ANNOTATION if can_recollect else RETRY_ANNOTATION} to a new value",
        ) from None


async def withdraw(this: Pass, *, but: str | None = None) -> None:
    """Deletes the latest Secret, of whatever name it had since the Installation last took note of it.

    Args:
        this: The pass.
        but: The name that it should have now.
    """
    status = this.installation.status
    noted = status.last_succeeded.number if status.last_succeeded is not None else 0
    found = {one.status.latest_secret for one in this.actions if reference_of(one).number > noted}
    if status.binding is not None:
        found.add(status.binding.name)
    for name in sorted(one for one in found if one is not None and one != but):
        await latest.withdraw_latest(this.cluster, this.namespace, name, this.installation.metadata.uid)
