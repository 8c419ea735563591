"""Keyed digests of sensitive outputs: they tell whether a value has changed, and are no help in guessing it. Pure."""

import hashlib
import hmac
import secrets

KEY_BYTES = 32


def new_key() -> bytes:
    """Returns a key; it is kept beside the operator's authority."""
    return secrets.token_bytes(KEY_BYTES)


def fingerprint(key: bytes, installation_uid: str, name: str, value: bytes) -> str:
    """Returns the fingerprint of an output's value: HMAC-SHA256 in hex. Only those of one output can be compared."""
    scope = hmac.digest(key, f"{installation_uid}\0{name}".encode(), hashlib.sha256)
    return hmac.digest(scope, value, hashlib.sha256).hex()
