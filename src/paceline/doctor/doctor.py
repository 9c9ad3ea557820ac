"""Looks at this worker, or at all workers of a job, and says what to mend."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from paceline.doctor.comparison import compare, compare_clocks
from paceline.doctor.environment import check_environment
from paceline.doctor.facts import Facts, collect_facts
from paceline.doctor.finding import Finding, broken, is_broken, worst
from paceline.doctor.lab import check_lab
from paceline.doctor.links import check_links
from paceline.doctor.local import (
    check_backends,
    check_clock,
    check_limits,
    check_threads,
    check_versions,
)
from paceline.teams.launcher import Place, find_place
from paceline.teams.watch import first_line


@dataclass(frozen=True, kw_only=True)
class Examination:
    """What was found, on this worker alone or on all of a job."""

    findings: tuple[Finding, ...]
    facts: Mapping[int, Facts]
    """What each worker sees, by rank."""
    num_workers: int

    @property
    def is_broken(self) -> bool:
        """Whether anything must be mended before training works."""
        return is_broken(self.findings)

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "verdict": worst(self.findings),
            "num_workers": self.num_workers,
            "findings": [finding.to_dict() for finding in self.findings],
            "workers": {str(rank): facts.model_dump() for rank, facts in self.facts.items()},
        }


def examine(
    *, timeout_s: float = 30.0, environment: Mapping[str, str] = os.environ
) -> Examination | None:
    """Look at this environment. In a job, all workers call it, and the first one gets the answer.

    Args:
        timeout_s: How long to wait for other workers.
        environment: Where the launcher's variables are.

    Returns:
        What was found; None on the other workers of a job.

    """
    facts = collect_facts(environment)
    try:
        place = find_place(environment)
    except ValueError:  # it is among the findings
        return _examine_alone(facts, 0, timeout_s=timeout_s)
    if not _can_meet(place, facts):
        return _examine_alone(facts, place.rank, timeout_s=timeout_s)
    return _examine_job(facts, place, environment, timeout_s=timeout_s)


def _can_meet(place: Place, facts: Facts) -> bool:
    """Whether there are others, and an address to meet them at."""
    is_numbered = 0 <= place.rank < place.num_workers and place.num_workers > 1
    has_port = facts.variables.get("MASTER_PORT", "").isdigit()
    return is_numbered and has_port and bool(facts.master_addresses)


def _examine_alone(own: Facts, rank: int, *, timeout_s: float) -> Examination:
    from paceline.doctor.trial import try_alone

    facts = {rank: own}
    findings = [*_check_all(facts)]
    if not is_broken(findings):
        findings.append(try_alone(timeout_s=timeout_s))
    findings.append(check_lab())
    return Examination(findings=_sorted(findings), facts=facts, num_workers=1)


def _examine_job(
    own: Facts, place: Place, environment: Mapping[str, str], *, timeout_s: float
) -> Examination | None:
    from paceline.doctor.meeting import Meeting
    from paceline.doctor.trial import try_together

    try:
        meeting = Meeting(place, environment, timeout_s=timeout_s)
    except (RuntimeError, ValueError) as error:
        return _not_met(own, place, first_line(error))
    if meeting.is_taken():
        return _not_met(own, place, f"another worker has rank {place.rank}, too")
    meeting.tell(own)
    facts: dict[int, Facts] = {}
    if place.rank == 0:
        facts = meeting.hear()
        findings = [*_check_all(facts), *compare(facts, num_workers=place.num_workers)]
        clocks, is_tried = _others(facts), not is_broken(findings)
        meeting.plan(clocks=clocks, is_tried=is_tried)
        findings += compare_clocks(meeting.clocks_ahead_s(clocks))
    else:
        clocks, is_tried = meeting.next_plan()
        if place.rank in clocks:
            meeting.compare_clock()
    tried = try_together(meeting.store, place, timeout_s=timeout_s) if is_tried else None
    meeting.leave(facts)
    if place.rank != 0:
        return None
    findings += [] if tried is None else [tried]
    return Examination(findings=_sorted(findings), facts=facts, num_workers=place.num_workers)


def _not_met(own: Facts, place: Place, problem: str) -> Examination:
    found = broken(
        "job",
        f"worker {place.rank} on {own.host} could not meet the others: {problem}",
        "check MASTER_ADDR and MASTER_PORT, that the first worker runs, and that no firewall is "
        "between them",
    )
    facts = {place.rank: own}
    findings = [*_check_all(facts), replace(found, workers=(place.rank,))]
    return Examination(findings=_sorted(findings), facts=facts, num_workers=place.num_workers)


def _others(facts: Mapping[int, Facts]) -> list[int]:
    """The first worker of each machine but the first worker's own."""
    firsts: dict[str, int] = {}
    for rank, each in sorted(facts.items()):
        firsts.setdefault(each.machine, rank)
    return [rank for rank in firsts.values() if rank != 0]


def _check_all(facts: Mapping[int, Facts]) -> Iterator[Finding]:
    """Judge each worker for itself; what is said of several is said once."""
    on_machine = Counter(each.machine for each in facts.values())
    ranks_by_finding: dict[Finding, list[int]] = {}
    for rank, each in facts.items():
        num_local = on_machine[each.machine]
        for finding in (
            *check_environment(each),
            *check_backends(each, num_local=num_local),
            *check_links(each, is_spread=len(on_machine) > 1),
            *check_clock(each),
            *check_versions(each),
            *check_limits(each),
            *check_threads(each, num_local=num_local),
        ):
            ranks_by_finding.setdefault(finding, []).append(rank)
    for finding, ranks in ranks_by_finding.items():
        is_of_all = len(ranks) == len(facts)
        yield finding if is_of_all else replace(finding, workers=tuple(ranks))


_TOPICS = (
    "job",
    "backends",
    "environment",
    "links",
    "clocks",
    "versions",
    "limits",
    "threads",
    "lab",
)


def _sorted(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(findings, key=lambda each: _TOPICS.index(each.topic)))
