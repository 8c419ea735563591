"""Starts the cluster's programs and makes sure that each of them ends.

A program is *attached* (it ends with the process that started it, even when that one is killed: see `leash`)
or *detached* (it stays, and is found again by its pid file). A pid file holds the number alone, for people;
the start time is in a file beside it, so a number that the kernel has given to somebody else since is never
signalled. Signals go through a pidfd, so neither is one that changes hands between the check and the signal.
"""

import atexit
import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cluster.errors import ComponentFailed

_LEASH = Path(__file__).with_name("leash.py")


@dataclass(frozen=True)
class Identity:
    """What tells one process from every other, also from a later one of the same number."""

    pid: int
    started: int
    boot: str

    @classmethod
    def of(cls, pid: int) -> "Identity | None":
        """Reads the identity of a process, None when there is none."""
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return None
        # The name, in brackets, may hold spaces and brackets itself; the start time is the 22nd field.
        started = int(stat.rpartition(")")[2].split()[19])
        return cls(pid, started, Path("/proc/sys/kernel/random/boot_id").read_text().strip())


class Process:
    """One program that was started here, or found again by its pid file."""

    def __init__(self, name: str, identity: Identity, pidfd: int, files: tuple[Path, Path], child: Any = None) -> None:
        self.name = name
        self.identity = identity
        self.log, self._pid_file = files
        self._pidfd: int | None = pidfd
        self._child: subprocess.Popen[bytes] | None = child

    @property
    def pid(self) -> int:
        """The process id."""
        return self.identity.pid

    @property
    def ours(self) -> bool:
        """Whether this very process started it."""
        return self._child is not None

    def running(self) -> bool:
        """Whether it has not ended."""
        return self._pidfd is not None and not self.wait(0)

    def wait(self, timeout: float) -> bool:
        """Waits until it has ended; False when it still runs after `timeout` seconds."""
        if self._pidfd is None:
            return True
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(timeout * 1000))

    def watched_by(self, poll: "select.poll") -> bool:
        """Adds its end to what a poll object waits for; False when it has ended."""
        if self._pidfd is None:
            return False
        poll.register(self._pidfd, select.POLLIN)
        return True

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal; nothing happens when it has ended."""
        if self._pidfd is not None and self.running():
            signal.pidfd_send_signal(self._pidfd, number)

    def stop(self, grace: float = 5.0) -> None:
        """Ends it: SIGTERM, and SIGKILL when it still runs after `grace` seconds (at once, when that is 0).

        Raises:
            ComponentFailed: it survived SIGKILL.
        """
        if grace > 0:
            self.signal(signal.SIGTERM)
        if not self.wait(grace):
            self.signal(signal.SIGKILL)
            if not self.wait(10):
                raise ComponentFailed(f"{self.name} (pid {self.pid}) does not end: look at its state in /proc")
        self.finish()

    def kill(self) -> None:
        """Ends it with SIGKILL, as a crash would."""
        self.stop(grace=0)

    def tail(self, lines: int = 20) -> str:
        """The last lines of its log."""
        return log_tail(self.log, lines)

    def finish(self) -> int | None:
        """Tidies up once it has ended: its exit status, None when another process started it."""
        status = None if self._child is None else self._child.wait()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
        if _read_identity(self._pid_file) == self.identity:
            self._pid_file.unlink(missing_ok=True)
            self._pid_file.with_suffix(".json").unlink(missing_ok=True)
        return status


class Processes:
    """The programs of one cluster, with logs and pid files below its root.

    Args:
        root: logs go to `root/log`, pid files to `root/run`.
        detached: what is started outlives this process and is ended by pid file.
    """

    def __init__(self, root: Path, *, detached: bool = False) -> None:
        self.detached = detached
        self._logs, self._runs = root / "log", root / "run"
        self._owner = os.getpid()
        self._started: dict[str, Process] = {}
        for directory in (root, self._logs, self._runs):
            directory.mkdir(parents=True, exist_ok=True)
        if not detached:
            atexit.register(self.stop_all)

    def start(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        umask: int = -1,
        group: bool = False,
    ) -> Process:
        """Starts a program, unless one of this name runs already.

        Args:
            name: names the log and the pid file.
            command: the program and its arguments.
            env: added to this process's environment.
            cwd: its working directory.
            umask: its file mode mask; -1 leaves it.
            group: what it starts itself ends with it, at once.
        """
        found = self.find(name)
        if found is not None:
            return found
        words = [str(word) for word in command]
        if not self.detached:
            end = "group" if group else str(int(signal.SIGKILL))
            words = [sys.executable, "-I", "-S", str(_LEASH), str(os.getpid()), end, *words]

        def spawn() -> subprocess.Popen[bytes]:
            with os.fdopen(os.open(self.log(name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as log:
                child = subprocess.Popen(
                    words,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **(env or {})},
                    cwd=cwd,
                    umask=umask,
                    start_new_session=True,  # Ctrl-C in the terminal is ours alone: we stop them in order
                )
            self._remember(name, child.pid, words)
            return child

        child = _in_lasting_thread(spawn)
        identity = Identity.of(child.pid)
        if identity is None:
            raise ComponentFailed(f"{name} cannot be seen in /proc: is it mounted with hidepid?")
        files = (self.log(name), self._pid_file(name))
        process = Process(name, identity, os.pidfd_open(child.pid), files, child)
        self._started[name] = process
        return process

    def find(self, name: str) -> Process | None:
        """The running program of this name, started here or by an earlier detached start."""
        known = self._started.get(name)
        if known is not None:
            if known.running():
                return known
            known.finish()
            del self._started[name]
        identity = _read_identity(self._pid_file(name))
        if identity is None:
            return None
        try:
            pidfd = os.pidfd_open(identity.pid)
        except ProcessLookupError:
            return None
        found = Process(name, identity, pidfd, (self.log(name), self._pid_file(name)))
        # Compared after the descriptor is open: from here on the number cannot change hands.
        if Identity.of(identity.pid) != identity or not found.running():
            os.close(pidfd)
            return None
        self._started[name] = found
        return found

    def stop(self, name: str, grace: float = 5.0) -> bool:
        """Ends the program of this name; False when none ran."""
        process = self.find(name)
        if process is None:
            return False
        process.stop(grace)
        del self._started[name]
        return True

    def pid(self, name: str) -> int | None:
        """The process id of the running program of this name."""
        process = self.find(name)
        return None if process is None else process.pid

    def all_run(self, timeout: float) -> bool:
        """Watches what was started here: False once one has ended, True when none does for so long."""
        poll = select.poll()
        for process in self._started.values():
            if not process.watched_by(poll):
                return False
        return not poll.poll(timeout * 1000)

    def names(self) -> list[str]:
        """Whose pid files are there, the newest first."""
        files = sorted(self._runs.glob("*.pid"), key=lambda file: file.stat().st_mtime_ns, reverse=True)
        return [file.stem for file in files]

    def stop_all(self, grace: float = 5.0) -> None:
        """Ends what was started here, and when detached what was started before as well, the newest first."""
        if os.getpid() != self._owner:
            return  # a forked copy of this object
        for name in self.names():
            started = self._started.get(name)
            if self.detached or (started is not None and started.ours):
                self.stop(name, grace)

    def log(self, name: str) -> Path:
        """Where the program of this name logs."""
        return self._logs / f"{name}.log"

    def _remember(self, name: str, pid: int, command: Sequence[str]) -> None:
        """Writes the pid file; in the thread that starts it, where no Ctrl-C comes between."""
        identity = Identity.of(pid)
        if identity is not None:
            file = self._pid_file(name)
            file.with_suffix(".json").write_text(json.dumps({**asdict(identity), "command": command}))
            file.write_text(f"{pid}\n")

    def _pid_file(self, name: str) -> Path:
        return self._runs / f"{name}.pid"


def log_tail(log: Path, lines: int = 20) -> str:
    """The last lines of a log, empty when there is none."""
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
    except FileNotFoundError:
        return ""


def _read_identity(pid_file: Path) -> Identity | None:
    try:
        content = json.loads(pid_file.with_suffix(".json").read_text())
        return Identity(int(content["pid"]), int(content["started"]), str(content["boot"]))
    except (FileNotFoundError, ValueError, KeyError):
        return None


_Job = tuple[Callable[[], "subprocess.Popen[bytes]"], "Future[subprocess.Popen[bytes]]"]
_spawner: tuple[int, "queue.SimpleQueue[_Job]"] | None = None
_spawner_lock = threading.Lock()


def _in_lasting_thread(spawn: Callable[[], "subprocess.Popen[bytes]"]) -> "subprocess.Popen[bytes]":
    """Starts a child from a thread that lasts as long as this process: its end is what the kernel watches."""
    global _spawner  # noqa: PLW0603 - one thread a process
    with _spawner_lock:
        if _spawner is None or _spawner[0] != os.getpid():
            jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
            threading.Thread(target=_spawn_forever, args=(jobs,), name="spawner", daemon=True).start()
            _spawner = (os.getpid(), jobs)
        future: Future[subprocess.Popen[bytes]] = Future()
        _spawner[1].put((spawn, future))
    return future.result()


def _spawn_forever(jobs: "queue.SimpleQueue[_Job]") -> None:
    while True:
        spawn, future = jobs.get()
        try:
            future.set_result(spawn())
        except BaseException as error:  # noqa: BLE001 - it belongs to the caller
            future.set_exception(error)
        del spawn, future
