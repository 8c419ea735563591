"""A run as Kubernetes objects: the run's Secret and its Pod. Pure; what a pod says back is in `situations`."""

import base64
import json

from google.protobuf import json_format
from outhaul_api.agentaction import AgentAction, AgentActionSpec, Archive, Command, OutputDeclaration, OutputSource
from outhaul_api.agentconfig import AgentConfigSpec
from outhaul_api.common import seconds
from outhaul_api.vocabulary import (
    OutputFormat,
    Reason,
    SecretType,
)
from outhaul_grpc import layout
from outhaul_grpc.protocol import MAX_SOURCE_BYTES
from outhaul_grpc.v1 import agent_pb2 as pb

from outhaul_operator import __version__, names, ownership
from outhaul_operator.kinds import Object
from outhaul_operator.merge import merge_template
from outhaul_operator.verdicts import StalledError

CONTAINER = "agent"
DEFAULT_LINGER = "24h"
_USER = 65532
_GRACE_S = 120
_KUBERNETES_GRACE_S = 30
"""Kubernetes' own default, where a template takes ours away."""
_LAST_WORD_S = 10
"""What an agent needs of the pod's grace once it has killed a command."""

_FORMATS = {
    OutputFormat.TERRAFORM: pb.OUTPUT_FORMAT_TERRAFORM,
    OutputFormat.PORTER: pb.OUTPUT_FORMAT_PORTER,
    OutputFormat.JSON: pb.OUTPUT_FORMAT_JSON,
    OutputFormat.TEXT: pb.OUTPUT_FORMAT_TEXT,
}


def linger_seconds(config: AgentConfigSpec) -> float:
    """Returns how long an agent holds its outputs, in seconds."""
    return seconds(config.linger or DEFAULT_LINGER)


def commands_of(spec: AgentActionSpec) -> list[Command]:
    """Returns the commands; Porter's form, one `command` with `args`, is one command called `run`."""
    if spec.command:
        return [Command(name="run", command=spec.command, args=spec.args)]
    return spec.commands


def variables_by_reference(spec: AgentActionSpec) -> list[str]:
    """Returns the names of the variables that come from a Secret or a ConfigMap."""
    kinds = {"secretKeyRef", "configMapKeyRef"}
    return [one.name for one in spec.env if one.value_from is not None and kinds & one.value_from.keys()]


def run_spec(action: AgentAction, config: AgentConfigSpec) -> pb.RunSpec:
    """Returns what the agent reads: the action without anything that only Kubernetes needs."""
    spec = action.spec
    referred = variables_by_reference(spec)
    keep = pb.Keep(variables=referred, max_bytes=MAX_SOURCE_BYTES) if spec.keep_source else None
    kept = pb.Kept(variables=referred, required=spec.kept_source.required) if spec.kept_source is not None else None
    return pb.RunSpec(
        protocol_versions=layout.PROTOCOL_VERSIONS,
        operator_version=__version__,
        run_uid=action.metadata.uid,
        run_namespace=action.metadata.namespace,
        run_name=action.metadata.name,
        commands=[
            pb.Command(
                name=one.name,
                argv=[*one.command, *one.args],
                env={variable.name: variable.value for variable in one.env},
                working_dir=one.working_dir or "",
                timeout_seconds=seconds(one.timeout) if one.timeout else 0.0,
                continue_on_error=one.continue_on_error,
            )
            for one in commands_of(spec)
        ],
        outputs=[_output_source(one) for one in spec.outputs],
        files={path: base64.b64decode(content) for path, content in spec.files.items()},
        archive=_archive(spec.archive),
        copy_from=spec.copy_from,
        timeout_seconds=seconds(spec.timeout),
        linger_seconds=linger_seconds(config),
        declare=[_declaration(one) for one in spec.declare],
        non_sensitive=spec.non_sensitive,
        stop_grace_seconds=_stop_grace_seconds(config),
        keep=keep,
        kept=kept,
    )


def _stop_grace_seconds(config: AgentConfigSpec) -> float:
    ours = {"spec": {"terminationGracePeriodSeconds": _GRACE_S}}
    spec = merge_template(ours, config.pod_template or {})["spec"]
    grace = spec.get("terminationGracePeriodSeconds", _KUBERNETES_GRACE_S)
    if not isinstance(grace, int | float):  # the API server refuses the pod
        grace = _GRACE_S
    return float(max(grace - _LAST_WORD_S, grace / 2, 1))


def _declaration(one: OutputDeclaration) -> pb.OutputDeclaration:
    result = pb.OutputDeclaration(name=one.name, type=one.type or "", required=one.required)
    if one.sensitive is not None:
        result.sensitive = one.sensitive
    if one.default is not None:
        result.default_json = json.dumps(one.default)
    return result


def _output_source(source: OutputSource) -> pb.OutputSource:
    if source.directory is not None:
        directory = pb.DirectorySource(path=source.directory.path, required=source.directory.required)
        return pb.OutputSource(directory=directory)
    if source.command is not None:
        one = source.command
        command = pb.CommandSource(
            argv=one.command,
            format=_FORMATS[one.format],
            name=one.name or "",
            working_dir=one.working_dir or "",
        )
        return pb.OutputSource(command=command)
    assert source.manifest is not None  # noqa: S101 - `validation` has refused everything else
    return pb.OutputSource(manifest=pb.ManifestSource(path=source.manifest.path))


