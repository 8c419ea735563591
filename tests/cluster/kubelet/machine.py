"""What all pods of one stand-in kubelet share, and how it is set up."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cluster.kubelet.addresses import Addresses
from cluster.kubelet.api import Api
from cluster.kubelet.events import Recorder
from cluster.kubelet.sandbox import Bind
from cluster.kubelet.sources import Sources

HOST_IP = "127.0.0.1"


@dataclass(frozen=True)
class Settings:
    """How one stand-in kubelet is set up.

    `path` is searched before the system's folders, `binds` are seen read-only at their own paths, an image
    whose name contains one of `missing_images` cannot be pulled, and `entrypoints` gives the command of
    images (by a part of their name) whose pods state none.
    """

    root: Path
    node_name: str
    path: tuple[str, ...] = ()
    binds: tuple[Path, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    missing_images: tuple[str, ...] = ("does-not-exist",)
    entrypoints: Mapping[str, str] = field(default_factory=dict)
    allocatable: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)

    def is_missing(self, image: str) -> bool:
        """Whether an image cannot be pulled."""
        return any(part in image for part in self.missing_images)

    def entrypoint(self, image: str) -> list[str]:
        """The command that an image is taken to have."""
        for part, command in self.entrypoints.items():
            if part in image:
                return shlex.split(command)
        return []

    def extra_binds(self) -> list[Bind]:
        """The folders that every container sees; one that cannot be reached is left out."""
        return [Bind(path, str(path), read_only=True) for path in self.binds if _reachable(path)]


@dataclass(frozen=True)
class Machine:
    """What all pods of one kubelet share."""

    settings: Settings
    api: Api
    sources: Sources
    addresses: Addresses
    events: Recorder
    bubblewrap: str


def log_file(root: Path, namespace: str, pod: str, container: str) -> Path:
    """Where a container's output goes."""
    return root / "logs" / f"{namespace}_{pod}_{container}.log"


def _reachable(path: Path) -> bool:
    try:
        return path.exists()
    except PermissionError:
        return False
