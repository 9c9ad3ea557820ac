"""What test_elastic.py starts under torchrun: a job that leaves a record of every step.

``python elastic_job.py FOLDER STRATEGY``. It stops before each step that ``FOLDER/limit`` does not
allow yet, so that the test knows where it is.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

import paceline

NUM_SAMPLES, BATCH, NUM_EPOCHS = 40, 8, 4
NUM_STEPS = NUM_EPOCHS * NUM_SAMPLES // BATCH


def build() -> tuple[nn.Module, torch.optim.Optimizer, TensorDataset]:
    """The same in every process."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 3))
    inputs = torch.randn(NUM_SAMPLES, 7)
    data = TensorDataset(torch.arange(NUM_SAMPLES), inputs)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), data


def main(folder: Path, strategy: str) -> None:
    """Train to the end, and leave the parameters."""
    torch.set_num_threads(1)
    model, optimizer, data = build()
    with paceline.attach(model, optimizer, strategy) as pace:
        loader = pace.loader(data, BATCH, shuffle=True, seed=3, shares="equal")
        pace.load(folder / "checkpoints", missing_ok=True, average=True)
        world = pace.workers.world
        with (folder / f"record-{os.getpid()}").open("a") as record:
            record.write(json.dumps([-1, world.size, 0, [], world.rank]) + "\n")
            record.flush()
            while loader.epoch < NUM_EPOCHS:
                for indices, inputs in loader:
                    step = pace.strategy.step
                    while world.rank == 0 and step >= int((folder / "limit").read_text() or 0):
                        time.sleep(0.02)
                    optimizer.zero_grad()
                    model(inputs).square().mean().backward()
                    optimizer.step()
                    line = [step, world.size, loader.epoch, indices.tolist(), world.rank]
                    record.write(json.dumps(line) + "\n")
                    record.flush()
                    if (step + 1) % 2 == 0:
                        pace.save(folder / "checkpoints", background=True)
        pace.finish()
        if world.rank == 0:
            torch.save(model.state_dict(), folder / "draft")
            (folder / "draft").rename(folder / "end.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
