"""Many Installations change for some time while operators are killed, the API server starts again, and pods go.

On a control plane of its own. `make soak MINUTES=60` runs it for an hour and shows it as it happens; a minute is part
of `make test`. `OUTHAUL_SOAK_SEED` repeats what happens.
"""

import itertools
import os
import random
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster.controlplane import ControlPlane
from cluster.errors import NotInTime
from cluster.objects import Objects
from cluster.stack import KUBELET, Stack
from cluster.waiting import until

from soak import disturbances, ledger, verdicts
from soak.disturbances import Hand
from soak.ledger import SCRIPT
from soak.looks import Looks, Snapshot, everything, stalled
from soak.population import SOURCE, Population
from soak.replicas import GIVEN_UP, NAMES, Replicas

pytestmark = pytest.mark.slow

MINUTES = float(os.environ.get("OUTHAUL_SOAK_MINUTES", "1"))
SEED = int(os.environ.get("OUTHAUL_SOAK_SEED") or random.SystemRandom().randrange(10**6))
NAMESPACES = 3 if MINUTES > 5 else 1
"""With some thirteen Installations each."""
CHANGE_S, BIRTH_S = 6.0, 0.5
"""Between two changes, on average; and between two Installations that are made at the beginning."""
LOOK_S = 2.0
"""Between two looks, which list everything."""
STORM_S = 150.0
"""After so much time everything is left alone, comes to rest, and is looked at."""
REST_S = 600.0
"""In which everything comes to rest; it takes some twenty seconds."""
TTL_S = 5
EXPLAINED = "|".join([*GIVEN_UP, "kopf.*Request attempt #.* failed; (will retry|TCP closed; will re-authenticate)"])
"""Lines of an operator's log that speak of an API server that is away."""


@pytest.fixture
def soaked(cluster_programs: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A control plane, a node and an operator that nobody else uses."""
    plane = ControlPlane(tmp_path_factory.mktemp("soak")).start()
    try:
        running = Stack(plane, path=()).start()
        yield running
        running.stop()
    finally:
        plane.stop(forget=True)


class Soak:
    """A population, and what is done to it."""

    def __init__(self, stack: Stack, folder: Path) -> None:
        self.plane = stack.control_plane
        self.folder = folder
        self.namespaces = [prepared(self.plane, folder) for _ in range(NAMESPACES)]
        self.names = {one.namespace for one in self.namespaces}
        self.dice = random.Random(SEED)  # noqa: S311 - to be repeated, not to be kept secret
        self.population = Population(self.namespaces, self.dice)
        self.replicas = Replicas(stack)
        self.hand = Hand(stack, self.replicas)
        self.looks = Looks()
        self.schedule = disturbances.schedule(SEED)
        self.logs = verdicts.Logs([self.plane.processes.log(name) for name in NAMES], EXPLAINED)

    def storm(self, seconds: float) -> None:
        """Changes and breaks things for some time."""
        now = time.monotonic()
        end, changed, looked = now + seconds, now, now
        one = next(self.schedule)
        disturbed = now
        while (now := time.monotonic()) < end:
            self.replicas.tend()
            if now >= changed:
                self.population.change()
                changed = now + self.dice.expovariate(1 / (CHANGE_S if self.population.is_complete else BIRTH_S))
            if now >= disturbed + one.after:
                print(f"{time.strftime('%X')} {one}", flush=True)
                self.hand.carry_out(one)
                one, disturbed = next(self.schedule), time.monotonic()
            if now >= looked:
                self.look()
                looked = now + LOOK_S
            time.sleep(0.2)

    def look(self) -> None:
        """Looks at what must hold always, and at who needs a person."""
        snapshot = Snapshot(self.plane, self.names, "Installation", "AgentAction", "Pod")
        self.looks.look(snapshot)
        demand_nothing(self.looks.wrong + self.replicas.wrong)
        self.hand.delete_pods(snapshot.all("Pod"))
        installations = snapshot.named("Installation")
        for wish in self.population.wishes:
            said = stalled(installations[wish.key]) if wish.key in installations else None
            if said is None:
                continue
            run = installations[wish.key]["status"]["action"]["name"]
            if run != wish.asked_after:
                assert run in self.hand.hurt or wish.is_cancelled, f"nobody has done this to {wish.key}: {said}"
                self.population.ask_again(wish, run)

    def rest(self) -> None:
        """Leaves everything alone until it is right, and stays so."""
        self.hand.forget()
        self.replicas.go_on()
        self.population.resume()
        wrong: list[str] = []

        def is_right() -> bool:
            self.replicas.tend()
            self.look()
            wrong[:] = verdicts.unsettled(self.population.wishes, everything(self.plane, self.names))
            return not wrong

        try:
            until(is_right, what="everything is right", timeout=REST_S, interval=1)
        except NotInTime:
            raise AssertionError("\n".join(wrong)) from None
        Objects(self.plane, "default").settle()
        after = everything(self.plane, self.names)
        demand_nothing(verdicts.unsettled(self.population.wishes, after))
        demand_nothing(verdicts.broken(self.population.wishes, after, self.looks, ledger.read(self.folder)))
        demand_nothing(self.logs.wrong())
        assert self.plane.processes.find(KUBELET) is not None
        assert all(self.plane.running().values()), self.plane.running()

    def summary(self) -> str:
        """What has happened so far, in a line."""
        phases = itertools.groupby(sorted(str(one.phase) for one in self.looks.runs.values()))
        runs = {phase: len(list(those)) for phase, those in phases}
        load = " ".join(f"{one:.1f}" for one in os.getloadavg())
        return (
            f"{time.strftime('%X')} runs {len(self.looks.runs)} {runs}; changes {dict(self.population.changes)}; "
            f"disturbances {dict(self.hand.done)}; ends of operators {dict(self.replicas.ends)}; "
            f"memory {self.replicas.memory()} MiB; load {load}"
        )


def demand_nothing(wrong: list[str]) -> None:
    """Fails where anything is wrong, and says all of it."""
    if wrong:
        pytest.fail("\n".join(wrong))


def prepared(plane: ControlPlane, folder: Path) -> Objects:
    """A namespace whose runs write into a folder, and whose pods go soon."""
    name = f"soak-{uuid.uuid4().hex[:6]}"
    plane.create_namespace(name)
    objects = Objects(plane, name)
    config = {"ttlSecondsAfterFinished": TTL_S, "podTemplate": ledger.pod_template(folder)}
    objects.create("AgentConfig", "default", spec=config)
    objects.create("ConfigMap", SOURCE, data={"main.sh": SCRIPT})
    return objects


@pytest.mark.timeout(MINUTES * 60 + 1200)
def test_soak(soaked: Stack, tmp_path: Path) -> None:
    """Whatever breaks, each Installation comes to its right end, each command runs once, and nothing is left over."""
    print(f"\nOUTHAUL_SOAK_SEED={SEED}, {MINUTES:g} minutes")
    end = time.monotonic() + MINUTES * 60
    tmp_path.chmod(0o777)
    soak = Soak(soaked, tmp_path)
    while (left := end - time.monotonic()) > 0:
        soak.storm(min(STORM_S, left))
        soak.rest()
        print(soak.summary(), flush=True)
    soak.population.delete()
    soak.rest()
    assert [left for objects in soak.namespaces for left in objects.left()] == []
    print(soak.summary())
