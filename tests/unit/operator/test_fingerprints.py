"""Keyed digests of sensitive outputs."""

import hashlib
import re

from hypothesis import given
from hypothesis import strategies as st
from outhaul_operator.fingerprints import KEY_BYTES, fingerprint, new_key

KEY = b"k" * KEY_BYTES


def test_equal_values_have_equal_fingerprints() -> None:
    """The same value of the same output has the same fingerprint from run to run."""
    assert fingerprint(KEY, "uid", "password", b"x") == fingerprint(KEY, "uid", "password", b"x")


@given(st.binary(), st.binary())
def test_other_values_have_others(first: bytes, second: bytes) -> None:
    """Another value has another fingerprint."""
    assert (fingerprint(KEY, "uid", "a", first) == fingerprint(KEY, "uid", "a", second)) == (first == second)


def test_one_value_in_two_places_cannot_be_told() -> None:
    """The same value as another output, of another Installation or under another key has another fingerprint."""
    made = {
        fingerprint(KEY, "uid", "a", b"x"),
        fingerprint(KEY, "uid", "b", b"x"),
        fingerprint(KEY, "other", "a", b"x"),
        fingerprint(b"j" * KEY_BYTES, "uid", "a", b"x"),
    }
    assert len(made) == 4


@given(st.binary())
def test_a_fingerprint_shows_nothing(value: bytes) -> None:
    """It is 64 hex digits and no plain digest of the value."""
    made = fingerprint(KEY, "uid", "a", value)
    assert re.fullmatch("[0-9a-f]{64}", made)
    assert made != hashlib.sha256(value).hexdigest()


def test_keys_are_new() -> None:
    """Each key is another, and long enough."""
    assert len(new_key()) == KEY_BYTES == 32
    assert new_key() != new_key()
