"""Every sample and every manifest of deploy/ is valid to the letter: no field that a server would drop."""

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from outhaul_api import KINDS
from outhaul_api.vocabulary import API_VERSION

ROOT = Path(__file__).parents[3]
MODELS = {kind.definition.kind: kind for kind in KINDS}
MANIFESTS = sorted(path for folder in ("samples", "deploy") for path in (ROOT / folder).rglob("*.yaml"))
OTHERS = {
    "samples/terraform/.dockerignore",
    "samples/terraform/Dockerfile",
    "samples/terraform/main.tf",
    "samples/terraform/requirements.txt",
    "samples/terraform/terraform",
}
"""What lies there and is no manifest; the end-to-end tests build and run it."""


def documents(path: Path) -> list[dict[str, Any]]:
    """The objects in a file."""
    return [document for document in yaml.safe_load_all(path.read_text(encoding="utf-8")) if document]


OBJECTS = [
    pytest.param(document, id=f"{path.relative_to(ROOT)}:{document.get('kind')}")
    for path in MANIFESTS
    for document in documents(path)
]


def one(path: str, kind: str) -> dict[str, Any]:
    """The object of a kind in a file."""
    return next(document for document in documents(ROOT / path) if document["kind"] == kind)


@pytest.mark.parametrize("document", OBJECTS)
def test_is_valid_to_the_letter(document: dict[str, Any]) -> None:
    """A field that its kind does not have, under the name that the API server uses, is an error."""
    group = document["apiVersion"].partition("/")[0]
    if document["apiVersion"] == API_VERSION:
        MODELS[document["kind"]].model_validate(document, extra="forbid", by_alias=True, by_name=False)
    elif group != "kustomize.config.k8s.io":  # kubectl itself refuses what it does not know there
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


def test_no_sample_escapes() -> None:
    """Each file is a manifest, checked above, or one that this test knows by name."""
    files = {path for path in (ROOT / "samples").rglob("*") if path.is_file()}
    rest = {str(path.relative_to(ROOT)) for path in files - set(MANIFESTS)}
    assert {path for path in rest if "__pycache__" not in path} == OTHERS


def test_each_engine_has_a_sample() -> None:
    """One folder an engine, with an Installation in it."""
    found = {path.parent.name for path in MANIFESTS if path.name == "installation.yaml"}
    assert found == {"exec", "porter", "terraform"}


@pytest.mark.parametrize("wrong", ["secretname", "secret_name", "nothing"])
def test_the_check_is_strict(wrong: str) -> None:
    """An unknown field, also one by its Python name, is found however deep it is."""
    document = one("samples/exec/installation.yaml", "Installation")
    document["spec"]["outputs"] = {wrong: "a"}
    with pytest.raises(ValueError, match="Extra inputs are not permitted"):
        MODELS["Installation"].model_validate(document, extra="forbid", by_alias=True, by_name=False)


def test_the_terraform_sample_hangs_together() -> None:
    """The Installation names the ConfigMap that is generated, the application the Secret that is written."""
    installation = one("samples/terraform/installation.yaml", "Installation")
    kustomization = one("samples/terraform/kustomization.yaml", "Kustomization")
    app = one("samples/terraform/app.yaml", "Pod")
    (generated,) = kustomization["configMapGenerator"]
    assert installation["spec"]["source"]["configMapRef"]["name"] == generated["name"]
    secret = app["spec"]["volumes"][0]["secret"]["secretName"]
    assert secret == f"{installation['metadata']['name']}-outputs"
    assert "password" not in str(app["spec"]["containers"][0]["command"])


def test_the_porter_sample_has_the_fields_of_a_porter_installation() -> None:
    """Those that the documentation of Porter's file format names, as far as they are supported."""
    spec = one("samples/porter/installation.yaml", "Installation")["spec"]
    assert set(spec) == {
        "schemaVersion",
        "namespace",
        "name",
        "uninstalled",
        "labels",
        "bundle",
        "parameters",
    }
