"""The metadata of what the operator makes: labels to find it by, and the owner that it goes with. Pure."""

from outhaul_api.agentaction import AgentAction, InstallationReference
from outhaul_api.vocabulary import ACTION_LABEL, API_VERSION, INSTALLATION_LABEL, MANAGED_BY_LABEL, MANAGER

from outhaul_operator import names
from outhaul_operator.kinds import Kind, Object
from outhaul_operator.view import Key


def of_run(action: AgentAction, name: str) -> Object:
    """Returns the metadata of an object that belongs to a run."""
    labels = {MANAGED_BY_LABEL: MANAGER, ACTION_LABEL: action.metadata.uid}
    if action.spec.installation is not None:
        labels[INSTALLATION_LABEL] = names.label_value(action.spec.installation.name)
    owner = _owner("AgentAction", action.metadata.name, action.metadata.uid)
    return {"name": name, "namespace": action.metadata.namespace, "labels": labels, "ownerReferences": [owner]}


def is_of_run(obj: Object | None, action: AgentAction) -> bool:
    """Tells whether an object belongs to a run; a name and labels prove nothing, whoever made it."""
    owners = obj["metadata"].get("ownerReferences", []) if obj is not None else []
    return any(owner["uid"] == action.metadata.uid for owner in owners)


def installation_of(action: AgentAction) -> InstallationReference | None:
    """Returns the Installation whose run this is, by the run's own account; None where that contradicts itself.

    Whoever may create AgentActions can write such an account. It keeps a copy of a run from being taken for one, and no
    more: that the Installation exists, in this namespace and under this uid, is for the caller to ask.
    """
    reference = action.spec.installation
    if reference is None:
        return None
    is_controlled = any(
        (one.controller, one.kind, one.name, one.uid) == (True, "Installation", reference.name, reference.uid)
        for one in action.metadata.owner_references
    )
    is_named = action.metadata.name == names.run_name(reference.name, uid=reference.uid, number=reference.number)
    return reference if is_controlled and is_named else None


def of_installation(namespace: str, installation: str, uid: str, name: str) -> Object:
    """Returns the metadata of an object that belongs to an Installation.

    Args:
        namespace: Of both.
        installation: The Installation's name.
        uid: The Installation's uid.
        name: The object's name.
    """
    labels = {MANAGED_BY_LABEL: MANAGER, INSTALLATION_LABEL: names.label_value(installation)}
    owner = _owner("Installation", installation, uid)
    return {"name": name, "namespace": namespace, "labels": labels, "ownerReferences": [owner]}


def controller_of(action: Object) -> Key | None:
    """Returns the key of the Installation that controls an AgentAction."""
    metadata = action["metadata"]
    for owner in metadata.get("ownerReferences", []):
        if owner.get("controller") and owner["kind"] == "Installation":
            return Key(Kind.INSTALLATION, metadata["namespace"], owner["name"])
    return None


def _owner(kind: str, name: str, uid: str) -> Object:
    return {"apiVersion": API_VERSION, "kind": kind, "name": name, "uid": uid, "controller": True}
