"""A plain client: makes the writes of runs as fast as the API server takes them, and decides nothing."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from cluster.kubelet.api import Api
from cluster.objects import Json
from outhaul_api.vocabulary import UNINSTALL_FINALIZER

from bench.scale.models import Model, new
from bench.scale.places import NAMESPACE, Place
from bench.scale.usage import Usage

_OURS = f"/apis/outhaul.dev/v1alpha1/namespaces/{NAMESPACE}"
_CORE = f"/api/v1/namespaces/{NAMESPACE}"
AT_ONCE = 32
"""Runs, and so requests, at a time."""


@dataclass(frozen=True)
class Plain:
    """What the API server took of a plain client."""

    runs: int
    seconds: float
    server: Usage
    """Of the API server and etcd."""

    @property
    def per_second(self) -> float:
        """Runs in a second."""
        return self.runs / self.seconds


async def create_installations(user: Api, names: Sequence[str], spec: Json) -> None:
    """Creates Installations as fast as it goes."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def create(name: str) -> None:
        async with slots:
            await user.call("POST", f"{_OURS}/installations", body=_installation(name, spec))

    await asyncio.gather(*map(create, names))


async def write_runs(place: Place, model: Model, names: Sequence[str], *, brief: bool = False) -> Plain:
    """Makes the writes of one run for each name: those of a user and of the operator, each as who makes it.

    What of it has its time goes again afterwards, and is not measured: the pods, and the Secrets that agents read.

    Args:
        place: where.
        model: the run.
        names: the Installations' names.
        brief: leaves out the writes of which nothing stays.
    """
    async with (
        Api.from_kubeconfig(place.control_plane.kubeconfig) as user,
        Api.from_kubeconfig(place.operator_kubeconfig) as operator,
    ):
        slots = asyncio.Semaphore(AT_ONCE)
        over: list[str] = []

        async def run(name: str) -> None:
            async with slots:
                over.extend(await _write(user, operator, model, name, brief=brief))

        async def delete(path: str) -> None:
            async with slots:
                await operator.call("DELETE", path)

        server, began = place.server_usage(), time.monotonic()
        await asyncio.gather(*map(run, names))
        measured = Plain(len(names), time.monotonic() - began, place.server_usage() - server)
        await asyncio.gather(*map(delete, over))
        return measured


async def _write(user: Api, operator: Api, model: Model, name: str, *, brief: bool) -> list[str]:
    """Makes the writes of one run in their order; returns the paths of what does not stay."""
    installation = await user.call(
        "POST", f"{_OURS}/installations", body=_installation(name, model.installation["spec"])
    )
    uid, path = installation["metadata"]["uid"], f"{_OURS}/installations/{name}"
    finalizers = [
        {"op": "test", "path": "/metadata/resourceVersion", "value": installation["metadata"]["resourceVersion"]},
        {"op": "add", "path": "/metadata/finalizers", "value": [UNINSTALL_FINALIZER]},
    ]
    await operator.call("PATCH", path, body=finalizers, patch="json")
    action = await operator.call("POST", f"{_OURS}/agentactions", body=new(model.called(name, uid).action))
    run, action_uid = action["metadata"]["name"], action["metadata"]["uid"]
    action_path = f"{_OURS}/agentactions/{run}"
    one = model.called(name, uid, action_uid)
    started, ended = (new(event) for event in one.events)
    instructions, outputs, latest = (new(secret) for secret in one.secrets)
    if not brief:
        await operator.call("POST", f"{_CORE}/events", body=started)
        await _say(operator, path, uid, one.installation["status"])
        await operator.call("POST", f"{_CORE}/secrets", body=instructions)
        await operator.call("POST", f"{_CORE}/pods", body=new(one.pod))
        await _say(operator, action_path, action_uid, one.action["status"] | {"phase": "Running"})
    await operator.call("POST", f"{_CORE}/secrets", body=outputs)
    await operator.call("POST", f"{_OURS}/installationoutputs", body=new(one.record) | {"status": one.record["status"]})
    await operator.call("POST", f"{_CORE}/secrets", body=latest)
    await _say(operator, action_path, action_uid, one.action["status"])
    await _say(operator, path, uid, one.installation["status"])
    if brief:
        return []
    await operator.call("POST", f"{_CORE}/events", body=ended)
    return [f"{_CORE}/secrets/{run}-run", f"{_CORE}/pods/{run}"]


async def _say(operator: Api, path: str, uid: str, status: Json) -> None:
    operations: list[Json] = [
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "add", "path": "/status", "value": status},
    ]
    await operator.call("PATCH", f"{path}/status", body=operations, patch="json")


def _installation(name: str, spec: Json) -> Json:
    kind = {"apiVersion": "outhaul.dev/v1alpha1", "kind": "Installation"}
    return {**kind, "metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}
