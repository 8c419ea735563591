"""What the documentation names is there: reasons, links, targets of make, files, fields of objects."""

import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from outhaul_api import KINDS
from outhaul_api.vocabulary import API_VERSION, Reason

ROOT = Path(__file__).parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
FOREIGN = {"kustomize.config.k8s.io", "cert-manager.io"}
"""Groups of which Kubernetes has no schemas."""
MODELS = {kind.definition.kind: kind for kind in KINDS}

_LINK = re.compile(r"\]\(([^)\s]+)\)")
_CODE = re.compile(r"^```[\s\S]*?^```$|^    .*$|`[^`\n]+`", re.MULTILINE)
_YAML = re.compile(r"^```yaml\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_MAKE = re.compile(r"\bmake ([a-z]+)")
_PATH = re.compile(r"(?<![\w./-])(?:samples|deploy|docs|tests|crds|api|agent|operator|bench)/[\w./-]*[\w/]")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def code(page: Path) -> str:
    """The parts of a page that are code: blocks, and words between backticks."""
    return "\n".join(_CODE.findall(page.read_text(encoding="utf-8")))


def anchors(page: Path) -> set[str]:
    """What a link into a page may name: its headings, as Git hosts write them."""
    headings = _HEADING.findall(page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def objects() -> list[Any]:
    """The objects in the pages' YAML blocks; those that are a part of an object are left out."""
    return [
        pytest.param(document, id=f"{page.name}:{index}:{document['kind']}")
        for page in PAGES
        for index, block in enumerate(_YAML.findall(page.read_text(encoding="utf-8")))
        for document in yaml.safe_load_all(block)
        if "kind" in document
    ]


def test_each_reason_is_in_the_tables() -> None:
    """Whoever sees a reason on an object finds in docs/troubleshooting.md what it means, and no other reason."""
    text = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)
    assert sorted(rows) == sorted(Reason)


def test_alerts_are_of_metrics_that_there_are() -> None:
    """Each metric in an alert of docs/operations.md is in the table, and each alert has a row that says what to do."""
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    (groups,) = [yaml.safe_load(block) for block in _YAML.findall(text) if "alert:" in block]
    rules = [rule for group in groups["groups"] for rule in group["rules"]]
    metrics = {re.sub(r"_bucket$", "", one) for rule in rules for one in re.findall(r"outhaul_\w+", rule["expr"])}
    assert metrics <= set(re.findall(r"^\| `(outhaul_\w+)` \|", text, re.MULTILINE))
    assert [rule["alert"] for rule in rules] == re.findall(r"^\| `(Outhaul\w+)` \|", text, re.MULTILINE)


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    """Each link within the repository names a file, and a heading of it if it names one."""
    for link in _LINK.findall(page.read_text(encoding="utf-8")):
        target, _, anchor = link.partition("#")
        if "://" in target:
            continue
        there = page.parent / target if target else page
        assert there.exists(), link
        assert not anchor or anchor in anchors(there), link


@each_page
def test_targets_of_make_exist(page: Path) -> None:
    """A command of the documentation is one that make knows."""
    known = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(_MAKE.findall(code(page))) <= known


@each_page
def test_files_exist(page: Path) -> None:
    """A path of the repository that the documentation names is there."""
    text = code(page)
    missing = {path for path in _PATH.findall(text) if not (ROOT / path).exists()}
    assert not missing


@pytest.mark.parametrize("document", objects())
def test_objects_are_valid_to_the_letter(document: dict[str, Any]) -> None:
    """An object that somebody copies has no field that a server would drop."""
    group = document["apiVersion"].partition("/")[0]
    if document["apiVersion"] == API_VERSION:
        MODELS[document["kind"]].model_validate(document, extra="forbid", by_alias=True, by_name=False)
    elif group not in FOREIGN:
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


def test_the_pages_are_of_outhaul() -> None:
    """No page is left out, and each has a heading."""
    assert {page.name for page in PAGES} >= {
        "README.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "CHANGELOG.md",
        "outputs.md",
    }
    assert all(page.read_text(encoding="utf-8").startswith("# ") for page in PAGES)
