"""What is said of what is left behind, and who is let go without an uninstall."""

from pathlib import Path
from typing import Any

import pytest
from builders import installation, installation_object, run
from outhaul_api.vocabulary import Action, ActionPhase
from outhaul_operator import endings, namespaces
from outhaul_operator.leaving import is_forced, remains
from scripted import Answer, failure, serving

DELETED = "2026-01-01T00:00:00Z"
HELD = {"deletionTimestamp": DELETED, "finalizers": ["outhaul.dev/uninstall", "other"], "resourceVersion": "7"}
FORCED = {**HELD, "annotations": {"outhaul.dev/force-delete": "true"}}
ENDS = "unable to create new content in namespace tenant because it is being terminated"


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.mark.parametrize(
    ("metadata", "forced"),
    [
        (FORCED, True),
        (HELD, False),
        ({**FORCED, "annotations": {"outhaul.dev/force-delete": "yes"}}, False),
        ({"annotations": FORCED["annotations"]}, False),
    ],
)
def test_who_goes_by_force(metadata: dict[str, Any], *, forced: bool) -> None:
    """Who is deleted, and says so in one word."""
    assert is_forced(installation_object(**metadata)) is forced


def test_what_is_left_behind() -> None:
    """The newest run, whether it is under way, and where the engine keeps what it knows."""
    shop = installation({"engine": "terraform"})
    text = remains(shop, run(None, Action.UPGRADE), None)
    assert "what run shop-1 (upgrade) and those before it have installed may still be there" in text
    assert "it is under way, and told to stop" in text
    assert "Secret tfstate-default-shop of namespace tenant, unless the module has a backend of its own" in text
    bundle = installation({"bundle": {"repository": "r/b"}, "name": "web", "namespace": "dev"})
    assert "Porter knows it as web in its namespace dev" in remains(bundle, run(), None)
    assert "Terraform" in remains(installation(), run(), "terraform")
    assert remains(installation(), run(), None).endswith("may still be there")


@pytest.mark.parametrize(
    "newest", [None, run(act=Action.UNINSTALL), run(ActionPhase.CANCELLED, started=False, first=True)]
)
def test_nothing_is_left_of_nothing(newest: Any) -> None:
    """Where nothing was installed, or nothing is any more, nothing is left behind."""
    assert remains(installation({"engine": "terraform"}), newest, None) == "nothing was installed"


async def test_a_namespace_that_ends(tmp_path: Path) -> None:
    """It is told by what the server says to something that it would not keep, whatever else it says."""
    async with serving(tmp_path) as (server, cluster):
        for answer, ends in (
            (Answer(201), False),
            (failure(403, "Forbidden", ENDS), True),
            (failure(403, "Forbidden", "exceeded quota"), False),
            (failure(409, "AlreadyExists"), False),
        ):
            server.will(answer)
            assert await namespaces.is_ending(cluster, "tenant") is ends
        assert all("dryRun=All" in one.url for one in server.requests)


@pytest.mark.parametrize(
    ("metadata", "answers", "goes"),
    [
        pytest.param({**HELD, "deletionTimestamp": None}, [], False, id="stays"),
        pytest.param({**HELD, "finalizers": ["other"]}, [], False, id="not held by us"),
        pytest.param(HELD, [Answer(201)], False, id="only deleted"),
        pytest.param(FORCED, [Answer(201), Answer()], True, id="by force"),
        pytest.param(
            HELD,
            [failure(403, "Forbidden", ENDS), failure(403, "Forbidden", ENDS), Answer()],
            True,
            id="with its namespace",
        ),
    ],
)
async def test_what_cannot_be_read_is_let_go(
    tmp_path: Path, metadata: dict[str, Any], answers: list[Answer], *, goes: bool
) -> None:
    """An Installation that the operator cannot read goes by force or with its namespace; others' finalizers stay."""
    obj = installation_object(spec={"timeout": 7}, **metadata)
    async with serving(tmp_path) as (server, cluster):
        server.will(*answers)
        assert await endings.leave_unread(cluster, obj) is goes
        assert server.left == 0
        if goes:
            assert server.requests[-1].body[-1] == {"op": "add", "path": "/metadata/finalizers", "value": ["other"]}
