"""Writes the CustomResourceDefinitions of the four kinds: `python -m outhaul_api.crds crds/`.

A kind's model gives the schema (by way of `schema`), its `definition` the rest. The files are committed;
a test fails where they differ from what the models say.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outhaul_api import KINDS
from outhaul_api.common import Column, Resource
from outhaul_api.markers import Schema
from outhaul_api.schema import structural
from outhaul_api.vocabulary import GROUP, VERSION

CATEGORY = "outhaul"

_API_VERSION = (
    "The version of the schema that this object is written in. "
    "See https://kubernetes.io/docs/concepts/overview/kubernetes-api/"
)
_KIND = "The kind of this object. See https://kubernetes.io/docs/concepts/overview/working-with-objects/"
_HEADER = "# Generated from api/outhaul_api by `make crds`: change the models, not this file.\n"


def file_name(kind: type[Resource]) -> str:
    """Returns the name of the file that holds a kind's definition."""
    return f"{GROUP}_{kind.definition.plural}.yaml"


def custom_resource_definition(kind: type[Resource]) -> dict[str, Any]:
    """Returns a kind's CustomResourceDefinition.

    Raises:
        SchemaError: where the model cannot be expressed as a structural schema.
    """
    about = kind.definition
    version: dict[str, Any] = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "additionalPrinterColumns": [_column(column) for column in about.columns],
        "schema": {"openAPIV3Schema": _root(kind)},
    }
    if about.status_subresource:
        version["subresources"] = {"status": {}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{about.plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": about.kind,
                "listKind": f"{about.kind}List",
                "plural": about.plural,
                "singular": about.kind.lower(),
                "shortNames": about.short_names,
                "categories": [CATEGORY],
            },
            "scope": "Namespaced",
            "versions": [version],
        },
    }


def render() -> dict[str, str]:
    """Returns every generated file: its name and its text."""
    files = {file_name(kind): _yaml(custom_resource_definition(kind)) for kind in KINDS}
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": sorted(files),
    }
    return files | {"kustomization.yaml": _yaml(kustomization)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the files that are not current, or with `--check` only names them."""
    parser = argparse.ArgumentParser(prog="python -m outhaul_api.crds", description="Writes the CRDs of Outhaul.")
    parser.add_argument("folder", type=Path, help="where the files are, usually crds/")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a file is not current")
    options = parser.parse_args(arguments)
    stale = 0
    for name, text in render().items():
        path = options.folder / name
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale += 1
        if not options.check:
            path.write_text(text, encoding="utf-8")
        sys.stderr.write(f"{path}: {'not what the models say; run `make crds`' if options.check else 'written'}\n")
    return 1 if stale and options.check else 0


def _root(kind: type[Resource]) -> Schema:
    """The schema of a whole object. Of `metadata`, Kubernetes itself holds the schema."""
    schema = structural(kind, without=("apiVersion", "kind", "metadata"))
    schema["properties"] = {
        "apiVersion": {"description": _API_VERSION, "type": "string"},
        "kind": {"description": _KIND, "type": "string"},
        "metadata": {"type": "object"},
        **schema["properties"],
    }
    return schema


def _column(column: Column) -> dict[str, Any]:
    result: dict[str, Any] = {"name": column.name, "type": column.type, "jsonPath": column.json_path}
    return result | ({"priority": column.priority} if column.priority else {})


def _yaml(value: dict[str, Any]) -> str:
    # PyYAML is needed to write the files alone, so users of the models do not need it.
    import yaml  # noqa: PLC0415

    return _HEADER + yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=110)


if __name__ == "__main__":
    sys.exit(main())
