"""How the operator starts where something is missing."""

import subprocess
import sys
from pathlib import Path

from cluster.controlplane import ControlPlane
from cluster.stack import OPERATOR_NAMESPACE


def test_an_operator_without_its_kinds_says_so_and_ends(tmp_path: Path) -> None:
    """Where the CRDs are not installed the operator ends with a message, to be started again, and watches nothing."""
    with ControlPlane(tmp_path / "cluster") as plane:
        plane.create_namespace(OPERATOR_NAMESPACE)
        command = [
            sys.executable,
            "-m",
            "outhaul_operator",
            "--kubeconfig",
            str(plane.kubeconfig),
            "--http-port",
            "0",
        ]
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 1
    assert "does not know installations, agentactions, agentconfigs, installationoutputs" in ended.stdout
    assert "install the CRDs" in ended.stdout
