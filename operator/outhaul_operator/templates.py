"""Has templates rendered by a process of its own, which may crash, take all the memory it may have, or never end.

Any tenant can write one that does: see `rendering`, which is that process.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outhaul_api.vocabulary import OutputType

from outhaul_operator.agentoutputs import Output
from outhaul_operator.turns import Turns

_PROGRAM = Path(__file__).with_name("rendering.py")
_PATIENCE_S = 60.0
"""On a machine with much to do, seconds of computing are many of waiting."""


@dataclass(frozen=True)
class Rendered:
    """What became of templates."""

    unfit: set[str]
    """Outputs that are not what their type says, so templates cannot use them: no agent is believed."""
    results: list[dict[str, Any]]
    """Of each template, as `rendering` gives it; shorter than the templates where one ended the process."""


class Renderer:
    """Renders one Secret's templates at a time; namespaces take turns."""

    def __init__(self) -> None:
        self._turns = Turns(1)

    async def render(self, group: Hashable, outputs: Sequence[Output], templates: Sequence[str]) -> Rendered:
        """Renders templates.

        Args:
            group: Whose they are: groups take turns.
            outputs: What the templates may use.
            templates: The templates.
        """
        texts: Mapping[str, tuple[str, bool]] = {
            one.name: (text, one.type in {OutputType.STRING, OutputType.NUMBER})
            for one in outputs
            if (text := _text(one.data)) is not None
        }
        wanted = {"outputs": [(name, *rest) for name, rest in texts.items()], "templates": list(templates)}
        async with self._turns.place(group):
            lines = await asyncio.to_thread(_run, json.dumps(wanted).encode())
        unfit = {one.name for one in outputs} - texts.keys()
        return Rendered(unfit | set(lines[0] if lines else []), lines[1:])


def _text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _run(wanted: bytes) -> list[Any]:
    """Returns what the process has printed, as far as it came."""
    command = [sys.executable, "-I", str(_PROGRAM)]
    try:
        # Its complaints would quote values.
        done = subprocess.run(
            command, input=wanted, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=_PATIENCE_S, check=False
        )
        printed = done.stdout
    except subprocess.TimeoutExpired as error:
        printed = error.stdout or b""
    # A last line that was cut short is none.
    return [json.loads(line) for line in printed.split(b"\n")[:-1]]
