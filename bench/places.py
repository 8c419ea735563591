"""Where it is measured: on a real node with the operator as a pod where one can run, else on the stand-in kubelet."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cluster import images
from cluster.controlplane import ControlPlane
from cluster.images import Image
from cluster.node import Node
from cluster.stack import OPERATOR, REPOSITORY, Stack
from node.deployments import Deployment

from bench import memory

JOB = "localhost/outhaul-bench-job:test"
"""The image of the Job that is compared with Outhaul."""


@dataclass(frozen=True)
class Place:
    """A cluster with Outhaul in it."""

    description: str
    """For people: what is real and what is not."""
    control_plane: ControlPlane
    operator_pid: int
    """The operator's process on this machine."""
    pods: Path | None
    """The control group of all pods; None where pods have none."""


@contextmanager
def place(*, stand_in: bool) -> Iterator[Place]:
    """Starts a cluster and Outhaul, and stops both.

    Args:
        stand_in: whether to do without a real node, even where one can run.
    """
    reason = "as was asked for" if stand_in else Node.available()
    # Short, for the sockets in it.
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
        root = Path(folder)
        started = _on_stand_in(root, reason) if reason else _on_node(root)
        with started as found:
            yield found


@contextmanager
def _on_node(root: Path) -> Iterator[Place]:
    built = [images.base(), images.agent(), images.operator(), job_image()]
    with ControlPlane(root / "c", audit=True) as plane, Node(plane, pause=images.pause()) as node:
        for image in built:
            node.load(image)
        deployment = Deployment(
            plane,
            root / "kustomize",
            operator_image=images.OPERATOR,
            agent_image=images.AGENT,
            terraform_image=images.TERRAFORM,
        )
        deployment.install()
        pods = memory.group_of(node.claim.name)
        words = "a real node (containerd, runc, kubelet), the operator as a pod of the manifests in deploy/"
        yield Place(words, plane, deployment.operator_process(), pods)


@contextmanager
def _on_stand_in(root: Path, reason: str) -> Iterator[Place]:
    with ControlPlane(root / "c", audit=True) as plane:
        stack = Stack(plane)
        stack.start()
        try:
            operator = plane.processes.find(OPERATOR)
            assert operator is not None
            words = f"the stand-in kubelet, where containers are plain processes, and no real node: {reason}"
            yield Place(words, plane, operator.pid, None)
        finally:
            stack.stop()


def job_image() -> Image:
    """Builds the Job's image: the same base as the agent's, and kubectl."""
    folder = REPOSITORY / "bench" / "job"
    wheels = (folder / "requirements.txt").read_text().split()
    return images.project_image(JOB, folder / "Dockerfile", directory=folder, base=images.base(), wheels=wheels)
