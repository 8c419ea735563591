"""The committed gRPC code is what the protos generate."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3] / "agent" / "grpc"


def test_generated_code_is_current(tmp_path: Path) -> None:
    """Generating again gives the committed code and stubs; else run `python agent/grpc/generate.py`."""
    subprocess.run([sys.executable, ROOT / "generate.py", "--out", tmp_path], check=True)
    fresh = {path.relative_to(tmp_path): path.read_text() for path in tmp_path.rglob("*_pb2*.py*")}
    committed = {
        path.relative_to(ROOT): path.read_text() for path in ROOT.rglob("*_pb2*.py*") if "__pycache__" not in path.parts
    }
    assert fresh
    assert committed == fresh
