"""Why a run ended as it did, in the API's words.

`outhaul_api` itself would bring pydantic into every agent image, so its words are repeated; a test compares.
"""

from dataclasses import dataclass
from enum import StrEnum


class Reason(StrEnum):
    """The reasons of the API's vocabulary that an agent gives."""

    INVALID_SPEC = "InvalidSpec"
    RUN_FAILED = "RunFailed"
    SOURCE_MISSING = "SourceMissing"
    COMMAND_FAILED = "CommandFailed"
    COMMAND_NOT_FOUND = "CommandNotFound"
    TIMED_OUT = "TimedOut"
    CANCELLED = "Cancelled"
    SOURCE_UNAVAILABLE = "SourceUnavailable"
    BAD_SOURCE = "BadSource"
    BAD_OUTPUT = "BadOutput"
    DUPLICATE_OUTPUT = "DuplicateOutput"
    OUTPUT_TOO_LARGE = "OutputTooLarge"
    PROTOCOL_MISMATCH = "ProtocolMismatch"


@dataclass(frozen=True)
class Problem:
    """What went wrong, in one word and in a sentence that never shows a value."""

    reason: Reason
    message: str


class RunError(Exception):
    """Something went wrong that ends the run."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.problem = Problem(reason, message)


def quoted(text: str, limit: int = 100) -> str:
    """Returns a name or a path as a message can show it: escaped, in quotes, cut where it is long."""
    cut = text if len(text) <= limit else text[:limit] + "…"
    return repr(cut)
