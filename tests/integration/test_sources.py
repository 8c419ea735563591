"""Where files come from, and what of them is refused: content may be anybody's."""

from collections.abc import Iterator

import pytest
from archives import FileServer, member, packed, serving, sha256, tar, tar_gz
from cluster.errors import RequestFailed
from cluster.objects import Json, Objects, script

MODULE = """
variable "name" { type = string }
resource "terraform_data" "service" { input = var.name }
output "host" { value = "${terraform_data.service.output}.${trimspace(file("../../shared/domain"))}" }
"""


@pytest.fixture
def server() -> Iterator[FileServer]:
    """A file server that pods can reach."""
    with serving() as files:
        yield files


def module(server: FileServer, release: str, domain: str) -> Json:
    """Serves an archive of a module, as a Git host would make it; returns it as a source."""
    root = f"infrastructure-{release}"
    data = tar_gz({f"{root}/modules/service/main.tf": MODULE, f"{root}/shared/domain": f"{domain}\n"})
    path = f"/infrastructure/{release}.tar.gz"
    server.at[path] = data
    return {"archive": {"url": server.url + path, "sha256": sha256(data), "path": f"{root}/modules/service"}}


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
            "spec.source.files: 'a\\nb' has a control character",
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


def test_terraform_from_an_archive(tenant: Objects, server: FileServer) -> None:
    """A module comes from a directory of an archive, with what lies beside it; another release is an upgrade."""
    tenant.install("service", engine="terraform", source=module(server, "1.0", "old"), parameters={"name": "shop"})
    tenant.ready("service")
    assert tenant.secret("service-outputs") == {"host": b"shop.old"}
    tenant.respec("service", source=module(server, "1.1", "new"))
    tenant.ready("service")
    assert tenant.secret("service-outputs") == {"host": b"shop.new"}
    assert [one["spec"]["action"] for one in tenant.runs("service")] == ["install", "upgrade"]


def test_an_archive_for_a_script(objects: Objects, server: FileServer) -> None:
    """Commands find an archive's files, those that can be run among them, and their parameters beside them."""
    data = packed(tar((member("bin/install", mode=0o755), b"#!/bin/sh\ncp parameters.json $OUTHAUL_OUTPUTS\n")))
    server.at["/code.tar.gz"] = data
    archive = {"url": f"{server.url}/code.tar.gz", "sha256": sha256(data).upper()}
    objects.install("service", **script("bin/install", source={"archive": archive}, parameters={"size": 3}))
    objects.ready("service")
    assert objects.secret("service-outputs") == {"parameters.json": b'{"size":3}'}


def test_a_bad_archive_fails_its_run(objects: Objects, server: FileServer) -> None:
    """Run and Installation say what is wrong with an archive; once it is put right, another run is fine."""
    good, bad = tar_gz({"a": "x"}), packed(tar(member("../../etc/cron.d/x")))
    server.at["/code.tar.gz"] = bad
    archive = {"url": f"{server.url}/code.tar.gz?token=hunter2", "sha256": sha256(bad)}
    objects.install("service", **script("cp a $OUTHAUL_OUTPUTS", source={"archive": archive}))
    expected = [
        ("SourceUnavailable", "the server answers 404 Not Found"),
        ("BadSource", "its member '../../etc/cron.d/x' has '..'"),
        ("BadSource", f"its SHA-256 is {sha256(good)}"),
    ]
    for number, (reason, words) in enumerate(expected, start=1):
        run = objects.ran("service", number)
        assert (run["status"]["phase"], run["status"]["reason"]) == ("Failed", reason)
        message = run["status"]["message"]
        assert f"the archive '{server.url}/code.tar.gz': {words}" in message
        assert "hunter2" not in message
        assert [one["phase"] for one in run["status"]["steps"]] == ["Skipped"]
        assert message in objects.condition("Installation", "service", "Stalled", "True", "RunFailed")["message"]
        server.at["/code.tar.gz?token=hunter2"] = [bad, good, good][number - 1]
        if number < len(expected):
            objects.annotate("service", {"outhaul.dev/retry": str(number)})
    objects.respec("service", source={"archive": {**archive, "sha256": sha256(good)}})
    objects.ready("service")
    assert objects.secret("service-outputs") == {"a": b"x"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"url": "https://user:hunter2@example.com/a.tar.gz"}, "spec.source.archive.url"),
        ({"url": "file:///etc/passwd"}, "spec.source.archive.url"),
        ({"sha256": "0" * 63}, "spec.source.archive.sha256"),
        ({"sha256": None}, "spec.source.archive.sha256"),
    ],
)
def test_an_archive_has_an_address_and_a_digest(objects: Objects, change: Json, words: str) -> None:
    """The API server itself refuses another scheme, credentials in the address, and an archive without a digest."""
    archive = {"url": "https://example.com/a.tar.gz", "sha256": "0" * 64, **change}
    with pytest.raises(RequestFailed) as caught:
        objects.install("service", **script("true", source={"archive": archive}))
    assert words in str(caught.value)
