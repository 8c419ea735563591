"""What is not right, once everything is calm: nothing, where each Installation has come to the end that is wanted."""

import base64
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from cluster.objects import Json, condition_of

from soak import ledger
from soak.ledger import Line
from soak.looks import FINAL, Looks, Snapshot
from soak.population import HISTORY, State, Wish

_OURS = "outhaul.dev/"


def unsettled(wishes: Iterable[Wish], snapshot: Snapshot) -> list[str]:
    """What is not as it is wanted, and what is left over; it may come to be right by itself."""
    wrong = [f"{'/'.join(wish.key)}: {what}" for wish in wishes for what in _of(wish, snapshot)]
    return [*wrong, *_left_over(snapshot)]


def _of(wish: Wish, snapshot: Snapshot) -> list[str]:
    installation = snapshot.named("Installation").get(wish.key)
    if wish.state is State.GONE:
        return [] if installation is None else [f"is still there: {_says(installation)}"]
    if installation is None:
        return ["is not there"]
    status = installation.get("status", {})
    ready = condition_of(installation, "Ready") or {}
    if (
        status.get("observedGeneration") != installation["metadata"]["generation"]
        or ready.get("status") != "True"
        or condition_of(installation, "Stalled") is not None
        or condition_of(installation, "Reconciling") is not None
    ):
        return [f"is not ready: {_says(installation)}"]
    secret = snapshot.named("Secret").get((wish.objects.namespace, f"{wish.name}-outputs"))
    records = _records(wish, snapshot)
    current = [name for name, phase in records.items() if phase == "Current"]
    if wish.state is State.UNINSTALLED:
        is_right = status["phase"] == "Uninstalled" and secret is None and not current
        return [] if is_right else [f"is not uninstalled: {status['phase']}, current {current}, Secret {secret}"]
    return list(_of_installed(wish, snapshot, status, secret, current))


def _of_installed(
    wish: Wish, snapshot: Snapshot, status: Json, secret: Json | None, current: list[str]
) -> Iterable[str]:
    run = status["action"]["name"]
    if (status["phase"], status["action"].get("phase"), status["lastSucceeded"]["name"]) != (
        "Succeeded",
        "Succeeded",
        run,
    ):
        yield f"is ready, but {status}"
    data = {key: base64.b64decode(value).decode() for key, value in (secret or {}).get("data", {}).items()}
    if data != {"word": wish.wanted_word, "run": run}:
        yield f"has the outputs {data}, not {wish.wanted_word} of {run}"
    if current != [run]:
        yield f"has the current records {current}, not {run}"
    runs = [
        one["metadata"]["name"]
        for one in snapshot.all("AgentAction")
        if (one["metadata"]["namespace"], one["spec"]["installation"]["name"]) == wish.key
    ]
    if run not in runs:
        yield f"its current run {run} is not kept"
    # One beyond may be the run whose copy of the source is kept.
    if len(runs) > HISTORY + 1:
        yield f"keeps {len(runs)} runs"


def _left_over(snapshot: Snapshot) -> list[str]:
    owned = {
        kind: [one for one in snapshot.all(kind) if kind != "Secret" or one.get("type", "").startswith(_OURS)]
        for kind in ("AgentAction", "InstallationOutput", "Secret", "Pod")
    }
    owners = {one["metadata"]["uid"] for kind in ("Installation", "AgentAction") for one in snapshot.all(kind)}
    wrong = [
        f"{kind} {_name(one)} has no owner that is there"
        for kind, objects in owned.items()
        for one in objects
        if not any(owner["uid"] in owners for owner in one["metadata"].get("ownerReferences", []))
    ]
    wrong += [
        f"run {_name(one)} has not ended: {one.get('status')}"
        for one in owned["AgentAction"]
        if one.get("status", {}).get("phase") not in FINAL
    ]
    # Runs have all ended, and the AgentConfig keeps pods for seconds only.
    wrong += [f"pod {_name(one)} is still there" for one in owned["Pod"]]
    wrong += [f"Secret {_name(one)} is still there" for one in owned["Secret"] if one["type"] == f"{_OURS}run"]
    return wrong


def broken(wishes: Iterable[Wish], snapshot: Snapshot, looks: Looks, lines: list[Line]) -> list[str]:
    """What is wrong, and will not come right any more."""
    cut_short = [
        f"run {run.name} has succeeded without {missing}"
        for run in looks.succeeded()
        if (missing := ledger.unfinished(lines, run.name))
    ]
    left_installed = [
        f"{'/'.join(wish.key)}: run {left} has left something installed of {life}"
        for wish in wishes
        if wish.role.is_uninstalled
        for life in wish.former_lives + ([] if wish.state is State.INSTALLED else [wish.life])
        if (left := ledger.installed(lines, life))
    ]
    return [*looks.wrong, *ledger.twice(lines), *_said_twice(snapshot), *cut_short, *left_installed]


def _said_twice(snapshot: Snapshot) -> list[str]:
    said = Counter[tuple[str, ...]]()
    for one in snapshot.all("Event"):
        # Of two uninstalls this one says the same; all others name their run.
        if one.get("source", {}).get("component") == "outhaul" and one["reason"] != "Uninstalled":
            said[(one["involvedObject"]["uid"], one["type"], one["reason"], one["message"])] += one["count"]
    return [f"said {times} times: {fact}" for fact, times in said.items() if times > 1]


_BAD = re.compile(r"Traceback|never retrieved|never awaited|Unclosed| (ERROR|CRITICAL) ")


class Logs:
    """The logs of some programs, read on from where they were read to."""

    def __init__(self, files: list[Path], explained: str) -> None:
        self._read_to = dict.fromkeys(files, 0)
        self._explained = re.compile(explained)

    def wrong(self) -> list[str]:
        """New lines that tell of a defect, but for those that are explained."""
        found = []
        for file, offset in self._read_to.items():
            with file.open(errors="replace") as log:
                log.seek(offset)
                lines = log.readlines()
                self._read_to[file] = log.tell()
            found += [f"{file.stem}: {line.strip()}" for line in lines if _BAD.search(line)]
        return [line for line in found if not self._explained.search(line)]


def _records(wish: Wish, snapshot: Snapshot) -> dict[str, str]:
    return {
        one["metadata"]["name"]: one["status"]["phase"]
        for one in snapshot.all("InstallationOutput")
        if (one["metadata"]["namespace"], one["spec"].get("installation")) == wish.key
    }


def _name(one: Json) -> str:
    return f"{one['metadata']['namespace']}/{one['metadata']['name']}"


def _says(installation: Json) -> str:
    status = installation.get("status", {})
    said = [f"{one['type']}={one['status']} {one['reason']}: {one['message']}" for one in status.get("conditions", [])]
    return f"{status.get('phase')}, {'; '.join(said)}"
