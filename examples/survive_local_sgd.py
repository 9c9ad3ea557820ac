"""A training that outlives its nodes: local SGD that goes on when one is lost.

    paceline lab run --nodes 3 --workers 1 --survive --silence 3s \
        --fault 'kill 2 at 20s' --fault 'start 2 at 30s' -- python examples/survive_local_sgd.py

Outside the lab: ``paceline meet --nodes 3 --listen HOST:PORT`` on a machine that stays, and on each
node ``PACELINE_MEETING=HOST:PORT PACELINE_NODE=0 torchrun --standalone … survive_local_sgd.py``.
"""

from __future__ import annotations

import argparse
import time

import torch

import paceline


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--pause", type=float, default=0.02, help="seconds, to make it last")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    teacher = torch.randn(64, 10)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    with paceline.attach(model, optimizer, "local-sgd", period=8, survive=True) as pace:
        world = pace.workers.world  # rank and size stay the same, whoever is lost
        # A node that comes back begins where the others are, so ask for the step; do not count.
        while (step := pace.strategy.step) < arguments.steps:
            draw = torch.Generator().manual_seed(step * world.size + world.rank)
            x = torch.randn(32, 64, generator=draw)
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), (x @ teacher).argmax(1))
            loss.backward()
            optimizer.step()
            if step % 100 == 0:
                print(f"step {step}: loss {loss.item():.3f}", flush=True)
            time.sleep(arguments.pause)
    print(f"end: {sum(p.sum().item() for p in model.parameters()):.6f}")


if __name__ == "__main__":
    main()
