"""The real control plane that all other integration tests stand on."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import binaries
from cluster.controlplane import COMPONENTS, ControlPlane
from cluster.errors import CommandFailed, ComponentFailed, RequestFailed
from cluster.waiting import until


def config_map(name: str, **metadata: Any) -> dict[str, Any]:
    """A ConfigMap to create."""
    return {"metadata": {"name": name, **metadata}, "data": {"key": "value"}}


def exists(plane: ControlPlane, path: str) -> bool:
    """Whether the API server has this object."""
    try:
        plane.request("GET", path)
    except RequestFailed as error:
        assert error.status == 404  # noqa: PT017 - any other answer is a failure
        return False
    return True


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane that tests of this file may treat badly."""
    running = ControlPlane(tmp_path_factory.mktemp("second")).start()
    yield running
    running.stop(forget=True)


def test_it_runs_the_kubernetes_that_it_says(control_plane: ControlPlane) -> None:
    """The API server is up, of the version that its program says, which is the wanted one where it was built here."""
    assert all(control_plane.running().values())
    program = binaries.ensure("kube-apiserver")["kube-apiserver"]
    assert control_plane.request("GET", "/version")["gitVersion"] == f"v{binaries.version(program)}"
    assert not program.is_relative_to(binaries.cache()) or binaries.version(program) == binaries.VERSION


def test_kubectl_talks_to_it(kubectl: Callable[..., str]) -> None:
    """Stock kubectl works with the administrator's kubeconfig."""
    assert "default" in kubectl("get", "namespaces", "-o", "name")


def test_kubectl_errors_are_raised(kubectl: Callable[..., str]) -> None:
    """An error of kubectl is an exception that quotes it."""
    with pytest.raises(CommandFailed, match="not found"):
        kubectl("get", "configmap", "is-not-there")


def test_a_namespace_is_ready_for_pods(control_plane: ControlPlane, namespace: str) -> None:
    """A fresh namespace has its service account, so a pod is admitted."""
    pod = {"metadata": {"name": "one"}, "spec": {"containers": [{"name": "main", "image": "none"}]}}
    created = control_plane.request("POST", f"/api/v1/namespaces/{namespace}/pods", pod)
    assert created["spec"]["serviceAccountName"] == "default"


def test_keys_are_for_their_owner_alone(control_plane: ControlPlane) -> None:
    """Nobody else on the machine can read a key, a kubeconfig or what etcd stores."""
    secrets = [*control_plane.root.rglob("*.key"), *control_plane.root.rglob("*.kubeconfig")]
    assert len(secrets) > 5
    assert {path.name: oct(path.stat().st_mode & 0o077) for path in secrets} == {path.name: "0o0" for path in secrets}
    assert (control_plane.root / "etcd").stat().st_mode & 0o077 == 0


def test_owned_objects_are_collected(control_plane: ControlPlane, namespace: str) -> None:
    """An object whose owner is deleted goes as well: the controllers run."""
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    uid = control_plane.request("POST", path, config_map("owner"))["metadata"]["uid"]
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid}
    control_plane.request("POST", path, config_map("owned", ownerReferences=[reference]))
    control_plane.request("DELETE", f"{path}/owner")
    until(lambda: not exists(control_plane, f"{path}/owned"), what="the owned object to go")


def test_other_users_have_what_rbac_gives_them(control_plane: ControlPlane, namespace: str) -> None:
    """A user's certificate carries their name, and no rights."""
    kubeconfig = control_plane.kubeconfig_for("eve", ["outsiders"])
    with pytest.raises(CommandFailed, match='User "eve" cannot list resource "secrets"'):
        control_plane.kubectl("get", "secrets", "-n", namespace, kubeconfig=kubeconfig)


def test_groups_are_in_the_certificate(control_plane: ControlPlane, namespace: str) -> None:
    """A member of system:masters may do everything."""
    kubeconfig = control_plane.kubeconfig_for("root", ["system:masters"])
    control_plane.kubectl("get", "secrets", "-n", namespace, kubeconfig=kubeconfig)


def test_service_accounts_log_in_by_token(control_plane: ControlPlane, namespace: str) -> None:
    """A service account's kubeconfig carries a token that the API server takes."""
    kubeconfig = control_plane.service_account_kubeconfig(namespace, "default")
    user = f"system:serviceaccount:{namespace}:default"
    with pytest.raises(CommandFailed, match=f'User "{user}" cannot list'):
        control_plane.kubectl("get", "secrets", "-n", namespace, kubeconfig=kubeconfig)


def test_the_audit_log_counts_requests(control_plane: ControlPlane, namespace: str) -> None:
    """Each request of a user is in the audit log, once it is answered."""
    user = f"counted-in-{namespace}"
    kubeconfig = control_plane.kubeconfig_for(user, ["system:masters"])
    for _ in range(3):
        control_plane.kubectl("get", "--raw", f"/api/v1/namespaces/{namespace}", kubeconfig=kubeconfig)
    events = control_plane.audit_events(user)
    assert [(event["verb"], event["stage"], event["level"]) for event in events] == [
        ("get", "ResponseComplete", "Metadata")
    ] * 3


def test_two_run_side_by_side(control_plane: ControlPlane, second: ControlPlane, namespace: str) -> None:
    """What is written to one is not in the other."""
    assert control_plane.url != second.url
    assert not exists(second, f"/api/v1/namespaces/{namespace}")


