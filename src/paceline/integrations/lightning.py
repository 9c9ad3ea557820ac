"""Lightning's ``Trainer`` with paceline: a ``Strategy`` for each of paceline's strategies.

Importing this module registers them: ``Trainer(strategy="paceline_daso")``.
"""

from __future__ import annotations

import functools
import math
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch

from paceline.integrations.binding import Binding
from paceline.integrations.checkpoints import folder_beside, load_beside, save_beside
from paceline.integrations.missing import missing
from paceline.strategies import Strategy, strategy_names
from paceline.strategies.registry import strategy_class
from paceline.train import Pace

try:
    # Two packages with the same classes, which do not know each other: take the one in use.
    if "pytorch_lightning" in sys.modules and "lightning" not in sys.modules:
        raise ImportError
    from lightning.fabric.plugins.collectives.torch_collective import default_pg_timeout
    from lightning.pytorch.strategies import DDPStrategy, StrategyRegistry
    from lightning.pytorch.trainer.states import TrainerFn
except ImportError:
    try:
        from lightning_fabric.plugins.collectives.torch_collective import default_pg_timeout
        from pytorch_lightning.strategies import DDPStrategy, StrategyRegistry
        from pytorch_lightning.trainer.states import TrainerFn
    except ImportError as error:
        raise missing("lightning", extra="lightning") from error

_KEY = "paceline"


