"""What a path in a run's working directory may be. The operator checks what specs say, the agent that and archives."""

MAX_PATH_BYTES = 1024
"""A quarter of what programs can handle, since the path is below another directory."""
MAX_PART_BYTES = 255

Parts = tuple[str, ...]
"""A path's names from the working directory down; empty: the working directory itself."""


class BadPath(ValueError):  # noqa: N818 - a path is, or what is in its way
    """A path leads elsewhere, or cannot be made; the text names it and says why."""


def parts_of(path: str) -> Parts:
    """Returns the names of a relative path; `.` and doubled slashes are left out.

    Raises:
        BadPath: it is absolute, has `..`, is too long, or has what no name should have.
    """
    check_text(path)
    if path.startswith("/"):
        raise BadPath(f"{_shown(path)} is no relative path")
    parts = tuple(part for part in path.split("/") if part not in {"", "."})
    if ".." in parts:
        raise BadPath(f"{_shown(path)} has '..'")
    if any(len(part.encode()) > MAX_PART_BYTES for part in parts):
        raise BadPath(f"{_shown(path)} has a name of more than {MAX_PART_BYTES} bytes")
    return parts


def check_text(path: str) -> None:
    """Refuses a path for its characters or its length.

    Raises:
        BadPath: it is too long, or has what no name should have.
    """
    if any(0xD800 <= ord(character) < 0xE000 for character in path):  # noqa: PLR2004 - what stands for other bytes
        raise BadPath(f"{_shown(path)} is no text in UTF-8")
    if has_control(path):
        raise BadPath(f"{_shown(path)} has a control character")
    if len(path.encode()) > MAX_PATH_BYTES:
        raise BadPath(f"{_shown(path)} has more than {MAX_PATH_BYTES} bytes")


def has_control(text: str) -> bool:
    """Tells whether a text has a character that no name may have: NUL, a line's end, an escape for terminals."""
    return any(ord(character) < 0x20 or 0x7F <= ord(character) < 0xA0 for character in text)  # noqa: PLR2004


def _shown(path: str) -> str:
    return repr(path if len(path) <= 100 else path[:100] + "…")  # noqa: PLR2004
