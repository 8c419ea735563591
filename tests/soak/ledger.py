"""What the commands of a soak's runs do, and what they write down: lines in a file that outlives pods."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cluster.objects import Json

MOUNT = "/ledger"

SCRIPT = f"""
say() {{ echo "$OUTHAUL_PARAMETER_life $RUN $POD $1 $word $2" >> {MOUNT}/lines; }}
word=${{OUTHAUL_INPUT_word:-$OUTHAUL_PARAMETER_word}}
say "$1" "$2-begins"
if test "$2" = main; then
  sleep "$OUTHAUL_PARAMETER_seconds"
  tried=$(grep -c "^$OUTHAUL_PARAMETER_life [^ ]* [^ ]* $1 $word main-begins" {MOUNT}/lines)
  test "$tried" -gt "$OUTHAUL_PARAMETER_fails" || exit 3
  printf %s "$word" > "$OUTHAUL_OUTPUTS/word"
  printf %s "$RUN" > "$OUTHAUL_OUTPUTS/run"
fi
say "$1" "$2-ends"
"""
"""Two arguments: what the run does, and the step, of which `main` takes its time, fails as often as it is told to, and
leaves the outputs."""

STEPS = ("main", "last")


def pod_template(folder: Path) -> Json:
    """What lets a run's commands know who they are, and write into the folder."""

    def field(name: str, path: str) -> Json:
        return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}

    container = {
        "name": "agent",
        "env": [field("RUN", "metadata.name"), field("POD", "metadata.uid")],
        "volumeMounts": [{"name": "ledger", "mountPath": MOUNT}],
    }
    volume = {"name": "ledger", "hostPath": {"path": str(folder)}}
    return {"spec": {"containers": [container], "volumes": [volume], "terminationGracePeriodSeconds": 30}}


@dataclass(frozen=True)
class Line:
    """One line: at this place in the life of an Installation, this run came so far."""

    life: str
    run: str
    pod: str
    action: str
    word: str
    what: str


def read(folder: Path) -> list[Line]:
    """What was written down, in order."""
    file = folder / "lines"
    lines = file.read_text().splitlines() if file.exists() else []
    return [Line(*line.split()) for line in lines]


def by_run(lines: Iterable[Line]) -> dict[str, list[Line]]:
    """The lines of each run."""
    found = defaultdict(list)
    for line in lines:
        found[line.run].append(line)
    return dict(found)


def twice(lines: Iterable[Line]) -> list[str]:
    """What is wrong with the runs by what they wrote down themselves: a step that ran twice, a second pod."""
    wrong = []
    for run, theirs in by_run(lines).items():
        whats = [one.what for one in theirs]
        if len(whats) != len(set(whats)):
            wrong.append(f"run {run} did something twice: {whats}")
        if len({one.pod for one in theirs}) > 1:
            wrong.append(f"run {run} had several pods")
    return wrong


def unfinished(lines: Iterable[Line], run: str) -> list[str]:
    """Which of a successful run's lines are missing."""
    wanted = [f"{step}-{what}" for step in STEPS for what in ("begins", "ends")]
    there = {one.what for one in lines if one.run == run}
    return [what for what in wanted if what not in there]


def installed(lines: Iterable[Line], life: str) -> str | None:
    """The run that has left something installed of an Installation, as far as its commands know; None: nothing is."""
    left = None
    for line in lines:
        if line.life != life:
            continue
        if line.action != "uninstall":
            left = line.run
        elif line.what == "last-ends":
            left = None
    return left
