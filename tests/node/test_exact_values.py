"""Values on their whole way, to a file that an application's pod has mounted: byte for byte."""

import base64
import hashlib
import json
from typing import Any

import pytest
import yaml
from cluster.objects import Objects
from node.deployments import RESTRICTED, RESTRICTED_CONTAINER, Deployment

pytestmark = [pytest.mark.node, pytest.mark.versions]

# What Terraform is told (HCL), and what the file must hold.
TERRAFORM: dict[str, tuple[str, bytes]] = {
    "beyond_64_bits": ("1180591620717411303424", b"1180591620717411303424"),  # 2^70
    "negative": ("-9223372036854775809", b"-9223372036854775809"),
    "tenth": ("0.1", b"0.1"),
    "many_digits": (
        "3.14159265358979323846264338327950288419716939937510",
        b"3.1415926535897932384626433832795028841971693993751",
    ),
    # Terraform's own: its numbers have no trailing zeros, and it prints no exponent.
    "one": ("1.0", b"1"),
    "large": ("1e40", b"1" + 40 * b"0"),
    # Terraform's own, too: its strings are in normal form C.
    "composed": ('"e\\u0301"', "\N{LATIN SMALL LETTER E WITH ACUTE}".encode()),
    "yes": ("true", b"true"),
    "empty_string": ('""', b""),
    "empty_list": ("[]", b"[]"),
    "empty_object": ("{}", b"{}"),
    "string_of_digits": ('"007"', b"007"),
    "not_ascii": ('"Grüße, 世界 \\U0001F680"', "Grüße, 世界 \N{ROCKET}".encode()),
    "controls": ('"\\u0001\\t\\u001b[0m\\u007f"', b"\x01\t\x1b[0m\x7f"),
    "line_end": ('"a line\\n"', b"a line\n"),
    "blank_lines": ('"\\n\\n"', b"\n\n"),
    "windows": ('"one\\r\\ntwo\\r\\n"', b"one\r\ntwo\r\n"),
    "markup": ('"<a href=\\"x\\">&amp;</a> $${x} %%{y}"', b'<a href="x">&amp;</a> ${x} %{y}'),
    "looks_like_json": ('"{\\"a\\": 1}"', b'{"a": 1}'),
    "nested": (
        '{ z = [1.5, null, { b = "ü\\n", a = true }], a = {}, big = 1180591620717411303424 }',
        '{"a":{},"big":1180591620717411303424,"z":[1.5,null,{"a":true,"b":"ü\\n"}]}'.encode(),
    ),
}
SENSITIVE = "sensitive_controls"

# What a command prints: JSON that no tool has touched.
JSON_TEXT = (
    '{"one": 1.0, "huge": 1e400, "tiny": 1E-7, "minus_zero": -0.0, "beyond_64_bits": 1180591620717411303424,'
    ' "null": null, "escaped": "\\u00fc\\ud83d\\ude80\\u0000|", "nested": {"z": 1, "a": {"y": [ ], "b": 1.50}}}'
)
JSON_FILES = {
    "one": b"1.0",
    "huge": b"1e400",
    "tiny": b"1E-7",
    "minus_zero": b"-0.0",
    "beyond_64_bits": b"1180591620717411303424",
    "null": b"null",
    "escaped": "ü\N{ROCKET}\0|".encode(),
    "nested": b'{"z":1,"a":{"y":[],"b":1.50}}',
}

# Each file of $OUTHAUL_OUTPUTS is an output.
_WRITE_FILES = """
import os, pathlib
outputs = pathlib.Path(os.environ["OUTHAUL_OUTPUTS"])
(outputs / "every-byte").write_bytes(bytes(range(256)))
(outputs / "empty").write_bytes(b"")
(outputs / "certificate.pem").write_bytes(b"-----BEGIN-----\\r\\nMIIB\\r\\n-----END-----\\r\\n")
(outputs / "big.bin").write_bytes(bytes(range(256)) * 2048)
"""
WRITTEN_FILES = {
    "every-byte": bytes(range(256)),
    "empty": b"",
    "certificate.pem": b"-----BEGIN-----\r\nMIIB\r\n-----END-----\r\n",
    "big.bin": bytes(range(256)) * 2048,
}

_SHOW = """
import base64, hashlib, json, pathlib
found = {}
for path in sorted(pathlib.Path("/outputs").iterdir()):
    if not path.name.startswith("..") and path.is_file():
        data = path.read_bytes()
        found[path.name] = [hashlib.sha256(data).hexdigest(), base64.b64encode(data[:1024]).decode()]
print(json.dumps(found))
"""


def mounted_files(outhaul: Deployment, objects: Objects, secret: str, image: str) -> dict[str, tuple[str, bytes]]:
    """What a pod that mounts a Secret finds: digest and beginning of each file, through `kubectl logs`."""
    container = {
        "name": "app",
        "image": image,
        "imagePullPolicy": "Never",
        "command": ["python3", "-c", _SHOW],
        "volumeMounts": [{"name": "outputs", "mountPath": "/outputs", "readOnly": True}],
        "securityContext": RESTRICTED_CONTAINER,
    }
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "securityContext": RESTRICTED,
        "containers": [container],
        "volumes": [{"name": "outputs", "secret": {"secretName": secret}}],
    }
    manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "app"}, "spec": spec}
    said = json.loads(outhaul.run_application(objects, yaml.safe_dump(manifest)))
    return {name: (digest, base64.b64decode(beginning)) for name, (digest, beginning) in said.items()}


def expected(files: dict[str, bytes]) -> dict[str, tuple[str, bytes]]:
    """The same of what must be there."""
    return {name: (hashlib.sha256(data).hexdigest(), data[:1024]) for name, data in files.items()}


def test_terraform_s_values(outhaul: Deployment, tenant: Objects, agent_image: str) -> None:
    """Every kind of value that Terraform can print is in the application's file as Terraform has it."""
    outputs = "".join(f'output "{name}" {{\n  value = {hcl}\n}}\n' for name, (hcl, _) in TERRAFORM.items())
    outputs += f'output "{SENSITIVE}" {{\n  value = "\\u0007\\r\\n"\n  sensitive = true\n}}\n'
    # To Terraform an output that is null is none.
    outputs += 'output "nothing" {\n  value = null\n}\n'
    tenant.install("values", source={"files": {"main.tf": outputs}})
    tenant.ready("values")
    files = {name: data for name, (_, data) in TERRAFORM.items()} | {SENSITIVE: b"\x07\r\n"}
    assert mounted_files(outhaul, tenant, "values-outputs", agent_image) == expected(files)


def test_json_as_a_command_wrote_it(outhaul: Deployment, objects: Objects, agent_image: str) -> None:
    """Numbers stay as they were written, keys keep their order, null is null."""
    listing = {"command": {"command": ["printf", "%s", JSON_TEXT], "format": "json"}}
    commands = {"install": [{"name": "nothing", "command": ["true"]}]}
    objects.install("values", engine="exec", commands=commands, outputs={"from": [listing]})
    objects.ready("values")
    assert mounted_files(outhaul, objects, "values-outputs", agent_image) == expected(JSON_FILES)


def test_bytes(outhaul: Deployment, objects: Objects, agent_image: str) -> None:
    """Files come through as they are: all 256 bytes, nothing, half a mebibyte."""
    commands = {"install": [{"name": "write", "command": ["python3", "-c", _WRITE_FILES]}]}
    objects.install("values", engine="exec", commands=commands)
    objects.ready("values")
    assert mounted_files(outhaul, objects, "values-outputs", agent_image) == expected(WRITTEN_FILES)
