"""One container's life: image, configuration, process, exit, and again where the policy says so."""

import asyncio
import contextlib
import itertools
import logging
import signal
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from cluster.kubelet.api import Json
from cluster.kubelet.environment import ContainerConfigError, compose, expand, field_of, references
from cluster.kubelet.health import PROBES, Health
from cluster.kubelet.machine import HOST_IP, Machine, log_file
from cluster.kubelet.sandbox import STANDARD_PATH, Bind, Container, Process
from cluster.kubelet.statuses import Record, now
from cluster.kubelet.volumes import Volumes

logger = logging.getLogger(__name__)
PULL_PAUSES = (2.0, 5.0, 10.0, 20.0)
RESTART_FIRST, RESTART_LIMIT = 0.5, 10.0
RETRY_SECONDS = 30.0
MESSAGE_BYTES = 4096
LOG_TAIL_BYTES = 2048
IMAGE_USER = 65532
START_FAILED = 128
EPOCH = "1970-01-01T00:00:00Z"
SIGNALS = range(129, 129 + 64)


@dataclass
class Surroundings:
    """What a container sees of its pod."""

    pod: Json
    folder: Path
    volumes: Volumes
    machine: Machine
    publish: Callable[[], Awaitable[None]]
    ip: str = ""

    def field(self, path: str) -> str:
        """A field of the pod."""
        return field_of(self.pod, path, pod_ip=self.ip, host_ip=HOST_IP)


