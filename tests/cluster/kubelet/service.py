"""The kubelet itself: follows what the API server says and keeps one task a pod."""

import asyncio
import contextlib
import logging
import shutil
from collections.abc import Awaitable, Callable

from cluster.kubelet import node
from cluster.kubelet.addresses import Addresses
from cluster.kubelet.api import Api, ApiError, Changed, Deleted, Json, Relisted
from cluster.kubelet.events import Recorder
from cluster.kubelet.logs import LogServer
from cluster.kubelet.machine import Machine, Settings
from cluster.kubelet.pods import Pod
from cluster.kubelet.sandbox import find_bubblewrap
from cluster.kubelet.scheduling import misfit
from cluster.kubelet.sources import Sources
from cluster.kubelet.statuses import now

logger = logging.getLogger(__name__)
NOT_OURS = frozenset({403, 404, 409})
RESIGN_SECONDS = 2


class Kubelet:
    """One stand-in node."""

    def __init__(self, settings: Settings, api: Api) -> None:
        self._settings = settings
        self._api = api
        self._machine = Machine(
            settings=settings,
            api=api,
            sources=Sources(api),
            addresses=Addresses(),
            events=Recorder(api, settings.node_name),
            bubblewrap=find_bubblewrap(),
        )
        self._pods: dict[str, tuple[Pod, asyncio.Task[None]]] = {}
        self._pending: dict[str, Json] = {}
        self._bound: dict[str, Json] = {}
        self._node: Json | None = None
        self._look_again = asyncio.Event()

    async def run(self, stop: asyncio.Event, ready: Callable[[], None]) -> None:
        """Serve until told to stop.

        Args:
            stop: Set when it is time to end.
            ready: Called once the node is ready.
        """
        for name in ("logs", "pods", "claims"):
            (self._settings.root / name).mkdir(parents=True, exist_ok=True, mode=0o700)
        logs = LogServer(self._settings.root, self._api.authorities, self._is_running)
        async with logs.serve() as port:
            await node.register(self._api, self._settings, port)
            await self._serve(stop, ready, port)
        with contextlib.suppress(TimeoutError):  # the API server may have ended before us
            await asyncio.wait_for(node.resign(self._api, self._settings), RESIGN_SECONDS)

    async def _serve(self, stop: asyncio.Event, ready: Callable[[], None], port: int) -> None:
        services: list[Awaitable[None]] = [
            node.beat(self._api, self._settings, port),
            self._machine.sources.follow("Secret"),
            self._machine.sources.follow("ConfigMap"),
            self._follow_pods(),
            self._follow_pending(),
            self._follow_node(),
            self._schedule(),
        ]
        tasks = {asyncio.ensure_future(service) for service in services}
        waiter = asyncio.create_task(stop.wait())
        ready()
        done, _ = await asyncio.wait({*tasks, waiter}, return_when=asyncio.FIRST_COMPLETED)
        for task in [*tasks, waiter, *(task for _, task in self._pods.values())]:
            task.cancel()
        for task in done - {waiter}:
            task.result()  # a service never ends by itself: raise what ended it

    def _is_running(self, namespace: str, name: str, container: str) -> bool:
        return any(pod.is_running(namespace, name, container) for pod, _ in self._pods.values())

    async def _follow_pods(self) -> None:
        """Keep one task for each pod that is bound to this node."""
        first = True
        fields = f"spec.nodeName={self._settings.node_name}"
        async for event in self._api.follow("/api/v1/pods", fields=fields):
            match event:
                case Relisted(items):
                    present = {item["metadata"]["uid"] for item in items}
                    if first:
                        self._clean(present)
                        first = False
                    for uid in self._pods.keys() - present:
                        self._pods[uid][0].vanish()
                    for item in items:
                        self._observe(item)
                case Changed(item):
                    self._observe(item)
                case Deleted(item):
                    if known := self._pods.get(item["metadata"]["uid"]):
                        known[0].vanish()
            self._look_again.set()

    def _observe(self, item: Json) -> None:
        uid = item["metadata"]["uid"]
        self._bound.pop(uid, None)
        if known := self._pods.get(uid):
            known[0].update(item)
            return
        pod = Pod(item, self._machine)
        task = asyncio.create_task(pod.run(), name=item["metadata"]["name"])
        self._pods[uid] = pod, task
        task.add_done_callback(lambda task: self._end(uid, task))

    def _end(self, uid: str, task: asyncio.Task[None]) -> None:
        self._pods.pop(uid, None)
        self._look_again.set()
        if not task.cancelled() and (error := task.exception()):
            logger.error("pod %s", task.get_name(), exc_info=error)

    def _clean(self, present: set[str]) -> None:
        """Remove what a former life left of pods that are gone."""
        for folder in (self._settings.root / "pods").iterdir():
            if folder.name not in present:
                shutil.rmtree(folder, ignore_errors=True)

    async def _follow_pending(self) -> None:
        """Keep the pods that no node has yet."""
        async for event in self._api.follow("/api/v1/pods", fields="spec.nodeName="):
            match event:
                case Relisted(items):
                    self._pending = {item["metadata"]["uid"]: item for item in items}
                case Changed(item):
                    self._pending[item["metadata"]["uid"]] = item
                case Deleted(item):
                    self._pending.pop(item["metadata"]["uid"], None)
            self._look_again.set()

    async def _follow_node(self) -> None:
        fields = f"metadata.name={self._settings.node_name}"
        async for event in self._api.follow("/api/v1/nodes", fields=fields):
            match event:
                case Relisted([item]) | Changed(item):
                    changed = self._node is None or _fitness(item) != _fitness(self._node)
                    self._node = item
                    if changed:
                        self._look_again.set()
                case _:
                    self._node = None

    async def _schedule(self) -> None:
        """Bind what fits, whenever something changed that could matter."""
        while True:
            await self._look_again.wait()
            self._look_again.clear()
            if self._node is None:
                continue
            for uid, pod in list(self._pending.items()):
                if pod["metadata"].get("deletionTimestamp"):
                    continue
                sharing = [known.spec for known, _ in self._pods.values() if not known.is_finished]
                problem = misfit(pod["spec"], self._node, [*sharing, *self._bound.values()])
                try:
                    if problem is None:
                        await self._bind(pod)
                        self._pending.pop(uid, None)
                        if uid not in self._pods:
                            self._bound[uid] = pod["spec"]
                    else:
                        await self._refuse(pod, problem)
                except ApiError as error:
                    if error.status not in NOT_OURS:
                        raise
                    self._pending.pop(uid, None)

    async def _bind(self, pod: Json) -> None:
        metadata = pod["metadata"]
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": metadata["name"], "uid": metadata["uid"]},
            "target": {"apiVersion": "v1", "kind": "Node", "name": self._settings.node_name},
        }
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/binding"
        await self._api.call("POST", path, body=binding)
        where = f"Successfully assigned {metadata['namespace']}/{metadata['name']} to {self._settings.node_name}"
        await self._machine.events.say(pod, "Scheduled", where, component="default-scheduler")

    async def _refuse(self, pod: Json, message: str) -> None:
        """Say in the pod's status why it waits, where that is not said yet."""
        metadata = pod["metadata"]
        for condition in pod.get("status", {}).get("conditions", []):
            if condition["type"] == "PodScheduled" and condition.get("message") == message:
                return
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": message,
            "lastTransitionTime": now(),
        }
        body = {"metadata": {"uid": metadata["uid"]}, "status": {"conditions": [condition]}}
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/status"
        await self._api.call("PATCH", path, body=body, patch="strategic")
        await self._machine.events.warn(pod, "FailedScheduling", message, component="default-scheduler")


def _fitness(item: Json) -> tuple[Json, bool, Json]:
    """What of a node decides whether pods fit."""
    return (
        item["metadata"].get("labels", {}),
        item["spec"].get("unschedulable", False),
        item["status"].get("allocatable", {}),
    )
