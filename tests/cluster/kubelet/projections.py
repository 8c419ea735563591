"""Files that appear and change as one: the kubelet's layout of a directory whose `..data` link is swapped.

A reader that opens `name` follows `name -> ..data/name -> ..<time>/name` and so never sees half an update.
"""

import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

DATA = "..data"


@dataclass(frozen=True)
class File:
    """A file's content and mode."""

    content: bytes
    mode: int


def write(folder: Path, files: dict[str, File]) -> bool:
    """Make a folder hold exactly these files.

    Args:
        folder: The volume's folder; made where it does not exist.
        files: Relative paths and what is there.

    Returns:
        Whether anything changed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    link = folder / DATA
    old = folder / link.readlink() if link.is_symlink() else None
    if old is not None and _read(old) == files:
        return False
    new = Path(tempfile.mkdtemp(prefix=time.strftime("..%Y_%m_%d_%H_%M_%S."), dir=folder))
    new.chmod(0o755)
    for name, file in files.items():
        path = new / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.content)
        path.chmod(file.mode)
    fresh = folder / "..data_tmp"
    fresh.symlink_to(new.name)
    fresh.replace(link)
    visible = {name.split("/")[0] for name in files}
    for name in visible:
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"{DATA}/{name}")
    for entry in folder.iterdir():
        if not entry.name.startswith("..") and entry.name not in visible:
            entry.unlink()
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)
    return True


def _read(folder: Path) -> dict[str, File]:
    found = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            found[str(path.relative_to(folder))] = File(path.read_bytes(), path.stat().st_mode & 0o7777)
    return found
