"""The writes of a run, taken from a real one, to be made again under other names. Pure, but for `Model.of`.

A plain client makes them to see what the API server can take alone; what stays afterwards are idle Installations, whose
runs have ended and whose pods are gone.
"""

import json
from dataclasses import dataclass
from typing import Any

from cluster.objects import Json, Objects
from outhaul_api.installation import Outputs
from outhaul_operator import contents, names

NAME = "model"
_SERVER_SET = {"uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "selfLink"}


@dataclass(frozen=True)
class Model:
    """One finished run, as its objects are."""

    installation: Json
    action: Json
    pod: Json
    record: Json
    secrets: list[Json]
    """The run's own, its outputs', and the latest."""
    events: list[Json]

    @classmethod
    def of(cls, objects: Objects) -> "Model":
        """Reads the objects of the Installation `model`, whose first run has succeeded."""
        installation = objects.ready(NAME)
        run = installation["status"]["action"]["name"]
        secrets = [objects.get("Secret", name) for name in (f"{run}-run", f"{run}-outputs", f"{NAME}-outputs")]
        events = [one for one in objects.all("Event") if one["involvedObject"]["name"] == NAME]
        pod = objects.get("Pod", run)
        # Nobody is to start it.
        del pod["spec"]["nodeName"]
        pod.pop("status")
        return cls(
            installation, objects.get("AgentAction", run), pod, objects.get("InstallationOutput", run), secrets, events
        )

    def called(self, name: str, uid: str, action_uid: str = "") -> "Model":
        """Returns it as another Installation's of this name and uid; without an AgentAction's uid, up to that."""
        run, number = self.action["metadata"]["name"], self.installation["status"]["action"]["number"]
        other = names.run_name(name, uid=uid, number=number)
        former, latest = self.installation["status"]["publication"], names.latest_secret_name(name, None)
        replaced = {
            run: other,
            f'"{NAME}': f'"{name}',
            self.installation["metadata"]["uid"]: uid,
            self.action["metadata"]["uid"]: action_uid,
            former: contents.publication_digest(other, latest, Outputs()),
        }
        text = json.dumps([getattr(self, one) for one in self.__dataclass_fields__])
        for old, new in replaced.items():
            text = text.replace(old, new)
        return Model(*json.loads(text))


def spec(seconds: float) -> Json:
    """Returns the spec of an Installation whose work takes so long."""
    return {"engine": "exec", "commands": {"install": [{"name": "work", "command": ["sleep", f"{seconds:g}"]}]}}


def new(obj: Json) -> Json:
    """Returns an object as it is created: without what the server sets, and without its status."""
    metadata = {key: value for key, value in obj["metadata"].items() if key not in _SERVER_SET}
    kept: dict[str, Any] = {key: value for key, value in obj.items() if key != "status"}
    return {**kept, "metadata": metadata}
