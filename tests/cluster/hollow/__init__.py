"""A node of hollow pods: real agents to the operator, a thousand of them in one process, and no command is run.

What is real: the pods' objects, the run's Secret, TLS, the agent's server and its state. What is not: containers.
Pods come here by name (`spec.nodeName`, as in an AgentConfig's `podTemplate`), so another kubelet may work beside it.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from cluster import waiting
from cluster.controlplane import ControlPlane
from cluster.errors import ComponentFailed

NODE = "hollow"
POD_TEMPLATE = {"spec": {"nodeName": NODE}}
"""For an AgentConfig: sends its runs here."""

_TESTS = Path(__file__).parents[2]


class HollowNode:
    """The node's process.

    Args:
        control_plane: where.
    """

    def __init__(self, control_plane: ControlPlane) -> None:
        self._plane = control_plane
        self._root = control_plane.root / NODE

    def start(self) -> None:
        """Starts it and waits until its node is ready."""
        self._root.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "cluster.hollow", "--kubeconfig", str(self._plane.kubeconfig)]
        command += ["--root", str(self._root), "--node-name", NODE]
        search = os.pathsep.join([str(_TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
        process = self._plane.processes.start(NODE, command, env={"PYTHONPATH": search})

        def ready() -> bool:
            if not process.running():
                raise ComponentFailed(f"{process.name} ended while it started:\n{process.tail()}")
            return "is ready" in process.tail(1000)

        waiting.until(ready, what="the hollow node is ready", timeout=60)

    def stop(self) -> None:
        """Ends it, and takes its node out of the cluster: what is left of its pods goes with it."""
        if self._plane.processes.stop(NODE):
            self._plane.request("DELETE", f"/api/v1/nodes/{NODE}")

    def moments(self) -> list[dict[str, Any]]:
        """What became of each agent that was acknowledged: `namespace`, `pod`, and when it was `done`."""
        file = self._root / "moments.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
