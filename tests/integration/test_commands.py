"""`make demo`, `make up` and `make down` as people run them: as commands, in a directory of their own."""

import base64
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cluster.background import PROGRAMS
from cluster.processes import Identity
from cluster.stack import OPERATOR, TESTS
from cluster.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("cluster_programs")]

Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The variables of the commands; temporary directories are made where the test can look."""
    (tmp_path / "tmp").mkdir()
    return {**os.environ, "PYTHONPATH": str(TESTS), "TMPDIR": str(tmp_path / "tmp")}


@pytest.fixture
def cluster(environment: dict[str, str], tmp_path: Path) -> Iterator[Command]:
    """Runs `python -m cluster ...`; what is still running after the test is ended."""

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "cluster", *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=150, check=False)

    yield run
    run("down", "--root", str(tmp_path / "state"))


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Where `up` keeps its files."""
    return tmp_path / "state"


def test_the_demo_shows_what_it_promises(cluster: Command, tmp_path: Path) -> None:
    """It ends well, with the typed values, without the sensitive one, and Terraform destroys what it made."""
    ended = cluster("demo")
    shown = ended.stdout
    assert ended.returncode == 0, shown + ended.stderr
    values = shown.partition("== The record's values")[2].partition("\n==")[0].splitlines()
    outputs = dict(line.split(maxsplit=1) for line in values if line.startswith("  "))
    assert {name: value.split(maxsplit=2)[0] for name, value in outputs.items()} == {
        "host": "string",
        "password": "string",
        "port": "number",
        "settings": "object",
        "zones": "array",
    }
    assert outputs["port"].endswith(" 5432")
    assert outputs["zones"].endswith(' ["a", "b"]')
    assert " sensitive " in outputs["password"]
    assert " only, key password" in outputs["password"]
    for kind in ("installation", "agentaction", "installationoutput", "agentconfig"):
        assert f"\n{kind}.outhaul.dev/" in shown
    assert "connecting to shop.db.internal:5432" in shown
    assert "Superseded" in shown
    assert "connecting to shop.db.internal:6543" in shown
    assert "Destroy complete! Resources: 2 destroyed." in shown
    assert mentioning(tmp_path) == []
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_demo_that_is_broken_off_leaves_nothing(
    environment: dict[str, str], tmp_path: Path, number: signal.Signals
) -> None:
    """Ctrl-C and SIGTERM, in the middle of a run of Terraform, end every process and remove every file."""
    command = [sys.executable, "-m", "cluster", "demo"]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if "install, Running" in line:
                break
        demo.send_signal(number)
        rest = demo.stdout.read()
    assert demo.returncode == 130, rest
    assert mentioning(tmp_path) == []
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_demo_that_fails_says_so(cluster: Command, environment: dict[str, str], tmp_path: Path) -> None:
    """The exit status is not 0, and the end of the operator's log is shown."""
    broken = tmp_path / "sitecustomize.py"  # stands for any fault of the operator
    broken.write_text(
        "import os, sys\n"
        "if 'outhaul_operator' in sys.orig_argv:\n"
        "    os.write(2, b'the operator is broken today')\n"
        "    os._exit(1)\n"
    )
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), environment["PYTHONPATH"]])
    ended = cluster("demo")
    assert ended.returncode == 1
    assert "error: operator ended while it started" in ended.stderr
    assert "the operator is broken today" in ended.stderr
    assert mentioning(tmp_path) == []


def test_up_and_down(cluster: Command, state: Path) -> None:
    """`up` starts what is not running and leaves the rest; `down` stops all of it and removes its files."""
    begun = cluster("up", "--root", str(state))
    assert begun.returncode == 0, begun.stderr
    assert f"export KUBECONFIG={state}/kubeconfig" in begun.stdout
    first = pids(state)
    assert (state / "log" / "operator.log").read_text()
    kubectl = [str(Path(sys.executable).with_name("kubectl")), f"--kubeconfig={state / 'kubeconfig'}"]
    kinds = subprocess.run([*kubectl, "get", "outhaul", "-A"], capture_output=True, text=True, check=True)
    assert "No resources found" in kinds.stderr

    assert cluster("up", "--root", str(state)).returncode == 0
    assert pids(state) == first

    os.kill(first[OPERATOR], signal.SIGKILL)
    assert cluster("up", "--root", str(state)).returncode == 0
    second = pids(state)
    assert changed(first, second) == {OPERATOR}

    expire(next(state.glob("*outhaul-operator.kubeconfig")))
    renewed = cluster("up", "--root", str(state))
    assert "token has expired" in renewed.stderr
    third = pids(state)
    assert changed(second, third) == {OPERATOR}

    ended = cluster("down", "--root", str(state))
    assert ended.returncode == 0, ended.stderr
    assert not state.exists()
    assert mentioning(state) == []
    again = cluster("down", "--root", str(state))
    assert again.returncode == 0
    assert "Nothing to stop" in again.stdout


def test_up_after_a_reboot(cluster: Command, state: Path) -> None:
    """Pid files of before, whose numbers others have now, stop nobody, and what was in the cluster is still there."""
    assert cluster("up", "--root", str(state)).returncode == 0
    kubectl = [str(Path(sys.executable).with_name("kubectl")), f"--kubeconfig={state / 'kubeconfig'}"]
    subprocess.run([*kubectl, "create", "namespace", "kept"], capture_output=True, check=True)
    first = pids(state)
    for pid in first.values():
        os.kill(pid, signal.SIGKILL)
    until(lambda: not mentioning(state), what="all of it to end")
    with subprocess.Popen(["sleep", "60"]) as bystander:
        for name in PROGRAMS:
            file = state / "run" / f"{name}.json"
            content = {**json.loads(file.read_text()), "pid": bystander.pid, "boot": "before"}
            file.write_text(json.dumps(content))
            file.with_suffix(".pid").write_text(f"{bystander.pid}\n")
        assert cluster("up", "--root", str(state)).returncode == 0
        assert bystander.poll() is None
        bystander.kill()
    assert changed(first, pids(state)) == set(PROGRAMS)
    subprocess.run([*kubectl, "get", "namespace", "kept"], capture_output=True, check=True)


def test_down_removes_nothing_that_is_not_its_own(cluster: Command, tmp_path: Path) -> None:
    """A directory with other things in it stays as it is, and `up` does not use it."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "thesis.tex").write_text("years")
    for command in ("up", "down"):
        assert cluster(command, "--root", str(tmp_path / "work")).returncode == 1
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["thesis.tex"]


def pids(state: Path) -> dict[str, int]:
    """The process ids in the pid files; all of them run."""
    found = {name: int((state / "run" / f"{name}.pid").read_text()) for name in PROGRAMS}
    assert all(Identity.of(pid) for pid in found.values())
    return found


def changed(before: dict[str, int], after: dict[str, int]) -> set[str]:
    """Which programs are others now."""
    return {name for name in before if before[name] != after[name]}


def mentioning(directory: Path) -> list[str]:
    """The command lines of the processes that were told of a directory, but for the tests' own."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
        except OSError:
            continue
        if str(directory) in words and int(entry.name) != os.getpid():
            found.append(words)
    return found


def expire(kubeconfig: Path) -> None:
    """Puts a token into a kubeconfig whose time was up a minute ago."""
    claims = base64.urlsafe_b64encode(json.dumps({"exp": int(time.time()) - 60}).encode()).decode().rstrip("=")
    content = json.loads(kubeconfig.read_text())
    content["users"][0]["user"]["token"] = f"e30.{claims}.c2lnbmF0dXJl"
    kubeconfig.write_text(json.dumps(content))
