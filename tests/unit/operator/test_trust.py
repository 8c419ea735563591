"""Certificates of the operator and of runs."""

import datetime as dt

import certificates
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509 import verification
from outhaul_operator import trust
from outhaul_operator.trust import Authority, Leaf, OperatorIdentity, TrustError

NOW = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
UID = "5e0d3f7c-92f1-4c38-9d5e-3a7f1c1d2b44"
HOUR = dt.timedelta(hours=1)


@pytest.fixture(scope="module")
def authority() -> Authority:
    """An authority of our own."""
    return trust.create_authority(NOW)


def server_leaf(authority: Authority, timeout: dt.timedelta = HOUR) -> Leaf:
    """Returns the leaf of a run."""
    return trust.issue_server(
        authority, namespace="tenant", name="run-1", run_uid=UID, timeout=timeout, linger=HOUR, now=NOW
    )


def certificate(leaf: Leaf) -> x509.Certificate:
    """Returns a leaf's certificate."""
    return x509.load_pem_x509_certificate(leaf.certificate)


def verifier(authority: Authority, now: dt.datetime = NOW) -> verification.PolicyBuilder:
    """Returns a standard verifier that trusts the authority."""
    return verification.PolicyBuilder().store(verification.Store([authority.certificate])).time(now)


def test_a_server_leaf_serves_under_its_runs_name(authority: Authority) -> None:
    """A standard verifier accepts it as the server of this run, and as no other."""
    leaf = certificate(server_leaf(authority))
    name = x509.DNSName(f"{UID}.run.outhaul.dev")
    assert verifier(authority).build_server_verifier(name).verify(leaf, [])
    other = x509.DNSName("other.run.outhaul.dev")
    with pytest.raises(verification.VerificationError):
        verifier(authority).build_server_verifier(other).verify(leaf, [])


def test_a_server_leaf_is_no_client(authority: Authority) -> None:
    """A run's certificate cannot be used to call anybody."""
    with pytest.raises(verification.VerificationError):
        verifier(authority).build_client_verifier().verify(certificate(server_leaf(authority)), [])


def test_the_operators_leaf_is_a_client_with_its_uri(authority: Authority) -> None:
    """A standard verifier accepts it as a client whose only name is the operator's URI."""
    leaf = trust.issue_operator(authority, NOW)
    subjects = verifier(authority).build_client_verifier().verify(certificate(leaf), []).subjects
    assert subjects == [x509.UniformResourceIdentifier("spiffe://outhaul.dev/operator")]
    name = x509.DNSName("operator")
    with pytest.raises(verification.VerificationError):
        verifier(authority).build_server_verifier(name).verify(certificate(leaf), [])


def test_names_are_critical_and_the_subject_is_empty(authority: Authority) -> None:
    """The identity is in the alternative names alone."""
    leaf = certificate(server_leaf(authority))
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert names.critical
    assert list(names.value) == [
        x509.DNSName(f"{UID}.run.outhaul.dev"),
        x509.UniformResourceIdentifier(f"spiffe://outhaul.dev/run/tenant/run-1/{UID}"),
    ]
    assert list(leaf.subject) == []


def test_a_server_leaf_outlives_the_run(authority: Authority) -> None:
    """It is valid a little before now, and until timeout, linger and a margin are over."""
    leaf = certificate(server_leaf(authority, timeout=3 * HOUR))
    assert leaf.not_valid_before_utc == NOW - dt.timedelta(minutes=5)
    assert leaf.not_valid_after_utc > NOW + 4 * HOUR + dt.timedelta(seconds=930)
    assert leaf.not_valid_after_utc < NOW + 6 * HOUR


def test_no_leaf_outlives_its_authority(authority: Authority) -> None:
    """A leaf ends with the root at the latest, and begins with it at the earliest."""
    end = authority.certificate.not_valid_after_utc
    leaf = certificate(server_leaf(authority, timeout=dt.timedelta(days=36500)))
    assert leaf.not_valid_after_utc == end
    assert leaf.not_valid_before_utc >= authority.certificate.not_valid_before_utc


def test_an_authority_survives_being_stored(authority: Authority) -> None:
    """What is read from a Secret signs as before."""
    loaded = trust.load_authority(authority.roots, authority.key_pem)
    assert loaded == authority
    assert loaded.fingerprint == authority.fingerprint
    certificate(trust.issue_operator(loaded, NOW)).verify_directly_issued_by(authority.certificate)


