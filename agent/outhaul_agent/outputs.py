"""The outputs of a run while they are collected and held: named, typed, measured, each name once.

`sources` and `formats` find outputs and put them in, `declarations` checks them; the server reads them. What
cannot be kept becomes a problem that names the output and never shows its value; everything else is kept.
"""

import hashlib
from dataclasses import dataclass, field

from outhaul_grpc import protocol

from outhaul_agent.reasons import Problem, Reason, quoted
from outhaul_agent.values import OutputType

_MAX_PROBLEMS = 3
"""Problems that are told; the others are counted."""


@dataclass(frozen=True)
class Output:
    """One output as it is stored."""

    name: str
    type: OutputType
    sensitive: bool
    data: bytes = field(repr=False)
    """A string's or bytes' own bytes; compact JSON for the other types."""
    typed: bool = True
    """Whether the source knows types. Where it does not, the data is text as it came, and the type a guess."""
    flagged: bool = True
    """Whether the source says if the value is a secret. Where it does not, it is one."""

    @property
    def sha256(self) -> bytes:
        """The digest of the value (32 bytes)."""
        return hashlib.sha256(self.data).digest()


class Collection:
    """Outputs that are being collected, and what went wrong with others."""

    def __init__(self, *, max_bytes: int = protocol.MAX_TOTAL_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._origins: dict[str, str] = {}
        """Every name that was seen, with where it was seen first."""
        self._outputs: dict[str, Output] = {}
        self._problems: list[Problem] = []
        self._more = 0

    @property
    def problem(self) -> Problem | None:
        """What to say about all problems: the first ones, and how many more there are."""
        if not self._problems:
            return None
        message = "; ".join(problem.message for problem in self._problems)
        if self._more:
            message += f" (and {self._more} more)"
        return Problem(self._problems[0].reason, message)

    @property
    def room(self) -> int:
        """How many bytes of values can still be taken in."""
        return self._max_bytes - self._bytes

    def sorted(self) -> list[Output]:
        """Returns the outputs that are kept, sorted by the UTF-8 bytes of their names."""
        return sorted(self._outputs.values(), key=lambda output: output.name.encode())

    def add(self, output: Output, origin: str) -> None:
        """Takes an output in.

        Args:
            output: the output.
            origin: where it comes from, for messages.
        """
        if self.claim(output.name, origin):
            self.add_claimed(output, origin)

    def add_claimed(self, output: Output, origin: str) -> None:
        """Takes an output in whose name was claimed."""
        if len(output.data) > self.room:
            self.add_too_large(output.name, f"{len(output.data)} bytes")
        elif len(self._outputs) == protocol.MAX_OUTPUTS:
            message = f"output {quoted(output.name)} of {origin} is one too many: a run has at most "
            self._problem(Reason.OUTPUT_TOO_LARGE, f"{message}{protocol.MAX_OUTPUTS}")
        else:
            self._outputs[output.name] = output
            self._bytes += len(output.data)

    def replace(self, output: Output) -> None:
        """Puts an output, which is no larger, in the place of the one of its name."""
        self._drop(output.name)
        self._outputs[output.name] = output
        self._bytes += len(output.data)

    def refuse(self, name: str, fault: str) -> None:
        """Drops an output that is there; `fault` says what is wrong with it."""
        self._drop(name)
        self.add_bad(f"output {quoted(name)} of {self._origins[name]} {fault}")

    def claimed(self, name: str) -> bool:
        """Tells whether a source had an output of this name, good or bad."""
        return name in self._origins

    def claim(self, name: str, origin: str) -> bool:
        """Takes a name, of an output that may turn out bad; returns whether an output may have it.

        A name that is there already is nobody's: which of the two was meant, only a person knows.
        """
        try:
            length = len(name.encode())
        except UnicodeEncodeError:
            self._problem(Reason.BAD_OUTPUT, f"the name of an output of {origin} is no text in UTF-8")
            return False
        if length > protocol.MAX_NAME_BYTES:
            message = f"the name of output {quoted(name)} of {origin} has {length} bytes, more than "
            self._problem(Reason.BAD_OUTPUT, f"{message}{protocol.MAX_NAME_BYTES}")
            return False
        if name not in self._origins:
            self._origins[name] = origin
            return True
        first = self._origins[name]
        where = f"twice in {origin}" if first == origin else f"in {first} and in {origin}"
        self._problem(Reason.DUPLICATE_OUTPUT, f"output {quoted(name)} is {where}; rename one of them")
        self._drop(name)
        return False

    def add_bad(self, message: str) -> None:
        """Records that an output, or a source of outputs, could not be read."""
        self._problem(Reason.BAD_OUTPUT, message)

    def add_too_large(self, name: str, size: str) -> None:
        """Records an output that there is no room for; `size` says how many bytes it has."""
        message = f"output {quoted(name)} has {size}, but a run's outputs may have {self._max_bytes} in all"
        if self._bytes:
            message += f", and {self._bytes} were taken"
        self._problem(Reason.OUTPUT_TOO_LARGE, message)

    def _drop(self, name: str) -> None:
        dropped = self._outputs.pop(name, None)
        self._bytes -= len(dropped.data) if dropped else 0

    def _problem(self, reason: Reason, message: str) -> None:
        # A directory may hold a million bad files.
        if len(self._problems) < _MAX_PROBLEMS:
            self._problems.append(Problem(reason, message))
        else:
            self._more += 1
