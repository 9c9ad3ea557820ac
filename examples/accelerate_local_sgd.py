"""Digits with Accelerate and local SGD between nodes.

    torchrun --nproc-per-node 2 examples/accelerate_local_sgd.py

The loop is the one of Accelerate's own ``LocalSGD``; only the import differs. ``--strategy`` takes
any strategy with a period, such as diloco or daso.
"""

from __future__ import annotations

import argparse

import torch
from accelerate import Accelerator
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import paceline.zoo
from paceline.integrations.accelerate import LocalSGD


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--strategy", default="local-sgd")
    parser.add_argument("--local-sgd-steps", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()

    torch.manual_seed(0)
    accelerator = Accelerator(cpu=not torch.cuda.is_available(), gradient_accumulation_steps=2)
    data = paceline.zoo.load_data("digits")
    loader = DataLoader(data.train, batch_size=16, shuffle=True, drop_last=True)
    model = paceline.zoo.build_model("small-cnn")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    with LocalSGD(
        accelerator=accelerator,
        model=model,
        local_sgd_steps=options.local_sgd_steps,
        strategy=options.strategy,  # the new argument
    ) as local_sgd:
        for _ in range(options.epochs):
            for images, labels in loader:
                with accelerator.accumulate(model):
                    loss = cross_entropy(model(images), labels)
                    accelerator.backward(loss)
                    if accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    optimizer.zero_grad()
                    local_sgd.step()

    # All workers hold the same model now.
    images, labels = (tensor.to(accelerator.device) for tensor in data.test.tensors)
    with torch.no_grad():
        outputs = accelerator.unwrap_model(model).eval()(images)
    accuracy = (outputs.argmax(-1) == labels).double().mean().item()
    accelerator.print(f"accuracy {accuracy:.1%}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
