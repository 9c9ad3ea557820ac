"""What the workers of the Hugging Face tests do."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

from integrations.fleet import run_example
from paceline import Daso
from paceline.integrations.huggingface import PacelineMixin, PacelineTrainer

NUM_STEPS = 6


def make_model() -> GPT2LMHeadModel:
    set_seed(1)
    config = GPT2Config(
        vocab_size=32, n_positions=16, n_embd=16, n_layer=1, n_head=2,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def make_samples(num_samples: int, seed: int) -> list[dict[str, torch.Tensor]]:
    """Sentences of unequal lengths: workers have unequal numbers of tokens."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(3, 16, (num_samples,), generator=generator).tolist()
    return [
        {"input_ids": torch.randint(1, 32, (length,), generator=generator)} for length in lengths
    ]


def collate(samples: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    rows = [sample["input_ids"] for sample in samples]
    inputs = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    labels = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-100)
    return {"input_ids": inputs, "attention_mask": (inputs != 0).long(), "labels": labels}


def train(
    folder: Path,
    kind: type[Trainer] = PacelineTrainer,
    *,
    resume: str | bool | None = None,
    trainer_options: dict[str, Any] | None = None,
    **options: Any,
) -> tuple[Trainer, torch.Tensor]:
    """Train; the Trainer and the parameters that this worker ends with."""
    arguments = {
        "output_dir": str(folder),
        "use_cpu": True,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "max_steps": NUM_STEPS,
        "max_grad_norm": 0.5,
        "learning_rate": 0.01,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        "seed": 3,
        **options,
    }
    trainer = kind(
        model=make_model(),
        args=TrainingArguments(**arguments),
        train_dataset=make_samples(64, 0),
        eval_dataset=make_samples(16, 1),
        data_collator=collate,
        **(trainer_options or {}),
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer, flat(trainer.model)


def flat(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def losses(trainer: Trainer, key: str = "loss") -> list[float]:
    return [entry[key] for entry in trainer.state.log_history if key in entry]


def strategy(name: str, **options: Any) -> dict[str, Any]:
    return {"strategy": name, "attach_options": options}


class OwnLossTrainer(PacelineMixin, Trainer):  # type: ignore[misc]
    """A Trainer of a user's, with a loss of its own."""

    def compute_loss(self, model: Any, inputs: Any, **kwargs: Any) -> torch.Tensor:
        logits = model(**inputs).logits[:, :-1]
        loss: torch.Tensor = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), inputs["labels"][:, 1:].flatten(), ignore_index=-100
        )
        return loss


def compare(folder: Path) -> dict[str, Any]:
    """Strategies that must give what the Trainer alone gives with DDP."""
    evaluating: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 3}
    result: dict[str, Any] = {}
    for name, kind, options in (
        ("ddp", Trainer, None),
        ("sync", PacelineTrainer, strategy("sync")),
    ):
        trainer, parameters = train(folder, kind, trainer_options=options, **evaluating)
        result[name] = {
            "parameters": parameters,
            "losses": losses(trainer),
            "norms": losses(trainer, "grad_norm"),
            "eval": losses(trainer, "eval_loss"),
            "wrapper": type(trainer.model_wrapped).__name__,
        }
    # Without clipping, an average of parameters after each step of SGD is one of gradients.
    plain: dict[str, Any] = {"optim": "sgd", "max_grad_norm": 0.0, "learning_rate": 0.5}
    for name, kind, options in (
        ("ddp, sgd", Trainer, None),
        ("local-sgd, sgd", PacelineTrainer, strategy("local-sgd", period=1)),
    ):
        result[name] = train(folder, kind, trainer_options=options, **plain)[1]
    rows = next(iter(trainer.get_train_dataloader()))["labels"]
    result["num_tokens"] = int((rows != -100).sum())
    return result


def compare_more(folder: Path) -> dict[Any, torch.Tensor]:
    """The same for a Trainer of a user's, on batches of one step each."""
    result: dict[Any, torch.Tensor] = {}
    for name in (None, "sync", "sync-hierarchical"):
        _, result[name] = train(
            folder,
            OwnLossTrainer,
            trainer_options={"strategy": name},
            gradient_accumulation_steps=1,
        )
    return result


def resume(folder: Path) -> dict[str, Any]:
    """Half a training, resumed, beside the whole one."""
    result: dict[str, Any] = {}
    for name, options in (
        ("sync", {}),
        ("daso", {"warmup_steps": 1, "period": 2, "late": "wait"}),
        ("local-sgd", {"period": 4}),
    ):
        saving: dict[str, Any] = {"save_strategy": "steps", "save_steps": 3}
        own = folder / name
        whole, parameters = train(own, trainer_options=strategy(name, **options), **saving)
        last = GPT2LMHeadModel.from_pretrained(own / f"checkpoint-{NUM_STEPS}")
        half = str(own / "checkpoint-3")
        # As a job leaves it that is killed while it saves: the one before is then the newest.
        dist.barrier()
        (own / f"checkpoint-{NUM_STEPS}" / "trainer_state.json").unlink(missing_ok=True)
        dist.barrier()
        resumed, again = train(
            own,
            trainer_options=strategy(name, **options),
            resume=half if name == "sync" else True,
            **saving,
        )
        assert whole.pace is not None and resumed.pace is not None
        result[name] = {
            "whole": parameters,
            "resumed": again,
            "saved": flat(last),
            "steps": [trainer.pace.strategy.step for trainer in (whole, resumed)],
            "files": sorted(path.name for path in Path(half).iterdir()),
            "logged": sorted(whole.state.log_history[0]),
        }
    return result


class Boom(TrainerCallback):  # type: ignore[misc]
    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        raise RuntimeError("boom")


def refuse(folder: Path) -> dict[str, Any]:
    """What users hear; and what is left after errors and trainings."""

    def said(**options: Any) -> str:
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                train(folder, max_steps=4, save_strategy="steps", save_steps=2, **options)
        except Exception as error:
            return str(error)
        return " ".join(str(each.message) for each in caught)

    train(folder / "ddp", Trainer, max_steps=2, save_strategy="steps", save_steps=2)
    ddp = str(folder / "ddp" / "checkpoint-2")
    result: dict[str, Any] = {
        "unknown option": said(trainer_options=strategy("daso", periode=3)),
        "enabled": said(trainer_options=strategy("daso", enabled=False)),
        "error": said(trainer_options={**strategy("sync"), "callbacks": [Boom()]}),
    }
    train(folder, max_steps=2, save_strategy="steps", save_steps=2,
          trainer_options=strategy("local-sgd"))  # fmt: skip
    result["another strategy"] = said(
        trainer_options=strategy("diloco"), resume=str(folder / "checkpoint-2")
    )
    alone = said(trainer_options=strategy("local-sgd"), resume=ddp)
    # The first worker says so for all.
    result["checkpoint of another"] = alone if dist.get_rank() == 0 else "begins at its first step"
    own = Daso(warmup_steps=0)
    trainer, _ = train(folder, max_steps=2, trainer_options={"strategy": own})
    steps = [trainer.pace.strategy.step]
    trainer.train()
    result["twice"] = [*steps, trainer.pace.strategy.step]
    return result


def example(folder: Path) -> str:
    """What a user copies, as it stands; what it prints."""
    return run_example("huggingface.py", "--epochs", "0.1", "--output", str(folder))
