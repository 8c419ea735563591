"""Archives are unpacked whole, and whatever is in one, nothing outside the working directory changes."""

import gzip
import io
import os
import stat
import tarfile
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from archives import member, packed, tar
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from outhaul_agent.tarballs import BadArchive, Limits, unpack
from outhaul_agent.trees import Tree

DIRECTORY, SYMLINK, HARD_LINK = tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE
fuzz = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def unpacked(work: Path, data: bytes, limits: Limits | None = None) -> dict[str, str]:
    """Unpacks an archive, and returns what it made: the content of files, and where links lead, by path."""
    work.mkdir(exist_ok=True)
    with Tree(work) as tree:
        unpack(io.BytesIO(data), tree, limits or Limits())
    found = {}
    for path in sorted(work.rglob("*")):
        if path.is_symlink():
            found[str(path.relative_to(work))] = f"-> {path.readlink()}"
        elif path.is_file():
            found[str(path.relative_to(work))] = path.read_text()
    return found


def refused(work: Path, data: bytes, limits: Limits | None = None) -> str:
    """Returns why an archive is refused."""
    with pytest.raises(BadArchive) as caught:
        unpacked(work, data, limits)
    return str(caught.value)


# -- what is unpacked


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_the_usual_formats(tmp_path: Path, form: int) -> None:
    """Files, directories, links within and hard links come out as they were, in each format that tar writes."""
    made = unpacked(
        tmp_path / "work",
        packed(
            tar(
                member("./", DIRECTORY),
                member("module/", DIRECTORY),
                (member("module/main.tf"), b"# code"),
                (member("./module//deep/er/empty"), b""),
                member("module/up", SYMLINK, target="../module/main.tf"),
                member("module/deep/root", SYMLINK, target="../.."),
                member("later", SYMLINK, target="./module/not-yet"),
                member("same", HARD_LINK, target="./module/main.tf"),
                form=form,
            )
        ),
    )
    assert made == {
        "module/main.tf": "# code",
        "module/deep/er/empty": "",
        "module/up": "-> ../module/main.tf",
        "module/deep/root": "-> ../..",
        "later": "-> module/not-yet",
        "same": "# code",
    }


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_and_foreign_names(tmp_path: Path, form: int) -> None:
    """Names and targets that need an extended header come out whole."""
    name, target = "ü" * 100 + "/" + "n" * 200, "t" * 200
    made = unpacked(
        tmp_path / "work", packed(tar((member(name), b"1"), member("l", SYMLINK, target=target), form=form))
    )
    assert made == {name: "1", "l": f"-> {target}"}


def test_what_git_makes(tmp_path: Path) -> None:
    """A global header with a commit, as `git archive` writes it, is no member."""
    buffer = io.BytesIO()
    headers = {"comment": "0123456789abcdef"}
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT, pax_headers=headers) as archive:
        archive.addfile(member("repository-1.0/", DIRECTORY))
    assert unpacked(tmp_path / "work", packed(buffer.getvalue())) == {}
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["repository-1.0"]


def test_modes_are_sane(tmp_path: Path) -> None:
    """What can be run stays so; nothing is set-uid, writable for others, or not to be removed, whatever the umask."""
    before = os.umask(0o077)
    try:
        unpacked(
            tmp_path / "work",
            packed(
                tar(
                    member("d", DIRECTORY, mode=0o7000),
                    (member("d/tool", mode=0o6777), b"\x7fELF"),
                    (member("d/data", mode=0o666), b"x"),
                    (member("d/none", mode=0), b"x"),
                    (member("d/script", mode=0o600), b"#!/bin/sh\n"),
                    (member("implied/data"), b"x"),
                )
            ),
        )
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "work").rglob("*")}
    assert modes == {
        "d": 0o755,
        "tool": 0o755,
        "data": 0o644,
        "none": 0o644,
        "script": 0o755,
        "implied": 0o755,
    }


def test_several_gzip_members_and_padding(tmp_path: Path) -> None:
    """Archives that were compressed in pieces, or have something after their end, are fine."""
    data = tar((member("a"), b"1" * 2000), (member("b"), b"2"))
    pieces = packed(data[:700]) + packed(data[700:])
    assert set(unpacked(tmp_path / "pieces", pieces)) == {"a", "b"}
    assert set(unpacked(tmp_path / "padded", packed(data) + b"\0" * 512)) == {"a", "b"}


