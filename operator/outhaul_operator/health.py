"""Whether the operator is alive and ready, as its parts see it themselves; `endpoints` serves the answers.

Each part that can be stuck adds a check: a function without I/O that returns what is wrong, or None.
"""

from collections.abc import Callable

Check = Callable[[], str | None]


class Health:
    """The checks of one process."""

    def __init__(self) -> None:
        self._alive: list[Check] = []
        self._ready: list[Check] = []

    def require_for_life(self, check: Check) -> None:
        """Adds a check whose failure only a restart repairs."""
        self._alive.append(check)

    def require_for_readiness(self, check: Check) -> None:
        """Adds a check that fails until the operator can do its work."""
        self._ready.append(check)

    def ailments(self) -> list[str]:
        """Returns what keeps the operator from being alive; nothing where all is well."""
        return _failed(self._alive)

    def obstacles(self) -> list[str]:
        """Returns what keeps the operator from being ready; nothing where all is well."""
        return _failed(self._alive + self._ready)


def _failed(checks: list[Check]) -> list[str]:
    return [found for check in checks if (found := check()) is not None]
