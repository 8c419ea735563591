"""What is expected of outputs, and what becomes of those that are otherwise."""

import json
from fnmatch import fnmatchcase
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from outhaul_agent import declarations, formats, values
from outhaul_agent.outputs import Collection, Output
from outhaul_agent.reasons import Reason
from outhaul_agent.values import OutputType
from outhaul_grpc.v1 import agent_pb2 as pb

ORIGIN = "directory 'out'"
TYPES = list(OutputType)


def text(data: bytes, name: str = "x") -> Output:
    """Returns an output of a source that knows neither types nor secrets."""
    return formats.plain(name, data)


def known(kind: str, data: bytes, name: str = "x", **fields: Any) -> Output:
    """Returns an output of a source that knows types."""
    return Output(name, OutputType(kind), **{"sensitive": True, "data": data, **fields})


def declare(name: str = "x", **fields: Any) -> pb.OutputDeclaration:
    """Returns a declaration."""
    return pb.OutputDeclaration(name=name, **fields)


def applied(
    outputs: list[Output], *declared: pb.OutputDeclaration, complete: bool = True, patterns: tuple[str, ...] = ()
) -> Collection:
    """Returns what is left of outputs under these declarations."""
    found = Collection()
    for output in outputs:
        found.add(output, ORIGIN)
    spec = pb.RunSpec(declare=declared, non_sensitive=patterns)
    declarations.apply(spec, found, [ORIGIN], complete=complete)
    return found


def complaint(found: Collection) -> str:
    """Returns what is said about the problems."""
    assert found.problem is not None
    assert found.problem.reason is Reason.BAD_OUTPUT
    return found.problem.message


@pytest.mark.parametrize(
    ("data", "declared", "stored"),
    [
        (b"1.0\n", "number", b"1.0"),
        (b"1180591620717411303424", "number", b"1180591620717411303424"),
        (b"-0", "number", b"-0"),
        (b"1e400\r\n", "number", b"1e400"),
        (b" true ", "boolean", b"true"),
        (b"null\n", "null", b"null"),
        (b'{ "b": 1, "a": 2 }', "object", b'{"b":1,"a":2}'),
        (b"[1, 1.0]\n", "array", b"[1,1.0]"),
        (b"1.0\n", "string", b"1.0\n"),
        (b"a\0b", "string", b"a\0b"),
        (b"1.0\n", "bytes", b"1.0\n"),
        (b"\xff", "bytes", b"\xff"),
        (b"", "string", b""),
        (b"1.0\n", "", b"1.0\n"),
    ],
)
def test_text_is_read_as_its_declared_type(data: bytes, declared: str, stored: bytes) -> None:
    """Text that nobody has typed is read as JSON of the declared type; strings and bytes stay as they are."""
    found = applied([text(data)], declare(type=declared))
    assert found.problem is None
    assert [(one.type, one.data) for one in found.sorted()] == [(declared or "string", stored)]


@pytest.mark.parametrize(
    ("output", "declared", "words"),
    [
        (text(b"hunter2"), "number", "is declared as number, but it is of type string: it is no JSON at line 1"),
        (text(b'"hunter2"'), "number", "is declared as number, but it is of type string"),
        (text(b"[4711]"), "object", "is declared as object, but it is of type array"),
        (text(b""), "null", "is declared as null, but it is of type string: it is empty"),
        (text(b"\xff"), "number", "is declared as number, but it is of type bytes: it is not UTF-8"),
        (text(b"hunter2\xff"), "string", "is declared as string, but it is of type bytes: it is not UTF-8"),
        (text(b'{"hunter2":1,"hunter2":2}'), "object", "a key twice"),
        (known("string", b"4711"), "number", "is declared as number, but it is of type string"),
        (known("string", b"4711"), "bytes", "is declared as bytes, but it is of type string"),
        (known("number", b"4711"), "string", "is declared as string, but it is of type number"),
        (known("bytes", b"4711"), "string", "is declared as string, but it is of type bytes"),
        (known("null", b"null"), "string", "is declared as string, but it is of type null"),
    ],
)
def test_another_type_than_declared(output: Output, declared: str, words: str) -> None:
    """It is dropped; the message names output, source and both types, and never the value. The others are kept."""
    found = applied([output, known("number", b"1", name="good")], declare(type=declared))
    assert [one.name for one in found.sorted()] == ["good"]
    message = complaint(found)
    assert message.startswith(f"output 'x' of {ORIGIN} {words}" if words.startswith("is ") else "output 'x'")
    assert words in message
    assert "hunter2" not in message
    assert "4711" not in message


@given(kind=st.sampled_from(TYPES), declared=st.sampled_from(TYPES), sensitive=st.booleans())
def test_types_of_sources_that_know_them_have_to_be_the_declared_ones(
    *, kind: OutputType, declared: OutputType, sensitive: bool
) -> None:
    """A typed value is never reinterpreted: it is kept as it is, or refused."""
    output = known(kind, b"1", sensitive=sensitive)
    assert applied([output], declare(type=declared)).sorted() == ([output] if kind is declared else [])


json_texts = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
).map(lambda value: json.dumps(value).encode())


@given(json_texts | st.binary(max_size=20), st.sampled_from(TYPES))
def test_text_is_what_was_declared_or_refused(data: bytes, declared: OutputType) -> None:
    """Whatever the text, an output that is kept has its declared type and the bytes of that type."""
    found = applied([text(data)], declare(type=declared))
    if not found.sorted():
        assert f"is declared as {declared}, but it is of type" in complaint(found)
        return
    (kept,) = found.sorted()
    assert kept.type is declared
    if declared in {OutputType.STRING, OutputType.BYTES}:
        assert kept.data == data
    else:
        assert (kept.type, kept.data) == values.encode(values.parse(data))


