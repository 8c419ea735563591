"""The view: the newest state of each object, and who waits for its next."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from outhaul_operator.kinds import Kind
from outhaul_operator.view import Key, View, key_of

OWNER = Key(Kind.INSTALLATION, "n", "shop")


def owner_of(kind: Kind, obj: dict[str, Any]) -> Key | None:
    """Says that runs belong to the Installation that they name."""
    return Key(Kind.INSTALLATION, "n", obj["owner"]) if kind is Kind.AGENT_ACTION and "owner" in obj else None


def obj(version: int | str, name: str = "a", uid: str = "u", **content: Any) -> dict[str, Any]:
    """Returns an object in one of its states."""
    return {"metadata": {"name": name, "namespace": "n", "uid": uid, "resourceVersion": str(version)}, **content}


def key(name: str = "a", kind: Kind = Kind.AGENT_ACTION) -> Key:
    """Returns an object's key."""
    return Key(kind, "n", name)


@pytest.fixture
def view() -> View:
    """An empty view."""
    return View(owner_of)


def test_what_was_put_is_there(view: View) -> None:
    """The last state is found under the object's key, and only there."""
    view.put(Kind.AGENT_ACTION, obj(1))
    assert view.get(key()) == obj(1)
    assert view.get(key("b")) is None
    assert view.get(key(kind=Kind.POD)) is None
    assert view.keys(Kind.AGENT_ACTION) == [key()]
    assert view.keys(Kind.POD) == []


def test_a_key_reads_well() -> None:
    """In a log a key says kind, namespace and name."""
    assert str(key_of(Kind.INSTALLATION_OUTPUT, obj(1))) == "installationoutputs/n/a"


def test_who_wrote_what_is_not_kept(view: View) -> None:
    """Managed fields, of which the server sends as much again as of an idle object itself, take no memory."""
    state = obj(1)
    state["metadata"]["managedFields"] = [{"manager": "somebody"}]
    view.put(Kind.AGENT_ACTION, state)
    assert view.get(key()) == obj(1)


@given(st.lists(st.integers(0, 20), min_size=1))
def test_the_newest_state_stays(versions: list[int]) -> None:
    """In whatever order states of one object come, the newest is kept."""
    view = View(owner_of)
    for version in versions:
        view.put(Kind.AGENT_ACTION, obj(version))
    assert view.get(key()) == obj(max(versions))


def test_another_object_takes_the_name(view: View) -> None:
    """An object of another uid is another object, whatever its version says."""
    view.put(Kind.AGENT_ACTION, obj(9, uid="old"))
    view.put(Kind.AGENT_ACTION, obj(3, uid="new"))
    assert view.get(key()) == obj(3, uid="new")


def test_versions_that_are_no_numbers_are_taken_as_they_come(view: View) -> None:
    """Where versions cannot be compared the last one counts."""
    view.put(Kind.AGENT_ACTION, obj("b"))
    view.put(Kind.AGENT_ACTION, obj("a"))
    assert view.get(key()) == obj("a")


def test_what_is_gone_is_forgotten(view: View) -> None:
    """A deleted object is not found, not listed, and not owned any more."""
    view.put(Kind.AGENT_ACTION, obj(1, owner="shop"))
    view.drop(Kind.AGENT_ACTION, obj(2, owner="shop"))
    assert view.get(key()) is None
    assert view.keys(Kind.AGENT_ACTION) == []
    assert list(view.owned(OWNER)) == []


def test_how_a_pod_was_in_the_end(view: View) -> None:
    """What the server says of a pod with the word of its end stays for a while; not what was said of others."""
    for kind in (Kind.POD, Kind.AGENT_ACTION):
        view.put(kind, obj(1))
        view.drop(kind, obj(2))
    assert view.last(key(kind=Kind.POD)) == obj(2)
    assert view.last(key()) is None
    for number in range(1000):
        view.put(Kind.POD, obj(3, name=f"p{number}", uid=f"p{number}"))
        view.drop(Kind.POD, obj(4, name=f"p{number}", uid=f"p{number}"))
    assert view.last(key(kind=Kind.POD)) is None