class PacelineStrategy(DDPStrategy):  # type: ignore[misc]
    """A Lightning strategy that trains with one of paceline's.

    The module is not wrapped. Processes, devices and samplers are those of Lightning's
    ``DDPStrategy``.

    Args:
        strategy: The name of one of paceline's strategies, or a strategy object such as
            ``paceline.Daso(period=8)``.
        accelerator: As for ``DDPStrategy``.
        parallel_devices: As for ``DDPStrategy``.
        cluster_environment: As for ``DDPStrategy``.
        checkpoint_io: As for ``DDPStrategy``.
        precision_plugin: As for ``DDPStrategy``.
        process_group_backend: As for ``DDPStrategy``.
        timeout: As for ``DDPStrategy``.
        start_method: As for ``DDPStrategy``.
        monitor: The name of a metric that the module logs in validation, of which lower is better.
            The strategy hears of it after each validation; without it, of each epoch's mean
            training loss.
        **options: Options of the strategy, if it is given by name, and further arguments of
            :func:`paceline.attach`.

    Attributes:
        pace: What ``attach`` returned, once fitting has begun.

    """

    def __init__(
        self,
        strategy: str | Strategy = "daso",
        *,
        accelerator: Any = None,
        parallel_devices: list[torch.device] | None = None,
        cluster_environment: Any = None,
        checkpoint_io: Any = None,
        precision_plugin: Any = None,
        process_group_backend: str | None = None,
        timeout: timedelta | None = default_pg_timeout,
        start_method: str = "popen",
        monitor: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            accelerator=accelerator,
            parallel_devices=parallel_devices,
            cluster_environment=cluster_environment,
            checkpoint_io=checkpoint_io,
            precision_plugin=precision_plugin,
            process_group_backend=process_group_backend,
            timeout=timeout,
            start_method=start_method,
        )
        self._binding = Binding(strategy, options)
        self._monitor = monitor
        self._is_attached = False
        self._loaded_path: Any = None
        self._loss_sum: torch.Tensor | float = 0.0
        self._num_losses = 0
        self.pace: Pace | None = None

    # The life of a training

    def configure_ddp(self) -> None:
        """Leave the module as it is."""

    def setup(self, trainer: Any) -> None:
        """Attach once Lightning has made the optimizers."""
        super().setup(trainer)
        if trainer.state.fn == TrainerFn.FITTING:
            self.pace = self._binding.attach(
                self.lightning_module, self.optimizers, num_steps=self._run_length()
            )
            self._is_attached = True
            self._loss_sum, self._num_losses = 0.0, 0

    def on_train_end(self) -> None:
        """All workers get the same model."""
        if self._is_attached:
            self._attached().finish()
        super().on_train_end()

    def on_exception(self, exception: BaseException) -> None:
        """Say why to the other workers, which may be waiting for this one."""
        super().on_exception(exception)
        if self._is_attached:
            self._attached().workers.watch.fail(exception)

    def teardown(self) -> None:
        """Detach, and all that Lightning does."""
        if self._is_attached:
            self._is_attached = False
            self._attached().detach()
        super().teardown()

    def _attached(self) -> Pace:
        assert self.pace is not None
        return self.pace

    # Steps

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Gradients are only added up inside; Lightning asks for it while it accumulates."""
        with self._attached().no_sync():
            yield

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """The module's; its loss is noted."""
        output = super().training_step(*args, **kwargs)
        loss = output.get("loss") if isinstance(output, dict) else output
        if self._monitor is None and isinstance(loss, torch.Tensor):
            self._loss_sum = self._loss_sum + loss.detach().float().mean()
            self._num_losses += 1
        return output

    def optimizer_step(
        self, optimizer: Any, closure: Callable[[], Any], model: Any = None, **kwargs: Any
    ) -> Any:
        """Step; after the last one, what is validated and saved is the finished model."""
        output = super().optimizer_step(optimizer, closure, model, **kwargs)
        module = self.lightning_module
        if self._is_attached and module.trainer.global_step + 1 == self._run_length():
            self._attached().finish()
        return output

    def _run_length(self) -> int | None:
        """Of all epochs, in steps of the optimizer; None if Lightning does not know."""
        module = self.lightning_module
        length = module.trainer.estimated_stepping_batches if module.automatic_optimization else 0
        return int(length) if 0 < length < math.inf else None

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Report the loss of the epoch before."""
        super().on_train_batch_start(batch, batch_idx)
        if batch_idx == 0 and self._num_losses:
            mean = float(self._loss_sum) / self._num_losses
            self._loss_sum, self._num_losses = 0.0, 0
            self._attached().report(mean)

    def on_validation_end(self) -> None:
        """Report the metric that is monitored."""
        super().on_validation_end()
        trainer = self.lightning_module.trainer
        if not self._is_attached or self._monitor is None or trainer.sanity_checking:
            return
        if self._monitor not in trainer.callback_metrics:
            raise ValueError(
                f"monitor={self._monitor!r} was not logged in validation; the module has logged "
                f"{', '.join(sorted(trainer.callback_metrics)) or 'nothing'}"
            )
        self._attached().report(trainer.callback_metrics[self._monitor])

    # Checkpoints

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None
    ) -> None:
        """Save the strategy's state too: in the file, or beside it where workers differ."""
        if self._is_attached and "optimizer_states" in checkpoint:
            checkpoint[_KEY] = save_beside(self._attached(), folder_beside(filepath))
        super().save_checkpoint(checkpoint, filepath, storage_options=storage_options)

    def remove_checkpoint(self, filepath: Any) -> None:
        """Remove what is beside the file too."""
        super().remove_checkpoint(filepath)
        if self.local_rank == 0 and "://" not in str(filepath):
            shutil.rmtree(folder_beside(filepath), ignore_errors=True)

    def load_checkpoint(self, checkpoint_path: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Read the file, and remember which one it was."""
        self._loaded_path = checkpoint_path
        loaded: dict[str, Any] = super().load_checkpoint(checkpoint_path, *args, **kwargs)
        return loaded

    def load_optimizer_state_dict(self, checkpoint: Any) -> None:
        """The last part of a checkpoint that Lightning restores; the strategy's follows."""
        super().load_optimizer_state_dict(checkpoint)
        if _KEY in checkpoint:
            load_beside(self._attached(), folder_beside(self._loaded_path), checkpoint[_KEY])

    @classmethod
    def register_strategies(cls, strategy_registry: Any) -> None:
        """Give each of paceline's strategies a name in Lightning: ``"paceline_local_sgd"``."""
        for name in strategy_names():
            strategy_registry.register(
                lightning_name(name),
                functools.partial(cls, name),
                description=strategy_class(name).summary,
                override=True,
            )


def lightning_name(strategy: str) -> str:
    """What a strategy of paceline is called in Lightning.

    Args:
        strategy: Its name in paceline.

    """
    return f"paceline_{strategy.replace('-', '_')}"


PacelineStrategy.register_strategies(StrategyRegistry)
