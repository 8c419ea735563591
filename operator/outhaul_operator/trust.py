"""Certificates: authorities, one server leaf for each run, and the operator's client leaf under each authority.

Pure functions on PEM bytes and the time; which authority signs, and who stores what, is decided in `keyring` and
`authorities`. A run lives and ends under the authority that it was started with: its agent accepts a client of
that one alone, and the operator accepts no other for it. So authorities can be exchanged while runs are in flight.
"""

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass, field

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID
from outhaul_grpc.layout import CERTIFICATE_FILE, KEY_FILE, OPERATOR_URI, ROOTS_FILE, run_uri, server_name
from outhaul_grpc.protocol import COLLECT_TIMEOUT, KILL_GRACE

OPERATOR_LIFETIME = dt.timedelta(hours=24)
CLOCK_SKEW = dt.timedelta(minutes=5)
"""How far a certificate's validity reaches back, for nodes whose clock is behind."""
MARGIN = dt.timedelta(hours=1)
"""For what a run does beside its commands: image pulls before them, storing the outputs after them."""

_AUTHORITY_NAME = "Outhaul operator"
_CURVES = (ec.SECP256R1, ec.SECP384R1, ec.SECP521R1)

SigningKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey


class TrustError(Exception):
    """The material of an authority cannot be used; the message says what is wrong, and shows none of it."""


@dataclass(frozen=True)
class Leaf:
    """A certificate with its private key (PEM), for one side of one kind of connection."""

    certificate: bytes
    key: bytes = field(repr=False)
    not_after: dt.datetime

    def to_files(self, roots: bytes) -> dict[str, bytes]:
        """Returns the TLS files of a run's Secret."""
        return {CERTIFICATE_FILE: self.certificate, KEY_FILE: self.key, ROOTS_FILE: roots}


@dataclass(frozen=True)
class Authority:
    """What signs leaves. Its certificate is the trust anchor, whoever has signed that one."""

    certificate: x509.Certificate
    key: SigningKey = field(repr=False, compare=False)

    @property
    def roots(self) -> bytes:
        """What both sides of a run trust, as PEM: this certificate and no other."""
        return _pem(self.certificate)

    @property
    def key_pem(self) -> bytes:
        """The private key as PEM."""
        return _key_pem(self.key)

    @property
    def fingerprint(self) -> str:
        """Tells authorities apart; fit for a label."""
        return fingerprint(self.certificate)

    @property
    def created(self) -> dt.datetime:
        """When it was made."""
        return self.certificate.not_valid_before_utc + CLOCK_SKEW

    @property
    def ends(self) -> dt.datetime:
        """When it is over, and with it every leaf that it has signed."""
        return self.certificate.not_valid_after_utc


def fingerprint(certificate: x509.Certificate) -> str:
    """Returns the first half of the certificate's SHA-256 in hex."""
    return certificate.fingerprint(hashes.SHA256())[:16].hex()


def fingerprint_of(roots: bytes) -> str | None:
    """Returns the fingerprint of the authority that a run's files trust; None where they hold no certificate."""
    try:
        return fingerprint(x509.load_pem_x509_certificate(roots))
    except ValueError:
        return None


