"""What `make test` says at its end."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import suite
from suite import Result

TESTS = Path(suite.__file__).parent


def test_each_part_has_a_line() -> None:
    """The Kubernetes comes first, then each part with its counts, then what was left out, and why."""
    results = [
        Result("check", is_ok=True, seconds=48.2),
        Result("node", is_ok=False, seconds=125, counts=Counter({"passed": 3, "failed": 1, "left out": 2})),
    ]
    results[1].left_out["a real node needs root"] = 2
    head, *lines = suite.summary(results, 7, 173)
    assert head.endswith("; SEED=7; 2 min 53 s")
    assert [" ".join(line.split()) for line in lines] == [
        "check ok 0 min 48 s",
        "node FAILED 2 min 05 s 3 passed, 1 failed, 2 left out",
        "left out of node: 2. a real node needs root",
    ]


def test_a_part_that_is_not_known_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """There is nothing to run, and the message has the parts that there are."""
    assert suite.main(["unity"]) == 2
    assert "no part of the tests: unity; there are check, unit, wire" in capsys.readouterr().err


TRIAL = """
import pytest
def test_good(): pass
def test_bad(): assert False
@pytest.fixture
def broken(): raise ValueError
def test_broken(broken): pass
@pytest.mark.skip(reason="no such thing here")
def test_left_out(): pass
"""


def test_a_part_that_fails_does_not_keep_the_next_from_running(tmp_path: Path) -> None:
    """All are run and told, and the exit status says that something failed."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "test_trial.py").write_text(TRIAL if name == "one" else "def test_good(): pass\n")
    program = (
        f"import sys; from pathlib import Path; sys.path.insert(0, {str(TESTS)!r}); import suite\n"
        f"suite.ROOT = Path({str(tmp_path)!r}); suite.REPORTS = suite.ROOT / 'reports'\n"
        "suite.TESTS = {'one': ('one',), 'two': ('two',)}; suite.PARTS = ('one', 'two')\n"
        "sys.exit(suite.main(['one', 'two']))\n"
    )
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "SEED": "5"})
    assert ended.returncode == 1
    head, *lines = ended.stdout.rpartition("\n\n")[2].splitlines()
    assert "SEED=5" in head
    assert [line.split()[:2] for line in lines[:2]] == [["one", "FAILED"], ["two", "ok"]]
    assert lines[0].endswith("1 passed, 2 failed, 1 left out")
    assert lines[1].endswith("1 passed")
    assert "left out of one: 1. no such thing here" in lines[2]
