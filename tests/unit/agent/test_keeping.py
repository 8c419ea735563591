"""The copy of what a run is made from: what is packed, and what an agent takes back."""

import gzip
import hashlib
import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest
from outhaul_agent import keeping
from outhaul_agent.keeping import File, Source, TooLarge
from outhaul_agent.reasons import Reason, RunError

LIMIT = 64 * 1024


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A working directory with files of two directories, and one that is nobody's."""
    work = tmp_path / "work"
    for name, content in {"main.tf": b"x", "modules/a b/ü.tf": b"\0\xff", "run": b"#!/bin/sh\n", "own": b""}.items():
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_bytes(content)
        (work / name).chmod(0o644)
    (work / "run").chmod(0o755)
    return work


ORIGINS = {"/outhaul/source": ["main.tf", "modules/a b/ü.tf"], "/outhaul/inputs/0": ["run"], "/empty": []}


def unpacked(tmp_path: Path, data: bytes) -> Source | None:
    """Returns what an agent takes from a copy."""
    file = tmp_path / "source.tar.gz"
    file.write_bytes(data)
    return keeping.unpack(file)


def test_what_was_packed_comes_back(work: Path, tmp_path: Path) -> None:
    """Files with their directory, content and whether they are programs; variables to the byte; nothing else."""
    variables = {"TF_VAR_password": "a\n=ü " + os.fsdecode(b"\xff"), "EMPTY": ""}
    assert unpacked(tmp_path, keeping.pack(work, ORIGINS, variables, b"", LIMIT)) == Source(
        {
            "/outhaul/source": {"main.tf": File(b"x", runs=False), "modules/a b/ü.tf": File(b"\0\xff", runs=False)},
            "/outhaul/inputs/0": {"run": File(b"#!/bin/sh\n", runs=True)},
            "/empty": {},
        },
        variables,
    )


def test_equal_content_gives_equal_bytes(work: Path) -> None:
    """Whenever and in whatever order it is packed, so that it can be compared."""
    one = keeping.pack(work, ORIGINS, {"a": "1", "b": "2"}, b"", LIMIT)
    os.utime(work / "main.tf", (0, 0))
    two = keeping.pack(work, dict(reversed(ORIGINS.items())), {"b": "2", "a": "1"}, b"", LIMIT)
    assert one == two


def test_a_person_can_read_it(work: Path, tmp_path: Path) -> None:
    """Any tar lists and unpacks it."""
    (tmp_path / "copy").write_bytes(keeping.pack(work, ORIGINS, {"TF_VAR_x": "1"}, b"", LIMIT))
    listed = subprocess.run(["tar", "tzf", tmp_path / "copy"], check=True, capture_output=True, text=True)
    assert "files/%2Fouthaul%2Fsource/main.tf" in listed.stdout.splitlines()
    assert "variables/TF_VAR_x" in listed.stdout.splitlines()


def test_an_archive_comes_back_under_its_digest(work: Path, tmp_path: Path) -> None:
    """An archive is kept as it came, so that the digest that a spec gives is its own."""
    copy = unpacked(tmp_path, keeping.pack(work, {}, {}, b"archive", LIMIT))
    assert copy == Source(archives={hashlib.sha256(b"archive").hexdigest(): b"archive"})


def test_nothing_gives_no_copy(work: Path) -> None:
    """Where nothing came from outside there is nothing to keep."""
    assert keeping.pack(work, {}, {}, b"", LIMIT) == b""


def test_too_much_is_not_kept(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither more than the copy may have, nor more than may be unpacked, however well it packs."""
    (work / "main.tf").write_bytes(os.urandom(LIMIT))
    with pytest.raises(TooLarge):
        keeping.pack(work, ORIGINS, {}, b"", LIMIT)
    (work / "main.tf").write_bytes(bytes(LIMIT))
    keeping.pack(work, ORIGINS, {}, b"", LIMIT)
    monkeypatch.setattr(keeping, "MAX_SOURCE_UNPACKED_BYTES", LIMIT - 1)
    with pytest.raises(TooLarge):
        keeping.pack(work, ORIGINS, {}, b"", LIMIT)


def test_no_copy_is_none(tmp_path: Path) -> None:
    """A copy that was not mounted is none, and no mistake."""
    assert keeping.unpack(tmp_path / "missing") is None


def archive(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    """Returns a gzipped tar of anything."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as tar:
        for member, content in members:
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return data.getvalue()


def member(name: str, type_: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    """Returns a member of an archive."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname = type_, link
    return info


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"no archive", id="no gzip"),
        pytest.param(gzip.compress(b"no tar" * 1000), id="no tar"),
        pytest.param(archive((member("files/x/a"), b"a" * 5000))[:-20], id="cut"),
        pytest.param(archive((member("files/x/../../../etc/passwd"), b"")), id="out of the directory"),
        pytest.param(archive((member("/etc/passwd"), b"")), id="absolute"),
        pytest.param(archive((member("files/x/a", tarfile.SYMTYPE, "/etc/passwd"), b"")), id="link"),
        pytest.param(archive((member("files/x/a", tarfile.LNKTYPE, "files/x/b"), b"")), id="hard link"),
        pytest.param(archive((member("files/x/a", tarfile.CHRTYPE), b"")), id="device"),
        pytest.param(archive((member("other/a"), b"")), id="something else"),
        pytest.param(archive((member("variables/a/b"), b"")), id="a variable in a directory"),
        pytest.param(archive((member(f"archive/{'0' * 64}"), b"x")), id="an archive with another digest"),
        pytest.param(archive((member("files/x"), b"")), id="a file in place of a directory"),
    ],
)
def test_what_no_agent_packs_is_refused(tmp_path: Path, data: bytes) -> None:
    """A copy that somebody has spoilt or made is not taken, and nothing of it is quoted."""
    with pytest.raises(RunError, match="cannot be read") as caught:
        unpacked(tmp_path, data)
    assert caught.value.problem.reason is Reason.SOURCE_MISSING
    assert "passwd" not in caught.value.problem.message


def test_a_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more is unpacked than an agent packs, whatever the members say, and no more members."""
    bomb = archive((member("files/x/a"), bytes(10_000_000)))
    crowd = archive(*((member(f"files/x/{number}"), b"") for number in range(200)))
    monkeypatch.setattr(keeping, "_MAX_MEMBERS", 100)
    monkeypatch.setattr(keeping, "MAX_SOURCE_UNPACKED_BYTES", 1_000_000)
    for data in (bomb, crowd):
        with pytest.raises(RunError, match="cannot be read"):
            unpacked(tmp_path, data)
