"""Digits that outlive a lost node, and take it back when it returns.

On every machine, with the same rendezvous and a folder that all of them see:

torchrun --nnodes 1:2 --nproc-per-node 2 --max-restarts 9 --rdzv-id digits --rdzv-backend c10d
    --rdzv-endpoint HOST:29400 examples/elastic.py --folder checkpoints
"""

import argparse

import torch
from torch.nn.functional import cross_entropy

import paceline.zoo

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--folder", default="checkpoints")
parser.add_argument("--strategy", default="daso")
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--save-every", type=int, default=10, help="steps")
options = parser.parse_args()

torch.manual_seed(0)
data = paceline.zoo.load_data("digits")
model = paceline.zoo.build_model("small-cnn")
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs)

with paceline.attach(model, optimizer, options.strategy) as pace:
    workers = pace.workers.world
    pace.register(scheduler=scheduler)
    # 128 samples of all workers together, however many there are.
    loader = pace.loader(data.train, 128, shuffle=True)
    # On other nodes than before, those that differed go on from their average.
    found = pace.load(options.folder, missing_ok=True, average=True) or {"step": 0}
    step = found["step"]
    print(f"worker {workers.rank} of {workers.size} goes on from step {step}", flush=True)

    while loader.epoch < options.epochs:
        for images, labels in loader:
            optimizer.zero_grad()
            loss = cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            step += 1
            if step % options.save_every == 0:
                pace.save(options.folder, extra={"step": step}, background=True)
                if workers.rank == 0:
                    text = f"step {step}: {workers.size} workers, loss {loss.item():.3f}"
                    print(text, flush=True)
        scheduler.step()

    pace.finish()
    images, labels = data.test.tensors
    accuracy = (model.eval()(images).argmax(-1) == labels).double().mean().item()
    print(f"worker {workers.rank} of {workers.size}: accuracy {accuracy:.1%}", flush=True)
