"""Starts a run: its Secret, then its pod, each made once. A run never has a second pod.

`runs` calls it first; it may run again after a crash, and then finds what it made before.
"""

import asyncio
import base64
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import NoReturn

from outhaul_api.agentaction import AgentAction
from outhaul_api.agentconfig import AgentConfigSpec
from outhaul_api.common import seconds
from outhaul_api.vocabulary import AUTHORITY_LABEL, ActionPhase, Reason, SecretType
from outhaul_grpc.layout import ROOTS_FILE

from outhaul_operator import guarded, names, ownership, pods, trust
from outhaul_operator.apierrors import AlreadyExistsError, ApiError, ConflictError, NotFoundError
from outhaul_operator.context import Context
from outhaul_operator.kinds import Kind, Object
from outhaul_operator.verdicts import RunFailedError, WaitingError
from outhaul_operator.view import Key

_LONGEST_S = 365 * 86400.0
"""Of what certificates are made for: whoever writes a timeout does not decide that a root lives for centuries."""
_LISTEN_S = 2.0
"""To events of a pod that is not there."""


def pod_key(action: AgentAction) -> Key:
    """Returns the key of the run's pod."""
    return Key(Kind.POD, action.metadata.namespace, names.pod_name(action.metadata.name))


def is_seen(context: Context, action: AgentAction) -> bool:
    """Tells whether a run's pod was made, by what is known without asking."""
    return action.status.pod is not None or ownership.is_of_run(context.view.get(pod_key(action)), action)


async def launch(context: Context, action: AgentAction, config: AgentConfigSpec, image: str) -> Key:
    """Returns the key of the run's pod, which is made, after its Secret, unless it was, also where it is gone by now.

    Raises:
        RunFailedError: An object of a name that the run needs exists and belongs to something else.
        WaitingError: The API server refuses the pod; its words are quoted.
    """
    key = pod_key(action)
    if is_seen(context, action):
        return key
    body = pods.pod(action, config, image)
    fingerprint, made_at = await _write_run_secret(context, action, config)
    if made_at is not None and await _is_gone(context, key, made_at):
        return key
    body["metadata"]["labels"][AUTHORITY_LABEL] = fingerprint
    try:
        created = await context.cluster.create(Kind.POD, body)
    except AlreadyExistsError:
        created = await context.cluster.get(*key)
        if not ownership.is_of_run(created, action):
            raise RunFailedError(
                Reason.NAME_TAKEN,
                f"pod {key.name} exists and is not of this run; delete it, then ask for another run",
            ) from None
    except ApiError as error:
        _refuse("pod", error)
    context.view.put(Kind.POD, created)
    return key


async def _is_gone(context: Context, key: Key, since: str) -> bool:
    """Tells whether the run's pod was made, and somebody has deleted it before any operator took note of it."""
    try:
        await context.cluster.get(*key)
    except NotFoundError:
        return await _was_made(context, key, since)
    return False


async def _was_made(context: Context, key: Key, since: str) -> bool:
    """Tells whether a pod of a name was made that is gone by now: the scheduler and the kubelet speak of each.

    Kubernetes forgets events after an hour.

    Args:
        context: Where.
        key: The pod's key.
        since: What was said before this time (RFC 3339, of the API server's clock) is of another pod of this name.

    Raises:
        ApiError: That cannot be asked.
    """
    about = {"involvedObject.kind": "Pod", "involvedObject.name": key.name}
    # A watch gives what there is, and goes on: it is listened to for a moment.
    with suppress(TimeoutError):
        async with asyncio.timeout(_LISTEN_S):
            async for one in context.cluster.watch_events(key.namespace, about):
                if one["metadata"]["creationTimestamp"] >= since:
                    return True
    return False


