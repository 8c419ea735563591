"""Authorities are exchanged while whole runs are in flight, and none is lost."""

import base64
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from certificates import Own, own_authority
from cluster.objects import Json, Objects, script
from cluster.stack import OPERATOR, OPERATOR_NAMESPACE, Stack
from cluster.waiting import until
from outhaul_operator import keyring, trust
from outhaul_operator.authorities import SECRET_NAME

COMPONENT = Path(__file__).parents[2] / "deploy/components/own-ca"
OWN = "outhaul-own-ca"
SOON = ("--resync-seconds", "1")
ROTATE = {"metadata": {"annotations": {"outhaul.dev/rotate": "now"}}}

SOAK_RUNS = int(os.environ.get("OUTHAUL_SOAK_RUNS", "30"))
AT_ONCE = 6
SOAK_TIMEOUT = 60.0 + 5.0 * SOAK_RUNS


@pytest.fixture
def home(stack: Stack) -> Iterator[Objects]:
    """The operator's own namespace. Whatever becomes of a test, the next one has the usual operator and root."""
    namespace = Objects(stack.control_plane, OPERATOR_NAMESPACE)
    yield namespace
    stack.control_plane.processes.stop(OPERATOR, grace=10)
    # An operator that runs would make a root that lives as long as this test's options say.
    namespace.patch("Secret", SECRET_NAME, ROTATE)
    stack.start_operator()


def stored(home: Objects) -> keyring.Keyring:
    """What the operator's Secret holds."""
    return keyring.from_files(home.secret(SECRET_NAME))


def current(home: Objects) -> str:
    """The fingerprint of the authority that signs."""
    found = stored(home).current
    assert found is not None
    return found.fingerprint


def leaving(text: str) -> Json:
    """The spec of an Installation of one script, which leaves one output."""
    return script(f'{text}; printf up > "$OUTHAUL_OUTPUTS/state"')


def started(objects: Objects, name: str) -> str:
    """Waits until an Installation's run is at work; returns the fingerprint of the authority that it is under."""
    run = objects.until("Installation", name, lambda one: one.get("status", {}).get("action"), what="it has a run")
    objects.condition("AgentAction", run["name"], "Started")
    return authority_of(objects.get("Pod", run["name"]))


def authority_of(pod: Json) -> str:
    """The fingerprint of the authority that a run's pod names."""
    return str(pod["metadata"]["labels"]["outhaul.dev/authority"])


def test_a_run_in_flight_survives_an_exchange(objects: Objects, home: Objects, stack: Stack) -> None:
    """It ends under its own root, also at an operator that has started since, and that root goes after it."""
    stack.restart_operator(*SOON)
    objects.install("long", **leaving("sleep 10"))
    old = started(objects, "long")
    home.patch("Secret", SECRET_NAME, ROTATE)
    until(lambda: current(home) != old, what="another root signs, noticed without a restart or a run")
    stack.kill_operator()
    stack.start_operator(*SOON)
    objects.install("short", **leaving("true"))
    assert started(objects, "short") == current(home)
    objects.ready("short")
    objects.ready("long")
    assert objects.secret("long-outputs") == objects.secret("short-outputs") == {"state": b"up"}
    until(lambda: stored(home).formers == (), what="the former root is given up", timeout=60)


@pytest.fixture
def put(home: Objects, stack: Stack) -> Iterator[Any]:
    """Writes an authority into the Secret of `deploy/components/own-ca`, as cert-manager does; its role is applied."""
    stack.control_plane.kubectl("apply", "-f", str(COMPONENT / "role.yaml"))

    def write(own: Own) -> None:
        data = {key: base64.b64encode(value).decode() for key, value in own.files.items()}
        if home.find("Secret", OWN) is None:
            home.create("Secret", OWN, type="kubernetes.io/tls", data=data)
        else:
            home.patch("Secret", OWN, {"data": data})

    yield write
    home.delete("Secret", OWN)
    stack.control_plane.kubectl("delete", "-f", str(COMPONENT / "role.yaml"))


