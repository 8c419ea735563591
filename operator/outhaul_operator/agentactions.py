"""AgentActions of Installations: made from a plan, and read back. Pure."""

from collections.abc import Iterable

from outhaul_api.agentaction import DEFAULT_TIMEOUT, AgentAction, AgentActionSpec, InstallationReference
from outhaul_api.installation import Installation, RunReference
from outhaul_api.vocabulary import (
    API_VERSION,
    DIGEST_ANNOTATION,
    ENGINE_LABEL,
    FIRST_ANNOTATION,
    FORMER_CANCEL_ANNOTATION,
    INPUTS_ANNOTATION,
    RECOLLECT_ANNOTATION,
    RETRY_ANNOTATION,
    RETRY_LIMIT_ANNOTATION,
    Action,
    ActionPhase,
)
from pydantic import ValidationError

from outhaul_operator import ownership
from outhaul_operator.engines.plan import Plan
from outhaul_operator.kinds import Object

_FINAL = {phase.value for phase in ActionPhase if phase.is_final}


def agent_action(installation: Installation, run: RunReference, plan: Plan) -> Object:
    """Returns a run as an object that belongs to its Installation."""
    metadata = installation.metadata
    spec = AgentActionSpec(
        action=run.action,
        installation=InstallationReference(
            name=metadata.name,
            uid=metadata.uid,
            generation=run.generation,
            number=run.number,
            attempt=run.attempt or 1,
        ),
        agent_config=installation.spec.agent_config,
        commands=plan.commands,
        outputs=plan.outputs,
        declare=[] if run.action is Action.UNINSTALL else installation.spec.outputs.declare,
        non_sensitive=installation.spec.outputs.non_sensitive,
        files=plan.files,
        archive=plan.archive,
        copy_from=plan.copy_from,
        keep_source=run.action in {Action.INSTALL, Action.UPGRADE} and _is_made_from_references(plan),
        kept_source=plan.kept_source,
        env=plan.env,
        volumes=plan.volumes,
        volume_mounts=plan.volume_mounts,
        timeout=installation.spec.timeout or DEFAULT_TIMEOUT,
    )
    annotations = {DIGEST_ANNOTATION: run.digest}
    given = {
        INPUTS_ANNOTATION: run.inputs,
        RETRY_ANNOTATION: run.retry,
        RECOLLECT_ANNOTATION: run.recollect,
        FORMER_CANCEL_ANNOTATION: run.cancel,
        FIRST_ANNOTATION: "true" if run.first else None,
        RETRY_LIMIT_ANNOTATION: str(run.retry_limit) if run.retry_limit is not None else None,
    }
    annotations |= {key: value for key, value in given.items() if value is not None}
    ours = ownership.of_installation(metadata.namespace, metadata.name, metadata.uid, run.name)
    ours["labels"][ENGINE_LABEL] = plan.engine
    return {
        "apiVersion": API_VERSION,
        "kind": "AgentAction",
        "metadata": {**ours, "annotations": annotations},
        "spec": spec.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True)
        | {"action": run.action},
    }


def _is_made_from_references(plan: Plan) -> bool:
    is_given_values = any(variable.value_from is not None for variable in plan.env)
    return bool(plan.copy_from) or plan.archive is not None or is_given_values


def has_ended(obj: Object) -> bool:
    """Tells whether a run has ended, by its AgentAction as it was seen."""
    return obj.get("status", {}).get("phase") in _FINAL


def parse_actions(objects: Iterable[Object]) -> list[AgentAction]:
    """Reads AgentActions; one that cannot be read is none of an Installation's runs: the operator wrote it not."""
    result = []
    for obj in objects:
        try:
            result.append(AgentAction.model_validate(obj))
        except ValidationError:
            continue
    return result
