"""Keeps the operator's authorities in a Secret of its own namespace: created, exchanged, given up, watched over.

Several operators may do so at once: each change is one write that tests that nobody else has written since. A run is
started under the authority that the Secret names at that moment, never under one from memory; so an authority that no
run is in flight under any more can be given up without losing one.
"""

import asyncio
import base64
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from outhaul_api.vocabulary import MANAGED_BY_LABEL, MANAGER, ROTATE_ANNOTATION, Reason, SecretType
from outhaul_grpc.layout import CERTIFICATE_FILE, KEY_FILE

from outhaul_operator import events, keyring, metrics, trust
from outhaul_operator.apierrors import AlreadyExistsError, ApiError, ConflictError, NotFoundError, RefusedError
from outhaul_operator.cluster import Cluster
from outhaul_operator.keyring import Keyring, Wish
from outhaul_operator.kinds import Kind, Object
from outhaul_operator.settings import Settings
from outhaul_operator.trust import Authority, Leaf, OperatorIdentity, TrustError
from outhaul_operator.verdicts import WaitingError
from outhaul_operator.view import View

SECRET_NAME = "outhaul-ca"  # noqa: S105 - a Secret's name

_LOOK_S = 60.0
"""How often the Secrets are looked at while no run starts."""
_LEAST_PAUSE_S = 1.0
"""Between two reads because of authorities that are not known; anybody can write the label that asks for one."""
_ATTEMPTS = 10
_NOTHING = timedelta(0)
_logger = logging.getLogger(__name__)


class UnknownAuthorityError(Exception):
    """A run's agent cannot be dialled, since the authority that it was started under is not there, or is over."""


@dataclass(frozen=True)
class Link:
    """What the operator needs to dial the agent of one run."""

    leaf: Leaf
    """Its own certificate."""
    roots: bytes
    """What the agent's certificate must come from (PEM)."""


@dataclass(frozen=True)
class _Given:
    """The authority that an admin brings, or why there is none."""

    secret: Object | None = None
    authority: Authority | None = None
    problem: str | None = None


