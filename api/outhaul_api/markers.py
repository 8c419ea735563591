"""What makes a schema structural, and Kubernetes' own `x-kubernetes-*` markers: checked before a server does.

`schema` calls `check_markers` on every schema that it has rewritten. The rules are those of the API server
(types, list types, validation rules), stated here so that a mistake names the model's field.
"""

from typing import Any

Schema = dict[str, Any]

PRESERVE = "x-kubernetes-preserve-unknown-fields"
INT_OR_STRING = "x-kubernetes-int-or-string"
LIST_TYPE = "x-kubernetes-list-type"
LIST_KEYS = "x-kubernetes-list-map-keys"
MAP_TYPE = "x-kubernetes-map-type"
RULES = "x-kubernetes-validations"

_FLAGS = frozenset({PRESERVE, INT_OR_STRING, "x-kubernetes-embedded-resource"})
_TYPES = frozenset({"array", "boolean", "integer", "number", "object", "string"})
_SCALARS = _TYPES - {"array", "object"}
_RULE_KEYS = frozenset({"fieldPath", "message", "messageExpression", "optionalOldSelf", "reason", "rule"})
_REASONS = frozenset({"FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"})


class SchemaError(Exception):
    """A model says something that a structural schema cannot say; the message names the field."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")


def check_markers(schema: Schema, path: str) -> None:
    """Refuses a rewritten schema that the API server would refuse, or understand otherwise than it was meant.

    Raises:
        SchemaError: with the field's path and what is wrong.
    """
    _check_type(schema, path)
    if LIST_TYPE in schema:
        _check_list(schema, path)
    elif LIST_KEYS in schema:
        raise SchemaError(path, f"{LIST_KEYS} needs {LIST_TYPE}: map")
    if RULES in schema:
        _check_rules(schema[RULES], path)
    if MAP_TYPE in schema and (schema.get("type") != "object" or schema[MAP_TYPE] not in {"atomic", "granular"}):
        raise SchemaError(path, f"{MAP_TYPE} is `atomic` or `granular`, on an object")
    for keyword in schema.keys() & _FLAGS:
        if schema[keyword] is not True:
            raise SchemaError(path, f"{keyword} can only be true")
    for keyword in schema:
        if keyword.startswith("x-") and keyword not in _FLAGS | {LIST_TYPE, LIST_KEYS, MAP_TYPE, RULES}:
            raise SchemaError(path, f"{keyword} is not a marker of Kubernetes")


def _check_type(schema: Schema, path: str) -> None:
    """Each schema has one type, but for int-or-string and what is preserved as it is."""
    kind = schema.get("type")
    if kind is None:
        if not (schema.get(PRESERVE) or schema.get(INT_OR_STRING)):
            raise SchemaError(path, "the type is missing")
    elif kind not in _TYPES:
        raise SchemaError(path, f"the type {kind} has no place in a structural schema")
    if kind == "array" and "items" not in schema:
        raise SchemaError(path, "the items of the list have no schema")
    if "additionalProperties" in schema and ("properties" in schema or schema.get(PRESERVE)):
        raise SchemaError(path, "a map has neither fields of its own nor unknown ones")


def _check_list(schema: Schema, path: str) -> None:
    items = schema.get("items", {})
    match schema[LIST_TYPE]:
        case "atomic" if schema.get("type") == "array":
            pass
        case "set" if schema.get("type") == "array" and items.get("type") in _SCALARS:
            pass
        case "map" if schema.get("type") == "array" and items.get("type") == "object":
            keys = schema.get(LIST_KEYS, [])
            if not keys:
                raise SchemaError(path, f"{LIST_TYPE}: map needs {LIST_KEYS}")
            for key in keys:
                field = items.get("properties", {}).get(key)
                if field is None or field.get("type") not in _SCALARS:
                    raise SchemaError(path, f"the key `{key}` is no scalar field of the items")
                if key not in items.get("required", []) and "default" not in field:
                    raise SchemaError(path, f"the key `{key}` must be required, or have a server-side default")
        case other:
            raise SchemaError(path, f"{LIST_TYPE} `{other}` does not fit this field")


def _check_rules(rules: Any, path: str) -> None:
    """CEL itself is not compiled here: only an API server can."""
    if not isinstance(rules, list) or not rules:
        raise SchemaError(path, f"{RULES} is a list of rules")
    for rule in rules:
        if not isinstance(rule, dict) or not rule.get("rule") or rule.keys() - _RULE_KEYS:
            raise SchemaError(path, f"a rule has `rule`, and of {sorted(_RULE_KEYS)} nothing else")
        if not (rule.get("message") or rule.get("messageExpression")):
            raise SchemaError(path, "a rule without a message tells nobody what to do")
        if rule.get("reason", "FieldValueInvalid") not in _REASONS:
            raise SchemaError(path, f"the reason {rule['reason']} is none of {sorted(_REASONS)}")
