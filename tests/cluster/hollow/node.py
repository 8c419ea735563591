"""The hollow node: follows the pods that are bound to it and keeps a hollow agent for each."""

import asyncio
import base64
import json
import logging
import shutil
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from cluster.hollow.agents import HollowAgent
from cluster.kubelet import node
from cluster.kubelet.addresses import Addresses
from cluster.kubelet.api import Api, ApiError, Changed, Deleted, Json, Relisted
from cluster.kubelet.machine import HOST_IP, Settings
from cluster.kubelet.statuses import Record, now, pod_status

logger = logging.getLogger(__name__)
GONE_OR_OTHER = frozenset({404, 409})
ROOM = {"pods": "20000"}
STARTS_AT_ONCE = 16
"""Pods that are started at a time, as on a kubelet: the others wait."""


class Node:
    """One hollow node.

    Args:
        api: a connection to the API server.
        root: for the runs' Secrets, and `moments.jsonl`.
        name: the node's name.
    """

    def __init__(self, api: Api, root: Path, name: str) -> None:
        self._api = api
        self._root = root
        self._settings = Settings(root, name, allocatable=ROOM)
        self._addresses = Addresses()
        self._starts = asyncio.Semaphore(STARTS_AT_ONCE)
        self._pods: dict[str, asyncio.Task[None]] = {}
        self._leaving: set[str] = set()

    async def run(self, stop: asyncio.Event) -> None:
        """Serves until told to stop."""
        await node.register(self._api, self._settings, 0)
        services = [node.beat(self._api, self._settings, 0), self._follow()]
        tasks = {asyncio.ensure_future(service) for service in services}
        waiter = asyncio.create_task(stop.wait())
        logger.info("node %s is ready", self._settings.node_name)
        done, _ = await asyncio.wait({*tasks, waiter}, return_when=asyncio.FIRST_COMPLETED)
        for task in [*tasks, waiter, *self._pods.values()]:
            task.cancel()
        await asyncio.gather(*tasks, *self._pods.values(), return_exceptions=True)
        for task in done - {waiter}:
            task.result()  # a service never ends by itself: raise what ended it

    async def _follow(self) -> None:
        async for event in self._api.follow("/api/v1/pods", fields=f"spec.nodeName={self._settings.node_name}"):
            match event:
                case Relisted(items):
                    for item in items:
                        self._observe(item)
                case Changed(item):
                    self._observe(item)
                case Deleted(item):
                    self._forget(item)
                    self._leaving.discard(item["metadata"]["uid"])

    def _observe(self, pod: Json) -> None:
        metadata = pod["metadata"]
        uid = metadata["uid"]
        if metadata.get("deletionTimestamp") and uid not in self._leaving:
            self._forget(pod)
            self._leaving.add(uid)
            self._begin(uid, self._delete(pod))
        elif uid not in self._pods and pod.get("status", {}).get("phase") == "Pending":
            self._begin(uid, self._live(pod))

    def _begin(self, uid: str, life: Coroutine[Any, Any, None]) -> None:
        self._pods[uid] = asyncio.create_task(life, name=uid)
        self._pods[uid].add_done_callback(_report)

    def _forget(self, pod: Json) -> None:
        task = self._pods.pop(pod["metadata"]["uid"], None)
        if task is not None:
            task.cancel()

    async def _live(self, pod: Json) -> None:
        ip = self._addresses.take()
        record = Record(
            pod["spec"]["containers"][0]["name"],
            pod["spec"]["containers"][0]["image"],
            {"waiting": {"reason": "ContainerCreating"}},
        )
        start_time = now()
        try:
            async with self._starts:
                await self._publish(pod, record, ip="", start_time=start_time)
                agent = await self._agent(pod, ip)
                await agent.start()
                record.state, record.ready, record.started = {"running": {"startedAt": now()}}, True, True
                record.container_id = f"hollow://{ip}"
                await self._publish(pod, record, ip=ip, start_time=start_time)
            try:
                message = await agent.run()
            finally:
                await agent.stop()
            self._tell(pod, agent)
            ended = {"exitCode": 0, "reason": "Completed", "message": message, "finishedAt": now()}
            record.state, record.ready = {"terminated": ended}, False
            await self._publish(pod, record, ip=ip, start_time=start_time)
        finally:
            self._addresses.release(ip)

    async def _agent(self, pod: Json, ip: str) -> HollowAgent:
        """Returns the pod's agent, which reads the run's Secret from files, as from a volume."""
        metadata = pod["metadata"]
        (name,) = [one["secret"]["secretName"] for one in pod["spec"]["volumes"] if one["name"] == "run"]
        secret = await self._api.call("GET", f"/api/v1/namespaces/{metadata['namespace']}/secrets/{name}")
        folder = self._root / metadata["uid"]
        folder.mkdir(mode=0o700)
        try:
            for file, content in secret["data"].items():
                (folder / file).write_bytes(base64.b64decode(content))
            return HollowAgent(folder, ip)
        finally:
            shutil.rmtree(folder)

    def _tell(self, pod: Json, agent: HollowAgent) -> None:
        metadata = pod["metadata"]
        moment = {"namespace": metadata["namespace"], "pod": metadata["name"], "done": agent.done_at}
        with (self._root / "moments.jsonl").open("a") as file:
            file.write(json.dumps(moment) + "\n")

    async def _publish(self, pod: Json, record: Record, *, ip: str, start_time: str) -> None:
        metadata = pod["metadata"]
        status = pod_status(
            pod,
            [],
            [record],
            pod_ip=ip,
            host_ip=HOST_IP,
            start_time=start_time,
            verdict=None,
            previous=pod.get("status", {}).get("conditions", []),
        )
        pod["status"] = status
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/status"
        body = {"metadata": {"uid": metadata["uid"]}, "status": status}
        await self._api.call("PATCH", path, body=body, patch="strategic")

    async def _delete(self, pod: Json) -> None:
        """Lets the API server forget a pod."""
        metadata = pod["metadata"]
        preconditions = {"uid": metadata["uid"]}
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0, "preconditions": preconditions}
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        await self._api.call("DELETE", path, body=options)


def _report(task: asyncio.Task[None]) -> None:
    """Logs what went wrong; a pod that is gone, or about to go, is nothing wrong."""
    if task.cancelled() or (error := task.exception()) is None:
        return
    if not isinstance(error, ApiError) or error.status not in GONE_OR_OTHER:
        logger.error("pod %s", task.get_name(), exc_info=error)
