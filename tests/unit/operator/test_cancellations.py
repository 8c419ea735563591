"""Whether a run is to stop, and who is told, in loops whose time jumps."""

import asyncio

import pytest
from builders import action_object, installation_object, owned_by_installation
from looptime import run_jumping
from outhaul_api.vocabulary import CANCEL_ANNOTATION, FORMER_CANCEL_ANNOTATION
from outhaul_operator import cancellations
from outhaul_operator.kinds import Kind, Object
from outhaul_operator.view import Key, View

ACTION = Key(Kind.AGENT_ACTION, "tenant", "shop-1")
POD = Key(Kind.POD, "tenant", "shop-1")


def action(version: int = 1, **annotations: str) -> Object:
    """Returns a run of an Installation; annotations by the last part of their names."""
    given = {f"outhaul.dev/{name.replace('_', '-')}": value for name, value in annotations.items()}
    owners = owned_by_installation()
    return action_object(annotations=given, ownerReferences=owners, resourceVersion=str(version))


def asking(token: str | None, version: int = 1) -> Object:
    """Returns an Installation with a cancel annotation, or without one."""
    annotations = {} if token is None else {CANCEL_ANNOTATION: token}
    return installation_object(annotations=annotations, resourceVersion=str(version))


@pytest.mark.parametrize(
    ("found", "installation", "expected"),
    [
        (action(), None, False),
        (action(), asking(None), False),
        (action(cancel=""), None, True),
        (action(cancel="false"), asking(None), True),
        (action(), asking("a"), True),
        (action(), asking(""), False),
        (action(former_cancel="a"), asking("a"), False),
        (action(former_cancel="a"), asking("b"), True),
        (action(former_cancel="a"), asking(None), False),
    ],
)
def test_an_annotation_asks_for_it(found: Object, installation: Object | None, *, expected: bool) -> None:
    """Any on the run itself, and on its Installation one that was not there when the run was created."""
    assert FORMER_CANCEL_ANNOTATION == "outhaul.dev/former-cancel"
    assert cancellations.is_asked(found, installation) is expected


@pytest.mark.parametrize(
    "change", [(Kind.AGENT_ACTION, action(2, cancel="a")), (Kind.INSTALLATION, asking("a", 2))], ids=["run", "owner"]
)
def test_who_waits_for_the_pod_is_told(change: tuple[Kind, Object]) -> None:
    """Nothing happens before, whatever else changes; then the event is set and the pod's waiters wake up."""

    async def main() -> None:
        view = View(lambda *_: None)
        view.put(Kind.AGENT_ACTION, action())
        view.put(Kind.INSTALLATION, asking(None))
        asked = asyncio.Event()
        task = asyncio.create_task(cancellations.listen(view, action(), ACTION, POD, asked))
        await asyncio.sleep(1)
        view.put(Kind.AGENT_ACTION, action(1))
        view.put(Kind.INSTALLATION, asking(None, 1))
        await asyncio.sleep(1)
        assert not asked.is_set()
        pod = view.changed(POD)
        view.put(*change)
        await task
        assert asked.is_set()
        assert pod.is_set()

    run_jumping(main())