class Authorities:
    """The authorities of the operators that share a namespace.

    Args:
        cluster: The API server.
        view: What was seen of runs and their pods.
        settings: The operator's settings.
    """

    def __init__(self, cluster: Cluster, view: View, settings: Settings) -> None:
        self._cluster = cluster
        self._view = view
        self._settings = settings
        self._keyring: Keyring | None = None
        self._secret: Object = {}
        self._given = _Given()
        self._identities: dict[str, OperatorIdentity] = {}
        self._read_at = 0.0
        self._said: set[str] = set()

    async def open(self) -> bytes:
        """Reads the operator's Secret, or creates it; returns the key of fingerprints.

        Raises:
            TrustError: The operator's own Secret cannot be used; the message says what to do.
            ApiError: The Secret can neither be read nor written.
        """
        known = await self._look(_NOTHING)
        await self._warn()
        return known.fingerprint_key

    async def signer(self, needed: timedelta) -> Authority:
        """Returns the authority under which a run is to be started now.

        Args:
            needed: How long the run's certificate has to be valid.

        Raises:
            WaitingError: There is none; a person has to bring one.
        """
        try:
            known = await self._look(needed)
            # That of another source does not stand in for the one that is wanted.
            if known.current is not None and known.source == self._settings.ca_secret:
                trust.check_time(known.current, _now())
                return known.current
            problem = "there is no authority"
        except TrustError as error:
            problem = str(error)
        problem = self._given.problem or problem
        raise WaitingError(Reason.AUTHORITY_UNUSABLE, f"no certificate for the run: {problem}")

    async def link(self, fingerprint: str | None) -> Link:
        """Returns what it takes to dial the agent of a run.

        Args:
            fingerprint: Of the authority that the run was started under, as its pod says; None: it does not say.

        Raises:
            UnknownAuthorityError: There is no such authority, or it is over.
        """
        found = self._find(fingerprint)
        loop = asyncio.get_running_loop()
        if found is None and loop.time() - self._read_at >= _LEAST_PAUSE_S:
            # Another operator has exchanged it meanwhile.
            self._read_at = loop.time()
            try:
                await self._read()
            except TrustError as error:
                raise UnknownAuthorityError(str(error)) from error
            found = self._find(fingerprint)
        if found is None:
            raise UnknownAuthorityError(f"the run was started under an authority that is not known ({fingerprint})")
        now = _now()
        if found.ends <= now:
            raise UnknownAuthorityError(f"the run was started under an authority that ended {found.ends.isoformat()}")
        identity = self._identities.setdefault(found.fingerprint, OperatorIdentity(found))
        return Link(identity.leaf(now), found.roots)

    async def keep(self) -> None:
        """Looks after the Secrets until it is cancelled."""
        while True:
            await asyncio.sleep(min(_LOOK_S, self._settings.resync_seconds))
            try:
                await self._look(_NOTHING)
                await self._give_up_unused()
                await self._warn()
            except (ApiError, TrustError) as error:
                _logger.warning("authorities: %s", error)
            except Exception:
                # A root that nobody exchanges in time would end every run.
                _logger.exception("authorities: will be tried again")

    @property
    def _known(self) -> Keyring:
        assert self._keyring is not None  # noqa: S101 - `open` comes first
        return self._keyring

    def _find(self, fingerprint: str | None) -> Authority | None:
        return self._known.current if fingerprint is None else self._known.find(fingerprint)

    # -- one look

    async def _look(self, needed: timedelta, attempts: int = _ATTEMPTS) -> Keyring:
        """Reads the Secrets and does what is due, in one write; returns what holds then.

        Raises:
            TrustError: The operator's own Secret cannot be used.
        """
        secret, before = await self._read()
        # Read after ours, so that it is never older than what ours was copied from.
        self._given = await self._read_given()
        is_asked = secret is not None and ROTATE_ANNOTATION in secret["metadata"].get("annotations", {})
        wish = Wish(
            lifetime=self._settings.root_lifetime,
            needed=needed,
            # Whoever deletes the Secret wants another root.
            is_asked=is_asked or secret is None,
            source=self._settings.ca_secret,
            brought=self._given.authority,
        )
        found = keyring.successor(before, wish, _now())
        if secret is not None and found is None and not is_asked:
            return before
        after = before.succeeded_by(found[0], wish.source) if found is not None else before
        try:
            await self._write(secret, after)
        except (AlreadyExistsError, ConflictError, NotFoundError):
            # Another operator was faster: what it has written is read, and may be what was wanted.
            if attempts == 1:
                raise
            return await self._look(needed, attempts - 1)
        await self._tell(before, found, is_asked=is_asked)
        return after

    async def _read(self) -> tuple[Object | None, Keyring]:
        """Returns the operator's own Secret and what it holds; where it is gone, what is remembered of it."""
        try:
            secret = await self._cluster.get(Kind.SECRET, self._settings.namespace, SECRET_NAME)
        except NotFoundError:
            return None, self._keyring or keyring.new()
        known = self._keyring
        if known is None or _version(secret) != _version(self._secret):
            try:
                known = keyring.from_files(_files(secret))
            except TrustError as error:
                raise TrustError(
                    f"Secret {self._settings.namespace}/{SECRET_NAME}: {error}; delete it, and it is made anew. An "
                    "authority of your own belongs into a Secret of another name: see --ca-secret"
                ) from None
            self._remember(secret, known)
        return secret, known

    async def _read_given(self) -> _Given:
        name = self._settings.ca_secret
        if name is None:
            return _Given()
        try:
            secret = await self._cluster.get(Kind.SECRET, self._settings.namespace, name)
        except (NotFoundError, RefusedError) as error:
            return _Given(problem=f"the authority cannot be read: {error}")
        try:
            files = _files(secret)
            authority = trust.load_authority(files.get(CERTIFICATE_FILE, b""), files.get(KEY_FILE, b""))
            trust.check_time(authority, _now())
        except TrustError as error:
            return _Given(secret, problem=f"Secret {self._settings.namespace}/{name}: {error}")
        return _Given(secret, authority)

    async def _write(self, secret: Object | None, after: Keyring) -> None:
        data = {key: base64.b64encode(value).decode() for key, value in keyring.to_files(after).items()}
        if secret is None:
            metadata: Object = {"name": SECRET_NAME, "namespace": self._settings.namespace}
            metadata["labels"] = {MANAGED_BY_LABEL: MANAGER}
            body = {"apiVersion": "v1", "kind": "Secret", "type": SecretType.CA, "metadata": metadata, "data": data}
            written = await self._cluster.create(Kind.SECRET, body)
        else:
            annotations = {**secret["metadata"].get("annotations", {})}
            annotations.pop(ROTATE_ANNOTATION, None)
            metadata = {**secret["metadata"], "annotations": annotations}
            # The version that was read goes with it, so nobody's write in between is lost.
            written = await self._cluster.replace(Kind.SECRET, {**secret, "metadata": metadata, "data": data})
        self._remember(written, after)

    def _remember(self, secret: Object, known: Keyring) -> None:
        self._secret, self._keyring = secret, known
        fingerprints = {one.fingerprint for one in known.all}
        self._identities = {key: one for key, one in self._identities.items() if key in fingerprints}
        metrics.CA_EXPIRY.set(known.current.ends.timestamp() if known.current is not None else math.nan)

    async def _give_up_unused(self) -> None:
        """Drops former authorities that no run in flight was started under."""
        known, secret = self._known, self._secret
        seen = keyring.in_use(self._view.objects(Kind.AGENT_ACTION), self._view.objects(Kind.POD))
        if known.without_unused(seen, _now()) == known:
            return
        # The server's own word, asked for after the authorities became former ones: what was seen may be behind.
        actions = await self._listed(Kind.AGENT_ACTION, {})
        pods = await self._listed(Kind.POD, {MANAGED_BY_LABEL: MANAGER})
        kept = known.without_unused(keyring.in_use(actions, pods), _now())
        if kept == known:
            return
        try:
            await self._write(secret, kept)
        except (ConflictError, NotFoundError):
            return
        _logger.info("authorities: %d former ones were given up", len(known.formers) - len(kept.formers))

    async def _listed(self, kind: Kind, labels: Mapping[str, str]) -> list[Object]:
        namespaces = self._settings.watch_namespaces or (None,)
        return [obj for namespace in namespaces for obj in await self._cluster.list(kind, namespace, labels)]

    # -- what people are told

    async def _tell(self, before: Keyring, found: tuple[Authority, str] | None, *, is_asked: bool) -> None:
        name = self._settings.ca_secret
        if found is not None:
            authority, why = found
            message = f"authority {authority.fingerprint}, valid until {authority.ends.isoformat()}, signs: {why}"
            if before.current is None:
                _logger.info("%s", message)
            else:
                await self._say(self._secret, "Normal", Reason.AUTHORITY_EXCHANGED, message)
        elif is_asked:
            message = f"{ROTATE_ANNOTATION}: the authority is yours; put another into Secret {name}"
            await self._say(self._secret, "Warning", Reason.AUTHORITY_UNUSABLE, message)

    async def _warn(self) -> None:
        """Says what a person has to do something about."""
        about = self._given.secret or self._secret
        current, source = self._known.current, self._known.source
        if self._given.problem is not None:
            await self._say(about, "Warning", Reason.AUTHORITY_UNUSABLE, self._given.problem)
        elif current is not None and source is not None and keyring.is_ending(current, _now()):
            message = f"the authority ends {current.ends.isoformat()}: put a newer one into Secret {source}"
            await self._say(about, "Warning", Reason.AUTHORITY_ENDS, message)

    async def _say(self, about: Object, type_: events.EventType, reason: Reason, message: str) -> None:
        """Says something once a day, in the log and as an event, which Kubernetes forgets after an hour."""
        today = _now().date().isoformat()
        fact = f"{today} {reason} {message}"
        if fact in self._said:
            return
        self._said = {one for one in self._said if one.startswith(today)} | {fact}
        await events.emit(self._cluster, about, type_, reason, message, fact=today)


def _files(secret: Object) -> dict[str, bytes]:
    return {key: base64.b64decode(value) for key, value in secret.get("data", {}).items()}


def _version(secret: Object) -> str:
    return str(secret["metadata"]["resourceVersion"])


def _now() -> datetime:
    return datetime.now(UTC)
