"""What the four kinds share: the base model, object metadata, conditions, durations."""

import re
from collections.abc import Iterable
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from outhaul_api.vocabulary import API_VERSION

_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}

Duration = Annotated[str, Field(pattern=r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$", max_length=64)]
"""A Kubernetes duration such as `30s`, `10m` or `1h30m`."""

OBJECT_NAME_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
ObjectName = Annotated[str, Field(pattern=OBJECT_NAME_PATTERN, max_length=253)]
"""The name of a Kubernetes object (RFC 1123 subdomain)."""

_MOST_LEVELS = 100


def _bounded(value: Any) -> Any:
    """Refuses what is nested too deeply: the API server takes 10,000 levels, pydantic writes some 250."""
    level = [value]
    for _ in range(_MOST_LEVELS):
        level = [inner for one in level for inner in _inside(one)]
        if not level:
            return value
    raise ValueError(f"it is nested more than {_MOST_LEVELS} levels deep")


def _inside(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


_PRESERVED = Field(json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})
PreservedValue = Annotated[Any, _PRESERVED, AfterValidator(_bounded)]
"""A value of any shape."""
PreservedObject = Annotated[dict[str, Any], _PRESERVED, AfterValidator(_bounded)]
"""An object of any shape, such as a piece of another API (a volume, a pod template): checked when it is used."""

SERVER_DEFAULT = "x-outhaul-server-default"
"""Set to true in a field's `json_schema_extra`: the API server applies the field's default too. All other
defaults are the models' alone, since a default in the schema rewrites stored objects and can never be changed
again."""


def seconds(duration: str) -> float:
    """Returns the seconds of a Kubernetes duration that the schema's pattern has accepted."""
    return sum(float(number) * _SECONDS[unit] for number, unit in _DURATION_PART.findall(duration))


class Model(BaseModel):
    """Base of every model. Unknown fields are ignored, so that an older operator can read newer objects."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="ignore",
        use_attribute_docstrings=True,
        # A refused value may be a secret that was put into the wrong field.
        hide_input_in_errors=True,
    )

    def to_json(self) -> dict[str, Any]:
        """Returns the object as the API server wants it: camelCase, absent instead of null."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class OwnerReference(Model):
    """Metadata: who owns an object."""

    api_version: str
    """The owner's API version."""
    kind: str
    """The owner's kind."""
    name: str
    """The owner's name."""
    uid: str
    """The owner's uid."""
    controller: bool = False
    """Whether the owner is the one that manages the object."""


class ObjectMeta(Model):
    """The part of an object's metadata that the operator reads."""

    name: str = ""
    """The object's name."""
    namespace: str = ""
    """The object's namespace."""
    uid: str = ""
    """The object's uid."""
    generation: int = 0
    """Counts the changes of the spec."""
    resource_version: str = ""
    """Changes with every write."""
    deletion_timestamp: str | None = None
    """When the object was asked to go; absent while it may stay."""
    finalizers: list[str] = []
    """What has to be done before the object can go."""
    labels: dict[str, str] = {}
    """The object's labels."""
    annotations: dict[str, str] = {}
    """The object's annotations."""
    owner_references: list[OwnerReference] = []
    """The object's owners."""


class Column(BaseModel):
    """One column of `kubectl get`."""

    name: str
    type: str
    json_path: str
    priority: int = 0


class CustomResource(BaseModel):
    """What a CustomResourceDefinition says about a kind beside its schema."""

    kind: str
    plural: str
    short_names: list[str]
    columns: list[Column]
    status_subresource: bool = True


AGE = Column(name="Age", type="date", json_path=".metadata.creationTimestamp")


class Resource(Model):
    """Base of the four kinds."""

    definition: ClassVar[CustomResource]

    api_version: str = API_VERSION
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()


class Condition(Model):
    """One condition, as in Kubernetes' own `metav1.Condition`."""

    type: str = Field(max_length=64)
    """What the condition is about."""
    status: str = Field(json_schema_extra={"enum": ["True", "False", "Unknown"]})
    """True, False or Unknown."""
    reason: str = Field(max_length=64)
    """Why, in one word, for programs."""
    message: str = Field(default="", max_length=4096)
    """Why, and what to do, for people."""
    last_transition_time: str = Field(json_schema_extra={"format": "date-time"})
    """When the status last changed (RFC 3339)."""
    observed_generation: int | None = None
    """The generation of the object that the condition speaks of."""


Conditions = Annotated[
    list[Condition],
    Field(
        max_length=16,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    ),
]
"""A list of conditions, one of each type."""
