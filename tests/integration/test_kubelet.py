"""The stand-in kubelet against a real API server: what the other tests rely on when they use it as a node."""

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import proxy
from cluster.controlplane import ControlPlane
from cluster.kubelet import StandInKubelet
from cluster.kubelet.api import Api, ApiError, Deleted, Json, Relisted
from cluster.proxy import Proxy
from cluster.waiting import until

NODE = "stand-in"
NOBODY = 65534
SECONDS = 120


@pytest.fixture(scope="module")
def kubelet(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandInKubelet]:
    """A node that all tests of this module share."""
    with StandInKubelet(control_plane.kubeconfig, tmp_path_factory.mktemp("kubelet"), NODE) as running:
        yield running


@pytest.fixture
async def api(control_plane: ControlPlane) -> AsyncIterator[Api]:
    """The API server, as an administrator."""
    async with Api.from_kubeconfig(control_plane.kubeconfig) as connected:
        yield connected


class Pods:
    """The pods of one namespace."""

    def __init__(self, api: Api, namespace: str, kubelet: StandInKubelet) -> None:
        self.api = api
        self.namespace = namespace
        self._kubelet = kubelet

    async def create(self, script: str = "", **spec: Any) -> str:
        """Creates a pod that runs a shell script; `container` and other fields of the spec come on top."""
        name = f"pod-{uuid.uuid4().hex[:8]}"
        container = {
            "name": "main",
            "image": "any",
            "command": ["sh", "-c", script],
            **spec.pop("container", {}),
        }
        body = {
            "metadata": {"name": name, "labels": {"colour": "red"}},
            "spec": {"restartPolicy": "Never", "containers": [container], **spec},
        }
        await self.api.call("POST", f"/api/v1/namespaces/{self.namespace}/pods", body=body)
        return name

    async def add(self, kind: str, name: str, data: dict[str, str]) -> None:
        """Creates a Secret or ConfigMap, or replaces what is in it."""
        path = f"/api/v1/namespaces/{self.namespace}/{kind.lower()}s"
        key = "stringData" if kind == "Secret" else "data"
        try:
            await self.api.call("POST", path, body={"metadata": {"name": name}, key: data})
        except ApiError:
            await self.api.call("PATCH", f"{path}/{name}", body={key: data}, patch="merge")

    async def until(self, name: str, wanted: Callable[[Json], Any], *, within: float = SECONDS) -> Json:
        """Watches a pod until what is wanted is true of it."""
        path, last = f"/api/v1/namespaces/{self.namespace}/pods", {}
        try:
            async with (
                asyncio.timeout(within),
                contextlib.aclosing(self.api.follow(path, fields=f"metadata.name={name}")) as events,
            ):
                async for event in events:
                    for last in event.items if isinstance(event, Relisted) else [event.item]:
                        if wanted(last):
                            return last
        except TimeoutError:
            pytest.fail(f"not in {within} s: {last.get('status')}")
        raise AssertionError

    async def ended(self, name: str, *, within: float = SECONDS) -> Json:
        """Watches a pod until it has ended, and returns how its container did."""
        pod = await self.until(name, lambda pod: pod["status"]["phase"] in {"Succeeded", "Failed"}, within=within)
        state: Json = pod["status"]["containerStatuses"][0]["state"]["terminated"]
        return {"phase": pod["status"]["phase"], **state}

    async def waiting(self, name: str, reason: str) -> str:
        """Watches a pod until its container waits for this reason, and returns the message."""
        pod = await self.until(name, lambda pod: _state(pod, "waiting").get("reason") == reason)
        return str(_state(pod, "waiting").get("message", ""))

    async def delete(self, name: str, **options: Any) -> Json:
        """Deletes a pod, watches until it is gone, and returns what it was at last."""
        path = f"/api/v1/namespaces/{self.namespace}/pods"
        async with (
            asyncio.timeout(SECONDS),
            contextlib.aclosing(self.api.follow(path, fields=f"metadata.name={name}")) as events,
        ):
            async for event in events:
                if isinstance(event, Relisted):
                    await self.api.call("DELETE", f"{path}/{name}", body={"kind": "DeleteOptions", **options})
                if isinstance(event, Deleted):
                    return event.item
        raise AssertionError

    async def warned(self, name: str, reason: str) -> str:
        """Watches until there is a warning about a pod, and returns its message."""
        path = f"/api/v1/namespaces/{self.namespace}/events"
        fields = f"involvedObject.name={name},reason={reason}"
        async with (
            asyncio.timeout(SECONDS),
            contextlib.aclosing(self.api.follow(path, fields=fields)) as events,
        ):
            async for event in events:
                for item in event.items if isinstance(event, Relisted) else [event.item]:
                    return str(item["message"])
        raise AssertionError

    def log(self, name: str, container: str = "main") -> str:
        """What a container has printed so far."""
        return self._kubelet.log(self.namespace, name, container)

    async def printed(self, name: str, text: str) -> None:
        """Waits until a container has printed something."""
        await asyncio.to_thread(until, lambda: text in self.log(name), what=f"{text} in the log of {name}")


