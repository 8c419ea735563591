"""Renders the templates of one latest Secret, as a program of its own: what a template can do, it does to this process.

minijinja's fuel bounds what a template computes, but not the depth of an expression, which ends the process, nor every
length. So `templates` runs this file and reads what it prints, a line for each template. It imports nothing of ours:
it has to start fast.
"""

import json
import resource
import sys
from contextlib import suppress
from typing import Any

import minijinja

CPU_SECONDS = 2
MEMORY_BYTES = 256 * 1024**2
MAX_CHARACTERS = 4 * 1024**2
"""Of all that is rendered; a Secret can hold a quarter of it."""
FUEL = 100_000
"""What one template may use; a plain one of a few lines needs hundreds, one that copies 1 MiB some 20,000."""
ALL_FUEL = 10 * FUEL
"""What all templates of an Installation may use: they are rendered one after the other, for everybody."""


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    # Values are secret.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _variable(text: str, *, is_text: bool) -> object:
    # A number as it was written: 1.0 stays 1.0.
    return text if is_text else json.loads(text, parse_int=_number, parse_float=str)


def _number(text: str) -> int | str:
    return int(text) if len(text) < 19 else text  # noqa: PLR2004 - what surely fits into 64 bits


def _shown(value: object) -> object:
    """Returns what a template shows of a value: text as it is, everything else as its own file would have it."""
    if value is None or isinstance(value, bool | list | dict):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    return value


def _render(template: str, variables: dict[str, object], fuel: int) -> dict[str, Any]:
    """Returns the text, or what is wrong: minijinja's own messages may quote values, so they are not passed on."""
    environment = minijinja.Environment(
        undefined_behavior="strict", fuel=fuel, pycompat=False, keep_trailing_newline=True, finalizer=_shown
    )
    # Adds lists in quadratic time, and the fuel does not notice.
    environment.remove_filter("sum")
    # `self` is the name of an argument of the method; like every output it is in `outputs` as well.
    given = {**variables, "outputs": variables}
    given.pop("self", None)
    try:
        return {"text": environment.render_str(template, **given)}
    except minijinja.TemplateError as error:
        missing: set[str] = set()
        if error.kind == "UndefinedError":
            missing = environment.undeclared_variables_in_str(template) - given.keys() - environment.globals.keys()
        return {"kind": error.kind, "line": error.line, "missing": sorted(missing)}
    except RecursionError:
        return {"kind": "RecursionError"}


def _say(answer: object) -> None:
    # At once: the next template may be the end.
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Reads what is wanted, and prints first which outputs are not what their type says, then each template's text."""
    _limit()
    wanted = json.load(sys.stdin)
    variables: dict[str, object] = {}
    for name, text, is_text in wanted["outputs"]:
        with suppress(ValueError, RecursionError):
            variables[name] = _variable(text, is_text=is_text)
    _say([name for name, _, _ in wanted["outputs"] if name not in variables])
    left = MAX_CHARACTERS
    templates = wanted["templates"]
    for template in templates:
        result = _render(template, variables, min(FUEL, ALL_FUEL // len(templates)))
        left -= len(result.get("text", ""))
        _say(result if left >= 0 else {"kind": "OutOfFuel"})


if __name__ == "__main__":
    main()
