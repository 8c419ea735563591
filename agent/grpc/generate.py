"""Generates the Python code and stubs of the protos beside it. Run it after each change of a proto.

    python agent/grpc/generate.py

`tests/unit/repository/test_generated.py` generates into an empty directory and compares. Which grpcio-tools runs
decides the oldest grpcio and protobuf that load the code, so `pyproject.toml` pins it exactly.
"""  # noqa: INP001 - a package here would hide grpcio (docs/architecture.md)

import argparse
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parent
PROTOS = sorted(path.relative_to(ROOT) for path in ROOT.glob("outhaul_grpc/v*/*.proto"))


def generate(out: Path) -> None:
    """Writes the code of every proto below `out`, in the folders of the protos."""
    services = [path for path in PROTOS if "\nservice " in (ROOT / path).read_text()]
    _protoc(out, "python", "mypy", PROTOS)
    _protoc(out, "grpc_python", "mypy_grpc", services)


def _protoc(out: Path, code: str, stubs: str, protos: list[Path]) -> None:
    plugin = Path(sysconfig.get_path("scripts")) / f"protoc-gen-{stubs}"
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", f"--plugin={plugin.name}={plugin}"]
    outputs = [f"--{code}_out={out}", f"--{stubs}_out=quiet:{out}"]
    subprocess.run([*command, *outputs, *map(str, protos)], cwd=ROOT, check=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT, help="where it goes; default: beside the protos")
    generate(parser.parse_args().out.resolve())
