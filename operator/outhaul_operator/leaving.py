"""Says what is left behind where an Installation goes without an uninstall: by force, as an orphan, with its namespace.

`installations` and `endings` call it before they take the finalizer away, after which there is nobody left to tell.
"""

import contextlib
import logging

from outhaul_api.installation import Installation, RunReference
from outhaul_api.vocabulary import FORCE_DELETE_ANNOTATION, Reason

from outhaul_operator import configs, engines, events
from outhaul_operator.cluster import Cluster
from outhaul_operator.decisions import has_left_nothing
from outhaul_operator.kinds import Object
from outhaul_operator.passes import Pass
from outhaul_operator.verdicts import VerdictError

_logger = logging.getLogger(__name__)


def is_forced(obj: Object) -> bool:
    """Tells whether an Installation that is being deleted is to go at once."""
    metadata = obj["metadata"]
    word = (metadata.get("annotations") or {}).get(FORCE_DELETE_ANNOTATION)
    return bool(metadata.get("deletionTimestamp")) and word == "true"


def remains(installation: Installation, run: RunReference | None, engine: str | None) -> str:
    """Returns what is left behind, for people. Pure.

    Args:
        installation: Who goes.
        run: Its newest run.
        engine: The engine that its AgentConfig names.
    """
    if run is None or has_left_nothing(run):
        return "nothing was installed"
    texts = [f"what run {run.name} ({run.action}) and those before it have installed may still be there"]
    if run.phase is None:
        texts.append("it is under way, and told to stop as its pod is deleted")
    state = engines.state(installation, engine)
    if state is not None:
        texts.append(state)
    return "; ".join(texts)


async def say(this: Pass, why: str, type_: events.EventType = "Warning") -> None:
    """Says on an Installation what it leaves behind.

    Args:
        this: The pass.
        why: Why it goes without an uninstall.
        type_: Warning where a person should look.
    """
    message = f"gone without an uninstall ({why}): {await _remains(this)}"
    _logger.warning("%s/%s: %s", this.namespace, this.name, message)
    await events.emit(this.cluster, this.obj, type_, Reason.LEFT_BEHIND, message, must=True)


async def say_of_namespace(this: Pass) -> None:
    """Says what an Installation leaves behind whose namespace takes no events any more: on the namespace."""
    message = (
        f"Installation {this.name} went without an uninstall, since its namespace is deleted: {await _remains(this)}"
    )
    _logger.warning("%s: %s", this.namespace, message)
    fact = this.installation.metadata.uid
    await events.emit_of_namespace(this.cluster, this.namespace, Reason.LEFT_BEHIND, message, fact=fact)


async def say_of_unread(cluster: Cluster, obj: Object) -> None:
    """Says of an Installation that cannot be read that it may leave something behind."""
    metadata = obj["metadata"]
    message = "gone without an uninstall: it cannot be read; what its runs have installed may still be there"
    _logger.warning("%s/%s: %s", metadata["namespace"], metadata["name"], message)
    await events.emit(cluster, obj, "Warning", Reason.LEFT_BEHIND, message, must=True)


async def _remains(this: Pass) -> str:
    wanted = this.installation.spec.agent_config
    engine = None
    # Gone with the rest, perhaps.
    with contextlib.suppress(VerdictError):
        config = await configs.resolve(
            this.cluster,
            this.context.settings.namespace,
            this.namespace,
            wanted.name if wanted is not None else None,
        )
        engine = config.engine
    return remains(this.installation, this.run, engine)
