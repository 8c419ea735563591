"""A ValidatingAdmissionPolicy as an API server of 1.30 or newer evaluates it, for servers that do not know it.

Its expressions are evaluated by the C++ implementation of the Common Expression Language; Kubernetes has the Go one.
"""

from pathlib import Path
from typing import Any

import yaml
from cel_expr_python import cel

Json = dict[str, Any]


class Policy:
    """One policy of a manifest.

    Args:
        manifest: the file; of its documents the first one of the kind.
    """

    def __init__(self, manifest: Path) -> None:
        documents = yaml.safe_load_all(manifest.read_text())
        spec = next(one for one in documents if one["kind"] == "ValidatingAdmissionPolicy")["spec"]
        self.rules: list[Json] = spec["matchConstraints"]["resourceRules"]
        names = ("request", "object", "oldObject")
        environment = cel.NewEnv(variables=dict.fromkeys(names, cel.Type.DYN))
        # An expression that names anything else does not compile.
        self._conditions = [environment.compile(one["expression"]) for one in spec["matchConditions"]]
        self._validations = [(environment.compile(one["expression"]), one["message"]) for one in spec["validations"]]

    def refusal(self, request: Json) -> str | None:
        """Returns why an AdmissionReview's request is refused; None where it is let through."""
        if not any(_matches(rule, request) for rule in self.rules):
            return None
        data = {"request": request, "object": request.get("object"), "oldObject": request.get("oldObject")}
        if not all(_holds(condition, data) for condition in self._conditions):
            return None
        return next((message for expression, message in self._validations if not _holds(expression, data)), None)


def _matches(rule: Json, request: Json) -> bool:
    asked = request["resource"]
    resource = "/".join(filter(None, [asked["resource"], request.get("subResource")]))
    pairs = [
        (rule["apiGroups"], asked["group"]),
        (rule["apiVersions"], asked["version"]),
        (rule["operations"], request["operation"]),
        (rule["resources"], resource),
    ]
    return all("*" in wanted or one in wanted for wanted, one in pairs)


def _holds(expression: cel.Expression, data: Json) -> bool:
    value = expression.eval(data=data).value()
    # Under `failurePolicy: Fail` what cannot be evaluated is refused; no test should come to that.
    assert isinstance(value, bool), value
    return value
