"""Measures the links of the job it runs in: ``python -m paceline.lab.probe --out FILE``.

Node after node sends to the next one, over the same teams that training uses.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
import torch.distributed as dist

from paceline.ending import end_quickly
from paceline.teams import Team, find_workers

_NUM_CHUNKS = 16


def measure_link(team: Team, source: int, target: int, chunk_bytes: int) -> float:
    """Bytes per second from one member to another, as the target sees them; 0 for the others.

    The first chunk opens the connection and empties what the shaper had saved up while idle; the
    clock starts when it has arrived.
    """
    chunk = torch.randint(0, 256, (chunk_bytes,), dtype=torch.uint8)
    if team.rank == source:
        for pending in [team.send(chunk, target) for _ in range(_NUM_CHUNKS + 1)]:
            pending.wait()
    if team.rank != target:
        return 0.0
    team.receive(chunk, source).wait()
    start = time.monotonic()
    for _ in range(_NUM_CHUNKS):
        team.receive(chunk, source).wait()
    return _NUM_CHUNKS * chunk_bytes / (time.monotonic() - start)


def main() -> None:
    """Measure every node's link to the next node; rank 0 writes the rates."""
    end_quickly()
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--chunk-bytes", type=int, nargs="+", required=True)
    arguments = parser.parse_args()
    across = find_workers().across
    rates = []
    for source, chunk_bytes in enumerate(arguments.chunk_bytes):
        rate = measure_link(across, source, (source + 1) % across.size, chunk_bytes)
        rates.append(across.agree(rate, "max"))
    if across.rank == 0:
        arguments.out.write_text(json.dumps(rates))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
