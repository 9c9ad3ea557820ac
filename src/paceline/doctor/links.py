"""Which interface carries a job's messages, and whether it can."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.doctor.facts import Facts
from paceline.doctor.finding import Finding, broken, note, ok, warning
from paceline.doctor.interfaces import (
    Interface,
    chosen_by_nccl,
    interface_of,
    is_loopback,
)

_SLOW_MBIT = 1000
GLOO, NCCL, TENSORPIPE = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME"


def check_links(facts: Facts, *, is_spread: bool = False) -> Iterator[Finding]:
    """Judge the interfaces of one worker.

    Args:
        facts: What it sees.
        is_spread: Whether the job's workers sit on several machines.

    """
    yield from _check_exact(facts, GLOO, is_spread)
    yield from _check_exact(facts, TENSORPIPE, is_spread)
    yield from _check_nccl(facts, is_spread)
    if GLOO not in facts.variables:
        yield from _check_host_name(facts, is_spread)
    yield from _check_infiniband(facts)
    used = used_interface(facts)
    if used is None and GLOO not in facts.variables:
        yield note("links", "no interface leads to other machines")
    elif used is not None and used.is_up:
        yield from _check_quality(used)


def used_interface(facts: Facts) -> Interface | None:
    """The interface that Gloo would use, or else the one that leads to other machines."""
    name = facts.variables.get(GLOO, "").split(",")[0]
    if name:
        return next((each for each in facts.interfaces if each.name == name), None)
    for address in facts.host_addresses:
        found = interface_of(address, facts.interfaces)
        if found is not None and not found.is_loopback:
            return found
    return interface_of(facts.outward_address, facts.interfaces)


def outward_interface(facts: Facts) -> str:
    """The name of the interface that other machines are reached by, as far as is known."""
    used = interface_of(facts.outward_address, facts.interfaces)
    if used is not None and not used.is_loopback:
        return used.name
    usable = [each for each in facts.interfaces if _is_usable(each) and not each.is_loopback]
    return usable[0].name if usable else "the interface that leads to the other machines"


def _check_exact(facts: Facts, variable: str, is_spread: bool) -> Iterator[Finding]:
    """A variable that lists names of interfaces, exactly."""
    value = facts.variables.get(variable)
    if value is None:
        return
    by_name = {each.name: each for each in facts.interfaces}
    remedy = f"set {variable}={outward_interface(facts)}, or unset it"
    for name in value.split(","):
        if name not in by_name:
            there = ", ".join(each.name for each in facts.interfaces if _is_usable(each))
            yield broken(
                "links",
                f"{variable}={value} names {name or 'nothing'}, and {facts.host} has no such "
                f"interface (it has {there or 'none that is up'})",
                remedy,
            )
        else:
            yield from _check_named(by_name[name], variable, facts.host, remedy, is_spread)


def _check_nccl(facts: Facts, is_spread: bool) -> Iterator[Finding]:
    value = facts.variables.get(NCCL)
    if value is None:
        return
    remedy = f"set {NCCL}={outward_interface(facts)}, or unset it"
    chosen = chosen_by_nccl(value, facts.interfaces)
    if not chosen:
        yield broken("links", f"{NCCL}={value} fits no interface of {facts.host}", remedy)
    elif len(chosen) == 1:
        yield from _check_named(chosen[0], NCCL, facts.host, remedy, is_spread)
    elif not any(_is_usable(each) for each in chosen):
        yield broken("links", f"{NCCL}={value} fits only interfaces that are down", remedy)


def _check_named(
    interface: Interface, variable: str, host: str, remedy: str, is_spread: bool
) -> Iterator[Finding]:
    name = f"{variable} names {interface.name}"
    if not interface.is_up:
        yield broken("links", f"{name}, which is down on {host}", remedy)
    elif not interface.addresses:
        yield broken("links", f"{name}, which has no address on {host}", remedy)
    elif interface.is_loopback and is_spread:
        yield broken("links", f"{name}, the loopback, and this job has several machines", remedy)
    elif interface.is_loopback:
        yield note("links", f"{name}, the loopback: a job can have this machine alone", remedy)


def _check_host_name(facts: Facts, is_spread: bool) -> Iterator[Finding]:
    """Gloo listens where the host's own name points to, unless it is told otherwise."""
    remedy = (
        f"set {GLOO}={outward_interface(facts)}, or let {facts.host} resolve to its own "
        "address in /etc/hosts"
    )
    first = facts.host_addresses[0] if facts.host_addresses else None
    if first is None:
        text = f"the host name {facts.host} does not resolve, and Gloo falls back to the loopback"
    elif is_loopback(first):
        text = f"the host name {facts.host} resolves to {first}, so Gloo listens on the loopback"
    elif interface_of(first, facts.interfaces) is None:
        text = f"the host name {facts.host} resolves to {first}, which no interface here has"
    else:
        yield ok("links", f"the host name {facts.host} resolves to {first}")
        return
    if is_spread:
        yield broken("links", f"{text}; other machines cannot reach it", remedy)
    else:
        yield warning("links", f"{text}: a job on several machines would not connect", remedy)


def _check_infiniband(facts: Facts) -> Iterator[Finding]:
    if not facts.infiniband:
        return
    names = ", ".join(facts.infiniband)
    if facts.variables.get("NCCL_IB_DISABLE") == "1":
        yield warning(
            "links",
            f"NCCL_IB_DISABLE=1, and this machine has InfiniBand ({names})",
            "unset NCCL_IB_DISABLE, so that NCCL uses it",
        )
    wanted = facts.variables.get("NCCL_IB_HCA", "")
    prefixes = [part.partition(":")[0] for part in wanted.lstrip("^=").split(",") if part]
    if wanted.startswith("^"):
        return
    for prefix in prefixes:
        if not any(name.startswith(prefix) for name in facts.infiniband):
            yield broken(
                "links",
                f"NCCL_IB_HCA={wanted} names {prefix}, and {facts.host} has only {names}",
                "correct NCCL_IB_HCA, or unset it",
            )


def _check_quality(used: Interface) -> Iterator[Finding]:
    speed = f"{used.speed_mbit / 1000:g} Gbit/s" if used.speed_mbit else "speed unknown"
    if used.is_half_duplex and used.speed_mbit:
        yield warning(
            "links",
            f"{used.name} runs half duplex",
            "let both ends negotiate, and look at the cable and the switch's port",
        )
    if 0 < used.speed_mbit < _SLOW_MBIT:
        yield warning(
            "links",
            f"{used.name} runs at {used.speed_mbit} Mbit/s",
            "look at the cable and the switch's port, or use a strategy that exchanges rarely, "
            "such as daso",
        )
    else:
        yield ok("links", f"{used.name}: {speed}, MTU {used.mtu}")


def _is_usable(interface: Interface) -> bool:
    return interface.is_up and bool(interface.addresses)
