"""Certificate authorities as admins bring them: in the forms in which cert-manager writes them into a Secret."""

import datetime as dt
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

Key = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey
Named = tuple[str, Key]
"""A common name, and the key of who has it."""

_PKCS8 = serialization.PrivateFormat.PKCS8
_TRADITIONAL = serialization.PrivateFormat.TraditionalOpenSSL
HOUR = dt.timedelta(hours=1)


@dataclass(frozen=True)
class Own:
    """An authority, and the data of its Secret."""

    certificate: x509.Certificate
    files: dict[str, bytes]


def _rsa() -> Key:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def ecdsa() -> Key:
    """Returns a key of the usual kind."""
    return ec.generate_private_key(ec.SECP256R1())


FORMS: dict[str, tuple[Callable[[], Key], serialization.PrivateFormat]] = {
    "RSA, PKCS1": (_rsa, _TRADITIONAL),
    "RSA, PKCS8": (_rsa, _PKCS8),
    "ECDSA, SEC1": (ecdsa, _TRADITIONAL),
    "ECDSA P-384, PKCS8": (lambda: ec.generate_private_key(ec.SECP384R1()), _PKCS8),
    "Ed25519, PKCS8": (ed25519.Ed25519PrivateKey.generate, _PKCS8),
}
"""What `spec.privateKey` of cert-manager's Certificate may ask for: algorithm and encoding."""


def own_authority(
    form: str = "ECDSA, SEC1",
    *,
    self_signed: bool = False,
    is_ca: bool = True,
    begins: dt.timedelta = -HOUR,
    ends: dt.timedelta = dt.timedelta(days=30),
) -> Own:
    """Makes what a Certificate with `isCA: true` becomes.

    Args:
        form: one of `FORMS`.
        self_signed: by a SelfSigned issuer, whose `ca.crt` is the certificate itself; else by an intermediate, which
            follows in `tls.crt`, while `ca.crt` is the root alone.
        is_ca: without it the certificate is nobody's authority.
        begins: when it becomes valid, from now.
        ends: when it is over, from now.
    """
    make, encoding = FORMS[form]
    key = make()
    now = dt.datetime.now(dt.UTC)
    valid = (now + min(begins, ends - HOUR), now + ends)
    itself, top, middle = ("own", key), ("root", ecdsa()), ("intermediate", ecdsa())
    own = certificate(itself, itself if self_signed else middle, valid, extensions_of(is_ca=is_ca))
    above = certificate(middle, top, valid, extensions_of())
    root = certificate(top, top, valid, extensions_of())
    files = {
        "tls.crt": _pem(own) if self_signed else _pem(own) + _pem(above),
        "tls.key": key.private_bytes(serialization.Encoding.PEM, encoding, serialization.NoEncryption()),
        "ca.crt": _pem(own) if self_signed else _pem(root),
    }
    return Own(own, files)


def certificate(
    subject: Named,
    issuer: Named,
    valid: tuple[dt.datetime, dt.datetime],
    extensions: Iterable[x509.ExtensionType],
) -> x509.Certificate:
    """Returns a certificate of any kind, with these extensions, critical."""
    (name, key), (issuer_name, issuer_key) = subject, issuer
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(_name(issuer_name))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(valid[0])
        .not_valid_after(valid[1])
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
    )
    for one in extensions:
        builder = builder.add_extension(one, critical=True)
    return builder.sign(issuer_key, None if isinstance(issuer_key, ed25519.Ed25519PrivateKey) else hashes.SHA256())


def usage(*, signs: bool) -> x509.KeyUsage:
    """Returns a key usage, with or without the signing of certificates."""
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=True,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


def extensions_of(*, is_ca: bool = True) -> list[x509.ExtensionType]:
    """Returns the extensions of an authority, or of a certificate that is none."""
    return [x509.BasicConstraints(ca=is_ca, path_length=None), usage(signs=is_ca)]


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
