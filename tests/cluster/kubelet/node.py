"""The Node object: registered, and its heartbeat."""

import asyncio
import platform

from cluster.kubelet.api import Api, ApiError, Json
from cluster.kubelet.machine import HOST_IP, Settings
from cluster.kubelet.statuses import now

CONFLICT, NOT_FOUND = 409, 404
HEARTBEAT_SECONDS = 10
STATUS_EVERY = 12
ENOUGH = {"cpu": "64", "memory": "256Gi", "ephemeral-storage": "1Ti", "pods": "1000"}
VERSION = "stand-in"


def allocatable(settings: Settings) -> dict[str, str]:
    """What pods may request of this node."""
    return {**ENOUGH, **settings.allocatable}


def labels(settings: Settings) -> dict[str, str]:
    """The labels that the node registers with."""
    architecture = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    return {
        "kubernetes.io/hostname": settings.node_name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": architecture,
        **settings.labels,
    }


async def register(api: Api, settings: Settings, port: int) -> None:
    """Make the Node, or take over the one of a former life, and say that it is ready."""
    metadata = {"name": settings.node_name, "labels": labels(settings)}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {}}
    try:
        await api.call("POST", "/api/v1/nodes", body=node)
    except ApiError as error:
        if error.status != CONFLICT:
            raise
        await api.call("PATCH", f"/api/v1/nodes/{settings.node_name}", body={"metadata": metadata}, patch="merge")
    await _report(api, settings, port, ready=True)
    await _renew(api, settings)


async def beat(api: Api, settings: Settings, port: int) -> None:
    """Renew the node's lease, for ever, and its status now and then."""
    beats = 0
    while True:
        await asyncio.sleep(HEARTBEAT_SECONDS)
        beats += 1
        try:
            await _renew(api, settings)
            if beats % STATUS_EVERY == 0:
                await _report(api, settings, port, ready=True)
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise
            await register(api, settings, port)


async def resign(api: Api, settings: Settings) -> None:
    """Say that the node is ready no longer."""
    await _report(api, settings, 0, ready=False)


async def _report(api: Api, settings: Settings, port: int, *, ready: bool) -> None:
    resources = allocatable(settings)
    status: Json = {
        "capacity": resources,
        "allocatable": resources,
        # No host name: API servers prefer it to the address, and nothing resolves it.
        "addresses": [{"type": "InternalIP", "address": HOST_IP}],
        "conditions": [
            {
                "type": "Ready",
                "status": "True" if ready else "False",
                "reason": "KubeletReady" if ready else "KubeletNotReady",
                "message": "kubelet is posting ready status" if ready else "the stand-in kubelet has stopped",
                "lastHeartbeatTime": now(),
                "lastTransitionTime": now(),
            },
            *(
                {
                    "type": kind,
                    "status": "False",
                    "reason": "KubeletHasEnough",
                    "message": "the stand-in kubelet does not look",
                    "lastHeartbeatTime": now(),
                }
                for kind in ("MemoryPressure", "DiskPressure", "PIDPressure")
            ),
        ],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        "nodeInfo": {
            "kubeletVersion": VERSION,
            "operatingSystem": "linux",
            "architecture": labels(settings)["kubernetes.io/arch"],
            "kernelVersion": platform.release(),
            "osImage": "stand-in",
            "containerRuntimeVersion": "bubblewrap://0",
            "kubeProxyVersion": VERSION,
            "bootID": "",
            "machineID": "",
            "systemUUID": "",
        },
    }
    path = f"/api/v1/nodes/{settings.node_name}/status"
    await api.call("PATCH", path, body={"status": status}, patch="strategic")


async def _renew(api: Api, settings: Settings) -> None:
    collection = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
    spec = {
        "holderIdentity": settings.node_name,
        "leaseDurationSeconds": 40,
        "renewTime": now().replace("Z", ".000000Z"),
    }
    try:
        await api.call("PATCH", f"{collection}/{settings.node_name}", body={"spec": spec}, patch="merge")
    except ApiError as error:
        if error.status != NOT_FOUND:
            raise
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": settings.node_name},
            "spec": spec,
        }
        await api.call("POST", collection, body=lease)
