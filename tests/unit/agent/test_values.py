"""JSON in, bytes out, nothing lost."""

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from outhaul_agent import values
from outhaul_agent.values import BadValue, OutputType
from outhaul_api import vocabulary

texts = st.text(st.characters(exclude_categories=["Cs"]))
numbers = st.one_of(
    st.integers().map(str),
    st.from_regex(r"-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,30})?([eE][-+]?[0-9]{1,6})?", fullmatch=True),
)
documents: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | texts | numbers.map(lambda literal: ("number", literal)),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4).map(lambda members: ("object", members))
    ),
    max_leaves=20,
)


def write(document: Any, space: str = "", *, ascii_only: bool = False) -> str:
    """Writes a document by other code than the agent's, with `space` around every token."""

    def inner(value: Any) -> str:
        match value:
            case ("number", literal):
                return f"{space}{literal}{space}"
            case ("object", members):
                pairs = ",".join(f"{inner(key)}:{inner(member)}" for key, member in members.items())
                return f"{space}{{{pairs or space}}}{space}"
            case list():
                return f"{space}[{','.join(map(inner, value)) or space}]{space}"
            case _:
                return f"{space}{json.dumps(value, ensure_ascii=ascii_only)}{space}"

    return inner(document)


@given(documents)
def test_compact_json_comes_back_byte_by_byte(document: Any) -> None:
    """What is compact already is stored as it is; a string is stored as its own bytes."""
    text = write(document)
    kind, data = values.encode(values.parse(text.encode()))
    if isinstance(document, str):
        assert (kind, data) == (OutputType.STRING, document.encode())
    else:
        assert data.decode() == text


@given(documents, st.sampled_from([" ", "\n\t", "\r\n  "]))
def test_spaces_and_escapes_do_not_matter(document: Any, space: str) -> None:
    """The same JSON written otherwise is stored as the same bytes."""
    other = write(document, space, ascii_only=True)
    compact = write(document)
    assert values.encode(values.parse(other.encode())) == values.encode(values.parse(compact.encode()))


@given(numbers)
def test_numbers_stay_as_written(literal: str) -> None:
    """No number is rounded, shortened or rewritten."""
    assert values.encode(values.parse(literal.encode())) == (OutputType.NUMBER, literal.encode())


@pytest.mark.parametrize(
    ("text", "kind", "data"),
    [
        ("null", OutputType.NULL, "null"),
        ("true", OutputType.BOOLEAN, "true"),
        ("1.0", OutputType.NUMBER, "1.0"),
        ("1e400", OutputType.NUMBER, "1e400"),
        ("-0", OutputType.NUMBER, "-0"),
        ("1180591620717411303424", OutputType.NUMBER, "1180591620717411303424"),
        ("7" * 10_000, OutputType.NUMBER, "7" * 10_000),
        ('""', OutputType.STRING, ""),
        (r'"\u00e9\ud83d\ude00\n"', OutputType.STRING, "é😀\n"),
        (r'["\u00e9\u0001\u2028"]', OutputType.ARRAY, '["é\\u0001\u2028"]'),
        ('{"b": 1, "a": {}}', OutputType.OBJECT, '{"b":1,"a":{}}'),
        ("[ ]", OutputType.ARRAY, "[]"),
    ],
)
def test_values_have_their_type_and_their_bytes(text: str, kind: OutputType, data: str) -> None:
    """Each type of JSON is recognised and stored by its rule."""
    assert values.encode(values.parse(text.encode())) == (kind, data.encode())


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "empty"),
        (b'{"secret": hunter2}', "line 1, column 12"),
        (b'{"a": 1} {"secret": 1}', "line 1, column 10"),
        (b'["\xff"]', "not UTF-8"),
        (b"[NaN]", "NaN"),
        (b"-Infinity", "Infinity"),
        (b'"secret\nsecret"', "line 1"),
        (b"[" * 100_000, "line 1, column 100001"),
        (b"[1,]", "line 1, column 4"),
        (b"[,1]", "line 1"),
        (b"[1 2]", "line 1, column 4"),
        (b"[01]", "line 1, column 3"),
        (b"[1}", "line 1"),
        (b"[-]", "line 1, column 2"),
        (b'{"a":1,}', "line 1, column 8"),
        (b'{"a" 1}', "line 1, column 6"),
        (b'{"a":}', "line 1, column 6"),
        (b"{1:1}", "line 1, column 2"),
        (b"[[[[1],\n [1}", "line 2"),
    ],
)
def test_what_is_no_json_is_refused_without_showing_it(data: bytes, words: str) -> None:
    """The error says where, and shows nothing of the input."""
    with pytest.raises(BadValue) as caught:
        values.parse(data)
    assert words in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (r'"\ud800"', "surrogate"),
        (r'{"\udfff": 1}', "surrogate"),
        ('[{"a": 1, "a": 2}]', "key twice"),
        (r'[{"\u0061": 1, "a": 2}]', "key twice"),
        ("[" * 201 + "]" * 201, "levels deep"),
        ("[" * 100_000 + "]" * 100_000, "levels deep"),
        ('{"a":' * 201 + "1" + "}" * 201, "levels deep"),
    ],
)
def test_json_that_cannot_be_kept_is_refused(text: str, words: str) -> None:
    """What has no faithful bytes, or two meanings, is an error."""
    with pytest.raises(BadValue, match=words):
        values.encode(values.parse(text.encode()))


def test_depth_is_allowed_up_to_the_limit() -> None:
    """As many levels as the limit says are fine."""
    text = "[" * values.MAX_DEPTH + "]" * values.MAX_DEPTH
    assert values.encode(values.parse(text.encode())) == (OutputType.ARRAY, text.encode())


@given(
    st.text('[]{},:"\\aeu01-. \n', max_size=12)
    | documents.map(write).flatmap(lambda text: st.integers(0, len(text)).map(lambda cut: text[:cut] + text[cut + 1 :]))
)
def test_json_is_what_others_call_json(text: str) -> None:
    """Python's own reader agrees on what is JSON and what is not, however it was broken."""
    try:
        json.loads(text, parse_int=str, parse_float=str)
    except ValueError:
        with pytest.raises(BadValue):
            values.encode(values.parse(text.encode()))
    else:
        values.parse(text.encode())


@given(documents.filter(lambda document: isinstance(document, list)), st.integers(1, 3))
def test_taken_apart_or_not_the_values_are_the_same(document: list[Any], levels: int) -> None:
    """The outer levels can be looked into, and what is in them is stored as it would be otherwise."""
    taken = values.parse(write(document, " ").encode(), levels)
    assert len(taken) == len(document)
    for value, wanted in zip(taken, document, strict=True):
        if levels == 1 or not isinstance(value, list):
            assert values.encode(value) == values.encode(values.parse(write(wanted).encode()))


def test_a_large_document_takes_little_more_than_its_text() -> None:
    """Small numbers do not become objects one by one."""
    data = b"[%s]" % b",".join([b"1"] * 200_000)
    tracemalloc.start()
    try:
        values.encode(values.parse(data))
        assert tracemalloc.get_traced_memory()[1] < 5 * len(data)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("data", "kind"),
    [(b"", "string"), ("é\r\n".encode(), "string"), (b"a\0b", "bytes"), (bytes(range(256)), "bytes")],
)
def test_bytes_of_unknown_origin(data: bytes, kind: str) -> None:
    """UTF-8 text without NUL is a string, everything else is bytes."""
    assert values.from_bytes(data) == kind


def test_types_are_those_of_the_api() -> None:
    """The agent's words for types are the API's."""
    assert [*values.OutputType] == [*vocabulary.OutputType]
