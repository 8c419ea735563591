"""Keys and certificates of one cluster: a CA, what it signs, and the key of the service accounts' tokens.

Files are written once and read again, so a cluster that is started a second time keeps its identity. Keys are
for their owner only.
"""

import datetime as dt
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LIFETIME = dt.timedelta(days=365)
_PURPOSES = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]


@dataclass(frozen=True)
class Pair:
    """Where a certificate and its key are."""

    certificate: Path
    key: Path


class Authority:
    """The cluster's CA and everything that it has signed, in one directory.

    Args:
        directory: made, and filled, when it is not there.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.ca = Pair(directory / "ca.crt", directory / "ca.key")
        if not self.ca.certificate.exists():
            self._make_ca()

    def issue(
        self, file: str, common_name: str, *, organizations: Sequence[str] = (), names: Sequence[str] = ()
    ) -> Pair:
        """A certificate with its key, made unless it is there.

        Args:
            file: the files' name without its ending.
            common_name: to Kubernetes, the user.
            organizations: to Kubernetes, the groups.
            names: DNS names and addresses that it may serve as.
        """
        pair = Pair(self.directory / f"{file}.crt", self.directory / f"{file}.key")
        if pair.certificate.exists():
            return pair
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name(
            [
                *(x509.NameAttribute(NameOID.ORGANIZATION_NAME, each) for each in organizations),
                x509.NameAttribute(NameOID.COMMON_NAME, common_name),
            ]
        )
        issuer = x509.load_pem_x509_certificate(self.ca.certificate.read_bytes())
        builder = _builder(subject, issuer.subject, key).add_extension(
            x509.BasicConstraints(ca=False, path_length=None), critical=True
        )
        builder = builder.add_extension(_key_usage(ca=False), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage(_PURPOSES if names else _PURPOSES[:1]), critical=False)
        builder = builder.add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(self._ca_key().public_key()), critical=False
        )
        if names:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False
            )
        _write_key(pair.key, key)
        _write(
            pair.certificate,
            builder.sign(self._ca_key(), hashes.SHA256()).public_bytes(serialization.Encoding.PEM),
        )
        return pair

    def signing_key(self, file: str) -> Path:
        """A key without a certificate, made unless it is there; `<file>.pub` beside it is its public half."""
        path = self.directory / f"{file}.key"
        if not path.exists():
            key = ec.generate_private_key(ec.SECP256R1())
            public = key.public_key().public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            )
            _write(path.with_suffix(".pub"), public)
            _write_key(path, key)
        return path

    def _make_ca(self) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "cluster-ca")])
        builder = _builder(name, name, key)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_key_usage(ca=True), critical=True)
        _write_key(self.ca.key, key)
        _write(self.ca.certificate, builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def _ca_key(self) -> ec.EllipticCurvePrivateKey:
        key = serialization.load_pem_private_key(self.ca.key.read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        return key


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + _LIFETIME)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _key_usage(*, ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=ca,
        crl_sign=ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    _write(
        path,
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )


def _write(path: Path, content: bytes) -> None:
    write_private(path, content)


def write_private(path: Path, content: bytes) -> None:
    """Writes a file that only its owner may read, whole or not at all."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    partial.unlink(missing_ok=True)
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    partial.replace(path)
