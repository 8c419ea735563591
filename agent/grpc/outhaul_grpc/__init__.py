"""What agent and operator agree on: the contract (`v1`), names and paths, bounds, how to open each end.

To import it loads gRPC, which reads these variables then and never again; commands do not see them.
"""

import os

_SETTINGS = {
    # TLS 1.3 alone, which gRPC's Python API cannot say: older versions are left without a cipher suite, since this
    # one needs a key that both sides share beforehand. Those of TLS 1.3 are not chosen here.
    "GRPC_SSL_CIPHER_SUITES": "ECDHE-PSK-CHACHA20-POLY1305",
    # It writes a line for each stranger that comes to the port. What matters comes as an error, and is told once.
    "GRPC_VERBOSITY": os.environ.get("GRPC_VERBOSITY", "NONE"),
}


def _load() -> None:
    before = {name: os.environ.get(name) for name in _SETTINGS}
    os.environ.update(_SETTINGS)
    try:
        import grpc  # noqa: F401, PLC0415 - the variables come first
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


_load()
