# ruff: noqa: T201 - its output is the pod's log
"""Runs in the pod after `terraform destroy`: deletes the state Secrets and the lock Lease of the default backend.

Only where the default backend was used, and only state that lists no resource. Standard library alone: the
image is the user's. Usage: forget_state.py BACKEND_FILE NAMESPACE SUFFIX
"""

import base64
import gzip
import json
import os
import ssl
import sys
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"


def _request(method: str, path: str) -> dict[str, Any]:
    host = os.environ["KUBERNETES_SERVICE_HOST"]
    host = f"[{host}]" if ":" in host else host
    url = f"https://{host}:{os.environ['KUBERNETES_SERVICE_PORT']}{path}"
    headers = {"Authorization": f"Bearer {Path(_ACCOUNT, 'token').read_text().strip()}"}
    request = urllib.request.Request(url, method=method, headers=headers)
    context = ssl.create_default_context(cafile=f"{_ACCOUNT}/ca.crt")
    with urllib.request.urlopen(request, context=context, timeout=30) as answer:  # noqa: S310 - always https
        result: dict[str, Any] = json.load(answer)
        return result


def _delete(path: str) -> None:
    """Deletes an object; one that is gone already is fine."""
    try:
        _request("DELETE", path)
    except urllib.error.HTTPError as error:
        if error.code != 404:  # noqa: PLR2004
            raise


def _resources(secrets: list[dict[str, Any]]) -> int:
    """Counts the resources of a state, which may be spread over several Secrets."""
    parts = sorted(secrets, key=lambda one: (len(one["metadata"]["name"]), one["metadata"]["name"]))
    packed = b"".join(base64.b64decode(one["data"]["tfstate"]) for one in parts)
    return len(json.loads(gzip.decompress(packed)).get("resources") or [])


def main() -> int:
    """Deletes the state; returns the exit code."""
    backend_file, namespace, suffix = sys.argv[1:]
    if not Path(backend_file).exists():
        print("the module has a backend of its own; its state is left to it")
        return 0
    base = f"/api/v1/namespaces/{namespace}/secrets"
    selector = urllib.parse.quote(f"tfstate=true,tfstateSecretSuffix={suffix},tfstateWorkspace=default")
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/lock-tfstate-default-{suffix}"
    try:
        secrets = _request("GET", f"{base}?labelSelector={selector}")["items"]
        if secrets and (count := _resources(secrets)):
            print(f"the state in namespace {namespace} still lists {count} resources; it is kept")
            return 1
        for path in (*(f"{base}/{secret['metadata']['name']}" for secret in secrets), lease):
            _delete(path)
    except urllib.error.HTTPError as error:
        print(f"{error.code} {error.reason}: the service account needs list and delete on secrets, delete on leases")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
