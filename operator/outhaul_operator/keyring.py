"""What the operator's own Secret holds: the authority that signs now, former ones, and the key of fingerprints. Pure.

A former authority is kept, with its key, as long as a run may be in flight that was started under it: the operator
proves to that run's agent who it is by a certificate of that authority. `authorities` reads and writes the Secret.
"""

import datetime as dt
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from outhaul_api.vocabulary import ACTION_LABEL, AUTHORITY_LABEL
from outhaul_grpc.layout import CERTIFICATE_FILE, KEY_FILE

from outhaul_operator import fingerprints, trust
from outhaul_operator.agentactions import has_ended
from outhaul_operator.kinds import Object
from outhaul_operator.trust import Authority, TrustError

WARN_BEFORE = dt.timedelta(days=60)
"""How long before its end an authority is spoken of; where it lives shorter, for the last fifth of its life."""
LEAST_OVERLAP = dt.timedelta(days=90)
"""How long a root of our own lives on, at least, once another has taken its place: for runs in flight."""

_FINGERPRINT_KEY = "fingerprint.key"
_SOURCE = "source"
_FORMER = "former-"


@dataclass(frozen=True)
class Keyring:
    """Everything that the operator keeps for itself."""

    fingerprint_key: bytes = field(repr=False)
    current: Authority | None = None
    """Signs the certificates of runs that start; None while an admin's is awaited."""
    formers: tuple[Authority, ...] = ()
    """Those that runs in flight may have been started under."""
    source: str | None = None
    """The admin's Secret that the current one was copied from; None: it is of our own making."""

    def find(self, fingerprint: str) -> Authority | None:
        """Returns an authority, current or former."""
        return next((one for one in self.all if one.fingerprint == fingerprint), None)

    @property
    def all(self) -> tuple[Authority, ...]:
        """All authorities, the current one first."""
        return (self.current, *self.formers) if self.current is not None else self.formers

    def succeeded_by(self, authority: Authority, source: str | None) -> "Keyring":
        """Returns a keyring in which another authority signs from now on; the one that did becomes a former one."""
        formers = tuple(one for one in self.all if one.fingerprint != authority.fingerprint)
        return replace(self, current=authority, formers=formers, source=source)

    def without_unused(self, in_use: Collection[str] | None, now: dt.datetime) -> "Keyring":
        """Returns a keyring without the former authorities that are over, or that no run in flight needs.

        Args:
            in_use: Their fingerprints, as the function `in_use` says; None: any may be needed.
            now: The time.
        """
        kept = [one for one in self.formers if one.ends > now and (in_use is None or one.fingerprint in in_use)]
        return replace(self, formers=tuple(kept))


def new() -> Keyring:
    """Returns a keyring without any authority."""
    return Keyring(fingerprints.new_key())


def to_files(keyring: Keyring) -> dict[str, bytes]:
    """Returns the Secret's data."""
    files = {_FINGERPRINT_KEY: keyring.fingerprint_key}
    if keyring.current is not None:
        files |= {CERTIFICATE_FILE: keyring.current.roots, KEY_FILE: keyring.current.key_pem}
    if keyring.source is not None:
        files[_SOURCE] = keyring.source.encode()
    for one in keyring.formers:
        files[f"{_FORMER}{one.fingerprint}.crt"] = one.roots
        files[f"{_FORMER}{one.fingerprint}.key"] = one.key_pem
    return files


def from_files(files: Mapping[str, bytes]) -> Keyring:
    """Returns the keyring of the Secret's data, whatever of it is still valid.

    Raises:
        TrustError: Something is missing or damaged.
    """
    key = files.get(_FINGERPRINT_KEY)
    if not key:
        raise TrustError(f"it has no {_FINGERPRINT_KEY}, so it is not the operator's own")
    has_current = CERTIFICATE_FILE in files or KEY_FILE in files
    source = files.get(_SOURCE)
    return Keyring(
        fingerprint_key=key,
        current=_authority(files, CERTIFICATE_FILE, KEY_FILE) if has_current else None,
        formers=tuple(
            _authority(files, name, name.removesuffix(".crt") + ".key")
            for name in sorted(files)
            if name.startswith(_FORMER) and name.endswith(".crt")
        ),
        source=source.decode(errors="replace") if source is not None else None,
    )


def _authority(files: Mapping[str, bytes], certificate: str, key: str) -> Authority:
    return trust.load_authority(files.get(certificate, b""), files.get(key, b""))


@dataclass(frozen=True)
class Wish:
    """What the current authority has to be like."""

    lifetime: dt.timedelta
    """Of roots of our own; each signs for two thirds of it."""
    needed: dt.timedelta
    """How long a run that is about to start may take."""
    is_asked: bool
    """Whether a person wants another root."""
    source: str | None
    """The admin's Secret that it has to come from; None: it is of our own making."""
    brought: Authority | None
    """What that Secret holds, if it is usable."""


def successor(keyring: Keyring, wish: Wish, now: dt.datetime) -> tuple[Authority, str] | None:
    """Returns the authority that has to take the place of the current one, and why; None: that one stays."""
    if wish.source is None:
        why = _why_rotate(keyring, wish, now)
        return (_new_root(wish, now), why) if why is not None else None
    # A Secret that cannot be used is no reason to stop: the authority that was copied from it signs until its end.
    if wish.brought is None or (keyring.source == wish.source and keyring.current == wish.brought):
        return None
    return wish.brought, f"Secret {wish.source} holds it"


def _why_rotate(keyring: Keyring, wish: Wish, now: dt.datetime) -> str | None:
    current = keyring.current
    if current is None:
        return "there was none"
    if keyring.source is not None:
        return f"that of Secret {keyring.source} is not to be used any more"
    if wish.is_asked:
        return "it was asked for"
    if now >= current.created + min(wish.lifetime, current.ends - current.created) * 2 / 3:
        return "two thirds of the last one's life are over"
    if now + wish.needed > current.ends:
        return "a run may take longer than the last one lives"
    return None


def _new_root(wish: Wish, now: dt.datetime) -> Authority:
    return trust.create_authority(now, max(wish.lifetime, wish.lifetime * 2 / 3 + LEAST_OVERLAP, wish.needed * 2))


def is_ending(authority: Authority, now: dt.datetime) -> bool:
    """Tells whether a person should know of an authority's end; whoever renews it in time has done so before."""
    return now > authority.ends - min(WARN_BEFORE, (authority.ends - authority.created) / 5)


def in_use(actions: Iterable[Object], pods: Iterable[Object]) -> set[str] | None:
    """Returns the fingerprints of the authorities under which runs are in flight.

    Args:
        actions: AgentActions.
        pods: The pods of runs; asked for after the actions.

    Returns:
        The fingerprints; None where any may be in use: a run that has not ended has no pod yet, or one that does not
        say.
    """
    labels = [one["metadata"].get("labels", {}) for one in pods]
    roots = {one.get(ACTION_LABEL): one.get(AUTHORITY_LABEL) for one in labels}
    in_flight = [one["metadata"]["uid"] for one in actions if not has_ended(one)]
    found = [roots.get(uid) for uid in in_flight]
    known = {root for root in found if root is not None}
    return known if None not in found else None
