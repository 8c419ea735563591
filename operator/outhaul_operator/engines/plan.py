"""What an engine returns, and what engines share: sources and parameters."""

import base64
import json
import re
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from outhaul_api.agentaction import Archive, Command, KeptSource, OutputSource, PodEnvVar
from outhaul_api.installation import Installation, Source
from outhaul_api.vocabulary import Reason
from pydantic.alias_generators import to_camel

from outhaul_operator import paths
from outhaul_operator.verdicts import StalledError

SOURCE_DIR = "/outhaul/source"
_SOURCES = "files, configMapRef, secretRef and archive"
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass
class Plan:
    """The engine's part of an AgentAction's spec."""

    commands: list[Command]
    engine: str = ""
    """Its name; set by whoever asks the engine."""
    outputs: list[OutputSource] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    env: list[PodEnvVar] = field(default_factory=list)
    volumes: list[dict[str, Any]] = field(default_factory=list)
    volume_mounts: list[dict[str, Any]] = field(default_factory=list)
    copy_from: list[str] = field(default_factory=list)
    kept_source: KeptSource | None = None
    archive: Archive | None = None
    input_prefix: str = "OUTHAUL_INPUT_"
    """What comes before an input's name in its variable's."""

    def add_file(self, path: str, text: str) -> None:
        """Adds a file of the working directory.

        Raises:
            StalledError: The path leads out of the working directory, or the file would take the place of another.
        """
        if fault := paths.file_fault(path):
            raise StalledError(Reason.INVALID_SPEC, f"spec.source.files: {fault}; rename it")
        pure = PurePosixPath(path)
        if str(pure) in self.files:
            raise StalledError(
                Reason.INVALID_SPEC,
                f"spec.source.files: {str(pure)!r} is there twice, or is a file that the engine writes; rename it",
            )
        self.files[str(pure)] = base64.b64encode(text.encode()).decode()

    def add_source(self, source: Source) -> None:
        """Adds the infrastructure code: its files, a ConfigMap or Secret that the pod mounts, or an archive.

        Raises:
            StalledError: Not exactly one source is given, or a path is bad.
        """
        given = [name for name, value in source if value]
        if len(given) != 1:
            names = " and ".join(to_camel(name) for name in given) or "none"
            raise StalledError(Reason.INVALID_SPEC, f"spec.source must give exactly one of {_SOURCES}, not {names}")
        for path, text in (source.files or {}).items():
            self.add_file(path, text)
        if source.config_map_ref is not None:
            self._mount_source({"configMap": {"name": source.config_map_ref.name}})
        if source.secret_ref is not None:
            self._mount_source({"secret": {"secretName": source.secret_ref.name}})
        self.archive = source.archive
        if source.archive is not None and (fault := paths.directory_fault(source.archive.path)):
            raise StalledError(Reason.INVALID_SPEC, f"spec.source.archive.path: {fault}; correct it")

    def _mount_source(self, volume: dict[str, Any]) -> None:
        self.volumes.append({"name": "source", **volume})
        self.volume_mounts.append({"name": "source", "mountPath": SOURCE_DIR, "readOnly": True})
        self.copy_from.append(SOURCE_DIR)

    def add_parameters(self, parameters: dict[str, Any]) -> None:
        """Adds the parameters as `parameters.json` and as variables `OUTHAUL_PARAMETER_<name>`.

        Raises:
            StalledError: One of them cannot be a variable's value.
        """
        self.add_file("parameters.json", compact(parameters))
        for name, value in parameters.items():
            if _ENV_NAME.fullmatch(name):
                text = value if isinstance(value, str) else compact(value)
                if "\0" in text:
                    raise StalledError(
                        Reason.INVALID_SPEC,
                        f"spec.parameters: {name!r} has a NUL character, which no variable can have; remove it",
                    )
                # $(NAME) in a pod's env is replaced by Kubernetes; a doubled $ is not.
                self.env.append(PodEnvVar(name=f"OUTHAUL_PARAMETER_{name}", value=text.replace("$", "$$")))


def compact(value: object) -> str:
    """Returns a value as JSON without white space."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def required_source(installation: Installation, engine: str) -> Source:
    """Returns the source that an engine cannot do without.

    Raises:
        StalledError: There is none.
    """
    if installation.spec.source is None:
        raise StalledError(
            Reason.INVALID_SPEC,
            f"engine {engine} needs spec.source; give exactly one of {_SOURCES}",
        )
    return installation.spec.source
