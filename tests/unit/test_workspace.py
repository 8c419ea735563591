"""What is put into the working directory before the first command."""

import os
from pathlib import Path

import pytest
from outhaul_agent import workspace
from outhaul_agent.reasons import Reason, RunError


def prepare(work: Path, files: dict[str, bytes] | None = None, *copy_from: Path) -> None:
    """Prepares a working directory."""
    workspace.prepare(work, files=files or {}, copy_from=[str(path) for path in copy_from])


def test_files_have_sane_modes(tmp_path: Path) -> None:
    """Scripts can be run, everything can be read, whatever the umask."""
    before = os.umask(0o077)
    try:
        prepare(tmp_path / "work", {"a/b/run": b"#!/bin/sh\n", "data": b"x"})
    finally:
        os.umask(before)
    assert (tmp_path / "work" / "a" / "b" / "run").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "work" / "data").stat().st_mode & 0o777 == 0o644


def test_a_read_only_volume_becomes_writable_files(tmp_path: Path) -> None:
    """Modes of a volume are not taken over, but for what can be run; nested directories come along."""
    volume = tmp_path / "volume"
    (volume / "modules").mkdir(parents=True)
    (volume / "modules" / "main.tf").write_text("x")
    (volume / "modules" / "main.tf").chmod(0o444)
    (volume / "tool").write_bytes(b"\x7fELF")
    (volume / "tool").chmod(0o555)
    prepare(tmp_path / "work", {}, volume)
    assert (tmp_path / "work" / "modules" / "main.tf").stat().st_mode & 0o777 == 0o644
    assert (tmp_path / "work" / "tool").stat().st_mode & 0o777 == 0o755


def test_later_directories_win(tmp_path: Path) -> None:
    """Directories are copied in their order, one over the other; a link in the way is replaced, not followed."""
    one, two, work = tmp_path / "one", tmp_path / "two", tmp_path / "work"
    for directory, text in ((one, "1"), (two, "2")):
        directory.mkdir()
        (directory / "same").write_text(text)
    work.mkdir()
    (work / "same").symlink_to(tmp_path / "outside")
    prepare(work, {}, one, two)
    assert (work / "same").read_text() == "2"
    assert not (tmp_path / "outside").exists()


def test_what_is_no_file_is_left_out(tmp_path: Path) -> None:
    """Pipes and links to nowhere are not copied, and do not block."""
    volume = tmp_path / "volume"
    volume.mkdir()
    os.mkfifo(volume / "pipe")
    (volume / "nowhere").symlink_to("missing")
    (volume / "file").touch()
    prepare(tmp_path / "work", {}, volume)
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["file"]


def test_a_loop_of_links_is_an_error(tmp_path: Path) -> None:
    """A directory that contains itself is named."""
    volume = tmp_path / "volume"
    volume.mkdir()
    (volume / "loop").symlink_to(".")
    with pytest.raises(RunError, match="loop' leads to itself") as caught:
        prepare(tmp_path / "work", {}, volume)
    assert caught.value.problem.reason is Reason.INVALID_SPEC


def test_the_working_directory_is_not_copied_into_itself(tmp_path: Path) -> None:
    """A directory that the working directory is in is refused."""
    with pytest.raises(RunError, match="contains the working directory itself"):
        prepare(tmp_path / "work", {}, tmp_path)


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    """What is not mounted cannot be copied."""
    with pytest.raises(RunError, match="missing' is not a directory of the pod"):
        prepare(tmp_path / "work", {}, tmp_path / "missing")


def test_what_cannot_be_written_is_named(tmp_path: Path) -> None:
    """The path and the system's word are told."""
    with pytest.raises(RunError, match=r"a/b': (Not a directory|File exists)") as caught:
        prepare(tmp_path / "work", {"a": b"", "a/b/c": b""})
    assert caught.value.problem.reason is Reason.RUN_FAILED
