"""Who is compared: Outhaul, and Jobs that do the same work and write its outputs with kubectl. Manifests, pure.

The work is the same script for all: it takes its time, leaves five files and says when it was done.
"""

from dataclasses import dataclass
from typing import Any

from bench.places import JOB

Json = dict[str, Any]

OUTHAUL, CREATE, APPLY = "Outhaul", "Job, kubectl create", "Job, kubectl apply"
CONTENDERS = (OUTHAUL, CREATE, APPLY)

ACCOUNT = "job"
_FOLDER = "OUTHAUL_OUTPUTS"
_NAMES = ("host", "port", "user", "password", "certificate")
_WORK = """
read -r now _ < /proc/uptime
echo "bench-began $now $(cut -d' ' -f22 /proc/$PPID/stat 2>/dev/null)"
sleep {seconds}
for name in {names}; do head -c {size} /dev/zero | tr '\\0' x > "${folder}/$name"; done
grep -E '^Vm(RSS|HWM):' /proc/$PPID/status 2>/dev/null || true
echo "bench-done $(date +%s.%N)"
"""
_WRITE = {
    # What is quick to write, and fails the second time.
    CREATE: 'kubectl create secret generic "$SECRET" --from-file="$OUTHAUL_OUTPUTS"',
    # What people write so that it also works the second time.
    APPLY: 'kubectl create secret generic "$SECRET" --from-file="$OUTHAUL_OUTPUTS" --dry-run=client -o yaml'
    " | kubectl apply -f -",
}


@dataclass(frozen=True)
class Work:
    """What there is to do, for every contender."""

    seconds: float
    """How long it takes."""
    size: int
    """The size of each of its five outputs, in bytes."""

    @property
    def script(self) -> str:
        """What the contenders run."""
        return _WORK.format(names=" ".join(_NAMES), seconds=self.seconds, size=self.size, folder=_FOLDER)


def installation(name: str, work: Work) -> Json:
    """Returns what a user of Outhaul writes; the Secret is `<name>-outputs`."""
    command = {"name": "work", "command": ["sh", "-euc", work.script]}
    return {
        "apiVersion": "outhaul.dev/v1alpha1",
        "kind": "Installation",
        "metadata": {"name": name},
        "spec": {"engine": "exec", "commands": {"install": [command]}},
    }


def job(contender: str, name: str, work: Work) -> Json:
    """Returns what somebody writes who has no Outhaul; the Secret is `<name>-outputs`."""
    script = f'mkdir -p "$OUTHAUL_OUTPUTS"\n{work.script}\n{_WRITE[contender]}\n'
    container = {
        "name": "job",
        "image": JOB,
        "imagePullPolicy": "IfNotPresent",
        "command": ["bash", "-euo", "pipefail", "-c", script],
        "env": [
            {"name": _FOLDER, "value": "/tmp/outputs"},  # noqa: S108 - the pod's own
            {"name": "SECRET", "value": f"{name}-outputs"},
        ],
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],  # noqa: S108 - the pod's own
    }
    pod = {
        "restartPolicy": "Never",
        "serviceAccountName": ACCOUNT,
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65532},
        "containers": [container],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"backoffLimit": 0, "template": {"spec": pod}},
    }


def account(namespace: str) -> list[Json]:
    """Returns the service account that the Jobs need, and its rights on Secrets."""
    rbac, role = "rbac.authorization.k8s.io", {"name": ACCOUNT}
    rule = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "create", "patch"]}
    subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": namespace}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": role},
        {"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": role, "rules": [rule]},
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "RoleBinding",
            "metadata": role,
            "roleRef": {"apiGroup": rbac, "kind": "Role", "name": ACCOUNT},
            "subjects": [subject],
        },
    ]
