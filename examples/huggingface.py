"""A small GPT-2, trained by the Hugging Face Trainer with DASO in the place of DDP.

    torchrun --nproc-per-node 2 examples/huggingface.py

Nothing is downloaded: the model is made from a configuration, and it learns to count. With
``--resume`` the run goes on from its last checkpoint.
"""

from __future__ import annotations

import argparse

import torch
from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments

from paceline.integrations.huggingface import PacelineTrainer

NUM_WORDS = 32


def make_samples(num_samples: int, seed: int) -> list[dict[str, torch.Tensor]]:
    """Rows of unequal lengths that count upwards from a random number."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(6, 16, (num_samples,), generator=generator).tolist()
    starts = torch.randint(NUM_WORDS, (num_samples,), generator=generator)
    return [
        {"input_ids": (start + torch.arange(length)) % NUM_WORDS}
        for start, length in zip(starts, lengths, strict=True)
    ]


def collate(samples: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Pad to the longest; padding is no target (-100), and the loss is a mean over tokens."""
    rows = [sample["input_ids"] for sample in samples]
    labels = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-100)
    return {
        "input_ids": labels.clamp(min=0),
        "attention_mask": (labels != -100).long(),
        "labels": labels,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--strategy", default="daso")
    parser.add_argument("--epochs", type=float, default=2)
    parser.add_argument("--output", default="runs/huggingface")
    parser.add_argument("--resume", action="store_true")
    options = parser.parse_args()

    config = GPT2Config(vocab_size=NUM_WORDS, n_positions=16, n_embd=64, n_layer=2, n_head=4)
    trainer = PacelineTrainer(
        model=GPT2LMHeadModel(config),
        args=TrainingArguments(
            output_dir=options.output,
            per_device_train_batch_size=16,
            gradient_accumulation_steps=2,
            num_train_epochs=options.epochs,
            learning_rate=3e-3,
            max_grad_norm=1.0,
            eval_strategy="epoch",
            save_strategy="epoch",
            save_total_limit=2,
            logging_steps=10,
            report_to="none",
            use_cpu=not torch.cuda.is_available(),
        ),
        train_dataset=make_samples(2048, seed=0),
        eval_dataset=make_samples(256, seed=1),
        data_collator=collate,
        strategy=options.strategy,  # the new argument
    )
    trainer.train(resume_from_checkpoint=options.resume)
    # All workers hold the same model now, and the first one saves it.
    trainer.save_model(f"{options.output}/final")
    loss = trainer.evaluate()["eval_loss"]
    if trainer.is_world_process_zero():
        print(f"eval loss {loss:.3f} after {trainer.state.global_step} steps")


if __name__ == "__main__":
    main()
