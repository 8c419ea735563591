"""Outputs while they are collected."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from outhaul_agent import reasons
from outhaul_agent.outputs import Collection, Output
from outhaul_agent.reasons import Problem, Reason
from outhaul_agent.values import OutputType
from outhaul_api import vocabulary
from outhaul_grpc import protocol


def output(name: str, data: bytes = b"x") -> Output:
    """Returns an output."""
    return Output(name, OutputType.STRING, sensitive=True, data=data)


def test_duplicates_are_dropped_and_named_with_their_sources() -> None:
    """A name from two sources is nobody's."""
    found = Collection()
    found.add(output("a"), "one")
    found.add(output("b"), "one")
    found.add(output("a"), "two")
    assert [kept.name for kept in found.sorted()] == ["b"]
    message = "output 'a' is in one and in two; rename one of them"
    assert found.problem == Problem(Reason.DUPLICATE_OUTPUT, message)


def test_room_is_given_back_by_a_dropped_duplicate() -> None:
    """What is dropped takes no room."""
    found = Collection(max_bytes=10)
    found.add(output("a", b"12345678"), "one")
    found.add(output("a", b"1"), "two")
    found.add(output("b", b"1234567890"), "three")
    assert [kept.name for kept in found.sorted()] == ["b"]


def test_too_large_an_output_leaves_the_others() -> None:
    """The message names output, size and limit; what fits is kept."""
    found = Collection(max_bytes=10)
    found.add(output("large", b"12345678901"), "one")
    found.add(output("small", b"1"), "one")
    assert [kept.name for kept in found.sorted()] == ["small"]
    problem = found.problem
    assert problem is not None
    assert problem.reason is Reason.OUTPUT_TOO_LARGE
    assert "'large' has 11 bytes, but a run's outputs may have 10 in all" in problem.message


def test_one_output_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of outputs is limited."""
    monkeypatch.setattr(protocol, "MAX_OUTPUTS", 2)
    found = Collection()
    for name in "abc":
        found.add(output(name), "one")
    assert [kept.name for kept in found.sorted()] == ["a", "b"]
    assert found.problem is not None
    assert found.problem.reason is Reason.OUTPUT_TOO_LARGE


@pytest.mark.parametrize("name", ["x" * 1025, "é" * 513, "\udcff"])
def test_bad_names_are_refused(name: str) -> None:
    """A name is text in UTF-8 of at most 1024 bytes."""
    found = Collection()
    found.add(output(name), "one")
    assert found.sorted() == []
    assert found.problem is not None
    assert found.problem.reason is Reason.BAD_OUTPUT
    assert len(found.problem.message) < 300
    found.problem.message.encode()


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=20), st.binary(max_size=9)))
def test_the_digest_says_what_the_outputs_are(values: dict[str, bytes]) -> None:
    """The digest does not depend on the order, and changes with any name or value."""
    items = [(name, output(name, data).sha256) for name, data in values.items()]
    digest = protocol.outputs_digest(items)
    assert protocol.outputs_digest(reversed(items)) == digest
    assert protocol.outputs_digest([*items, ("x" * 21, b"\0" * 32)]) != digest
    if items:
        (name, sha256), *rest = items
        assert protocol.outputs_digest([(name, bytes(32)), *rest]) != digest
        assert protocol.outputs_digest([(name + "!" * 21, sha256), *rest]) != digest


def test_the_digest_of_nothing() -> None:
    """No outputs have a digest too: SHA-256 of nothing."""
    assert protocol.outputs_digest([]).startswith("e3b0c44298fc1c14")


def test_several_problems_are_one() -> None:
    """The first ones are told in full, the others are counted; the first decides the reason."""
    found = Collection()
    assert found.problem is None
    found.add_bad("one")
    assert found.problem == Problem(Reason.BAD_OUTPUT, "one")
    for _ in range(1000):
        found.add_bad("other")
    assert found.problem == Problem(Reason.BAD_OUTPUT, "one; other; other (and 998 more)")


def test_reasons_are_the_apis() -> None:
    """Every reason that the agent gives is one of the API's, under the same name."""
    assert {reason.name: reason.value for reason in reasons.Reason}.items() <= {
        reason.name: reason.value for reason in vocabulary.Reason
    }.items()