def test_the_deletion_of_a_predecessor_changes_nothing(view: View) -> None:
    """A late word of the end of an object does not take away the one that has its name since."""
    view.put(Kind.AGENT_ACTION, obj(3, uid="new"))
    view.drop(Kind.AGENT_ACTION, obj(2, uid="old"))
    assert view.get(key()) == obj(3, uid="new")


def test_a_late_answer_brings_nothing_back(view: View) -> None:
    """The answer to a write that comes after the word of the object's end is no new object; another of the name is."""
    view.put(Kind.AGENT_ACTION, obj(1))
    view.drop(Kind.AGENT_ACTION, obj(3))
    view.put(Kind.AGENT_ACTION, obj(2))
    assert view.get(key()) is None
    view.put(Kind.AGENT_ACTION, obj(4, uid="new"))
    assert view.get(key()) == obj(4, uid="new")


def test_dropping_what_is_not_there_is_fine(view: View) -> None:
    """A deletion may be told twice."""
    view.drop(Kind.AGENT_ACTION, obj(1))


def test_what_belongs_to_another_is_found(view: View) -> None:
    """All objects of an owner are found, each in its newest state."""
    view.put(Kind.AGENT_ACTION, obj(1, owner="shop"))
    view.put(Kind.AGENT_ACTION, obj(2, owner="shop"))
    view.put(Kind.AGENT_ACTION, obj(1, "b", owner="shop"))
    view.put(Kind.AGENT_ACTION, obj(1, "c", owner="other"))
    view.put(Kind.AGENT_ACTION, obj(1, "d"))
    assert sorted(view.owned(OWNER), key=lambda one: str(one["metadata"]["name"])) == [
        obj(2, owner="shop"),
        obj(1, "b", owner="shop"),
    ]


def test_a_change_of_owner_is_seen(view: View) -> None:
    """An object that has another owner, or none, since it was replaced belongs to its first owner no more."""
    view.put(Kind.AGENT_ACTION, obj(1, uid="old", owner="shop"))
    view.put(Kind.AGENT_ACTION, obj(1, uid="new", owner="other"))
    assert list(view.owned(OWNER)) == []
    view.drop(Kind.AGENT_ACTION, obj(2, uid="new", owner="other"))
    view.put(Kind.AGENT_ACTION, obj(3, uid="third"))
    assert list(view.owned(OWNER)) == []
    assert list(view.owned(Key(Kind.INSTALLATION, "n", "other"))) == []


def test_owned_objects_may_change_while_they_are_looked_at(view: View) -> None:
    """Whoever walks through an owner's objects may drop them on the way."""
    for name in "abc":
        view.put(Kind.AGENT_ACTION, obj(1, name, owner="shop"))
    for one in view.owned(OWNER):
        view.drop(Kind.AGENT_ACTION, one)
    assert list(view.owned(OWNER)) == []


def test_a_waiter_is_woken_once(view: View) -> None:
    """The next change, or the end, of an object sets the event; the one after that sets the next event."""
    first = view.changed(key())
    assert view.changed(key()) is first
    assert not first.is_set()
    view.put(Kind.AGENT_ACTION, obj(1))
    assert first.is_set()
    second = view.changed(key())
    assert not second.is_set()
    view.drop(Kind.AGENT_ACTION, obj(2))
    assert second.is_set()


def test_an_old_state_wakes_nobody(view: View) -> None:
    """A state that is older than what is known is no change, and neither is another object's."""
    view.put(Kind.AGENT_ACTION, obj(5))
    event = view.changed(key())
    view.put(Kind.AGENT_ACTION, obj(4))
    view.put(Kind.AGENT_ACTION, obj(6, "b"))
    view.put(Kind.POD, obj(6))
    assert not event.is_set()
