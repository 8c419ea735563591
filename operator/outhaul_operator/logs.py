"""The log: one line for each thing that is said, by whomever, with the object and the run that it is about.

What a line is about is remembered for the task that says it (`about`, `during`), so that nobody has to say it again.
Of exceptions that are not ours a line tells the type and the place, not the words: they may quote a value.
"""

import json
import logging
import sys
import traceback
from collections.abc import Iterator
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Literal

Format = Literal["json", "text"]
FORMATS: tuple[Format, ...] = ("json", "text")

_object: ContextVar[str | None] = ContextVar("object", default=None)
_run: ContextVar[str | None] = ContextVar("run", default=None)


def about(subject: str) -> None:
    """Says which object the current task is at work on: kind, namespace and name. The run of another is forgotten."""
    _object.set(subject)
    _run.set(None)


def during(run: str | None) -> None:
    """Says which run the current task is at work on."""
    _run.set(run)


def set_up(form: Format, *, debug: bool) -> None:
    """Sends what anybody logs to standard output.

    Args:
        form: How lines look.
        debug: Whether to log every step.
    """
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.basicConfig(level=logging.DEBUG if debug else logging.INFO, handlers=[handler])
    logging.captureWarnings(capture=True)
    # kopf tells of every event at INFO, and of objects in full at DEBUG.
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)


class JsonFormatter(logging.Formatter):
    """Makes each record a JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line."""
        fields = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "object": _object.get(),
            "run": _run.get(),
            "error": _told(record),
        }
        return json.dumps({key: value for key, value in fields.items() if value is not None}, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """Makes each record a line for people."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line."""
        run = _run.get()
        where = [part for part in (_object.get(), f"run {run}" if run is not None else None) if part is not None]
        subject = f"[{', '.join(where)}] " if where else ""
        error = _told(record)
        message = record.getMessage() + (f" | {error}" if error is not None else "")
        line = f"{_time(record)} {record.levelname} {record.name} {subject}{message}"
        return "\\n".join(line.splitlines())


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _told(record: logging.LogRecord) -> str | None:
    if record.exc_info is None or record.exc_info[1] is None:
        return None
    return " < ".join(_errors(record.exc_info[1]))


def _errors(error: BaseException) -> Iterator[str]:
    """Yields an exception, then what it came from: type and place, and the words of ours."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        kind = type(current)
        words = f": {current}" if kind.__module__.startswith("outhaul_") else ""
        frames = traceback.extract_tb(current.__traceback__)
        places = ", ".join(f"{frame.filename.rpartition('site-packages/')[2]}:{frame.lineno}" for frame in frames)
        yield f"{kind.__qualname__}{words} at {places or 'no place'}"
        if isinstance(current, BaseExceptionGroup):
            for one in current.exceptions:
                yield from _errors(one)
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
