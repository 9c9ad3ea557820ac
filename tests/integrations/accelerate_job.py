"""What the workers of the Accelerate tests do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.local_sgd import LocalSGD as TheirLocalSGD
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from integrations.fleet import run_example
from paceline import Daso, attach
from paceline.integrations.accelerate import LocalSGD

PERIOD = 2
NUM_STEPS = 7


def make_model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))


def make(**options: Any) -> tuple[Accelerator, Any, Any, list[tuple[torch.Tensor, torch.Tensor]]]:
    """An accelerator, a prepared model and optimizer, and this worker's batches."""
    accelerator = Accelerator(cpu=True, **options)
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    model, optimizer = accelerator.prepare(model, optimizer)
    generator = torch.Generator().manual_seed(1 + accelerator.process_index)
    batches = [
        (torch.randn(4, 6, generator=generator), torch.randint(3, (4,), generator=generator))
        for _ in range(2 * NUM_STEPS)
    ]
    return accelerator, model, optimizer, batches


def train(
    accelerator: Accelerator, model: Any, optimizer: Any, batches: Any, local_sgd: Any
) -> None:
    for inputs, labels in batches:
        with accelerator.accumulate(model):
            loss = torch.nn.functional.cross_entropy(model(inputs), labels)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
            if accelerator.sync_gradients:
                local_sgd.step()


def flat(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def compare(folder: Path) -> dict[str, Any]:
    """Accelerate's own LocalSGD and DDP, and ours."""
    result: dict[str, Any] = {}
    runs: list[tuple[str, int | None, Any, dict[str, Any]]] = [
        ("theirs", PERIOD, TheirLocalSGD, {}),
        ("ours", PERIOD, LocalSGD, {"each worker": True}),
        ("ddp", 1, TheirLocalSGD, {"enabled": False}),
        ("disabled", PERIOD, LocalSGD, {"enabled": False}),
        ("sync", None, LocalSGD, {"strategy": "sync"}),
        ("local-sgd", PERIOD, LocalSGD, {}),
        ("daso", None, LocalSGD, {"strategy": Daso(warmup_steps=1, period=2)}),
        ("diloco", 3, LocalSGD, {"strategy": "diloco", "wire": "bf16"}),
    ]
    for name, num_steps, kind, options in runs:
        accelerator, model, optimizer, batches = make(gradient_accumulation_steps=2)
        if options.pop("each worker", False):
            options["workers"] = init_device_mesh("cpu", (accelerator.num_processes, 1))
        with kind(accelerator, model, num_steps, **options) as local_sgd:
            train(accelerator, model, optimizer, batches, local_sgd)
        result[name] = {"parameters": flat(model), "steps": local_sgd.num_steps}
        if kind is LocalSGD and local_sgd.pace is not None:
            result[name]["counted"] = local_sgd.pace.strategy.step
        # DDP goes on as if nothing had been.
        assert isinstance(model, DistributedDataParallel)
        assert model.require_backward_grad_sync
        (inputs, labels), *_ = batches
        torch.autograd.backward(torch.nn.functional.cross_entropy(model(inputs), labels))
        gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
        result[name]["gradients"] = torch.cat(gradients)
    return result


def refusal(call: Any) -> str:
    try:
        call()
    except ValueError as error:
        return str(error)
    return "nothing was said"


def wrappers(folder: Path) -> dict[str, Any]:
    """What Accelerate, torch.compile and PEFT hand out, given to ``attach`` itself."""
    from peft import LoraConfig, get_peft_model

    result: dict[str, Any] = {}
    accelerator, model, optimizer, batches = make()
    result["ddp"] = refusal(lambda: attach(model, optimizer, "sync"))
    result["inside ddp"] = refusal(lambda: attach(model.module, optimizer, "sync"))
    result["no optimizer"] = refusal(LocalSGD(accelerator, torch.nn.Linear(2, 2), PERIOD).__enter__)
    result["no period"] = refusal(lambda: LocalSGD(accelerator, model, 4, strategy="sync"))
    result["object"] = refusal(lambda: LocalSGD(accelerator, model, 4, strategy=Daso()))
    train(accelerator, model, optimizer, batches, LocalSGD(accelerator, model, 1, enabled=False))
    expected = flat(model)

    def trained(wrap: Any) -> torch.Tensor:
        """A prepared optimizer with a model that Accelerate did not prepare."""
        accelerator, _, _, batches = make()
        plain = make_model()
        optimizer = accelerator.prepare(torch.optim.AdamW(plain.parameters(), lr=0.05))
        model = wrap(plain)
        idle = LocalSGD(accelerator, model, 1, enabled=False)
        with attach(model, optimizer, "sync") as pace:
            train(accelerator, model, optimizer, batches, idle)
            assert pace.strategy.step == 2 * NUM_STEPS
        return flat(plain)

    result["expected"] = expected
    result["prepared optimizer"] = trained(lambda model: model)
    result["compiled"] = trained(lambda model: torch.compile(model, backend="eager"))
    for name, strategy in (("ddp", None), ("sync", "sync"), ("local-sgd", "local-sgd")):
        plain = make_model()
        lora = get_peft_model(plain, LoraConfig(r=2, target_modules=["0", "2"], lora_dropout=0.0))
        base = lora.base_model.model[0].base_layer.weight.clone()
        optimizer = torch.optim.SGD([p for p in lora.parameters() if p.requires_grad], lr=0.5)
        called = DistributedDataParallel(lora) if strategy is None else lora
        options: dict[str, Any] = {"period": 3} if strategy == "local-sgd" else {}
        pace = attach(lora, optimizer, strategy, **options) if strategy is not None else None
        for inputs, labels in batches:
            torch.autograd.backward(torch.nn.functional.cross_entropy(called(inputs), labels))
            optimizer.step()
            optimizer.zero_grad()
        if pace is not None:
            pace.finish()
            pace.detach()
        assert torch.equal(base, lora.base_model.model[0].base_layer.weight)
        result[f"peft, {name}"] = flat(lora)
    return result


def example(folder: Path) -> str:
    """What a user copies, as it stands; what it prints."""
    return run_example("accelerate_local_sgd.py", "--epochs", "1", "--local-sgd-steps", "4")
