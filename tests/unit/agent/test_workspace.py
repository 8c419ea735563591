"""What is put into the working directory before the first command."""

import os
from pathlib import Path

import pytest
from outhaul_agent import workspace
from outhaul_agent.keeping import File
from outhaul_agent.reasons import Reason, RunError


def prepare(work: Path, files: dict[str, bytes] | None = None, *copy_from: Path) -> None:
    """Prepares a working directory."""
    workspace.prepare(work, "", files=files or {}, copy_from=[str(path) for path in copy_from])


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
    (tmp_path / "work").touch()
    with pytest.raises(RunError, match=r"work': (Not a directory|File exists)") as caught:
        prepare(tmp_path / "work")
    assert caught.value.problem.reason is Reason.RUN_FAILED


def test_each_file_has_one_origin(tmp_path: Path) -> None:
    """Of each directory it is told which files came from it, without those that another, or a file, has replaced."""
    one, two = tmp_path / "one", tmp_path / "two"
    for directory, names in ((one, ("a", "b", "sub/c")), (two, ("b", "d"))):
        for name in names:
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).touch()
    (tmp_path / "three").mkdir()
    sources = [str(tmp_path / name) for name in ("one", "two", "three")]
    origins = workspace.prepare(tmp_path / "work", "", files={"./d": b"", "e": b""}, copy_from=sources)
    assert origins == dict(zip(sources, (["a", "sub/c"], ["b"], []), strict=True))


def test_what_was_kept_stands_in_for_an_empty_directory(tmp_path: Path) -> None:
    """Only for a directory without any file; programs can be run, and the files count as the directory's."""
    full, empty, work = tmp_path / "full", tmp_path / "empty", tmp_path / "work"
    for directory in (full, empty):
        directory.mkdir()
    (full / "now").touch()
    kept = {
        str(full): {"then": File(b"", runs=False)},
        str(empty): {"sub/main.tf": File(b"x", runs=False), "tool": File(b"\x7fELF", runs=True)},
    }
    origins = workspace.prepare(work, "", files={}, copy_from=[str(full), str(empty)], kept=kept, required=[str(empty)])
    assert origins == {str(full): ["now"], str(empty): ["sub/main.tf", "tool"]}
    assert (work / "sub" / "main.tf").read_bytes() == b"x"
    assert (work / "tool").stat().st_mode & 0o777 == 0o755
    assert not (work / "then").exists()


def test_a_source_that_is_gone_and_was_not_kept_ends_the_run(tmp_path: Path) -> None:
    """Nothing is run without what is required; what is not may be missing."""
    empty = tmp_path / "empty"
    empty.mkdir()
    prepare(tmp_path / "work", {}, empty)
    with pytest.raises(RunError, match=r"the source is gone.*empty' is empty") as caught:
        workspace.prepare(tmp_path / "work", "", files={}, copy_from=[str(empty)], required=[str(empty)])
    assert caught.value.problem.reason is Reason.SOURCE_MISSING


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    """What is in another's way is named, whichever of them comes first."""
    for name, files in (("one", {"a": b"", "a/b": b""}), ("other", {"a/b/c": b"", "a/b": b""})):
        with pytest.raises(RunError, match=r"'a(/b)?' cannot be a (directory: a file|file: a directory) is ") as caught:
            prepare(tmp_path / name, dict(files))
        assert caught.value.problem.reason is Reason.BAD_SOURCE


def test_no_file_is_written_through_a_link(tmp_path: Path) -> None:
    """A link to a directory that is there already is not followed, neither for files nor for volumes."""
    work, outside, volume = tmp_path / "work", tmp_path / "outside", tmp_path / "volume"
    for directory in (work, outside, volume / "out"):
        directory.mkdir(parents=True)
    (volume / "out" / "file").touch()
    (work / "out").symlink_to(outside)
    for files, volumes in (({"out/file": b""}, []), ({}, [volume])):
        with pytest.raises(RunError, match="'out' cannot be a directory: a link is there") as caught:
            prepare(work, files, *volumes)
        assert caught.value.problem.reason is Reason.BAD_SOURCE
    assert list(outside.iterdir()) == []
