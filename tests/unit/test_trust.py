"""Certificates of the operator and of runs."""

import datetime as dt

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509 import verification
from outhaul_grpc.layout import CERTIFICATE_FILE, KEY_FILE, ROOTS_FILE
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
    return verification.PolicyBuilder().store(verification.Store(list(authority.bundle))).time(now)


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
    """What is read from a Secret signs as before, and trusts what it trusted."""
    loaded = trust.load_authority(authority.to_files(), NOW)
    assert loaded.certificate == authority.certificate
    assert loaded.roots == authority.roots
    assert certificate(trust.issue_operator(loaded, NOW)).issuer == authority.certificate.subject
    certificate(trust.issue_operator(loaded, NOW)).verify_directly_issued_by(authority.certificate)


def test_a_bundle_trusts_the_old_root_and_signs_with_the_new(authority: Authority) -> None:
    """While roots are exchanged, leaves of both are accepted."""
    new = trust.create_authority(NOW)
    both = Authority(new.certificate, new.key, (new.certificate, authority.certificate))
    loaded = trust.load_authority(both.to_files(), NOW)
    for leaf in (trust.issue_operator(loaded, NOW), trust.issue_operator(authority, NOW)):
        assert verifier(loaded).build_client_verifier().verify(certificate(leaf), [])
    certificate(trust.issue_operator(loaded, NOW)).verify_directly_issued_by(new.certificate)


def test_the_operator_renews_its_leaf_at_two_thirds(authority: Authority) -> None:
    """The same leaf is used until two thirds of its life are over."""
    identity = OperatorIdentity(authority)
    first = identity.leaf(NOW)
    assert identity.leaf(NOW + 15 * HOUR) == first
    second = identity.leaf(NOW + 17 * HOUR)
    assert second != first
    assert second.not_after > first.not_after


def files(authority: Authority, **changes: bytes) -> dict[str, bytes]:
    """Returns a Secret's data with some files exchanged."""
    names = {"crt": CERTIFICATE_FILE, "key": KEY_FILE, "ca": ROOTS_FILE}
    return {**authority.to_files(), **{names[name]: content for name, content in changes.items()}}


def test_broken_material_is_refused_in_words(authority: Authority) -> None:
    """Each thing that can be wrong with an authority has its message, which shows none of the material."""
    other = trust.create_authority(NOW)
    leaf = server_leaf(authority)
    cases = {
        "lacks tls.key": files(authority, key=b""),
        "holds no certificate": files(authority, crt=b"secret"),
        "no unencrypted private key": files(authority, key=b"secret"),
        "do not belong together": files(authority, key=other.to_files()[KEY_FILE]),
        "does not hold the certificate": files(authority, ca=other.roots),
        "not the certificate of an authority": {
            CERTIFICATE_FILE: leaf.certificate,
            KEY_FILE: leaf.key,
            ROOTS_FILE: leaf.certificate,
        },
    }
    for words, material in cases.items():
        with pytest.raises(TrustError, match=words) as caught:
            trust.load_authority(material, NOW)
        assert "secret" not in str(caught.value)


def test_an_expired_authority_is_refused(authority: Authority) -> None:
    """An authority that is over signs nothing."""
    with pytest.raises(TrustError, match="which is not now"):
        trust.load_authority(authority.to_files(), NOW + dt.timedelta(days=3651))


def test_keys_are_never_shown(authority: Authority) -> None:
    """No key is part of what is printed of an object."""
    leaf = trust.issue_operator(authority, NOW)
    assert "PRIVATE" not in repr(leaf)
    assert "key=" not in repr(authority)
    assert isinstance(authority.key.curve, ec.SECP256R1)
