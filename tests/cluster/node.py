"""A real node for a control plane: containerd, runc, a CNI bridge, the kubelet and the scheduler.

Everything runs in a mount namespace of its own, where the machine-wide directories that these programs insist
on are covered by the node's own: nodes do not meet, and no mount outlives them. Pods have addresses that the
host reaches, the API server at its service address, and nothing beyond. `remains` removes what is left on the
machine, also after a run that was killed.
"""

import functools
import ipaddress
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from cluster import binaries, packages, remains
from cluster.controlplane import SERVICE_ADDRESS, ControlPlane
from cluster.errors import ClusterError, CommandFailed, ComponentFailed, NotInTime, RequestFailed
from cluster.images import Image
from cluster.processes import Identity, Process
from cluster.remains import Claim, iptables, run
from cluster.waiting import until

NEEDS = {
    "containerd": "containerd",
    "runc": "runc",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "iptables": "iptables",
    "ip": "iproute2",
    "conntrack": "conntrack",
}
"""Commands and files, and the Debian packages that bring them."""

CONTAINERD, KUBELET, SCHEDULER = "containerd", "kubelet", "kube-scheduler"

_SOCKET_NAME = 107  # bytes that the kernel takes
_PODS = ipaddress.ip_network("10.244.0.0/16")
_CAPABILITIES = {"SYS_ADMIN": 21, "NET_ADMIN": 12, "SYS_CHROOT": 18, "MKNOD": 27, "SYS_PTRACE": 19}

# What the programs write outside the directories that they are told is covered, so it ends up in the node's
# own. The kubelet also changes kernel settings; it gets copies to change.
_COVER = """
own=$1; shift
for path in /run/containerd /run/netns /var/lib/cni /var/lib/kubelet /var/log/containers /var/log/pods; do
  mkdir -p "$path" "$own$path"
  mount --bind "$own$path" "$path"
done
for setting in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops \
  kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
  if [ -e "/proc/sys/$setting" ]; then
    mkdir -p "$own/proc/sys/${setting%/*}"
    cat "/proc/sys/$setting" > "$own/proc/sys/$setting"
    mount --bind "$own/proc/sys/$setting" "/proc/sys/$setting"
  fi
done
exec "$@"
"""


class NodeFailed(ClusterError):  # noqa: N818 - reads as the others do
    """The node cannot be started here, or did not become ready."""


