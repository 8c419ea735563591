"""The life of one Installation, in stages: what is done to it, and all that there has to be in its namespace after.

A stage's end is told whole, so that whatever is missing, twice or left over is a difference. Names of runs differ from
one namespace to another, so runs are called by their numbers. Each command writes a line into a volume, which outlives
the pods.
"""

import base64
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cluster.errors import NotInTime
from cluster.objects import Json, Objects
from cluster.waiting import until

NAME = "service"
_DEADLINE = 300.0
"""Many live at once, on a machine with other things to do."""
_LEDGER = "ledger"
_LEFT = ("Pod", "Secret", "AgentAction", "InstallationOutput")


@dataclass(frozen=True)
class Stage:
    """A stage of a life."""

    name: str
    begin: Callable[[Objects], object]
    """Has it begin."""
    end: Json
    """How it ends: see `Life.state`."""


def _installed(number: int) -> Json:
    """An Installation that is ready after so many runs."""
    return {
        "observed": True,
        "phase": "Succeeded",
        "conditions": {"Ready": "True Succeeded", "OutputsReady": "True Published"},
        "action": number,
        "lastSucceeded": number,
        "binding": "service-outputs",
        "outputs": ["word"],
    }


def _command(word: str) -> list[Json]:
    """A command that leaves a word in the ledger."""
    return [{"name": word, "command": ["sh", "-c", f"echo {word} >> /ledger/commands"]}]


def _install(objects: Objects) -> None:
    objects.patch("ConfigMap", "words", {"data": {"word": "one"}})
    read = ["sh", "-c", "echo read >> /ledger/commands; cat word"]
    objects.install(
        NAME,
        engine="exec",
        source={"configMapRef": {"name": "words"}},
        commands={action: _command(action) for action in ("install", "upgrade", "uninstall")},
        outputs={"from": [{"command": {"command": read, "format": "text", "name": "word"}}], "historyLimit": 2},
    )


def _upgrade(objects: Objects) -> None:
    objects.patch("ConfigMap", "words", {"data": {"word": "two"}})
    objects.respec(NAME, parameters={"round": 2})


def _recollect(objects: Objects) -> None:
    objects.patch("ConfigMap", "words", {"data": {"word": "three"}})
    objects.annotate(NAME, {"outhaul.dev/recollect": "now"})


def _uninstall(objects: Objects) -> None:
    objects.delete("Installation", NAME)


_ONE, _TWO, _THREE = ({"word": base64.b64encode(word).decode()} for word in (b"one", b"two", b"three"))
STAGES = (
    Stage(
        "install",
        _install,
        {
            "installation": _installed(1),
            "Pod": {},
            "Secret": {"run-1-outputs": _ONE, "run-1-source": True, "service-outputs": _ONE},
            "AgentAction": {"run-1": "install Succeeded"},
            "InstallationOutput": {"run-1": "Current"},
            "commands": ["install", "read"],
            "said": {"Normal Dispatched": 1, "Normal Succeeded": 1},
        },
    ),
    Stage(
        "upgrade",
        _upgrade,
        {
            "installation": _installed(2),
            "Pod": {},
            "Secret": {"run-1-outputs": _ONE, "run-2-outputs": _TWO, "run-2-source": True, "service-outputs": _TWO},
            "AgentAction": {"run-1": "install Succeeded", "run-2": "upgrade Succeeded"},
            "InstallationOutput": {"run-1": "Superseded", "run-2": "Current"},
            "commands": ["install", "read", "upgrade", "read"],
            "said": {"Normal Dispatched": 2, "Normal Succeeded": 2},
        },
    ),
    Stage(
        "recollect",
        _recollect,
        {
            "installation": _installed(3),
            "Pod": {},
            "Secret": {"run-2-outputs": _TWO, "run-2-source": True, "run-3-outputs": _THREE, "service-outputs": _THREE},
            "AgentAction": {"run-2": "upgrade Succeeded", "run-3": "recollect Succeeded"},
            "InstallationOutput": {"run-2": "Superseded", "run-3": "Current"},
            "commands": ["install", "read", "upgrade", "read", "read"],
            "said": {"Normal Dispatched": 3, "Normal Succeeded": 3},
        },
    ),
    Stage(
        "uninstall",
        _uninstall,
        {
            "installation": None,
            "Pod": {},
            "Secret": {},
            "AgentAction": {},
            "InstallationOutput": {},
            "commands": ["install", "read", "upgrade", "read", "read", "uninstall"],
            "said": {"Normal Dispatched": 4, "Normal Succeeded": 3, "Normal Uninstalled": 1},
        },
    ),
)
"""Whatever Outhaul looks after is in it: a source that is kept, outputs, history, pods that go, an uninstall."""
_STEPS = {
    "create agentactions service-*",
    "patch installations/status service",
    "create secrets service-*-run",
    "create pods service-*",
    "patch agentactions/status service-*",
    "delete secrets service-*-run",
}
_PUBLISHED = _STEPS | {"create secrets service-*-outputs", "create installationoutputs service-*"}
WRITES = {
    "install": _PUBLISHED
    | {"patch installations service", "create secrets service-*-source", "create secrets service-outputs"},
    "upgrade": _PUBLISHED
    | {
        "create secrets service-*-source",
        "patch installationoutputs service-*",
        "patch secrets service-outputs",
        "delete secrets service-*-source",
    },
    "recollect": _PUBLISHED
    | {"patch installationoutputs service-*", "patch secrets service-outputs", "delete agentactions service-*"},
    # With the Installation goes its last run, and the garbage collector may be the first with that one's Secret.
    "uninstall": (_STEPS - {"delete secrets service-*-run"})
    | {"patch installationoutputs service-*", "patch installations service"},
}
"""What changes something, by stage: with the names of objects as `walks` has them."""
RUNS = 4
"""In a whole life."""


