"""Sum a tensor over all workers of a job, and tell how fast that went.

paceline lab run --nodes 2 --workers 2 --link 100mbit -- python examples/all_reduce.py
"""

from __future__ import annotations

import time

import torch

import paceline

NUM_BYTES = 4 << 20


def main() -> None:
    workers = paceline.find_workers()
    world = workers.world
    tensor = torch.full((NUM_BYTES // 4,), float(world.rank + 1))
    world.barrier()  # opens the connections, off the clock
    start = time.monotonic()
    world.all_reduce(tensor, "sum").wait()
    elapsed_s = time.monotonic() - start
    # A ring sends 2 (P - 1) / P of the bytes over every link.
    rate = 2 * (world.size - 1) / world.size * NUM_BYTES / elapsed_s
    print(
        f"worker {world.rank} of {world.size}, on node {workers.node_index} of "
        f"{workers.num_nodes}: sum {tensor[0].item():.0f}, {rate * 8 / 1e6:.0f} Mbit/s"
    )


if __name__ == "__main__":
    main()