@pytest.fixture
def pods(api: Api, namespace: str, kubelet: StandInKubelet) -> Pods:
    """The pods of the test's namespace."""
    return Pods(api, namespace, kubelet)


def _state(pod: Json, kind: str) -> Json:
    """The first container's state, if it is of this kind."""
    state: Json = _container(pod).get("state", {}).get(kind, {})
    return state


def _container(pod: Json) -> Json:
    """The first container's status, if there is one yet."""
    statuses: list[Json] = pod.get("status", {}).get("containerStatuses") or [{}]
    return statuses[0]


def _processes(marker: str) -> list[int]:
    """The processes of this machine whose command line contains a word."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if marker.encode() in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found


# Ends


async def test_command_that_succeeds(pods: Pods) -> None:
    """A command's output goes to the log and its success into the status."""
    name = await pods.create("echo hello; echo to stderr >&2; sleep 0.5")
    await pods.until(name, lambda pod: pod["status"]["phase"] == "Running")
    ended = await pods.ended(name)
    assert (ended["phase"], ended["exitCode"], ended["reason"]) == ("Succeeded", 0, "Completed")
    assert ended["startedAt"] <= ended["finishedAt"]
    assert pods.log(name) == "hello\nto stderr\n"


async def test_exit_code(pods: Pods) -> None:
    """A command's exit code is in the status, and the pod has failed."""
    ended = await pods.ended(await pods.create("exit 7"))
    assert (ended["phase"], ended["exitCode"], ended["reason"]) == ("Failed", 7, "Error")


async def test_command_that_does_not_exist(pods: Pods) -> None:
    """A command that cannot be started is told apart from one that fails."""
    ended = await pods.ended(await pods.create(container={"command": ["/does/not/exist"]}))
    assert (ended["exitCode"], ended["reason"]) == (128, "StartError")
    assert "/does/not/exist" in ended["message"]


async def test_termination_message(pods: Pods) -> None:
    """What the command writes to the termination log is the message, up to 4096 bytes."""
    ended = await pods.ended(await pods.create("printf '%05000d' 1 > /dev/termination-log"))
    assert ended["message"] == "0" * 4096


async def test_termination_message_at_a_path_of_its_own(pods: Pods) -> None:
    """The termination message may be anywhere."""
    container = {"terminationMessagePath": "/tmp/result/message"}  # noqa: S108 # in the container
    ended = await pods.ended(await pods.create("echo sum > /tmp/result/message", container=container))
    assert ended["message"] == "sum\n"


async def test_log_as_termination_message(pods: Pods) -> None:
    """The end of the log is the message of a command that fails without one, where that is wanted."""
    container = {"terminationMessagePolicy": "FallbackToLogsOnError"}
    ended = await pods.ended(await pods.create("echo why; exit 1", container=container))
    assert ended["message"] == "why\n"


async def test_active_deadline(pods: Pods) -> None:
    """A pod that runs too long fails, and its processes end."""
    name = await pods.create("exec sleep 1000", activeDeadlineSeconds=1, terminationGracePeriodSeconds=1)
    pod = await pods.until(name, lambda pod: pod["status"]["phase"] == "Failed")
    assert pod["status"]["reason"] == "DeadlineExceeded"


async def test_restart_policy(pods: Pods) -> None:
    """A command that fails is run again where the policy says so, and its last end is remembered."""
    script = "test -e /work/once && exit 0; touch /work/once; exit 3"
    volume = {"name": "work", "emptyDir": {}}
    mount = {"name": "work", "mountPath": "/work"}
    name = await pods.create(script, restartPolicy="OnFailure", volumes=[volume], container={"volumeMounts": [mount]})
    await pods.ended(name)
    pod = await pods.until(name, lambda pod: pod["status"]["phase"] == "Succeeded")
    status = pod["status"]["containerStatuses"][0]
    assert status["restartCount"] == 1
    assert status["lastState"]["terminated"]["exitCode"] == 3


