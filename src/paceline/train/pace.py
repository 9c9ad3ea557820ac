"""A strategy bound to a model and its optimizers. The training loop stays the user's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Self

import torch
from torch import nn
from torch.optim import Optimizer

from paceline.strategies import Replica, Strategy
from paceline.strategies.buffers import settle_buffers
from paceline.strategies.equality import take_over
from paceline.strategies.replica import BufferMode
from paceline.teams import Workers
from paceline.traces.tracer import Tracer
from paceline.train import guard
from paceline.train import optimizer_state as states
from paceline.train.batch_norm import bind_batch_norms, release_batch_norms
from paceline.train.contents import Contents, load_strategy_state, strategy_state
from paceline.train.fingerprint import check_agreement, fingerprint
from paceline.train.levelling import level_models, level_optimizers
from paceline.train.loading.host import Host
from paceline.train.loading.loader import Loader
from paceline.train.loading.loaders import Loaders
from paceline.train.loading.make import make_loader
from paceline.train.loading.sharing import ShareMode
from paceline.train.loop import Loop
from paceline.train.meter import Meter
from paceline.train.monitor import Monitor
from paceline.train.objective import Interval, Objective, make_objective
from paceline.train.resumable import Resumable
from paceline.train.returning import Returning
from paceline.train.sharding import gather_no_more, has_shards, refuse_shards, shard_workers
from paceline.train.stats import Stats


class Pace(Resumable):
    """What :func:`paceline.attach` returns; also a context manager that finishes and detaches.

    Attributes:
        strategy: The strategy that trains.
        workers: The workers of the job.
        stats: Where the time goes, and what is communicated.

    """

    _is_sharded = False

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        strategy: Strategy,
        workers: Workers,
        *,
        buffers: BufferMode,
        metric: Callable[[], float] | None,
        report_every: int,
        monitor: Monitor,
        tracer: Tracer | None,
        on_detach: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__()
        self.strategy = strategy
        self.workers = workers
        self._model = model
        self._optimizers = list(optimizers)
        self._on_detach = on_detach
        settings = {
            "buffers": buffers,
            "report_every": report_every if metric else None,
            "trace": tracer is not None,
        }
        gather_no_more(model)
        self._is_sharded = has_shards(model)
        self._replica = Replica(model, buffers=buffers, optimizers=optimizers)
        described = fingerprint(model, optimizers, strategy, settings)
        check_agreement(described, workers, self._replica.device)
        seen = shard_workers(model, strategy, workers) if self._is_sharded else workers
        if self._is_sharded:  # shards are equal across nodes, buffers everywhere
            take_over(model.parameters(), seen.world, 0)
            take_over(model.buffers(), workers.world, 0)
        else:
            take_over([*model.parameters(), *model.buffers()], workers.world, 0)
        if self._optimizers:
            level_optimizers(self._optimizers, seen.world)
        strategy.start(self._replica, seen)
        self._meter = Meter(strategy, workers, monitor=monitor, tracer=tracer)
        self._loop = Loop(
            model,
            self._optimizers,
            strategy,
            self._meter,
            metric=metric,
            report_every=report_every,
        )
        bind_batch_norms(model, strategy)
        self._loaders = Loaders()
        if workers.survivors is not None:
            returning = Returning(workers, self._contents, described)
            if workers.survivors.is_new:
                returning.begin()
            self._loop.returning = returning
        self._meter.start()

    @property
    def stats(self) -> Stats:
        """Where the time of the run goes, as this worker sees it."""
        return self._meter.stats

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # After an error the other workers may be gone; nothing is exchanged any more.
        if error is None:
            self.finish()
        else:
            self.workers.watch.fail(error)
        self.detach()

    def no_sync(self) -> AbstractContextManager[None]:
        """Backward passes inside only add up gradients, as under DDP's ``no_sync()``.

        The first backward pass after it, or the optimizer's step, exchanges the sum.
        """
        return self._loop.gradients.kept_local()

    def accumulate(self) -> AbstractContextManager[None]:
        """Another name for :meth:`no_sync`."""
        return self.no_sync()

    def join(self) -> AbstractContextManager[None]:
        """Let workers have unequal numbers of batches: put the whole loop of an epoch in here.

        A worker that has run out of batches stands by: it takes part in what the others exchange,
        with nothing of its own, until all have run out. Gradients are averaged over the workers
        that have data. All workers then go on from the parameters, and the optimizer's state, of
        those that trained the longest (in each node, where nodes differ).

        Each step costs a few small messages among all workers, so use it only where it is needed.
        """
        guard.refuse_if_surviving(self.workers, "join()")
        return self._loop.join()

    def objective(
        self,
        loss_fn: Callable[..., torch.Tensor],
        data: Any,
        *,
        interval: Interval = "epoch",
        batch_size: int | None = None,
    ) -> Objective:
        """The loss over all workers' samples, and its gradient, as a plain function.

        It serves algorithms that are written for one process: ``torch.optim.LBFGS`` with its line
        search, ``scipy.optimize.minimize``, your own. All workers get the same values, bit for
        bit. Needs a strategy that keeps all workers equal at every step: ``"sync"``. All workers
        call it.

        Args:
            loss_fn: Called with some of this worker's samples, returns their mean loss:
                ``lambda x, y: F.cross_entropy(model(x), y)``.
            data: This worker's samples: a tensor, a tuple or a mapping of tensors, or a data set.
                Workers may have unequal numbers of them; every sample counts alike.
            interval: How many samples of all workers make up one block of ``for block in
                objective``, after which an algorithm updates the parameters: ``"epoch"`` takes
                all, 1 takes one after another.
            batch_size: The most samples that this worker computes at once, to save memory.

        """
        guard.refuse_if_surviving(self.workers, "objective()")
        refuse_shards(self._is_sharded, "an objective", "attach one that is whole on every worker")
        return make_objective(
            loss_fn,
            data,
            interval=interval,
            batch_size=batch_size,
            parameters=self._replica.parameters,
            world=self.workers.world,
            wait=self.strategy.wait,
            give=self._loop.gradients.put,
            check=self._check_lockstep,
        )

    def _check_lockstep(self) -> None:
        world = self.workers.world
        if world.size > 1 and self.strategy.lockstep() is not world:
            raise ValueError(
                f"an objective is a function of one set of parameters, and "
                f"{type(self.strategy).__name__} lets workers differ; attach with strategy='sync'"
            )
        self._loop.refuse_inside_join("an objective")

    def loader(
        self,
        dataset: Any,
        batch_size: int | None = None,
        *,
        shuffle: bool = False,
        seed: int = 0,
        sampler: Iterable[int] | None = None,
        batch_sampler: Iterable[Sequence[int]] | None = None,
        drop_last: bool = False,
        lengths: Sequence[int] | None = None,
        sharded: bool = False,
        shares: ShareMode | Sequence[float] = "measured",
        max_batch: int | None = None,
        **options: Any,
    ) -> Loader:
        """A loader that shares a global batch among the workers by their speed.

        Every sample comes exactly once per epoch, on one of the workers. Gradients are weighted, so
        that a loss that is a mean over the worker's batch trains as one process with the whole
        batch would. All workers call it. :meth:`save` keeps its position and the speeds. Make it
        once, or anew for every epoch: a loader over the same data goes on with the next epoch, and
        with the speeds that are known.

        Args:
            dataset: A data set as torch's ``DataLoader`` takes it, the same on all workers.
            batch_size: Samples of the global batch, that of all workers together.
            shuffle: Whether to shuffle, anew in every epoch.
            seed: What the order depends on, beside the epoch.
            sampler: Another order; the first worker's counts.
            batch_sampler: Other global batches; the first worker's count.
            drop_last: Whether to leave out a last batch that is not full.
            lengths: Each sample's number of tokens. ``batch_size`` then counts tokens, and so do
                shares and weights: the loss is to be a mean over tokens.
            sharded: Of a data set that can only be iterated: whether every worker has a stream of
                its own. Otherwise all read the same one and each keeps its share.
            shares: ``"measured"`` follows the workers' speeds, ``"equal"`` does not; or a number
                for each worker, such as its relative speed.
            max_batch: The most that this worker may have of a batch. On a GPU, the free memory is
                respected without it.
            **options: Further options of torch's ``DataLoader``, such as ``num_workers``.

        """
        guard.refuse_if_surviving(self.workers, "loader()")
        refuse_shards(self._is_sharded, "loader()", "use DistributedSampler, with equal batches")
        made = make_loader(
            self._loader_host(),
            dataset,
            batch_size=batch_size,
            shuffle=shuffle,
            seed=seed,
            sampler=sampler,
            batch_sampler=batch_sampler,
            drop_last=drop_last,
            lengths=lengths,
            sharded=sharded,
            shares=shares,
            max_batch=max_batch,
            options=options,
        )
        self._loaders.add(made)
        return made

    def _loader_host(self) -> Host:
        return Host(
            workers=self.workers,
            model=self._model,
            take=self._loop.take,
            leave=self._loop.leave,
            waited_s=lambda: self.strategy.waiting_s,
            is_in_lockstep=lambda: self.strategy.lockstep() is self.workers.world,
            when_computed=self._loop.when_computed,
        )

    def weigh(self, count: float) -> None:
        """Say what the next batch counts, where a loop of your own has unequal batches.

        Gradients are then averaged with these weights: with the number of samples, or of tokens,
        that the worker's loss is the mean of, they are those of one process with all batches. All
        workers call it before each backward pass; :meth:`loader` does so by itself.

        Args:
            count: Samples or tokens of this worker's batch; may be 0.

        """
        guard.refuse_if_surviving(self.workers, "weigh()")
        self._loop.weigh(count)

    def skip_step(self, optimizer: Optimizer | None = None) -> None:
        """Say that this step is left out: ``optimizer.step()`` will not be called.

        A step counts on all nodes or on none, so a node that leaves one out on its own must say so.
        Steps that ``torch.amp.GradScaler`` leaves out are noticed without this.

        Args:
            optimizer: Which of several optimizers would have stepped; by default the first.

        """
        self._loop.skip_step(optimizer)

    def report(self, metric: float | torch.Tensor) -> None:
        """Tell the strategy how training goes. All workers call it.

        The workers' values are averaged, so that all of them make the same decision.

        Args:
            metric: A loss, or anything else of which lower is better.

        """
        self._loop.report(float(metric))

    def finish(self, *, optimizer_state: bool = False) -> None:
        """End the training: all workers get the same parameters and buffers, bit for bit.

        Called when the context ends. Call it before evaluating or saving the final model, or use
        it again after more steps.

        Args:
            optimizer_state: Also give all workers the same optimizer state, the average of theirs:
                nodes that train on their own have different momenta.

        """
        self._loop.refuse_inside_join("finish()")
        self._saver.wait()
        self._loop.close_step(are_dropped=False)
        self.workers.watch.meet("finish()")
        self._loaders.settle()
        gather_no_more(self._model)
        if not self._loop.is_finished:
            self._meter.finish()
            self._loop.is_finished = True
        world = self.strategy.workers.world
        level_models(self._replica, world)
        if self._is_sharded:
            settle_buffers(self._replica, self.workers.world)
        if optimizer_state and self._optimizers:
            states.average(self._optimizers, world)
        self._meter.flush()

    def detach(self) -> None:
        """Remove all hooks; model and optimizer are as before, and so is the class of both.

        The workers that ``attach`` found are closed; those it was given stay open. A save in the
        background is waited for.
        """
        self._loop.detach()
        release_batch_norms(self._model)
        guard.release(self.strategy)
        try:
            self._saver.close(is_in_trouble=self.workers.watch.is_in_trouble)
        finally:
            self._meter.close()
            self._on_detach()

    def state_dict(self) -> dict[str, Any]:
        """The strategy's whole state on this worker, with what is under way (which it waits for).

        Nodes differ between exchanges, so every worker saves its own; see :meth:`save`.
        """
        self._loop.close_step()
        return strategy_state(self.strategy, self._loop.usual_batch)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the strategy's state.

        Args:
            state: What :meth:`state_dict` returned on this worker.

        """
        load_strategy_state(self.strategy, self._loop.usual_batch, state)
        self._loop.is_finished = False

    def _before_save(self) -> None:
        gather_no_more(self._model)
        self._loop.refuse_inside_join("save()")
        self._loop.close_step()

    def _before_load(self) -> None:
        gather_no_more(self._model)

    def _returning(self) -> Returning | None:
        return self._loop.returning

    def _after_load(self) -> None:
        self._loop.is_finished = False

    def _contents(self) -> Contents:
        return Contents(
            model=self._model,
            optimizers=self._optimizers,
            workers=self.workers,
            strategy=self.strategy,
            usual_batch=self._loop.usual_batch,
            loaders=self._loaders,
            registered=self._registered,
        )
