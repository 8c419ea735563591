"""What the latest Secret holds: the outputs under their keys, templates, and the entries of a service binding. Pure.

Templates are minijinja's: sandboxed, without access to anything but the outputs, and bounded in time and memory by
its fuel. Its own messages may quote values, so they are not passed on.
"""

import json
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress

import minijinja
from outhaul_api.installation import Outputs
from outhaul_api.vocabulary import KeyStyle, OutputType, Reason

from outhaul_operator import encoding, names
from outhaul_operator.agentoutputs import Output
from outhaul_operator.verdicts import StalledError

_MAX_SHOWN_BYTES = 1024 * 1024
"""Of outputs that templates use: what a Secret can hold. As Python's objects, JSON may take seventy times the room."""
_WORD = re.compile(r"\w+")
_FUEL = 100_000
"""What one template may use; a plain one of a few lines needs hundreds, one that copies 1 MiB some 20,000."""
_ALL_FUEL = 10 * _FUEL
"""What all templates of an Installation may use: the operator renders for everybody, one after the other."""


def contents(outputs: Sequence[Output], wanted: Outputs) -> dict[str, bytes]:
    """Returns the latest Secret's data.

    Args:
        outputs: A run's outputs.
        wanted: How its Installation wants to have them.

    Raises:
        StalledError: Two outputs have one key, or a template cannot be rendered; the message names the key.
    """
    result: dict[str, bytes] = {}
    origin: dict[str, str] = {}
    for output in sorted(outputs, key=lambda one: one.name.encode()):
        key = encoding.key_for(output.name) if wanted.key_style is KeyStyle.NAME else env_key(output.name)
        if key in result:
            raise StalledError(
                Reason.TEMPLATE_FAILED,
                f"outputs {origin[key]!r} and {output.name!r} have one key, {key!r}; rename one, or use keyStyle Name",
            )
        result[key], origin[key] = output.data, output.name
    if wanted.binding is not None:
        result["type"] = wanted.binding.type.encode()
        if wanted.binding.provider is not None:
            result["provider"] = wanted.binding.provider.encode()
    shown = _Shown(outputs, wanted.template.values())
    for key, template in sorted(wanted.template.items()):
        if encoding.key_for(key) != key:
            raise StalledError(
                Reason.TEMPLATE_FAILED, f"spec.outputs.template: {key!r} is no key that a Secret may have; rename it"
            )
        result[key] = _render(key, template, shown, min(_FUEL, _ALL_FUEL // len(wanted.template)))
    return result


def env_key(name: str) -> str:
    """Returns the name of an output as that of an environment variable."""
    key = re.sub(r"[^A-Za-z0-9]", "_", name).upper()[:253] or "_"
    return f"_{key}"[:253] if key[0].isdigit() else key


def publication_digest(run: str, latest_name: str, wanted: Outputs) -> str:
    """Returns the digest of what the latest Secret is made from: the run, and how it is to be shown."""
    style = wanted.model_dump(mode="json", include={"key_style", "template", "binding"}, exclude_defaults=True)
    return names.digest({"run": run, "name": latest_name, "style": style})[:32]


def _variable(output: Output) -> object:
    text = output.data.decode()
    if output.type in {OutputType.STRING, OutputType.NUMBER}:
        # A number as it was written: 1.0 stays 1.0.
        return text
    return json.loads(text, parse_int=_number, parse_float=str)


def _number(text: str) -> int | str:
    return int(text) if len(text) < 19 else text  # noqa: PLR2004 - what surely fits into 64 bits


class _Shown:
    """What templates can use: not bytes, nor what is not what its type says, since no agent is believed.

    Args:
        outputs: All outputs.
        templates: The templates. Only what they name is taken apart, or all of it where they go through `outputs`.

    Raises:
        StalledError: That would be too much.
    """

    def __init__(self, outputs: Sequence[Output], templates: Iterable[str]) -> None:
        named = {word for template in templates for word in _WORD.findall(template)}
        used = [
            one for one in outputs if one.type is not OutputType.BYTES and (one.name in named or "outputs" in named)
        ]
        size = sum(len(one.data) for one in used)
        if size > _MAX_SHOWN_BYTES:
            raise StalledError(
                Reason.TEMPLATE_FAILED,
                f"spec.outputs.template: the outputs that the templates use have {size:,} bytes together, more than "
                f"{_MAX_SHOWN_BYTES:,}; name those that are needed, instead of going through all outputs",
            )
        self.variables: dict[str, object] = {}
        for one in used:
            with suppress(ValueError, RecursionError):
                self.variables[one.name] = _variable(one)
        unfit = {one.name for one in outputs if one.type is OutputType.BYTES or one in used} - self.variables.keys()
        self.names = [one.name for one in outputs if one.name not in unfit]


def _render(key: str, template: str, shown: _Shown, fuel: int) -> bytes:
    environment = minijinja.Environment(
        undefined_behavior="strict", fuel=fuel, pycompat=False, keep_trailing_newline=True, finalizer=_shown
    )
    # Adds lists in quadratic time, and the fuel does not notice.
    environment.remove_filter("sum")
    where = f"spec.outputs.template {key!r}"
    # `self` is the name of an argument of the method; like every output it is in `outputs` as well.
    given = {**shown.variables, "outputs": shown.variables}
    given.pop("self", None)
    try:
        return environment.render_str(template, **given).encode()
    except minijinja.TemplateError as error:
        what = {
            "UndefinedError": "it uses an output, or a part of one, that does not exist",
            "OutOfFuel": "it takes too long or becomes too large",
        }.get(error.kind, f"{error.kind}")
        if error.kind == "UndefinedError":
            missing = environment.undeclared_variables_in_str(template) - given.keys() - environment.globals.keys()
            if missing:
                known = encoding.joined_names(shown.names) or "none"
                what = f"there is no output {', '.join(sorted(missing))}; there are {known}"
        raise StalledError(
            Reason.TEMPLATE_FAILED, f"{where}: line {error.line}: {what}; correct the template"
        ) from None
    except RecursionError:
        raise StalledError(Reason.TEMPLATE_FAILED, f"{where}: it shows a value that is nested too deeply") from None


def _shown(value: object) -> object:
    """Returns what a template shows of a value: text as it is, everything else as its own file would have it."""
    if value is None or isinstance(value, bool | list | dict):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    return value