def _archive(archive: Archive | None) -> pb.Archive | None:
    if archive is None:
        return None
    return pb.Archive(url=archive.url, sha256=archive.sha256, path=archive.path or "")


def run_secret(action: AgentAction, config: AgentConfigSpec, material: dict[str, bytes]) -> Object:
    """Returns the Secret that the agent reads: its instructions and its TLS material (file name to content)."""
    document = json_format.MessageToJson(run_spec(action, config), indent=None)
    data = {layout.RUN_FILE: document.encode(), **material}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": SecretType.RUN,
        "immutable": True,
        "metadata": ownership.of_run(action, names.run_secret_name(action.metadata.name)),
        "data": {key: base64.b64encode(value).decode() for key, value in data.items()},
    }


def pod(action: AgentAction, config: AgentConfigSpec, image: str) -> Object:
    """Returns the run's pod: ours, with the AgentConfig's pod template over it, and what must hold over that.

    Raises:
        StalledError: The pod template has another shape than a pod template.
    """
    ours: Object = {
        "metadata": ownership.of_run(action, names.pod_name(action.metadata.name)),
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": config.service_account is not None,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": _GRACE_S,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": _USER,
                "runAsGroup": _USER,
                "fsGroup": _USER,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [_container(action, config, image)],
            "volumes": [
                {
                    "name": "run",
                    "secret": {
                        "secretName": names.run_secret_name(action.metadata.name),
                        "defaultMode": 0o440,
                    },
                },
                {"name": "work", "emptyDir": {}},
                {"name": "tmp", "emptyDir": {}},
                *_kept_volume(action.spec),
                *action.spec.volumes,
            ],
        },
    }
    if config.service_account is not None:
        ours["spec"]["serviceAccountName"] = config.service_account
    result = merge_template(ours, _checked_template(config.pod_template or {}))
    result["apiVersion"] = "v1"
    result["kind"] = "Pod"
    labels = {**(result["metadata"].get("labels") or {}), **ours["metadata"]["labels"]}
    annotations = result["metadata"].get("annotations")
    result["metadata"] = {**ours["metadata"], "labels": labels}
    if annotations:
        result["metadata"]["annotations"] = annotations
    result["spec"]["restartPolicy"] = "Never"
    return result


def image_of(pod: Object) -> str | None:
    """Returns the image that a run's pod has its agent from."""
    return next((one["image"] for one in pod["spec"]["containers"] if one["name"] == CONTAINER), None)


def account_of(pod: Object) -> str | None:
    """Returns the service account whose token a run's pod has; None: it has none."""
    spec: Object = pod["spec"]
    return spec.get("serviceAccountName") if spec.get("automountServiceAccountToken", True) else None


def _kept_volume(spec: AgentActionSpec) -> list[Object]:
    if spec.kept_source is None:
        return []
    # Deleted by somebody, it keeps nothing from being uninstalled whose source is there.
    secret = {"secretName": spec.kept_source.secret_name, "optional": True, "defaultMode": 0o440}
    return [{"name": "kept", "secret": secret}]


def _checked_template(template: Object) -> Object:
    """Returns the template; what would be left out of the pod without a word is refused, the rest the server checks."""
    known = {"metadata": {"labels", "annotations"}, "spec": None}
    wrong = [key for key in template if key not in known]
    for key, inner in known.items():
        part = {} if template.get(key) is None else template[key]
        if not isinstance(part, dict):
            wrong.append(key)
        elif inner is not None:
            wrong += [f"{key}.{name}" for name, value in part.items() if name not in inner or not _is_map(value)]
    if wrong:
        raise StalledError(
            Reason.INVALID_SPEC,
            f"podTemplate of the AgentConfig: {', '.join(wrong)} cannot be used; "
            "give metadata.labels, metadata.annotations (text to text) and spec, as in a pod",
        )
    return template


def _is_map(value: object) -> bool:
    return value is None or (isinstance(value, dict) and all(isinstance(one, str | None) for one in value.values()))


def _container(action: AgentAction, config: AgentConfigSpec, image: str) -> Object:
    container: Object = {
        "name": CONTAINER,
        "image": image,
        "command": ["outhaul-agent"],
        "workingDir": layout.WORK_DIR,
        "env": [
            {"name": layout.POD_IP_VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": layout.OUTPUTS_VARIABLE, "value": layout.OUTPUTS_DIR},
            {"name": "HOME", "value": layout.HOME_DIR},
            *(variable.to_json() for variable in action.spec.env),
        ],
        "ports": [{"name": "agent", "containerPort": layout.PORT, "protocol": "TCP"}],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [
            {"name": "run", "mountPath": layout.RUN_DIR, "readOnly": True},
            {"name": "work", "mountPath": layout.WORK_DIR, "subPath": "work"},
            {"name": "work", "mountPath": layout.OUTPUTS_DIR, "subPath": "outputs"},
            {"name": "work", "mountPath": layout.HOME_DIR, "subPath": "home"},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - the pod's own
            *action.spec.volume_mounts,
        ],
    }
    if action.spec.kept_source is not None:
        container["volumeMounts"].append({"name": "kept", "mountPath": layout.KEPT_DIR, "readOnly": True})
    if action.spec.env_from:
        container["envFrom"] = action.spec.env_from
    if config.pull_policy is not None:
        container["imagePullPolicy"] = config.pull_policy
    return container
