"""Certificates that are not what they should be, and those that `trust` issues, for tests that play wrong peers."""

import datetime as dt
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID
from outhaul_grpc import layout
from outhaul_operator import trust
from wire.harness import now

DAY = dt.timedelta(days=1)
CLIENT, SERVER = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH
OPERATOR = x509.UniformResourceIdentifier(layout.OPERATOR_URI)
NOBODY = x509.UniformResourceIdentifier("spiffe://outhaul.dev/nobody")


def run_name(run_uid: str) -> x509.DNSName:
    """Returns the name in the certificate of a run's agent."""
    return x509.DNSName(layout.server_name(run_uid))


def server_leaf(authority: trust.Authority, run_uid: str, at: dt.datetime | None = None) -> trust.Leaf:
    """Returns a run's leaf."""
    return trust.issue_server(
        authority,
        namespace="tenant",
        name="other",
        run_uid=run_uid,
        timeout=dt.timedelta(hours=1),
        linger=dt.timedelta(0),
        now=at or now(),
    )


def stranger() -> trust.Authority:
    """Returns another authority, whose certificates have the same names in them."""
    return trust.create_authority(now())


def self_signed(*names: x509.GeneralName) -> trust.Leaf:
    """Returns a leaf that vouches for itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([]))
        .issuer_name(x509.Name([]))
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now() - DAY)
        .not_valid_after(now() + DAY)
        .add_extension(x509.SubjectAlternativeName(names), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return trust.Leaf(certificate.public_bytes(serialization.Encoding.PEM), pem, now() + DAY)


def issued(authority: trust.Authority, usages: list[Any], *names: x509.GeneralName) -> trust.Leaf:
    """Returns a leaf of the authority that `trust` would never issue."""
    leaf = self_signed(*names)
    key = serialization.load_pem_private_key(leaf.key, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([]))
        .issuer_name(authority.certificate.subject)
        .public_key(key.public_key())
        .serial_number(2)
        .not_valid_before(now() - DAY)
        .not_valid_after(now() + DAY)
        .add_extension(x509.SubjectAlternativeName(names), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .sign(authority.key, hashes.SHA256())
    )
    return trust.Leaf(certificate.public_bytes(serialization.Encoding.PEM), leaf.key, leaf.not_after)
