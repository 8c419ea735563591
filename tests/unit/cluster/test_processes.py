"""The programs of the test cluster end when they should, and nobody else's do."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import packages
from cluster.errors import CommandFailed, PackagesMissing
from cluster.processes import Identity, Processes
from cluster.progress import follow
from cluster.waiting import until

SLEEP = ["sleep", "300"]


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    """A place for programs, empty again after the test."""
    place = Processes(tmp_path)
    yield place
    place.stop_all(grace=0)


def test_a_second_start_finds_the_first(processes: Processes) -> None:
    """A name is one running program."""
    assert processes.start("one", SLEEP).pid == processes.start("one", SLEEP).pid


def test_a_pid_file_holds_the_pid(processes: Processes, tmp_path: Path) -> None:
    """It is there for `kill $(cat ...)` as long as the program runs, and gone with it."""
    program = processes.start("one", SLEEP)
    assert (tmp_path / "run" / "one.pid").read_text() == f"{program.pid}\n"
    program.stop()
    assert list((tmp_path / "run").iterdir()) == []


def test_output_is_in_the_log(processes: Processes) -> None:
    """Both outputs of a program are in its log, and its exit status is known."""
    program = processes.start("one", ["sh", "-c", "echo out; echo err >&2; exit 3"])
    assert program.wait(10)
    assert program.finish() == 3
    assert program.tail() == "out\nerr"


def test_one_that_ended_by_itself_is_started_again(processes: Processes) -> None:
    """What has crashed does not count as running."""
    first = processes.start("one", SLEEP)
    os.kill(first.pid, signal.SIGKILL)
    assert first.wait(10)
    assert processes.find("one") is None
    assert processes.start("one", SLEEP).pid != first.pid


def test_who_ignores_sigterm_is_killed(processes: Processes) -> None:
    """SIGKILL follows when the grace period is over."""
    program = processes.start("deaf", ["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done"])
    until(program.tail, what="the trap")
    program.stop(grace=0.2)
    assert not program.running()


def test_a_stale_pid_file_harms_nobody(tmp_path: Path) -> None:
    """A pid that was given to another process since is neither found nor ended."""
    place = Processes(tmp_path, detached=True)
    with subprocess.Popen(SLEEP) as bystander:
        identity = Identity.of(bystander.pid)
        assert identity is not None
        content = {"pid": identity.pid, "started": identity.started - 1, "boot": identity.boot}
        (tmp_path / "run" / "one.json").write_text(json.dumps(content))
        (tmp_path / "run" / "one.pid").write_text(f"{identity.pid}\n")
        assert place.find("one") is None
        assert not place.stop("one")
        place.stop_all()
        assert bystander.poll() is None
        bystander.kill()


def test_a_detached_program_is_found_by_another_process(tmp_path: Path) -> None:
    """Start and stop may be in different processes."""
    code = "import sys; from pathlib import Path; from cluster.processes import Processes; "
    code += "print(Processes(Path(sys.argv[1]), detached=True).start('one', ['sleep', '300']).pid)"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", code, str(tmp_path)]
    pid = int(subprocess.run(command, env=environment, check=True, capture_output=True).stdout)
    place = Processes(tmp_path, detached=True)
    assert place.pid("one") == pid
    assert place.stop("one")
    assert place.find("one") is None


def test_what_a_group_has_started_ends_with_it(processes: Processes, tmp_path: Path) -> None:
    """A build's own children do not stay behind."""
    script = f"sleep 300 & echo $! > {tmp_path}/child; wait"
    program = processes.start("make", ["sh", "-c", script], group=True)
    child = int(until(lambda: read(tmp_path / "child"), what="the child"))
    program.stop()
    until(lambda: Identity.of(child) is None or zombie(child), what="the child to end", timeout=30)


def test_a_failed_command_is_quoted(processes: Processes) -> None:
    """The error of a command that is followed to its end carries its output."""
    with pytest.raises(CommandFailed, match=r"(?s)trying: it returned 2; .*no such luck"):
        follow(processes.start("one", ["sh", "-c", "echo no such luck; exit 2"]), "trying")


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who may not install is told what to run."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(PackagesMissing, match=r"no-such-command \(package nothing\).*apt-get"):
        packages.ensure({"no-such-command": "nothing", "sh": "dash"})


def test_nothing_is_installed_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that is found needs no package and no root."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    packages.ensure({"sh": "dash"})


def read(path: Path) -> str:
    """A file's content, empty while it is not there."""
    return path.read_text().strip() if path.exists() else ""


def zombie(pid: int) -> bool:
    """Whether a process has ended and only waits for its parent to look."""
    stat = Path("/proc") / str(pid) / "stat"
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"
