"""What a line of the log looks like, and what it never says."""

import asyncio
import json
import logging
import sys
from collections.abc import Callable
from typing import Any

import pytest
from outhaul_api.vocabulary import Reason
from outhaul_operator import logs
from outhaul_operator.logs import JsonFormatter, TextFormatter
from outhaul_operator.verdicts import StalledError

SECRET = "hunter2"  # noqa: S105 - what no line may show
EITHER = pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter()], ids=["json", "text"])


def record(message: str = "something happened", *, error: BaseException | None = None) -> logging.LogRecord:
    """What somebody logs."""
    caught = (type(error), error, error.__traceback__) if error is not None else None
    return logging.LogRecord("some.library", logging.WARNING, __file__, 1, message, None, caught)


def in_a_task(work: Callable[[], Any]) -> Any:
    """Runs something in a task of its own, which leaves no trace in this one."""

    async def main() -> Any:
        return work()

    return asyncio.run(main())


def raised(error: Exception, cause: BaseException | None = None) -> BaseException:
    """An exception that was raised somewhere."""
    try:
        raise error from cause
    except type(error):
        caught = sys.exc_info()[1]
    assert caught is not None
    return caught


def test_json() -> None:
    """A line is a JSON object with time, level, logger and message, and nothing that does not apply."""
    line = json.loads(JsonFormatter().format(record()))
    assert line.pop("time").endswith("Z")
    assert line == {"level": "warning", "logger": "some.library", "message": "something happened"}


def test_text() -> None:
    """A line is time, level, logger and message."""
    time, rest = TextFormatter().format(record()).split(" ", 1)
    assert time.endswith("Z")
    assert rest == "WARNING some.library something happened"


def test_each_line_names_object_and_run() -> None:
    """Whoever says something while an object is worked on says it about that, and about the run if there is one."""

    def work() -> tuple[str, str]:
        logs.about("AgentAction tenant/database-1")
        logs.during("database-1")
        return JsonFormatter().format(record()), TextFormatter().format(record())

    as_json, as_text = in_a_task(work)
    fields = json.loads(as_json)
    assert (fields["object"], fields["run"]) == ("AgentAction tenant/database-1", "database-1")
    assert as_text.endswith("some.library [AgentAction tenant/database-1, run database-1] something happened")


def test_the_run_of_another_object_is_forgotten() -> None:
    """A task that goes on to another object does not take the run along."""

    def work() -> str:
        logs.about("Installation tenant/database")
        logs.during("database-1")
        logs.about("Installation tenant/other")
        return JsonFormatter().format(record())

    assert "run" not in json.loads(in_a_task(work))


@EITHER
def test_a_record_is_one_line(formatter: logging.Formatter) -> None:
    """Neither a message with line breaks nor an exception makes a second line."""
    error = raised(ValueError("two\nlines"))
    assert "\n" not in formatter.format(record("one\ntwo\rthree", error=error))


@EITHER
def test_an_exception_is_told_by_type_and_place(formatter: logging.Formatter) -> None:
    """The words of an exception may quote a value, so they are left out, those of its causes as well."""
    error = raised(ValueError(f"invalid literal: {SECRET}"), raised(KeyError(SECRET)))
    line = formatter.format(record(error=error))
    assert SECRET not in line
    assert "ValueError at " in line
    assert "test_logs.py:" in line
    assert " < KeyError at " in line


@EITHER
def test_what_a_group_holds_is_told(formatter: logging.Formatter) -> None:
    """Each exception of a group is named, without its words."""
    line = formatter.format(record(error=ExceptionGroup(SECRET, [OSError(SECRET), TypeError(SECRET)])))
    assert SECRET not in line
    assert "ExceptionGroup" in line
    assert "OSError" in line
    assert "TypeError" in line


@EITHER
def test_our_own_errors_are_quoted(formatter: logging.Formatter) -> None:
    """The messages of our errors are made for people, and show no value."""
    line = formatter.format(record(error=raised(StalledError(Reason.INVALID_SPEC, "spec.engine is not known"))))
    assert "StalledError: spec.engine is not known at " in line