# Environment


async def test_environment(pods: Pods) -> None:
    """Values, references, ConfigMaps, Secrets and the pod's own fields are in the environment."""
    await pods.add("ConfigMap", "settings", {"MODE": "fast"})
    await pods.add("Secret", "login", {"password": "s3cret"})
    container = {
        "envFrom": [{"prefix": "CFG_", "configMapRef": {"name": "settings"}}],
        "env": [
            {"name": "A", "value": "1"},
            {"name": "B", "value": "$(A)-$(CFG_MODE)-$(NONE)-$$(A)"},
            {"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "login", "key": "password"}}},
            {
                "name": "ABSENT",
                "valueFrom": {"secretKeyRef": {"name": "none", "key": "none", "optional": True}},
            },
            {"name": "COLOUR", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['colour']"}}},
            {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "WHO", "valueFrom": {"fieldRef": {"fieldPath": "spec.serviceAccountName"}}},
        ],
    }
    name = await pods.create("env; exit 0", container=container)
    pod = await pods.until(name, lambda pod: pod["status"]["phase"] == "Succeeded")
    printed = dict(line.split("=", 1) for line in pods.log(name).splitlines())
    assert printed["B"] == "1-fast-$(NONE)-$(A)"
    assert (printed["PASSWORD"], printed["COLOUR"], printed["WHO"]) == ("s3cret", "red", "default")
    assert printed["IP"] == pod["status"]["podIP"]
    assert printed["HOSTNAME"] == name
    assert "ABSENT" not in printed


async def test_secret_values_are_not_on_a_command_line(pods: Pods) -> None:
    """What is in a container's environment cannot be read from the list of processes."""
    word = uuid.uuid4().hex
    await pods.add("Secret", "login", {"password": word})
    variable = {"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "login", "key": "password"}}}
    name = await pods.create('echo "$PASSWORD"; exec sleep 1000', container={"env": [variable]})
    await pods.printed(name, word)
    assert not _processes(word)
    await pods.delete(name, gracePeriodSeconds=0)


async def test_missing_reference(pods: Pods) -> None:
    """A container waits for the ConfigMap of its environment, says so, and starts when it is there."""
    variable = {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "late", "key": "a"}}}
    name = await pods.create("echo $A", container={"env": [variable]})
    assert await pods.waiting(name, "CreateContainerConfigError") == 'configmap "late" not found'
    await pods.add("ConfigMap", "late", {"a": "here"})
    await pods.ended(name)
    assert pods.log(name) == "here\n"


async def test_root_is_refused(pods: Pods) -> None:
    """A pod that must not run as root and says it does so is not started."""
    name = await pods.create(securityContext={"runAsNonRoot": True, "runAsUser": 0})
    assert "non-root" in await pods.waiting(name, "CreateContainerConfigError")


async def test_restricted_pod(pods: Pods) -> None:
    """A container has the user it asks for, a read-only root where it asks for one, and no capabilities."""
    container = {"securityContext": {"runAsUser": 1234, "runAsNonRoot": True, "readOnlyRootFilesystem": True}}
    script = "id -u; touch /x 2>/dev/null || echo read-only; grep CapEff /proc/self/status"
    name = await pods.create(script, container=container)
    await pods.ended(name)
    assert pods.log(name).split() == ["1234", "read-only", "CapEff:", "0000000000000000"]


async def test_programs_of_the_tests(pods: Pods) -> None:
    """A container, whoever it runs as, finds the tests' own Python and what is installed for it."""
    container = {"command": ["python3", "-c", "import outhaul_agent, sys, yaml; print(sys.prefix)"]}
    name = await pods.create(container=container, securityContext={"runAsUser": 1234})
    assert (await pods.ended(name))["exitCode"] == 0
    assert pods.log(name).strip() == sys.prefix


# Volumes


async def test_secret_volume(pods: Pods) -> None:
    """A Secret is files with the wanted mode, and the files follow it when it changes."""
    await pods.add("Secret", "login", {"password": "old", "user": "me"})
    volume = {"name": "login", "secret": {"secretName": "login", "defaultMode": 0o400}}
    mount = {"name": "login", "mountPath": "/login", "readOnly": True}
    script = (
        "cat /login/password; stat -Lc ' %a' /login/user; readlink /login/user; "
        "touch /login/x 2>/dev/null && echo writable; until grep -q new /login/password; do sleep 0.1; done"
    )
    name = await pods.create(script, volumes=[volume], container={"volumeMounts": [mount]})
    await pods.printed(name, "..data/user")
    assert pods.log(name) == "old 400\n..data/user\n"
    await pods.add("Secret", "login", {"password": "new"})
    assert (await pods.ended(name, within=10))["exitCode"] == 0


async def test_missing_config_map(pods: Pods) -> None:
    """A pod waits for the ConfigMap of its volume, an event says so, and it starts when that is there."""
    volume = {"name": "files", "configMap": {"name": "late", "items": [{"key": "a", "path": "b/c"}]}}
    mount = {"name": "files", "mountPath": "/files"}
    name = await pods.create("cat /files/b/c", volumes=[volume], container={"volumeMounts": [mount]})
    await pods.waiting(name, "ContainerCreating")
    expected = 'MountVolume.SetUp failed for volume "files" : configmap "late" not found'
    assert await pods.warned(name, "FailedMount") == expected
    await pods.add("ConfigMap", "late", {"a": "text"})
    await pods.ended(name)
    assert pods.log(name) == "text"


async def test_init_container_shares_a_folder(pods: Pods) -> None:
    """Init containers run first, in order, and leave files in an emptyDir; a subPath shows a part of it."""
    mount = {"name": "work", "mountPath": "/work"}
    part = {"name": "work", "mountPath": "/part", "subPath": "sub", "readOnly": True}
    init = [
        {"name": step, "image": "any", "command": ["sh", "-c", script], "volumeMounts": [mount]}
        for step, script in (
            ("one", "mkdir /work/sub; echo 1 > /work/sub/f"),
            ("two", "echo 2 >> /work/sub/f"),
        )
    ]
    name = await pods.create(
        "cat /part/f; touch /part/g 2>/dev/null || echo read-only",
        volumes=[{"name": "work", "emptyDir": {}}],
        initContainers=init,
        container={"volumeMounts": [part]},
    )
    await pods.ended(name)
    assert pods.log(name) == "1\n2\nread-only\n"


async def test_failed_init_container(pods: Pods) -> None:
    """A pod whose init container fails has failed, and its container never starts."""
    init = [{"name": "one", "image": "any", "command": ["false"]}]
    name = await pods.create("echo never", initContainers=init)
    pod = await pods.until(name, lambda pod: pod["status"]["phase"] == "Failed")
    assert pod["status"]["initContainerStatuses"][0]["state"]["terminated"]["exitCode"] == 1
    assert pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == "PodInitializing"
    assert pods.log(name) == ""


async def test_projected_volume(pods: Pods) -> None:
    """One folder shows a Secret, a ConfigMap, fields of the pod and a token for a given audience."""
    await pods.add("Secret", "login", {"password": "s3cret"})
    await pods.add("ConfigMap", "settings", {"mode": "fast"})
    label = {"path": "colour", "fieldRef": {"fieldPath": "metadata.labels['colour']"}}
    token = {"path": "token", "audience": "somebody", "expirationSeconds": 600}
    sources = [
        {"secret": {"name": "login"}},
        {"configMap": {"name": "settings"}},
        {"secret": {"name": "none", "optional": True}},
        {"downwardAPI": {"items": [label]}},
        {"serviceAccountToken": token},
    ]
    name = await pods.create(
        "cd /all; cat password mode colour; cat token > /dev/termination-log",
        volumes=[{"name": "all", "projected": {"sources": sources}}],
        container={"volumeMounts": [{"name": "all", "mountPath": "/all"}]},
    )
    ended = await pods.ended(name)
    assert pods.log(name) == "s3cretfastred"
    review = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": {"token": ended["message"], "audiences": ["somebody"]},
    }
    answer = await pods.api.call("POST", "/apis/authentication.k8s.io/v1/tokenreviews", body=review)
    assert answer["status"]["user"]["username"] == f"system:serviceaccount:{pods.namespace}:default"


