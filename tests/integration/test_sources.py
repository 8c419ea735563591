"""Where files come from, and what of them is refused: content may be anybody's."""

from typing import Any

import pytest
from cluster.objects import Json, Objects


def script(text: str, **fields: Any) -> Json:
    """The spec of an Installation that runs a shell script."""
    return {"engine": "exec", "commands": {"install": [{"name": "main", "command": ["sh", "-c", text]}]}, **fields}


def test_a_secret_is_a_source(objects: Objects) -> None:
    """The keys of a Secret are files of the working directory; the operator, who cannot read it, has no part in it."""
    objects.create("Secret", "code", stringData={"install.sh": '#!/bin/sh\nprintf "$0" > "$OUTHAUL_OUTPUTS/ran"\n'})
    objects.install("service", **script("./install.sh", source={"secretRef": {"name": "code"}}))
    objects.ready("service")
    assert objects.secret("service-outputs") == {"ran": b"./install.sh"}


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        pytest.param(
            script("true", source={"files": {"a": "x", "a/b": "x"}}),
            "'a' and 'a/b' cannot both be files of the working directory",
            id="a file as a directory",
        ),
        pytest.param(
            script("true", source={"files": {"a\nb": "x"}}),
            "'a\\nb' must be a relative path without '..' and control characters",
            id="a file with a line break",
        ),
        pytest.param(
            script("printf a\0b"), "spec.commands.install[0].command[2] has a NUL character", id="a NUL in an argument"
        ),
        pytest.param(
            script("true", parameters={"who": "a\0b"}),
            "spec.parameters: 'who' has a NUL character",
            id="a NUL in a parameter",
        ),
        pytest.param(
            {"engine": "exec", "commands": {"install": [{"name": "main", "command": ["true\n"]}]}},
            "spec.commands.install[0].command[0] must name a program",
            id="a program with a line break",
        ),
    ],
)
def test_what_no_run_could_carry_out_is_refused(objects: Objects, spec: Json, words: str) -> None:
    """An Installation with names or values that no file or program can have is refused before it has a run."""
    objects.install("service", **spec)
    stalled = objects.condition("Installation", "service", "Stalled", "True", "InvalidSpec")
    assert words in stalled["message"]
    assert objects.runs("service") == []


def test_lines_arrive_as_they_are(objects: Objects) -> None:
    """A script of several lines is an argument, and a certificate a variable's value: both keep their lines."""
    certificate = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
    text = 'if true\nthen\n  printf %s "$PEM" > "$OUTHAUL_OUTPUTS/pem"\nfi\n'
    command = {"name": "main", "command": ["sh", "-c", text], "env": [{"name": "PEM", "value": certificate}]}
    objects.install("service", engine="exec", commands={"install": [command]})
    objects.ready("service")
    assert objects.secret("service-outputs") == {"pem": certificate.encode()}
