"""Who may call an agent."""

import pytest
from outhaul_grpc.server import is_operator

OPERATOR = {
    "transport_security_type": [b"ssl"],
    "ssl_tls_version": [b"TLSv1.3"],
    "x509_subject_alternative_name": [b"spiffe://outhaul.dev/operator"],
    "x509_common_name": [b""],
}


def test_the_operator_is_known_by_its_name() -> None:
    """TLS 1.3 and one name are what it takes."""
    assert is_operator(OPERATOR)


@pytest.mark.parametrize(
    "change",
    [
        {"transport_security_type": [b"local"]},
        {"ssl_tls_version": [b"TLSv1.2"]},
        {"ssl_tls_version": []},
        {"x509_subject_alternative_name": []},
        {"x509_subject_alternative_name": [b"spiffe://outhaul.dev/operator/"]},
        {"x509_subject_alternative_name": [b"spiffe://outhaul.dev/run/operator"]},
        {"x509_subject_alternative_name": [b"spiffe://outhaul.dev/operator", b"x"]},
        {
            "x509_subject_alternative_name": [],
            "x509_common_name": [b"spiffe://outhaul.dev/operator"],
        },
    ],
)
def test_everybody_else_is_not(change: dict[str, list[bytes]]) -> None:
    """One thing that differs is enough; a common name counts for nothing."""
    assert not is_operator({**OPERATOR, **change})


def test_a_peer_without_tls_is_not() -> None:
    """Nothing known is nobody known."""
    assert not is_operator({})