async def test_service_account(pods: Pods) -> None:
    """A program in a pod reaches the API server as its service account."""
    script = """
import json, os, ssl, urllib.request
folder = "/var/run/secrets/kubernetes.io/serviceaccount/"
read = lambda name: open(folder + name).read()
url = "https://{KUBERNETES_SERVICE_HOST}:{KUBERNETES_SERVICE_PORT}".format(**os.environ)
url += "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
spec = {"resourceAttributes": {"verb": "get", "resource": "secrets", "namespace": read("namespace")}}
request = urllib.request.Request(
    url,
    json.dumps({"spec": spec}).encode(),
    {"Authorization": "Bearer " + read("token"), "Content-Type": "application/json"},
)
context = ssl.create_default_context(cafile=folder + "ca.crt")
print(json.load(urllib.request.urlopen(request, context=context))["status"]["allowed"])
"""
    name = await pods.create(container={"command": ["python3", "-c", script]})
    ended = await pods.ended(name)
    assert (ended["exitCode"], pods.log(name)) == (0, "False\n")


# Deletion


async def test_deletion_lets_the_command_finish(pods: Pods) -> None:
    """A deleted pod's command gets SIGTERM as PID 1 and may end as it likes."""
    script = "trap 'echo bye > /dev/termination-log; exit 0' TERM; echo $$$$ ready; while :; do sleep 0.1; done"
    name = await pods.create(script)
    await pods.printed(name, "1 ready")
    pod = await pods.delete(name)
    ended = _state(pod, "terminated")
    assert (ended["exitCode"], ended["message"]) == (0, "bye\n")


