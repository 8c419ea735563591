"""The rights in `deploy/` are exactly those that the suites used, by the API servers' own audit logs.

It compares what they have recorded, so it runs after them, and only where all of them have: in `make test`.
"""

import os
from pathlib import Path

import pytest
from cluster.privileges import FOLDER_VARIABLE, Grant, Use, granted, recorded


@pytest.fixture(scope="module")
def uses() -> set[Use]:
    """What our accounts were allowed in all suites."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder is None:
        pytest.skip("which rights are used is known when all suites have run: make test")
    found = recorded(Path(folder))
    assert found, f"no suite has recorded anything in {folder}"
    return found


def told(found: set[Grant] | set[Use]) -> str:
    """Grants or uses for people, one a line."""
    return "\n".join(sorted(str(one) for one in found))


def test_every_right_is_used(uses: set[Use]) -> None:
    """Each verb that a role gives on a resource was needed: a right that nobody uses is taken out of the manifest."""
    unused = {grant for grant in granted() if not any(grant.allows(use) for use in uses)}
    assert not unused, f"granted, and never used:\n{told(unused)}"


def test_every_use_has_its_right(uses: set[Use]) -> None:
    """Whatever the accounts were allowed was allowed by a role of the manifests, not by something beside them."""
    grants = granted()
    beside = {use for use in uses if not any(grant.allows(use) for grant in grants)}
    assert not beside, f"allowed by something else than the manifests:\n{told(beside)}"
