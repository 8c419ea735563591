"""Rewrites pydantic's JSON schema of a model into the structural schema of a CustomResourceDefinition.

`crds` calls it for each kind. The API server refuses much of what JSON Schema allows (references, unions,
types left open, numeric exclusive bounds), so this module translates what has an equivalent and *refuses*
what it does not know, naming the field: a schema is never silently weaker than its model. `markers` checks
the result.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from pydantic import BaseModel

from outhaul_api.common import SERVER_DEFAULT
from outhaul_api.markers import INT_OR_STRING, LIST_TYPE, PRESERVE, Schema, SchemaError, check_markers

_KEPT = frozenset(
    {"enum", "format", "pattern", "type", "required", "maxItems", "maxLength", "maxProperties", "maximum"}
    | {"minItems", "minLength", "minProperties", "minimum", "multipleOf"}
)
_DROPPED = frozenset({"default", "title", SERVER_DEFAULT})
_FORMATS = frozenset({"byte", "date-time", "double", "float", "int32", "int64"})
_TRANSLATED: Mapping[str, Callable[[Any], Schema]] = {
    "const": lambda value: {"enum": [value]},
    "description": lambda value: {"description": " ".join(value.split())},
    "exclusiveMaximum": lambda value: {"maximum": value, "exclusiveMaximum": True},
    "exclusiveMinimum": lambda value: {"minimum": value, "exclusiveMinimum": True},
    "uniqueItems": lambda value: {LIST_TYPE: "set"} if value else {},
}
_NOT_IN_RE2 = ("(?=", "(?!", "(?<=", "(?<!", "(?>", "\\Z")
_ORDER = ("description", "type", "format", "default", "enum", "pattern", "required", "properties", "items")


def structural(model: type[BaseModel], *, without: Collection[str] = ()) -> Schema:
    """Returns the structural schema of a model, without the fields named (by alias).

    Raises:
        SchemaError: where the model cannot be expressed, or a field has no description.
    """
    raw = model.model_json_schema(by_alias=True, mode="validation")
    for name in without:
        raw["properties"].pop(name, None)
    return _Rewriter(raw.pop("$defs", {})).node(raw, model.__name__, ())


class _Rewriter:
    """Walks one model's schema; holds the definitions that its references point to."""

    def __init__(self, definitions: Mapping[str, Schema]) -> None:
        self._definitions = definitions

    def node(self, schema: Schema, path: str, inside: tuple[str, ...]) -> Schema:
        """Rewrites one schema; `inside` are the definitions that it is a part of."""
        flat, inside = self._flatten(schema, path, inside)
        result: Schema = {}
        for keyword, value in flat.items():
            match keyword:
                case "properties":
                    result[keyword] = {n: self._property(s, f"{path}.{n}", inside) for n, s in value.items()}
                case "items":
                    result[keyword] = self.node(value, f"{path}[]", inside)
                case "additionalProperties":
                    result |= self._map(value, f"{path}{{}}", inside)
                case _:
                    result |= _keyword(keyword, value, path)
        if flat.get(SERVER_DEFAULT):
            result["default"] = flat["default"]
        if result.get("type") == "integer":
            result.setdefault("format", "int64")
        if not flat.keys() - _DROPPED - {"description"}:
            result[PRESERVE] = True  # `Any`: pydantic says nothing at all
        check_markers(result, path)
        return {key: result[key] for key in (*_ORDER, *sorted(result.keys() - {*_ORDER})) if key in result}

    def _property(self, schema: Schema, path: str, inside: tuple[str, ...]) -> Schema:
        result = self.node(schema, path, inside)
        if not result.get("description"):
            raise SchemaError(path, "the field has no description")
        return result

    def _flatten(self, schema: Schema, path: str, inside: tuple[str, ...]) -> tuple[Schema, tuple[str, ...]]:
        """Replaces references and optional unions by what they mean; what is said beside them wins."""
        while True:
            if "$ref" in schema:
                name = schema["$ref"].rpartition("/")[2]
                if name in inside:
                    raise SchemaError(path, f"{name} contains itself; a structural schema cannot")
                inside = (*inside, name)
                schema = self._definitions[name] | {k: v for k, v in schema.items() if k != "$ref"}
            elif "anyOf" in schema:
                schema = _without_union(schema, path)
            else:
                return schema, inside

    def _map(self, values: Any, path: str, inside: tuple[str, ...]) -> Schema:
        if values is True:
            return {PRESERVE: True}
        if values is False:
            raise SchemaError(path, "the API server prunes unknown fields itself; do not forbid them")
        return {"additionalProperties": self.node(values, path, inside)}


def _without_union(schema: Schema, path: str) -> Schema:
    """Turns `anyOf` into its one member beside null (absent, in Kubernetes), or into int-or-string."""
    beside = {keyword: value for keyword, value in schema.items() if keyword != "anyOf"}
    members: list[Schema] = [member for member in schema["anyOf"] if member.get("type") != "null"]
    if len(members) == 1:
        return members[0] | beside
    if sorted(str(member.get("type")) for member in members) == ["integer", "string"]:
        return {INT_OR_STRING: True} | beside
    raise SchemaError(path, "a union has no place in a structural schema, but for `int | str` and `| None`")


def _keyword(keyword: str, value: Any, path: str) -> Schema:
    """Translates a keyword that has no schemas below it."""
    if keyword in _DROPPED:
        return {}
    if keyword in _TRANSLATED:
        return _TRANSLATED[keyword](value)
    if keyword == "format" and value not in _FORMATS:
        raise SchemaError(path, f"the format `{value}` is not one that API servers check as pydantic does")
    if keyword == "pattern" and any(part in value for part in _NOT_IN_RE2):
        raise SchemaError(path, f"the pattern {value} needs more than RE2, which API servers use")
    if keyword in _KEPT or keyword.startswith("x-kubernetes-"):
        return {keyword: value}
    raise SchemaError(path, f"the keyword `{keyword}` has no place in a structural schema")