async def test_deletion_insists(pods: Pods) -> None:
    """A command that ignores SIGTERM is killed after the grace period, not before."""
    name = await pods.create("trap '' TERM; echo ready; while :; do sleep 0.1; done")
    await pods.printed(name, "ready")
    began = time.monotonic()
    pod = await pods.delete(name, gracePeriodSeconds=1)
    ended = _state(pod, "terminated")
    assert (ended["exitCode"], ended["signal"], ended["reason"]) == (137, 9, "Error")
    assert 1 <= time.monotonic() - began < 60


async def test_forced_deletion(pods: Pods) -> None:
    """The processes of a pod that vanished are killed."""
    marker = f"{uuid.uuid4().hex}"
    name = await pods.create(f"trap '' TERM; echo ready; while :; do sleep 0.1; done; {marker}")
    await pods.printed(name, "ready")
    assert _processes(marker)
    await pods.delete(name, gracePeriodSeconds=0)
    await asyncio.to_thread(until, lambda: not _processes(marker), what="the end of the processes")


# Where it cannot run


async def test_unschedulable(pods: Pods) -> None:
    """A pod that no node can take says so, as the real scheduler does, and is bound once one can."""
    name = await pods.create("true", nodeSelector={"disk": pods.namespace})
    pod = await pods.until(name, lambda pod: pod["status"].get("conditions"))
    condition = pod["status"]["conditions"][0]
    assert (condition["type"], condition["status"], condition["reason"]) == (
        "PodScheduled",
        "False",
        "Unschedulable",
    )
    expected = "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity."
    assert condition["message"] == expected
    assert await pods.warned(name, "FailedScheduling") == expected
    await pods.api.call(
        "PATCH",
        f"/api/v1/nodes/{NODE}",
        body={"metadata": {"labels": {"disk": pods.namespace}}},
        patch="merge",
    )
    assert (await pods.ended(name))["exitCode"] == 0


async def test_too_big(pods: Pods) -> None:
    """A pod that requests more than the node has is not bound."""
    name = await pods.create(container={"resources": {"requests": {"cpu": "65"}}})
    pod = await pods.until(name, lambda pod: pod["status"].get("conditions"))
    assert pod["status"]["conditions"][0]["message"] == "0/1 nodes are available: 1 Insufficient cpu."


async def test_image_pull(pods: Pods) -> None:
    """An image that does not exist is waited for, with the reasons of a real kubelet."""
    name = await pods.create(container={"image": "localhost/does-not-exist:1"})
    assert "localhost/does-not-exist:1: not found" in await pods.waiting(name, "ErrImagePull")
    message = await pods.waiting(name, "ImagePullBackOff")
    assert message == 'Back-off pulling image "localhost/does-not-exist:1"'


async def test_image_never_pulled(pods: Pods) -> None:
    """An image that must not be pulled and is not there is an error of its own."""
    name = await pods.create(container={"image": "does-not-exist:1", "imagePullPolicy": "Never"})
    message = await pods.waiting(name, "ErrImageNeverPull")
    assert message == 'Container image "does-not-exist:1" is not present with pull policy of Never'


