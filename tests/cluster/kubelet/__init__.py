"""A stand-in kubelet: a real API server's pods, run as local processes in bubblewrap sandboxes.

Pods get loopback addresses of their own; volumes, signals and exit codes are real. Images are not: every
container sees this machine's system folders, read-only. It binds pods too, because no scheduler runs beside
it.

`StandInKubelet` runs it as a process of its own for tests; `python -m cluster.kubelet` does so by hand.
"""

import asyncio
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

TESTS = Path(__file__).resolve().parents[2]
REPOSITORY = TESTS.parent
SOURCES = ("api", "agent", "operator")
READY_SECONDS = 60.0
STOP_SECONDS = 15.0


class KubeletFailedError(Exception):
    """The stand-in kubelet did not become ready."""


class StandInKubelet:
    """A stand-in kubelet in a process of its own; ready when entered, ended when left.

    Args:
        kubeconfig: How to reach the API server, as an administrator.
        root: Its folder: logs in `logs/<namespace>_<pod>_<container>.log`, its own in `kubelet.log`.
        node_name: The node's name.
        path: Folders that containers search for programs before the system's.
        binds: More folders that containers see, read-only, at their own paths.
        env: More variables for every container.
        missing_images: Parts of names of images that cannot be pulled, beside `does-not-exist`.
        entrypoints: The command of images, by a part of their name, for containers that state none.
        allocatable: What pods may request, where it should be other than plenty.
        labels: More labels of the node.
        python: The command that starts Python, where it should be another, or another user's.
    """

    def __init__(
        self,
        kubeconfig: Path,
        root: Path,
        node_name: str = "stand-in",
        *,
        path: Sequence[str | Path] | None = None,
        binds: Sequence[str | Path] = (),
        env: Mapping[str, str] | None = None,
        missing_images: Sequence[str] = (),
        entrypoints: Mapping[str, str] | None = None,
        allocatable: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        python: Sequence[str] = (sys.executable,),
    ) -> None:
        self.root = root
        self.node_name = node_name
        self._python = list(python)
        self._process: subprocess.Popen[bytes] | None = None
        self._ready: int = -1
        own = [Path(sys.prefix), Path(sys.base_prefix), *(REPOSITORY / name for name in SOURCES)]
        bound = [folder for folder in own if not folder.is_relative_to("/usr") and folder.is_dir()]
        search = [Path(sys.prefix, "bin")] if path is None else path
        self._arguments = ["--kubeconfig", str(kubeconfig), "--root", str(root), "--node-name", node_name]
        for flag, values in (
            ("--path", search),
            ("--bind", [*bound, *binds]),
            ("--missing-image", missing_images),
        ):
            self._arguments += [word for value in values for word in (flag, str(value))]
        for flag, pairs in (
            ("--env", env),
            ("--entrypoint", entrypoints),
            ("--allocatable", allocatable),
            ("--label", labels),
        ):
            for name, value in (pairs or {}).items():
                self._arguments += [flag, f"{name}={value}"]

    @property
    def command(self) -> list[str]:
        """The command that runs it, for whoever starts and stops it otherwise; needs `tests` on PYTHONPATH."""
        return [*self._python, "-m", "cluster.kubelet", *self._arguments]

    @property
    def pid(self) -> int:
        """The kubelet's process id."""
        if self._process is None:
            message = "the stand-in kubelet is not running"
            raise RuntimeError(message)
        return self._process.pid

    def log(self, namespace: str, pod: str, container: str) -> str:
        """What a container has printed so far."""
        file = self.root / "logs" / f"{namespace}_{pod}_{container}.log"
        return file.read_text(errors="replace") if file.exists() else ""

    def start(self) -> None:
        """Start it and wait until its node is ready."""
        self._launch()
        self._await_ready()

    def stop(self) -> None:
        """End it, and every sandbox with it."""
        if self._process is None:
            return
        process, self._process = self._process, None
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdin:
            process.stdin.close()

    def kill(self) -> None:
        """End it as a crash would."""
        if self._process:
            self._process.kill()
            self._process.wait()
            self.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        self._launch()
        await asyncio.to_thread(self._await_ready)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.stop)

    def _launch(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        self._ready, writer = os.pipe()
        search = [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
        flags = ["--ready-fd", str(writer), "--until-stdin-closes"]
        with (self.root / "kubelet.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self.command, *flags],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(search)},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=(writer,),
                start_new_session=True,
            )
        os.close(writer)

    def _await_ready(self) -> None:
        deadline = time.monotonic() + READY_SECONDS
        try:
            while (left := deadline - time.monotonic()) > 0:
                if select.select([self._ready], [], [], left)[0]:
                    if os.read(self._ready, 16):
                        return
                    break
        finally:
            os.close(self._ready)
        self.stop()
        said = (self.root / "kubelet.log").read_text(errors="replace")[-2000:]
        message = f"the stand-in kubelet did not become ready: {said}"
        raise KubeletFailedError(message)