def create_authority(now: dt.datetime, lifetime: dt.timedelta = dt.timedelta(days=3650)) -> Authority:
    """Returns a new authority with a root of its own."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, _AUTHORITY_NAME)])
    usage = _key_usage(digital_signature=False, key_cert_sign=True, crl_sign=True)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + lifetime)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Authority(certificate, key)


def load_authority(certificates: bytes, private_key: bytes) -> Authority:
    """Returns an authority, valid now or not.

    Args:
        certificates: PEM, the authority's own certificate first; what follows is not needed.
        private_key: PEM, without a passphrase.

    Raises:
        TrustError: Either is unreadable, they do not belong together, or the certificate may not sign runs' leaves.
    """
    if not certificates.strip() or not private_key.strip():
        raise TrustError(f"it needs {CERTIFICATE_FILE} and {KEY_FILE}")
    try:
        certificate = x509.load_pem_x509_certificates(certificates)[0]
    except ValueError:
        raise TrustError(f"{CERTIFICATE_FILE} holds no certificate in PEM form") from None
    try:
        key = serialization.load_pem_private_key(private_key, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise TrustError(f"{KEY_FILE} is no private key in PEM form without a passphrase") from None
    if not isinstance(key, SigningKey) or (isinstance(key, ec.EllipticCurvePrivateKey) and not _is_usual(key.curve)):
        raise TrustError(f"{KEY_FILE} has to be an RSA, Ed25519 or ECDSA key (P-256, P-384, P-521)")
    if key.public_key() != certificate.public_key():
        raise TrustError(f"{KEY_FILE} and {CERTIFICATE_FILE} do not belong together")
    _check_may_sign(certificate)
    return Authority(certificate, key)


def check_time(authority: Authority, now: dt.datetime) -> None:
    """Demands that an authority is valid now.

    Raises:
        TrustError: It is not; the message says when it is.
    """
    start = authority.certificate.not_valid_before_utc
    if not start <= now < authority.ends:
        raise TrustError(
            f"{CERTIFICATE_FILE} is valid from {start.isoformat()} to {authority.ends.isoformat()}, which is not now"
        )


def run_lifetime(timeout: dt.timedelta, linger: dt.timedelta) -> dt.timedelta:
    """Returns how long the certificate of a run has to be valid.

    Args:
        timeout: of the run's commands.
        linger: how long the agent holds its outputs.
    """
    return timeout + linger + dt.timedelta(seconds=COLLECT_TIMEOUT + KILL_GRACE) + MARGIN


def issue_server(
    authority: Authority,
    *,
    namespace: str,
    name: str,
    run_uid: str,
    timeout: dt.timedelta,
    linger: dt.timedelta,
    now: dt.datetime,
) -> Leaf:
    """Returns the leaf of one run's agent: it serves under the run's name, and can do nothing else.

    Args:
        authority: signs the leaf; its own end is the latest end of the leaf.
        namespace: of the AgentAction.
        name: of the AgentAction.
        run_uid: of the AgentAction; the leaf is bound to it.
        timeout: of the run's commands.
        linger: how long the agent holds its outputs.
        now: the time.
    """
    names: list[x509.GeneralName] = [
        x509.DNSName(server_name(run_uid)),
        x509.UniformResourceIdentifier(run_uri(namespace, name, run_uid)),
    ]
    return _issue(authority, names, ExtendedKeyUsageOID.SERVER_AUTH, run_lifetime(timeout, linger), now)


def issue_operator(authority: Authority, now: dt.datetime) -> Leaf:
    """Returns the operator's own leaf: it calls agents, and can do nothing else. It stays in memory."""
    names = [x509.UniformResourceIdentifier(OPERATOR_URI)]
    return _issue(authority, names, ExtendedKeyUsageOID.CLIENT_AUTH, OPERATOR_LIFETIME, now)


class OperatorIdentity:
    """The operator's leaf under one authority, issued anew when two thirds of its life are over."""

    def __init__(self, authority: Authority) -> None:
        self._authority = authority
        self._leaf: Leaf | None = None
        self._renew_at: dt.datetime | None = None

    def leaf(self, now: dt.datetime) -> Leaf:
        """Returns the leaf to use for a new connection."""
        if self._leaf is None or self._renew_at is None or now >= self._renew_at:
            self._leaf = issue_operator(self._authority, now)
            self._renew_at = now + (self._leaf.not_after - now) * 2 / 3
        return self._leaf


def _issue(
    authority: Authority,
    names: Sequence[x509.GeneralName],
    usage: x509.ObjectIdentifier,
    lifetime: dt.timedelta,
    now: dt.datetime,
) -> Leaf:
    key = ec.generate_private_key(ec.SECP256R1())
    not_after = min(now + lifetime, authority.ends)
    not_before = max(now - CLOCK_SKEW, authority.certificate.not_valid_before_utc)
    issuer_key = authority.key.public_key()
    certificate = (
        x509.CertificateBuilder()
        # The identity is in the alternative names alone: verifiers fall back to a common name.
        .subject_name(x509.Name([]))
        .issuer_name(authority.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(not_before)
        .not_valid_after(not_after)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(digital_signature=True, key_cert_sign=False, crl_sign=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key), critical=False)
        .sign(authority.key, None if isinstance(authority.key, ed25519.Ed25519PrivateKey) else hashes.SHA256())
    )
    return Leaf(_pem(certificate), _key_pem(key), not_after)


def _check_may_sign(certificate: x509.Certificate) -> None:
    extensions = {type(one.value): one.value for one in certificate.extensions}
    constraints = extensions.get(x509.BasicConstraints)
    if not isinstance(constraints, x509.BasicConstraints) or not constraints.ca:
        raise TrustError(f"{CERTIFICATE_FILE} is not the certificate of an authority")
    usage = extensions.get(x509.KeyUsage)
    if isinstance(usage, x509.KeyUsage) and not usage.key_cert_sign:
        raise TrustError(f"{CERTIFICATE_FILE} may not sign certificates, by its key usage")
    if x509.NameConstraints in extensions:
        raise TrustError(f"{CERTIFICATE_FILE} has name constraints, which the names of runs do not meet")


def _is_usual(curve: ec.EllipticCurve) -> bool:
    return isinstance(curve, _CURVES)


def _key_usage(*, digital_signature: bool, key_cert_sign: bool, crl_sign: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: SigningKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
