"""Loopback addresses for pods, unique on the machine.

Each kubelet leases one 127.N.0.0/16 for as long as it lives. The lease is a bound abstract Unix socket: it is
scoped to the network namespace as the addresses are, asks for no file or permission, and ends with the
process however that ends.
"""

import contextlib
import ipaddress
import itertools
import os
import socket

FIRST, LAST = 16, 250


class NoRangeLeftError(Exception):
    """Every range is leased by another kubelet on this machine."""


class Addresses:
    """Hands out addresses of one leased range; a released one comes back as late as possible."""

    def __init__(self) -> None:
        self._lease, number = _lease()
        hosts = ipaddress.ip_network(f"127.{number}.0.0/16").num_addresses
        base = int(ipaddress.ip_address(f"127.{number}.0.0"))
        self._all = itertools.cycle(
            str(ipaddress.ip_address(base + offset)) for offset in range(1, hosts) if offset % 256 not in {0, 255}
        )
        self._used: set[str] = set()

    def take(self) -> str:
        """An address that no other pod has."""
        address = next(address for address in self._all if address not in self._used)
        self._used.add(address)
        return address

    def release(self, address: str) -> None:
        """Give an address back."""
        self._used.discard(address)


def _lease() -> tuple[socket.socket, int]:
    span = LAST - FIRST
    for number in range(span):
        candidate = FIRST + (os.getpid() + number) % span
        lease = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        with contextlib.suppress(OSError):
            lease.bind(f"\0outhaul-stand-in-kubelet-127.{candidate}")
            return lease, candidate
        lease.close()
    message = "all ranges of loopback addresses are leased"
    raise NoRangeLeftError(message)