def test_former_files_are_replaced(tmp_path: Path) -> None:
    """A volume that has the files of a former run gets the new ones; a link in the way is replaced, not followed."""
    work, outside = tmp_path / "work", tmp_path / "outside"
    work.mkdir()
    (work / "file").write_text("old")
    (work / "file").chmod(0o400)
    (work / "link").symlink_to(outside)
    assert unpacked(work, packed(tar((member("file"), b"new"), (member("link"), b"new")))) == {
        "file": "new",
        "link": "new",
    }
    assert not outside.exists()


# -- what is refused


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ([member("/etc/passwd")], "'/etc/passwd' is no relative path"),
        ([member("../x")], "'../x' has '..'"),
        ([member("a/../../x")], "'a/../../x' has '..'"),
        ([member("a/..", DIRECTORY)], "'a/..' has '..'"),
        ([member("a\nb")], r"'a\nb' has a control character"),
        ([member("\x1b[2J")], r"'\x1b[2J' has a control character"),
        ([member("a\udcff")], "is no text in UTF-8"),
        ([member("a/" * 600 + "b")], "has more than 1024 bytes"),
        ([member("n" * 256)], "has a name of more than 255 bytes"),
        ([member("./")], "'./' has no name"),
        ([member("a", SYMLINK, target="/etc")], "'a' is a link that may lead out of the archive, to '/etc'"),
        ([member("a", SYMLINK, target="..")], "may lead out of the archive, to '..'"),
        ([member("d/a", SYMLINK, target="../../x")], "may lead out of the archive, to '../../x'"),
        ([member("a", SYMLINK, target="b/../../x")], "may lead out of the archive"),
        # Lexically within: `up` is the root, and so is what its `..` is not.
        ([member("d/up", SYMLINK, target=".."), member("d/a", SYMLINK, target="up/../x")], "to 'up/../x'"),
        ([member("a", SYMLINK, target="x\ny")], r"to 'x\ny'"),
        ([member("a", SYMLINK, target="x" * 2000)], "may lead out of the archive"),
        ([member("a", SYMLINK)], "may lead out of the archive, to ''"),
        ([member(".", SYMLINK, target="x")], "'.' has no name"),
        ([member("a", SYMLINK, target="b"), member("a/f")], "'a' cannot be a directory: a link is there"),
        ([member("a", SYMLINK, target="b"), member("a", DIRECTORY)], "'a' cannot be a directory: a link is there"),
        ([member("a"), member("a/f")], "'a' cannot be a directory: a file is there"),
        ([member("a/f"), member("a")], "'a' cannot be a file: a directory is there"),
        ([member("a"), member("./a")], "'./a' is there twice"),
        ([member("a", SYMLINK, target="b"), member("a")], "'a' is there twice"),
        ([member("a", HARD_LINK, target="../outside")], "'../outside' has '..'"),
        ([member("a", HARD_LINK, target="/etc/passwd")], "'/etc/passwd' is no relative path"),
        ([member("a", HARD_LINK, target="b"), member("b")], "is a hard link to 'b', no file before it"),
        ([member("l", SYMLINK, target="x"), member("d/a", HARD_LINK, target="l")], "to 'l', no file before it"),
        ([member("d", DIRECTORY), member("a", HARD_LINK, target="d")], "to 'd', no file before it"),
        ([member("a", tarfile.FIFOTYPE)], "'a' is neither file nor directory nor link"),
        ([member("a", tarfile.CHRTYPE)], "'a' is neither file nor directory nor link"),
        ([member("a", tarfile.BLKTYPE)], "'a' is neither file nor directory nor link"),
        ([member("a", b"V")], "'a' is neither file nor directory nor link"),
        ([member("a", tarfile.GNUTYPE_SPARSE)], "'a' is a sparse file, which is not supported"),
        ([], "there is nothing in it"),
    ],
)
def test_members_that_are_refused(tmp_path: Path, members: list[tarfile.TarInfo], words: str) -> None:
    """A member that could reach out of the working directory, or is no file, is refused by its name."""
    sentinel = tmp_path / "outside"
    sentinel.write_text("untouched")
    assert words in refused(tmp_path / "work", packed(tar(*members)))
    assert sentinel.read_text() == "untouched"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["outside", "work"]


