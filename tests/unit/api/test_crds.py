"""The CRDs are what the models say, and the generator refuses what a structural schema cannot say."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

import kubernetes_validate
import pytest
from outhaul_api import KINDS, crds
from outhaul_api.common import SERVER_DEFAULT, Model, Resource
from outhaul_api.markers import SchemaError
from outhaul_api.schema import structural
from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonDict

FOLDER = Path(__file__).parents[3] / "crds"
ALL = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


class Item(Model):
    """An item of a list."""

    name: str
    """Its name."""
    number: int | None = None
    """Its number."""


def field(annotation: Any, default: Any = ...) -> dict[str, Any]:
    """The schema of a model's one field of this type."""
    namespace = {
        "__annotations__": {"it": Annotated[annotation, Field(description="It.")]},
        "__module__": __name__,
        "__doc__": "A model.",
    }
    if default is not ...:
        namespace["it"] = default
    schema = structural(type("One", (Model,), namespace))
    result: dict[str, Any] = schema["properties"]["it"]
    return {key: value for key, value in result.items() if key != "description"}


def schemas(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema below one, with its path."""
    yield path, schema
    for name, below in schema.get("properties", {}).items():
        yield from schemas(below, f"{path}.{name}")
    for keyword in ("items", "additionalProperties"):
        if keyword in schema:
            yield from schemas(schema[keyword], f"{path}[]")


def of(kind: type[Resource]) -> dict[str, Any]:
    """A kind's schema, as its CRD has it."""
    version = crds.custom_resource_definition(kind)["spec"]["versions"][0]
    result: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    return result


def test_the_files_are_what_the_models_say() -> None:
    """Whoever changes a model runs `make crds`; nothing else lies in the folder."""
    assert {path.name: path.read_text(encoding="utf-8") for path in FOLDER.iterdir()} == crds.render()


def test_check_names_a_stale_file_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--check` fails where a file is missing or differs; without it, they are written once."""
    assert crds.main([str(tmp_path), "--check"]) == 1
    assert "make crds" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    assert crds.main([str(tmp_path)]) == 0
    assert crds.main([str(tmp_path), "--check"]) == 0


@ALL
def test_kubernetes_accepts_the_definition(kind: type[Resource]) -> None:
    """Kubernetes' own schema of a CustomResourceDefinition knows every field."""
    kubernetes_validate.validate(
        crds.custom_resource_definition(kind), kubernetes_validate.latest_version(), strict=True
    )


@ALL
def test_every_field_has_a_description(kind: type[Resource]) -> None:
    """`kubectl explain` has something to say about each field but `metadata`, which is Kubernetes' own."""
    for path, schema in schemas(of(kind), kind.__name__):
        for name, below in schema.get("properties", {}).items():
            assert below.get("description") or name == "metadata", f"{path}.{name}"


@ALL
def test_what_users_write_is_bounded(kind: type[Resource]) -> None:
    """Each string, list and map of a spec has a limit, or CEL rules cost too much and etcd is filled."""
    for path, schema in schemas(of(kind)["properties"]["spec"], f"{kind.__name__}.spec"):
        if schema.get("type") == "string" and "enum" not in schema:
            assert "maxLength" in schema, path
        if schema.get("type") == "array":
            assert "maxItems" in schema, path
        if "additionalProperties" in schema:
            assert "maxProperties" in schema, path


@ALL
def test_names_and_scope(kind: type[Resource]) -> None:
    """All kinds live in namespaces, in one group and one category."""
    spec = crds.custom_resource_definition(kind)["spec"]
    assert (spec["group"], spec["scope"]) == ("outhaul.dev", "Namespaced")
    assert spec["names"]["categories"] == ["outhaul"]
    assert spec["names"]["plural"] == spec["names"]["singular"] + "s"
    assert [column["name"] for column in spec["versions"][0]["additionalPrinterColumns"]][-1] == "Age"


def test_short_names_are_distinct() -> None:
    """No short name means two kinds."""
    short = [name for kind in KINDS for name in kind.definition.short_names]
    assert sorted(short) == ["aa", "ac", "inst", "io"]


def test_a_record_has_no_status_subresource() -> None:
    """An InstallationOutput is written in one request, an AgentConfig has no status at all."""
    with_status = {
        kind.__name__
        for kind in KINDS
        if "subresources" in crds.custom_resource_definition(kind)["spec"]["versions"][0]
    }
    assert with_status == {"Installation", "AgentAction"}


def test_server_side_defaults_are_these() -> None:
    """Each is a promise for ever, so a new one is to be noticed."""
    defaults = {
        path: schema["default"]
        for kind in KINDS
        for path, schema in schemas(of(kind), kind.__name__)
        if "default" in schema
    }
    assert defaults == {
        "Installation.spec.deletionPolicy": "Delete",
        "AgentAction.spec.action": "install",
        "AgentAction.spec.timeout": "1h",
    }


def test_specs_that_are_final_say_so() -> None:
    """Rules pass through to the CRD."""
    rules = {kind.__name__: of(kind)["properties"]["spec"].get("x-kubernetes-validations", []) for kind in KINDS}
    final = {name for name, of_kind in rules.items() if any(rule["rule"] == "self == oldSelf" for rule in of_kind)}
    assert final == {"AgentAction", "InstallationOutput"}


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (str | None, {"type": "string"}),
        (Annotated[str, Field(max_length=3)] | None, {"type": "string", "maxLength": 3}),
        (int, {"type": "integer", "format": "int64"}),
        (int | str, {"x-kubernetes-int-or-string": True}),
        (int | str | None, {"x-kubernetes-int-or-string": True}),
        (bool, {"type": "boolean"}),
        (Any, {"x-kubernetes-preserve-unknown-fields": True}),
        (dict[str, Any], {"type": "object", "x-kubernetes-preserve-unknown-fields": True}),
        (dict[str, str], {"type": "object", "additionalProperties": {"type": "string"}}),
        (list[str], {"type": "array", "items": {"type": "string"}}),
        (set[str], {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"}),
        (Literal["a"], {"type": "string", "enum": ["a"]}),
        (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
        (
            Annotated[int, Field(gt=0)] | None,
            {"type": "integer", "format": "int64", "minimum": 0, "exclusiveMinimum": True},
        ),
    ],
    ids=str,
)
def test_translates(annotation: Any, expected: dict[str, Any]) -> None:
    """What JSON Schema says in its own way is said in the API server's."""
    assert field(annotation) == expected


def test_a_default_is_the_models_alone_unless_marked() -> None:
    """An unmarked default stays out of the schema, a marked one is the server's too."""
    marked = Field(default="x", json_schema_extra={SERVER_DEFAULT: True})
    assert field(str, "x") == {"type": "string"}
    assert field(str, marked) == {"type": "string", "default": "x"}


def test_references_are_written_out_and_the_fields_own_words_win() -> None:
    """A model within a model appears in full, described by the field that holds it."""
    schema = structural(type("One", (Model,), {"__annotations__": {"it": Item}, "__module__": __name__}))
    assert schema["properties"]["it"] == {
        "description": "An item of a list.",
        "type": "object",
        "required": ["name"],
        "properties": {
            "name": {"description": "Its name.", "type": "string"},
            "number": {"description": "Its number.", "type": "integer", "format": "int64"},
        },
    }
    assert field(Item)["required"] == ["name"]


def test_a_field_may_be_called_title() -> None:
    """Titles of schemas go; a property of that name stays."""

    class Book(Model):
        """A book."""

        title: str
        """What it is called."""

    assert list(structural(Book)["properties"]) == ["title"]


class Tree(Model):
    """A model that contains itself."""

    below: "list[Tree]" = Field(default=[])
    """The branches."""


class Strict(BaseModel):
    """A model that forbids unknown fields."""

    model_config = ConfigDict(extra="forbid")
    it: str = Field(description="It.")


class Mute(Model):
    """A model that does not explain its field."""

    it: str


@pytest.mark.parametrize(
    ("model", "complaint"),
    [(Tree, "contains itself"), (Strict, "additionalProperties|prunes"), (Mute, "no description")],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_refuses_a_model(model: type[BaseModel], complaint: str) -> None:
    """What a structural schema has no word for is an error, with the model's name."""
    with pytest.raises(SchemaError, match=complaint) as caught:
        structural(model)
    assert model.__name__ in str(caught.value)


BY_NAME: JsonDict = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}


def marked(annotation: Any, **extra: Any) -> Any:
    """A type with markers."""
    return Annotated[annotation, Field(json_schema_extra={key.replace("_", "-"): extra[key] for key in extra})]


@pytest.mark.parametrize(
    ("annotation", "complaint"),
    [
        (str | bool, "union"),
        (Item | str, "union"),
        (tuple[int, str], "no place"),
        (timedelta, "format"),
        (marked(str, pattern="^(?!-)"), "RE2"),
        (Annotated[str, Field(examples=["x"])], "`examples`"),
        (marked(list[str], x_kubernetes_list_type="map"), "does not fit|list-map-keys"),
        (marked(list[str], x_kubernetes_list_type="bag"), "does not fit"),
        (marked(list[Item], x_kubernetes_list_type="set"), "does not fit"),
        (marked(str, x_kubernetes_list_type="atomic"), "does not fit"),
        (marked(list[Item], x_kubernetes_list_type="map"), "needs"),
        (marked(list[Item], x_kubernetes_list_map_keys=["name"]), "needs"),
        (
            Annotated[list[Item], Field(json_schema_extra={**BY_NAME, "x-kubernetes-list-map-keys": ["number"]})],
            "required",
        ),
        (
            Annotated[list[Item], Field(json_schema_extra={**BY_NAME, "x-kubernetes-list-map-keys": ["id"]})],
            "no scalar",
        ),
        (marked(str, x_kubernetes_map_type="atomic"), "on an object"),
        (marked(str, x_kubernetes_validations=[]), "list of rules"),
        (marked(str, x_kubernetes_validations=[{"rule": "self != ''"}]), "message"),
        (
            marked(str, x_kubernetes_validations=[{"rule": "x", "message": "y", "severity": "z"}]),
            "nothing else",
        ),
        (marked(str, x_kubernetes_validations=[{"rule": "x", "message": "y", "reason": "Bad"}]), "reason"),
        (marked(str, x_kubernetes_list_kind="map"), "not a marker"),
        (marked(str, x_kubernetes_int_or_string=False), "only be true"),
        (marked(dict[str, str], x_kubernetes_preserve_unknown_fields=True), "neither"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refuses_a_field(annotation: Any, complaint: str) -> None:
    """What the API server would refuse, or drop without a word, is an error here, with the field's path."""
    with pytest.raises(SchemaError, match=complaint) as caught:
        field(annotation)
    assert str(caught.value).startswith("One.it")