async def _write_run_secret(context: Context, action: AgentAction, config: AgentConfigSpec) -> tuple[str, str | None]:
    """Makes the run's Secret, unless it is there.

    Returns:
        The fingerprint of the authority that the run is under; and when the Secret was made, where that was before: a
        pod may have been made then, too.
    """
    timeout, linger = _period(seconds(action.spec.timeout)), _period(pods.linger_seconds(config))
    authority = await context.authorities.signer(trust.run_lifetime(timeout, linger))
    leaf = trust.issue_server(
        authority,
        namespace=action.metadata.namespace,
        name=action.metadata.name,
        run_uid=action.metadata.uid,
        timeout=timeout,
        linger=linger,
        now=datetime.now(UTC),
    )
    body = pods.run_secret(action, config, leaf.to_files(authority.roots))
    try:
        await context.cluster.create(Kind.SECRET, body)
    except AlreadyExistsError:
        name = body["metadata"]["name"]
        try:
            made = await guarded.guarded_read(
                context.cluster, action.metadata.namespace, name, SecretType.RUN, action.metadata.uid
            )
        except guarded.NotOursError:
            raise RunFailedError(
                Reason.NAME_TAKEN,
                f"Secret {name} exists and is not of this run; delete it, then ask for another run",
            ) from None
        # Made before a crash, or by another operator: maybe under an authority that is a former one by now.
        roots = made.get("data", {}).get(ROOTS_FILE, "")
        fingerprint = trust.fingerprint_of(base64.b64decode(roots)) or authority.fingerprint
        return fingerprint, made["metadata"]["creationTimestamp"]
    except ApiError as error:
        _refuse("Secret with the run's files", error)
    return authority.fingerprint, None


def _refuse(what: str, error: ApiError) -> NoReturn:
    """Says what keeps a run from its start where the API server does; a passing fault is no more than that."""
    if error.is_refusal:
        raise WaitingError(Reason.POD_REFUSED, f"the API server refuses the run's {what}: {error.message}") from error
    raise error


def _period(of_seconds: float) -> timedelta:
    return timedelta(seconds=min(of_seconds, _LONGEST_S))


async def is_launched(context: Context, action: AgentAction) -> bool:
    """Tells whether a run's pod is there, or was."""
    return action.status.pod is not None or await _pod(context, action) is not None


async def _pod(context: Context, action: AgentAction) -> Object | None:
    """Returns a run's pod; that it was not seen does not say that it is not there, so then the server is asked."""
    key = pod_key(action)
    try:
        pod = context.view.get(key) or await context.cluster.get(*key)
    except NotFoundError:
        return None
    context.view.put(Kind.POD, pod)
    return pod if ownership.is_of_run(pod, action) else None


async def remove(context: Context, pod: Object, *, unstarted: bool) -> bool:
    """Has a pod deleted, with the grace that it has.

    Args:
        context: Where.
        pod: The pod as it was seen.
        unstarted: Only if it has not changed since it was seen, when it had not started.

    Returns:
        Whether it was, or is gone.
    """
    seen = pod["metadata"]
    version = seen["resourceVersion"] if unstarted else None
    try:
        await context.cluster.delete(
            Kind.POD, seen["namespace"], seen["name"], uid=seen["uid"], resource_version=version
        )
    except ConflictError:
        return False
    return True


async def take_back(context: Context, action: AgentAction) -> bool:
    """Deletes a run whose pod has never started anything.

    Returns:
        Whether that was so; a run that has started goes on.
    """
    if action.status.phase is not ActionPhase.PENDING:
        return False
    namespace, name = action.metadata.namespace, action.metadata.name
    pod = await _pod(context, action)
    if pod is not None and pod.get("status", {}).get("phase", "Pending") != "Pending":
        return False
    try:
        if pod is None:
            # Should it be made this moment, it cannot start without this.
            await guarded.guarded_delete(
                context.cluster, namespace, names.run_secret_name(name), SecretType.RUN, action.metadata.uid
            )
        elif not await remove(context, pod, unstarted=True):
            return False
        await context.cluster.delete(Kind.AGENT_ACTION, namespace, name, uid=action.metadata.uid)
    except ConflictError:
        return False
    return True
