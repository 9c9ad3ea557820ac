"""What a race expects before it starts: its links and workers measured, each entry predicted."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.cluster import Cluster
from paceline.measure.known_step import known_step
from paceline.measure.links import measure_links, measured_cluster
from paceline.measure.workers import measure_workers
from paceline.race.task import NUM_WARM_UP_STEPS, RaceSettings
from paceline.rehearse import predict
from paceline.steps import Step
from paceline.steps.source import zoo_step
from paceline.strategies import strategy_names
from paceline.teams import Workers
from paceline.teams.backend import device_in_use

# Few sizes, around those of gradient buckets: a race measures for seconds.
_SIZES_BYTES = tuple(2**power for power in (14, 17, 19, 21))
_SECONDS_PER_SIZE = 0.25
_ROUNDS = 2
# torch's DDP does what sync does; the floor does it inside each node.
_AS_STRATEGY = {"ddp": "sync", "floor": "sync"}


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """One entry's predicted mean step, over the steps that the race times."""

    step_s: float
    low_s: float
    high_s: float
    """Two of three measurements lie between these."""
    compute_s: float
    exposed_communication_s: float


def measure_job(workers: Workers, base: Cluster, settings: RaceSettings) -> Cluster:
    """The cluster that this job runs on, measured. All workers call it, all get the same.

    Args:
        workers: The teams of this job.
        base: The cluster whose device is taken over; the workers are compared with its profile.
        settings: The training whose step the workers are compared by.
    """
    device = base.node_kinds[0].device.name
    links = measure_links(workers, sizes_bytes=_SIZES_BYTES, seconds_per_size=_SECONDS_PER_SIZE)
    step = known_step(_step(settings, str(device_in_use())), device)
    met = measure_workers(workers, device=device, step=step, rounds=_ROUNDS)
    return measured_cluster(base, workers.node_sizes, links, workers=met, name="measured")


def forecast(
    entry: str, settings: RaceSettings, cluster: Cluster, num_steps: int
) -> Forecast | None:
    """What an entry's step will take; None for other libraries' strategies.

    Args:
        entry: The entry's name.
        settings: What it trains.
        cluster: The cluster, as :func:`measure_job` measured it.
        num_steps: The steps of the whole run.
    """
    strategy = _AS_STRATEGY.get(entry, entry)
    if strategy not in strategy_names():
        return None
    if entry != "floor":
        return _predicted(strategy, entry, settings, cluster, num_steps)
    # Every node by itself; the slowest is the race's floor.
    alone = [cluster.replace(node_kinds=(kind.replace(count=1),)) for kind in cluster.node_kinds]
    floors = [_predicted(strategy, entry, settings, each, num_steps) for each in alone]
    return max(floors, key=lambda floor: floor.step_s)


def _predicted(
    strategy: str, entry: str, settings: RaceSettings, cluster: Cluster, num_steps: int
) -> Forecast:
    found = predict(
        _step(settings, "meta"),
        cluster=cluster,
        strategy=strategy,
        samples=num_steps * settings.batch * cluster.num_workers,
        **settings.options.get(entry, {}),
    )
    assert found.run is not None
    # The race does not time the first steps, which belong to the strategy's first phase.
    first_phase = next(iter(found.run.phases), "")
    untimed_s = NUM_WARM_UP_STEPS * found.phases_s.get(first_phase, found.step_s)
    step_s = (found.run.seconds - untimed_s) / (num_steps - NUM_WARM_UP_STEPS)
    compute_s = min(step_s, found.compute_s + max(0.0, found.host_s))
    return Forecast(
        step_s=step_s,
        low_s=step_s * max(0.0, 1 - found.uncertainty),
        high_s=step_s * (1 + found.uncertainty),
        compute_s=compute_s,
        exposed_communication_s=step_s - compute_s,
    )


def _step(settings: RaceSettings, device: str) -> Step:
    """The step that the race trains."""
    return zoo_step(settings.model, batch=settings.batch, optimizer="sgd", device=device)
