"""Keeps a copy of what a run is made from, so that it can be uninstalled after that is gone.

The agent hands the copy back, as soon as `runs` sees it at work: it may not live to see the end. The copy is for agents
alone, so the operator does not look into it; `lending` gives it to an uninstall. Keeping never fails a run: what is not
kept is said in a condition.
"""

import logging

from outhaul_api.agentaction import AgentAction, AgentActionStatus
from outhaul_api.vocabulary import Reason, SecretType
from outhaul_grpc.layout import KEPT_FILE
from outhaul_grpc.protocol import MAX_SOURCE_BYTES

from outhaul_operator import encoding, guarded, names, ownership, statuses
from outhaul_operator.agentoutputs import Source
from outhaul_operator.agents import Agent
from outhaul_operator.apierrors import AlreadyExistsError, NotFoundError, RefusedError
from outhaul_operator.budget import weight
from outhaul_operator.context import Context
from outhaul_operator.kinds import Kind, Object

_logger = logging.getLogger(__name__)


class Keeper:
    """Keeps the copy of one run.

    Args:
        context: What that needs.
    """

    def __init__(self, context: Context) -> None:
        self._cluster = context.cluster
        self._budget = context.budget
        self._why_not = "the agent was gone before it could be asked"

    async def keep(self, action: AgentAction, agent: Agent, status: AgentActionStatus) -> AgentActionStatus:
        """Stores the copy that an agent holds, unless it is known what has become of it.

        Returns:
            The status, which says so once that is settled.

        Raises:
            AgentError: The agent did not answer, or not as it has to.
            ApiError: The API server could not be asked.
        """
        if not action.spec.keep_source or statuses.tells_of_source(status):
            return status
        async with self._budget.reserve(action.metadata.namespace, weight(1, MAX_SOURCE_BYTES)):
            return await self._fetch(action, agent, status)

    async def _fetch(self, action: AgentAction, agent: Agent, status: AgentActionStatus) -> AgentActionStatus:
        source = await agent.source()
        if source is None:
            return statuses.source_not_kept(status, "the agent is too old; use an image of the operator's version")
        if not source.data:
            return _nothing(source, status)
        name = names.source_secret_name(action.metadata.name)
        try:
            await self._cluster.create(Kind.SECRET, _secret(action, name, source.data))
        except AlreadyExistsError:
            return await self.settle(action, status)
        except RefusedError as error:
            # Tried again, until the run has ended. Any other error breaks the work off, and all of it is repeated.
            _logger.warning("Secret %s: %s", name, error)
            self._why_not = f"the API server refuses its Secret: {error.message}"
            return status
        return statuses.source_kept(status, name)

    async def settle(self, action: AgentAction, status: AgentActionStatus) -> AgentActionStatus:
        """Returns the status that says what has become of the copy, by what is there.

        Raises:
            ApiError: The API server could not be asked.
        """
        if not action.spec.keep_source or statuses.tells_of_source(status):
            return status
        namespace, name = action.metadata.namespace, names.source_secret_name(action.metadata.name)
        try:
            await guarded.guarded_read(self._cluster, namespace, name, SecretType.SOURCE, action.metadata.uid)
        except NotFoundError:
            return statuses.source_not_kept(status, self._why_not)
        except guarded.NotOursError:
            return statuses.source_not_kept(status, f"Secret {name} exists and is not of this run")
        return statuses.source_kept(status, name)


def _nothing(source: Source, status: AgentActionStatus) -> AgentActionStatus:
    if source.too_large:
        why = f"it would have more than {MAX_SOURCE_BYTES:,} bytes, packed"
        return statuses.source_not_kept(status, why, Reason.SOURCE_TOO_LARGE)
    return statuses.source_not_kept(status, "the run ended before anything was there")


def _secret(action: AgentAction, name: str, data: bytes) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": SecretType.SOURCE,
        "immutable": True,
        "metadata": ownership.of_run(action, name),
        "data": encoding.encoded_data({KEPT_FILE: data}),
    }
