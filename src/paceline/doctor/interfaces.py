"""The network interfaces of this machine, and which of them lead to other machines."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from pathlib import Path

import psutil
from pydantic import BaseModel

_ELSEWHERE = "192.0.2.1"  # an address for documents (RFC 5737): no packet is sent to it
_INFINIBAND = Path("/sys/class/infiniband")


class Interface(BaseModel):
    """One network interface."""

    name: str
    addresses: list[str]
    is_up: bool
    is_half_duplex: bool
    speed_mbit: int
    """0 where the system does not know, as in virtual machines."""
    mtu: int

    @property
    def is_loopback(self) -> bool:
        """Whether it only leads to this machine itself."""
        return bool(self.addresses) and all(is_loopback(each) for each in self.addresses)


def find_interfaces() -> list[Interface]:
    """All interfaces of this machine, as this process's network namespace shows them."""
    addresses = psutil.net_if_addrs()
    return [
        Interface(
            name=name,
            addresses=[
                each.address.partition("%")[0]
                for each in addresses.get(name, ())
                if each.family in (socket.AF_INET, socket.AF_INET6)
            ],
            is_up=stats.isup,
            is_half_duplex=stats.duplex == psutil.NIC_DUPLEX_HALF,
            speed_mbit=stats.speed,
            mtu=stats.mtu,
        )
        for name, stats in sorted(psutil.net_if_stats().items())
    ]


def infiniband_devices() -> list[str]:
    """The names of this machine's RDMA devices."""
    with contextlib.suppress(OSError):
        return sorted(path.name for path in _INFINIBAND.iterdir())
    return []


def is_loopback(address: str) -> bool:
    """Whether an address only leads to the machine itself."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def addresses_of(host: str) -> list[str]:
    """What a host name resolves to here; nothing if it does not."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def address_towards(host: str | None) -> str | None:
    """The address of this machine that packets to a host would come from, by its routes."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host or _ELSEWHERE, 9))
        return str(probe.getsockname()[0])
    return None


def interface_of(address: str | None, interfaces: list[Interface]) -> Interface | None:
    """The interface that has an address."""
    return next((each for each in interfaces if address in each.addresses), None)


def chosen_by_nccl(value: str, interfaces: list[Interface]) -> list[Interface]:
    """The interfaces that ``NCCL_SOCKET_IFNAME`` selects: prefixes, ``=`` exact, ``^`` all but."""
    is_excluding = value.startswith("^")
    names = value.removeprefix("^")
    is_exact = names.startswith("=")
    wanted = [name for name in names.removeprefix("=").split(",") if name]

    def is_named(interface: Interface) -> bool:
        return any(
            interface.name == name if is_exact else interface.name.startswith(name)
            for name in wanted
        )

    return [each for each in interfaces if is_named(each) != is_excluding]