class Runner:
    """Runs one container of a pod."""

    def __init__(self, spec: Json, record: Record, around: Surroundings, policy: str, *, is_init: bool = False) -> None:
        self.spec = spec
        self.record = record
        self.process: Process | None = None
        self._around = around
        self._policy = policy
        self._health: asyncio.Task[None] | None = None
        self._is_init = is_init
        metadata = around.pod["metadata"]
        self._namespace: str = metadata["namespace"]
        self._pod_name: str = metadata["name"]
        self._log = log_file(around.machine.settings.root, self._namespace, self._pod_name, spec["name"])

    @property
    def _attempt(self) -> Path:
        """A folder that exists once this attempt was started."""
        return self._around.folder / "containers" / str(self.spec["name"]) / str(self.record.restarts)

    @property
    def was_lost(self) -> bool:
        """Whether it was started by a kubelet that is gone, and its end was never seen."""
        return self.record.exit_code is None and ("running" in self.record.state or self._attempt.exists())

    async def run(self) -> None:
        """Run until it has ended for good; its record then says how."""
        pause = RESTART_FIRST
        if self.record.exit_code is not None:
            if not self._again(self.record.exit_code):
                return
            self._next_attempt()
        while True:
            await self._pull()
            await self._start(await self._configure())
            if self.process:
                self.finish(await self.process.wait())
            await self._around.publish()
            code = self.record.exit_code
            if code is None or not self._again(code):
                return
            await self._back_off(pause)
            pause = min(pause * 2, RESTART_LIMIT)

    def finish(self, code: int) -> None:
        """Record the end of the process."""
        process, self.process = self.process, None
        if process is None:
            return
        process.close()
        if self._health:
            self._health.cancel()
        self.record.started = False
        self.record.ready = self._is_init and code == 0
        if (problem := process.failure(code)) is not None:
            self._start_failed(problem)
            return
        terminated = {
            "exitCode": code,
            "reason": "Error" if code else "Completed",
            "startedAt": self.record.state.get("running", {}).get("startedAt") or now(),
            "finishedAt": now(),
            "containerID": self.record.container_id,
        }
        if code in SIGNALS:
            terminated["signal"] = code - 128
        if message := self._message(code):
            terminated["message"] = message
        self.record.state = {"terminated": terminated}

    def lose(self) -> None:
        """Record that its end was never seen."""
        self.record.ready = False
        self.record.state = {
            "terminated": {
                "exitCode": 137,
                "reason": "ContainerStatusUnknown",
                "message": "The container could not be located when the pod was terminated",
                "startedAt": self.record.state.get("running", {}).get("startedAt"),
                "finishedAt": now(),
            }
        }

    def _again(self, code: int) -> bool:
        return self._policy == "Always" or (self._policy == "OnFailure" and code != 0)

    def _next_attempt(self) -> None:
        self.record.last_state = self.record.state
        self.record.restarts += 1

    async def _wait_for(self, reason: str, message: str) -> None:
        """Say what it waits for."""
        state = {"waiting": {"reason": reason, "message": message}}
        if state != self.record.state:
            self.record.state = state
            await self._around.publish()

    async def _back_off(self, seconds: float) -> None:
        self._next_attempt()
        uid = self._around.pod["metadata"]["uid"]
        where = f"container={self.spec['name']} pod={self._pod_name}_{self._namespace}({uid})"
        await self._wait_for("CrashLoopBackOff", f"back-off {seconds:g}s restarting failed {where}")
        await asyncio.sleep(seconds)

    async def _pull(self) -> None:
        """Wait for ever where the image cannot be had."""
        image, machine = self.spec["image"], self._around.machine
        if not machine.settings.is_missing(image):
            return
        if self.spec.get("imagePullPolicy") == "Never":
            message = f'Container image "{image}" is not present with pull policy of Never'
            await machine.events.warn(self._around.pod, "ErrImageNeverPull", message)
            await self._wait_for("ErrImageNeverPull", message)
            await asyncio.Event().wait()
        problem = (
            f'rpc error: code = NotFound desc = failed to pull and unpack image "{image}": '
            f'failed to resolve reference "{image}": {image}: not found'
        )
        for attempt in itertools.count():
            await self._wait_for("ErrImagePull", problem)
            await machine.events.warn(self._around.pod, "Failed", f'Failed to pull image "{image}": {problem}')
            await asyncio.sleep(0.2)
            await self._wait_for("ImagePullBackOff", f'Back-off pulling image "{image}"')
            await asyncio.sleep(PULL_PAUSES[min(attempt, len(PULL_PAUSES) - 1)])

    async def _configure(self) -> Container:
        """What to run, once everything that it refers to is there."""
        machine = self._around.machine
        with machine.sources.notify(references(self.spec, self._namespace)) as changed:
            while True:
                changed.clear()
                try:
                    return await self._container()
                except ContainerConfigError as error:
                    await self._wait_for("CreateContainerConfigError", str(error))
                    await machine.events.warn(self._around.pod, "Failed", f"Error: {error}")
                try:
                    await asyncio.wait_for(changed.wait(), RETRY_SECONDS)
                except TimeoutError:
                    continue

    async def _container(self) -> Container:
        settings = self._around.machine.settings
        uid, gid, read_only_root = self._security()
        host, port = self._around.machine.api.address
        variables = await compose(
            self.spec,
            self._namespace,
            base={
                "PATH": ":".join([*settings.path, STANDARD_PATH]),
                "HOSTNAME": self._hostname,
                "HOME": "/root" if uid == 0 else "/",
                "KUBERNETES_SERVICE_HOST": host,
                "KUBERNETES_SERVICE_PORT": str(port),
                "KUBERNETES_SERVICE_PORT_HTTPS": str(port),
                **settings.environment,
            },
            read=self._around.machine.sources.read,
            field=self._around.field,
        )
        command = self.spec.get("command") or settings.entrypoint(self.spec["image"])
        return Container(
            command=[expand(word, variables) for word in [*command, *self.spec.get("args", [])]],
            environment=variables,
            binds=[*settings.extra_binds(), *self._binds(variables)],
            hostname=self._hostname,
            uid=uid,
            gid=gid,
            working_dir=self.spec.get("workingDir") or "/",
            read_only_root=read_only_root,
        )

    @property
    def _hostname(self) -> str:
        return str(self._around.pod["spec"].get("hostname") or self._pod_name)[:63]

    def _security(self) -> tuple[int, int, bool]:
        """User, group, and whether the root is read-only."""
        context = {
            **self._around.pod["spec"].get("securityContext", {}),
            **self.spec.get("securityContext", {}),
        }
        non_root = context.get("runAsNonRoot", False)
        uid = context.get("runAsUser", IMAGE_USER if non_root else 0)
        if non_root and uid == 0:
            raise ContainerConfigError(
                "container's runAsUser breaks non-root policy "
                f'(pod: "{self._pod_name}_{self._namespace}({self._around.pod["metadata"]["uid"]})", '
                f"container: {self.spec['name']})"
            )
        return uid, context.get("runAsGroup", 0), context.get("readOnlyRootFilesystem", False)

    def _binds(self, variables: dict[str, str]) -> list[Bind]:
        """The volumes, the pod's hosts file and the file for the termination message."""
        binds = [Bind(self._around.folder / "hosts", "/etc/hosts")]
        for mount in self.spec.get("volumeMounts", []):
            sub_path = mount.get("subPath") or expand(mount.get("subPathExpr", ""), variables)
            source = self._around.volumes.path(mount, sub_path)
            binds.append(Bind(source, mount["mountPath"], read_only=mount.get("readOnly", False)))
        return [*binds, Bind(self._message_file, self._message_path)]

    @property
    def _message_path(self) -> str:
        return str(self.spec.get("terminationMessagePath") or "/dev/termination-log")

    @property
    def _message_file(self) -> Path:
        return self._attempt / "termination-log"

    async def _start(self, container: Container) -> None:
        self._attempt.mkdir(parents=True, exist_ok=True)
        self._message_file.touch()
        self._message_file.chmod(0o666)
        self.record.container_id = f"standin://{uuid.uuid4().hex}"
        if not container.command:
            self._start_failed("no command specified")
            return
        self.process = Process(
            container,
            bubblewrap=self._around.machine.bubblewrap,
            log=self._log,
            fresh=self.record.restarts == 0,
        )
        await self.process.started()
        self.record.state = {"running": {"startedAt": now()}}
        if self.process.has_exited:  # perhaps it never ran: its end is all there is to say
            return
        probed = any(probe in self.spec for probe in PROBES)
        self.record.started = self.record.ready = not probed
        if probed:
            health = Health(
                self.spec,
                self._around.ip,
                execute=self.process.execute,
                ready=self._set_ready,
                unwell=self._end_unwell,
            )
            self._health = asyncio.create_task(health.follow())
        await self._around.publish()

    async def _set_ready(self, ready: bool) -> None:  # noqa: FBT001 # a callback
        self.record.started, self.record.ready = True, ready
        await self._around.publish()

    async def _end_unwell(self) -> None:
        """End a container whose probe says that it should not go on."""
        message = f"Container {self.spec['name']} failed its probe, will be restarted"
        await self._around.machine.events.warn(self._around.pod, "Unhealthy", message)
        if process := self.process:
            await process.send(signal.SIGTERM)
            grace = self._around.pod["spec"].get("terminationGracePeriodSeconds", 30)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), grace)
            await process.send(signal.SIGKILL)

    def _start_failed(self, problem: str) -> None:
        self.record.state = {
            "terminated": {
                "exitCode": START_FAILED,
                "reason": "StartError",
                "message": f"failed to create containerd task: OCI runtime create failed: {problem}: unknown",
                "startedAt": EPOCH,
                "finishedAt": now(),
                "containerID": self.record.container_id,
            }
        }

    def _message(self, code: int) -> str:
        """The termination message."""
        try:
            with self._message_file.open("rb") as file:
                message = file.read(MESSAGE_BYTES)
        except OSError:
            message = b""
        if not message and code and self.spec.get("terminationMessagePolicy") == "FallbackToLogsOnError":
            message = self._log.read_bytes()[-LOG_TAIL_BYTES:]
        return message.decode(errors="replace")