class Node:
    """One node of a control plane.

    Args:
        control_plane: it has to run; its API server may well listen on loopback only.
        root: the node's own directory; `node` in the control plane's when not given.
        pause: the image that holds a pod's network.
        name: the node's name in the API.
    """

    def __init__(
        self, control_plane: ControlPlane, root: Path | None = None, *, pause: Image, name: str = "node0"
    ) -> None:
        self.control_plane, self.name = control_plane, name
        self.root = (root or control_plane.root / "node").resolve()
        self._processes, self._pause = control_plane.processes, pause
        self._claim: Claim | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @staticmethod
    def available() -> str | None:
        """Why no real node can run on this machine, in plain words; None when one can."""
        return next(filter(None, (check() for check in _CHECKS)), None)

    @property
    def claim(self) -> Claim:
        """Its number on this machine, and what is named after that."""
        self._claim = self._claim or self._find_claim()
        if self._claim is None:
            raise NodeFailed("the node is not running: call start()")
        return self._claim

    @property
    def network(self) -> ipaddress.IPv4Network:
        """The network of its pods."""
        return _network(self.claim.number)

    @property
    def address(self) -> str:
        """Its own address in the pods' network."""
        return str(self.network[1])

    def start(self) -> Self:
        """Starts what is not running, and waits until the node is ready for pods.

        Raises:
            NodeFailed: it cannot run here; with the reason.
            ComponentFailed: a program ended or was not ready in time; with the end of its log.
        """
        reason = self.available()
        if reason is not None:
            raise NodeFailed(f"{reason}; leave out what needs pods, or run it where there is a node")
        # The longest of them; the kubelet numbers it.
        if len(f"{self.root}/kubelet/pod-resources/4294967295") > _SOCKET_NAME:
            raise NodeFailed(f"{self.root} is too long for the sockets in it: choose another directory (TMPDIR)")
        packages.ensure(NEEDS)
        programs = binaries.ensure(KUBELET, SCHEDULER)
        remains.sweep_leftovers()
        self._claim = self._find_claim() or self._make_network()
        try:
            containerd = self._start_containerd()
            remains.mark(self.claim, containerd.identity)
            self.load(self._pause)
            self._start_kubelet(programs[KUBELET], containerd)
            self._start_scheduler(programs[SCHEDULER])
            self._wait_until_ready()
        except BaseException:
            if not self._processes.detached:
                self.stop()
            raise
        return self

    def stop(self) -> None:
        """Ends the node and all its pods, and leaves nothing on the machine but its directory."""
        for name in (SCHEDULER, KUBELET, CONTAINERD):
            self._processes.stop(name)
        claim = self._claim or self._find_claim()
        if claim is not None:
            remains.sweep(claim)
            self._claim = None
            self._forget()

    def load(self, image: Image) -> None:
        """Gives an image to the node, under the name that pods will use."""
        self.ctr("images", "import", "--snapshotter", self._snapshotter, str(image.archive))

    def ctr(self, *arguments: str) -> str:
        """Runs containerd's own command on what the kubelet sees."""
        return run("ctr", "--address", str(self.claim.socket), "--namespace", "k8s.io", *arguments)

    def _find_claim(self) -> Claim | None:
        """The claim of this directory, made here or by an earlier process."""
        return next((claim for claim, _ in remains.claims() if claim.root == self.root), None)

    def _make_network(self) -> Claim:
        """Claims the first number whose network is free: making the bridge is what claims it."""
        shutil.rmtree(self.root / "own", ignore_errors=True)
        shutil.rmtree(self.root / "addresses", ignore_errors=True)
        own = Identity.of(os.getpid())
        assert own is not None
        for number in range(_PODS.num_addresses // 256):
            claim = Claim(number, self.root)
            if _taken(_network(number)):
                continue
            try:
                run("ip", "link", "add", claim.name, "type", "bridge")
            except CommandFailed:  # another node was faster
                continue
            remains.mark(claim, own)
            remains.make_control_groups(claim)
            network = _network(number)
            run("ip", "address", "add", f"{network[1]}/{network.prefixlen}", "dev", claim.name)
            run("ip", "link", "set", claim.name, "up")
            self._redirect(claim)
            return claim
        raise NodeFailed(f"no free network in {_PODS}: look at `ip route` and `ip address`")

    def _redirect(self, claim: Claim) -> None:
        """Leads pods from the service address to the API server, also one on loopback, and to each other."""
        Path(f"/proc/sys/net/ipv4/conf/{claim.name}/route_localnet").write_text("1")
        comment = ["-m", "comment", "--comment", claim.name]
        server = f"{self.control_plane.host}:{self.control_plane.port}"
        to_service = [
            "-i",
            claim.name,
            "-d",
            f"{SERVICE_ADDRESS}/32",
            "-p",
            "tcp",
            "--dport",
            "443",
            *comment,
        ]
        run("iptables", "-t", "nat", "-A", "PREROUTING", *to_service, "-j", "DNAT", "--to-destination", server)
        # Where Docker has been, what passes a bridge passes this chain, and is dropped.
        iptables("filter", "-I", "FORWARD", "-i", claim.name, "-o", claim.name, *comment, "-j", "ACCEPT")

    def _start_containerd(self) -> Process:
        root, claim = self.root, self.claim
        bridge = {
            "type": "bridge",
            "bridge": claim.name,
            "isGateway": True,
            "ipMasq": False,
            "hairpinMode": True,
            "ipam": {
                "type": "host-local",
                "dataDir": str(root / "addresses"),
                "ranges": [[{"subnet": str(self.network)}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }
        network = {"cniVersion": "0.4.0", "name": claim.name, "plugins": [bridge]}
        _write(root / "cni" / "10-bridge.conflist", json.dumps(network, indent=1))
        cri = 'plugins."io.containerd.grpc.v1.cri"'
        config = f"""
version = 2
root = "{root}/containerd"
state = "{root}/state"
disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs"]
[grpc]
  address = "{claim.socket}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{root}/opt"
[{cri}]
  sandbox_image = "{self._pause.name}"
  # Lowering a score needs a capability that containers often lack; runc fails without this.
  restrict_oom_score_adj = true
  [{cri}.containerd]
    snapshotter = "{self._snapshotter}"
  [{cri}.cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{root}/cni"
"""
        _write(root / "containerd.toml", config)
        own = str(root / "own")
        unshare = ["unshare", "--mount", "--propagation", "private", "--", "sh", "-ec", _COVER, "sh", own]
        command = [*unshare, _program(CONTAINERD), "--config", str(root / "containerd.toml")]
        process = self._processes.start(CONTAINERD, command)
        self._wait(process, self._containerd_answers, what="containerd to answer")
        return process

    def _containerd_answers(self) -> bool:
        try:
            self.ctr("version")
        except CommandFailed:
            return False
        return True

    def _start_kubelet(self, program: Path, containerd: Process) -> None:
        config = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": self.address,
            "healthzPort": 0,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(self.control_plane.authority.ca.certificate)},
            },
            "authorization": {"mode": "Webhook"},
            # Below a group of our own: a kubelet ends the pods that it finds there and does not know.
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.claim.name}",
            "enforceNodeAllocatable": [],
            "oomScoreAdj": 0,
            # Where control groups are of version 1, a kubelet since 1.35 refuses to start unless told so.
            "failCgroupV1": False,
            "failSwapOn": False,
            "makeIPTablesUtilChains": False,
            # Nothing answers there, so a name fails at once, and never by way of this machine's resolver.
            "clusterDNS": [self.address],
            "resolvConf": "",
            "nodeStatusUpdateFrequency": "2s",
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {
                "memory.available": "100Mi",
                "nodefs.available": "1%",
                "imagefs.available": "1%",
            },
        }
        _write(self.root / "kubelet.json", json.dumps(config, indent=1))
        user = f"system:node:{self.name}"
        command = [
            *("nsenter", f"--mount=/proc/{containerd.pid}/ns/mnt", "--", str(program)),
            f"--config={self.root / 'kubelet.json'}",
            f"--kubeconfig={self.control_plane.kubeconfig_for(user, ['system:nodes'])}",
            f"--hostname-override={self.name}",
            f"--node-ip={self.address}",
            f"--root-dir={self.root / 'kubelet'}",
            f"--cert-dir={self.root / 'kubelet-pki'}",
            f"--container-runtime-endpoint=unix://{self.claim.socket}",
        ]
        self._processes.start(KUBELET, command)

    def _start_scheduler(self, program: Path) -> None:
        kubeconfig = self.control_plane.kubeconfig_for(f"system:{SCHEDULER}")
        command = [str(program), f"--kubeconfig={kubeconfig}", "--leader-elect=false"]
        self._processes.start(SCHEDULER, [*command, "--secure-port=0"])

    def _wait_until_ready(self) -> None:
        def ready() -> bool:
            try:
                node = self.control_plane.request("GET", f"/api/v1/nodes/{self.name}")
            except RequestFailed:
                return False
            conditions = {each["type"]: each["status"] for each in node["status"].get("conditions", [])}
            # The taint goes a moment after the condition comes; before that no pod is scheduled.
            return conditions.get("Ready") == "True" and not node["spec"].get("taints")

        kubelet = self._processes.find(KUBELET)
        if kubelet is None:
            raise ComponentFailed(f"{KUBELET} is not running")
        self._wait(kubelet, ready, what=f"{self.name} to be ready")

    def _wait(self, process: Process, probe: Callable[[], bool], *, what: str, timeout: float = 90.0) -> None:
        def lives_and_is_ready() -> bool:
            if not process.running():
                raise ComponentFailed(f"{process.name} ended; the end of {process.log}:\n{process.tail()}")
            return bool(probe())

        try:
            until(lives_and_is_ready, what=what, timeout=timeout, interval=0.1)
        except NotInTime as error:
            raise ComponentFailed(f"{error}; the end of {process.log}:\n{process.tail()}") from error

    def _forget(self) -> None:
        """Takes the node and its pods out of the API, for a control plane that stays."""
        try:
            pods = self.control_plane.request("GET", f"/api/v1/pods?fieldSelector=spec.nodeName={self.name}")
            for pod in pods["items"]:
                meta = pod["metadata"]
                path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}?gracePeriodSeconds=0"
                self.control_plane.request("DELETE", path)
            self.control_plane.request("DELETE", f"/api/v1/nodes/{self.name}")
        except (OSError, RequestFailed):
            return  # the control plane has ended first, and its objects with it

    @functools.cached_property
    def _snapshotter(self) -> str:
        """Layers are stacked by overlayfs, or copied where the disk cannot carry one (it is one itself)."""
        for name in ("lower", "upper", "work", "merged"):
            (self.root / "trial" / name).mkdir(parents=True, exist_ok=True)
        trial = self.root / "trial"
        options = f"lowerdir={trial}/lower,upperdir={trial}/upper,workdir={trial}/work"
        mount = ["unshare", "--mount", "mount", "-t", "overlay", "trial", "-o", options, f"{trial}/merged"]
        works = subprocess.run(mount, check=False, capture_output=True).returncode == 0
        return "overlayfs" if works else "native"


