"""Where the agent finds things. The defaults are those of a pod; environment variables replace them."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from outhaul_grpc import layout

_INTERNAL = {
    layout.RUN_DIR_VARIABLE,
    layout.POD_IP_VARIABLE,
    layout.PORT_VARIABLE,
    layout.TERMINATION_LOG_VARIABLE,
    layout.KEPT_DIR_VARIABLE,
}
"""Variables that only the agent needs; commands do not see them."""


@dataclass(frozen=True)
class Settings:
    """Paths and address of one agent."""

    run_dir: Path
    work_dir: Path
    outputs_dir: Path
    kept_dir: Path
    termination_log: Path
    ip: str
    port: int

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "Settings":
        """Returns the settings.

        Raises:
            ValueError: the port is no number.
        """
        return cls(
            run_dir=Path(environment.get(layout.RUN_DIR_VARIABLE, layout.RUN_DIR)),
            work_dir=Path(environment.get(layout.WORK_DIR_VARIABLE, layout.WORK_DIR)),
            outputs_dir=Path(environment.get(layout.OUTPUTS_VARIABLE, layout.OUTPUTS_DIR)),
            kept_dir=Path(environment.get(layout.KEPT_DIR_VARIABLE, layout.KEPT_DIR)),
            termination_log=Path(environment.get(layout.TERMINATION_LOG_VARIABLE, layout.TERMINATION_LOG)),
            ip=environment.get(layout.POD_IP_VARIABLE) or "0.0.0.0",  # noqa: S104 - the pod's network is its own
            port=int(environment.get(layout.PORT_VARIABLE) or layout.PORT),
        )

    def command_environment(self, work_dir: Path, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Returns what every command sees: the agent's environment without what only concerns the agent."""
        kept = {name: value for name, value in environment.items() if name not in _INTERNAL}
        kept[layout.WORK_DIR_VARIABLE] = str(work_dir)
        kept[layout.OUTPUTS_VARIABLE] = str(self.outputs_dir)
        return kept
