"""The Hugging Face ``Trainer`` with paceline in the place of DistributedDataParallel."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from paceline.integrations.accelerators import check_accelerator, leave_unwrapped
from paceline.integrations.binding import Binding
from paceline.integrations.checkpoints import are_equal, load_beside, save_beside
from paceline.integrations.missing import missing
from paceline.reading import parse_json
from paceline.strategies import Strategy
from paceline.train import CheckpointError, Pace

try:
    from transformers import Trainer, TrainerCallback
except ImportError as error:
    raise missing("transformers", extra="hf") from error

_NOTE = "paceline.pt"
_FOLDER = "paceline"
_PREFIX = "checkpoint-"


class PacelineMixin:
    """Turns any class derived from ``Trainer`` into one that trains with a strategy of paceline.

    Name it first: ``class MyTrainer(PacelineMixin, Seq2SeqTrainer)``. The model is not wrapped;
    batches, losses, clipping, evaluation and checkpoints remain the Trainer's.

    Args:
        *args: The Trainer's arguments.
        strategy: A name, or a strategy object such as ``paceline.Daso(period=8)``. ``None`` trains
            as the Trainer alone does, with DistributedDataParallel.
        attach_options: Options of the strategy, if it is given by name, and further arguments of
            :func:`paceline.attach`: ``{"period": 8, "trace": "trace.json"}``.
        **kwargs: The Trainer's arguments.

    Attributes:
        pace: What ``attach`` returned, once training has begun.

    """

    # Set by the Trainer.
    args: Any
    state: Any
    accelerator: Any

    def __init__(
        self,
        *args: Any,
        strategy: str | Strategy | None = "daso",
        attach_options: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self.pace: Pace | None = None
        self._binding = None if strategy is None else Binding(strategy, {**(attach_options or {})})
        self._is_attached = False
        self._resumes_from: str | None = None
        self._has_weighed = False
        self._counts_own_tokens = False
        self._num_own_tokens: float | None = None
        super().__init__(*args, **kwargs)
        if self._binding is not None:
            self.add_callback(PacelineCallback(self))  # type: ignore[attr-defined]

    def create_accelerator_and_postprocess(self) -> None:
        """Have the Accelerator prepare the model without a wrapper."""
        super().create_accelerator_and_postprocess()  # type: ignore[misc]
        if self._binding is not None:
            check_accelerator(self.accelerator)
            leave_unwrapped(self.accelerator, lambda: self.pace if self._is_attached else None)

    def train(
        self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        """The Trainer's; ``True`` resumes from the newest checkpoint that is complete.

        The Trainer alone would take the newest folder, which a job that was killed while it saved
        has left incomplete.
        """
        if resume_from_checkpoint is True and self._binding is not None:
            resume_from_checkpoint = newest_complete(Path(self.args.output_dir), self.args.device)
        return super().train(resume_from_checkpoint, *args, **kwargs)  # type: ignore[misc]

    def _inner_training_loop(self, *args: Any, **kwargs: Any) -> Any:
        self._resumes_from = kwargs.get("resume_from_checkpoint")
        try:
            output = super()._inner_training_loop(*args, **kwargs)  # type: ignore[misc]
        except BaseException as error:
            if self._is_attached:
                assert self.pace is not None
                self._is_attached = False
                self.pace.__exit__(type(error), error, error.__traceback__)
            raise
        if self._is_attached:
            assert self.pace is not None
            self._is_attached = False
            self.pace.__exit__(None, None, None)
        return output

    def begin(self, model: torch.nn.Module, optimizer: Any) -> None:
        """Attach to the model as the Trainer has prepared and loaded it."""
        assert self._binding is not None
        self.pace = self._binding.attach(model, [optimizer], num_steps=self.state.max_steps)
        self._is_attached = True
        self._has_weighed = False
        self._num_own_tokens = None
        if self._resumes_from is not None:
            self._load_state(Path(self._resumes_from))

    # Checkpoints

    def _save_checkpoint(self, model: Any, trial: Any, *args: Any, **kwargs: Any) -> None:
        # Before the Trainer's own files: a checkpoint that looks complete has everything.
        if self._is_attached and not self.args.save_only_model:
            assert self.pace is not None
            run_folder = self._get_output_dir(trial=trial)  # type: ignore[attr-defined]
            folder = Path(run_folder, f"checkpoint-{self.state.global_step}")
            folder.mkdir(parents=True, exist_ok=True)
            note = save_beside(self.pace, folder / _FOLDER)
            if self.args.should_save:
                torch.save(note, folder / _NOTE)
        super()._save_checkpoint(model, trial, *args, **kwargs)  # type: ignore[misc]

    def _load_state(self, folder: Path) -> None:
        assert self.pace is not None
        path = folder / _NOTE
        share = self.pace.workers.world.agree(float(path.exists()))
        if 0.0 < share < 1.0:
            raise CheckpointError(
                f"some workers see {path} and others do not; save to a disk that all nodes share, "
                "or with save_on_each_node=True"
            )
        if share == 1.0:
            note = torch.load(path, map_location=self.args.device, weights_only=True)
            load_beside(self.pace, folder / _FOLDER, note)
        elif not are_equal(self.pace) and self.pace.workers.world.rank == 0:
            warnings.warn(
                f"{folder} was not saved by a PacelineTrainer: "
                f"{type(self.pace.strategy).__name__} begins at its first step",
                RuntimeWarning,
                stacklevel=2,
            )

    # Losses over tokens

    def _get_num_items_in_batch(self, batch_samples: Any, device: Any) -> Any:
        """The Trainer's count of tokens: of all workers, or of this one, which is then weighed.

        Counting over all workers takes a message at every step, which all must wait for. Strategies
        whose nodes go their own way for some steps do without: each worker's loss is the mean over
        its own tokens, and its gradients count as many.
        """
        self._counts_own_tokens = self._is_attached and self._weighs_tokens()
        with self._own_tokens():
            count = super()._get_num_items_in_batch(batch_samples, device)  # type: ignore[misc]
        self._num_own_tokens = None
        if count is not None and self._counts_own_tokens:
            self._num_own_tokens = float(count)
        elif count is not None and self._has_weighed:
            # Synchronous again: what is the same on all workers weighs nothing.
            self._num_own_tokens = float(count) / self.args.world_size
        return count

    def _weighs_tokens(self) -> bool:
        assert self.pace is not None
        workers = self.pace.workers
        return (
            self.args.average_tokens_across_devices
            and workers.world.size > 1
            and self.pace.strategy.lockstep() is not workers.world
        )

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """The Trainer's, after saying what the batch counts."""
        if self._is_attached and self._num_own_tokens is not None:
            assert self.pace is not None
            self._has_weighed = True
            self.pace.weigh(self._num_own_tokens)
        with self._own_tokens():
            loss: torch.Tensor = super().training_step(*args, **kwargs)  # type: ignore[misc]
        return loss

    @contextlib.contextmanager
    def _own_tokens(self) -> Iterator[None]:
        before = self.args.average_tokens_across_devices
        self.args.average_tokens_across_devices = before and not self._counts_own_tokens
        try:
            yield
        finally:
            self.args.average_tokens_across_devices = before

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Add where the time goes to what the Trainer logs of training."""
        if self._is_attached and "loss" in logs:
            assert self.pace is not None
            logs = {**logs, **figures(self.pace)}
        super().log(logs, *args, **kwargs)  # type: ignore[misc]


class PacelineTrainer(PacelineMixin, Trainer):  # type: ignore[misc]
    """``Trainer`` with a strategy of paceline in the place of DistributedDataParallel.

    Args:
        *args: The Trainer's arguments.
        strategy: A name, or a strategy object such as ``paceline.Daso(period=8)``. ``None`` trains
            as the Trainer alone does, with DistributedDataParallel.
        attach_options: Options of the strategy, if it is given by name, and further arguments of
            :func:`paceline.attach`: ``{"period": 8, "trace": "trace.json"}``.
        **kwargs: The Trainer's arguments.

    """


class PacelineCallback(TrainerCallback):  # type: ignore[misc]
    """Begins and ends paceline's part of a training, and tells the strategy how it goes.

    A :class:`PacelineTrainer` adds it by itself. The strategy hears of the evaluation's loss, or
    without evaluation of the epoch's mean training loss as it was logged.
    """

    def __init__(self, trainer: PacelineMixin) -> None:
        self._trainer = trainer
        self._num_seen = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Model, optimizer and checkpoint are there."""
        self._num_seen = len(state.log_history)
        self._trainer.begin(kwargs["model"], kwargs["optimizer"])

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The last step: what is evaluated and saved from here on is the finished model."""
        pace = self._trainer.pace
        if control.should_training_stop and pace is not None:
            pace.finish()

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Report the evaluation's loss, which is the same on all workers."""
        loss = (kwargs.get("metrics") or {}).get("eval_loss")
        if loss is not None:
            self._report(float(loss))

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Report the training loss, unless evaluations are reported."""
        seen, self._num_seen = self._num_seen, len(state.log_history)
        losses = [entry["loss"] for entry in state.log_history[seen:] if "loss" in entry]
        if losses and str(getattr(args.eval_strategy, "value", args.eval_strategy)) == "no":
            self._report(sum(losses) / len(losses))

    def _report(self, metric: float) -> None:
        trainer = self._trainer
        if trainer._is_attached and trainer.pace is not None:
            trainer.pace.report(metric)


def newest_complete(folder: Path, device: torch.device) -> str | bool:
    """The newest checkpoint of a run that all workers see complete; True where there is none.

    The Trainer writes its state last, and says what is wrong where it finds no checkpoint.
    """
    found = [
        int(path.name.removeprefix(_PREFIX))
        for path in folder.glob(f"{_PREFIX}*")
        if path.name.removeprefix(_PREFIX).isdecimal() and _is_written(path / "trainer_state.json")
    ]
    newest = torch.tensor([max(found, default=-1)], device=device)
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(newest, torch.distributed.ReduceOp.MIN)
    step = int(newest.item())
    return True if step < 0 else str(folder / f"{_PREFIX}{step}")


def _is_written(path: Path) -> bool:
    """Whether a JSON file is there, to its end."""
    try:
        parse_json(path.read_bytes(), with_infinity=True)
    except (OSError, ValueError):
        return False
    return True


def figures(pace: Pace) -> dict[str, float]:
    """Where the time of a run goes, as numbers to log."""
    summary = pace.stats.summary()
    found = {
        f"paceline_{name}": float(value)
        for name, value in summary.items()
        if isinstance(value, int | float)
    }
    return {**found, "paceline_bytes": float(sum(summary["bytes_by_team"].values()))}
