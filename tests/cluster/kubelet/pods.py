"""One pod's life on this node, from its binding to its deletion."""

import asyncio
import contextlib
import logging
import shutil
import signal
import time
from datetime import UTC, datetime
from typing import Any

from cluster.kubelet.api import ApiError, Json
from cluster.kubelet.containers import Runner, Surroundings
from cluster.kubelet.machine import HOST_IP, Machine
from cluster.kubelet.statuses import Record, Verdict, now, pod_status
from cluster.kubelet.volumes import MountError, Volumes

logger = logging.getLogger(__name__)
FINISHED = frozenset({"Succeeded", "Failed"})
GONE_OR_OTHER = frozenset({404, 409})
RETRY_SECONDS = 30.0
SETTLE_SECONDS = 0.2
DEADLINE = Verdict("Failed", "DeadlineExceeded", "Pod was active on the node longer than the specified deadline")


class Pod:
    """Runs one pod. `update` and `vanish` tell it what the API server says, `run` is its life."""

    def __init__(self, pod: Json, machine: Machine) -> None:
        self._pod = pod
        self._machine = machine
        metadata, spec, status = pod["metadata"], pod["spec"], pod.get("status", {})
        self._path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        folder = machine.settings.root / "pods" / metadata["uid"]
        volumes = Volumes(
            pod,
            folder / "volumes",
            api=machine.api,
            sources=machine.sources,
            claims=machine.settings.root / "claims",
            host_ip=HOST_IP,
        )
        self._around = Surroundings(pod, folder, volumes, machine, self._publish)
        policy = spec["restartPolicy"]
        first = "PodInitializing" if spec.get("initContainers") else "ContainerCreating"
        self._init = [
            Runner(
                container,
                _record(container, status.get("initContainerStatuses", []), first),
                self._around,
                "OnFailure" if policy == "Always" else policy,
                is_init=True,
            )
            for container in spec.get("initContainers", [])
        ]
        self._main = [
            Runner(
                container,
                _record(container, status.get("containerStatuses", []), first),
                self._around,
                policy,
            )
            for container in spec["containers"]
        ]
        self._start_time: str = status.get("startTime") or now()
        self._verdict: Verdict | None = None
        self._former_ips = [entry["ip"] for entry in status.get("podIPs", [])]
        self._conditions: list[Json] = status.get("conditions", [])
        self._published: Json | None = None
        self._publishing = asyncio.Lock()
        self._deletion = asyncio.Event()
        self._vanished = False
        self._grace = float(spec.get("terminationGracePeriodSeconds", 30))
        self.update(pod)

    @property
    def spec(self) -> Json:
        """The pod's spec, as last seen."""
        spec: Json = self._pod["spec"]
        return spec

    @property
    def is_finished(self) -> bool:
        """Whether it needs its share of the node no longer."""
        status = self._published or self._pod.get("status", {})
        return status.get("phase") in FINISHED

    def is_running(self, namespace: str, name: str, container: str) -> bool:
        """Whether this is the pod of that name, and its container has a process."""
        metadata = self._pod["metadata"]
        return (metadata["namespace"], metadata["name"]) == (namespace, name) and any(
            runner.process and runner.spec["name"] == container for runner in [*self._init, *self._main]
        )

    def update(self, pod: Json) -> None:
        """Take note of the pod as the API server has it now."""
        self._pod = self._around.pod = self._around.volumes.pod = pod
        metadata = pod["metadata"]
        if metadata.get("deletionTimestamp"):
            self._grace = float(metadata.get("deletionGracePeriodSeconds", 0))
            self._deletion.set()

    def vanish(self) -> None:
        """Take note that the API server has it no longer."""
        self._vanished = True
        self._grace = 0
        self._deletion.set()

    async def run(self) -> None:
        """Live until the pod is deleted."""
        if not self.is_finished and not self._deletion.is_set():
            await self._attend()
        await self._deletion.wait()
        if not self._vanished:
            await self._delete()
        self._machine.addresses.release(self._around.ip)
        shutil.rmtree(self._around.folder, ignore_errors=True)

    async def _attend(self) -> None:
        """Run the containers until they have ended, were told to, or have had their time."""
        life = asyncio.create_task(self._live())
        deletion = asyncio.create_task(self._deletion.wait())
        try:
            await asyncio.wait({life, deletion}, timeout=self._time_left(), return_when=asyncio.FIRST_COMPLETED)
            if life.done():
                life.result()
                return
            if not self._deletion.is_set():
                self._verdict = DEADLINE
            life.cancel()
            await asyncio.wait({life})
            await self._stop()
        except Exception as error:  # a defect here must show in the pod, not hang a test
            logger.exception("pod %s", self._path)
            self._verdict = Verdict("Failed", "StandInKubeletError", repr(error))
            await self._stop()
        finally:
            life.cancel()
            deletion.cancel()
        await self._publish()

    def _time_left(self) -> float | None:
        seconds = self.spec.get("activeDeadlineSeconds")
        if seconds is None:
            return None
        start = datetime.fromisoformat(self._start_time)
        return max(0.0, float(seconds) - (datetime.now(UTC) - start).total_seconds())

    async def _live(self) -> None:
        for runner in [*self._init, *self._main]:
            if runner.was_lost:
                runner.lose()
        await self._publish()
        if self.spec["restartPolicy"] == "Never" and self._all_ended():
            return
        volumes = self._around.volumes
        with self._machine.sources.notify(volumes.references()) as changed:
            self._around.ip = volumes.pod_ip = (
                HOST_IP if self.spec.get("hostNetwork") else self._machine.addresses.take()
            )
            await self._mount(changed)
            refresh = asyncio.create_task(self._refresh(changed))
            try:
                await self._run_containers()
            finally:
                refresh.cancel()

    def _all_ended(self) -> bool:
        failed = any(runner.record.exit_code not in {0, None} for runner in self._init)
        return failed or all(runner.record.exit_code is not None for runner in self._main)

    async def _run_containers(self) -> None:
        for runner in self._init:
            await runner.run()
            if runner.record.exit_code != 0:
                return
        async with asyncio.TaskGroup() as group:
            for runner in self._main:
                group.create_task(runner.run())

    async def _mount(self, changed: asyncio.Event) -> None:
        """Set up the volumes, once everything that they show is there."""
        folder = self._around.folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        name = self._pod["metadata"]["name"]
        (folder / "hosts").write_text(f"127.0.0.1\tlocalhost\n::1\tlocalhost\n{self._around.ip}\t{name}\n")
        while True:
            changed.clear()
            try:
                await self._around.volumes.set_up()
            except MountError as error:
                await self._machine.events.warn(self._pod, "FailedMount", str(error))
            else:
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), RETRY_SECONDS)

    async def _refresh(self, changed: asyncio.Event) -> None:
        """Keep the volumes up to date."""
        volumes = self._around.volumes
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), volumes.renew_after)
            await asyncio.sleep(SETTLE_SECONDS)
            changed.clear()
            try:
                await volumes.set_up()
            except MountError as error:  # what is there stays, as on a real node
                logger.info("pod %s: %s", self._path, error)

    async def _stop(self) -> None:
        """End all processes: ask, wait for the grace period, then insist."""
        running = [(runner, runner.process) for runner in [*self._init, *self._main] if runner.process]
        for _, process in running:
            await process.send(signal.SIGTERM)
        began = time.monotonic()
        waiting: set[asyncio.Task[Any]] = {asyncio.create_task(process.wait()) for _, process in running}
        # A second deletion may shorten the grace period meanwhile, so look again now and then.
        while waiting and (left := began + self._grace - time.monotonic()) > 0:
            _, waiting = await asyncio.wait(waiting, timeout=min(left, 0.5))
        for runner, process in running:
            await process.send(signal.SIGKILL)
            runner.finish(await process.wait())

    async def _publish(self) -> None:
        """Write the status, where it changed."""
        async with self._publishing:
            status = pod_status(
                self._pod,
                [runner.record for runner in self._init],
                [runner.record for runner in self._main],
                pod_ip=self._around.ip,
                host_ip=HOST_IP,
                start_time=self._start_time,
                verdict=self._verdict,
                previous=self._conditions,
            )
            if status == self._published or self._vanished:
                return
            # This list is merged by address: one of a former life has to be taken out of it.
            former = [ip for ip in self._former_ips if ip != self._around.ip] if self._around.ip else []
            removals = [{"$patch": "delete", "ip": ip} for ip in former]
            body = {"metadata": {"uid": self._pod["metadata"]["uid"]}, "status": {**status}}
            if removals:
                body["status"]["podIPs"] = [*status["podIPs"], *removals]
            try:
                await self._machine.api.call("PATCH", f"{self._path}/status", body=body, patch="strategic")
            except ApiError as error:
                level = logging.INFO if error.status in GONE_OR_OTHER else logging.ERROR
                logger.log(level, "pod %s: %s", self._path, error)
            if removals:
                self._former_ips = []
            self._published = status
            self._conditions = status["conditions"]

    async def _delete(self) -> None:
        """Let the API server forget the pod."""
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "gracePeriodSeconds": 0,
            "preconditions": {"uid": self._pod["metadata"]["uid"]},
        }
        try:
            await self._machine.api.call("DELETE", self._path, body=options)
        except ApiError as error:
            if error.status not in GONE_OR_OTHER:
                raise


def _record(container: Json, statuses: list[Json], waiting: str) -> Record:
    """What is known of a container from the pod's status, or its beginning."""
    for status in statuses:
        if status["name"] == container["name"]:
            return Record(
                container["name"],
                container["image"],
                status["state"],
                status.get("lastState", {}),
                status.get("restartCount", 0),
                container_id=status.get("containerID", ""),
            )
    return Record(container["name"], container["image"], {"waiting": {"reason": waiting}})