@pytest.mark.parametrize("kill", [False, True])
def test_objects_outlive_the_api_server(second: ControlPlane, *, kill: bool) -> None:
    """A restarted API server, also one that crashed, is at the same place with the same objects."""
    path = f"/api/v1/namespaces/default/configmaps/kept-{kill}".lower()
    created = second.request("POST", path.rpartition("/")[0], config_map(path.rpartition("/")[2]))
    pid = second.processes.pid("kube-apiserver")
    second.restart_apiserver(kill=kill)
    assert second.request("GET", path)["metadata"]["uid"] == created["metadata"]["uid"]
    assert second.processes.pid("kube-apiserver") != pid


def test_controllers_work_after_a_restart(second: ControlPlane) -> None:
    """The controllers find the restarted API server again."""
    second.restart_apiserver(kill=True)
    second.create_namespace("after-restart")


def test_a_stopped_api_server_is_seen(second: ControlPlane) -> None:
    """Between stop and start, `running` says what is the case and requests fail."""
    second.stop_apiserver()
    assert second.running() == {"etcd": True, "kube-apiserver": False, "kube-controller-manager": True}
    with pytest.raises(OSError, match=r"refused"):
        second.request("GET", "/readyz")
    second.start_apiserver()
    assert all(second.running().values())


def test_a_component_that_ends_is_named(tmp_path: Path) -> None:
    """An error at start carries the end of the log of what ended; nothing is left running."""
    plane = ControlPlane(tmp_path, apiserver_args=["--no-such-flag"])
    with pytest.raises(ComponentFailed, match=r"(?s)kube-apiserver ended.*unknown flag: --no-such-flag"):
        plane.start()
    assert not any(plane.running().values())
    plane.stop(forget=True)


STARTER = """
import sys, time
from pathlib import Path
from cluster.controlplane import ControlPlane
plane = ControlPlane(Path(sys.argv[1]), detached=sys.argv[2] == "detached").start()
print(*(plane.processes.pid(name) for name in plane.running()), flush=True)
if sys.argv[3] == "stay":
    time.sleep(300)
"""


def start_elsewhere(root: Path, *arguments: str) -> "subprocess.Popen[str]":
    """Starts a control plane from a process of its own."""
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, "-c", STARTER, str(root), *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )


def alive(pids: list[int]) -> list[int]:
    """Which of these processes have not ended."""
    return [pid for pid in pids if state(pid) != "Z"]


def state(pid: int) -> str:
    """The state of a process as the kernel names it; one that is gone counts as a zombie."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "Z"


def test_nothing_outlives_a_killed_test_run(tmp_path: Path) -> None:
    """SIGKILL of the process that started a control plane ends all of it."""
    with start_elsewhere(tmp_path, "attached", "stay") as starter:
        assert starter.stdout is not None
        pids = [int(pid) for pid in starter.stdout.readline().split()]
        assert alive(pids) == pids
        assert len(pids) == len(COMPONENTS)
        starter.send_signal(signal.SIGKILL)
        starter.wait()
    until(lambda: not alive(pids), what="the programs to end", timeout=60)
    ControlPlane(tmp_path).stop(forget=True)


def test_nothing_outlives_a_process_that_forgets_to_stop(tmp_path: Path) -> None:
    """What is attached ends at exit."""
    with start_elsewhere(tmp_path, "attached", "leave") as starter:
        assert starter.stdout is not None
        pids = [int(pid) for pid in starter.stdout.readline().split()]
        assert starter.wait(timeout=30) == 0
    assert len(pids) == len(COMPONENTS)
    assert alive(pids) == []
    ControlPlane(tmp_path).stop(forget=True)


def test_a_detached_one_stays_until_it_is_stopped(tmp_path: Path) -> None:
    """Detached programs outlive who started them; a second start adds only what has gone."""
    with start_elsewhere(tmp_path, "detached", "leave") as starter:
        assert starter.stdout is not None
        pids = [int(pid) for pid in starter.stdout.readline().split()]
        assert starter.wait(timeout=30) == 0
    plane = ControlPlane(tmp_path, detached=True)
    try:
        assert alive(pids) == pids
        plane.processes.stop("kube-controller-manager", grace=0)
        plane.start()
        now = [plane.processes.pid(name) for name in COMPONENTS]
        assert now[:2] == pids[:2]
        assert now[2] != pids[2]
        assert exists(plane, "/api/v1/namespaces/default")
    finally:
        plane.stop(forget=True)
    assert alive(pids) == []
    assert not any(plane.running().values())


def test_envtest_assets_are_honoured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """KUBEBUILDER_ASSETS comes first; what it lacks comes from where it is otherwise."""
    ours = binaries.ensure(*binaries.CONTROL_PLANE)
    for name in ("etcd", "kube-apiserver"):
        (tmp_path / name).symlink_to(ours[name])
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    found = binaries.ensure(*binaries.CONTROL_PLANE)
    assert found["etcd"].parent == tmp_path
    assert found["kube-apiserver"].parent == tmp_path
    assert found["kubectl"] == ours["kubectl"]
    assert found["kube-controller-manager"] == ours["kube-controller-manager"]
    with ControlPlane() as plane:
        command = (Path("/proc") / str(plane.processes.pid("kube-apiserver")) / "cmdline").read_bytes()
        assert command.startswith(str(tmp_path / "kube-apiserver").encode())
    assert not plane.root.exists()
