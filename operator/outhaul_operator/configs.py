"""Resolves the AgentConfig of a run as Porter does: the operator's `default`, the namespace's, the named one."""

from collections.abc import Mapping

from outhaul_api.agentconfig import AgentConfig, AgentConfigSpec
from outhaul_api.vocabulary import Reason
from pydantic import ValidationError

from outhaul_operator.apierrors import NotFoundError
from outhaul_operator.cluster import Cluster
from outhaul_operator.kinds import Kind, Object
from outhaul_operator.validation import explain
from outhaul_operator.verdicts import StalledError, WaitingError
from outhaul_operator.view import Key, View

DEFAULT = "default"


async def resolve(cluster: Cluster, operator_namespace: str, namespace: str, name: str | None) -> AgentConfigSpec:
    """Returns the configuration of a run: each field from the nearest AgentConfig that has it.

    Args:
        cluster: Where from.
        operator_namespace: The namespace whose `default` applies to all.
        namespace: The run's namespace.
        name: The AgentConfig that is asked for, or None.

    Raises:
        WaitingError: The named AgentConfig does not exist; it may come.
        StalledError: One of them cannot be read.
    """
    found = {}
    for place in _places(operator_namespace, namespace, name):
        try:
            found[place] = await cluster.get(Kind.AGENT_CONFIG, *place)
        except NotFoundError:
            if place == (namespace, name):
                raise WaitingError(
                    Reason.AGENT_CONFIG_NOT_FOUND,
                    f"AgentConfig {name} does not exist in namespace {namespace}; "
                    "create it, or correct spec.agentConfig.name",
                    is_watched=True,
                ) from None
    return merged(_specs(found))


def seen(view: View, operator_namespace: str, namespace: str, name: str | None) -> AgentConfigSpec:
    """Returns the configuration of a run by what was seen so far, which may be behind; what was not seen is left out.

    Raises:
        StalledError: One of them cannot be read.
    """
    places = _places(operator_namespace, namespace, name)
    objects = {place: view.get(Key(Kind.AGENT_CONFIG, *place)) for place in places}
    return merged(_specs({place: obj for place, obj in objects.items() if obj is not None}))


_Place = tuple[str, str]


def _places(operator_namespace: str, namespace: str, name: str | None) -> list[_Place]:
    """Returns namespace and name of each AgentConfig that counts, the nearest last."""
    places = dict.fromkeys([(operator_namespace, DEFAULT), (namespace, DEFAULT)])
    if name is not None:
        places[namespace, name] = None
    return list(places)


def _specs(found: Mapping[_Place, Object]) -> list[AgentConfigSpec]:
    specs = []
    for place, obj in found.items():
        try:
            specs.append(AgentConfig.model_validate(obj).spec)
        except ValidationError as error:
            raise StalledError(Reason.INVALID_SPEC, f"AgentConfig {'/'.join(place)}: {explain(error)}") from None
    return specs


def merged(layers: list[AgentConfigSpec]) -> AgentConfigSpec:
    """Returns one configuration, later layers over earlier ones, field by field. Pure."""
    result: dict[str, object] = {}
    for layer in layers:
        result |= layer.to_json()
    return AgentConfigSpec.model_validate(result)