def test_a_link_of_a_former_run_is_not_followed(tmp_path: Path) -> None:
    """A link that is there already and leads out is in the way of what would go through it."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "a").symlink_to(tmp_path / "outside")
    words = refused(tmp_path / "work", packed(tar((member("a/file"), b"x"))))
    assert words == "its member 'a' cannot be a directory: a link is there"
    assert list((tmp_path / "outside").iterdir()) == []


def extended(kind: bytes, records: bytes, size: int | None = None) -> bytes:
    """Returns an extended header with these records, which says that it has `size` bytes, before a file."""
    header = member("x", kind)
    header.size = len(records) if size is None else size
    padding = b"\0" * (-len(records) % 512)
    return header.tobuf(tarfile.USTAR_FORMAT) + records + padding + tar((member("file"), b"x"))


def sized(size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    """Returns a header that claims this size, and nothing after it."""
    header = member("file", kind)
    header.size = size
    return header.tobuf(tarfile.GNU_FORMAT)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "there is nothing in it"),
        (b"no gzip at all", "it is no gzip, or damaged"),
        (b"PK\x03\x04" * 200, "it is no gzip, or damaged"),
        (b"\x1f\x8b\x08\0" + b"\0" * 6 + b"nonsense" * 100, "compressed data is damaged"),
        (packed(b"<html>" * 200), "what is in it is no tar"),
        (packed(b"short"), "it ends too early"),
        (packed(b""), "there is nothing in it"),
        (packed(b"\0" * 1024), "there is nothing in it"),
        (packed(tar((member("a"), os.urandom(5000))))[:2000], "it ends too early"),
        (packed(tar((member("a"), b"x" * 5000))[:2000]), "it ends too early"),
        (packed(tar(member("a"))[:512] + b"x" * 512), "one of its headers is damaged"),
        (packed(sized(-1)), "one of its headers is damaged"),
        (packed(sized(2**62)), "it has more than 2,147,483,648 bytes once it is unpacked"),
        (packed(sized(2**33, tarfile.XHDTYPE)), "an extended header of 8,589,934,592 bytes, more than 1,048,576"),
        (packed(sized(2**33, tarfile.GNUTYPE_LONGNAME)), "an extended header of 8,589,934,592 bytes"),
        (packed(extended(tarfile.XHDTYPE, b"11 path=a\n")), "an extended header is damaged"),
        (packed(extended(tarfile.XHDTYPE, b"0 path=a\n")), "an extended header is damaged"),
        (packed(extended(tarfile.XHDTYPE, b"9" * 400)), "an extended header is damaged"),
        (packed(extended(tarfile.XHDTYPE, b"x path=a\n")), "an extended header is damaged"),
        (packed(extended(tarfile.XHDTYPE, b"9 patha\n\n")), "an extended header is damaged"),
        (packed(extended(tarfile.XHDTYPE, b"11 size=-1\n")), "an extended header is damaged"),
        (packed(extended(tarfile.XHDTYPE, b"33 size=999999999999999999999999\n")), "an extended header is damaged"),
        (packed(extended(tarfile.XHDTYPE, b"25 size=9999999999999999\n")), "it has more than"),
        (packed(extended(tarfile.XHDTYPE, b"11 path=/a\n")), "'/a' is no relative path"),
        (packed(extended(tarfile.XHDTYPE, b"12 path=a\0b\n")), r"'a\x00b' has a control character"),
        (packed(extended(tarfile.XHDTYPE, b"9 path=\xff\n"[:-1] + b"\n")), "is no text in UTF-8"),
        (packed(extended(tarfile.XHDTYPE, b"22 GNU.sparse.major=1\n")), "is a sparse file"),
        (packed(extended(tarfile.XGLTYPE, b"10 path=a\n")), "its global header sets path for all members"),
        (packed(extended(tarfile.XGLTYPE, b"10 size=1\n")), "its global header sets size for all members"),
        (packed(extended(tarfile.GNUTYPE_LONGNAME, b"../../x\0")), "'../../x' has '..'"),
    ],
)
def test_damage_is_told(tmp_path: Path, data: bytes, words: str) -> None:
    """What is no tar.gz, is cut off, or claims what is not so, is refused, and no number of it is believed."""
    assert words in refused(tmp_path / "work", data)


def test_a_size_from_an_extended_header_counts(tmp_path: Path) -> None:
    """Where header and extended header differ, the extended one is right, as for every tar."""
    data = extended(tarfile.XHDTYPE, b"9 size=0\n")
    assert "damaged" in refused(tmp_path / "work", packed(data))
    assert (tmp_path / "work" / "file").read_bytes() == b""


# -- bombs


def test_a_bomb_stops_at_the_limit(tmp_path: Path) -> None:
    """Bytes are counted as they come out, and no more than the limit is written."""
    limits = Limits(unpacked=100_000)
    many = packed(tar(*((member(str(number)), b"\0" * 20_000) for number in range(50))))
    assert len(many) < 20_000
    assert "it has more than 100,000 bytes once it is unpacked" in refused(tmp_path / "work", many, limits)
    assert sum(path.stat().st_size for path in (tmp_path / "work").iterdir()) <= 100_000


def test_a_bomb_of_headers_stops_at_the_limit(tmp_path: Path) -> None:
    """Headers that make nothing count as well, also after another gzip member."""
    records = b"16 comment=" + b"x" * 4 + b"\n"
    data = extended(tarfile.XHDTYPE, records)[:1024] * 500
    words = refused(tmp_path / "work", packed(data[:100_352]) + packed(data[100_352:]), Limits(unpacked=200_000))
    assert "it has more than 200,000 bytes" in words


@pytest.mark.parametrize(
    "members",
    [
        [member(str(number)) for number in range(20)],
        [member(f"{number}/" * 9 + "a") for number in range(2)],
        [member("a"), *(member(f"l{number}", HARD_LINK, target="a") for number in range(20))],
        [member(f"l{number}", SYMLINK, target="a") for number in range(20)],
    ],
)
def test_too_many_files(tmp_path: Path, members: list[tarfile.TarInfo]) -> None:
    """Files, links and directories are counted, those among them that only a path implies."""
    words = refused(tmp_path / "work", packed(tar(*members)), Limits(files=10))
    assert words == "it has more than 10 files and directories"
    assert len(list((tmp_path / "work").rglob("*"))) <= 20


# -- whatever it is


def everything(root: Path) -> dict[str, tuple[int, bytes | str]]:
    """Mode and content of all that is below a directory but in `work`."""
    found: dict[str, tuple[int, bytes | str]] = {}
    for path in root.rglob("*"):
        relative = str(path.relative_to(root))
        if relative.split("/", maxsplit=1)[0] == "work":
            continue
        mode = path.lstat().st_mode
        content: bytes | str = ""
        if stat.S_ISREG(mode):
            content = path.read_bytes()
        elif stat.S_ISLNK(mode):
            content = str(path.readlink())
        found[relative] = mode, content
    return found


PARTS = st.sampled_from(["a", "b", "c", "A", "..", ".", "", "outside", "sentinel", "old", "work", "a\n"])
WILD = st.lists(PARTS, min_size=1, max_size=4).map("/".join) | st.sampled_from(["/", "/usr", "a" * 300, "\udcff"])
# Mostly what is no reason to stop, so that later members meet what earlier ones have made.
USUAL = st.sampled_from(["a", "b", "c/a", "c/b", "d/a", "d/e/b", "old", "oldfile", "old/sentinel", "old/new", "b/a"])
NAMES = st.integers(0, 9).flatmap(lambda number: USUAL if number else WILD)
TARGETS = USUAL | WILD | st.lists(st.sampled_from(["..", "..", "a", "b"]), min_size=1, max_size=4).map("/".join)
FILE = tarfile.REGTYPE
TYPES = st.sampled_from([FILE, FILE, FILE, SYMLINK, SYMLINK, DIRECTORY, HARD_LINK, tarfile.FIFOTYPE])
MEMBERS = st.lists(
    st.builds(
        lambda name, type_, target, mode: member(name, type_, target=target, mode=mode),
        NAMES,
        TYPES,
        TARGETS,
        st.integers(0, 0o7777),
    ),
    max_size=6,
)
FORMATS = st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])


def check_unpacking(data: bytes) -> None:
    """Unpacks into a directory with links of a former run, and checks what is there then, within and outside."""
    with TemporaryDirectory() as directory:
        root = Path(directory).resolve()
        work, outside = root / "work", root / "outside"
        for made in (work, outside, work / "c"):
            made.mkdir()
        (outside / "sentinel").write_text("untouched")
        (work / "old").symlink_to("../outside")
        (work / "oldfile").symlink_to(outside / "sentinel")
        before = everything(root)
        with suppress(BadArchive), Tree(work) as tree:
            unpack(io.BytesIO(data), tree, Limits(unpacked=1_000_000, files=100))
        assert everything(root) == before
        for path in work.rglob("*"):
            check_made(path, work)


def check_made(path: Path, work: Path) -> None:
    """What is within is a file, a directory, or a link that stays within unless a former run's link led out."""
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        real = Path(os.path.realpath(path))
        outside = work.parent / "outside"
        assert real.is_relative_to(work) or any(
            former.is_symlink() and real.is_relative_to(outside) for former in (work / "old", work / "oldfile")
        )
    else:
        assert stat.S_ISREG(mode) or stat.S_ISDIR(mode)
        assert stat.S_IMODE(mode) in {0o644, 0o755}


