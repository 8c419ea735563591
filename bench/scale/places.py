"""Where it is measured: a real control plane, a hollow node, and the operator on one core."""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster.controlplane import APISERVER, ETCD, ControlPlane
from cluster.hollow import POD_TEMPLATE, HollowNode
from cluster.objects import Objects
from cluster.processes import log_tail
from cluster.progress import say
from cluster.stack import OPERATOR, Stack

from bench.scale.usage import Usage

NAMESPACE = "bench"


class Place(Stack):
    """Outhaul with a hollow node.

    Args:
        control_plane: where.
        core: the core that the operator has.
    """

    def __init__(self, control_plane: ControlPlane, core: int) -> None:
        pinned = ("taskset", "--cpu-list", str(core), sys.executable, "-m", "outhaul_operator")
        super().__init__(control_plane, operator=pinned)
        self.node = HollowNode(control_plane)

    def start_kubelet(self) -> None:
        """Starts the hollow node."""
        self.node.start()

    def stop_operator(self) -> None:
        """Ends the operator in order."""
        self.control_plane.processes.stop(OPERATOR, grace=30)

    def operator_usage(self) -> Usage:
        """What the operator has used so far."""
        return Usage.of([self._pid(OPERATOR)])

    def server_usage(self) -> Usage:
        """What the API server and etcd have used so far."""
        return Usage.of([self._pid(APISERVER), self._pid(ETCD)])

    @property
    def operator_pid(self) -> int:
        """The operator's process."""
        return self._pid(OPERATOR)

    def _pid(self, name: str) -> int:
        pid = self.control_plane.processes.pid(name)
        assert pid is not None, f"{name} does not run"
        return pid


@contextmanager
def place(core: int) -> Iterator[Place]:
    """Starts everything, and stops and removes it."""
    with (
        # Short, for the sockets in it.
        tempfile.TemporaryDirectory(prefix="scale-", ignore_cleanup_errors=True) as folder,
        ControlPlane(Path(folder, "c"), audit=True) as plane,
    ):
        found = Place(plane, core)
        found.start()
        try:
            plane.create_namespace(NAMESPACE)
            Objects(plane, NAMESPACE).create("AgentConfig", "default", spec={"podTemplate": POD_TEMPLATE})
            yield found
        except BaseException:
            say(f"the end of the operator's log:\n{log_tail(plane.processes.log(OPERATOR), 40)}")
            raise
        finally:
            found.stop()
