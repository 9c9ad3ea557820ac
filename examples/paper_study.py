"""The scalability study of Barrachina et al. (2021), for four networks, in one command.

python examples/paper_study.py OUT

The study varies the batch size, the device's arithmetic speed and memory bandwidth, the bandwidth
between nodes (10 to 200 Gbit/s) and the number of workers (up to 128) of data-parallel training. It
writes a report per network into OUT and says in words what it shows.
"""

import sys
from pathlib import Path
from typing import Any

import paceline

NETWORKS = ("alexnet", "vgg16", "resnet50", "googlenet")
WORKERS, BATCH, GBIT = 128, 64, 1e9 / 8
SLOW, FAST = 10 * GBIT, 200 * GBIT


def study_of(name: str) -> paceline.Study:
    """One V100 per node, as the paper's cluster has; every gradient is averaged."""
    cluster = paceline.load_cluster("dgx1-v100").with_workers_per_node(1).with_nodes(WORKERS)
    return paceline.study(
        paceline.load_step(name, batch=BATCH),
        cluster=cluster.with_link(100 * GBIT),
        strategies=["sync"],
        workers=f"1:{WORKERS}",
        link="10gbit:200gbit",
        batch="16:256",
        maps=[("workers", "link"), ("batch", "link")],
        scalings=["weak"],
    )


def row(table: paceline.StudyTable, **values: Any) -> dict[str, Any]:
    """The row nearest to these values in a map."""
    return min(
        table.rows(),
        key=lambda one: sum(abs(one[key] / value - 1) for key, value in values.items()),
    )


def sentences(name: str, found: paceline.Study) -> list[str]:
    """What the study of one network shows."""
    grid = found.table.where(sweep="workers*link")
    slow = row(grid, workers=WORKERS, link_bytes_per_s=SLOW)
    fast = row(grid, workers=WORKERS, link_bytes_per_s=FAST)
    batches = found.table.where(sweep="batch*link")
    small = row(batches, batch=16, link_bytes_per_s=SLOW)
    large = row(batches, batch=256, link_bytes_per_s=SLOW)
    alone = row(grid, workers=1, link_bytes_per_s=FAST)
    return [
        f"{name}: {WORKERS} workers reach {slow['efficiency']:.0%} of perfect scaling over 10 "
        f"Gbit/s and {fast['efficiency']:.0%} over 200 Gbit/s; the limits are "
        f"{slow['bottleneck']} and {fast['bottleneck']}.",
        f"{name}: over 10 Gbit/s, a batch of 256 per worker instead of 16 raises the efficiency "
        f"from {small['efficiency']:.0%} to {large['efficiency']:.0%}.",
        f"{name}: one worker alone is limited by {alone['bottleneck']}: a tenth more arithmetic "
        f"saves {abs(alone['gain_arithmetic']):.1%} of its step, a tenth more memory bandwidth "
        f"{abs(alone['gain_memory_bandwidth']):.1%}.",
    ]


def main() -> None:
    """Study every network, write its report, and say what it shows."""
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "paper-study")
    for name in NETWORKS:
        found = study_of(name)
        folder = out / name
        folder.mkdir(parents=True, exist_ok=True)
        paceline.write_report(found, folder / "report.html", roofline=found.kernels)
        (folder / "study.csv").write_text(found.table.to_csv(), "utf-8")
        for sentence in (*sentences(name, found), *found.crossings):
            print(sentence, flush=True)
    print(f"reports are in {out}/*/report.html")


if __name__ == "__main__":
    main()
