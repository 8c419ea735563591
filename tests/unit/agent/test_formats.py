"""What outputs look like in each format."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from outhaul_agent import formats
from outhaul_agent.outputs import Collection, Output
from outhaul_agent.reasons import Reason
from outhaul_agent.values import BadValue, OutputType

Read = Callable[[bytes, str, Collection], None]


def collected(read: Read, document: Any) -> Collection:
    """Reads a document of a format."""
    found = Collection()
    data = document if isinstance(document, bytes) else json.dumps(document).encode()
    read(data, "source", found)
    return found


def names_and_data(found: Collection) -> dict[str, bytes]:
    """Returns what was kept."""
    return {output.name: output.data for output in found.sorted()}


def test_terraform_says_what_is_sensitive() -> None:
    """Terraform's own flag decides; where it is missing the output is sensitive."""
    found = collected(
        formats.read_terraform,
        b'{"a":{"sensitive":false,"type":"number","value":1.50},"b":{"sensitive":true,"value":["x"]},"c":{"value":""}}',
    )
    assert found.sorted() == [
        Output("a", OutputType.NUMBER, sensitive=False, data=b"1.50"),
        Output("b", OutputType.ARRAY, sensitive=True, data=b'["x"]'),
        Output("c", OutputType.STRING, sensitive=True, data=b"", flagged=False),
    ]
    assert found.problem is None


@pytest.mark.parametrize("entry", ["x", {"sensitive": True}, {"value": 1, "sensitive": "no"}, None])
def test_a_bad_terraform_entry_leaves_the_others_alone(entry: object) -> None:
    """One entry of another form is a problem that names it."""
    found = collected(formats.read_terraform, {"bad": entry, "good": {"value": 1, "sensitive": False}})
    assert names_and_data(found) == {"good": b"1"}
    assert found.problem is not None
    assert found.problem.reason is Reason.BAD_OUTPUT
    assert "'bad'" in found.problem.message


def test_an_entry_that_says_something_twice_is_bad() -> None:
    """Of two values of one entry none is taken."""
    found = collected(formats.read_terraform, b'{"bad":{"value":1,"sensitive":true,"sensitive":false}}')
    assert names_and_data(found) == {}
    assert found.problem is not None


def test_json_members_are_outputs() -> None:
    """Each member is an output, and sensitive; an empty name is a name."""
    found = collected(formats.read_json, {"a": {"b": [1]}, "": None})
    assert names_and_data(found) == {"": b"null", "a": b'{"b":[1]}'}
    assert all(output.sensitive for output in found.sorted())


@pytest.mark.parametrize("read", [formats.read_json, formats.read_terraform])
def test_a_member_twice_is_nobodys(read: Read) -> None:
    """A name that is there twice is refused, and neither value is kept."""
    found = collected(read, b'{"a":{"value":1},"a":{"value":2},"b":{"value":3}}')
    assert list(names_and_data(found)) == ["b"]
    assert found.problem is not None
    assert found.problem.reason is Reason.DUPLICATE_OUTPUT


def test_porter_values_get_their_declared_type() -> None:
    """A string that is JSON of its declared type has that type; any other value stays a string."""
    entries = [
        {"name": "s", "type": "string", "sensitive": False, "value": "1"},
        {"name": "i", "type": "integer", "sensitive": False, "value": "1"},
        {"name": "i2", "type": "integer", "sensitive": True, "value": "one"},
        {"name": "o", "type": "object", "sensitive": True, "value": '{"a": 1.0}'},
        {"name": "f", "type": "file", "sensitive": True, "value": '{"a": 1.0}\n'},
        {"name": "b", "type": "boolean", "value": "true"},
    ]
    found = collected(formats.read_porter, entries)
    assert {output.name: (output.type, output.sensitive, output.data) for output in found.sorted()} == {
        "s": ("string", False, b"1"),
        "i": ("number", False, b"1"),
        "i2": ("string", True, b"one"),
        "o": ("object", True, b'{"a":1.0}'),
        "f": ("string", True, b'{"a": 1.0}\n'),
        "b": ("boolean", True, b"true"),
    }