class Life:
    """The life of one Installation, in a namespace of its own.

    Args:
        objects: The namespace; it is empty.
        watch_over: Starts the operator again where it has ended by itself, as Kubernetes would: on a machine with much
            to do it may not reach the API server for long.
    """

    def __init__(self, objects: Objects, watch_over: Callable[[], object]) -> None:
        self.objects = objects
        self._watch_over = watch_over
        claim = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Mi"}}}
        made = objects.create("PersistentVolumeClaim", _LEDGER, spec=claim)
        self._ledger = objects.control_plane.root / "kubelet" / "claims" / made["metadata"]["uid"] / "commands"
        container = {"name": "agent", "volumeMounts": [{"name": _LEDGER, "mountPath": "/ledger"}]}
        volume = {"name": _LEDGER, "persistentVolumeClaim": {"claimName": _LEDGER}}
        template = {"spec": {"containers": [container], "volumes": [volume]}}
        objects.create("AgentConfig", "default", spec={"podTemplate": template, "ttlSecondsAfterFinished": 0})
        objects.create("ConfigMap", "words", data={"word": "none"})

    def await_end(self, stage: Stage, why: str) -> None:
        """Waits until all is as it has to be at a stage's end; `why` it might not be is for people."""
        try:
            until(lambda: self.is_at_end(stage), what=f"the end of {stage.name}", timeout=_DEADLINE, interval=0.2)
        except NotInTime as error:
            found = self.state()
            other = {key: (found[key], "instead of", value) for key, value in stage.end.items() if found[key] != value}
            raise NotInTime(f"{why}: {error}; {other}") from None

    def is_at_end(self, stage: Stage) -> bool:
        """Whether all is as it has to be at a stage's end."""
        self._watch_over()
        # Most looks end here: the rest is many requests.
        return self._shown() == stage.end["installation"] and self.state() == stage.end

    def state(self) -> Json:
        """All that there is of the Installation and what it leaves: no more, no less, and what was done how often."""
        objects, runs = self.objects, self.objects.runs(NAME)
        numbers = {one["metadata"]["name"]: f"run-{one['spec']['installation']['number']}" for one in runs}
        left: Json = {
            kind: {_called(one["metadata"]["name"], numbers): _told(kind, one) for one in objects.all(kind)}
            for kind in _LEFT
        }
        said = Counter(f"{type_} {reason}" for type_, reason, _ in objects.events("Installation", NAME))
        commands = self._ledger.read_text().split() if self._ledger.exists() else []
        return {"installation": self._shown(), **left, "commands": commands, "said": dict(said)}

    def _shown(self) -> Json | None:
        installation = self.objects.find("Installation", NAME)
        return None if installation is None else _installation(installation)


def _called(name: str, numbers: Mapping[str, str]) -> str:
    for run, number in numbers.items():
        name = name.replace(run, number)
    return name


def _told(kind: str, obj: Json) -> object:
    """What is told of an object: a phase, data, or nothing but that it is there."""
    match kind:
        case "AgentAction":
            return f"{obj['spec']['action']} {obj.get('status', {}).get('phase')}"
        case "InstallationOutput":
            return obj["status"]["phase"]
        case "Secret" if obj["type"] == "outhaul.dev/outputs":
            return obj["data"]
        case _:
            return True


def _installation(obj: Json) -> Json:
    status = obj.get("status", {})
    return {
        "observed": status.get("observedGeneration") == obj["metadata"]["generation"],
        "phase": status.get("phase"),
        "conditions": {one["type"]: f"{one['status']} {one['reason']}" for one in status.get("conditions", [])},
        "action": status.get("action", {}).get("number"),
        "lastSucceeded": status.get("lastSucceeded", {}).get("number"),
        "binding": status.get("binding", {}).get("name"),
        "outputs": status.get("outputs"),
    }
