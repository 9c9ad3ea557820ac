"""Bind a strategy to a model and its optimizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer

from paceline.strategies import Strategy, make_strategy
from paceline.strategies.replica import BufferMode
from paceline.teams import CollectiveName, Workers, find_workers, with_collective
from paceline.teams.collectives import check_collective
from paceline.teams.survivors import find_surviving_workers
from paceline.traces.traced_team import traced_workers
from paceline.traces.tracer import Tracer
from paceline.train import guard
from paceline.train.forecast import Forecast
from paceline.train.idle import IdlePace
from paceline.train.logger import Logger, make_loggers
from paceline.train.monitor import Monitor
from paceline.train.pace import Pace
from paceline.train.sharding import has_shards, refuse_shards


def attach(
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
    strategy: str | Strategy = "daso",
    *,
    workers: Workers | DeviceMesh | None = None,
    timeout: float | timedelta | None = None,
    buffers: BufferMode = "mean",
    collective: CollectiveName = "backend",
    metric: Callable[[], float] | None = None,
    report_every: int = 100,
    tensorboard: str | Path | None = None,
    loggers: str | Logger | Sequence[str | Logger] = (),
    log_every: int = 1,
    forecast: Forecast | None = None,
    trace: str | Path | None = None,
    trace_steps: tuple[int, int] = (10, 30),
    check: bool = False,
    survive: bool = False,
    enabled: bool = True,
    **options: Any,
) -> Pace:
    """Train ``model`` data-parallel with a strategy. Nothing else in the loop changes.

    Args:
        model: Any module; it keeps its class and its state-dict keys. Move it to its device first.
        optimizer: Any optimizer over the model's parameters, or a list of them. None where
            another library's algorithm, such as SciPy's, uses :meth:`Pace.objective`.
        strategy: A name (``paceline strategies`` lists them), or a strategy object such as
            ``paceline.Daso(period=8)``.
        workers: The workers of the job. By default they are found from the launcher (torchrun,
            Slurm, Open MPI); a two-dimensional ``DeviceMesh``, nodes x workers, also tells.
        timeout: How long a worker waits for the others before it gives up with a ``TeamError``:
            seconds, or a ``timedelta``. By default the process group's own timeout.
        buffers: What becomes of batch-norm statistics and other buffers at exchanges: ``"mean"``
            averages them over those who exchange, ``"broadcast"`` takes those of the first of
            them, ``"keep"`` leaves each worker its own.
        collective: By which algorithm teams sum and broadcast: ``"backend"`` is Gloo's or NCCL's
            own, ``"tree"`` and ``"ring"`` are messages between workers. ``"auto"`` times the tree
            and the backend on this job's links, and takes what is faster for each size; another
            run may choose, and round, differently.
        metric: Called every ``report_every`` steps instead of ``pace.report``.
        report_every: Steps between calls of ``metric``.
        tensorboard: A folder for TensorBoard; the first worker writes.
        loggers: Where the run's numbers go: ``"wandb"``, ``"mlflow"``, ``"tensorboard"``, objects
            such as ``paceline.WandbLogger(project="mine")``, or a list of these. Only the first
            worker logs. A logger that fails is left out with a warning.
        log_every: Steps from one log to the next. Logged times are means over these steps.
        forecast: What the run is expected to take and cost, to be logged beside what it does:
            ``prediction.forecast()``, or a :class:`Forecast` of your own.
        trace: A file, ``.json`` or ``.json.gz``, for Perfetto: what every worker computed,
            communicated and waited for. The first worker writes it at ``pace.finish()``.
        trace_steps: The first step to trace, counted from 0 at this call, and the one after the
            last.
        check: Compare before every collective that all workers begin the same one, and name the
            first difference: for strategies of your own. It costs a small message each time.
            Without it, workers that wait for each other are still found, after a while.
        survive: Go on when a node is lost, and take it back when it returns. Each node is then
            started on its own; see the guide "Survive the loss of a node". For strategies whose
            nodes train on their own between exchanges: local SGD, DiLoCo, DASO, SlowMo.
        enabled: ``False`` makes everything a no-op, so that one script trains with and without
            paceline. No process group is started.
        **options: The strategy's options, where it is given by name: ``attach(model, optimizer,
            "daso", period=8)`` is ``attach(model, optimizer, paceline.Daso(period=8))``.

    """
    optimizers = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer or ())
    if buffers not in ("mean", "keep", "broadcast"):
        raise ValueError(f"buffers={buffers!r} is not known; use 'mean', 'keep' or 'broadcast'")
    if report_every < 1:
        raise ValueError(f"report_every={report_every} must be at least 1")
    if log_every < 1:
        raise ValueError(f"log_every={log_every} must be at least 1")
    check_collective(collective)
    # On all workers: where a library is missing, all say so.
    wanted_loggers = make_loggers(loggers, tensorboard=tensorboard) if enabled else []
    device = next((parameter.device for parameter in model.parameters()), None)
    timeout_s = _seconds(timeout)
    chosen = make_strategy(strategy, **options)
    if not enabled:
        return IdlePace(model, optimizers, chosen)
    tracer = None if trace is None else Tracer(trace, trace_steps)
    if isinstance(workers, Workers) and timeout_s is not None:
        raise ValueError(
            "workers that exist have their timeout: leave timeout= out here, and give it to "
            "find_workers(timeout_s=...)"
        )
    if survive:
        _check_survival(chosen, workers, collective=collective, trace=trace, check=check)
        refuse_shards(has_shards(model), "survive=True", "save it and resume")
    guard.check_model(model)
    if optimizer is not None:
        guard.check_optimizers(model, optimizers)
    guard.claim(list(model.parameters()), chosen)
    own_workers = None
    try:
        if survive:
            workers = own_workers = find_surviving_workers(timeout_s=timeout_s)
        elif not isinstance(workers, Workers):
            workers = own_workers = find_workers(workers, timeout_s=timeout_s)
        workers.watch.is_checking = check
        workers = with_collective(workers, collective, device=device)
        # The workers that were given stay open, but for what was added here.
        on_detach = workers.close if own_workers is not None else workers.background.close_added
        if tracer is not None:
            workers = traced_workers(workers, tracer)
        return Pace(
            model,
            optimizers,
            chosen,
            workers,
            buffers=buffers,
            metric=metric,
            report_every=report_every,
            monitor=Monitor(
                wanted_loggers if workers.world.rank == 0 else (),
                log_every=log_every,
                forecast=forecast,
            ),
            tracer=tracer,
            on_detach=on_detach,
        )
    except BaseException:
        guard.release(chosen)
        if own_workers is not None:
            own_workers.close()
        raise


def _check_survival(strategy: Strategy, workers: object, **others: object) -> None:
    """Refuse what does not go together with nodes that may be lost."""
    if not strategy.survives:
        raise ValueError(
            f"{type(strategy).__name__} needs all nodes at every step and cannot survive the loss "
            "of one; use local-sgd, diloco, daso or slowmo"
        )
    if getattr(strategy.options, "wire", "fp32") != "fp32":
        raise ValueError("survive=True needs wire='fp32': a narrow wire keeps what others sent")
    if workers is not None:
        raise ValueError("survive=True finds the workers by itself; leave workers= out")
    usual = {"collective": "backend", "trace": None, "check": False}
    for name, value in others.items():
        if value != usual[name]:
            raise ValueError(f"survive=True does not go together with {name}={value!r}")


def _seconds(timeout: float | timedelta | None) -> float | None:
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if seconds is not None and not seconds > 0:
        raise ValueError(f"timeout={timeout} must be more than 0 seconds")
    return seconds
