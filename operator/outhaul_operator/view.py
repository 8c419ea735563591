"""The newest state of what the operator watches, for reading; fed by watch events and by our own writes.

It may be behind the API server, so it never proves that something does not exist: whoever creates or deletes
asks the server first. kopf's own indices are not used: they fill in quadratic time and keep ghosts.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import NamedTuple

from outhaul_operator.kinds import Kind, Object

_MOST_GONE = 10_000
_MOST_LAST = 200


class Key(NamedTuple):
    """Names one object."""

    kind: Kind
    namespace: str
    name: str

    def __str__(self) -> str:
        """Returns the form that logs use."""
        return f"{self.kind.value[1]}/{self.namespace}/{self.name}"


def key_of(kind: Kind, obj: Object) -> Key:
    """Returns the key of an object."""
    return Key(kind, obj["metadata"]["namespace"], obj["metadata"]["name"])


class View:
    """Objects by key.

    Args:
        owner_of: Returns the key that an object is to be found under with `owned`, or None.
        replaced: Told of an object's state that has taken the place of an older one.
    """

    def __init__(
        self,
        owner_of: Callable[[Kind, Object], Key | None],
        replaced: Callable[[Kind, Object, Object], None] = lambda *_: None,
    ) -> None:
        self._owner_of = owner_of
        self._replaced = replaced
        self._objects: dict[Key, Object] = {}
        self._owned: dict[Key, set[Key]] = {}
        self._gone: OrderedDict[str, None] = OrderedDict()
        """Uids of objects that are gone: the answer to our own last write may come after the word of the end."""
        self._last: OrderedDict[Key, Object] = OrderedDict()
        """How the pods were that went last: one may end and go before anybody has looked."""
        self._changes: dict[Key, asyncio.Event] = {}

    def get(self, key: Key) -> Object | None:
        """Returns the newest state that was seen, or None."""
        return self._objects.get(key)

    def last(self, key: Key) -> Object | None:
        """Returns how a pod was in the end, where it went a short while ago."""
        return self._last.get(key)

    def keys(self, kind: Kind) -> list[Key]:
        """Returns the keys of a kind."""
        return [key for key in self._objects if key.kind is kind]

    def objects(self, kind: Kind) -> list[Object]:
        """Returns the objects of a kind."""
        return [obj for key, obj in self._objects.items() if key.kind is kind]

    def owned(self, owner: Key) -> Iterator[Object]:
        """Yields the objects that belong to another."""
        for key in list(self._owned.get(owner, ())):
            obj = self._objects.get(key)
            if obj is not None:
                yield obj

    def put(self, kind: Kind, obj: Object) -> None:
        """Takes in a state, unless a newer one of the same object was seen."""
        key = key_of(kind, obj)
        old = self._objects.get(key)
        # Who wrote which field is of no interest here, and half of an idle object's size.
        obj["metadata"].pop("managedFields", None)
        if obj["metadata"]["uid"] in self._gone or (old is not None and _is_newer(old, obj)):
            return
        if old is not None:
            self._disown(kind, old)
        self._objects[key] = obj
        owner = self._owner_of(kind, obj)
        if owner is not None:
            self._owned.setdefault(owner, set()).add(key)
        if old is not None and old["metadata"]["uid"] == obj["metadata"]["uid"]:
            self._replaced(kind, old, obj)
        self._wake(key)

    def drop(self, kind: Kind, obj: Object) -> None:
        """Forgets an object that the server says is gone; not the one that has taken its name since."""
        key = key_of(kind, obj)
        self._gone[obj["metadata"]["uid"]] = None
        if len(self._gone) > _MOST_GONE:
            self._gone.popitem(last=False)
        old = self._objects.get(key)
        if old is None or old["metadata"]["uid"] != obj["metadata"]["uid"]:
            return
        del self._objects[key]
        self._disown(kind, old)
        if kind is Kind.POD:
            self._last[key] = obj
            if len(self._last) > _MOST_LAST:
                self._last.popitem(last=False)
        self._wake(key)

    def _disown(self, kind: Kind, obj: Object) -> None:
        owner = self._owner_of(kind, obj)
        if owner is not None and owner in self._owned:
            self._owned[owner].discard(key_of(kind, obj))
            if not self._owned[owner]:
                del self._owned[owner]

    def changed(self, key: Key) -> asyncio.Event:
        """Returns an event that is set at the object's next change.

        Whoever asks for it, then reads the state, and then waits misses nothing.
        """
        return self._changes.setdefault(key, asyncio.Event())

    def touch(self, key: Key) -> None:
        """Wakes who waits for an object, although it has not changed."""
        self._wake(key)

    def _wake(self, key: Key) -> None:
        event = self._changes.pop(key, None)
        if event is not None:
            event.set()


def _is_newer(old: Object, new: Object) -> bool:
    """Compares resourceVersions of one object; servers since 1.35 promise the order that etcd always gave them."""
    if old["metadata"]["uid"] != new["metadata"]["uid"]:
        return False
    try:
        return int(old["metadata"]["resourceVersion"]) > int(new["metadata"]["resourceVersion"])
    except ValueError:
        return False
