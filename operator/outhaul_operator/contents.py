"""What the latest Secret holds: the outputs under their keys, templates, and the entries of a service binding.

Templates are minijinja's: sandboxed, without access to anything but the outputs, and rendered apart: see `templates`.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from outhaul_api.installation import Outputs
from outhaul_api.vocabulary import KeyStyle, OutputType, Reason

from outhaul_operator import encoding, names
from outhaul_operator.agentoutputs import Output
from outhaul_operator.templates import Renderer
from outhaul_operator.verdicts import StalledError

_MAX_SHOWN_BYTES = 1024 * 1024
"""Of outputs that templates use: what a Secret can hold. As Python's objects, JSON may take seventy times the room."""
_WORD = re.compile(r"\w+")


async def contents(renderer: Renderer, namespace: str, outputs: Sequence[Output], wanted: Outputs) -> dict[str, bytes]:
    """Returns the latest Secret's data.

    Args:
        renderer: Renders templates.
        namespace: The Installation's namespace.
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
    for key in wanted.template:
        if encoding.key_for(key) != key:
            raise StalledError(
                Reason.TEMPLATE_FAILED, f"spec.outputs.template: {key!r} is no key that a Secret may have; rename it"
            )
    if wanted.template:
        result |= await _rendered(renderer, namespace, outputs, wanted.template)
    return result


def env_key(name: str) -> str:
    """Returns the name of an output as that of an environment variable."""
    key = re.sub(r"[^A-Za-z0-9]", "_", name).upper()[:253] or "_"
    return f"_{key}"[:253] if key[0].isdigit() else key


def publication_digest(run: str, latest_name: str, wanted: Outputs) -> str:
    """Returns the digest of what the latest Secret is made from: the run, and how it is to be shown."""
    style = wanted.model_dump(mode="json", include={"key_style", "template", "binding"}, exclude_defaults=True)
    return names.digest({"run": run, "name": latest_name, "style": style})[:32]


async def _rendered(
    renderer: Renderer, namespace: str, outputs: Sequence[Output], templates: dict[str, str]
) -> dict[str, bytes]:
    used = _used(outputs, templates.values())
    keys = sorted(templates)
    made = await renderer.render(namespace, used, [templates[key] for key in keys])
    unfit = made.unfit | {one.name for one in outputs if one.type is OutputType.BYTES}
    usable = [one.name for one in outputs if one.name not in unfit]
    result = {}
    for index, key in enumerate(keys):
        # Where there is no answer, this one has ended the process.
        answer = made.results[index] if index < len(made.results) else {"kind": "OutOfFuel"}
        if "text" not in answer:
            raise StalledError(Reason.TEMPLATE_FAILED, f"spec.outputs.template {key!r}: {_fault(answer, usable)}")
        result[key] = answer["text"].encode()
    return result


def _used(outputs: Sequence[Output], templates: Iterable[str]) -> list[Output]:
    """Returns what templates can use, which is not bytes: what they name, or all of it where they go through `outputs`.

    Raises:
        StalledError: That would be too much.
    """
    named = {word for template in templates for word in _WORD.findall(template)}
    used = [one for one in outputs if one.type is not OutputType.BYTES and (one.name in named or "outputs" in named)]
    size = sum(len(one.data) for one in used)
    if size > _MAX_SHOWN_BYTES:
        raise StalledError(
            Reason.TEMPLATE_FAILED,
            f"spec.outputs.template: the outputs that the templates use have {size:,} bytes together, more than "
            f"{_MAX_SHOWN_BYTES:,}; name those that are needed, instead of going through all outputs",
        )
    return used


def _fault(answer: dict[str, Any], usable: Sequence[str]) -> str:
    """Returns what is wrong with a template."""
    kind, missing = answer["kind"], answer.get("missing")
    if kind == "RecursionError":
        return "it shows a value that is nested too deeply"
    what = {
        "UndefinedError": "it uses an output, or a part of one, that does not exist",
        "OutOfFuel": "it takes too long or becomes too large",
    }.get(kind, kind)
    if missing:
        what = f"there is no output {', '.join(missing)}; there are {encoding.joined_names(usable) or 'none'}"
    where = f"line {answer['line']}: " if "line" in answer else ""
    return f"{where}{what}; correct the template"
