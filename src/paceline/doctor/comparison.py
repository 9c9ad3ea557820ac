"""What differs between the workers of a job, and should not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from paceline.doctor.facts import Facts
from paceline.doctor.finding import Finding, Level, Topic, broken, note, ok, warning
from paceline.doctor.interfaces import is_loopback
from paceline.doctor.links import used_interface

_ALLOWED_CLOCK_S = 0.1
# attach refuses other versions of the first two, NCCL of the third.
_SAME_VERSIONS: dict[str, Level] = {
    "paceline": "broken",
    "torch": "broken",
    "nccl": "broken",
    "cuda": "warning",
    "python": "warning",
    "numpy": "warning",
}
_SAME_VARIABLES: dict[str, Level] = {
    "WORLD_SIZE": "broken",
    "MASTER_ADDR": "broken",
    "MASTER_PORT": "broken",
    "OMP_NUM_THREADS": "warning",
    "CUDA_LAUNCH_BLOCKING": "warning",
}
_SAME_PREFIXES = ("NCCL_", "TORCH_NCCL_", "GLOO_")
# These name what each machine may call differently, or only say what is logged.
_MAY_DIFFER = ("_IFNAME", "_IB_HCA", "_DEBUG", "_DEBUG_FILE", "_TOPO_FILE")

ByRank = Mapping[int, Facts]


def compare(facts: ByRank, *, num_workers: int) -> Iterator[Finding]:
    """Judge what the workers that came see, side by side."""
    missing = [rank for rank in range(num_workers) if rank not in facts]
    if missing:
        yield replace(
            broken(
                "job",
                f"{_named(missing)} of {num_workers} did not come",
                f"look at their logs, and whether WORLD_SIZE={num_workers} is the number of "
                "processes that were started",
            ),
            workers=tuple(missing),
        )
    machines = len({each.machine for each in facts.values()})
    yield ok(
        "job", f"{len(facts)} workers on {machines} {'machine' if machines == 1 else 'machines'}"
    )
    yield from _compare_versions(facts)
    yield from _compare_variables(facts)
    yield from _compare_links(facts)
    if machines > 1:
        yield from _check_master(facts)
    kinds = {gpu for each in facts.values() for gpu in each.gpus}
    if len(kinds) > 1:
        yield note(
            "job",
            f"unequal GPUs: {', '.join(sorted(kinds))}",
            "let pace.loader share each batch by speed",
        )


def compare_clocks(ahead_s: Mapping[int, tuple[float, float]]) -> Iterator[Finding]:
    """Judge how far clocks are apart.

    Args:
        ahead_s: By rank: how far a clock is ahead of the first worker's, and how sure that is.

    """
    for rank, (ahead, error_s) in ahead_s.items():
        if abs(ahead) - error_s > _ALLOWED_CLOCK_S:
            direction = "ahead of" if ahead > 0 else "behind"
            yield replace(
                warning(
                    "clocks",
                    f"the clock of worker {rank} is {abs(ahead):.2g} s {direction} worker 0's, so "
                    "that logs cannot be compared",
                    "start chrony or systemd-timesyncd on all machines",
                ),
                workers=(rank,),
            )
    largest = max((abs(ahead) for ahead, _ in ahead_s.values()), default=None)
    if largest is not None and largest <= _ALLOWED_CLOCK_S:
        yield ok("clocks", f"the machines' clocks are within {1e3 * largest:.1f} ms")


def _compare_versions(facts: ByRank) -> Iterator[Finding]:
    for name, level in _SAME_VERSIONS.items():
        yield from _differing(
            facts,
            {rank: each.versions.get(name, "missing") for rank, each in facts.items()},
            partial(_told, name),
            level=level,
            topic="versions",
            remedy=f"install the same {name} on all machines",
        )


def _compare_variables(facts: ByRank) -> Iterator[Finding]:
    names = {name for each in facts.values() for name in each.variables}
    wanted = dict(_SAME_VARIABLES)
    for name in sorted(names):
        if name.startswith(_SAME_PREFIXES) and not name.endswith(_MAY_DIFFER):
            wanted[name] = "warning"
    for name, level in wanted.items():
        yield from _differing(
            facts,
            {rank: each.variables.get(name, "not set") for rank, each in facts.items()},
            partial(_told, name),
            level=level,
            topic="environment",
            remedy=f"set {name} to the same value for all workers",
        )


def _told(name: str, odd: str, usual: str) -> str:
    return f"{name} is {odd} there and {usual} elsewhere"


def _compare_links(facts: ByRank) -> Iterator[Finding]:
    used = {rank: used_interface(each) for rank, each in facts.items()}
    # What leads to the machine itself, or is not known, cannot be compared.
    real = {rank: facts[rank] for rank, link in used.items() if link and not link.is_loopback}
    by_mtu = {rank: str(link.mtu) for rank, link in used.items() if link and rank in real}
    yield from _differing(
        real,
        by_mtu,
        lambda odd, usual: f"the MTU is {odd} there and {usual} elsewhere: large packets get lost",
        level="warning",
        topic="links",
        remedy="set the same MTU on all machines and on the switch",
    )
    by_speed = {
        rank: str(link.speed_mbit)
        for rank, link in used.items()
        if link and rank in real and link.speed_mbit
    }
    yield from _differing(
        real,
        by_speed,
        lambda odd, usual: f"the link runs at {odd} Mbit/s there and at {usual} elsewhere",
        level="warning",
        topic="links",
        remedy="look at the cable and the switch's port: the slowest link sets the pace",
    )


def _check_master(facts: ByRank) -> Iterator[Finding]:
    home = facts[0].machine if 0 in facts else None
    lost = [
        rank
        for rank, each in facts.items()
        if each.machine != home and any(map(is_loopback, each.master_addresses))
    ]
    if lost:
        address = facts[lost[0]].variables.get("MASTER_ADDR")
        yield replace(
            broken(
                "environment",
                f"MASTER_ADDR={address} is the machine itself for {_named(lost)}",
                "set MASTER_ADDR to the first node's address as the others see it",
            ),
            workers=tuple(lost),
        )


def _differing(
    facts: ByRank,
    values: Mapping[int, str],
    describe: Callable[[str, str], str],
    *,
    level: Level,
    topic: Topic,
    remedy: str,
) -> Iterator[Finding]:
    """A finding for each value that is not what most workers have."""
    counts = Counter(values.values())
    usual = counts.most_common(1)[0][0] if counts else ""
    for odd in counts:
        if odd != usual:
            ranks = tuple(rank for rank, value in values.items() if value == odd)
            where = f"{_named(ranks)} on {', '.join(sorted({facts[rank].host for rank in ranks}))}"
            yield Finding(
                topic=topic,
                level=level,
                text=f"{where}: {describe(odd, usual)}",
                remedy=remedy,
                workers=ranks,
            )


def _named(ranks: list[int] | tuple[int, ...]) -> str:
    noun = "worker" if len(ranks) == 1 else "workers"
    shown = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"{noun} {shown}"