def test_the_roots_of_a_run_tell_its_authority(authority: Authority) -> None:
    """The file that an agent trusts is enough to know which authority its run was started under."""
    assert trust.fingerprint_of(authority.roots) == authority.fingerprint
    assert trust.fingerprint_of(trust.create_authority(NOW).roots) != authority.fingerprint
    assert trust.fingerprint_of(b"no certificate") is None


def test_the_operator_renews_its_leaf_at_two_thirds(authority: Authority) -> None:
    """The same leaf is used until two thirds of its life are over."""
    identity = OperatorIdentity(authority)
    first = identity.leaf(NOW)
    assert identity.leaf(NOW + 15 * HOUR) == first
    second = identity.leaf(NOW + 17 * HOUR)
    assert second != first
    assert second.not_after > first.not_after


def own(key: trust.SigningKey, *extensions: x509.ExtensionType) -> Authority:
    """Returns an authority as somebody else may have made it, signed by a root of theirs, with these extensions."""
    valid = (NOW - HOUR, NOW + HOUR)
    return Authority(certificates.certificate(("own", key), ("root", certificates.ecdsa()), valid, extensions), key)


IS_CA = x509.BasicConstraints(ca=True, path_length=None)


def test_broken_material_is_refused_in_words(authority: Authority) -> None:
    """Each thing that can be wrong with an authority has its message, which shows none of the material."""
    good, other = own(certificates.ecdsa(), IS_CA), own(certificates.ecdsa(), IS_CA)
    no_ca, no_signer = own(certificates.ecdsa()), own(certificates.ecdsa(), IS_CA, certificates.usage(signs=False))
    narrow = own(certificates.ecdsa(), IS_CA, x509.NameConstraints([x509.DNSName("corp.example")], None))
    odd = own(ec.generate_private_key(ec.SECP256K1()), IS_CA)
    leaf = server_leaf(authority)
    cases = {
        "it needs tls.crt and tls.key": (good.roots, b" "),
        "holds no certificate": (b"secret", good.key_pem),
        "no private key in PEM form": (good.roots, b"secret"),
        "do not belong together": (good.roots, other.key_pem),
        "has to be an RSA, Ed25519 or ECDSA key": (odd.roots, odd.key_pem),
        "not the certificate of an authority": (no_ca.roots, no_ca.key_pem),
        "is not the certificate of an authority": (leaf.certificate, leaf.key),
        "may not sign certificates": (no_signer.roots, no_signer.key_pem),
        "name constraints": (narrow.roots, narrow.key_pem),
    }
    for words, (roots, key) in cases.items():
        with pytest.raises(TrustError, match=words) as caught:
            trust.load_authority(roots, key)
        assert "secret" not in str(caught.value)


def test_the_first_certificate_of_a_chain_is_the_authority() -> None:
    """What follows it, as cert-manager writes intermediates, is left alone."""
    first, second = own(certificates.ecdsa(), IS_CA), own(certificates.ecdsa(), IS_CA)
    assert trust.load_authority(first.roots + second.roots, first.key_pem) == first


def test_a_key_with_a_passphrase_is_refused() -> None:
    """There is nobody to type it."""
    good = own(certificates.ecdsa(), IS_CA)
    locked = good.key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"passphrase"),
    )
    with pytest.raises(TrustError, match="without a passphrase"):
        trust.load_authority(good.roots, locked)


def test_an_authority_of_another_time_is_told(authority: Authority) -> None:
    """One that is over, or not valid yet, is read, and refused where it has to be valid; the message has its dates."""
    trust.check_time(authority, NOW)
    for time in (NOW + dt.timedelta(days=3651), NOW - HOUR):
        with pytest.raises(TrustError, match=r"valid from 2026-01-02T.* to 2035-.*, which is not now"):
            trust.check_time(authority, time)


def test_keys_are_never_shown(authority: Authority) -> None:
    """No key is part of what is printed of an object."""
    leaf = trust.issue_operator(authority, NOW)
    assert "PRIVATE" not in repr(leaf)
    assert "key=" not in repr(authority)
    assert isinstance(authority.key, ec.EllipticCurvePrivateKey)
