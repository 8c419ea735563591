"""Builds the objects that tests speak of: as short as the test's own sentence, the rest is filled in."""

from typing import Any

from outhaul_api.agentaction import AgentAction
from outhaul_api.installation import Installation, RunReference
from outhaul_api.vocabulary import API_VERSION, Action, ActionPhase

UID = "11111111-2222-4333-8444-555555555555"
OTHER_UID = "66666666-7777-4888-8999-aaaaaaaaaaaa"


def installation_object(
    spec: dict[str, Any] | None = None, status: dict[str, Any] | None = None, **metadata: Any
) -> dict[str, Any]:
    """Returns an Installation as the API server would; metadata by its Kubernetes names."""
    return {
        "apiVersion": API_VERSION,
        "kind": "Installation",
        "metadata": {"name": "shop", "namespace": "tenant", "uid": UID, "generation": 1, **metadata},
        "spec": spec or {},
        "status": status or {},
    }


def installation(
    spec: dict[str, Any] | None = None, status: dict[str, Any] | None = None, **metadata: Any
) -> Installation:
    """Returns an Installation."""
    return Installation.model_validate(installation_object(spec, status, **metadata))


def action_object(
    spec: dict[str, Any] | None = None, status: dict[str, Any] | None = None, **metadata: Any
) -> dict[str, Any]:
    """Returns an AgentAction as the API server would: one command unless the spec says what it does."""
    return {
        "apiVersion": API_VERSION,
        "kind": "AgentAction",
        "metadata": {"name": "shop-1", "namespace": "tenant", "uid": OTHER_UID, "generation": 1, **metadata},
        "spec": {"commands": [{"name": "apply", "command": ["true"]}]} if spec is None else spec,
        "status": status or {},
    }


def action(spec: dict[str, Any] | None = None, status: dict[str, Any] | None = None, **metadata: Any) -> AgentAction:
    """Returns an AgentAction."""
    return AgentAction.model_validate(action_object(spec, status, **metadata))


def owned_by_installation(uid: str = UID, name: str = "shop", *, controller: bool = True) -> list[dict[str, Any]]:
    """Returns the owner references of an Installation's run."""
    return [
        {"apiVersion": API_VERSION, "kind": "Installation", "name": name, "uid": uid, "controller": controller},
    ]


def run(
    phase: ActionPhase | None = ActionPhase.SUCCEEDED, act: Action = Action.INSTALL, **changes: Any
) -> RunReference:
    """Returns a run as its Installation remembers it."""
    given = {"name": "shop-1", "generation": 1, "number": 1, "digest": "d", **changes}
    return RunReference(action=act, phase=phase, **given)
