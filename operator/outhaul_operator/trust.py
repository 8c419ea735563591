"""Certificates: the operator's own authority, one server leaf for each run, and the operator's client leaf.

Pure functions on PEM bytes and the time; who stores what is decided elsewhere. An authority is a signing
certificate with its key and a bundle of roots: while roots are exchanged the bundle holds the old one beside
the new one, so runs in flight finish under the root that they started with.
"""

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID
from outhaul_grpc.layout import CERTIFICATE_FILE, KEY_FILE, OPERATOR_URI, ROOTS_FILE, run_uri, server_name
from outhaul_grpc.protocol import COLLECT_TIMEOUT, KILL_GRACE

AUTHORITY_LIFETIME = dt.timedelta(days=3650)
OPERATOR_LIFETIME = dt.timedelta(hours=24)
CLOCK_SKEW = dt.timedelta(minutes=5)
"""How far a leaf's validity reaches back, for nodes whose clock is behind."""
MARGIN = dt.timedelta(hours=1)
"""For what a run does beside its commands: image pulls before them, storing the outputs after them."""

_AUTHORITY_NAME = "Outhaul operator"


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
    """What signs leaves, and the roots that both sides trust."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey = field(repr=False)
    bundle: tuple[x509.Certificate, ...]
    """Every root that is trusted: the signing one and, while roots are exchanged, others."""

    @property
    def roots(self) -> bytes:
        """The bundle as PEM."""
        return b"".join(_pem(certificate) for certificate in self.bundle)

    def to_files(self) -> dict[str, bytes]:
        """Returns the data of the authority's Secret."""
        return {
            CERTIFICATE_FILE: _pem(self.certificate),
            KEY_FILE: _key_pem(self.key),
            ROOTS_FILE: self.roots,
        }


def create_authority(now: dt.datetime) -> Authority:
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
        .not_valid_after(now + AUTHORITY_LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Authority(certificate, key, (certificate,))


def load_authority(files: Mapping[str, bytes], now: dt.datetime) -> Authority:
    """Returns the authority of a Secret's data.

    Raises:
        TrustError: a file is missing or unreadable, key and certificate do not belong together, or the
            certificate cannot sign leaves now.
    """
    missing = [name for name in (CERTIFICATE_FILE, KEY_FILE, ROOTS_FILE) if not files.get(name)]
    if missing:
        raise TrustError(f"the authority lacks {', '.join(missing)}")
    certificate = _load_certificates(files[CERTIFICATE_FILE], CERTIFICATE_FILE)[0]
    bundle = tuple(_load_certificates(files[ROOTS_FILE], ROOTS_FILE))
    try:
        key = serialization.load_pem_private_key(files[KEY_FILE], password=None)
    except (ValueError, TypeError):
        raise TrustError(f"{KEY_FILE} of the authority is no unencrypted private key in PEM form") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise TrustError(f"{KEY_FILE} of the authority is no elliptic curve key")
    if key.public_key() != certificate.public_key():
        raise TrustError(f"{KEY_FILE} and {CERTIFICATE_FILE} of the authority do not belong together")
    if certificate not in bundle:
        raise TrustError(f"{ROOTS_FILE} of the authority does not hold the certificate of {CERTIFICATE_FILE}")
    _check_can_sign(certificate, now)
    return Authority(certificate, key, bundle)


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
    beside = dt.timedelta(seconds=COLLECT_TIMEOUT + KILL_GRACE) + MARGIN
    names: list[x509.GeneralName] = [
        x509.DNSName(server_name(run_uid)),
        x509.UniformResourceIdentifier(run_uri(namespace, name, run_uid)),
    ]
    return _issue(authority, names, ExtendedKeyUsageOID.SERVER_AUTH, timeout + linger + beside, now)


def issue_operator(authority: Authority, now: dt.datetime) -> Leaf:
    """Returns the operator's own leaf: it calls agents, and can do nothing else. It stays in memory."""
    names = [x509.UniformResourceIdentifier(OPERATOR_URI)]
    return _issue(authority, names, ExtendedKeyUsageOID.CLIENT_AUTH, OPERATOR_LIFETIME, now)


class OperatorIdentity:
    """The operator's leaf, issued anew when two thirds of its life are over."""

    def __init__(self, authority: Authority) -> None:
        self._authority = authority
        self._leaf: Leaf | None = None
        self._renew_at: dt.datetime | None = None

    @property
    def roots(self) -> bytes:
        """The roots (PEM) that an agent's certificate must come from."""
        return self._authority.roots

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
    not_after = min(now + lifetime, authority.certificate.not_valid_after_utc)
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
        .sign(authority.key, hashes.SHA256())
    )
    return Leaf(_pem(certificate), _key_pem(key), not_after)


def _check_can_sign(certificate: x509.Certificate, now: dt.datetime) -> None:
    try:
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    except x509.ExtensionNotFound:
        constraints = None
    if constraints is None or not constraints.ca:
        raise TrustError(f"{CERTIFICATE_FILE} of the authority is not the certificate of an authority")
    if not certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc:
        start, end = certificate.not_valid_before_utc.isoformat(), certificate.not_valid_after_utc.isoformat()
        raise TrustError(f"{CERTIFICATE_FILE} of the authority is valid from {start} to {end}, which is not now")


def _load_certificates(pem: bytes, file: str) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        raise TrustError(f"{file} of the authority holds no certificate in PEM form") from None


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


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