def test_text_is_one_output() -> None:
    """The bytes are kept as they are."""
    found = Collection()
    formats.read_text(b"a\n\n", "name", "source", found)
    assert found.sorted() == [
        Output("name", OutputType.STRING, sensitive=True, data=b"a\n\n", typed=False, flagged=False)
    ]


def manifest(entries: object, files: dict[str, bytes] | None = None) -> Collection:
    """Reads a manifest whose files are these."""
    found = Collection()

    def read(path: Path) -> bytes:
        return (files or {})[str(path)]

    formats.read_manifest(json.dumps(entries).encode(), "manifest", found, read)
    return found


def test_manifest_entries_have_values_or_paths() -> None:
    """Values and files are typed by content unless declared; sensitive unless they say otherwise."""
    found = manifest(
        [
            {"name": "v", "value": 1, "sensitive": False},
            {"name": "t", "path": "t.txt"},
            {"name": "o", "type": "object", "path": "o.json"},
            {"name": "b", "type": "bytes", "value": "AP8="},
            {"name": "fb", "type": "bytes", "path": "t.txt"},
        ],
        {"t.txt": b"text\n", "o.json": b'{ "a": 1 }\n'},
    )
    assert found.problem is None
    assert {output.name: (output.type, output.sensitive, output.data) for output in found.sorted()} == {
        "v": ("number", False, b"1"),
        "t": ("string", True, b"text\n"),
        "o": ("object", True, b'{"a":1}'),
        "b": ("bytes", True, b"\0\xff"),
        "fb": ("bytes", True, b"text\n"),
    }


def test_what_each_source_knows() -> None:
    """Each output remembers whether its source knows types, and whether it says what is a secret."""
    found = Collection()
    formats.read_terraform(b'{"t":{"value":"1","sensitive":false}}', "terraform", found)
    formats.read_json(b'{"j":"1"}', "json", found)
    formats.read_text(b"1", "x", "text", found)
    porter = [
        {"name": "ps", "type": "string", "sensitive": False, "value": "1"},
        {"name": "pn", "type": "number", "value": "1"},
    ]
    formats.read_porter(json.dumps(porter).encode(), "porter", found)
    entries = [
        {"name": "mv", "value": "1", "sensitive": True},
        {"name": "mp", "path": "p"},
        {"name": "mt", "type": "string", "path": "p", "sensitive": False},
    ]
    formats.read_manifest(json.dumps(entries).encode(), "manifest", found, lambda _path: b"1")
    assert {output.name: (output.typed, output.flagged) for output in found.sorted()} == {
        "t": (True, True),
        "j": (True, False),
        "x": (False, False),
        "ps": (False, True),
        "pn": (True, False),
        "mv": (True, True),
        "mp": (False, False),
        "mt": (True, True),
    }


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"name": "x"}, "a value or a path"),
        ({"name": "x", "value": 1, "path": "t"}, "not both"),
        ({"name": "x", "value": 4711, "type": "string"}, "declared as string, but it is of type number"),
        ({"name": "x", "value": 1, "type": "integer"}, "its type is none of"),
        ({"name": "x", "value": 1, "sensitive": 1}, "neither true nor false"),
        ({"name": "x", "value": "geheim!", "type": "bytes"}, "base64"),
        ({"name": "x", "path": ""}, "no path"),
        ({"value": 4711}, "entry 0 of manifest has no name"),
        ("geheim", "entry 0 of manifest has no name"),
    ],
)
def test_bad_manifest_entries_are_named_without_their_value(entry: object, words: str) -> None:
    """What is wrong with an entry is said, its value is not."""
    found = manifest([entry, {"name": "good", "value": 1}])
    assert list(names_and_data(found)) == ["good"]
    problem = found.problem
    assert problem is not None
    assert words in problem.message
    assert "4711" not in problem.message
    assert "geheim" not in problem.message


@pytest.mark.parametrize(
    ("read", "document"),
    [
        (formats.read_json, b"[]"),
        (formats.read_json, b"1"),
        (formats.read_terraform, b"[]"),
        (formats.read_porter, b"{}"),
        (formats.read_porter, b"null"),
    ],
)
def test_another_kind_of_document_is_refused(read: Read, document: bytes) -> None:
    """A document that is not of the format's kind has no outputs at all."""
    with pytest.raises(BadValue, match=r"it is no JSON (object|list)"):
        collected(read, document)
