"""What the workers of the Lightning and Fabric tests do."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from lightning import Fabric, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import StrategyRegistry
from torch.utils.data import DataLoader, TensorDataset

from integrations.fleet import run_example
from paceline import Daso, LocalSgd
from paceline.integrations.fabric import PacelineFabricStrategy
from paceline.integrations.lightning import PacelineStrategy

NUM_SAMPLES = 64


class Classifier(LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(6, 8, bias=False),
            torch.nn.BatchNorm1d(8),
            torch.nn.Tanh(),
            torch.nn.Linear(8, 3),
        )
        self.norms: list[float] = []

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        inputs, labels = batch
        loss = torch.nn.functional.cross_entropy(self.layers(inputs), labels)
        self.log("train_loss", loss, on_step=True, on_epoch=False)
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        inputs, labels = batch
        loss = torch.nn.functional.cross_entropy(self.layers(inputs), labels)
        self.log("val_loss", loss, sync_dist=True)

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        norms = [p.grad.norm() for p in self.parameters() if p.grad is not None]
        self.norms.append(float(torch.stack(norms).norm()))

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=0.05)


def samples(seed: int = 0) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(NUM_SAMPLES, 6, generator=generator)
    labels = torch.randint(3, (NUM_SAMPLES,), generator=generator)
    return DataLoader(TensorDataset(inputs, labels), batch_size=4)


def layout() -> dict[str, int]:
    local = int(os.environ["LOCAL_WORLD_SIZE"])
    return {"devices": local, "num_nodes": int(os.environ["WORLD_SIZE"]) // local}


def fit(
    folder: Path, strategy: Any, *, resume: Any = None, **options: Any
) -> tuple[Trainer, Classifier]:
    model = Classifier()
    arguments = {
        "accelerator": "cpu",
        "max_epochs": 2,
        "accumulate_grad_batches": 2,
        "gradient_clip_val": 0.3,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
        "default_root_dir": str(folder),
        **options,
    }
    trainer = Trainer(strategy=strategy, **layout(), **arguments)
    trainer.fit(model, samples(), samples(1), ckpt_path=resume)
    return trainer, model


def flat(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([value.detach().double().flatten() for value in model.state_dict().values()])


def parameters(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([each.detach().flatten() for each in model.parameters()])


def compare(folder: Path) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name in ("ddp", "paceline_sync", "paceline_local_sgd"):
        trainer, model = fit(folder, name)
        result[name] = {
            "parameters": parameters(model),
            "state": flat(model),
            "norms": model.norms,
            "val": float(trainer.callback_metrics["val_loss"]),
            "steps": trainer.global_step,
        }
        if name != "ddp":
            assert trainer.strategy.pace is not None
            result[name]["counted"] = trainer.strategy.pace.strategy.step
            result[name]["bytes"] = dict(trainer.strategy.pace.stats.bytes_by_team)
    return result


def resume(folder: Path) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, strategy in (
        ("sync", "sync"),
        ("daso", Daso(warmup_steps=1, period=3, late="wait")),
        ("local-sgd", LocalSgd(period=3)),
    ):
        own = folder / name

        def make(strategy: Any = strategy) -> PacelineStrategy:
            return PacelineStrategy(strategy, monitor="val_loss")

        saving = ModelCheckpoint(dirpath=own, filename="{step}", save_top_k=-1, monitor=None)
        whole, model = fit(own, make(), callbacks=[saving], enable_checkpointing=True, max_epochs=3)
        files = sorted(path.name for path in own.iterdir())
        steps = sorted(int(path.stem.partition("=")[2]) for path in own.glob("*.ckpt"))
        half = own / f"step={steps[0]}.ckpt"
        last = torch.load(own / f"step={steps[-1]}.ckpt", weights_only=True)
        resumed, again = fit(own, make(), resume=half, max_epochs=3)
        result[name] = {
            "whole": flat(model),
            "resumed": flat(again),
            "saved": torch.cat([each.double().flatten() for each in last["state_dict"].values()]),
            "steps": [each.strategy.pace.strategy.step for each in (whole, resumed)],
            "beside": [each for each in files if each.endswith(".paceline")],
        }
    # What is not kept any longer goes with what lies beside it.
    latest = ModelCheckpoint(dirpath=folder / "latest", filename="{step}", save_top_k=1)
    fit(folder, "paceline_local_sgd", callbacks=[latest], enable_checkpointing=True)
    result["latest"] = sorted(path.suffix for path in (folder / "latest").iterdir())
    return result


def fabric_run(
    strategy: Any, *, folder: Path | None = None, resume: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    fabric = Fabric(accelerator="cpu", strategy=strategy, **layout())
    fabric.launch()
    model = Classifier().layers
    model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=0.05))
    loader = fabric.setup_dataloaders(samples())
    batches = list(loader)
    first = 0
    if resume:
        assert folder is not None
        state = {"model": model, "optimizer": optimizer, "step": 0}
        rest = fabric.load(folder / "half.ckpt", state)
        assert rest == {}
        first = state["step"]
    for index, (inputs, labels) in list(enumerate(batches))[first:]:
        is_accumulating = index % 2 == 0
        with fabric.no_backward_sync(model, enabled=is_accumulating):
            fabric.backward(torch.nn.functional.cross_entropy(model(inputs), labels))
        if is_accumulating:
            continue
        fabric.clip_gradients(model, optimizer, max_norm=0.3)
        optimizer.step()
        optimizer.zero_grad()
        if index == 3 and folder is not None and not resume:
            state = {"model": model, "optimizer": optimizer, "step": 4}
            fabric.save(folder / "half.ckpt", state)
    if isinstance(fabric.strategy, PacelineFabricStrategy):
        fabric.strategy.finish()
    return flat(model), parameters(model)


def refusal(call: Any) -> str:
    try:
        call()
    except ValueError as error:
        return str(error)
    return "nothing was said"


def fabric(folder: Path) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name in ("ddp", "paceline_sync", "paceline_daso"):
        result[name], result[f"parameters, {name}"] = fabric_run(name)
    choices: list[tuple[str, dict[str, Any]]] = [("sync", {}), ("local-sgd", {"period": 3})]
    for name, options in choices:
        own = folder / name
        for part in ("whole", "resumed"):
            strategy = PacelineFabricStrategy(name, **options)
            is_resumed = part == "resumed"
            result[f"{part}, {name}"] = fabric_run(strategy, folder=own, resume=is_resumed)[0]
    fabric = Fabric(accelerator="cpu", strategy="paceline_sync", **layout())
    fabric.launch()
    model = torch.nn.Linear(2, 2)
    alone = fabric.setup_module(model)
    with torch.no_grad():
        alone(torch.ones(1, 2))
    result["alone"] = refusal(lambda: fabric.backward(alone(torch.ones(1, 2)).sum()))
    optimizer = torch.optim.SGD(model.parameters())
    result["optimizer alone"] = refusal(lambda: fabric.setup_optimizers(optimizer))
    result["ddp's option"] = refusal(
        lambda: PacelineFabricStrategy("sync", find_unused_parameters=True)
    )
    result["names"] = [name for name in StrategyRegistry if name.startswith("paceline_")]
    result["no such metric"] = refusal(
        lambda: fit(folder, PacelineStrategy("daso", monitor="val_acc"))
    )
    return result


def example(folder: Path) -> str:
    """What a user copies, as it stands; what it prints."""
    return run_example(
        "lightning_daso.py",
        "--epochs",
        "1",
        "--devices",
        "1",
        "--nodes",
        "2",
        "--output",
        str(folder),
    )
