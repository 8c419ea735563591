"""`make demo`: a Terraform module's outputs reach an application, shown step by step on a cluster of its own."""

import base64
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from cluster import background
from cluster.controlplane import ControlPlane
from cluster.errors import ClusterError, CommandFailed
from cluster.following import Follower, State, condition
from cluster.processes import log_tail
from cluster.progress import say
from cluster.stack import OPERATOR, REPOSITORY, Stack

NAMESPACE, NAME = "team-a", "database"
TENANT = "deploy/examples/terraform-tenant"
SAMPLE = "samples/terraform"
APP, APP_POD = f"{SAMPLE}/app.yaml", "database-app"
KINDS = "installations,agentactions,installationoutputs,agentconfigs"


def run() -> None:
    """Starts everything, shows it, and leaves nothing behind.

    Raises:
        ClusterError: something failed; the end of the operator's log has been printed.
    """
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="outhaul-demo-", ignore_cleanup_errors=True) as directory:
        plane = ControlPlane(Path(directory, "cluster"))
        stack = Stack(plane)
        try:
            print("Starting a Kubernetes cluster of its own, and Outhaul on it", flush=True)
            Demo(stack.start()).show()
        except ClusterError as error:
            said = log_tail(plane.processes.log(OPERATOR), 40)
            if said and said not in str(error):
                print(f"\nThe end of the operator's log:\n{said}", flush=True)
            raise
        finally:
            with background.undisturbed():
                say("stopping everything that was started, and removing its files")
                stack.stop()
                plane.stop()
    print(f"\nThat was the demo: {time.monotonic() - begun:.0f} s, all as it should be, and nothing is left running.")


class Demo:
    """What is shown, in order.

    Args:
        stack: Outhaul, running.
    """

    def __init__(self, stack: Stack) -> None:
        self._stack, self._plane = stack, stack.control_plane
        self._follower = Follower(self._plane, NAMESPACE)

    def show(self) -> None:
        """Installs, looks, uses, upgrades and deletes.

        Raises:
            ClusterError: something is not as it should be.
        """
        _heading("A namespace for a tenant: a service account for Terraform, its rights, and an AgentConfig")
        self._kubectl("apply", "-k", TENANT)
        _heading("A Terraform module and an Installation of it; then what happens")
        self._kubectl("apply", "-k", SAMPLE)
        self._until_ready(1)
        _heading("All four kinds: what is wished, its run, the record of the run's outputs, and the settings of agents")
        self._kubectl("get", KINDS)
        _heading("The record's values: typed, and without the sensitive one")
        self._show_values(self._record("Current"))
        _heading("The Secret for applications: a key for each output (the values stay hidden here)")
        self._show_keys()
        _heading("An application: a pod that mounts the Secret and uses two values")
        self._use("shop.db.internal:5432")
        _heading("An upgrade: the port changes; a new run, a new record, and the first one is Superseded")
        change = {"spec": {"parameters": {"port": 6543}}}
        self._kubectl("patch", "installation", NAME, "--type=merge", f"--patch={json.dumps(change)}")
        self._until_ready(2)
        self._kubectl("get", "installationoutputs")
        _check(self._record("Superseded") is not None, "the first record is Superseded")
        _heading("The application again: the same Secret has the new value")
        self._kubectl("delete", "pod", APP_POD)
        self._use("shop.db.internal:6543")
        self._kubectl("delete", "pod", APP_POD)
        _heading("Deleting the Installation: terraform destroy, then nothing is left")
        self._delete()

    def _until_ready(self, generation: int) -> None:
        def ready(state: State) -> bool:
            (installation,) = state["installations"]
            found = condition(installation, "Ready")
            return found.get("status") == "True" and found.get("observedGeneration") == generation

        self._follower.until(ready, f"generation {generation} is ready")

    def _record(self, phase: str) -> dict[str, Any]:
        records = self._follower.look()["installationoutputs"]
        found = [one for one in records if one["status"]["phase"] == phase]
        _check(len(found) == 1, f"one record is {phase}; there are {[one['status']['phase'] for one in records]}")
        return found[0]

    def _show_values(self, record: dict[str, Any]) -> None:
        print(f"$ kubectl get installationoutput {record['metadata']['name']} -n {NAMESPACE} -o yaml  # in short:")
        outputs = {one["name"]: one for one in record["status"]["outputs"]}
        for name, one in outputs.items():
            key = one["secretKeyRef"]
            value = json.dumps(one["value"]) if "value" in one else f"in Secret {key['name']} only, key {key['key']}"
            print(f"  {name:10} {one['type']:8} {'sensitive' if one['sensitive'] else 'plain':10} {value}", flush=True)
        password = outputs["password"]
        _check(password["sensitive"] and "value" not in password, "the sensitive output has no value in the record")
        _check(outputs["port"]["value"] == 5432, "a number in Terraform is a number in the record")

    def _show_keys(self) -> None:
        secret = self._plane.request("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets/{NAME}-outputs")
        print(f"$ kubectl describe secret {NAME}-outputs -n {NAMESPACE}  # in short:")
        for key, value in secret["data"].items():
            print(f"  {key:10} {len(base64.b64decode(value))} bytes", flush=True)

    def _use(self, expected: str) -> None:
        self._kubectl("apply", "-f", APP)

        def ended(state: State) -> bool:
            phases = [one.get("status", {}).get("phase") for one in state["pods"] if one["metadata"]["name"] == APP_POD]
            _check(phases != ["Failed"], f"the application succeeds: {self._stack.container_log(NAMESPACE, APP_POD)}")
            return phases == ["Succeeded"]

        self._follower.until(ended, "the application's pod has ended")
        _check(expected in self._kubectl("logs", APP_POD), f"the application read {expected} from the Secret")

    def _delete(self) -> None:
        self._kubectl("delete", "installation", NAME, "--wait=false")

        def gone(state: State) -> bool:
            return not any(state[kind] for kind in ("installations", "agentactions", "installationoutputs", "pods"))

        self._follower.until(gone, "all of it is gone", timeout=90)
        logs = self._stack.container_logs(NAMESPACE)
        destroyed = [line for log in logs.values() for line in log.splitlines() if "Destroy complete" in line]
        _check(bool(destroyed), f"terraform destroy was run; there were the runs {sorted(logs)}")
        print(f"Terraform said: {destroyed[-1]}")
        left = set(self._kubectl("get", f"{KINDS},pods,secrets,leases", "-o", "name").split())
        _check(left == {"agentconfig.outhaul.dev/default"}, f"nothing but the tenant's own is left; there is {left}")
        print("Nothing is left of it: no run, no record, no pod, no Terraform state, no output Secret.", flush=True)

    def _kubectl(self, *arguments: str) -> str:
        """Runs kubectl and shows it, as a person would type it in the repository's directory."""
        namespace = ["-n", NAMESPACE] if arguments != ("apply", "-k", TENANT) else []
        print(f"$ kubectl {' '.join(_quoted(one) for one in [*arguments, *namespace])}", flush=True)
        there = [str(REPOSITORY / one) if one in {TENANT, SAMPLE, APP} else one for one in arguments]
        said = self._plane.kubectl(*there, *namespace)
        print(said.rstrip(), flush=True)
        return said


def _heading(text: str) -> None:
    print(f"\n== {text}", flush=True)


def _quoted(word: str) -> str:
    return f"'{word}'" if "{" in word else word


def _check(holds: Any, what: str) -> None:
    if not holds:
        raise CommandFailed(f"this should be so, and is not: {what}")
