"""An advice in words: what it may cost, the line for the script, the commands that start it."""

from __future__ import annotations

from typing import Any

from paceline.cluster import Cluster
from paceline.cluster.units import write_size
from paceline.studies.candidates import Candidate, Variant
from paceline.studies.words import counted

_EVIDENCE = (
    "In this project's tests of DASO (a small network, 4 nodes) periods up to 16 changed the final "
    "accuracy by no more than another seed did; your model may differ, so compare some epochs with "
    "plain DDP before a long run."
)


def cautions_of(candidate: Candidate, plain: Candidate) -> list[str]:
    """What the advice may cost in accuracy, as far as that is known.

    Args:
        candidate: What is advised.
        plain: What it is compared with.

    """
    variant, before, now = candidate.variant, plain.global_batch, candidate.global_batch
    found = []
    if variant.staleness == 0:
        found.append(
            "Every gradient is averaged over all workers, as in plain DDP: with the same global "
            "batch, the same accuracy is to be expected."
        )
    else:
        found.append(_apart(variant))
        if variant.strategy == "diloco":
            found.append(
                "DiLoCo adds an outer optimizer, whose learning rate (0.7) and momentum (0.9) are "
                "meant for long runs and may need tuning."
            )
        found.append(_EVIDENCE)
    if variant.wire != "fp32":
        found.append(
            f"Exchanges are rounded to {variant.wire}. What rounding takes away is added to the "
            "next exchange, so errors do not add up, but the runs are not equal bit by bit."
        )
    if now > before:
        found.append(
            f"The global batch grows from {before:,} to {now:,} samples. A larger batch usually "
            "needs another learning rate and warm-up, and beyond some size more epochs to the same "
            "accuracy; times and prices here are per sample and do not include those."
        )
    elif now < before:
        found.append(
            f"The global batch shrinks from {before:,} to {now:,} samples: the learning rate may "
            "have to follow; accuracy per epoch does not usually suffer."
        )
    return found


def _apart(variant: Variant) -> str:
    merged = (
        f"merged {variant.delay} step{'s' if variant.delay > 1 else ''} after it was sent"
        if variant.delay
        else "waited for"
    )
    return (
        f"Nodes train apart for {variant.period} steps, and an exchange is {merged}: a node's work "
        f"reaches the others up to {variant.staleness} steps late. That can cost accuracy, which a "
        "prediction of times cannot tell."
    )


def setting_of(candidate: Candidate) -> str:
    """What is advised, in one phrase."""
    cluster = candidate.cluster
    nodes, workers = counted(cluster.num_nodes, "node"), counted(cluster.num_workers, "worker")
    return (
        f"{way_of(candidate.variant)}, batch {candidate.batch:,} per worker, {nodes} of "
        f"{cluster.name} ({workers})"
    )


def way_of(variant: Variant) -> str:
    """A strategy with what matters of its options."""
    parts = [variant.strategy]
    if variant.period:
        parts.append(f"B = {variant.period}, W = {variant.delay}, wire {variant.wire}")
    if "bucket_bytes" in variant.options:
        parts.append(f"buckets of {write_size(variant.options['bucket_bytes'])}")
    return ", ".join(parts)


def attach_line(variant: Variant, *, total_steps: int | None = None) -> str:
    """The line for the training script.

    Args:
        variant: The strategy.
        total_steps: The length of the run, if it is known.

    """
    options: dict[str, Any] = dict(variant.options)
    if variant.strategy == "daso" and total_steps is not None:
        options["total_steps"] = total_steps
    given = "".join(f", {name}={value!r}" for name, value in options.items())
    quoted = f'"{variant.strategy}"{given}'.replace("'", '"')
    return f"pace = paceline.attach(model, optimizer, {quoted})"


def launch_commands(cluster: Cluster) -> dict[str, str]:
    """How to start the job: with torchrun on each node, or with Slurm.

    Args:
        cluster: With the number of nodes to use.

    """
    nodes, sizes = cluster.num_nodes, sorted(set(cluster.workers_per_node))
    if len(sizes) > 1:  # each node starts as many processes as it has devices
        per_node = "gpu"
        slurm = f"srun --nodes {nodes} --ntasks {cluster.num_workers} python train.py"
    else:
        per_node = str(sizes[0])
        gpus = f" --gpus-per-node {sizes[0]}" if not _is_cpu(cluster) else ""
        slurm = f"srun --nodes {nodes} --ntasks-per-node {sizes[0]}{gpus} python train.py"
    if nodes == 1:
        torchrun = f"torchrun --standalone --nproc-per-node {per_node} train.py"
    else:
        torchrun = (
            f"torchrun --nnodes {nodes} --nproc-per-node {per_node} --rdzv-backend c10d "
            "--rdzv-endpoint HOST:29500 train.py"
        )
    return {"torchrun": torchrun, "slurm": slurm}


def _is_cpu(cluster: Cluster) -> bool:
    return all(node.device.name.startswith("cpu") for node in cluster.node_kinds)
