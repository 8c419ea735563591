"""One container as a local process: the bubblewrap command line, and the process that it becomes.

The container's command is PID 1 of its own PID namespace, so it gets signals as in a real pod, and everything
that it started ends with it. The sandbox ends with this kubelet (`--die-with-parent`): the kernel ties that
to the *thread* that forked, so processes are started from the event loop's thread only.
"""

import asyncio
import contextlib
import functools
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

STANDARD_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ETC = (
    "alternatives",
    "ca-certificates",
    "ca-certificates.conf",
    "gai.conf",
    "group",
    "host.conf",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "mime.types",
    "nsswitch.conf",
    "passwd",
    "protocols",
    "resolv.conf",
    "services",
    "ssl",
    "terminfo",
    "timezone",
)
CHILD = re.compile(rb'"child-pid":\s*(\d+)')
SETUP_SECONDS = 5


class SandboxMissingError(Exception):
    """bubblewrap is not installed."""


@dataclass(frozen=True)
class Bind:
    """A path of this machine that a container sees."""

    source: Path
    target: str
    read_only: bool = False


@dataclass(frozen=True)
class Container:
    """What a sandbox runs and what it sees."""

    command: Sequence[str]
    environment: Mapping[str, str]
    binds: Sequence[Bind]
    hostname: str
    uid: int = 0
    gid: int = 0
    working_dir: str = "/"
    read_only_root: bool = False


def find_bubblewrap() -> str:
    """The path of the `bwrap` program."""
    if found := shutil.which("bwrap"):
        return found
    message = "bwrap is not on the PATH: install the package bubblewrap"
    raise SandboxMissingError(message)


@functools.cache
def system() -> tuple[str, ...]:
    """The arguments that compose a container's root from this machine's system folders, read-only."""
    arguments = ["--ro-bind", "/usr", "/usr"]
    for name in ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"):
        path = Path(name)
        if path.is_symlink():
            arguments += ["--symlink", str(path.readlink()), name]
        elif path.is_dir():
            arguments += ["--ro-bind", name, name]
    arguments += ["--perms", "0755", "--dir", "/etc"]
    for name in ETC:
        source = Path(os.path.realpath(Path("/etc", name)))
        if source.exists():
            arguments += ["--ro-bind", str(source), f"/etc/{name}"]
    for name in ("/tmp", "/var/tmp", "/run", "/root", "/home"):  # noqa: S108 # in the container
        arguments += ["--perms", "1777" if name.endswith("tmp") else "0755", "--dir", name]
    return tuple(arguments)


def arguments(container: Container, *, bubblewrap: str, info: int) -> list[str]:
    """The whole command line.

    The environment is not in it: it would be readable by everyone on the machine.
    """
    line = [bubblewrap, "--die-with-parent", "--as-pid-1", "--new-session", "--info-fd", str(info)]
    line += ["--unshare-user", "--uid", str(container.uid), "--gid", str(container.gid), "--cap-drop", "ALL"]
    line += ["--unshare-pid", "--unshare-ipc", "--unshare-cgroup-try"]
    line += ["--unshare-uts", "--hostname", container.hostname[:63]]
    line += [*system(), "--proc", "/proc", "--dev", "/dev", "--ro-bind-try", "/sys", "/sys"]
    for bind in sorted(container.binds, key=lambda bind: bind.target.rstrip("/").count("/")):
        line += ["--ro-bind" if bind.read_only else "--bind", str(bind.source), bind.target]
    line += ["--dir", container.working_dir]
    if container.read_only_root:
        line += ["--remount-ro", "/"]
    return [*line, "--chdir", container.working_dir, "--", *container.command]


class Process:
    """A running sandbox. Make it on the event loop's thread."""

    def __init__(self, container: Container, *, bubblewrap: str, log: Path, fresh: bool) -> None:
        self._loop = asyncio.get_running_loop()
        self._log = log
        self._bubblewrap = bubblewrap
        self._environment = dict(container.environment)
        info, writer = os.pipe()
        if fresh:
            log.write_bytes(b"")
        with log.open("ab") as output:
            self._start = output.tell()
            self._popen = subprocess.Popen(
                arguments(container, bubblewrap=bubblewrap, info=writer),
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(writer,),
                start_new_session=True,
            )
        os.close(writer)
        self._info = info
        self._head = b""
        self._child: asyncio.Future[int | None] = self._loop.create_future()
        self._loop.add_reader(info, self._read_info)
        self._exit: asyncio.Future[int] = self._loop.create_future()
        self._watched = os.pidfd_open(self._popen.pid)
        self._loop.add_reader(self._watched, self._reap)

    def _read_info(self) -> None:
        chunk = os.read(self._info, 4096)
        self._head += chunk
        found = CHILD.search(self._head)
        if chunk and not (found and b"}" in self._head):
            return
        self._loop.remove_reader(self._info)
        os.close(self._info)
        if not self._child.done():
            pidfd = None
            with contextlib.suppress(ProcessLookupError):
                pidfd = os.pidfd_open(int(found[1])) if found else None
            self._pid = int(found[1]) if found else 0
            self._child.set_result(pidfd)

    def _reap(self) -> None:
        self._loop.remove_reader(self._watched)
        os.close(self._watched)
        code = self._popen.wait()
        self._exit.set_result(128 - code if code < 0 else code)

    async def started(self) -> None:
        """Wait until the container's command runs, or has failed to."""
        if await asyncio.shield(self._child) is None:
            return
        deadline = self._loop.time() + SETUP_SECONDS
        while not self._exit.done() and self._loop.time() < deadline:
            if self._runs_command():
                return
            await asyncio.sleep(0.005)

    async def execute(self, command: Sequence[str]) -> bool:
        """Run a command beside the container's own, and say whether it succeeded."""
        enter = ["nsenter", f"--target={self._pid}", "--user", "--preserve-credentials", "--mount", "--pid"]
        enter += ["--ipc", "--uts", "--"]
        process = await asyncio.create_subprocess_exec(
            *enter,
            *command,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            return await process.wait() == 0
        finally:
            if process.returncode is None:
                process.kill()

    def _runs_command(self) -> bool:
        """Whether the sandbox is set up, and bubblewrap has become the command."""
        try:
            return not Path(f"/proc/{self._pid}/exe").samefile(self._bubblewrap)
        except OSError:  # exited, or another user's by now
            return True

    @property
    def has_exited(self) -> bool:
        """Whether it has ended already."""
        return self._exit.done()

    async def wait(self) -> int:
        """The exit code; 128 and the number where a signal ended the command."""
        return await asyncio.shield(self._exit)

    async def send(self, number: signal.Signals) -> None:
        """Send a signal to the container's PID 1."""
        await self.started()
        pidfd = self._child.result()
        if pidfd is None or self._exit.done():
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, number)

    def close(self) -> None:
        """Let go of what was held to signal the command."""
        if self._child.done() and (pidfd := self._child.result()) is not None:
            self._child = self._loop.create_future()
            self._child.set_result(None)
            os.close(pidfd)

    def failure(self, code: int) -> str | None:
        """Why the command never ran, where bubblewrap says so; its line is taken out of the log."""
        if code != 1:
            return None
        with self._log.open("rb+") as log:
            log.seek(self._start)
            said = log.read(4096)
            if not said.startswith(b"bwrap: "):
                return None
            log.truncate(self._start)
        return said.decode(errors="replace").strip().removeprefix("bwrap: ")