@fuzz
@given(MEMBERS, FORMATS)
def test_no_members_reach_outside(members: list[tarfile.TarInfo], form: int) -> None:
    """Whatever members an archive has, in whatever order, nothing changes outside, and what is made is harmless."""
    with_content = [(one, b"x") if one.type == FILE else one for one in members]
    check_unpacking(packed(tar(*with_content, form=form)))


VALID = tar(
    member("d/", DIRECTORY),
    (member("d/file"), b"x" * 600),
    member("d/link", SYMLINK, target="file"),
    (member("n" * 120), b"long"),
    member("d/hard", HARD_LINK, target="d/file"),
)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A valid tar with bytes changed, headers with their checksums put right again."""
    data = bytearray(VALID)
    for position, value in draw(
        st.lists(st.tuples(st.integers(0, len(VALID) - 1), st.integers(0, 255)), min_size=1, max_size=6)
    ):
        data[position] = value
    for start in range(0, len(data), 512):
        block = data[start : start + 512]
        if block[257:262] == b"ustar":
            block[148:156] = b" " * 8
            data[start + 148 : start + 156] = b"%06o\0 " % sum(block)
    return bytes(data)


@fuzz
@given(damaged())
def test_no_damage_reaches_outside(data: bytes) -> None:
    """An archive with any bytes changed is unpacked or refused, never more."""
    check_unpacking(packed(data))


@fuzz
@given(st.binary(max_size=3000), st.booleans())
def test_nothing_else_is_raised(data: bytes, compressed: bool) -> None:  # noqa: FBT001 - hypothesis gives it
    """Any bytes at all are refused in words."""
    check_unpacking(packed(data) if compressed else data)


def test_a_deep_path(tmp_path: Path) -> None:
    """A path of the greatest depth is unpacked."""
    assert unpacked(tmp_path / "work", packed(tar((member("d/" * 500 + "file"), b"x")))) == {"d/" * 500 + "file": "x"}


def test_it_is_read_as_a_stream(tmp_path: Path) -> None:
    """A large file goes through in pieces: what is read at once is bounded."""

    class Watched(io.BytesIO):
        largest = 0

        def read(self, size: int | None = -1, /) -> bytes:
            data = super().read(size)
            Watched.largest = max(Watched.largest, len(data))
            return data

    data = gzip.compress(tar((member("a"), os.urandom(3_000_000))), 0)
    (tmp_path / "work").mkdir()
    with Tree(tmp_path / "work") as tree:
        unpack(Watched(data), tree, Limits())
    assert (tmp_path / "work" / "a").stat().st_size == 3_000_000
    assert Watched.largest < 1_000_000
