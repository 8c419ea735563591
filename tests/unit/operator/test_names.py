"""Derived names are valid, short enough to be added to, and tell different causes apart."""

import re
import string
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from outhaul_operator import names

# apimachinery, validation.IsDNS1123Subdomain, IsDNS1123Label and IsValidLabelValue.
SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")

ALPHANUMERIC = string.ascii_lowercase + string.digits
SHORT_NAMES = st.from_regex(SUBDOMAIN, fullmatch=True).filter(lambda name: len(name) <= 253)


@st.composite
def installation_names(draw: st.DrawFn) -> str:
    """Any name that an Installation can have, long ones and ones with awkward places to cut as likely as short ones."""
    if draw(st.booleans()):
        return draw(SHORT_NAMES)
    length = draw(st.integers(1, 253))
    text = "".join(draw(st.lists(st.sampled_from(ALPHANUMERIC + "-."), min_size=length, max_size=length)))
    name = re.sub(r"[-.]*\.[-.]*", ".", text).strip("-.") or "a"
    assert SUBDOMAIN.fullmatch(name)
    return name


CAUSES = st.fixed_dictionaries({"uid": st.uuids().map(str), "number": st.integers(1, 2**31)})
CAUSE: dict[str, Any] = {"uid": "u", "number": 1}


@given(installation_names(), CAUSES)
def test_a_runs_name_is_valid_whatever_the_installations(installation: str, cause: dict[str, Any]) -> None:
    """A run's name, and every name that is made from it, is one that Kubernetes takes."""
    run = names.run_name(installation, **cause)
    for name in (run, names.run_secret_name(run), names.output_secret_name(run, 0), names.output_secret_name(run, 127)):
        assert SUBDOMAIN.fullmatch(name)
        assert len(name) <= 253


@given(installation_names(), CAUSES)
def test_a_pods_name_is_short_enough_for_a_host_name(installation: str, cause: dict[str, Any]) -> None:
    """A pod's name is valid and has at most 63 characters."""
    name = names.pod_name(names.run_name(installation, **cause))
    assert SUBDOMAIN.fullmatch(name)
    assert len(name) <= 63


@given(installation_names(), CAUSES)
def test_equal_causes_give_equal_names(installation: str, cause: dict[str, Any]) -> None:
    """Whoever dispatches the same run names it the same."""
    assert names.run_name(installation, **cause) == names.run_name(installation, **cause)


@given(installation_names(), CAUSES, CAUSES)
def test_different_causes_give_different_names(installation: str, one: dict[str, Any], other: dict[str, Any]) -> None:
    """Two runs of an Installation that differ in any cause differ in name."""
    assume(one != other)
    assert names.run_name(installation, **one) != names.run_name(installation, **other)


@pytest.mark.parametrize(("cause", "value"), [("uid", "v"), ("number", 2)])
def test_each_cause_counts(cause: str, value: object) -> None:
    """One cause that differs is enough; what the run is made from is none: the next run is the next run."""
    assert names.run_name("shop", **CAUSE) != names.run_name("shop", **CAUSE | {cause: value})


@given(installation_names(), installation_names())
def test_installations_do_not_share_pod_names(one: str, other: str) -> None:
    """Names that are equal in their first 253 characters but one still give two pods."""
    assume(one != other)
    cause = CAUSE
    assert names.pod_name(names.run_name(one, **cause)) != names.pod_name(names.run_name(other, **cause))


def test_a_short_name_is_kept() -> None:
    """A person sees the Installation's name in the run's, and the run's in the pod's."""
    run = names.run_name("shop", **CAUSE)
    assert re.fullmatch(r"shop-[0-9a-f]{10}", run)
    assert names.pod_name(run) == run


@given(installation_names())
def test_the_latest_secrets_name_is_valid(installation: str) -> None:
    """The default name of the latest Secret is valid, with the number of a further part too."""
    name = names.latest_secret_name(installation, None)
    assert SUBDOMAIN.fullmatch(f"{name}-127")
    assert len(f"{name}-127") <= 253


def test_a_chosen_name_is_the_latest_secrets_name() -> None:
    """`spec.outputs.secretName` is taken as it is."""
    assert names.latest_secret_name("shop", "credentials") == "credentials"


@given(installation_names(), installation_names())
def test_label_values_are_valid_and_tell_names_apart(one: str, other: str) -> None:
    """A name as a label's value fits a label and stays unique."""
    for name in (one, other):
        assert LABEL_VALUE.fullmatch(names.label_value(name))
        assert len(names.label_value(name)) <= 63
    assert (names.label_value(one) == names.label_value(other)) == (one == other)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=5), JSON, max_size=5), st.randoms())
def test_a_digest_does_not_know_the_order_of_keys(document: dict[str, object], random: Any) -> None:
    """A document has one digest, however its keys are ordered."""
    keys = list(document)
    random.shuffle(keys)
    assert names.digest({key: document[key] for key in keys}) == names.digest(document)


@given(st.text(max_size=5), JSON, JSON)
def test_a_digest_tells_values_apart(key: str, one: object, other: object) -> None:
    """Two values that JSON writes differently have two digests."""
    assume(repr(one) != repr(other) and one != other)
    assert names.digest({key: one}) != names.digest({key: other})