# Probes and logs


async def test_readiness(pods: Pods) -> None:
    """A container is ready once its probe says so, by HTTP on the pod's own address."""
    script = (
        "import http.server, os; "
        "http.server.test(http.server.SimpleHTTPRequestHandler, bind=os.environ['IP'], port=8080)"
    )
    container = {
        "command": ["sh", "-c", f'sleep 1; exec python3 -c "{script}"'],
        "env": [{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        "ports": [{"name": "web", "containerPort": 8080}],
        "readinessProbe": {"httpGet": {"port": "web", "path": "/etc/passwd"}, "periodSeconds": 1},
    }
    name = await pods.create(container=container)
    pod = await pods.until(name, lambda pod: _state(pod, "running"))
    assert not pod["status"]["containerStatuses"][0]["ready"]
    await pods.until(name, lambda pod: _container(pod).get("ready"))
    await pods.delete(name, gracePeriodSeconds=0)


async def test_liveness(pods: Pods) -> None:
    """A container whose probe, a command in its own sandbox, fails is ended and started again."""
    probe = {"exec": {"command": ["test", "-e", "/alive"]}, "periodSeconds": 1, "failureThreshold": 1}
    name = await pods.create(
        "touch /alive; sleep 2; rm /alive; trap 'exit 9' TERM; while :; do sleep 0.1; done",
        restartPolicy="Always",
        container={"livenessProbe": {**probe, "initialDelaySeconds": 1}},
    )
    pod = await pods.until(name, lambda pod: _container(pod).get("restartCount") == 1)
    assert pod["status"]["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 9
    await pods.delete(name, gracePeriodSeconds=0)


async def test_kubectl_logs(control_plane: ControlPlane, pods: Pods) -> None:
    """`kubectl logs` shows what a container has printed, and follows it to its end."""
    name = await pods.create("echo one; echo two; sleep 1; echo three")
    await pods.printed(name, "two")
    logs = ("logs", "-n", pods.namespace, name)
    assert await asyncio.to_thread(control_plane.kubectl, *logs, "--tail=1") == "two\n"
    assert await asyncio.to_thread(control_plane.kubectl, *logs, "--follow") == "one\ntwo\nthree\n"


# The kubelet itself


async def test_addresses(pods: Pods) -> None:
    """Two pods can listen on the same port, each on its own address."""
    script = (
        "import os, socket; server = socket.create_server((os.environ['IP'], 8443)); print('up', flush=True); "
        "server.accept()[0].sendall(os.environ['IP'].encode())"
    )
    container = {
        "command": ["python3", "-c", script],
        "env": [{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
    }
    names = [await pods.create(container=container) for _ in range(2)]
    seen = set()
    for name in names:
        await pods.printed(name, "up")
        pod = await pods.until(name, lambda pod: pod["status"].get("podIP"))
        reader, writer = await asyncio.open_connection(pod["status"]["podIP"], 8443)
        assert (await reader.read()).decode() == pod["status"]["podIP"]
        writer.close()
        await writer.wait_closed()
        seen.add(pod["status"]["podIP"])
    assert len(seen) == 2


async def test_crash_of_the_kubelet(control_plane: ControlPlane, api: Api, namespace: str, tmp_path: Path) -> None:
    """When the kubelet is killed no process stays, and its next life reports the pods as failed."""
    marker = uuid.uuid4().hex
    node_name = f"crash-{marker[:8]}"
    with StandInKubelet(control_plane.kubeconfig, tmp_path, node_name) as kubelet:
        pods = Pods(api, namespace, kubelet)
        name = await pods.create(f"trap '' TERM; echo ready; while :; do sleep 0.1; done; {marker}", nodeName=node_name)
        await pods.printed(name, "ready")
        await pods.until(name, lambda pod: pod["status"]["phase"] == "Running")
        kubelet.kill()
        await asyncio.to_thread(until, lambda: not _processes(marker), what="the end of the processes", timeout=30)
    async with StandInKubelet(control_plane.kubeconfig, tmp_path, node_name):
        ended = await pods.ended(name)
        assert (ended["phase"], ended["exitCode"], ended["reason"]) == (
            "Failed",
            137,
            "ContainerStatusUnknown",
        )
        await pods.delete(name)


async def test_restart_of_the_api_server(control_plane: ControlPlane, pods: Pods) -> None:
    """A pod that ends while the API server is away is reported when it is back, and new pods run."""
    name = await pods.create("echo ready; sleep 0.5; exit 5")
    await pods.printed(name, "ready")
    await asyncio.to_thread(control_plane.restart_apiserver, kill=True)
    assert (await pods.ended(name, within=60))["exitCode"] == 5
    assert (await pods.ended(await pods.create("exit 6"), within=60))["exitCode"] == 6


def _user(pid: int) -> int:
    """The user that a process runs as."""
    return Path(f"/proc/{pid}").stat().st_uid


def _python_of_nobody() -> list[str] | None:
    """A command that runs Python as an ordinary user with what the kubelet needs, if there is one."""
    switch = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    site = sysconfig.get_path("purelib")
    for python in (sys.executable, shutil.which("python3", path="/usr/bin")):
        if python:
            command = [*switch, "env", f"PYTHONPATH={Path(__file__).parents[1]}:{site}", python]
            if (
                subprocess.run([*command, "-c", "import aiohttp, yaml"], check=False, capture_output=True).returncode
                == 0
            ):
                return command
    return None


async def test_ordinary_user(control_plane: ControlPlane, api: Api, namespace: str) -> None:
    """The kubelet needs no root: volumes, users and signals work the same."""
    python = [sys.executable] if os.geteuid() else _python_of_nobody()
    if python is None:
        pytest.skip("no Python with aiohttp that an ordinary user may run")
    folder = Path(tempfile.mkdtemp(prefix="outhaul-kubelet-"))
    try:
        kubeconfig, root = folder / "kubeconfig", folder / "root"
        kubeconfig.write_text(control_plane.kubectl("config", "view", "--raw", "--flatten"))
        root.mkdir()
        if os.geteuid() == 0:
            for path in (folder, kubeconfig, root):
                os.chown(path, NOBODY, NOBODY)
        node_name = f"user-{uuid.uuid4().hex[:8]}"
        async with StandInKubelet(kubeconfig, root, node_name, python=python) as kubelet:
            assert _user(kubelet.pid) == (os.geteuid() or NOBODY)
            pods = Pods(api, namespace, kubelet)
            await pods.add("Secret", "login", {"password": "s3cret"})
            name = await pods.create(
                "trap 'exit 4' TERM; id -u; cat /login/password; echo; while :; do sleep 0.1; done",
                nodeName=node_name,
                securityContext={"runAsUser": 1234},
                volumes=[{"name": "login", "secret": {"secretName": "login", "defaultMode": 0o400}}],
                container={"volumeMounts": [{"name": "login", "mountPath": "/login"}]},
            )
            await pods.printed(name, "1234\ns3cret\n")
            assert _state(await pods.delete(name), "terminated")["exitCode"] == 4
    finally:
        shutil.rmtree(folder)


async def test_a_pod_of_a_namespace_that_ends(
    control_plane: ControlPlane, api: Api, namespace: str, tmp_path: Path
) -> None:
    """The API server refuses to bind it, which ends nothing: other pods run."""
    node = f"refused-{uuid.uuid4().hex[:8]}"
    account = {"kind": "ServiceAccount", "name": "default", "namespace": namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    binding = {"metadata": {"name": node}, "roleRef": role, "subjects": [account]}
    control_plane.request("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding)
    with Proxy(control_plane) as spoiler:
        kubeconfig = control_plane.service_account_kubeconfig(namespace, "default", server=spoiler.url)
        async with StandInKubelet(kubeconfig, tmp_path / "kubelet", node, labels={"disk": node}) as kubelet:
            refusal = proxy.fail(403, "Forbidden", f"namespace {namespace} is being terminated")
            spoiler.fault = proxy.where(lambda one: one.resource == "pods/binding", refusal, times=1)
            pods = Pods(api, namespace, kubelet)
            refused = await pods.create("exit 0", nodeSelector={"disk": node})
            bindings = lambda: [one for one in spoiler.requests if one.resource == "pods/binding"]  # noqa: E731
            await asyncio.to_thread(until, bindings, what="the binding of the first pod", timeout=SECONDS)
            assert (await pods.ended(await pods.create("exit 5", nodeSelector={"disk": node})))["exitCode"] == 5
            pod = await api.call("GET", f"/api/v1/namespaces/{namespace}/pods/{refused}")
            assert "nodeName" not in pod["spec"]
