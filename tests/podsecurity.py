"""The Pod Security Standard `restricted`, field by field, for API servers whose admission does not know it."""

from typing import Any

_VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}


def violations(spec: dict[str, Any]) -> list[str]:
    """Returns what of a pod's spec `restricted` forbids, in words; nothing where it passes."""
    found = [f"{field} is set" for field in ("hostNetwork", "hostPID", "hostIPC") if spec.get(field)]
    for volume in spec.get("volumes", []):
        (kind,) = volume.keys() - {"name"}
        if kind not in _VOLUMES:
            found.append(f"volume {volume['name']} is a {kind}")
    pod = spec.get("securityContext", {})
    containers = [*spec["containers"], *spec.get("initContainers", []), *spec.get("ephemeralContainers", [])]
    for container in containers:
        own = container.get("securityContext", {})
        found += [f"container {container['name']}: {words}" for words in _of_container(container, own, {**pod, **own})]
    return found


def _of_container(container: dict[str, Any], own: dict[str, Any], both: dict[str, Any]) -> list[str]:
    capabilities = own.get("capabilities", {})
    checks = {
        "it is privileged": own.get("privileged"),
        "it may escalate its privileges": own.get("allowPrivilegeEscalation") is not False,
        "it keeps capabilities": "ALL" not in capabilities.get("drop", []),
        "it adds capabilities": set(capabilities.get("add", [])) - {"NET_BIND_SERVICE"},
        "it may run as root": both.get("runAsNonRoot") is not True or both.get("runAsUser") == 0,
        "it has no seccomp profile": both.get("seccompProfile", {}).get("type") not in {"RuntimeDefault", "Localhost"},
        "it has a port of the host": any(port.get("hostPort") for port in container.get("ports", [])),
        "it sees all of /proc": own.get("procMount", "Default") != "Default",
    }
    return [words for words, violated in checks.items() if violated]
