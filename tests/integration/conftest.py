"""Outhaul running on the tests' control plane, for the tests that watch it at work."""

from collections.abc import Iterator

import pytest
from cluster.controlplane import ControlPlane
from cluster.stack import Stack


@pytest.fixture(scope="session")
def stack(control_plane: ControlPlane) -> Iterator[Stack]:
    """The stand-in kubelet and the operator, under its own account and role, shared by all tests of the run."""
    running = Stack(control_plane)
    yield running.start()
    running.stop()