def test_an_authority_of_an_admin(objects: Objects, home: Objects, stack: Stack, put: Any) -> None:
    """Runs wait until it is usable and say why, start under it, and survive that cert-manager renews it."""
    put(own_authority(ends=-trust.CLOCK_SKEW))
    stack.restart_operator(*SOON, "--ca-secret", OWN)
    objects.install("long", **leaving("sleep 8"))
    run = objects.until("Installation", "long", lambda one: one.get("status", {}).get("action"), what="it has a run")
    waiting = objects.condition("AgentAction", run["name"], "Started", "False", "AuthorityUnusable")
    assert f"Secret {OPERATOR_NAMESPACE}/{OWN}: tls.crt is valid from" in waiting["message"]
    assert home.said("Secret", OWN, "Warning", "AuthorityUnusable") in waiting["message"]
    first, second = own_authority("RSA, PKCS1"), own_authority("ECDSA, SEC1")
    put(first)
    assert started(objects, "long") == trust.fingerprint(first.certificate)
    put(second)
    objects.install("short", **leaving("true"))
    assert started(objects, "short") == trust.fingerprint(second.certificate)
    objects.ready("short")
    objects.ready("long")
    ends = second.certificate.not_valid_after_utc.timestamp()
    _, metrics = stack.operator_answer("/metrics")
    (line,) = [one for one in metrics.splitlines() if one.startswith("outhaul_ca_expiry_timestamp_seconds ")]
    assert float(line.split()[1]) == ends


@pytest.fixture
def second(stack: Stack) -> Iterator[Callable[..., None]]:
    """Starts a second operator, which waits until the usual one leaves the lead to it, with these options."""
    processes = stack.control_plane.processes

    def start(*options: str) -> None:
        usual = [sys.executable, "-m", "outhaul_operator", "--agent-image", "outhaul-agent", "--http-port", "0"]
        mine = ["--kubeconfig", str(stack.operator_kubeconfig), "--operator-namespace", OPERATOR_NAMESPACE]
        processes.start("second-operator", [*usual, *mine, *options])

    yield start
    processes.stop("second-operator", grace=10)


@pytest.mark.timeout(SOAK_TIMEOUT)
def test_soak(objects: Objects, home: Objects, stack: Stack, second: Callable[..., None]) -> None:
    """Runs start and end while the root is exchanged every two seconds: none is lost.

    On the way the operator is killed and started again, and later another one takes over from it.
    `OUTHAUL_SOAK_RUNS` says how many runs.
    """
    options = (*SOON, "--root-lifetime", "3s")
    stack.restart_operator(*options)
    second(*options)
    objects.create("AgentConfig", "default", spec={"ttlSecondsAfterFinished": 5})
    began = time.monotonic()
    names = [f"run-{number}" for number in range(SOAK_RUNS)]
    waiting, roots, most_formers = iter(names), set[str](), 0
    incidents: list[tuple[float, Callable[[], object]]] = [
        (SOAK_RUNS / 3, lambda: restarted(stack, *options)),
        (SOAK_RUNS * 2 / 3, lambda: stack.control_plane.processes.stop(OPERATOR, grace=10)),
    ]
    while True:
        phases = {one["metadata"]["name"]: one.get("status", {}).get("phase") for one in objects.all("AgentAction")}
        over = {name for name, phase in phases.items() if phase in {"Succeeded", "Failed", "Cancelled"}}
        for name in itertools.islice(waiting, AT_ONCE - len(phases.keys() - over)):
            objects.create("AgentAction", name, spec=counted(name))
        roots |= {authority_of(pod) for pod in objects.all("Pod")}
        most_formers = max(most_formers, len(stored(home).formers))
        if incidents and len(over) >= incidents[0][0]:
            incidents.pop(0)[1]()
        if len(over) == SOAK_RUNS:
            break
        time.sleep(0.5)
    took = time.monotonic() - began
    print(f"{SOAK_RUNS} runs in {took:.0f} s under {len(roots)} roots, at most {most_formers} former ones kept")
    assert {name: phases[name] for name in names if phases[name] != "Succeeded"} == {}
    for name in names:
        assert objects.secret(f"{name}-outputs") == {"name": name.encode()}
    assert len(roots) >= 3
    until(lambda: len(stored(home).formers) <= 1, what="former roots are given up", timeout=60)


def restarted(stack: Stack, *options: str) -> None:
    """Kills the operator and starts it again."""
    stack.kill_operator()
    stack.start_operator(*options)


def counted(name: str) -> Json:
    """The spec of a run that takes a second and leaves its own name."""
    command = {"name": "main", "command": ["sh", "-c", f'sleep 1; printf {name} > "$OUTHAUL_OUTPUTS/name"']}
    return {"commands": [command], "outputs": [{"directory": {"path": "/outhaul/outputs"}}]}
