"""What one machine offers: backends, versions, clock, limits, cores."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.doctor.facts import EXTRAS, Facts
from paceline.doctor.finding import Finding, broken, note, ok, warning

_LEAST_SHARED_MEMORY = 1 << 30
_LEAST_OPEN_FILES = 4096
TESTED_TORCH = (2, 13)
"""The torch that the tests run with; docs/reference/compatibility.md has the table."""


def check_backends(facts: Facts, *, num_local: int) -> Iterator[Finding]:
    """Whether workers of this machine can talk to others.

    Args:
        facts: What a worker sees.
        num_local: The workers on its machine.

    """
    if not facts.backends:
        yield broken(
            "backends",
            "this torch has no backend for torch.distributed",
            "install an official build of torch",
        )
        return
    yield ok("backends", f"{' and '.join(facts.backends)} in torch {facts.versions['torch']}")
    if facts.cuda_problem:
        yield warning(
            "backends",
            f"torch was built with CUDA {facts.versions.get('cuda')}, which does not start: "
            f"{facts.cuda_problem}",
            "install NVIDIA's driver or a torch for the CPU, or look at CUDA_VISIBLE_DEVICES",
        )
    elif not facts.gpus:
        yield note("backends", "no GPU: workers train on the CPU and talk over Gloo")
    elif num_local > len(facts.gpus):
        yield warning(
            "backends",
            f"{num_local} workers share {len(facts.gpus)} GPUs, so Gloo carries what NCCL could",
            "start one worker per GPU",
        )
    else:
        yield ok("backends", f"{len(facts.gpus)} x {facts.gpus[0]}")


def check_versions(facts: Facts) -> Iterator[Finding]:
    """Whether what is installed fits together."""
    shown = ", ".join(f"{name} {version}" for name, version in facts.versions.items())
    yield ok("versions", shown)
    release = tuple(map(int, facts.versions["torch"].split("+")[0].split(".")[:2]))
    if release != TESTED_TORCH:
        tested = ".".join(map(str, TESTED_TORCH))
        yield note(
            "versions",
            f"paceline's tests run with torch {tested}, not with {facts.versions['torch']}",
            f"install torch {tested} if something fails",
        )
    missing = [
        extra
        for extra, packages in EXTRAS.items()
        if not any(package in facts.extras for package in packages)
    ]
    if missing:
        yield note(
            "versions",
            f"not installed: {', '.join(missing)}",
            f"pip install 'paceline[{','.join(missing)}]' if you need it",
        )


def check_clock(facts: Facts) -> Iterator[Finding]:
    """Whether this machine's clock follows a time server."""
    if facts.is_clock_synchronised is None:
        yield note("clocks", "the system does not say whether its clock is synchronised")
    elif facts.is_clock_synchronised:
        yield ok("clocks", "synchronised")
    else:
        yield warning(
            "clocks",
            "the clock follows no time server, so that logs and traces of machines drift apart",
            "start chrony or systemd-timesyncd",
        )


def check_limits(facts: Facts) -> Iterator[Finding]:
    """Memory and files that processes may have."""
    findings = []
    size = facts.shared_memory_bytes
    if size is not None and size < _LEAST_SHARED_MEMORY:
        findings.append(
            warning(
                "limits",
                f"/dev/shm has {size / (1 << 20):.0f} MiB; loaders with several processes and NCCL "
                "put their data there",
                "start the container with --shm-size=8g or --ipc=host",
            )
        )
    if facts.open_files is not None and facts.open_files < _LEAST_OPEN_FILES:
        findings.append(
            warning(
                "limits",
                f"a process may open {facts.open_files} files; large jobs and loaders need more",
                "raise it with ulimit -n 65536",
            )
        )
    locked = facts.locked_memory_bytes
    if facts.infiniband and locked is not None:
        findings.append(
            broken(
                "limits",
                f"a process may lock {locked / (1 << 20):.0f} MiB of memory, and InfiniBand needs "
                "to lock all that it sends",
                "raise it with ulimit -l unlimited, or --ulimit memlock=-1 for a container",
            )
        )
    if not findings:
        shown = "unknown" if size is None else f"{size / (1 << 30):.1f} GiB"
        files = "unlimited" if facts.open_files is None else str(facts.open_files)
        findings.append(ok("limits", f"/dev/shm {shown}, open files {files}"))
    yield from findings


def check_threads(facts: Facts, *, num_local: int) -> Iterator[Finding]:
    """Whether the workers of one machine share its cores well.

    Args:
        facts: What a worker sees.
        num_local: The workers on its machine.

    """
    used, cores = num_local * facts.num_threads, facts.num_cores
    fitting = max(1, int(cores // num_local))
    state = (
        f"{_count(num_local, 'worker')} x {_count(facts.num_threads, 'thread')} on {cores:g} cores"
    )
    if used > cores and facts.num_threads > 1:
        yield warning(
            "threads",
            f"{state}: they are in each other's way",
            f"set OMP_NUM_THREADS={fitting}",
        )
    elif num_local > cores:
        yield warning("threads", f"{state}: workers wait for a core", "start fewer workers")
    elif not facts.gpus and fitting >= 2 * facts.num_threads:
        yield note(
            "threads",
            f"{state}: most cores are idle when workers compute on the CPU",
            f"set OMP_NUM_THREADS={fitting}",
        )
    else:
        yield ok("threads", state)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
