"""Writes kubeconfigs: the server, its CA, and one user's certificate or token, all within the file."""

import base64
import json
from pathlib import Path

from cluster.pki import Pair, write_private


def with_certificate(path: Path, *, server: str, ca: Path, user: str, pair: Pair) -> Path:
    """Writes a kubeconfig of a user who proves who they are by certificate."""
    credentials = {"client-certificate-data": _inline(pair.certificate), "client-key-data": _inline(pair.key)}
    return _write(path, server, ca, user, credentials)


def with_token(path: Path, *, server: str, ca: Path, user: str, token: str) -> Path:
    """Writes a kubeconfig of a user who carries a token."""
    return _write(path, server, ca, user, {"token": token})


def _write(path: Path, server: str, ca: Path, user: str, credentials: dict[str, str]) -> Path:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "outhaul", "cluster": {"server": server, "certificate-authority-data": _inline(ca)}}],
        "users": [{"name": user, "user": credentials}],
        "contexts": [{"name": "outhaul", "context": {"cluster": "outhaul", "user": user}}],
        "current-context": "outhaul",
    }
    write_private(path, json.dumps(config, indent=1).encode())  # JSON is YAML
    return path


def _inline(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