@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize("declared", [None, True, False])
@pytest.mark.parametrize("pattern", ["x", "other"])
def test_a_flag_of_the_source_counts(*, flag: bool, declared: bool | None, pattern: str) -> None:
    """What the source calls a secret is one; a declaration can only add to it, an allow-list does nothing."""
    output = known("string", b"1", sensitive=flag)
    (kept,) = applied([output], declare(sensitive=declared), patterns=(pattern,)).sorted()
    assert kept.sensitive is (flag or declared is True)


@pytest.mark.parametrize(
    ("declared", "pattern", "sensitive"),
    [
        (None, "other", True),
        (None, "x", False),
        (False, "other", False),
        (True, "x", True),
    ],
)
def test_where_the_source_cannot_say(*, declared: bool | None, pattern: str, sensitive: bool) -> None:
    """It is a secret unless the declaration or the allow-list says otherwise; of both the declaration counts."""
    (kept,) = applied([text(b"1")], declare(sensitive=declared), patterns=(pattern,)).sorted()
    assert kept.sensitive is sensitive


@given(
    st.sets(st.text("abAB*?[/.-]", max_size=4), max_size=6), st.lists(st.text("abA*?[!]/.-", min_size=1, max_size=4))
)
def test_the_allow_list_is_of_shell_patterns(names: set[str], patterns: list[str]) -> None:
    """A name that no pattern matches stays a secret; case matters, and an asterisk matches a slash too."""
    found = applied([text(b"1", name) for name in names], patterns=tuple(patterns))
    plain = {output.name for output in found.sorted() if not output.sensitive}
    assert plain == {name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)}


def test_a_missing_required_output() -> None:
    """The message names it and every source; what is there is kept."""
    found = applied([text(b"1")], declare("y", required=True), declare("z"))
    assert [one.name for one in found.sorted()] == ["x"]
    assert complaint(found) == f"required output 'y' is missing; it was looked for in {ORIGIN}"


@pytest.mark.parametrize(
    ("count", "words"), [(0, "no source, since the run has none"), (6, "s0, s1, s2, s3 (and 2 more)")]
)
def test_the_sources_of_a_missing_output_are_told(count: int, words: str) -> None:
    """Some of many are."""
    found = Collection()
    spec = pb.RunSpec(declare=[declare(required=True)])
    declarations.apply(spec, found, [f"s{n}" for n in range(count)], complete=True)
    assert complaint(found).endswith(words)


def test_a_name_that_was_claimed_is_not_missing() -> None:
    """Of a duplicate, or an output that could not be read, only that is said; no default hides it."""
    found = Collection()
    found.add(text(b"1"), "one")
    found.add(text(b"2"), "two")
    spec = pb.RunSpec(declare=[declare(required=True, default_json="1")])
    declarations.apply(spec, found, ["one", "two"], complete=True)
    assert found.sorted() == []
    assert found.problem is not None
    assert found.problem.reason is Reason.DUPLICATE_OUTPUT
    assert "missing" not in found.problem.message


def test_an_output_that_was_refused_is_not_missing() -> None:
    """Its default does not take the place of a value of the wrong type."""
    found = applied([text(b"one")], declare(type="number", required=True, default_json="1"))
    assert found.sorted() == []
    assert "missing" not in complaint(found)


@pytest.mark.parametrize(
    ("declared", "default", "kind", "stored"),
    [
        ("", "1.0", "number", b"1.0"),
        ("object", '{ "b": 1e400, "a": null }', "object", b'{"b":1e400,"a":null}'),
        ("string", '"\\u00e9\\n"', "string", "é\n".encode()),
        ("bytes", '"AP8="', "bytes", b"\0\xff"),
        ("", "null", "null", b"null"),
        ("string", '""', "string", b""),
    ],
)
@pytest.mark.parametrize("sensitive", [None, False, True])
def test_defaults(*, declared: str, default: str, kind: str, stored: bytes, sensitive: bool | None) -> None:
    """A default stands in for a missing output, exact; it is a secret only if declared as one."""
    found = applied([], declare(type=declared, default_json=default, sensitive=sensitive, required=True))
    assert found.problem is None
    assert found.sorted() == [Output("x", OutputType(kind), sensitive=sensitive is True, data=stored)]


def test_a_default_does_not_replace_what_is_there() -> None:
    """It is for missing outputs."""
    (kept,) = applied([text(b"1")], declare(default_json="2")).sorted()
    assert kept.data == b"1"


def test_of_a_run_that_failed_anyway_nothing_is_missed() -> None:
    """No default is added and nothing is called missing; types and secrets count as ever."""
    found = applied(
        [text(b"1"), text(b"one", "n")],
        declare(type="number", sensitive=False),
        declare("n", type="number"),
        declare("y", required=True),
        declare("z", default_json="1"),
        complete=False,
    )
    assert found.sorted() == [Output("x", OutputType.NUMBER, sensitive=False, data=b"1", typed=False, flagged=False)]
    assert "missing" not in complaint(found)


def test_room_is_what_is_really_taken() -> None:
    """Compact JSON takes less room than the text that it was read from, a refused output none."""
    found = Collection(max_bytes=20)
    found.add(text(b"[1,    2]"), ORIGIN)
    found.add(text(b"text", "y"), ORIGIN)
    spec = pb.RunSpec(declare=[declare(type="array"), declare("y", type="number")])
    declarations.apply(spec, found, [], complete=True)
    assert found.room == 20 - len(b"[1,2]")
