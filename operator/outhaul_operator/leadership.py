"""Who of several operators works: the holder of a Lease. The others wait, ready to take over.

`__main__` asks for leadership before anything else and ends the process where it is lost: what it did not finish, the
next leader does. The Kubernetes client has a leader election too; it compares wall clocks, waits for the API server
without a deadline of its own, ends at a broken connection, and never releases.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

from outhaul_operator import leases
from outhaul_operator.apierrors import (
    UNPROCESSABLE,
    AlreadyExistsError,
    ApiError,
    ConflictError,
    NotFoundError,
    RefusedError,
    UnavailableError,
)
from outhaul_operator.cluster import Cluster
from outhaul_operator.kinds import LEASES, Kind, Object

LEASE = "outhaul-operator"

_LOOK = 1 / 15
_RENEW = 1 / 5
_ATTEMPT = 1 / 5
_DEADLINE = 2 / 3
"""Parts of a Lease's duration: between two looks of who waits, between two renewals, for one request, and until a
holder that could not renew gives up. The rest is for clocks that go at different speeds, and for what is under way."""
_RELEASE_S = 5.0

_logger = logging.getLogger(__name__)


class Leadership:
    """One operator's part in it.

    Args:
        cluster: The API server.
        namespace: Where the Lease is.
        identity: Whose it is: no other process that runs has the same.
        duration_s: How long a leader that is not heard of is waited for.
        sleep: Waits until it asks again.
    """

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        identity: str,
        duration_s: float,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._identity = identity
        self._duration_s = duration_s
        self._sleep = sleep
        self._sighting: leases.Sighting | None = None
        self._held_until = 0.0
        self._heard_at: float | None = None

    @property
    def is_held(self) -> bool:
        """Whether nobody else can have the Lease now."""
        return _time() < self._held_until

    def unseen(self) -> str | None:
        """Tells whether the Lease could not be looked at lately; a check of readiness, of leaders and of who waits."""
        if self._heard_at is None:
            return "the Lease was not seen yet"
        if _time() - self._heard_at > self._duration_s:
            return f"the Lease was not seen for {_time() - self._heard_at:.0f} s"
        return None

    async def acquire(self) -> None:
        """Waits until the Lease is ours.

        Raises:
            RefusedError: We may not have it.
            NotFoundError: There is no such namespace.
        """
        told = ""
        while True:
            begun = _time()
            try:
                async with asyncio.timeout(_ATTEMPT * self._duration_s):
                    holder = await self._take_if_free()
            except (AlreadyExistsError, ConflictError, UnavailableError, TimeoutError) as error:
                _logger.warning("asking for the Lease: %s", error or "no answer in time")
            else:
                self._heard_at = _time()
                if holder == self._identity:
                    self._held_until = begun + _DEADLINE * self._duration_s
                    _logger.info("%s leads", self._identity)
                    return
                if holder != told:
                    _logger.info("%s waits: %s leads", self._identity, holder)
                    told = holder
            await self._sleep(_LOOK * self._duration_s * random.uniform(0.8, 1.2))  # noqa: S311 - jitter

    async def keep(self, lost: Callable[[], None]) -> None:
        """Renews the Lease until it is cancelled, or the Lease lost.

        Args:
            lost: Called where somebody else has the Lease, or may have it now.
        """
        pause = _RENEW
        while True:
            await self._sleep(pause * self._duration_s)
            begun = _time()
            try:
                # Past its end at once where this process has stood still for too long.
                async with asyncio.timeout_at(min(begun + _ATTEMPT * self._duration_s, self._held_until)):
                    await self._renew()
            except (UnavailableError, TimeoutError) as error:
                _logger.warning("renewing the Lease: %s", error or "no answer in time")
                pause = _LOOK
                if not self.is_held:
                    break
            except ApiError as error:
                _logger.warning("renewing the Lease: %s", error)
                break
            except Exception:
                # Whoever does not renew must not lead on.
                _logger.exception("renewing the Lease")
                break
            else:
                pause = _RENEW
                self._heard_at = _time()
                self._held_until = begun + _DEADLINE * self._duration_s
        _logger.error("%s does not lead any more", self._identity)
        lost()

    async def release(self) -> None:
        """Gives the Lease back, so that nobody has to wait for its end; where that fails, they wait."""
        self._held_until = 0.0
        try:
            async with asyncio.timeout(_RELEASE_S):
                lease = await self._cluster.get(Kind.LEASE, self._namespace, LEASE)
                if leases.holder(lease) == self._identity:
                    await self._write(lease, leases.released(lease))
        except (ApiError, TimeoutError) as error:
            _logger.warning("releasing the Lease: %s", error or "no answer in time")
        else:
            _logger.info("%s has released the Lease", self._identity)

    async def _take_if_free(self) -> str:
        """Returns who holds the Lease now."""
        try:
            lease = await self._cluster.get(Kind.LEASE, self._namespace, LEASE)
        except NotFoundError:
            metadata = {"name": LEASE, "namespace": self._namespace}
            spec = leases.taken(None, self._identity, self._duration_s)
            body = {"apiVersion": LEASES, "kind": "Lease", "metadata": metadata, "spec": spec}
            return leases.holder(await self._cluster.create(Kind.LEASE, body))
        now = _time()
        self._sighting = leases.sighted(lease, self._sighting, now)
        if not leases.is_free(lease, self._identity, self._sighting, now):
            return leases.holder(lease)
        written = await self._write(lease, leases.taken(lease, self._identity, self._duration_s))
        return leases.holder(written)

    async def _renew(self) -> None:
        """Says that we are still there.

        Raises:
            RefusedError: The Lease is not ours any more.
        """
        operations = leases.renewal(self._identity)
        await self._cluster.json_patch(Kind.LEASE, self._namespace, LEASE, operations)

    async def _write(self, lease: Object, spec: Object) -> Object:
        """Writes a Lease as it should be, if it still is as it was.

        Raises:
            ConflictError: It is not.
        """
        operations = [
            {"op": "test", "path": "/metadata/resourceVersion", "value": lease["metadata"]["resourceVersion"]},
            {"op": "add", "path": "/spec", "value": spec},
        ]
        try:
            return await self._cluster.json_patch(Kind.LEASE, self._namespace, LEASE, operations)
        except RefusedError as error:
            if error.status == UNPROCESSABLE:
                raise ConflictError("the Lease", error.status, "it has changed meanwhile") from error
            raise


def _time() -> float:
    return asyncio.get_running_loop().time()
