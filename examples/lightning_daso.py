"""Digits with Lightning's Trainer and DASO in the place of DDP.

    python examples/lightning_daso.py --devices 2

Lightning starts the workers by itself. ``--strategy ddp`` trains the same with
DistributedDataParallel.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import paceline.integrations.lightning
import paceline.zoo


class Digits(LightningModule):
    """A small CNN for images of 8 x 8."""

    def __init__(self) -> None:
        super().__init__()
        self.network = paceline.zoo.build_model("small-cnn")

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        images, labels = batch
        return cross_entropy(self.network(images), labels)

    def validation_step(self, batch: Any, index: int) -> None:
        images, labels = batch
        outputs = self.network(images)
        self.log("val_loss", cross_entropy(outputs, labels), sync_dist=True)
        accuracy = (outputs.argmax(-1) == labels).float().mean()
        self.log("val_accuracy", accuracy, sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


def main() -> None:
    parser = argparse.ArgumentParser()
    names = [*paceline.strategy_names(), "ddp"]
    parser.add_argument("--strategy", default="daso", choices=names)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--devices", type=int, default=1, help="workers on each node")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--output", default="runs/lightning")
    parser.add_argument("--resume", help="a checkpoint of a run before")
    options = parser.parse_args()

    torch.manual_seed(0)
    data = paceline.zoo.load_data("digits")
    strategy: Any = "ddp"
    if options.strategy != "ddp":
        # Trainer(strategy="paceline_daso") does the same, without options.
        strategy = paceline.integrations.lightning.PacelineStrategy(
            options.strategy, monitor="val_loss"
        )
    trainer = Trainer(
        accelerator="auto",
        devices=options.devices,
        num_nodes=options.nodes,
        strategy=strategy,  # the new argument
        max_epochs=options.epochs,
        gradient_clip_val=1.0,
        callbacks=[ModelCheckpoint(dirpath=options.output, monitor="val_loss", save_last=True)],
        logger=False,
    )
    trainer.fit(
        Digits(),
        DataLoader(data.train, batch_size=32, shuffle=True, drop_last=True),
        DataLoader(data.test, batch_size=64),
        ckpt_path=options.resume,
    )
    if trainer.is_global_zero:
        accuracy = float(trainer.callback_metrics["val_accuracy"])
        print(f"accuracy {accuracy:.1%} after {trainer.global_step} steps")


if __name__ == "__main__":
    main()
