"""The Installations of a soak: what is wanted of each, and the changes that people make."""

import random
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum, auto
from itertools import count

from cluster.objects import Json, Objects

from soak.ledger import SCRIPT

HISTORY = 3
SOURCE = "script"
"""The ConfigMap with the script, for those that do not bring it themselves."""


class State(StrEnum):
    """What is wanted of an Installation."""

    INSTALLED = auto()
    UNINSTALLED = auto()
    GONE = auto()


@dataclass(frozen=True)
class Role:
    """A sort of Installation, and what people do to it."""

    seconds: float = 0
    fails: int = 0
    """How many runs fail before one succeeds, for each word."""
    is_uninstalled: bool = False
    """Whether it has commands to uninstall; they come from a ConfigMap, as all of its commands."""
    changes: tuple[str, ...] = ("reword",)


ROLES = {
    "quick": Role(),
    "slow": Role(seconds=5),
    "flaky": Role(fails=2),
    "base": Role(seconds=1),
    "middle": Role(changes=()),
    "top": Role(changes=()),
    "stateful": Role(seconds=1, is_uninstalled=True, changes=("reword", "toggle", "toggle")),
    "churned": Role(seconds=0.5, is_uninstalled=True, changes=("toggle_existence",)),
    "plain": Role(changes=("toggle_existence",)),
    "cancelled": Role(seconds=6, changes=("reword", "cancel", "cancel")),
    "suspended": Role(seconds=1, changes=("toggle_suspension", "reword")),
}
EACH_NAMESPACE = (*ROLES, "slow", "churned")
USES = {"middle": "base", "top": "middle"}


@dataclass
class Wish:
    """One Installation as it is wanted."""

    objects: Objects
    name: str
    role: Role
    uses: "Wish | None" = None
    word: str = ""
    life: str = ""
    """Names this creation of it; empty before the first."""
    state: State = State.GONE
    suspended: bool = False
    is_cancelled: bool = False
    """Whether its run may have been cancelled by a person."""
    asked_after: str = ""
    """The run after which another one was asked for."""
    former_lives: list[str] = field(default_factory=list)

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""
        return self.objects.namespace, self.name

    @property
    def wanted_word(self) -> str:
        """What its outputs are to say."""
        return self.uses.wanted_word if self.uses is not None else self.word

    def spec(self) -> Json:
        """Its spec."""
        role = self.role
        start = ["sh", "main.sh"] if role.is_uninstalled else ["sh", "-c", SCRIPT, "sh"]

        def commands(action: str) -> list[Json]:
            return [{"name": step, "command": [*start, action, step]} for step in ("main", "last")]

        spec: Json = {
            "engine": "exec",
            "parameters": self.parameters(),
            "commands": {"install": commands("install")},
            "retry": {"limit": 8, "backoff": "1s"},
            "outputs": {"historyLimit": HISTORY},
        }
        if role.is_uninstalled:
            spec["commands"]["uninstall"] = commands("uninstall")
            spec["source"] = {"configMapRef": {"name": SOURCE}}
        if self.uses is not None:
            output = {"installation": self.uses.name, "name": "word"}
            spec["inputs"] = [{"name": "word", "output": output}]
            spec["dependsOn"] = [self.uses.name]
        return spec

    def parameters(self) -> Json:
        """What its script is told."""
        return {"life": self.life, "word": self.word, "seconds": self.role.seconds, "fails": self.role.fails}


class Population:
    """All wishes, and who changes them.

    Args:
        namespaces: where they are.
        dice: what is changed when.
    """

    def __init__(self, namespaces: list[Objects], dice: random.Random) -> None:
        self._dice = dice
        self._numbers = count(1)
        self.wishes = [wish for objects in namespaces for wish in _wishes(objects)]
        self._unborn = list(self.wishes)
        self.changes: Counter[str] = Counter()

    @property
    def is_complete(self) -> bool:
        """Whether each of them has been made once."""
        return not self._unborn

    def change(self) -> None:
        """Creates the next one that has never been there, or else changes one at random."""
        if self._unborn:
            self._create(self._unborn.pop(0))
            return
        wish = self._dice.choice([one for one in self.wishes if one.role.changes])
        getattr(self, f"_{self._dice.choice(wish.role.changes)}")(wish)

    def ask_again(self, wish: Wish, run: str) -> None:
        """Asks for another run after one that was cancelled or lost, as a person does."""
        self.changes["asked again"] += 1
        wish.is_cancelled, wish.asked_after = False, run
        wish.objects.annotate(wish.name, {"outhaul.dev/retry": str(next(self._numbers))})

    def resume(self) -> None:
        """Ends every suspension."""
        for wish in self.wishes:
            if wish.suspended:
                self._toggle_suspension(wish)

    def delete(self) -> None:
        """Wants nothing any more."""
        for wish in self.wishes:
            if wish.state is not State.GONE:
                self._end(wish)

    def _create(self, wish: Wish) -> None:
        self.changes["created"] += 1
        if wish.life:
            wish.former_lives.append(wish.life)
        wish.life = f"{wish.name}-{wish.objects.namespace}-{next(self._numbers)}"
        wish.word, wish.state = f"word-{next(self._numbers)}", State.INSTALLED
        wish.objects.install(wish.name, **wish.spec())

    def _end(self, wish: Wish) -> None:
        self.changes["deleted"] += 1
        wish.state = State.GONE
        wish.objects.delete("Installation", wish.name)

    def _reword(self, wish: Wish) -> None:
        self.changes["changed"] += 1
        wish.word = f"word-{next(self._numbers)}"
        wish.objects.respec(wish.name, parameters=wish.parameters())

    def _toggle(self, wish: Wish) -> None:
        self.changes["uninstalled or back"] += 1
        wish.state = State.UNINSTALLED if wish.state is State.INSTALLED else State.INSTALLED
        wish.objects.respec(wish.name, uninstalled=wish.state is State.UNINSTALLED)

    def _toggle_existence(self, wish: Wish) -> None:
        if wish.state is not State.GONE:
            self._end(wish)
        elif wish.objects.find("Installation", wish.name) is None:
            self._create(wish)

    def _toggle_suspension(self, wish: Wish) -> None:
        self.changes["suspended or back"] += 1
        wish.suspended = not wish.suspended
        wish.objects.respec(wish.name, suspend=wish.suspended)

    def _cancel(self, wish: Wish) -> None:
        self.changes["cancelled"] += 1
        wish.is_cancelled = True
        wish.objects.annotate(wish.name, {"outhaul.dev/cancel": str(next(self._numbers))})


def _wishes(objects: Objects) -> list[Wish]:
    made: dict[str, Wish] = {}
    for role in EACH_NAMESPACE:
        name = role if role not in made else f"{role}-2"
        made[name] = Wish(objects, name, ROLES[role], uses=made.get(USES.get(role, "")))
    return list(made.values())