def _lacks_linux_or_root() -> str | None:
    if sys.platform != "linux":
        return f"a real node needs Linux, this is {platform.system()}"
    return None if os.geteuid() == 0 else "a real node needs root"


def _lacks_packages() -> str | None:
    lacking = packages.missing(NEEDS)
    if not lacking or shutil.which("apt-get") is not None:
        return None
    return f"a real node needs {', '.join(lacking)}, and there is no apt-get to install them with"


def _lacks_capabilities() -> str | None:
    mask = int(Path("/proc/self/status").read_text().partition("CapEff:")[2].split()[0], 16)
    withheld = [name for name, bit in _CAPABILITIES.items() if not mask >> bit & 1]
    return f"a real node needs capabilities that are withheld here: {', '.join(withheld)}" if withheld else None


def _lacks_control_groups() -> str | None:
    if any(os.access(path, os.W_OK) for path in remains.hierarchies()):
        return None
    return "a real node needs control groups that it may write to, and none are mounted here"


def _lacks_namespaces() -> str | None:
    trial = ["unshare", "--mount", "--net", "--pid", "--fork", "--mount-proc", "true"]
    if subprocess.run(trial, check=False, capture_output=True).returncode == 0:
        return None
    return "a real node needs namespaces of its own, and making one is forbidden here"


# In this order: each may rely on those before it.
_CHECKS: tuple[Callable[[], str | None], ...] = (
    _lacks_linux_or_root,
    _lacks_packages,
    _lacks_capabilities,
    _lacks_control_groups,
    _lacks_namespaces,
)


def _network(number: int) -> ipaddress.IPv4Network:
    return ipaddress.IPv4Network((int(_PODS.network_address) + number * 256, 24))


def _taken(network: ipaddress.IPv4Network) -> bool:
    """Whether this machine already knows a part of a network."""
    known: list[dict[str, Any]] = json.loads(run("ip", "-json", "-4", "route", "show", "table", "all"))
    for route in known:
        if route["dst"] == "default":
            continue
        if ipaddress.ip_network(route["dst"], strict=False).overlaps(network):
            return True
    return False


def _program(name: str) -> str:
    found = packages.which(name)
    if found is None:
        raise NodeFailed(f"{name} is not there any more: install the Debian package {NEEDS[name]}")
    return str(found)


def _write(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
